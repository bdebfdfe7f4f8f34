"""CPU time per row with and without the combiner, by skew of the keys: no Spark, no sockets.

    python -m benchmarks.combiner [latest] [tumbling] [--pairs 15]

Measured are a sending subtask, the partitioning over two slots, the frames to a remote slot, and both receiving
operators. The job counts and sums by keys of a distribution. Both settings process each batch of 65,536 rows in turn (a
pair). `each` is a running aggregate that emits a row per row. Times are CPU times of this process; the interval holds
the median ratio of all pairs with a probability of 95 % (binomial).
"""

import argparse
import datetime
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime import Tumbling, count, sum_
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.partitioning import hash_partition
from barrier_runtime.operators.aggregation.combiner import Combiner
from barrier_runtime.operators.aggregation.latest import LatestAggregateOperator
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.windows.clocks import EventTime
from barrier_runtime.operators.windows.contents import Aggregates
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.parts import WindowParts
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from benchmarks.machine import describe
from benchmarks.surroundings import Surroundings

_ROWS = 65_536
_WARM = 4  # pairs before the first measured pair
_KEYS = 1_000_000
_WINDOW = Tumbling(datetime.timedelta(seconds=10))
_AGGREGATES = {"n": count(), "s": sum_("v")}
_SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])
_random = np.random.default_rng(1)

_Keys = Callable[[], npt.NDArray[np.int64]]


def _zipf(exponent: float) -> _Keys:
    weights = np.cumsum(np.arange(1, _KEYS + 1) ** -exponent)
    return lambda: np.searchsorted(weights, _random.random(_ROWS) * weights[-1])


SKEWS: dict[str, _Keys] = {
    "100 keys": lambda: _random.integers(0, 100, _ROWS),
    "Zipf 1.2, 1 M keys": _zipf(1.2),
    "Zipf 1.0, 1 M keys": _zipf(1.0),
    "Zipf 0.8, 1 M keys": _zipf(0.8),
    "uniform, 1 M keys": lambda: _random.integers(0, _KEYS, _ROWS),
}


def _operator(kind: str) -> Operator:
    if kind == "tumbling":
        return WindowOperator("w", ["k"], _WINDOW, EventTime("t"), Aggregates(_AGGREGATES), _SCHEMA)
    made = RunningAggregateOperator if kind == "each" else LatestAggregateOperator
    return made("r", ["k"], _AGGREGATES, _SCHEMA)


class _Job:
    """A sender and two receivers."""

    def __init__(self, kind: str, mode: Any, folder: Path) -> None:
        by = WindowParts(_WINDOW, "t") if kind == "tumbling" else None
        self._combiner = Combiner(["k"], _AGGREGATES, "the benchmark", by)
        self._combiner.mode = mode  # type: ignore[misc]
        self._targets = [_operator(kind) for _ in range(2)]
        for subtask, target in enumerate(self._targets):
            target.open(Surroundings(folder, subtask, 2).context("r"))
        self._writer, self._reader = FrameWriter(), FrameReader()
        self._emit = Emit(lambda batch: None)

    def ns_per_row(self, batch: Batch) -> float:
        began = time.process_time_ns()
        for target, part in hash_partition(self._combiner.combined(batch), ("k",), 2, 128):
            received = [part] if target == 0 else self._sent(part)
            for each in received:
                self._targets[target].process(each, self._emit)
        return (time.process_time_ns() - began) / batch.count

    def _sent(self, batch: Batch) -> list[Batch]:
        data = b"".join(bytes(memoryview(chunk)) for chunk in self._writer.encode(batch))
        received: list[Batch] = []
        for start in range(0, len(data), 262_144):
            elements = self._reader.feed(data[start : start + 262_144])
            received += [element for element, _ in elements if isinstance(element, Batch)]
        return received


def interval(ratios: list[float]) -> tuple[float, float]:
    """Returns bounds of the median with a probability of at least 95 %."""
    ordered, count_ = sorted(ratios), len(ratios)
    chance, lower = 0.5**count_, 0
    while chance <= 0.025 and lower < count_ // 2:
        lower += 1
        ways = 1.0
        for step in range(lower):
            ways *= (count_ - step) / (step + 1)
        chance += ways * 0.5**count_
    lower = max(0, lower - 1)
    return ordered[lower], ordered[-1 - lower]


def _measure(kind: str, skew: str, keys: _Keys, pairs: int, folder: Path) -> str:
    jobs = {"off": _Job(kind, "off", folder / "off"), "chosen": _Job(kind, "chosen", folder / "chosen")}
    if kind == "latest":
        jobs["each"] = _Job("each", "off", folder / "each")
    spent: dict[str, list[float]] = {name: [] for name in jobs}
    for pair in range(_WARM + pairs):
        times = np.arange(_ROWS) // 50 + pair * _ROWS // 50
        batch = Batch(pa.record_batch([keys(), times, np.ones(_ROWS, np.int64)], schema=_SCHEMA), 0)
        for name in sorted(jobs, reverse=bool(pair % 2)):
            took = jobs[name].ns_per_row(batch)
            if pair >= _WARM:
                spent[name].append(took)
    ratios = [off / chosen for off, chosen in zip(spent["off"], spent["chosen"], strict=True)]
    low, high = interval(ratios)
    shown = [f"{statistics.median(values):.0f}" for values in (spent.get("each", [0.0]), spent["off"], spent["chosen"])]
    return f"| {kind}, {skew} | {' | '.join(shown)} | {statistics.median(ratios):.2f} ({low:.2f} to {high:.2f}) |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", default=["latest", "tumbling"])
    parser.add_argument("--pairs", type=int, default=15)
    options = parser.parse_args()
    print(describe())
    print("| CPU ns per row | `each` | without | with the combiner | ratio (95 %) |\n|---|---|---|---|---|", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="barrier-runtime-bench-"))
    try:
        for kind in options.kinds:
            for number, (skew, keys) in enumerate(SKEWS.items()):
                print(_measure(kind, skew, keys, options.pairs, folder / f"{kind}-{number}"), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
