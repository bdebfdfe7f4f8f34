"""A sender and two receivers of rows by key, for `benchmarks.combiner`; also for checkouts without a combiner.

    PYTHONPATH=CHECKOUT python benchmarks/combined.py KIND SKEW MODE SEED FOLDER

Each line of standard input processes a window of 10 s, 1,048,576 rows, in batches of 65,536 rows, or of 262,144 rows
while the combiner requests larger batches of a source. A watermark follows each batch. Each line prints the CPU
nanoseconds per row: of the sending subtask, the partitioning over two slots, the frames to a remote slot, and both
receiving operators.
"""

import datetime
import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime import Tumbling, count, sum_
from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.aggregation.latest import LatestAggregateOperator
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.windows.clocks import EventTime
from barrier_runtime.operators.windows.contents import Aggregates
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.runtime.host.process import tune_interpreter
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from benchmarks.surroundings import Surroundings

_OF_OLD = "barrier_runtime.data.partitioning"  # in the commit before the combiner
_IN = _OF_OLD if importlib.util.find_spec(_OF_OLD) else "barrier_runtime.data.keys"
hash_partition: Callable[..., list[tuple[int, Batch]]] = importlib.import_module(_IN).hash_partition

ROWS = 65_536
BATCHES = 16  # of a window: about 100,000 rows per second of event time, as the other benchmarks have
_MORE = 4  # times as many rows of a batch for a combiner
_KEYS = 1_000_000
_WINDOW_MS = 10_000
_WINDOW = Tumbling(datetime.timedelta(milliseconds=_WINDOW_MS))
_AGGREGATES = {"n": count(), "s": sum_("v")}
_SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])

_Random = np.random.Generator
_Keys = Callable[[_Random], npt.NDArray[np.int64]]


def _zipf(exponent: float) -> _Keys:
    def keys(random: _Random) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = np.searchsorted(weights, random.random(ROWS) * weights[-1])
        return found

    weights = np.cumsum(np.arange(1, _KEYS + 1) ** -exponent)
    return keys


def _uniform(different: int) -> _Keys:
    return lambda random: random.integers(0, different, ROWS)


SKEWS: dict[str, _Keys] = {
    "1 key": _uniform(1),
    "100 keys": _uniform(100),
    "Zipf 1.5, 1 M keys": _zipf(1.5),
    "Zipf 1.2, 1 M keys": _zipf(1.2),
    "Zipf 1.0, 1 M keys": _zipf(1.0),
    "Zipf 0.8, 1 M keys": _zipf(0.8),
    "Zipf 0.5, 1 M keys": _zipf(0.5),
    "uniform, 1 M keys": _uniform(_KEYS),
}


class _NoCombiner:
    takes_more = False

    def combined(self, batch: Batch) -> Batch:
        return batch


def _combiner(kind: str, mode: str) -> Any:
    """`mode`: of the combiner, or "before" for rows that are not combined."""
    if mode == "before":
        return _NoCombiner()
    from barrier_runtime.operators.aggregation.partials import Combiner
    from barrier_runtime.operators.windows.contents import WindowParts

    combiner: Any = Combiner(
        ["k"], _AGGREGATES, "the benchmark", WindowParts(_WINDOW, "t") if kind == "tumbling" else None
    )
    combiner.mode = mode
    return combiner


def _operator(kind: str) -> Operator:
    if kind == "tumbling":
        return WindowOperator("w", ["k"], _WINDOW, EventTime("t"), Aggregates(_AGGREGATES), _SCHEMA)
    made = RunningAggregateOperator if kind == "each" else LatestAggregateOperator
    return made("r", ["k"], _AGGREGATES, _SCHEMA)


class Job:
    def __init__(self, kind: str, mode: str, folder: Path) -> None:
        self._combiner = _combiner(kind, mode)
        self._targets = [_operator(kind) for _ in range(2)]
        for subtask, target in enumerate(self._targets):
            target.open(Surroundings(folder, subtask, 2).context("r"))
        self._writer, self._reader = FrameWriter(), FrameReader()
        self._emit = Emit(lambda batch: None)

    def ns_per_row(self, rows: Batch) -> float:
        began, first = time.process_time_ns(), 0
        while first < rows.count:
            batch = rows.slice(first, _MORE * ROWS if self._combiner.takes_more else ROWS)
            self._process(batch)
            first += batch.count
        return (time.process_time_ns() - began) / rows.count

    def _process(self, batch: Batch) -> None:
        """Processes a batch, and then a watermark: of a source whose rows are in the order of time."""
        for target, part in hash_partition(self._combiner.combined(batch), ("k",), 2, 128):
            received = [part] if target == 0 else self._sent(part)
            for each in received:
                self._targets[target].process(each, self._emit)
        watermark_ms = batch.rows.column("t")[-1].as_py() - 1
        for operator in self._targets:
            operator.on_watermark(watermark_ms, self._emit)

    def _sent(self, batch: Batch) -> list[Batch]:
        data = b"".join(bytes(memoryview(chunk)) for chunk in self._writer.encode(batch))
        received: list[Batch] = []
        for start in range(0, len(data), 262_144):
            elements = self._reader.feed(data[start : start + 262_144])
            received += [element for element, _ in elements if isinstance(element, Batch)]
        return received


def rows_of(skew: str, random: _Random, window: int) -> Batch:
    """Rows of the window of this number."""
    rows = BATCHES * ROWS
    times = window * _WINDOW_MS + np.arange(rows) * _WINDOW_MS // rows
    keys = np.concatenate([SKEWS[skew](random) for _ in range(BATCHES)])
    return Batch(pa.record_batch([keys, times, np.ones(rows, np.int64)], schema=_SCHEMA), 0)


def main(kind: str, skew: str, mode: str, seed: str, folder: str) -> None:
    tune_interpreter()  # as in a slot
    job, random = Job(kind, mode, Path(folder)), np.random.default_rng(int(seed))
    for window, _ in enumerate(sys.stdin):
        print(job.ns_per_row(rows_of(skew, random, window)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
