"""Checkpoints before a slow sink: aligned, unaligned, unaligned after a while.

    python -m benchmarks.backpressure --rate 50000 --taken 5000 --seconds 30

A keyed count on two slots feeds a sink that blocks briefly for each row, so all queues before the sink are full. The
program prints per mode the time of checkpoints from trigger to decision, and the bytes of in-flight rows in them.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import pyarrow as pa

from barrier_runtime import Dataflow, RunOptions, count
from barrier_runtime.coordinator.status.status import JobStatus
from benchmarks.machine import describe
from benchmarks.measuring_sink import MeasuringSink, _Rows

FOLDER = Path("build/bench/backpressure")
MODES: dict[str, RunOptions] = {
    "aligned": {},
    "unaligned": {"unaligned": True},
    "unaligned after 0.5 s": {"unaligned": True, "aligned_timeout": 0.5},
}


class SlowSink(MeasuringSink):
    """A sink that takes `per_s` rows per second in each subtask."""

    def __init__(self, folder: str, per_s: float) -> None:
        super().__init__(folder)
        self.per_s = per_s

    def write(self, transaction: _Rows, rows: pa.RecordBatch) -> None:
        time.sleep(rows.num_rows / self.per_s)
        super().write(transaction, rows)


def build(chosen: argparse.Namespace) -> Dataflow:
    flow = Dataflow("bench-backpressure")
    counted = flow.rate("events", chosen.rate, keys=chosen.keys).key_by("key").aggregate("counts", n=count())
    counted.sink("slow", SlowSink(str((FOLDER / "rows").resolve()), chosen.taken / 2))
    return flow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50_000, help="rows per second that the source wants to emit")
    parser.add_argument("--taken", type=float, default=5_000, help="rows per second that the sink takes")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds; queues fill")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--mode", choices=sorted(MODES), action="append")
    chosen = parser.parse_args()
    print(describe())
    for mode in chosen.mode or MODES:
        status, measured_from_ms = run(chosen, MODES[mode])
        show(mode, status, measured_from_ms)
    return 0


def run(chosen: argparse.Namespace, mode: RunOptions) -> tuple[JobStatus, float]:
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    options: RunOptions = {
        "master": chosen.master,
        "parallelism": 2,
        "checkpoints": str((FOLDER / "checkpoints").resolve()),
        "checkpoint_interval": chosen.interval,
        **mode,
    }
    with build(chosen).start(**options) as handle:
        while handle.status().records == 0:
            time.sleep(0.2)
        time.sleep(chosen.warm_up)
        measured_from_ms = time.time() * 1000
        time.sleep(chosen.seconds)
        status = handle.status()
        handle.stop("now")
        handle.wait(timeout=60)
    return status, measured_from_ms


def show(mode: str, status: JobStatus, measured_from_ms: float) -> None:
    checkpoints = status.checkpoints
    done = [c for c in checkpoints.history if c.outcome == "complete" and c.triggered_ms >= measured_from_ms]
    under_way = ""
    if checkpoints.in_progress:
        under_way = f"; {checkpoints.in_progress[0]} is under way, waiting for {', '.join(checkpoints.waiting_for)}"
    if not done:
        print(f"{mode}: no checkpoint completed{under_way}")
        return
    durations = sorted(c.duration_ms for c in done)
    print(
        f"{mode}: {len(done)} checkpoints, p50 {durations[len(durations) // 2]:,} ms, max {durations[-1]:,} ms, "
        f"aligning at most {max(c.alignment_ms for c in done):,.0f} ms, "
        f"in flight at most {max(c.in_flight_bytes for c in done):,} bytes{under_way}"
    )


if __name__ == "__main__":
    sys.exit(main())
