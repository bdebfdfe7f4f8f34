"""A source with batches of given sizes, and the flow in which steps are tried on them (`cut_steps`)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from cut_functions import MS, SCHEMA

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.data.rows import Row

_TURNS = 8  # polls for which a source waits until all rows of the other sources have arrived


class CutReader:
    def __init__(self, batches: Sequence[pa.RecordBatch], waits: int = 0) -> None:
        self._batches, self._at, self._waits = batches, 0, waits

    @property
    def finished(self) -> bool:
        return self._at == len(self._batches)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self._waits -= 1
        if self._waits >= 0:
            return None
        self._at += 1
        return Polled(self._batches[self._at - 1], now_ns)

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return str(self._at).encode()

    def seek(self, position: bytes) -> None:
        self._at = int(position)

    def close(self) -> None: ...


class CutSource:
    """The same rows in batches of these sizes. `waits`: number of polls without rows at the start."""

    schema = SCHEMA
    exactly_once = True

    def __init__(self, rows: Sequence[Row], sizes: Sequence[int], waits: int = 0) -> None:
        self._whole = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
        self._waits = waits
        self.cut(sizes)

    def cut(self, sizes: Sequence[int]) -> None:
        """For the next run."""
        starts = np.cumsum([0, *sizes])
        self.batches = [self._whole.slice(start, size) for start, size in zip(starts.tolist(), sizes, strict=False)]

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("all")]

    def reader(self, split: Split) -> CutReader:
        return CutReader(self.batches, self._waits)


OTHERS = [{"k": k, "t": t, "n": n} for n, (k, t) in enumerate([("a", 990), ("b", 1_000), ("a", 1_030), ("c", 1_060)])]


class Bench:
    """Parts of a flow under test."""

    def __init__(self, rows: Sequence[Row], sizes: Sequence[int], disorder_ms: int) -> None:
        self.flow = Dataflow("cuts")
        self._bound = disorder_ms * MS
        self._rows = CutSource(rows, sizes, _TURNS)
        self.source = self.flow.source("rows", self._rows, event_time="t", max_out_of_orderness=self._bound)
        self.cut = self._rows.cut
        self._others = 0

    def other(self) -> Stream:
        self._others += 1
        source = CutSource(OTHERS, [len(OTHERS)])
        return self.flow.source(f"other-{self._others}", source, event_time="t", max_out_of_orderness=100 * MS)

    def beside(self, name: str, *streams: Stream) -> None:
        for number, stream in enumerate(streams):
            stream.sink(f"{name}.beside{number}", CollectSink())


Made = Callable[[Bench, Stream, str], Stream]


@dataclass(frozen=True)
class Step:
    """A step under test.

    `of`: public methods that the step tries. `in_order`: the rows' order is guaranteed. `by_order`: its rows
    depend on the order of input rows, not only on their times. `follows`: the step follows event time row by row.
    `makes_late`: rows may be late although no input row is. `merges`: inputs of the same source interleave in the
    step. `variant`: the step is tried only before and after some steps (`pairs`).
    """

    name: str
    make: Made
    of: tuple[str, ...]
    in_order: bool = True
    by_order: bool = False
    follows: bool = False
    makes_late: bool = False
    merges: bool = False
    variant: bool = False


STEPS: dict[str, Step] = {}


def step(*of: str, **how: Any) -> Callable[[Made], Made]:
    def added(make: Made) -> Made:
        STEPS[make.__name__] = Step(make.__name__, make, of, **how)
        return make

    return added
