"""One subtask's snapshot after its synchronous part: drain frozen state in slices, finish off the loop, report.

    DRAINING → (every keyed backend drained) → WRITING on lanes → DONE (ack) | FAILED (decline)
    cancelled in DRAINING: drained to the end all the same (it is the newest state), nothing is written remotely

Lanes are per operator, so the blocking parts of one operator run in the order of their checkpoints.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from barrier_runtime.elements import Barrier
from barrier_runtime.operators.base import Capture
from barrier_runtime.slot.workers import SerialLane
from coordinator.messages import SubtaskId
from state.keyed_backend import KeyedBackend
from state.snapshot import OperatorSnapshot, SnapshotTimes

_DRAIN_ENTRIES = 256  # about 0.3 ms of work per slice


class SnapshotRun:
    """Call `drain_slice` between batches until it returns False; the rest happens by itself."""

    def __init__(
        self,
        subtask: SubtaskId,
        parallelism: int,
        barrier: Barrier,
        captures: dict[str, Capture],
        lanes: dict[str, SerialLane],
        times: SnapshotTimes,
        now_ms: Callable[[], float],
        done: Callable[["SnapshotRun", tuple[OperatorSnapshot, ...], SnapshotTimes], None],
        failed: Callable[["SnapshotRun", BaseException], None],
    ) -> None:
        self.subtask = subtask
        self.barrier = barrier
        self.cancelled = False
        self.over = False
        self._parallelism = parallelism
        self._captures = captures
        self._lanes = lanes
        self._undrained: list[KeyedBackend] = [c.keyed for c in captures.values() if c.keyed is not None]
        self._finished: dict[str, OperatorSnapshot] = {}
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._times = times
        self._done = done
        self._failed = failed
        if not self._undrained:
            self._write()

    def drain_slice(self) -> bool:
        """Write one slice of frozen state. True while there is more."""
        if not self._undrained:
            return False
        if self._undrained[-1].drain(_DRAIN_ENTRIES):
            self._undrained.pop()
            if not self._undrained:
                self._write()
        return bool(self._undrained)

    def cancel(self) -> None:
        """The checkpoint was given up. What is already running ends without being reported."""
        self.cancelled = True

    def _write(self) -> None:
        if self.cancelled:
            self.over = True
            return
        for name, capture in self._captures.items():
            self._lanes[name].submit(
                lambda name=name, capture=capture: self._finish_operator(name, capture),  # type: ignore[misc]
                lambda result, error, name=name: self._operator_finished(name, result, error),  # type: ignore[misc]
            )

    def _finish_operator(self, name: str, capture: Capture) -> OperatorSnapshot:
        """On a worker thread."""
        values = dict(capture.values)
        if capture.blocking is not None:
            values.update(capture.blocking())
        keyed = capture.keyed.write_snapshot(self.barrier.id) if capture.keyed is not None else None
        return OperatorSnapshot(name, self.subtask.index, self._parallelism, values, keyed)

    def _operator_finished(self, name: str, result: Any, error: BaseException | None) -> None:
        if self.over:
            return
        if error is not None:
            self.over = True
            self._failed(self, error)
            return
        self._finished[name] = result
        if len(self._finished) < len(self._captures):
            return
        self.over = True
        times = msgspec.structs.replace(self._times, async_ms=self._now_ms() - self._began_ms)
        snapshots = (self._finished[name] for name in self._captures)
        self._done(self, tuple(s for s in snapshots if s.values or s.keyed is not None), times)
