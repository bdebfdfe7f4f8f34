"""Processed latency of a keyed running count: parallelism 2, RocksDB, a checkpoint every second to a local folder.

    python -m benchmarks.keyed_count --rate 50000 --seconds 60

Latency is per row, from its intended emission time (no coordinated omission) to its arrival at a sink operator.
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

import numpy as np

from barrier_runtime import Dataflow, count
from benchmarks.machine import describe
from benchmarks.measuring_sink import MeasuringSink, measured
from coordinator.status import JobStatus

FOLDER = Path("build/bench/keyed_count")


def build(rate: float, keys: int) -> Dataflow:
    flow = Dataflow("bench-keyed-count")
    counted = flow.rate("events", rate, keys=keys).key_by("key").aggregate("counts", n=count())
    counted.sink("measured", MeasuringSink(str((FOLDER / "rows").resolve())))
    return flow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=50_000, help="rows per second")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=60, help="measured, after the warm-up")
    parser.add_argument("--warm-up", type=float, default=15, help="seconds")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between checkpoints")
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    with build(chosen.rate, chosen.keys).start(
        master=chosen.master,
        parallelism=2,
        checkpoints=str((FOLDER / "checkpoints").resolve()),
        checkpoint_interval=chosen.interval,
    ) as handle:
        while handle.status().records == 0:
            time.sleep(0.2)
        began_ns = time.time_ns()
        time.sleep(chosen.warm_up + chosen.seconds)
        status = handle.status()
        handle.stop()
        handle.wait(timeout=60)
    print(describe())
    show(status, began_ns + chosen.warm_up * 1e9, chosen)
    return 0


def show(status: JobStatus, first_ns: float, chosen: argparse.Namespace) -> None:
    latencies = measured(FOLDER / "rows").between(first_ns, first_ns + chosen.seconds * 1e9)
    if not len(latencies):
        sys.exit("no row arrived in the measured time")
    p50, p99, p999 = np.percentile(latencies, [50, 99, 99.9])
    print(
        f"{len(latencies):,} rows in {chosen.seconds:.0f} s, {chosen.keys:,} keys: processed latency "
        f"p50 {p50:.2f} ms, p99 {p99:.2f} ms, p99.9 {p999:.2f} ms, max {latencies.max():.1f} ms"
    )
    completed = [c for c in status.checkpoints.history if c.outcome == "complete" and c.triggered_ms >= first_ns / 1e6]
    durations = sorted(c.duration_ms for c in completed)
    if durations:
        print(
            f"{len(durations)} checkpoints: p50 {durations[len(durations) // 2]} ms, max {durations[-1]} ms, "
            f"synchronous part at most {max(c.sync_ms for c in completed):.1f} ms, "
            f"uploaded p50 {sorted(c.new_bytes for c in completed)[len(completed) // 2]:,} bytes"
        )
    for slot in status.slots:
        print(f"slot {slot.slot}: {slot.metrics.get('rss_bytes', 0) / 1e6:.0f} MB resident")


if __name__ == "__main__":
    sys.exit(main())
