"""Cost of a row if far more windows are open than fit in memory: a single operator and core, RocksDB.

    python -m benchmarks.evicted --pairs 10000000

First `--pairs` pairs of key and window begin, in a practically random order. Then `--again` rows come for random open
pairs; each pair is read back and written. Then all windows end at the same time. A snapshot is taken every
`--snapshot-every` rows. Rates are by this process's CPU time (with RocksDB's threads) and by the clock; the longest
call is by CPU time of the calling thread. Memory is that of this process.
"""

import argparse
import datetime
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.aggregation.functions import count, sum_
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.assigners import Tumbling
from barrier_runtime.operators.windows.clocks import EventTime
from barrier_runtime.operators.windows.contents import Aggregates
from barrier_runtime.operators.windows.operator import WindowOperator
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_WINDOWS = 4
_SIZE_MS = 10_000
_SCHEMA = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("price", pa.int64())])
_ODD = 0x9E3779B1  # order of pairs: multiples of this number, modulo the number of pairs


class _Spent:
    """CPU seconds of the process, and seconds by the clock, since this object's creation."""

    def __init__(self) -> None:
        self._cpu_s, self._s = time.process_time(), time.perf_counter()

    def rates(self, rows: int) -> str:
        cpu_s, s = time.process_time() - self._cpu_s, time.perf_counter() - self._s
        return f"{rows / cpu_s:,.0f} a CPU second, {rows / s:,.0f} a second"


class Run:
    def __init__(self, folder: Path, pairs: int, batch_rows: int, snapshot_every: int) -> None:
        window = Tumbling(datetime.timedelta(milliseconds=_SIZE_MS))
        aggregates = {"n": count(), "total": sum_("price")}
        self.operator = WindowOperator("window", ["key"], window, EventTime("at"), Aggregates(aggregates), _SCHEMA)
        self.operator.stops = True  # a batch whose windows are on disk is taken in slices
        self.operator.open(Surroundings(folder, 0, 1).context("window"))
        self.out, self.total, self.snapshots = 0, 0, 0
        self.longest_s = 0.0
        self._pairs, self._batch_rows, self._snapshot_every = pairs, batch_rows, snapshot_every
        self._emit = Emit(self._emitted)
        self._since = 0

    def feed(self, numbers: np.ndarray) -> None:
        """Feeds a row for each of these pairs."""
        at = numbers % _WINDOWS * _SIZE_MS + numbers % _SIZE_MS
        columns = [pa.array(numbers // _WINDOWS), pa.array(at), pa.array(numbers % 1_000)]
        left: Batch | None = Batch(pa.RecordBatch.from_arrays(columns, schema=_SCHEMA), 0)
        while left is not None:  # as a subtask does between other work
            began = time.thread_time()
            self.operator.process(left, self._emit)
            left = self.operator.take_rest()
            self.longest_s = max(self.longest_s, time.thread_time() - began)
        self._since += len(numbers)
        if self._since >= self._snapshot_every:
            self._since = 0
            self.snapshot()

    def begin_all(self, told_rows: int) -> None:
        """Prints the rate after every `told_rows` rows."""
        told, spent = 0, _Spent()
        for first in range(0, self._pairs, self._batch_rows):
            end = min(first + self._batch_rows, self._pairs)
            self.feed(np.arange(first, end) * _ODD % self._pairs)
            if end - told >= told_rows:
                print(f"       {end:,} pairs, the last {end - told:,} at {spent.rates(end - told)}", flush=True)
                told, spent = end, _Spent()

    def again(self, rows: int) -> None:
        random = np.random.default_rng(1)
        for first in range(0, rows, self._batch_rows):
            self.feed(random.integers(0, self._pairs, min(self._batch_rows, rows - first)))

    def fire(self) -> None:
        done = False
        while not done:
            began = time.thread_time()
            done = self.operator.toward(WATERMARK_MAX, self._emit)
            self.longest_s = max(self.longest_s, time.thread_time() - began)

    def snapshot(self) -> None:
        self.snapshots += 1
        capture = self.operator.snapshot(self.snapshots)
        assert capture.keyed is not None
        while not capture.keyed.drain(4_096):
            pass
        capture.keyed.write(self.snapshots)
        capture.keyed.clean_up()
        self.operator.on_complete(self.snapshots)

    def _emitted(self, batch: Batch) -> None:
        self.out += len(batch)
        self.total += int(pc.sum(batch.rows.column("n")).as_py())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10_000_000)
    parser.add_argument("--again", type=int, default=1_000_000, help="rows for pairs that are there")
    parser.add_argument("--batch", type=int, default=8_192, help="rows of a batch")
    parser.add_argument("--snapshot-every", type=int, default=5_000_000, help="rows")
    parser.add_argument("--tell-every", type=int, default=5_000_000, help="pairs begun, after which their rate is told")
    parser.add_argument("--folder", default="build/bench/evicted")
    chosen = parser.parse_args(arguments)
    pairs = chosen.pairs | 1  # prime to the multiplier
    folder = Path(chosen.folder)
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        run = Run(scratch, pairs, chosen.batch, chosen.snapshot_every)
        print(describe())
        spent = _Spent()
        run.begin_all(chosen.tell_every)
        print(f"begun: {pairs:,} pairs, {spent.rates(pairs)}; longest call {run.longest_s * 1e3:.0f} ms", flush=True)
        run.longest_s, spent = 0.0, _Spent()
        run.again(chosen.again)
        longest = f"longest call {run.longest_s * 1e3:.0f} ms"
        print(f"again: {chosen.again:,} rows, {spent.rates(chosen.again)}; {longest}", flush=True)
        disk = sum(file.stat().st_size for file in scratch.rglob("*.sst"))
        run.longest_s, spent = 0.0, _Spent()
        run.fire()
        print(f"over:  {run.out:,} results, {spent.rates(run.out)}; longest step {run.longest_s * 1e3:.0f} ms")
        assert (run.out, run.total) == (pairs, pairs + chosen.again), "a window is missing, or has other rows"
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
        print(f"{run.snapshots} snapshots; peak memory {peak:,} MiB; {disk >> 20:,} MiB of files")
        run.operator.close()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
