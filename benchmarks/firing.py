"""Cost of very many windows that a single watermark makes due; longest wait of a barrier for a slice.

    python -m benchmarks.firing tumbling --windows 1000000

Measures the operator alone, with RocksDB: first a row for each of as many keys; then event time goes to the end, slice
by slice as in a subtask. A barrier is taken between two slices. Times are CPU times of this thread; Python's collector
ignores imported objects, as in a slot.
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

from barrier_runtime import Tumbling, count, sum_
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.windows.clocks import EventTime
from barrier_runtime.operators.windows.contents import Aggregates
from barrier_runtime.operators.windows.operator import Content, WindowOperator
from barrier_runtime.operators.windows.whole.apply import Applied
from barrier_runtime.operators.windows.whole.top import Top
from barrier_runtime.runtime.host.process import PROCESS_HEAP
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_SCHEMA = pa.schema([("key", pa.int64()), ("at", pa.int64()), ("amount", pa.int64())])
_COUNTED = pa.schema([("key", pa.int64()), ("n", pa.int64())])
_WINDOW = Tumbling(datetime.timedelta(seconds=10))
_CONTENTS: dict[str, Callable[[], Content]] = {
    "tumbling": lambda: Aggregates({"n": count(), "total": sum_("amount")}),
    "top": lambda: Top(1, "amount"),
    "apply": lambda: Applied(lambda key, window, rows: rows, _SCHEMA),
    "apply-row": lambda: Applied(lambda key, window, rows: {"key": key, "n": len(rows)}, _COUNTED),
}


def _operator(kind: str) -> Operator:
    return WindowOperator("windows", ["key"], _WINDOW, EventTime("at"), _CONTENTS[kind](), _SCHEMA)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=[*_CONTENTS])
    parser.add_argument("--windows", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=16_384, help="rows of a batch")
    parser.add_argument("--folder", default="build/bench/firing")
    chosen = parser.parse_args(arguments)
    Path(chosen.folder).mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=chosen.folder))
    operator, out, slices = _operator(chosen.kind), [0], []

    def emitted(batch: Batch) -> None:
        out[0] += len(batch)

    emit = Emit(emitted)
    PROCESS_HEAP.begin()
    operator.open(Surroundings(scratch, 0, 1).context("windows"))
    try:
        keys = np.random.default_rng(1).permutation(chosen.windows)
        began = time.thread_time()
        for first in range(0, chosen.windows, chosen.batch):
            some = keys[first : first + chosen.batch]
            arrays = [pa.array(some), pa.array(some % 10_000), pa.array(some)]
            operator.process(Batch(pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA), 0), emit)
        fed_s, arrived = time.thread_time() - began, False
        while not arrived:
            began = time.thread_time()
            arrived = operator.toward(WATERMARK_MAX, emit)
            slices.append(time.thread_time() - began)
    finally:
        operator.close()
        shutil.rmtree(scratch, ignore_errors=True)
    assert out[0] == chosen.windows
    ms = np.array(slices) * 1e3
    print(describe())
    print(
        f"{chosen.kind}, {out[0]:,} windows: {fed_s / out[0] * 1e6:.2f} us a window fed, {ms.sum() / out[0] * 1e3:.2f} "
        f"told; {len(ms):,} slices, p50 {np.median(ms):.2f}, p99 {np.quantile(ms, 0.99):.2f}, longest {ms.max():.2f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
