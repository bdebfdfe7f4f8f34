"""Snapshots of one generation in one slot: from the captured state to the ack or the failure.

Between two passes of the subtasks, captured state is drained in slices; executors write the rest. After a checkpoint is
decided, operators learn which objects their snapshots stored, and can refer to these objects in later snapshots.

Also the events that a generation reports to its slot, until the generation is cancelled.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from barrier_runtime.coordinator.wire.messages import GLOBAL_COMMITTER, HeldBack, SubtaskId
from barrier_runtime.data.elements import Barrier
from barrier_runtime.operators.base import Capture, CommitReport
from barrier_runtime.runtime.context import GenerationExecutors
from barrier_runtime.runtime.in_flight.storage import write_in_flight
from barrier_runtime.runtime.in_flight.writer import InFlightData
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.snapshots import SnapshotRun, ValuesStore
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.outside_errors import must_be_mended
from barrier_runtime.state.snapshots.snapshot import FileRef, InFlight, OperatorSnapshot, SnapshotTimes
from barrier_runtime.state.snapshots.stored_values import store_values


class ExecutionEvents(Protocol):
    """Events that a generation reports to its slot, on the loop."""

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


class Checkpointing:
    """Snapshots in progress (`runs`), and operators to inform when a checkpoint is decided."""

    def __init__(
        self,
        token: int,
        parallelism: int,
        resources: SlotResources,
        executors: GenerationExecutors,
        events: ExecutionEvents,
        fail: Callable[[SubtaskId, str, Exception], None],
        now_ms: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """`fail(subtask, operator, error)` is called for an error of a snapshot that no retry can cure."""
        self._token = token
        self._parallelism = parallelism
        self._res = resources
        self._executors = executors
        self._events = events
        self._fail = fail
        self._now_ms = now_ms
        self._wake = wake
        self._cancelled = False
        self.runs: list[SnapshotRun] = []
        # Checkpoint -> calls that inform operators of their objects.
        self._to_tell: dict[int, list[Callable[[], None]]] = {}

    def begin(
        self, subtask: Subtask, barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
        """See `SubtaskHost.captured`."""
        executors = {name: self._executors.of_snapshots(subtask.id.chain, name) for name in captures}
        ended = subtask.ended

        def done(run: SnapshotRun, operators: tuple[OperatorSnapshot, ...], times: SnapshotTimes) -> None:
            if not self._cancelled and not run.cancelled:
                self._to_tell.setdefault(barrier.id, []).extend(run.to_tell())
                self._events.acknowledged(barrier.id, subtask.id, operators, times, ended)

        def failed(run: SnapshotRun, error: BaseException) -> None:
            if self._cancelled or run.cancelled:
                return
            if isinstance(error, Exception) and must_be_mended(error):
                self._fail(subtask.id, getattr(error, "operator", ""), error)
            else:
                away = isinstance(error, Unavailable)
                self._events.declined(barrier.id, subtask.id, f"{type(error).__name__}: {error}", away)

        run = SnapshotRun(
            subtask.id,
            self._parallelism,
            barrier,
            captures,
            executors,
            times,
            self._now_ms,
            recording,
            ValuesStore(self._res.thresholds.value_bytes, self._store_values),
            done,
            failed,
        )
        self.runs.append(run)
        if captures:
            self._wake()
        else:  # a chain without operators has no state
            done(run, (), times)

    def recorded(self, subtask: SubtaskId, checkpoint: int, in_flight: InFlightData) -> None:
        def write(data: InFlightData, check: Callable[[], None]) -> tuple[InFlight, ...]:
            inline_bytes = self._res.thresholds.inline_bytes
            return write_in_flight(data, self._res.store, self._new_key, inline_bytes, check)

        for run in self._runs_of(subtask, checkpoint):
            run.recorded(in_flight, write, self._executors.of_rows_in_flight(subtask.chain))

    def drain_slice(self, slices: int = 1) -> bool:
        """Drains `slices` slices of one snapshot's captured state. True if more is left."""
        more = any(run.drain_slice(slices) for run in self.runs)
        self.runs = [run for run in self.runs if not run.over]
        return more

    def decline(self, subtask: SubtaskId, checkpoint: int, reason: str) -> None:
        for run in self._runs_of(subtask, checkpoint):
            run.cancel()
        self._events.declined(checkpoint, subtask, reason)

    def abort(self, checkpoint: int) -> None:
        for run in self.runs:
            if run.barrier.id == checkpoint:
                run.cancel()
        self._to_tell.pop(checkpoint, None)

    def tell_stored(self, completed: int) -> None:
        """Informs operators of their objects, because `completed` is decided. Raises errors of operators."""
        try:
            for tell in self._to_tell.get(completed, ()):
                tell()
        finally:
            self._to_tell = {checkpoint: told for checkpoint, told in self._to_tell.items() if checkpoint > completed}

    def cancel(self) -> None:
        self._cancelled = True

    def _runs_of(self, subtask: SubtaskId, checkpoint: int) -> list[SnapshotRun]:
        return [run for run in self.runs if (run.subtask, run.barrier.id) == (subtask, checkpoint)]

    def _new_key(self) -> str:
        """New key for an object of a snapshot; never used before or again."""
        return self._res.paths.data_file(self._token, self._res.uuid, self._res.new_uuid())

    def _store_values(
        self, values: Mapping[str, bytes], stored: Mapping[str, FileRef], check: Callable[[], None]
    ) -> tuple[dict[str, bytes], dict[str, FileRef]]:
        """Runs on a worker thread."""
        limit = self._res.thresholds.value_bytes
        return store_values(values, stored, self._res.store, self._new_key, limit, check)
