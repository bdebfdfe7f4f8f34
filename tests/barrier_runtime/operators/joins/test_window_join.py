"""The window join against brute force: all kinds, tumbling and sliding windows, late rows, restores elsewhere."""

import random
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.joins.interval import JOIN_KINDS, JoinKind, WindowJoinOperator
from barrier_runtime.operators.windows.assigners import Sliding, Tumbling, WindowAssigner
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.operator_harness import Driven
from tests.barrier_runtime.operators.joins.joined import EPOCH, MS, Row, Subtasks, play, random_events, sides
from tests.drawn import examples

LEFT, RIGHT = sides()
WINDOWS = (Tumbling(10 * MS), Tumbling(25 * MS, 5 * MS), Sliding(30 * MS, 10 * MS), Sliding(10 * MS, 10 * MS))


def operator(window: WindowAssigner, how: JoinKind, late: bool = True) -> WindowJoinOperator:
    return WindowJoinOperator("j", LEFT, RIGHT, window, how, late=late)


def in_windows(window: WindowAssigner, row: Row, watermark: int) -> list[tuple[int, Row]]:
    """Returns (start, row) for each window of the row that is not over."""
    _, starts = window.assign(np.array([row["t"]]))
    return [(start, row) for start in starts.tolist() if start + window.size_ms - 1 > watermark]


def brute_force(placed: list[list[tuple[int, Row]]], how: str) -> list[tuple[int, Any, Any]]:
    lefts, rights = placed
    pairs = [
        (start, left, right)
        for start, left in lefts
        for its, right in rights
        if start == its and left["k"] is not None and left["k"] == right["kk"]
    ]
    met = {(start, id(row)) for start, *pair in pairs for row in pair}
    alone: list[tuple[int, Any, Any]] = [(start, row, None) for start, row in lefts if (start, id(row)) not in met]
    if how == "semi":
        return [(start, row, None) for start, row in lefts if (start, id(row)) in met]
    if how == "anti":
        return alone
    found: list[tuple[int, Any, Any]] = list(pairs)
    found += alone if how in ("left", "full") else []
    rest = [(start, None, row) for start, row in rights if (start, id(row)) not in met]
    return found + (rest if how in ("right", "full") else [])


def out(start: int, left: Row | None, right: Row | None, how: str, window: WindowAssigner) -> tuple[Any, ...]:
    key = left["k"] if left else right["kk"] if right else None
    bounds = (EPOCH + start * MS, EPOCH + (start + window.size_ms) * MS)
    one = (left["t"], left["a"]) if left else (None, None)
    if how in ("semi", "anti"):
        return (key, *bounds, *one)
    return (key, *bounds, *one, *((right["t"], right["b"]) if right else (None, None)))


def check(seed: int, how: JoinKind, window: WindowAssigner, keys: int, disorder: int, restarts: int) -> None:
    rng = random.Random(seed)
    events = random_events(rng, rng.choice([0, 20, 150]), keys, disorder, rng.choice([0, 1, 7]))
    subtasks = Subtasks(lambda: operator(window, how), (LEFT, RIGHT), rng.randint(1, 3))
    placed: list[list[tuple[int, Row]]] = [[], []]
    late: list[tuple[int, int]] = []
    told_late: list[tuple[int, int]] = []
    got: list[tuple[Any, ...]] = []
    watermark = told = WATERMARK_MIN
    for what, value in play(rng, subtasks, events, disorder, restarts):
        if what == "fed":
            port, row, _ = value
            open_windows = in_windows(window, row, watermark)
            placed[port] += open_windows
            late += [] if open_windows else [(port, row.get("a", row.get("b")))]
        elif what in ("rows", "fired"):
            rows, watermark = value
            got += [tuple(row.values()) for row in rows]
            times = [row[column] for row in rows for column in ("t", "t_right") if row.get(column) is not None]
            assert all(time > told for time in times), "a row is late for its successor"
            if WATERMARK_MIN < watermark < WATERMARK_MAX:
                told = max(told, watermark - window.size_ms + 1)
        elif what == "late":
            told_late += [(0, row["a"]) for row in value[0]] + [(1, row["b"]) for row in value[1]]
        else:
            assert value == (0, 0)
    assert Counter(got) == Counter(out(*found, how, window) for found in brute_force(placed, how))
    assert sorted(told_late) == sorted(late)


@pytest.mark.slow
@examples(100)
@given(
    seed=st.integers(0, 2**32),
    how=st.sampled_from(JOIN_KINDS),
    window=st.sampled_from(WINDOWS),
    keys=st.sampled_from([1, 3, 40]),
    disorder=st.sampled_from([0, 10, 100]),
    restarts=st.integers(0, 3),
)
def test_a_window_join_equals_brute_force(
    seed: int, how: JoinKind, window: WindowAssigner, keys: int, disorder: int, restarts: int
) -> None:
    """Holds for any order, batch borders, watermarks, restarts and parallelism; all other rows are late rows;
    no row is late for the next step; no row is held at the end.
    """
    check(seed, how, window, keys, disorder, restarts)


@pytest.mark.slow
@pytest.mark.parametrize("how", JOIN_KINDS)
def test_each_kind_of_window_join_equals_brute_force(how: JoinKind) -> None:
    for seed in range(8):
        check(seed, how, WINDOWS[seed % len(WINDOWS)], 3, 10, 2)


def test_a_row_without_a_partner_goes_out_when_its_window_is_over() -> None:
    it = Driven(operator(Tumbling(10 * MS), "full"))
    it.feed([{"k": "k", "t": 12, "a": 1}], LEFT.schema, port=0)
    it.feed([{"kk": "k", "t": 9, "b": 2}], RIGHT.schema, port=1)
    it.watermark(18)
    assert [row["b"] for row in it.take()] == [2]
    it.watermark(19)
    assert [(row["window_start"], row["window_end"], row["a"]) for row in it.rows] == [
        (EPOCH + 10 * MS, EPOCH + 20 * MS, 1)
    ]


def test_columns_called_like_the_bounds_of_the_window_need_other_suffixes() -> None:
    schema = LEFT.schema.append(pa.field("window_start", pa.int64()))
    side = type(LEFT)(LEFT.keys, "t", schema)
    with pytest.raises(InvalidJob, match="column 'window_start' would be there twice: give suffix="):
        WindowJoinOperator("j", side, RIGHT, Tumbling(10 * MS))
    it = WindowJoinOperator("j", side, RIGHT, Tumbling(10 * MS), suffix=("_left", "_right"))
    assert it._columns.schema.names == [
        "k", "window_start", "window_end", "t_left", "a", "window_start_left", "t_right", "b",
    ]  # fmt: skip


def test_times_beyond_all_windows_are_refused() -> None:
    it = Driven(operator(Tumbling(10 * MS), "inner"))
    with pytest.raises(InvalidJob, match=r"window_join 'j': the event times .* are in windows beyond 64 bits"):
        it.feed([{"k": "k", "t": 2**63 - 5, "a": 1}], LEFT.schema, port=0)
