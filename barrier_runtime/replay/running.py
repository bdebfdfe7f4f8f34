"""Runs the graph of a replay in this process, on a store of its own, until all that it is to read was read.

    restore ─► read to the positions ─► all is done ─► stop with a last checkpoint ─► over
                     │ nothing comes for 30 s, and rows are missing: refused, which ones
                     │ a function raises: over, that is what was looked for

The job that runs here has its own log in a folder that is removed; of the real job's store it has links to the files of
one checkpoint, which it can only read. It is never restarted.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass

from barrier_runtime.connectors.read_range import OpenRange, ReadRange
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.graph.job_graph import JobGraph
from barrier_runtime.launch.local import make_runner, raised_in, run_graph
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.runtime.host.clock import SystemClock
from barrier_runtime.runtime.slot import Slot
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.object_store import ObjectStore

_ROWS_TIMEOUT_S = 30.0  # for a row of a source that has some left to give
_LOOK_S = 0.01
_RESTS = 3  # looks one behind the other at which no slot has anything to do: rows may be between two
_IDLE_S = 2.0  # without an end: nothing has come for so long


class StandingClock(SystemClock):
    """The wall clock stands at `wall_ms`; the steady one goes on."""

    def __init__(self, wall_ms: int) -> None:
        self._wall_ns = wall_ms * 1_000_000

    def wall_ns(self) -> int:
        return self._wall_ns


@dataclass(frozen=True)
class ReplayEnded:
    """`trouble`: what a slot raised last; None: nothing."""

    status: JobStatus
    trouble: BaseException | None


async def run_replay(
    graph: JobGraph,
    spec: JobSpec,
    store: ObjectStore,
    options: JobOptions,
    ranges: Mapping[str, ReadRange],
    wall_ms: int | None,
) -> ReplayEnded:
    """`wall_ms`: what the wall clock says to operators. Raises `InvalidJob` when rows do not come."""
    runner = make_runner(spec, store)
    slots: list[Slot] = []
    clock = SystemClock() if wall_ms is None else StandingClock(wall_ms)
    running = asyncio.ensure_future(run_graph(graph, spec, store, options, runner, False, slots, clock))
    try:
        progress, rests = _Progress(ranges), 0
        while not running.done():
            # What is due by then, such as windows, may take a while, and a barrier would not wait for it.
            rests = rests + 1 if all(slot.at_rest for slot in slots) else 0
            if runner.phase == "running" and progress.over() and rests >= _RESTS:
                runner.stop("checkpoint")
                break
            await asyncio.wait([running], timeout=_LOOK_S)
        status = await running
        troubles = raised_in(slots)
        return ReplayEnded(status, troubles[-1] if troubles else None)
    finally:
        if not running.done():
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


class _Progress:
    def __init__(self, ranges: Mapping[str, ReadRange]) -> None:
        self._ranges = ranges
        self._read = -1
        self._moved_s = 0.0

    def over(self) -> bool:
        """Raises `InvalidJob` when rows that should be there do not come."""
        now_s, read = time.monotonic(), sum(each.total for each in self._ranges.values())
        if read != self._read:
            self._read, self._moved_s = read, now_s
        if all(each.reached for each in self._ranges.values()):
            return True
        still_s = now_s - self._moved_s
        if any(isinstance(each, OpenRange) for each in self._ranges.values()):
            return still_s > _IDLE_S
        if still_s <= _ROWS_TIMEOUT_S:
            return False
        raise InvalidJob(
            f"the replay waits for rows that do not come (for {still_s:.0f} s now):\n  "
            + "\n  ".join(line for name, each in self._ranges.items() for line in _missing(name, each))
        )


def _missing(source: str, range: ReadRange) -> list[str]:
    lines = [f"source {source!r}, split {split!r}: {rows} rows" for split, rows in sorted(range.missing().items())]
    if range.unfinished:
        lines.append(f"source {source!r}: {range.unfinished} splits that were read to their end are not found any more")
    return lines
