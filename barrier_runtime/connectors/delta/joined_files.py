"""Small staged files of several checkpoints, joined into larger files of a Delta table. Blocking.

| the process dies                       | its successor                                                               |
|----------------------------------------|-----------------------------------------------------------------------------|
| before the table's commit              | joins again; files already written are orphans, which a vacuum deletes      |
| in the commit, with an unknown result  | asks the table for its transaction, and joins again if the table has none   |
| after it, before deleting staged files | the same; its sweep deletes the staged files, which no checkpoint lists now |

Staged files stay until the table has the commit, so a larger file is never the only copy of decided rows.
"""

import hashlib
import itertools
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime.connectors.delta import files as delta_files
from barrier_runtime.connectors.delta.committable import DeltaCommittable, DeltaFile
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.file_committable import FileNames
from barrier_runtime.connectors.sink_bases.lake.small_files import groups
from barrier_runtime.connectors.sink_bases.staging import Staging
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore

_FIRST_PART = 100_000  # of names: above the numbers of a transaction's own files
_AT_ONCE = 2  # files that are made at a time, with all rows in memory


class JoinedFiles:
    def __init__(self, store: ObjectStore, staging: Staging, names: FileNames) -> None:
        self._store = store
        self._staging = staging
        self._names = names
        self._parts = itertools.count(_FIRST_PART)
        self._numbering = threading.Lock()
        self._made: dict[tuple[str, ...], list[DeltaFile]] = {}  # staged keys -> files, for a repeated attempt

    def shown(self, new: Sequence[DeltaCommittable]) -> list[DeltaFile]:
        """Returns files under final names, with the rows of all `new` committables.

        Raises `Corrupt` if staged rows are gone.
        """
        listed = [
            (file, (tuple(each.fields.items()), tuple(file.partition.items())), each.checkpoint)
            for each in new
            for file in each.files
        ]
        grouped = groups(listed, lambda entry: entry[0].file.size, lambda entry: entry[1])
        with ThreadPoolExecutor(max_workers=_AT_ONCE) as making:
            made = list(making.map(lambda group: self._file_of([file for file, _, _ in group], group[-1][2]), grouped))
        return [file for files in made for file in files]

    def forget(self) -> int:
        """Forgets files that the table has now; returns the number of files shown since the last call."""
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
        return [DeltaFile(file, first.partition, delta_files.statistics(rows), time.time_ns() // 1_000_000)]

    def _rows_of(self, each: DeltaFile) -> pa.Table:
        data = self._store.get(each.file.staged)
        if hashlib.sha256(data).hexdigest() != each.file.sha256:
            raise Corrupt(
                f"the staged file {self._store.url}/{each.file.staged} of a decided checkpoint is damaged: it should "
                f"have sha256 {each.file.sha256}: restore it from a backup; the commit is tried again"
            )
        return pq.read_table(pa.BufferReader(data))
