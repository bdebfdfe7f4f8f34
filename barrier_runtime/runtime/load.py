"""Load of the subtasks of a slot, and long steps."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes

_LONG_S = 0.02  # a longer step delays a barrier noticeably
_KEPT = 32


@dataclass
class Load:
    """Seconds at work (`busy_s`), or waiting for room of a receiver (`blocked_s`) or operator (`held_s`)."""

    busy_s: float = 0.0
    blocked_s: float = 0.0
    held_s: float = 0.0
    connector_s: float = 0.0  # time of the last step in a reader or sink of this package
    blocked: bool = False
    held: bool = False

    def poll(self, source: SourceDriver, now_ns: int, clock_ns: Callable[[], int], max_rows: int) -> Batch | None:
        batch = source.poll(now_ns, max_rows)
        if not source.runs_users_code:
            self.connector_s += (clock_ns() - now_ns) / 1e9
        return batch

    def timed(self, sink: Operator, clock_ns: Callable[[], int]) -> Callable[[Batch, Emit, int], None]:
        def process(batch: Batch, emit: Emit, port: int = 0) -> None:
            began_ns = clock_ns()
            sink.process(batch, emit, port)
            self.connector_s += (clock_ns() - began_ns) / 1e9

        return process

    def looked(self, since_last_s: float, blocked: bool, held: bool) -> None:
        if self.blocked:
            self.blocked_s += since_last_s
        if self.held:
            self.held_s += since_last_s
        self.blocked, self.held = blocked, held


class LongSteps:
    """`reading`: a reader or sink of this package needed most of the time."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int, bool]] = deque(maxlen=_KEPT)

    def note(self, ended_s: float, seconds: float, chain: int, reading: bool = False) -> None:
        if seconds >= _LONG_S:
            self._steps.append((ended_s, seconds, chain, reading))

    def longest_since(self, since_s: float) -> tuple[float, int, bool]:
        """Seconds, chain and `reading`; (0, -1, False): none."""
        steps = ((s, chain, reading) for ended_s, s, chain, reading in self._steps if ended_s > since_s)
        return max(steps, default=(0.0, -1, False))


@dataclass(frozen=True)
class _Mark:
    rows: int
    busy_s: float
    blocked_s: float
    held_s: float
    starved_s: float
    at_s: float


class LoadSince:
    def __init__(self, now_s: float, starved_s: float) -> None:
        self._mark = _Mark(0, 0.0, 0.0, 0.0, starved_s, now_s)

    def add_to(
        self, times: SnapshotTimes, load: Load, rows: int, starved_s: float, steps: LongSteps, now_s: float
    ) -> SnapshotTimes:
        """Adds the load since the last call. `rows` and `starved_s` (the loop's) are totals."""
        before, self._mark = self._mark, _Mark(rows, load.busy_s, load.blocked_s, load.held_s, starved_s, now_s)
        step_s, chain, reading = steps.longest_since(before.at_s)
        return msgspec.structs.replace(
            times,
            rows=max(0, rows - before.rows),
            busy_ms=_ms(load.busy_s - before.busy_s),
            blocked_ms=_ms(load.blocked_s - before.blocked_s),
            held_ms=_ms(load.held_s - before.held_s),
            step_ms=_ms(step_s),
            step_chain=chain,
            step_reading=reading,
            starved_ms=_ms(starved_s - before.starved_s),
        )


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 1)
