"""Sinks of a checked flow: a transactional memory or the user's sink, with crash points."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.testing.crash_points import ForwardingSink


@dataclass(frozen=True)
class CheckedSink:
    """User's sink in a check.

    `make` returns a new, unopened sink, one per subtask and generation; all write to the same target. `read` returns
    the visible rows.
    """

    make: Callable[[], TwoPhaseCommitSink]
    read: Callable[[], Iterable[Mapping[str, Any]]]


class SinkCalls(Protocol):
    """Receives the phase at each crash point, and may not return."""

    def __call__(self, phase: str, /) -> None: ...


class _Staged(msgspec.Struct, frozen=True):
    number: int
    token: int
    subtask: int


_STAGED = msgspec.json.Decoder(_Staged)


@dataclass
class OutputMemory:
    """Target of a sink, outside of all processes."""

    staged: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    visible: dict[int, list[pa.RecordBatch]] = field(default_factory=dict)
    number: int = 0

    def stage(self, batches: list[pa.RecordBatch]) -> int:
        self.number += 1
        self.staged[self.number] = batches
        return self.number

    def commit(self, number: int) -> None:
        if number in self.visible:
            return
        if number not in self.staged:
            raise ProtocolViolation(f"transaction {number} is committed after it was aborted: report this")
        self.visible[number] = self.staged.pop(number)

    def rows(self) -> list[dict[str, Any]]:
        return [row for batches in self.visible.values() for batch in batches for row in batch.to_pylist()]


class OutputSink(TwoPhaseCommitSink):
    def __init__(self, memory: OutputMemory) -> None:
        self._memory = memory

    def open(self, context: SinkContext) -> None:
        self._context = context

    def begin_transaction(self) -> list[pa.RecordBatch]:
        return []

    def write(self, transaction: list[pa.RecordBatch], rows: pa.RecordBatch) -> None:
        transaction.append(rows)

    def pre_commit(self, transaction: list[pa.RecordBatch], checkpoint: int) -> bytes | None:
        if not transaction:
            return None
        number = self._memory.stage(transaction)
        return msgspec.json.encode(_Staged(number, self._context.token, self._context.subtask))

    def commit(self, committable: bytes) -> None:
        self._memory.commit(_STAGED.decode(committable).number)

    def abort(self, committable: bytes) -> None:
        number = _STAGED.decode(committable).number
        if number in self._memory.visible:
            raise ProtocolViolation(f"transaction {number} is aborted after it was committed: report this")
        self._memory.staged.pop(number, None)


class CrashingSink(ForwardingSink):
    """Calls `at` with the phase around each call that changes the target."""

    def __init__(self, sink: TwoPhaseCommitSink, at: SinkCalls) -> None:
        super().__init__(sink)
        self._at = at

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        self._at("pre-commit")
        committable = self.sink.pre_commit(transaction, checkpoint)
        self._at("pre-committed")
        return committable

    def commit(self, committable: bytes) -> None:
        self._at("commit")
        super().commit(committable)
        self._at("committed")

    def commit_together(self, committables: Sequence[bytes]) -> None:
        self._at("commit")
        super().commit_together(committables)
        self._at("committed")

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        self._at("commit")
        self.sink.commit_globally(checkpoint, committables)
        self._at("committed")

    def recover(self, decided: Sequence[bytes]) -> None:
        self._at("recover")
        self.sink.recover(decided)
        self._at("committed")
