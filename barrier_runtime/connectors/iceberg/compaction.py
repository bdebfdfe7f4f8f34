"""Compaction of an Iceberg sink's files: a snapshot of the operation `replace`. Blocking.

Design: docs/design/compaction.md. Manifests are immutable and a removed file leaves the manifest, so the chosen files
are live as long as their manifests belong to the table.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update.snapshot import _SnapshotProducer

from barrier_runtime.connectors.iceberg.data_files import is_name_of, joined
from barrier_runtime.connectors.iceberg.expiry import APPLICATION
from barrier_runtime.connectors.iceberg.table import LIBRARY_RETRIES, deleted, loaded, trouble
from barrier_runtime.connectors.sink_bases.lake.compaction import MOST_GROUPS, to_compact
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.texts import counted

_ATTEMPTS = 10
_LONGEST_S = 3600.0  # from the look to the commit: orphans must stay young
_LAST_FORMAT = 2  # of tables whose rows have no ids


@dataclass(frozen=True)
class IcebergPlan:
    """`entries`: live entries of manifests with chosen files. `deletes`: manifests of deletes."""

    looked_s: float  # monotonic
    schema: int
    spec: int
    groups: tuple[tuple[DataFile, ...], ...]
    entries: Mapping[str, Sequence[ManifestEntry]]
    deletes: frozenset[str]

    @property
    def files(self) -> list[DataFile]:
        return [file for group in self.groups for file in group]

    def holds(self, table: Table) -> bool:
        snapshot = table.current_snapshot()
        if snapshot is None or (table.schema().schema_id, table.spec().spec_id) != (self.schema, self.spec):
            return False
        manifests = snapshot.manifests(table.io)
        return self.entries.keys() <= {each.manifest_path for each in manifests} and self.deletes == _deletes(manifests)


@dataclass
class IcebergCompaction:
    """Compaction of the data files named by `owner`; `committed` runs after a commit.

    `opened` opens a catalog for this thread.
    """

    _name: str
    _opened: Callable[[], Catalog]
    _owner: str
    _target: int
    _where: str
    _committed: Callable[[], None] = lambda: None
    _catalog: Catalog | None = None

    def look(self) -> IcebergPlan | None:
        began = time.monotonic()
        table = self._now()
        snapshot = None if table is None else table.current_snapshot()
        if table is None or snapshot is None:
            return None
        check_compacted(table, self._name, self._where)
        try:
            manifests = snapshot.manifests(table.io)
            deletes = _deletes(manifests)
            with_deletes = (
                {task.file.file_path for task in table.scan().plan_files() if task.delete_files} if deletes else ()
            )
            live = {
                each.manifest_path: each.fetch_manifest_entry(table.io)
                for each in manifests
                if each.content == ManifestContent.DATA and each.partition_spec_id == table.spec().spec_id
            }
        except Exception as error:
            raise trouble(error, f"{self._where}: the files of the table {self._name} cannot be listed") from error
        own = [
            (entry.sequence_number or 0, entry.data_file.file_path, entry.data_file)
            for entries in live.values()
            for entry in entries
            if is_name_of(self._owner, entry.data_file.file_path) and entry.data_file.file_path not in with_deletes
        ]
        groups = to_compact(
            [file for _, _, file in sorted(own, key=lambda each: each[:2])],
            lambda file: int(file.file_size_in_bytes),
            lambda file: repr(file.partition),
            self._target,
        )[:MOST_GROUPS]
        if not groups:
            return None
        chosen = {file.file_path for group in groups for file in group}
        needed = {path: each for path, each in live.items() if any(e.data_file.file_path in chosen for e in each)}
        return IcebergPlan(
            began, table.schema().schema_id, table.spec().spec_id, tuple(map(tuple, groups)), needed, deletes
        )

    def write(self, plan: IcebergPlan, stop: Callable[[], bool]) -> list[DataFile] | None:
        table = self._now()
        made: list[DataFile] = []
        if table is None or not plan.holds(table):
            return None
        try:
            for group in plan.groups:
                if stop():
                    self._dropped(table, made)
                    return None
                files = joined(table, group, self._owner)
                made += files
                self._check_rows(group, files)
        except FileNotFoundError:  # replaced by another writer, and expired
            self._dropped(table, made)
            return None
        except Exception as error:
            self._dropped(table, made)
            raise trouble(error, f"{self._where}: small files of the table {self._name} cannot be joined") from error
        return made

    def _check_rows(self, group: Sequence[DataFile], files: Sequence[DataFile]) -> None:
        before, after = (sum(int(file.record_count) for file in some) for some in (group, files))
        if before != after or {repr(file.partition) for file in files} != {repr(group[0].partition)}:
            raise Corrupt(
                f"{self._where}: {counted(len(group), 'file')} of the table {self._name}, such as "
                f"{group[0].file_path}, have {counted(after, 'row')}, and the table says {before}: they are not "
                "compacted; restore the files, or delete their rows"
            )

    def _dropped(self, table: Table, made: Sequence[DataFile]) -> None:
        deleted(table.io, [file.file_path for file in made])

    def commit(self, plan: IcebergPlan, written: Sequence[DataFile]) -> int:
        summary = {APPLICATION: f"{self._owner}compaction"}
        tried: set[int] = set()
        attempts: Counter[str] = Counter()
        while True:
            table = self._now()
            if table is None:
                return 0
            if tried & {snapshot.snapshot_id for snapshot in table.metadata.snapshots}:
                break  # a commit reported as failed is in the table
            attempts[table.metadata_location] += 1
            late = attempts[table.metadata_location] > _ATTEMPTS or time.monotonic() - plan.looked_s > _LONGEST_S
            if late or not plan.holds(table):
                self._dropped(table, written)
                return 0
            table.metadata.properties[LIBRARY_RETRIES] = "0"  # in memory only: no retry without a look
            try:
                with table.transaction() as transaction:
                    producer = _Replacing(transaction, table.io, plan, written, summary)
                    tried.add(producer.snapshot_id)
                    producer.commit()
            except CommitFailedException:
                continue
            except Exception as error:
                found = trouble(error, f"{self._where}: nobody knows whether the table {self._name} was compacted")
                raise found from error
            break
        self._committed()
        return len(plan.files)

    def _now(self) -> Table | None:
        self._catalog = self._catalog or self._opened()
        return loaded(self._catalog, self._name, self._where)


class _Replacing(_SnapshotProducer["_Replacing"]):  # type: ignore[misc]  # the library is not typed
    def __init__(
        self,
        transaction: Transaction,
        io: Any,
        plan: IcebergPlan,
        written: Sequence[DataFile],
        summary: Mapping[str, str],
    ) -> None:
        super().__init__(Operation.OVERWRITE, transaction, io, snapshot_properties=dict(summary))
        self._plan = plan
        for file in plan.files:
            self.delete_data_file(file)
        for file in written:
            self.append_data_file(file)

    def _build_delete_files_partition_predicate(self) -> None:
        """The plan has the manifests."""

    def _existing_manifests(self) -> list[ManifestFile]:
        snapshot = self._transaction.table_metadata.snapshot_by_id(self._parent_snapshot_id)
        kept: list[ManifestFile] = []
        for manifest in snapshot.manifests(io=self._io):
            entries = self._plan.entries.get(manifest.manifest_path)
            if entries is None:
                if manifest.has_added_files() or manifest.has_existing_files():
                    kept.append(manifest)
                continue
            staying = [each for each in entries if each.data_file not in self._deleted_data_files]
            if staying:
                with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
                    for each in staying:
                        writer.add_entry(_as(each, ManifestEntryStatus.EXISTING, each.snapshot_id))
                kept.append(writer.to_manifest_file())
        return kept

    def _deleted_entries(self) -> list[ManifestEntry]:
        return [
            _as(entry, ManifestEntryStatus.DELETED, self._snapshot_id)
            for entries in self._plan.entries.values()
            for entry in entries
            if entry.data_file in self._deleted_data_files
        ]

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        made = super()._summary(snapshot_properties)  # the library has no totals for `replace`
        return Summary(operation=Operation.REPLACE, **made.additional_properties)


def _as(entry: ManifestEntry, status: ManifestEntryStatus, snapshot: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=snapshot,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _deletes(manifests: Sequence[ManifestFile]) -> frozenset[str]:
    return frozenset(each.manifest_path for each in manifests if each.content == ManifestContent.DELETES)


def check_compacted(table: Table, name: str, where: str) -> None:
    if table.metadata.format_version > _LAST_FORMAT:
        raise InvalidJob(
            f"{where}: the table {name} is of version {table.metadata.format_version}, whose rows have ids that "
            "compact= would not keep: leave compact= out and have the table compacted by rewrite_data_files"
        )
