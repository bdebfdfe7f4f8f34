"""Runs the same aggregates as running aggregates, in tumbling and sliding windows, and in sessions, over restarts and
at other parallelisms. Each result is compared with a plain function of the rows of a key or window in arrival order.
"""

import datetime
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from operator_harness import Driven, Kind, World
from window_operators import aggregating

from barrier_runtime.coordinator.checkpoints.checkpoint import disagreement
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.windows.assigners import Session, Sliding, Tumbling

MS = datetime.timedelta(milliseconds=1)
SIZE, GAP = 100, 10
Row = dict[str, Any]
Expected = Callable[[list[Row]], Row]


def operator_of(step: str, aggregates: Mapping[str, Any], schema: pa.Schema | None = None) -> Operator:
    """`step`: running, tumbling, sliding or session. `schema`: schema of the rows, if the flow knows the schema."""
    if step == "running":
        return RunningAggregateOperator("a", ["k"], aggregates, schema)
    if step == "session":
        return aggregating("a", ["k"], Session(GAP * MS), "t", aggregates, schema)
    window = Tumbling(SIZE * MS) if step == "tumbling" else Sliding(SIZE * MS, SIZE // 4 * MS)
    return aggregating("a", ["k"], window, "t", aggregates, schema)


class Slots:
    """Subtasks side by side, which are restored at other parallelisms."""

    def __init__(
        self, step: str, aggregates: Mapping[str, Any], kind: Kind = "memory", schema: pa.Schema | None = None
    ) -> None:
        self._step, self.aggregates, self._kind, self._schema = step, aggregates, kind, schema
        self._shared = World(kind)
        self._checkpoint = 0
        self._open(1, ())

    def _open(self, parallelism: int, snapshots: Sequence[Any]) -> None:
        self.subtasks = []
        for subtask in range(parallelism):
            world = World(self._kind, subtask, parallelism)
            world.store, world._numbers = self._shared.store, self._shared._numbers
            world.directory = Path(self._shared.directory) / f"{self._checkpoint}-{subtask}"
            made = operator_of(self._step, self.aggregates, self._schema)
            self.subtasks.append(Driven(made, world, tuple(snapshots), name="a"))

    def rescale(self, parallelism: int, entries: bool = False) -> None:
        """Continues with `aggregates`, which may have changed. `entries`: convert segments into entries first."""
        self._checkpoint += 1
        if entries:
            for it in self.subtasks:
                table = getattr(it.operator, "_table", None)  # None before the first row if types are not declared
                if table is not None and table._in_segments:  # as the table leaves segments by itself
                    table._leave_segments()
        snapshots = [it.snapshot(self._checkpoint) for it in self.subtasks]
        assert not disagreement(snapshots)
        self.close()
        self._open(parallelism, snapshots)

    def feed(self, rows: pa.RecordBatch, as_list: bool = False) -> None:
        parts = hash_partition(Batch(rows, 0), ("k",), len(self.subtasks), 128) if len(self.subtasks) > 1 else None
        for subtask, part in parts if parts is not None else [(0, Batch(rows, 0))]:
            it, few = self.subtasks[subtask], FewRows.of(part.rows) if as_list else None
            it.operator.process(part if few is None else Batch(few, 0), it._emit)

    def take(self) -> list[Row]:
        return [row for it in self.subtasks for row in it.take()]

    def finish(self) -> list[Row]:
        for it in self.subtasks:
            it.watermark(WATERMARK_MAX)
        return self.take()

    def close(self) -> None:
        for it in self.subtasks:
            it.operator.close()


def model(step: str, rows: list[Row], expected: Expected) -> list[Any]:
    """Returns the results of all `rows`, in any order."""
    if step == "running":
        seen: dict[Any, list[Row]] = defaultdict(list)
        out = []
        for row in rows:
            seen[row["k"]].append(row)
            out.append((row["k"], row["t"], expected(seen[row["k"]])))
        return out
    if step == "session":
        sessions: dict[Any, list[tuple[int, int, list[Row]]]] = defaultdict(list)
        for row in rows:
            t, its = row["t"], sessions[row["k"]]
            touching = sorted((each for each in its if each[0] - GAP <= t <= each[1] + GAP), key=lambda each: each[0])
            held = [each for session in touching for each in session[2]]
            first = min([t, *(each[0] for each in touching)])
            last = max([t, *(each[1] for each in touching)])
            sessions[row["k"]] = [*(each for each in its if each not in touching), (first, last, [*held, row])]
        return [(k, first, expected(held)) for k, its in sessions.items() for first, _, held in its]
    slide = SIZE if step == "tumbling" else SIZE // 4
    windows: dict[tuple[Any, int], list[Row]] = defaultdict(list)
    for row in rows:
        for start in range(row["t"] // slide * slide, row["t"] - SIZE, -slide):
            windows[row["k"], start].append(row)
    return [(k, start, expected(held)) for (k, start), held in windows.items()]


def check(
    step: str,
    aggregates: Mapping[str, Any],
    schema: pa.Schema,
    rows: list[Row],
    expected: Expected,
    seed: int,
    kind: Kind = "memory",
) -> None:
    """`schema` has columns k and t (ms). Cuts, restarts, parallelisms and lists in place of Arrow: drawn by `seed`."""
    rng = random.Random(seed)
    slots, got, left = Slots(step, aggregates, kind), [], list(rows)
    while left:
        cut = rng.choice([1, 2, rng.randint(1, len(left)), len(left)])
        part, left = left[:cut], left[cut:]
        arrays = [pa.array([row[field.name] for row in part], field.type) for field in schema]
        slots.feed(pa.RecordBatch.from_arrays(arrays, schema=schema), as_list=rng.random() < 0.5)
        got += slots.take()
        if rng.random() < 0.4:
            slots.rescale(rng.choice([1, 1, 2, 3]), entries=rng.random() < 0.5)
    got += slots.finish()
    slots.close()

    def told(row: Row) -> tuple[Any, int, Row]:
        epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
        at = row["t"] if step == "running" else (row["window_start"] - epoch) // MS
        return row["k"], at, {name: row[name] for name in aggregates}

    assert sorted(map(repr, map(told, got))) == sorted(map(repr, model(step, rows, expected)))
