"""Rows that a slot partitions by key and frames for P slots, per second of processor time.

    python -m benchmarks.wide_frames 2 16 64 256

Batches of three columns (key, int64, float64) with uniform keys go through `hash_partition`, and every part through the
frame writer of its channel. Nothing is sent.
"""

import argparse
import statistics
import time

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.runtime.network.frames import FrameWriter

_KEYS = 1_000_000


def rows_per_s(slots: int, size: int, seconds: float) -> float:
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
    writers = [FrameWriter() for _ in range(slots)]
    rows, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        for batch in batches:
            for target, part in hash_partition(batch, ("key",), slots, max(128, slots)):
                writers[target].encode(part)
            rows += size
    return rows / (time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wide_frames", description=__doc__.splitlines()[0])
    parser.add_argument("widths", nargs="*", type=int, default=[2, 16, 64, 256], metavar="SLOTS")
    parser.add_argument("--rows", nargs="*", type=int, default=[2_000, 16_384, 131_072, 524_288], help="of a batch")
    parser.add_argument("--seconds", type=float, default=0.5, help="of processor time per figure (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="all widths in turn (%(default)s)")
    arguments = parser.parse_args()
    for size in arguments.rows:
        rates: dict[int, list[float]] = {width: [] for width in arguments.widths}
        for _ in range(arguments.rounds):
            for width, known in rates.items():
                known.append(rows_per_s(width, size, arguments.seconds))
        medians = {width: statistics.median(known) for width, known in rates.items()}
        first = medians[arguments.widths[0]]
        each = ", ".join(f"{width}: {rate / 1e6:.2f} M ({rate / first:.0%})" for width, rate in medians.items())
        print(f"{size:,} rows: {each}", flush=True)


if __name__ == "__main__":
    main()
