"""Snapshots of a generation in a slot, from the captured state to the answer.

    DRAINING → (every keyed backend drained) → WRITING on executors → DONE (ack) | FAILED (decline)
    cancelled in DRAINING: drained to the end (the captured state is the newest state), nothing is written remotely

Each operator has an executor, so its blocking work runs in the order of checkpoints.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

import msgspec

from barrier_runtime.coordinator.wire.messages import GLOBAL_COMMITTER, HeldBack, SubtaskId
from barrier_runtime.data.elements import Barrier
from barrier_runtime.operators.base import Capture, CommitReport
from barrier_runtime.runtime.context import GenerationExecutors
from barrier_runtime.runtime.host.workers import WorkerExecutor
from barrier_runtime.runtime.in_flight import InFlightData, write_in_flight
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.runtime.subtask import Subtask
from barrier_runtime.state.backend.backend_snapshots import BackendSnapshots, SnapshotDropped
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.outside_errors import must_be_mended, of_operator
from barrier_runtime.state.snapshots.snapshot import FileRef, InFlight, OperatorSnapshot, SnapshotTimes
from barrier_runtime.state.snapshots.transfer import store_values

WriteInFlight: TypeAlias = Callable[[InFlightData, Callable[[], None]], tuple[InFlight, ...]]
_DRAIN_ENTRIES = 256  # about 0.3 ms of work


@dataclass(frozen=True)
class ValuesStore:
    small_bytes: int
    store: Callable[
        [Mapping[str, bytes], Mapping[str, FileRef], Callable[[], None]], tuple[dict[str, bytes], dict[str, FileRef]]
    ]


class SnapshotRun:
    """Call `drain_slice` between batches until it returns False."""

    def __init__(
        self,
        subtask: SubtaskId,
        parallelism: int,
        barrier: Barrier,
        captures: dict[str, Capture],
        executors: dict[str, WorkerExecutor],
        times: SnapshotTimes,
        now_ms: Callable[[], float],
        recording: bool,
        values_store: ValuesStore,
        done: Callable[["SnapshotRun", tuple[OperatorSnapshot, ...], SnapshotTimes], None],
        failed: Callable[["SnapshotRun", BaseException], None],
    ) -> None:
        self.subtask = subtask
        self.barrier = barrier
        self.cancelled = False
        self.over = False
        self._parallelism = parallelism
        self._captures = captures
        self._executors = executors
        self._undrained: list[BackendSnapshots] = [c.keyed for c in captures.values() if c.keyed is not None]
        self._finished: dict[str, OperatorSnapshot] = {}
        self._took: dict[str, tuple[float, float]] = {}
        self._recording = recording
        self._values_store = values_store
        self._in_flight: tuple[InFlight, ...] = ()
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._times = times
        self._done = done
        self._failed = failed
        if not self._undrained:
            self._write()

    def drain_slice(self, slices: int = 1) -> bool:
        if not self._undrained:
            return False
        if self._undrained[-1].drain(slices * _DRAIN_ENTRIES):
            self._undrained.pop()
            if not self._undrained:
                self._write()
        return bool(self._undrained)

    def cancel(self) -> None:
        """Running work ends without a report."""
        self.cancelled = True
        self.over = not self._undrained

    def recorded(self, data: InFlightData, write: WriteInFlight, executor: WorkerExecutor) -> None:
        if self.cancelled or self.over:
            return
        if data:
            executor.submit(partial(write, data, self._check_wanted), self._in_flight_written)
        else:
            self._in_flight_written((), None)

    def _check_wanted(self) -> None:
        if self.cancelled:
            raise SnapshotDropped(f"checkpoint {self.barrier.id} of subtask {self.subtask} was aborted: decline it")

    def _write(self) -> None:
        if self.cancelled:
            self.over = True
            return
        waiting = dict(self._captures)
        for name, capture in self._captures.items():
            # For small values two turns of a thread would be most of the cost. But the snapshot must not complete
            # within this call.
            if len(waiting) > 1 and self._is_small(capture):
                del waiting[name]
                self._took[name] = 0.0, 0.0
                values = dict(capture.values)
                self._finished[name] = OperatorSnapshot(name, self.subtask.index, self._parallelism, values)
        for name, capture in waiting.items():
            self._executors[name].submit(
                partial(self._finish_operator, name, capture), partial(self._operator_finished, name)
            )

    def _is_small(self, capture: Capture) -> bool:
        if capture.keyed is not None or capture.blocking is not None or capture.parts is not None or capture.stored:
            return False
        return all(len(value) <= self._values_store.small_bytes for value in capture.values.values())

    def _finish_operator(self, name: str, capture: Capture) -> OperatorSnapshot:
        """Runs on a worker thread."""
        began_ms = self._now_ms()
        values = dict(capture.values)
        if capture.blocking is not None:
            values.update(capture.blocking())
        blocked_ms = self._now_ms()
        keyed = capture.keyed.write(self.barrier.id) if capture.keyed is not None else None
        small, objects = self._values_store.store(values, capture.stored, self._check_wanted)
        for part in capture.parts() if capture.parts is not None else ():
            more_small, more_objects = self._values_store.store(dict([part]), {}, self._check_wanted)
            small, objects = small | more_small, objects | more_objects
        self._took[name] = max(0.0, blocked_ms - began_ms), max(0.0, self._now_ms() - blocked_ms)
        return OperatorSnapshot(name, self.subtask.index, self._parallelism, small, keyed, objects=objects)

    def to_tell(self) -> list[Callable[[], None]]:
        """See `Capture.on_stored`."""
        calls: list[Callable[[], None]] = []
        for name, snapshot in self._finished.items():
            on_stored = self._captures[name].on_stored
            if on_stored is not None:
                calls.append(partial(on_stored, snapshot.objects))
        return calls

    def _operator_finished(self, name: str, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._finished[name] = result
        self._part_finished(error if error is None else of_operator(error, name, self.subtask))
        keyed = self._captures[name].keyed
        if keyed is not None:  # after the last part, before this executor's next snapshot
            self._executors[name].submit(keyed.clean_up, _cleaned_up)

    def _in_flight_written(self, result: Any, error: BaseException | None) -> None:
        if error is None:
            self._in_flight = result
            self._recording = False
        self._part_finished(error)

    def _part_finished(self, error: BaseException | None) -> None:
        if self.over:
            return
        if error is not None:
            self.over = True
            self._failed(self, error)
            return
        if self._recording or len(self._finished) < len(self._captures):
            return
        self.over = True
        precommit_ms = max((own for own, _ in self._took.values()), default=0.0)
        upload_ms = max((upload for _, upload in self._took.values()), default=0.0)
        times = msgspec.structs.replace(
            self._times,
            async_ms=self._now_ms() - self._began_ms,
            precommit_ms=round(precommit_ms, 1),
            upload_ms=round(upload_ms, 1),
            slowest=max(self._took, key=lambda name: max(self._took[name]), default=""),
        )
        snapshots = [self._finished[name] for name in self._captures]
        if self._in_flight:
            snapshots[0] = msgspec.structs.replace(snapshots[0], in_flight=self._in_flight)
        self._done(self, tuple(snapshot for snapshot in snapshots if not snapshot.is_empty), times)


def _cleaned_up(_: Any, error: BaseException | None) -> None:
    if error is not None:
        raise error


class ExecutionEvents(Protocol):
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
        self._to_tell: dict[int, list[Callable[[], None]]] = {}

    def begin(
        self, subtask: Subtask, barrier: Barrier, captures: dict[str, Capture], times: SnapshotTimes, recording: bool
    ) -> None:
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
        else:
            done(run, (), times)

    def recorded(self, subtask: SubtaskId, checkpoint: int, in_flight: InFlightData) -> None:
        def write(data: InFlightData, check: Callable[[], None]) -> tuple[InFlight, ...]:
            inline_bytes = self._res.thresholds.inline_bytes
            return write_in_flight(data, self._res.store, self._new_key, inline_bytes, check)

        for run in self._runs_of(subtask, checkpoint):
            run.recorded(in_flight, write, self._executors.of_rows_in_flight(subtask.chain))

    def drain_slice(self, slices: int = 1) -> bool:
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
        return self._res.paths.data_file(self._token, self._res.uuid, self._res.new_uuid())

    def _store_values(
        self, values: Mapping[str, bytes], stored: Mapping[str, FileRef], check: Callable[[], None]
    ) -> tuple[dict[str, bytes], dict[str, FileRef]]:
        limit = self._res.thresholds.value_bytes
        return store_values(values, stored, self._res.store, self._new_key, limit, check)
