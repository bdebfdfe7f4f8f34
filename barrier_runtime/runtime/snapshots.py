"""Snapshot of a subtask after the synchronous part: drain captured state, write, report.

    DRAINING → (every keyed backend drained) → WRITING on executors → DONE (ack) | FAILED (decline)
    cancelled in DRAINING: drained to the end (the captured state is the newest state), nothing is written remotely
    values too large for the manifest are uploaded during WRITING
    in-flight rows, if any, are written when their recording is complete, in parallel; DONE requires them

Executors are per operator, so the blocking parts of an operator run in the order of their checkpoints. An operator with
only small values needs no executor, because two turns of a thread would be most of the snapshot's cost.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import msgspec

from barrier_runtime.coordinator.wire.messages import SubtaskId
from barrier_runtime.data.elements import Barrier
from barrier_runtime.operators.base import Capture
from barrier_runtime.runtime.host.workers import WorkerExecutor
from barrier_runtime.runtime.in_flight.writer import InFlightData
from barrier_runtime.state.backend.backend_snapshots import BackendSnapshots, SnapshotDropped
from barrier_runtime.state.outside_errors import of_operator
from barrier_runtime.state.snapshots.snapshot import FileRef, InFlight, OperatorSnapshot, SnapshotTimes

WriteInFlight: TypeAlias = Callable[[InFlightData, Callable[[], None]], tuple[InFlight, ...]]  # see `write_in_flight`
_DRAIN_ENTRIES = 256  # about 0.3 ms of work per slice


@dataclass(frozen=True)
class ValuesStore:
    """Store of values larger than `small_bytes`, each an object."""

    small_bytes: int
    store: Callable[  # (values, those already stored, check); see `store_values`
        [Mapping[str, bytes], Mapping[str, FileRef], Callable[[], None]], tuple[dict[str, bytes], dict[str, FileRef]]
    ]


class SnapshotRun:
    """Snapshot in progress. Call `drain_slice` between batches until it returns False; the rest follows."""

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
        self._took: dict[str, tuple[float, float]] = {}  # operator -> ms of blocking work, ms of writing state
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
        """Drains `slices` slices of captured state. True while more is left."""
        if not self._undrained:
            return False
        if self._undrained[-1].drain(slices * _DRAIN_ENTRIES):
            self._undrained.pop()
            if not self._undrained:
                self._write()
        return bool(self._undrained)

    def cancel(self) -> None:
        """Cancels the snapshot of an aborted checkpoint. Running work ends without a report."""
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
            # One operator is left, because the snapshot must not complete within this call.
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
        """True if nothing of `capture` has to be written before the report."""
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
        """Calls to make when the checkpoint is decided, see `Capture.on_stored`. Requires a finished snapshot."""
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
        if keyed is not None:  # before this executor's next snapshot, and after the last possible part of this snapshot
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
