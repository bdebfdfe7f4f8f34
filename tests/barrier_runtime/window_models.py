"""A window operator against a row-by-row model: actions applied to both, and comparison of rows."""

import datetime
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st
from operator_harness import Slots

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.windows.operator import LATE

Rows = list[dict[str, Any]]
Action = tuple[str, Any]

_MS = datetime.timedelta(milliseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


class Model(Protocol):
    watermark: int

    def feed(self, each: dict[str, Any], reached: int = WATERMARK_MIN) -> None: ...

    def advance(self, watermark: int) -> None: ...


def plain(rows: Rows) -> Rows:
    """Times in milliseconds."""
    for each in rows:
        for name in {"window_start", "window_end"} & each.keys():
            each[name] = (each[name] - _EPOCH) // _MS
    return rows


def late_rows(slots: Slots) -> Rows:
    rows = [row for driven in slots.driven for batch in driven.side[LATE] for row in batch.rows.to_pylist()]
    for driven in slots.driven:
        driven.side[LATE].clear()
    return rows


def actions_of(row: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[Action]:
    """Draws actions: rows with the steps of their watermarks, which "told rows" applies within the batch, watermarks,
    and restarts with a parallelism.
    """
    return st.one_of(
        st.tuples(st.just("rows"), st.lists(st.tuples(row, st.just(0)), min_size=1, max_size=15)),
        st.tuples(st.just("told rows"), st.lists(st.tuples(row, st.integers(0, 12)), min_size=1, max_size=25)),
        st.tuples(st.just("watermark"), st.integers(-60, 90)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    )


def driven_beside(
    model: Model, slots: Slots, actions: list[Action], schema: pa.Schema
) -> tuple[Slots, Rows, Rows, bool]:
    """Runs both to the end of time. Returns the slots, results, late rows, and whether a single slot ran throughout."""
    got, late, parallelism = [], [], {slots.parallelism}
    for checkpoint, (action, argument) in enumerate([*actions, ("watermark", WATERMARK_MAX)], 1):
        if action == "restart":
            got += slots.take()
            late += late_rows(slots)
            slots = slots.rescaled(checkpoint, argument)
            parallelism.add(argument)
        elif action == "watermark":
            slots.watermarks(*[argument] * slots.parallelism)
            model.advance(argument)
        else:
            steps = np.cumsum([step for _, step in argument]) + max(model.watermark, -60)
            reached = steps if action == "told rows" else None
            slots.feed([each for each, _ in argument], schema, reached)
            for (each, _), at in zip(argument, steps.tolist(), strict=True):
                model.feed(each, at if reached is not None else WATERMARK_MIN)
            if reached is not None:
                slots.watermarks(*[int(reached[-1])] * slots.parallelism)
                model.advance(int(reached[-1]))
    return slots, plain(got + slots.take()), late + late_rows(slots), parallelism == {1}
