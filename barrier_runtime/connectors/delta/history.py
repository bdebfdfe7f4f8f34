"""History of a Delta table: rows of a version, and added or changed rows of each later version. Blocking.

`DeltaHistory` follows appended rows: removed rows and deletion vectors end the job. `DeltaChanges` makes upserts from
a version's change data feed, or from the removed and added files. Both skip versions without a change of data.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.delta.library import brief, library_url, load_deltalake, storage_options, trouble
from barrier_runtime.connectors.delta.log_records import log_key
from barrier_runtime.connectors.parquet_format import read_options, read_parquet, read_schema
from barrier_runtime.connectors.source_bases.table_reader import check_kept
from barrier_runtime.connectors.source_bases.upserts import Part, Upserts
from barrier_runtime.data.schemas import fit
from barrier_runtime.data.values.text_columns import UNFIT, column_of_texts
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore

_KIND = pa.field("_change_type", pa.string())
_BEFORE, _AFTER = ("delete", "update_preimage"), ("insert", "update_postimage")


LARGE_BYTES = 1 << 30  # assumed if the size is unknown, so that the file is read alone
ANEW = "start the job without state (restore='none'), which reads the table as it is"


class _Add(msgspec.Struct):
    path: str
    dataChange: bool = True
    deletionVector: Any = None


class _Remove(msgspec.Struct):
    path: str
    dataChange: bool = True


class ChangeFile(msgspec.Struct):
    path: str
    partitionValues: dict[str, str | None]


class _Commit(msgspec.Struct):
    timestamp: int | None = None
    inCommitTimestamp: int | None = None


class Action(msgspec.Struct):
    add: _Add | None = None
    remove: _Remove | None = None
    cdc: ChangeFile | None = None
    commitInfo: _Commit | None = None
    metaData: Any = None
    protocol: Any = None


_ACTIONS = msgspec.json.Decoder(Action)


def actions_of(record: bytes) -> list[Action]:
    return [_ACTIONS.decode(line) for line in record.splitlines() if line.strip()]


class DeltaHistory:
    """History of the table at `url`; `store` is the object store of the same folder."""

    def __init__(self, url: str, store: ObjectStore, where: str) -> None:
        self._library = load_deltalake(where, "DeltaSource")
        self._store = store
        self._options = storage_options(url)
        self._where = where
        self._version = 0
        self._table: Any = None
        self._sizes: dict[str, int] = {}
        self._listed: tuple[int, dict[str, Any]] = (-1, {})  # version, and files by path
        self._record: tuple[int, bytes] | None = None  # since the last `refresh`: a version and its record
        self.refresh()

    def schema(self) -> pa.Schema:
        table = self._at(self._version)
        schema = self._dataset(self._version, table).schema
        for name in table.metadata().partition_columns:
            if pa.types.is_binary(_plain(schema.field(name).type)):
                raise InvalidJob(
                    f"{self._where}: the table {self._store.url} is partitioned by {name!r}, which is binary: its "
                    "values are not read as they were written; partition the table by another column"
                )
        return pa.schema([(field.name, _plain(field.type)) for field in schema])

    def refresh(self) -> None:
        self._record = None
        self._version = self._at(None).version()

    def current(self) -> int | None:
        return self._version

    def following(self, after: int) -> int | None:
        if after > self._version:
            raise InvalidJob(
                f"{self._where}: the table {self._store.url} is at version {self._version}, and version {after} was "
                f"read: it was made anew or restored from a backup. {ANEW[0].upper()}{ANEW[1:]}"
            )
        return after + 1 if after < self._version else None

    def mark(self, version: int) -> str:
        try:
            return hashlib.blake2b(self._record_of(version), digest_size=8).hexdigest()
        except ObjectNotFound:
            return ""

    def _record_of(self, version: int) -> bytes:
        if self._record is None or self._record[0] != version:
            self._record = version, self._store.get(log_key(version))
        return self._record[1]

    def files(self, version: int, *, whole: bool) -> Sequence[Any]:
        return self._chosen(version, None if whole else self._added(version))

    def size(self, file: Any) -> int:
        return self._sizes.get(file.path, LARGE_BYTES)

    def rows(self, file: Any, schema: pa.Schema) -> list[pa.RecordBatch]:
        check_kept(self._listed_schema, schema, f"the table {self._store.url}", self._where)
        try:
            batches = list(file.to_batches(schema=self._listed_schema, columns=schema.names, use_threads=False))
        except FileNotFoundError as error:
            raise InvalidJob(
                f"{self._where}: a file of the table {self._store.url} was removed before it was read ({error}): keep "
                f"what a vacuum removes for longer than the longest outage. {ANEW[0].upper()}{ANEW[1:]}"
            ) from error
        except OSError as error:
            raise trouble(error, f"{self._where}: a file of {self._store.url} cannot be read") from error
        return [fit(batch, schema, self._where) for batch in batches if batch.num_rows]

    def _chosen(self, version: int, paths: set[str] | None) -> list[Any]:
        if paths is not None and not paths:
            return []
        found = self._fragments(version)
        return [found[path] for path in sorted(found) if paths is None or path in paths]

    def _actions(self, version: int) -> list[Action]:
        try:
            return actions_of(self._record_of(version))
        except ObjectNotFound as error:
            raise InvalidJob(
                f"{self._where}: the log of the table {self._store.url} has no version {version} any more: keep it for "
                f"longer than the longest outage (delta.logRetentionDuration). {ANEW[0].upper()}{ANEW[1:]}"
            ) from error

    def _added(self, version: int) -> set[str]:
        actions = self._actions(version)
        changed = [each.remove.path for each in actions if each.remove is not None and each.remove.dataChange]
        changed += [each.add.path for each in actions if each.add is not None and each.add.deletionVector is not None]
        if changed:
            raise InvalidJob(
                f"{self._where}: version {version} of the table {self._store.url} removes or changes rows that were "
                f"read ({changed[0]}), and only appended rows can be followed without a key: give DeltaSource the key= "
                f"of its rows, which makes upserts of them, or {ANEW}"
            )
        return paths_of(each.add for each in actions)

    def _fragments(self, version: int) -> dict[str, Any]:
        if self._listed[0] != version:
            table = self._moved_to(version)
            dataset = self._dataset(version, table)
            self._listed_schema: pa.Schema = dataset.schema
            self._listed = version, {fragment.path: fragment for fragment in dataset.get_fragments()}
            files = pa.table(table.get_add_actions(flatten=True))
            paths, sizes = files["path"].to_pylist(), files["size_bytes"].to_pylist()
            self._sizes = {unquote(path): int(size) for path, size in zip(paths, sizes, strict=True)}
        return self._listed[1]

    def _dataset(self, version: int, table: Any = None) -> Any:
        try:
            return (table or self._at(version)).to_pyarrow_dataset(parquet_read_options=read_options())
        except Exception as error:
            if "deletionVectors" in str(error):
                raise InvalidJob(
                    f"{self._where}: version {version} of the table {self._store.url} has deletion vectors, which are "
                    "not read here: have them applied to the data files and switched off, as Spark does with "
                    f"ALTER TABLE delta.`<folder>` DROP FEATURE deletionVectors, then {ANEW}"
                ) from error
            raise InvalidJob(
                f"{self._where}: the table {self._store.url} has a feature that cannot be read here: {brief(error)}"
            ) from error

    def _moved_to(self, version: int) -> Any:
        table, self._table = self._table, None  # dropped if the move fails
        if table is None or table.version() > version:
            table = self._at(version)
        elif table.version() < version:
            try:
                table.load_as_version(version)
            except Exception as error:
                raise trouble(error, f"{self._where}: the table {self._store.url} could not be read") from error
        self._table = table
        return table

    def _at(self, version: int | None) -> Any:
        missing = self._library.exceptions.TableNotFoundError
        try:
            return self._library.DeltaTable(library_url(self._store), version=version, storage_options=self._options)
        except missing as error:
            raise InvalidJob(f"{self._where}: there is no Delta table at {self._store.url}: correct the url") from error
        except Exception as error:
            raise trouble(error, f"{self._where}: the table {self._store.url} could not be read") from error


def paths_of(files: Iterable[_Add | _Remove | None]) -> set[str]:
    return {unquote(each.path) for each in files if each is not None and each.dataChange}


def _plain(kind: pa.DataType) -> pa.DataType:
    """Type without dictionaries: batches must not depend on the encoding of a file."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


class DeltaChanges(DeltaHistory):
    def __init__(self, url: str, store: ObjectStore, key: Sequence[str], where: str) -> None:
        super().__init__(url, store, where)
        self._upserts = Upserts(key, self._read, f"the table {store.url}", where)

    def schema(self) -> pa.Schema:
        return self._upserts.schema(super().schema())

    def files(self, version: int, *, whole: bool) -> Sequence[Part]:
        actions = self._actions(version)
        commits = [each.commitInfo for each in actions if each.commitInfo is not None]
        at_ms = next((each.inCommitTimestamp or each.timestamp or 0 for each in commits), 0)
        if whole:
            return self._upserts.whole(self._chosen(version, None), at_ms)
        feed = [each.cdc for each in actions if each.cdc is not None]
        if feed:
            return self._upserts.changes(feed, feed, at_ms)
        before = self._chosen(version - 1, paths_of(each.remove for each in actions))
        return self._upserts.changes(before, self._chosen(version, paths_of(each.add for each in actions)), at_ms)

    def size(self, file: Part) -> int:
        return LARGE_BYTES if isinstance(file.file, ChangeFile) else super().size(file.file)

    def rows(self, file: Part, schema: pa.Schema) -> list[pa.RecordBatch]:
        return self._upserts.rows(file, schema)

    def _read(self, file: Any, schema: pa.Schema, before: bool) -> list[pa.RecordBatch]:
        if not isinstance(file, ChangeFile):
            return super().rows(file, schema)
        try:
            data = pa.BufferReader(self._store.get(unquote(file.path)))
        except ObjectNotFound as error:
            raise InvalidJob(
                f"{self._where}: change data of the table {self._store.url} was removed before it was read ({error}): "
                f"keep what a vacuum removes for longer than the longest outage. {ANEW[0].upper()}{ANEW[1:]}"
            ) from error
        stored = pa.schema([field for field in schema if field.name not in file.partitionValues] + [_KIND])
        check_kept(read_schema(data), stored, f"the table {self._store.url}", self._where)
        changes = read_parquet(data, stored)  # files may contain string views
        kinds = pa.array(_BEFORE if before else _AFTER)
        rows = changes.filter(pc.is_in(changes[_KIND.name], kinds)).combine_chunks()
        columns = [
            rows[field.name].combine_chunks()
            if field.name in stored.names
            else partition_column(file.partitionValues[field.name], field, rows.num_rows, self._where)
            for field in schema
        ]
        return [pa.RecordBatch.from_arrays(columns, schema=schema)]


def partition_column(text: str | None, field: pa.Field, count: int, where: str) -> pa.Array:
    """Column of `count` equal values, parsed from the log's text. Raises `InvalidJob` for unreadable text."""
    kind = field.type
    if not text:
        return pa.nulls(count, kind)
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        text = f"{text.removesuffix('Z')}Z"
    try:
        return pa.repeat(column_of_texts(pa.array([text]), kind, trims=False)[0], count)
    except UNFIT as error:
        raise InvalidJob(
            f"{where}: partition column {field.name!r} is {kind}, and the log has the value {text!r} ({error}): read "
            "the table without key="
        ) from error
