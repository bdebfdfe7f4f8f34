"""A running job goes 2 -> 4 -> 3 -> 2 slots, again and again: for how long does no row come out, and is any read twice?

    python -m benchmarks.rescaling --rate 50000 --keys 100000 --rescales 12

Of each rescale: the longest time between two rows at the sinks from the request until a second after its end (*gap*),
and the pause that the coordinator tells, by parts: the last checkpoint until it is decided, until all of it is visible,
and until the new slots run. A row that is read twice comes to a sink twice. Results: build/bench/rescaling.json.
"""

import argparse
import dataclasses
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from barrier_runtime.coordinator.status.status import RescaleStatus
from barrier_runtime.launch.on_spark import JobHandle
from benchmarks.measuring_sink import MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.stamps import Ints, read_stamps
from benchmarks.workloads import KEYED_COUNT

_FOLDER = Path("build/bench/rescaling")
_RESULT = Path("build/bench/rescaling.json")
_ROUND = (4, 3, 2)
_REST_S = 1.5  # between two rescales
_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class RescaleFigures:
    """Milliseconds. `busy`: processes that wanted a processor when it began, as the kernel's load of a minute says."""

    before: int
    after: int
    gap_ms: float
    pause_ms: int
    checkpoint_ms: int
    commit_ms: int
    restore_ms: int
    busy: float


def rescales(rate: float, keys: int, count: int) -> tuple[list[RescaleFigures], int]:
    """The figures of each, and how many rows were read twice."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    (_FOLDER / "rows").mkdir(parents=True)
    flow, result = KEYED_COUNT.flow(lambda flow: flow.source("events", PacedSource(rate, keys), event_time="at"))
    result.sink("measured", MeasuringSink(str((_FOLDER / "rows").resolve()), column="emitted", keep_s=0.05))
    done: list[tuple[RescaleStatus, float]] = []
    with flow.start(
        master="local[4]",
        parallelism=2,
        checkpoints=str((_FOLDER / "checkpoints").resolve()),
        checkpoint_interval=1.0,
    ) as handle:
        _wait_for_checkpoints(handle, 3)
        for number in range(count):
            time.sleep(_REST_S)
            busy = os.getloadavg()[0]
            handle.rescale(_ROUND[number % len(_ROUND)])
            done.append((handle.status().rescales[-1], busy))
        time.sleep(_REST_S)
        handle.stop()
        handle.wait(timeout=_TIMEOUT_S)
    stamps = read_stamps(_FOLDER / "rows")
    twice = len(stamps.intended) - len(np.unique(stamps.intended))
    return [_figures(status, busy, stamps.arrived) for status, busy in done], twice


def _wait_for_checkpoints(handle: JobHandle, count: int) -> None:
    until = time.monotonic() + _TIMEOUT_S
    while handle.status().checkpoints.completed < count:
        if time.monotonic() > until:
            raise TimeoutError(f"no {count} checkpoints within {_TIMEOUT_S} s: {handle.status().reason}")
        time.sleep(0.1)


def _figures(status: RescaleStatus, busy: float, arrived_ns: Ints) -> RescaleFigures:
    paused, decided, moved, ended = status.paused_ms, status.decided_ms, status.moved_ms, status.ended_ms
    if paused is None or decided is None or moved is None or ended is None:
        raise ValueError(f"this rescale did not move the job: {status}")
    around = arrived_ns[(arrived_ns >= status.asked_ms * 1_000_000) & (arrived_ns <= (ended + 1_000) * 1_000_000)]
    gap_ms = float(np.diff(around).max(initial=0)) / 1e6
    return RescaleFigures(
        status.before,
        status.parallelism,
        round(gap_ms, 1),
        ended - paused,
        decided - paused,
        moved - decided,
        ended - moved,
        round(busy, 1),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rescaling", description=__doc__)
    parser.add_argument("--rate", type=float, default=50_000.0, help="rows per second")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rescales", type=int, default=12)
    chosen = parser.parse_args(arguments)
    found, twice = rescales(chosen.rate, chosen.keys, chosen.rescales)
    gaps = [each.gap_ms for each in found]
    summary = {
        "gap_p50_ms": float(np.median(gaps)),
        "gap_max_ms": max(gaps),
        "read_twice": twice,
        "rescales": [dataclasses.asdict(each) for each in found],
    }
    _RESULT.write_text(json.dumps(summary, indent=2) + "\n")
    for each in found:
        print(each)
    print(f"gap p50 {summary['gap_p50_ms']:.0f} ms, max {summary['gap_max_ms']:.0f} ms; {twice} rows read twice")


if __name__ == "__main__":
    main()
