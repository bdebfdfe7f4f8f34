"""Rows that a slot partitions by key and frames for P slots, per second of processor time.

    python -m benchmarks.wide_frames 2 16 64 256

Batches of three columns (key, int64, float64) with uniform keys go through the edge of a subtask, and parts through the
frame writer of their channel. Nothing is sent. Rows wait for others as in a step, up to `--latency-target`; `--work`
is the time that the slot spends on a row before, which passes but is not measured.
"""

import argparse
import statistics
import time

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.runtime.network.channels import ChannelId, OutputChannel, ResultPartition
from barrier_runtime.runtime.network.connection import Chunks
from barrier_runtime.runtime.network.streams import SendingStream

_KEYS = 1_000_000
_EDGE = Edge(0, 0, 1, "hash", keys=("key",))


def rows_per_s(slots: int, size: int, arguments: argparse.Namespace) -> float:
    random = np.random.default_rng(1)
    batches = [
        Batch(
            pa.record_batch(
                {
                    "key": pa.array(random.integers(0, _KEYS, size)),
                    "n": pa.array(random.integers(0, 100, size)),
                    "x": pa.array(random.random(size)),
                }
            ),
            1,
        )
        for _ in range(8)
    ]

    def write(part: Chunks) -> bool:
        return True

    streams: list[OutputChannel] = [
        SendingStream(ChannelId(1, 0, 0, slot), write, lambda: None) for slot in range(slots)
    ]
    partition = ResultPartition(_EDGE, streams, 0, max(128, slots))
    partition.gathers = arguments.latency_target > 0
    work_s, target_s = size * arguments.work / 1e9, arguments.latency_target / 1e3
    rows, spent_s, waited_s = 0, 0.0, 0.0
    while spent_s < arguments.seconds:
        for batch in batches:
            began = time.process_time()
            partition.emit(batch)
            waited_s += work_s + time.process_time() - began
            if waited_s >= target_s:
                partition.send_gathered()
                waited_s = 0.0
            spent_s += time.process_time() - began
            rows += size
    began = time.process_time()
    partition.send_gathered()
    return rows / (spent_s + time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_frames", description=__doc__.splitlines()[0])
    parser.add_argument("widths", nargs="*", type=int, default=[2, 16, 64, 256], metavar="SLOTS")
    parser.add_argument("--rows", nargs="*", type=int, default=[2_000, 16_384, 131_072, 524_288], help="of a batch")
    parser.add_argument("--seconds", type=float, default=0.5, help="of processor time per figure (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="all widths in turn (%(default)s)")
    parser.add_argument("--latency-target", type=float, default=0.65, help="ms (%(default)s)")
    parser.add_argument("--work", type=float, default=100.0, help="ns per row (%(default)s)")
    arguments = parser.parse_args()
    for size in arguments.rows:
        rates: dict[int, list[float]] = {width: [] for width in arguments.widths}
        for _ in range(arguments.rounds):
            for width, known in rates.items():
                known.append(rows_per_s(width, size, arguments))
        medians = {width: statistics.median(known) for width, known in rates.items()}
        first = medians[arguments.widths[0]]
        each = ", ".join(f"{width}: {rate / 1e6:.2f} M ({rate / first:.0%})" for width, rate in medians.items())
        print(f"{size:,} rows: {each}", flush=True)


if __name__ == "__main__":
    main()
