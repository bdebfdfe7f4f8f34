"""Joins a Delta sink's small files: at a commit with `commit_every` (`JoinedFiles`), or later.

Staged files stay until the table has the commit, so a joined file is never the only copy of decided rows.
`DeltaCompaction`: docs/design/compaction.md.
"""

import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.delta import data_files
from barrier_runtime.connectors.delta.committable import DeltaCommittable, DeltaFile
from barrier_runtime.connectors.delta.history import Action, actions_of
from barrier_runtime.connectors.delta.log_records import TableFile, compaction_record, log_key
from barrier_runtime.connectors.delta.table import DeltaLog
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.file_committable import FileNames, origin_of_name
from barrier_runtime.connectors.sink_bases.lake.compaction import MOST_GROUPS, groups, to_compact
from barrier_runtime.connectors.sink_bases.staging import Staging
from barrier_runtime.state.errors import Corrupt, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, PutOutcome
from barrier_runtime.state.texts import counted

_FIRST_JOINED = 100_000  # in names: above the numbers of a transaction's own files
_MADE_AT_ONCE = 2  # files, with all rows in memory


class JoinedFiles:
    def __init__(self, store: ObjectStore, staging: Staging, names: FileNames) -> None:
        self._store = store
        self._staging = staging
        self._names = names
        self._parts = itertools.count(_FIRST_JOINED)
        self._numbering = threading.Lock()
        self._made: dict[tuple[str, ...], list[DeltaFile]] = {}  # staged keys -> files, for a repeated attempt

    def shown(self, new: Sequence[DeltaCommittable]) -> list[DeltaFile]:
        listed = [
            (file, (tuple(each.fields.items()), tuple(file.partition.items())), each.checkpoint)
            for each in new
            for file in each.files
        ]
        grouped = groups(listed, lambda entry: entry[0].file.size, lambda entry: entry[1])
        with ThreadPoolExecutor(max_workers=_MADE_AT_ONCE) as making:
            made = list(making.map(lambda group: self._file_of([file for file, _, _ in group], group[-1][2]), grouped))
        return [file for files in made for file in files]

    def forget(self) -> int:
        """Returns the number of files shown since the last call, which the table has now."""
        many = sum(map(len, self._made.values()))
        self._made.clear()
        return many

    def _file_of(self, files: Sequence[DeltaFile], checkpoint: int) -> list[DeltaFile]:
        key = tuple(each.file.staged for each in files)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = self._joined(files, checkpoint) if len(files) > 1 else self._each_shown(files)
        return known

    def _each_shown(self, files: Sequence[DeltaFile]) -> list[DeltaFile]:
        for each in files:
            self._staging.show(each.file)
        return list(files)

    def _joined(self, files: Sequence[DeltaFile], checkpoint: int) -> list[DeltaFile]:
        try:
            with ThreadPoolExecutor(max_workers=8) as reading:
                parts = list(reading.map(self._rows_of, files))
        except ObjectNotFound:
            return self._each_shown(files)  # shown earlier, with another `commit_every`, or gone
        rows = pa.concat_tables(parts)
        first = files[0]
        with self._numbering:
            part = next(self._parts)
        folder = first.file.final.rpartition("/")[0]
        final = self._names.final(checkpoint, part, f"{folder}/" if folder else "")
        data = encoders.parquet(rows.to_batches())
        self._store.put(final, data)
        file = msgspec.structs.replace(first.file, staged="", final=final, rows=rows.num_rows, size=len(data))
        return [DeltaFile(file, first.partition, data_files.statistics(rows), time.time_ns() // 1_000_000)]

    def _rows_of(self, each: DeltaFile) -> pa.Table:
        data = self._store.get(each.file.staged)
        if hashlib.sha256(data).hexdigest() != each.file.sha256:
            raise Corrupt(
                f"the staged file {self._store.url}/{each.file.staged} of a decided checkpoint is damaged: it should "
                f"have sha256 {each.file.sha256}: restore it from a backup; the commit is tried again"
            )
        return pq.read_table(pa.BufferReader(data))


_FIRST_PART = 200_000  # in names: above all other numbers
_ATTEMPTS = 100  # versions by others
_LONGEST_S = 3600.0  # from the look to the commit: the log keeps records for longer
_AT_ONCE = 4


@dataclass(frozen=True)
class DeltaPlan:
    version: int
    looked_s: float  # monotonic
    groups: tuple[tuple[TableFile, ...], ...]

    @property
    def files(self) -> list[TableFile]:
        return [file for group in self.groups for file in group]


@dataclass
class DeltaCompaction:
    """Compaction of the files named by `names`, below the table's folder. Shares no state with commits."""

    _log: DeltaLog
    _store: ObjectStore
    _names: FileNames
    _target: int
    _where: str
    _parts: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST_PART))

    def look(self) -> DeltaPlan | None:
        began = time.monotonic()
        table = self._log.loaded()
        if table is None:
            return None
        facts = self._log.facts(table)
        facts.check_compacted(self._where)
        groups = to_compact(
            self._own_small_files(table, facts.partition_by),
            lambda file: file.size,
            lambda file: tuple(file.partition.items()),
            self._target,
        )[:MOST_GROUPS]
        return DeltaPlan(int(table.version()), began, tuple(map(tuple, groups))) if groups else None

    def _own_small_files(self, table: Any, partition_by: Sequence[str]) -> list[TableFile]:
        live = pa.table(table.get_add_actions(flatten=True))
        columns = ["path", "size_bytes", "num_records", *(f"partition.{name}" for name in partition_by)]
        found = []
        for row in live.select(columns).to_pylist():
            name = unquote(row["path"])
            origin = origin_of_name(name)
            if origin is None or origin[0] != self._names.owner or row["num_records"] is None:
                continue
            partition = {each: data_files.partition_value(row[f"partition.{each}"]) for each in partition_by}
            found.append((origin[1], TableFile(name, partition, row["size_bytes"], row["num_records"])))
        return [file for _, file in sorted(found, key=lambda entry: (entry[0], entry[1].name))]

    def write(self, plan: DeltaPlan, stop: Callable[[], bool]) -> Sequence[TableFile] | None:
        made: list[TableFile] = []
        try:
            for group in plan.groups:
                if stop():
                    self._dropped(made)
                    return None
                made.append(self._joined(group))
        except ObjectNotFound:  # removed by another writer, and vacuumed
            self._dropped(made)
            return None
        return made

    def _dropped(self, made: Sequence[TableFile]) -> None:
        self._store.delete([file.name for file in made])

    def _joined(self, group: Sequence[TableFile]) -> TableFile:
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as reading:
            parts = list(reading.map(self._rows_of, group))
        rows = pa.concat_tables(parts, promote_options="default")  # columns may have been added
        folder, _, last = group[-1].name.rpartition("/")
        origin = origin_of_name(last)
        assert origin is not None, "a file of this sink without a name of this sink"
        name = self._names.final(origin[1][1], next(self._parts), f"{folder}/" if folder else "")
        data = encoders.parquet(rows.to_batches())
        self._store.put(name, data)
        return TableFile(name, group[0].partition, len(data), rows.num_rows, data_files.statistics(rows))

    def _rows_of(self, file: TableFile) -> pa.Table:
        rows = pq.read_table(pa.BufferReader(self._store.get(file.name)))
        if rows.num_rows != file.rows:
            raise Corrupt(
                f"{self._where}: {file.name} of the table {self._store.url} has {counted(rows.num_rows, 'row')}, and "
                f"the table's log says {file.rows}: it is not compacted; restore the file, or delete its rows"
            )
        return rows

    def commit(self, plan: DeltaPlan, written: Sequence[TableFile]) -> int:
        files = plan.files
        chosen = {file.name for file in files}
        record = compaction_record(files, written, self._target, plan.version, time.time_ns() // 1_000_000)
        version = plan.version + 1
        for _ in range(_ATTEMPTS):
            while (found := self._record(version)) is not None:
                if _conflicts(actions_of(found), chosen):
                    self._dropped(written)
                    return 0
                version += 1
            if time.monotonic() - plan.looked_s > _LONGEST_S:
                break
            outcome = self._store.put_if_absent(log_key(version), record)
            if outcome is PutOutcome.UNKNOWN and self._record(version) != record:
                raise Unavailable(f"nobody knows whether version {version} of {self._store.url} was written")
            if outcome is not PutOutcome.EXISTS or self._record(version) == record:
                self._log.compacted(version)
                return len(files)
        self._dropped(written)
        return 0

    def _record(self, version: int) -> bytes | None:
        try:
            return self._store.get(log_key(version))
        except ObjectNotFound:
            return None


def _conflicts(actions: Sequence[Action], chosen: set[str]) -> bool:
    return any(
        action.metaData is not None
        or action.protocol is not None
        or (action.remove is not None and unquote(action.remove.path) in chosen)
        or (action.add is not None and unquote(action.add.path) in chosen)
        for action in actions
    )
