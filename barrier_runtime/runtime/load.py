"""How the subtasks of one slot spend their time: busy, waiting for receivers, waiting for a server; and the long steps.

The scheduler counts (`Load`, `LongSteps`); a heartbeat tells the sums, and a snapshot what came to them since the
subtask's last one (`LoadSince`), so that a slow checkpoint can be explained by what its subtasks did meanwhile. Sums
only rise, for as long as the generation lives. Nothing is measured per row.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

from barrier_runtime.state.snapshots.snapshot import SnapshotTimes

_LONG_S = 0.02  # a step this long keeps a barrier waiting for longer than anybody would notice
_KEPT = 32  # long steps; with more of them the newest ones explain as well


@dataclass
class Load:
    """Of one subtask, in seconds: `busy_s` in steps that did something, `blocked_s` while a receiver had no room,
    `held_s` while an operator of its own had none."""

    busy_s: float = 0.0
    blocked_s: float = 0.0
    held_s: float = 0.0
    blocked: bool = False  # as of the last look
    held: bool = False

    def looked(self, since_last_s: float, blocked: bool, held: bool) -> None:
        """How it is now; the time since the last look counts as it was then."""
        if self.blocked:
            self.blocked_s += since_last_s
        if self.held:
            self.held_s += since_last_s
        self.blocked, self.held = blocked, held


class LongSteps:
    """The steps of one slot that kept its loop for long: when they ended, for how long they took, of which chain."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float, int]] = deque(maxlen=_KEPT)

    def note(self, ended_s: float, seconds: float, chain: int) -> None:
        if seconds >= _LONG_S:
            self._steps.append((ended_s, seconds, chain))

    def longest_since(self, since_s: float) -> tuple[float, int]:
        """Seconds and chain of the longest one that ended after `since_s`; (0, -1) if there was none."""
        longest = max(((seconds, chain) for ended_s, seconds, chain in self._steps if ended_s > since_s), default=None)
        return (0.0, -1) if longest is None else longest


@dataclass(frozen=True)
class _Mark:
    rows: int
    busy_s: float
    blocked_s: float
    held_s: float
    starved_s: float
    at_s: float


class LoadSince:
    """What the load of one subtask has come to since its last snapshot."""

    def __init__(self, now_s: float, starved_s: float) -> None:
        self._mark = _Mark(0, 0.0, 0.0, 0.0, starved_s, now_s)

    def add_to(
        self, times: SnapshotTimes, load: Load, rows: int, starved_s: float, steps: LongSteps, now_s: float
    ) -> SnapshotTimes:
        """`times` with it. `rows` that the subtask has taken, and for how many seconds the loop's thread was starved,
        are sums since the generation began. The next call begins where this one ends."""
        before, self._mark = self._mark, _Mark(rows, load.busy_s, load.blocked_s, load.held_s, starved_s, now_s)
        step_s, chain = steps.longest_since(before.at_s)
        return msgspec.structs.replace(
            times,
            rows=max(0, rows - before.rows),
            busy_ms=_ms(load.busy_s - before.busy_s),
            blocked_ms=_ms(load.blocked_s - before.blocked_s),
            held_ms=_ms(load.held_s - before.held_s),
            step_ms=_ms(step_s),
            step_chain=chain,
            starved_ms=_ms(starved_s - before.starved_s),
        )


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 1)
