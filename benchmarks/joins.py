"""What a row costs in a join of two streams, in one core: the operator alone, with RocksDB and a snapshot now and then.

    python -m benchmarks.joins interval --keys 10000

Both streams have a row of each key every ten seconds of event time on average, at random, so within ±5 s a row has one
match. `rows/s` counts rows of both sides; times are CPU times of this thread, so two cores do about twice as much.
"""

import argparse
import datetime
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.joins.as_of import AsOfJoinOperator
from barrier_runtime.operators.joins.columns import Side
from barrier_runtime.operators.joins.interval import IntervalJoinOperator
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_5_S = datetime.timedelta(seconds=5)
_EVERY_MS = 10_000  # a row of a key, per side
_SNAPSHOT_EVERY = 64  # batches


def _side(value: str) -> Side:
    return Side(("key",), "at", pa.schema([("key", pa.int64()), ("at", pa.int64()), (value, pa.int64())]))


_SIDES = (_side("price"), _side("rate"))
_JOINS: dict[str, Callable[[], Operator]] = {
    "interval": lambda: IntervalJoinOperator("join", *_SIDES, (-_5_S, _5_S)),
    "outer": lambda: IntervalJoinOperator("join", *_SIDES, (-_5_S, _5_S), "full"),
    "asof": lambda: AsOfJoinOperator("join", *_SIDES),
}


def run(operator: Operator, keys: int, rows: int, batch_rows: int) -> tuple[float, int]:
    """(CPU seconds, rows that came out) for `rows` rows of each side. The operator is open."""
    rng = np.random.default_rng(1)
    spent, out, snapshots = 0.0, [0], 0

    def emitted(batch: Batch) -> None:
        out[0] += len(batch)

    emit = Emit(emitted)
    for first in range(0, rows, batch_rows):
        number = np.arange(first, first + batch_rows)
        at = number * _EVERY_MS // keys
        batches = []
        for side in _SIDES:
            columns = [pa.array(rng.integers(0, keys, batch_rows)), pa.array(at), pa.array(number)]
            batches.append(Batch(pa.RecordBatch.from_arrays(columns, schema=side.schema), 0))
        began = time.thread_time()
        for port, batch in enumerate(batches):
            operator.process(batch, emit, port)
        operator.on_watermark(int(at[-1]) - 1, emit)
        if (first // batch_rows) % _SNAPSHOT_EVERY == _SNAPSHOT_EVERY - 1:
            snapshots += 1
            capture = operator.snapshot(snapshots)
            assert capture.keyed is not None
            while not capture.keyed.drain():
                pass
            if capture.blocking is not None:
                capture.blocking()
            capture.keyed.write(snapshots)
            capture.keyed.clean_up()
            operator.on_complete(snapshots)
        spent += time.thread_time() - began
    operator.on_watermark(WATERMARK_MAX, emit)
    return spent, out[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("join", choices=[*_JOINS])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each side")
    parser.add_argument("--batch", type=int, default=8_192, help="rows of a batch")
    parser.add_argument("--folder", default="build/bench/joins")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    operator = _JOINS[chosen.join]()
    operator.open(Surroundings(scratch, 0, 1).context("join"))
    try:
        spent, out = run(operator, chosen.keys, chosen.rows, chosen.batch)
    finally:
        operator.close()
        shutil.rmtree(scratch, ignore_errors=True)
    rows = 2 * -(-chosen.rows // chosen.batch) * chosen.batch
    print(describe())
    print(f"{chosen.join}, {chosen.keys:,} keys: {rows:,} rows in, {out:,} out, {rows / spent:,.0f} rows/s per core")
    return 0


if __name__ == "__main__":
    sys.exit(main())
