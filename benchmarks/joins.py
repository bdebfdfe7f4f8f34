"""Cost of a row in a join of two streams on a single core: the operator alone, with RocksDB and snapshots.

    python -m benchmarks.joins interval --keys 10000

Both streams have a row of each key every ten seconds of event time on average, at random: on average, a row has a match
within ±5 s. `rows/s` counts rows of both sides; times are CPU times of this thread, so two cores do about twice as
much.

    python -m benchmarks.joins interval --keys 1000000 --bytes 400

With `--bytes` each row also has a text of this size. A join of five seconds holds about a row of each key and side. The
program prints the share of these rows in mapped files, and the memory of the process without mapped files.
"""

import argparse
import datetime
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.joins.as_of import AsOfJoinOperator
from barrier_runtime.operators.joins.base import Side
from barrier_runtime.operators.joins.interval import IntervalJoinOperator
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_5_S = datetime.timedelta(seconds=5)
_EVERY_MS = 10_000  # between two rows of a key, per side
_SNAPSHOT_EVERY = 64  # batches
_LOOK_EVERY = 16  # batches
_OF_FILES = "(deleted)"  # of mapped files, which have no name


def _side(value: str, text_bytes: int) -> Side:
    text = [(f"{value}_text", pa.string())] if text_bytes else []
    return Side(("key",), "at", pa.schema([("key", pa.int64()), ("at", pa.int64()), (value, pa.int64()), *text]))


_JOINS: dict[str, Callable[[Side, Side], Operator]] = {
    "interval": lambda left, right: IntervalJoinOperator("join", left, right, (-_5_S, _5_S)),
    "outer": lambda left, right: IntervalJoinOperator("join", left, right, (-_5_S, _5_S), "full"),
    "asof": lambda left, right: AsOfJoinOperator("join", left, right),
}


@dataclass
class Held:
    """The peak of each figure, in bytes."""

    mapped: int = 0
    anonymous: int = 0

    def look(self) -> None:
        ranges = [
            line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines() if _OF_FILES in line
        ]
        self.mapped = max(self.mapped, sum(int(end, 16) - int(start, 16) for start, end in ranges))
        lines = Path("/proc/self/status").read_text().splitlines()
        (anonymous,) = (int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))
        self.anonymous = max(self.anonymous, anonymous)


def run(
    operator: Operator, sides: tuple[Side, Side], keys: int, rows: int, batch_rows: int, text_bytes: int, held: Held
) -> tuple[float, int]:
    """(CPU seconds, output rows) for `rows` rows of each side. The operator is open."""
    rng = np.random.default_rng(1)
    spent, out, snapshots = 0.0, [0], 0

    def emitted(batch: Batch) -> None:
        out[0] += len(batch)

    emit = Emit(emitted)
    for first in range(0, rows, batch_rows):
        number = np.arange(first, first + batch_rows)
        at = number * _EVERY_MS // keys
        batches = []
        for side in sides:
            columns = [pa.array(rng.integers(0, keys, batch_rows)), pa.array(at), pa.array(number)]
            if text_bytes:
                columns.append(pa.array([str(each).zfill(text_bytes) for each in number.tolist()]))
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
        if (first // batch_rows) % _LOOK_EVERY == 0:
            held.look()
    operator.on_watermark(WATERMARK_MAX, emit)
    return spent, out[0]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("join", choices=[*_JOINS])
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of each side")
    parser.add_argument("--batch", type=int, default=8_192, help="rows of a batch")
    parser.add_argument("--bytes", type=int, default=0, help="of a text in each row")
    parser.add_argument("--folder", default="build/bench/joins")
    chosen = parser.parse_args(arguments)
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    sides, held = (_side("price", chosen.bytes), _side("rate", chosen.bytes)), Held()
    operator = _JOINS[chosen.join](*sides)
    operator.open(Surroundings(scratch, 0, 1).context("join"))
    try:
        spent, out = run(operator, sides, chosen.keys, chosen.rows, chosen.batch, chosen.bytes, held)
    finally:
        operator.close()
        shutil.rmtree(scratch, ignore_errors=True)
    rows = 2 * -(-chosen.rows // chosen.batch) * chosen.batch
    print(describe())
    print(f"{chosen.join}, {chosen.keys:,} keys: {rows:,} rows in, {out:,} out, {rows / spent:,.0f} rows/s per core")
    print(f"at most {held.mapped >> 20:,} MiB in mapped files, {held.anonymous >> 20:,} MiB of memory of its own")
    return 0


if __name__ == "__main__":
    sys.exit(main())
