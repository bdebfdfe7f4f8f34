"""Write-ahead rows that subtask 0 delivers for all: a batch per checkpoint, in checkpoint order."""

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
    """Rows of all subtasks of a decided checkpoint, in subtask order."""

    version: int
    job: str
    sink: str
    lineage: str
    checkpoint: int
    token: int  # lowest of the writing generations
    objects: tuple[StagedRows, ...]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.objects)

    @property
    def application(self) -> str:
        """Name of the writer; checkpoints only rise within an application."""
        return f"{self.job}/{self.sink}/{self.lineage}"


_FORMAT = Format("{}", DECIDED_BATCH_VERSION, damaged="delete it: the job asks again when it restarts")
DECIDED_BATCHES = VersionedDecoder(_FORMAT, msgspec.json.Decoder(DecidedBatch))


def batches_of(entries: Iterable[WriteAheadCommittable]) -> list[DecidedBatch]:
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
    """Base of sinks with a global committer; subclasses define `deliver_batch` or `deliver_batches`."""

    global_committer = True
    commits_only_globally = True
    commits_together = False  # a subtask's part has nothing to commit
    required_methods: ClassVar[tuple[str, ...]] = ()

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        """Shows the rows of all batches, oldest first, unless already shown. Raises for a retry."""
        for batch in batches:
            self.deliver_batch(batch)

    def deliver_batch(self, batch: DecidedBatch) -> None:
        """Shows the rows of the batch at once, unless already shown. Raises for a retry."""
        raise NotImplementedError

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        raise ProtocolViolation(f"{self._where}: rows of one subtask are delivered without the others': report this")

    def commit(self, committable: bytes) -> None:
        self._decoded(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        batches = batches_of(self._decoded(each) for each in committables)
        if batches:
            self.deliver_batches(batches)
            self._context.job_store.delete([each.key for batch in batches for each in batch.objects])

    def recover(self, decided: Sequence[bytes]) -> None:
        needed = {each.key for committable in decided for each in self._decoded(committable).objects}
        store = self._context.job_store
        listed = [info.key for info in store.list(self._paths.staged_rows_prefix(self._context.sink))]
        store.delete([key for key in listed if key not in needed and self._is_orphan(key)])
