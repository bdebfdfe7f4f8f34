"""The as-of join against `pandas.merge_asof`: rows in any order within the watermark, restores elsewhere."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.joins.as_of import AsOfJoinOperator, AsOfKind
from tests.barrier_runtime.operator_harness import Driven, Kind, World
from tests.barrier_runtime.operators.joins.joined import MS, Event, Row, Subtasks, play, random_events, sides
from tests.drawn import examples

LEFT, RIGHT = sides()


def operator(
    tolerance: int | None = None, exact: bool = True, how: AsOfKind = "left", late: bool = True
) -> AsOfJoinOperator:
    return AsOfJoinOperator("j", LEFT, RIGHT, None if tolerance is None else tolerance * MS, exact, how, late=late)


def by_pandas(events: list[Event], tolerance: int | None, exact: bool) -> list[tuple[Any, ...]]:
    """(k, t, a, t_right, b) of all left rows; rows in the order in which they came."""
    lefts = pd.DataFrame([row for port, row in events if port == 0], columns=["k", "t", "a"])
    rights = pd.DataFrame([row for port, row in events if port == 1], columns=["kk", "t", "b"])
    rights = rights[rights["kk"].notna()].assign(t_right=lambda frame: frame["t"])
    keyed = lefts[lefts["k"].notna()]
    alone = [(None, row["t"], row["a"], None, None) for port, row in events if port == 0 and row["k"] is None]
    if not len(keyed):
        return alone
    if not len(rights):
        return alone + [(row.k, row.t, row.a, None, None) for row in keyed.itertuples()]
    merged = pd.merge_asof(
        keyed.astype({"t": "int64"}).sort_values("t", kind="stable"),
        rights.astype({"t": "int64"}).sort_values("t", kind="stable"),
        on="t", left_by="k", right_by="kk", tolerance=tolerance, allow_exact_matches=exact,
    )  # fmt: skip
    none = lambda value: None if pd.isna(value) else int(value)  # noqa: E731
    return alone + [(row.k, row.t, row.a, none(row.t_right), none(row.b)) for row in merged.itertuples()]


def check(
    seed: int, tolerance: int | None, exact: bool, how: AsOfKind, keys: int, disorder: int, restarts: int
) -> None:
    rng = random.Random(seed)
    events = random_events(rng, rng.choice([0, 20, 150]), keys, disorder, rng.choice([0, 1, 7]))
    subtasks = Subtasks(lambda: operator(tolerance, exact, how), (LEFT, RIGHT), rng.randint(1, 3))
    in_time: list[Event] = []
    late: list[tuple[int, int]] = []
    told_late: list[tuple[int, int]] = []
    got: list[tuple[Any, ...]] = []
    told = WATERMARK_MIN
    for what, value in play(rng, subtasks, events, disorder, restarts):
        if what == "fed":
            port, row, on_time = value
            if on_time:
                in_time.append((port, row))
            else:
                late.append((port, row.get("a", row.get("b"))))
        elif what in ("rows", "fired"):
            rows, watermark = value
            got += [tuple(row.values()) for row in rows]
            assert all(row["t"] > told for row in rows), "a row is late for its successor"
            assert what == "fired" or all(row["k"] is None for row in rows)
            if watermark < WATERMARK_MAX:
                told = max(told, watermark)
        elif what == "late":
            told_late += [(0, row["a"]) for row in value[0]] + [(1, row["b"]) for row in value[1]]
        else:
            assert value == (0, 0)
    wanted = [row for row in by_pandas(in_time, tolerance, exact) if how == "left" or row[-1] is not None]
    assert Counter(got) == Counter(wanted)
    assert sorted(told_late) == sorted(late)


@pytest.mark.slow
@examples(150)
@given(
    seed=st.integers(0, 2**32),
    tolerance=st.sampled_from([None, 0, 5, 100]),
    exact=st.booleans(),
    how=st.sampled_from(["left", "inner"]),
    keys=st.sampled_from([1, 3, 40]),
    disorder=st.sampled_from([0, 10, 100]),
    restarts=st.integers(0, 3),
)
def test_an_as_of_join_equals_pandas(
    seed: int, tolerance: int | None, exact: bool, how: AsOfKind, keys: int, disorder: int, restarts: int
) -> None:
    """Holds for any order, batch borders, watermarks, restarts and parallelism; all other rows are late rows;
    no row is held at the end.
    """
    if tolerance == 0 and not exact:
        tolerance = 1  # pandas refuses a tolerance of 0 that matches nothing
    check(seed, tolerance, exact, how, keys, disorder, restarts)


@pytest.mark.slow
def test_some_as_of_joins_equal_pandas() -> None:
    for seed in range(24):
        check(seed, (None, 5, 50)[seed % 3], seed % 2 == 0, "left" if seed % 5 else "inner", 3, 10, 2)


def left(key: str, time: int, number: int = 0) -> Row:
    return {"k": key, "t": time, "a": number}


def right(key: str, time: int, number: int = 0) -> Row:
    return {"kk": key, "t": time, "b": number}


def feed(it: Driven, port: int, *rows: Row) -> None:
    it.feed(list(rows), (LEFT, RIGHT)[port].schema, port=port)


def held(it: Driven) -> tuple[int, int]:
    assert isinstance(it.operator, AsOfJoinOperator)
    return it.operator.held


def test_a_left_row_waits_for_the_watermark_to_pass_its_time() -> None:
    it = Driven(operator())
    feed(it, 1, right("k", 3, 1))
    feed(it, 0, left("k", 10))
    it.watermark(9)
    assert it.rows == []
    feed(it, 1, right("k", 10, 2))
    it.watermark(10)
    assert [row["b"] for row in it.rows] == [2]


def test_of_versions_of_one_time_the_one_that_came_last_counts() -> None:
    it = Driven(operator())
    feed(it, 1, right("k", 3, 1), right("k", 3, 2))
    feed(it, 1, right("k", 3, 3))
    feed(it, 0, left("k", 3))
    it.watermark(3)
    assert [row["b"] for row in it.rows] == [3]


def test_versions_that_nothing_can_need_are_removed_also_for_keys_without_new_rows() -> None:
    it = Driven(operator(tolerance=20))
    feed(it, 1, right("quiet", 1), right("quiet", 2), right("k", 5), right("k", 8), right("k", 30))
    it.watermark(8)
    assert held(it) == (0, 3)  # the newest row of each key up to 8, and the row at 30
    it.watermark(22)
    assert held(it) == (0, 2)  # quiet: older than 22 + 1 - 20 = 3
    it.watermark(49)
    assert held(it) == (0, 1)
    it.watermark(50)
    assert held(it) == (0, 0)


def test_without_a_tolerance_the_newest_version_of_a_key_is_kept() -> None:
    it = Driven(operator())
    for time in range(100):
        feed(it, 1, *[right(f"k{key}", time, time) for key in range(10)])
        it.watermark(time)
        assert held(it) == (0, 10)
    feed(it, 0, left("k3", 1_000))
    it.watermark(1_000)
    assert [row["b"] for row in it.rows] == [99]


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_left_rows_and_versions_are_there_after_a_restore(kind: Kind) -> None:
    world = World(kind)
    it = Driven(operator(), world)
    feed(it, 1, right("k", 1, 1), right("k", 2, 2))
    feed(it, 0, left("k", 10, 7))
    it.watermark(5)
    snapshot = it.snapshot(1)
    it.operator.close()
    it = Driven(operator(), world, (snapshot,))
    assert held(it) == (1, 1)
    it.watermark(WATERMARK_MAX)
    assert [(row["a"], row["b"]) for row in it.rows] == [(7, 2)]
    it.operator.close()


def test_late_versions_are_counted() -> None:
    it = Driven(operator(late=False))
    it.watermark(10)
    feed(it, 1, right("k", 10), right("k", 11))
    feed(it, 0, left("k", 10), left("k", 12))
    assert it.world.metrics.counts["late_right_rows"] == 1
    assert it.world.metrics.counts["late_left_rows"] == 1


def test_rows_of_one_watermark_go_out_in_the_order_of_time() -> None:
    it = Driven(operator())
    feed(it, 0, left("a", 5), left("b", 3))
    feed(it, 0, left("a", 4), left("b", 1))
    it.watermark(5)
    assert [row["t"] for row in it.rows] == [1, 3, 4, 5]


def test_microseconds_are_compared_exactly() -> None:
    of = sides(time=pa.timestamp("us"))
    it = Driven(AsOfJoinOperator("j", *of, timedelta(microseconds=10), True))
    it.feed([{"kk": "k", "t": time, "b": time} for time in (1_000, 1_005, 1_006)], of[1].schema, port=1)
    it.feed([{"k": "k", "t": time, "a": time} for time in (1_005, 1_016, 1_017, 999)], of[0].schema, port=0)
    it.watermark(1)
    assert [(row["a"], row["b"]) for row in it.rows] == [(999, None), (1_005, 1_005), (1_016, 1_006), (1_017, None)]
