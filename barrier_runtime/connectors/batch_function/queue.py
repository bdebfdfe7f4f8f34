"""Waiting batches and the last successful checkpoint, as objects that sink and program exchange.

    <job>/write-ahead/<sink>/staged/…                      the rows, Parquet; written before the decision
    <job>/write-ahead/<sink>/asked/<lineage>/<checkpoint>  these objects are one decided batch: call the function
    <job>/write-ahead/<sink>/delivered/<lineage>/0/…       the function has succeeded up to this checkpoint

| who              | when                      | writes      | then deletes                                           |
|------------------|---------------------------|-------------|--------------------------------------------------------|
| every subtask    | barrier                   | staged rows |                                                        |
| subtask 0        | the checkpoint is decided | asked       |                                                        |
| the program      | the function has returned | delivered   | older notes of the same lineage                        |
| subtask 0        | it sees the note          |             | staged rows, then asked                                |
| a new generation | it opens                  |             | asked of other lineages, or done; rows that older      |
|                  |                           |             | generations staged and the restored checkpoint lacks   |

A savepoint that ends the job is taken when no batch waits. After rescaling, subtask 0 requests batches with the rows
that all subtasks of the earlier parallelism staged, because a batch covers all subtasks.

All writers of a request write the same content, so repeating a request changes nothing. A note is final: the name is
the highest checkpoint, and checkpoints only rise within a lineage.
"""

import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.read_ahead import read_ahead
from barrier_runtime.connectors.sink_bases.decided_batch import DECIDED_BATCHES, DecidedBatch
from barrier_runtime.connectors.sink_bases.write_ahead_committable import StagedRows
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths

_READ_AT_ONCE = 8  # staged objects of a batch
_NOTED_SUBTASK = 0  # the global committer's subtask


class BatchQueue:
    """Batches of a sink of a job. Blocks; raises errors of the store."""

    def __init__(self, store: ObjectStore, job: str, sink: str) -> None:
        self.store = store
        self._sink = sink
        self._paths = Paths(job)
        self._where = f"job {job!r}, for_each_batch {sink!r}"

    # ------------------------------------------------------------ of the sink

    def ask(self, batch: DecidedBatch) -> None:
        """Requests a batch.
        Raises `Corrupt` if staged rows are missing, so that aborted rows do not block later batches."""
        gone = [each.key for each in batch.objects if self._is_gone(each)]
        if gone:
            raise Corrupt(
                f"{self._where}: rows of the decided checkpoint {batch.checkpoint} are gone "
                f"({self.store.url}/{gone[0]}), and the function was not called with them. Were they aborted, moved or "
                "deleted? Restore the objects from a backup; it is tried again"
            )
        self.store.put(self._key(batch), msgspec.json.encode(batch))

    def withdraw(self, batch: DecidedBatch) -> None:
        """Deletes the rows and the request after the function has succeeded."""
        self.store.delete([each.key for each in batch.objects])
        self.store.delete([self._key(batch)])

    def clean_up(self, lineage: str) -> None:
        """Deletes obsolete requests.

        These are requests of an earlier start from which `lineage` does not continue, and requests that a sink repeated
        after the batch was done.
        """
        prefix = self._paths.asked_prefix(self._sink)
        ours = self._paths.asked_prefix(self._sink, lineage)
        self.store.delete([info.key for info in self.store.list(prefix) if not info.key.startswith(ours)])
        for batch in self.asked():
            if self.is_done(batch):
                self.withdraw(batch)

    # ------------------------------------------------------------ of the program

    def asked(self) -> list[DecidedBatch]:
        """Returns the requested batches, oldest checkpoint first within a lineage."""
        keys = sorted(info.key for info in self.store.list(self._paths.asked_prefix(self._sink)))
        found = ((key, get_or_none(self.store, key)) for key in keys)
        return [DECIDED_BATCHES.decode(data, f"{self._where}: {key}") for key, data in found if data is not None]

    def is_asked(self, batch: DecidedBatch) -> bool:
        return get_or_none(self.store, self._key(batch)) is not None

    def note(self, batch: DecidedBatch) -> None:
        note = self._note(batch)
        self.store.put(note, b"")
        self.store.delete([info.key for info in self.store.list(self._notes(batch)) if info.key < note])

    def is_done(self, batch: DecidedBatch) -> bool:
        if get_or_none(self.store, self._note(batch)) is not None:
            return True
        noted = (self._paths.delivery_of(info.key) for info in self.store.list(self._notes(batch)))
        return any(each is not None and each[0] >= batch.checkpoint for each in noted)

    # ------------------------------------------------------------ rows

    def read(self, batch: DecidedBatch) -> pa.Table:
        """Returns all rows. Raises `ObjectNotFound`, and `Corrupt` for an object that was not staged so."""
        import pyarrow.parquet as pq  # the import takes 20 ms; only users of Parquet pay

        def table(staged: StagedRows) -> pa.Table:
            return pq.read_table(pa.BufferReader(self._checked(staged)))

        tables = read_ahead(table, batch.objects, lambda staged: staged.rows, _READ_AT_ONCE)
        return pa.concat_tables(list(tables), promote_options="default")

    def local_files(self, batch: DecidedBatch) -> list[str] | None:
        """Paths of the Parquet files, checked as by `read`; None if the storage is not a folder."""
        if not self.store.url.startswith("file://"):
            return None
        for each in batch.objects:
            self._checked(each)
        root = unquote(urlsplit(self.store.url).path)
        return [f"{root}/{each.key}" for each in batch.objects]

    def _is_gone(self, staged: StagedRows) -> bool:
        try:
            self.store.get(staged.key, 0, 1)
        except ObjectNotFound:
            return True
        return False

    def _checked(self, staged: StagedRows) -> bytes:
        data = self.store.get(staged.key)
        found = hashlib.sha256(data).hexdigest()
        if found != staged.sha256:
            raise Corrupt(
                f"{self._where}: decided rows are damaged: {self.store.url}/{staged.key} should have sha256 "
                f"{staged.sha256}, it has {found}: restore the object from a backup or an older version of the bucket"
            )
        return data

    # ------------------------------------------------------------ names

    def _key(self, batch: DecidedBatch) -> str:
        return self._paths.asked_batch(self._sink, batch.lineage, batch.checkpoint, batch.token)

    def _note(self, batch: DecidedBatch) -> str:
        return self._paths.delivery_note(self._sink, batch.lineage, _NOTED_SUBTASK, batch.checkpoint, batch.token)

    def _notes(self, batch: DecidedBatch) -> str:
        return self._paths.delivery_notes_prefix(self._sink, batch.lineage, _NOTED_SUBTASK)


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Encodes a Parquet file for Spark, whose times have microseconds: nanoseconds are truncated."""
    import pyarrow.parquet as pq

    buffer: Any = pa.BufferOutputStream()
    table = pa.Table.from_batches(batches).combine_chunks()
    pq.write_table(table, buffer, coerce_timestamps="us", allow_truncated_timestamps=True)
    return buffer.getvalue().to_pybytes()  # type: ignore[no-any-return]
