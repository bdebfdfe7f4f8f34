"""What a generation tells its slot, and how its sinks report commits. Silent once the generation was cancelled."""

from collections.abc import Callable
from typing import Protocol

from barrier_runtime.coordinator.wire.messages import GLOBAL_COMMITTER, HeldBack, SubtaskId
from barrier_runtime.operators.base import CommitReport
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, SnapshotTimes


class ExecutionEvents(Protocol):
    """What a slot wants to hear. All calls come on the loop."""

    def acknowledged(
        self,
        checkpoint: int,
        subtask: SubtaskId,
        operators: tuple[OperatorSnapshot, ...],
        times: SnapshotTimes,
        ended: bool,
    ) -> None: ...
    def declined(self, checkpoint: int, subtask: SubtaskId, reason: str, unavailable: bool = False) -> None: ...
    def subtask_ended(self, subtask: SubtaskId) -> None: ...
    def event_time_reached(self, sources: dict[str, HeldBack]) -> None: ...
    def waiting(self, operator: str, attempts: int, error: str) -> None: ...
    def failed(self, subtask: SubtaskId | None, operator: str, error: BaseException) -> None: ...
    def committed(self, checkpoint: int, operator: str, subtask: int) -> None: ...
    def commit_failing(self, checkpoint: int, operator: str, subtask: int, attempts: int, error: str) -> None: ...


class CommitReporter:
    """Passes on what the sinks of one slot report of their commits."""

    def __init__(self, slot: int, events: ExecutionEvents, cancelled: Callable[[], bool]) -> None:
        self._slot = slot
        self._events = events
        self._cancelled = cancelled

    def report(self, operator: str, report: CommitReport) -> None:
        if self._cancelled():
            return
        subtask = GLOBAL_COMMITTER if report.globally else self._slot
        if report.error is None:
            self._events.committed(report.checkpoint, operator, subtask)
        else:
            self._events.commit_failing(report.checkpoint, operator, subtask, report.attempts, report.error)
