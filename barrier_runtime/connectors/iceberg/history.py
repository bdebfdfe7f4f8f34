"""History of an Iceberg table: rows of a snapshot, and added or changed rows of each later one. Blocking.

`IcebergHistory` follows appends: overwrites and deletes end the job. `IcebergChanges` makes upserts: data files that
are gone since the parent, or have other deletes now, have rows from before; new files, and files with other deletes,
have rows from after. Both skip `replace` (a compaction).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import FileFormat, ManifestContent, ManifestEntryStatus
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import Operation, Snapshot

from barrier_runtime.connectors.iceberg.columns import table_schema
from barrier_runtime.connectors.iceberg.table import loaded, opened_catalog, translated
from barrier_runtime.connectors.parquet_format import refuse_far_int96
from barrier_runtime.connectors.source_bases.table_reader import check_kept
from barrier_runtime.connectors.source_bases.upserts import Part, Upserts
from barrier_runtime.data.schemas import fit
from barrier_runtime.state.errors import InvalidJob

_ANEW = "start the job without state (restore='none'), which reads the table as it is"


class IcebergHistory:
    """History of the table "namespace.table".

    Raises `InvalidJob` for an unreadable table, `Unavailable` if the catalog does not answer.
    """

    def __init__(self, name: str, catalog: str, properties: Mapping[str, str], where: str) -> None:
        self._name = name
        self._where = where
        self._catalog = opened_catalog(catalog, properties, where, "IcebergSource")
        self._table = self._loaded()
        self._ids = {field.name: field.field_id for field in self._table.schema().fields}

    def schema(self) -> pa.Schema:
        return table_schema(self._table.schema().as_arrow(), self._name, self._where)

    def refresh(self) -> None:
        self._table = self._loaded()

    def current(self) -> int | None:
        snapshot = self._table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def following(self, after: int) -> int | None:
        found: int | None = None
        at = self._table.current_snapshot()
        while at is not None and at.snapshot_id != after:
            found = int(at.snapshot_id)
            if at.parent_snapshot_id is None:
                at = None
                break
            parent = self._table.snapshot_by_id(at.parent_snapshot_id)
            if parent is None:
                raise self._lost(after)
            at = parent
        if at is None:
            raise self._lost(after)
        return found

    def _lost(self, after: int) -> InvalidJob:
        return InvalidJob(
            f"{self._where}: the table {self._name} does not tell what came after snapshot {after}: snapshots were "
            f"expired that were not read yet (keep them for longer than the longest outage), or it was rolled back: "
            f"{_ANEW}"
        )

    def mark(self, snapshot: int) -> str:
        """Numbers of snapshots are drawn by chance, so another table does not have them."""
        return ""

    def files(self, snapshot: int, *, whole: bool) -> Sequence[Any]:
        found = self._snapshot(snapshot)
        if whole:
            return self._planned(snapshot)
        with self._listing():
            return sorted(self._added(found), key=_path)

    def _snapshot(self, snapshot: int) -> Snapshot:
        found = self._table.snapshot_by_id(snapshot)
        if found is None:
            raise self._lost(snapshot)
        return found

    def _planned(self, snapshot: int) -> list[FileScanTask]:
        self._snapshot(snapshot)
        try:
            with self._listing():
                return sorted(self._table.scan(snapshot_id=snapshot).plan_files(), key=_path)
        except (ValueError, NotImplementedError) as error:
            if "equality deletes" not in str(error):
                raise
            raise InvalidJob(
                f"{self._where}: snapshot {snapshot} of the table {self._name} has deletes by equality (as Flink's "
                "upserts), which pyiceberg does not read: have them applied to the data files, as Spark does with "
                f"CALL <catalog>.system.rewrite_data_files(table => '{self._name}', options => "
                f"map('delete-file-threshold', '1', 'remove-dangling-deletes', 'true')), then {_ANEW}"
            ) from error

    def _listing(self) -> AbstractContextManager[None]:
        return _translated(f"{self._where}: the files of the table {self._name} cannot be listed")

    def _added(self, snapshot: Snapshot) -> Iterator[FileScanTask]:
        operation = snapshot.summary.operation if snapshot.summary is not None else Operation.APPEND
        if operation == Operation.REPLACE:
            return
        if operation != Operation.APPEND:
            raise InvalidJob(
                f"{self._where}: snapshot {snapshot.snapshot_id} of the table {self._name} is of operation "
                f"{operation.value!r}: rows that were read have changed, and only appended rows can be followed "
                f"without a key: give IcebergSource the key= of its rows, which makes upserts of them, or {_ANEW}"
            )
        for manifest in snapshot.manifests(self._table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id:
                continue
            if manifest.content != ManifestContent.DATA:
                raise InvalidJob(
                    f"{self._where}: snapshot {snapshot.snapshot_id} of the table {self._name} deletes rows though it "
                    f"says that it only appends: give IcebergSource the key= of its rows, or {_ANEW}"
                )
            for entry in manifest.fetch_manifest_entry(self._table.io):
                if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                    yield FileScanTask(entry.data_file)

    def size(self, file: Any) -> int:
        return int(file.file.file_size_in_bytes)

    def rows(self, file: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
        return self._rows_of(file, schema)

    def _rows_of(self, task: FileScanTask, schema: pa.Schema) -> list[pa.RecordBatch]:
        try:
            projected = self._table.schema().select(*schema.names)
        except ValueError as error:
            raise InvalidJob(
                f"{self._where}: the table {self._name} has lost a column ({error}): start the program again, which "
                "looks at its columns"
            ) from error
        others = [name for name in schema.names if projected.find_field(name).field_id != self._ids.get(name)]
        if others:
            raise InvalidJob(
                f"{self._where}: column {others[0]!r} of the table {self._name} is another one than when the program "
                "started, as after a rename: start the program again, which looks at its columns"
            )
        now = table_schema(projected.as_arrow(), self._name, self._where)
        check_kept(now, schema, f"the table {self._name}", self._where)
        self._refuse_far_times(task, schema)
        scan = ArrowScan(self._table.metadata, self._table.io, projected, AlwaysTrue())
        with _translated(f"{self._where}: the file {task.file.file_path} cannot be read"):
            batches = list(scan.to_record_batches([task]))
        return [fit(batch.select(schema.names), schema, self._where) for batch in batches]

    def _refuse_far_times(self, task: FileScanTask, schema: pa.Schema) -> None:
        has_times = any("timestamp" in str(field.type) for field in schema)
        if not has_times or task.file.file_format != FileFormat.PARQUET:
            return
        where = f"{self._where}, file {task.file.file_path}"
        with _translated(f"{where}: it cannot be read"), self._table.io.new_input(task.file.file_path).open() as file:
            refuse_far_int96(file, schema.names, where)

    def _loaded(self) -> Table:
        table = loaded(self._catalog, self._name, self._where)
        if table is None:
            raise InvalidJob(f"{self._where}: there is no table {self._name}: correct the name, or make it")
        return table


def _path(task: FileScanTask) -> str:
    return str(task.file.file_path)


@contextmanager
def _translated(failure: str) -> Iterator[None]:
    try:
        with translated(failure, FileNotFoundError):
            yield
    except FileNotFoundError as error:
        raise InvalidJob(f"{failure}: {error}. It was removed with its snapshot before it was read: {_ANEW}") from error


class IcebergChanges(IcebergHistory):
    def __init__(self, name: str, catalog: str, properties: Mapping[str, str], key: Sequence[str], where: str) -> None:
        super().__init__(name, catalog, properties, where)
        self._upserts = Upserts(key, lambda task, schema, _: self._rows_of(task, schema), f"the table {name}", where)

    def schema(self) -> pa.Schema:
        return self._upserts.schema(super().schema())

    def files(self, snapshot: int, *, whole: bool) -> Sequence[Part]:
        found = self._snapshot(snapshot)
        if whole:
            return self._upserts.whole(self._planned(snapshot), found.timestamp_ms)
        if found.summary is not None and found.summary.operation == Operation.REPLACE:
            return []
        before = [] if found.parent_snapshot_id is None else self._planned(found.parent_snapshot_id)
        after = self._planned(snapshot)
        there, then = {_content(task) for task in before}, {_content(task) for task in after}
        return self._upserts.changes(
            [task for task in before if _content(task) not in then],
            [task for task in after if _content(task) not in there],
            found.timestamp_ms,
        )

    def size(self, file: Part) -> int:
        return super().size(file.file)

    def rows(self, file: Part, schema: pa.Schema) -> list[pa.RecordBatch]:
        return self._upserts.rows(file, schema)


def _content(task: FileScanTask) -> tuple[str, frozenset[str]]:
    return task.file.file_path, frozenset(each.file_path for each in task.delete_files)
