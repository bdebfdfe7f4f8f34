"""Write-ahead rows that are shown once for all subtasks: one batch per checkpoint, in the order of checkpoints. All
batches that were decided meanwhile are delivered together, so that a sink can make one commit of them.

Staging is `WriteAheadSink`'s. A subtask has nothing to commit by itself, and keeps the staged rows of what the restored
checkpoint decided; subtask 0, as global committer, delivers the batches and then drops them.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink_bases.write_ahead import WriteAheadSink
from barrier_runtime.connectors.sink_bases.write_ahead_committable import (
    DeliveryToken,
    StagedRows,
    WriteAheadCommittable,
)
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.versioned import Format, VersionedDecoder

DECIDED_BATCH_VERSION = 1


class DecidedBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rows of one decided checkpoint: those of all subtasks, in the subtasks' order."""

    version: int
    job: str
    sink: str
    lineage: str
    checkpoint: int
    token: int  # of the generation that staged the first of them
    objects: tuple[StagedRows, ...]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.objects)

    @property
    def application(self) -> str:
        """Within it checkpoints only rise."""
        return f"{self.job}/{self.sink}/{self.lineage}"


_FORMAT = Format("{}", DECIDED_BATCH_VERSION, damaged="delete it: the job asks again when it restarts")
DECIDED_BATCHES = VersionedDecoder(_FORMAT, msgspec.json.Decoder(DecidedBatch))


def batches_of(entries: Iterable[WriteAheadCommittable]) -> list[DecidedBatch]:
    """One batch per checkpoint, oldest first. `entries`: of one job and sink, in any order."""
    found: dict[tuple[int, str], list[WriteAheadCommittable]] = {}
    for entry in entries:
        found.setdefault((entry.checkpoint, entry.lineage), []).append(entry)
    return [_batch_of(sorted(found[key], key=lambda entry: entry.subtask)) for key in sorted(found)]


def _batch_of(entries: Sequence[WriteAheadCommittable]) -> DecidedBatch:
    first = entries[0]
    objects = tuple(each for entry in entries for each in entry.objects)
    return DecidedBatch(
        DECIDED_BATCH_VERSION,
        first.job,
        first.sink,
        first.lineage,
        first.checkpoint,
        min(e.token for e in entries),
        objects,
    )


class BatchingSink(WriteAheadSink):
    """`deliver_batch` is to be written, or `deliver_batches` where one commit can have several batches."""

    global_committer = True
    commits_only_globally = True
    commits_together = False  # a part has nothing to commit
    required_methods: ClassVar[tuple[str, ...]] = ()

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        """Show the rows of all these, oldest first. Must have no effect for a batch that was shown before. Raises what
        is to be tried again."""
        for batch in batches:
            self.deliver_batch(batch)

    def deliver_batch(self, batch: DecidedBatch) -> None:
        """Show these rows, at once. Must have no effect when it was done before. Raises what is to be tried again."""
        raise NotImplementedError

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        raise ProtocolViolation(f"{self._where}: rows of one subtask are delivered without the others': report this")

    def commit(self, committable: bytes) -> None:
        """The rows are where they have to be."""
        self._decoded(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        batches = batches_of(self._decoded(each) for each in committables)
        if batches:
            self.deliver_batches(batches)
            self._context.job_store.delete([each.key for batch in batches for each in batch.objects])

    def recover(self, decided: Sequence[bytes]) -> None:
        """Drop what older generations staged and no checkpoint lists. What it lists waits for the global commit."""
        needed = {each.key for committable in decided for each in self._decoded(committable).objects}
        store = self._context.job_store
        listed = [info.key for info in store.list(self._paths.staged_rows_prefix(self._context.sink))]
        store.delete([key for key in listed if key not in needed and self._is_orphan(key)])
