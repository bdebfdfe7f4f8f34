"""Recovery in place: SIGKILL a slot's Python process under load, again and again; how long until output flows again?

    python -m benchmarks.recovery --kills 10

Two times per kill: to the first row any sink gets from the new generation (these are replayed rows), and to the first
row that was due after the kill.
"""

import argparse
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from barrier_runtime import Dataflow, count
from barrier_runtime.launch import JobHandle
from benchmarks.machine import describe
from benchmarks.measuring_sink import MeasuringSink, first_writes, measured
from coordinator.status import JobStatus

FOLDER = Path("build/bench/recovery")
PATIENCE_S = 60.0


def build(rate: float, keys: int) -> Dataflow:
    flow = Dataflow("bench-recovery")
    counted = flow.rate("events", rate, keys=keys).key_by("key").aggregate("counts", n=count())
    counted.sink("measured", MeasuringSink(str((FOLDER / "rows").resolve())))
    return flow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rate", type=float, default=50_000, help="rows per second")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--pause", type=float, default=5.0, help="seconds between a recovery and the next kill")
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    kills: list[tuple[int, int]] = []
    with build(chosen.rate, chosen.keys).start(
        master=chosen.master,
        parallelism=2,
        checkpoints=str((FOLDER / "checkpoints").resolve()),
        checkpoint_interval=1.0,
    ) as handle:
        _until(handle, lambda status: status.checkpoints.completed >= 3)
        for number in range(chosen.kills):
            kills.append(kill(handle, number))
            time.sleep(chosen.pause)
        handle.stop()
        handle.wait(timeout=60)
    print(describe())
    show(kills)
    return 0


def kill(handle: JobHandle, number: int) -> tuple[int, int]:
    """(time of the kill in ns, token of the generation that came after)."""
    before = handle.status()
    victim = before.slots[number % len(before.slots)]
    killed_ns = time.time_ns()
    os.kill(victim.pid, signal.SIGKILL)
    after = _until(handle, lambda status: (status.token or 0) > (before.token or 0) and status.phase == "running")
    print(f"kill {number + 1}: slot {victim.slot}, process {victim.pid}, generation {after.token}", flush=True)
    return killed_ns, after.token or 0


def show(kills: list[tuple[int, int]]) -> None:
    first = first_writes(FOLDER / "rows")
    rows = measured(FOLDER / "rows")
    missing = [token for _, token in kills if token not in first]
    if missing:
        sys.exit(f"generations {missing} wrote nothing")
    any_output = [(first[token] - killed_ns) / 1e6 for killed_ns, token in kills]
    fresh = [float(rows.arrived[rows.intended >= killed_ns].min() - killed_ns) / 1e6 for killed_ns, _ in kills]
    for name, times in (("first output", any_output), ("first row due after the kill", fresh)):
        print(f"{name}: p50 {np.median(times):.0f} ms, max {max(times):.0f} ms; {[round(t) for t in times]}")


def _until(handle: JobHandle, reached: Callable[[JobStatus], bool]) -> JobStatus:
    deadline = time.monotonic() + PATIENCE_S
    while not reached(status := handle.status()):
        if status.outcome is not None or time.monotonic() > deadline:
            sys.exit(f"the job is {status.phase}: {status.error or status.reason}")
        time.sleep(0.02)
    return status


if __name__ == "__main__":
    sys.exit(main())
