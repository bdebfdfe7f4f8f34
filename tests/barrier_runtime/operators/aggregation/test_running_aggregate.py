"""Running aggregates against a plain model: every row's value, in order, for every mix of keys and batch sizes."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World

from barrier_runtime.data.grouping import group_rows, order_of_ints, stable_order
from barrier_runtime.operators.aggregation.functions import count, max_, mean, min_, sum_
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

AGGREGATES = {
    "n": count(),
    "nv": count("v"),
    "sv": sum_("v"),
    "sx": sum_("x"),
    "mx": mean("x"),
    "lo": min_("x"),
    "hi": max_("v"),
}
SCHEMA = pa.schema([("k", pa.int64()), ("g", pa.string()), ("v", pa.int64()), ("x", pa.float64())])


class Model:
    def __init__(self, keys: list[str]) -> None:
        self.keys = keys
        self.seen: dict[tuple[Any, ...], tuple[list[int], list[float], list[Any]]] = {}

    def feed(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        out = []
        for row in rows:
            v, x, every = self.seen.setdefault(tuple(row[key] for key in self.keys), ([], [], []))
            every.append(row)
            v += [row["v"]] if row["v"] is not None else []
            x += [row["x"]] if row["x"] is not None else []
            total = 0.0
            for value in x:
                total += value
            out.append(
                {
                    **row,
                    "n": len(every),
                    "nv": len(v),
                    "sv": sum(v) if v else None,
                    "sx": total if x else None,
                    "mx": total / len(x) if x else None,
                    "lo": min(x, default=None),
                    "hi": max(v, default=None),
                }
            )
        return out


def make(keys: list[str]) -> RunningAggregateOperator:
    return RunningAggregateOperator("r", keys, AGGREGATES)


ROW = st.fixed_dictionaries(
    {
        "k": st.one_of(st.none(), st.integers(-2, 3)),
        "g": st.sampled_from(["a", "b", None]),
        "v": st.one_of(st.none(), st.integers(-(2**50), 2**50)),
        "x": st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False, width=32)),
    }
)


@pytest.mark.slow
@examples(150)
@given(
    st.lists(st.lists(ROW, min_size=1, max_size=80), max_size=5),
    st.sampled_from([["k"], ["g"], ["g", "k"], ["k", "v"]]),
    st.data(),
)
def test_running_values_equal_a_row_by_row_model_also_over_a_restart(
    batches: list[list[dict[str, Any]]], keys: list[str], data: st.DataObject
) -> None:
    world, model = World(), Model(keys)
    driven = Driven(make(keys), world, name="r")
    for checkpoint, rows in enumerate(batches, 1):
        driven.feed(rows, SCHEMA)
        assert driven.take() == model.feed(rows)
        if data.draw(st.booleans()):
            snapshot = driven.snapshot(checkpoint)
            driven.operator.close()
            driven = Driven(make(keys), world, (snapshot,), name="r")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("keys", [1, 40, 70_000])
@pytest.mark.parametrize("columns", [["k"], ["k", "v"], ["v", "k", "g"]])
def test_large_batches_equal_the_model_with_one_some_and_very_many_keys(
    kind: Kind, keys: int, columns: list[str]
) -> None:
    random = np.random.default_rng(3)
    world, model = World(kind), Model(columns)
    driven = Driven(make(columns), world, name="r")
    for checkpoint in (1, 2):
        batch = pa.RecordBatch.from_pydict(
            {
                "k": pa.array(random.integers(0, keys, 1_200)),
                "g": pa.array([None] * 1_200, pa.string()),
                "v": pa.array(random.integers(-9, 9, 1_200)),
                "x": pa.array(random.random(1_200) * 10.0 ** random.integers(-8, 8, 1_200)),
            }
        )
        driven.feed(batch)
        assert driven.take() == model.feed(batch.to_pylist())
        snapshot = driven.snapshot(checkpoint)
        driven.operator.close()
        driven = Driven(make(columns), world, (snapshot,), name="r")
    driven.operator.close()


def test_a_float_sum_does_not_depend_on_what_other_keys_share_the_batch() -> None:
    driven = Driven(make(["k"]))
    row = {"g": None, "v": None}
    driven.feed([{**row, "k": 1, "x": 1e300}, {**row, "k": 2, "x": 0.1}, {**row, "k": 2, "x": 0.2}], SCHEMA)
    assert driven.rows[-1]["sx"] == 0.1 + 0.2


def test_one_key_may_have_nulls_in_some_batches_and_not_in_others() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"n": count()}))
    schema = pa.schema([("k", pa.int64())])
    driven.feed([{"k": 1}, {"k": 1}], schema)
    driven.feed([{"k": None}, {"k": 1}], schema)
    driven.feed([{"k": 1}], schema)
    assert [r["n"] for r in driven.rows] == [1, 2, 1, 3, 4]


def test_all_columns_pass_and_the_emission_time_stays() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"n": count()}))
    driven.feed([{"k": 1, "other": "x"}], emit_ns=3)
    assert driven.rows == [{"k": 1, "other": "x", "n": 1}]
    assert driven.batches[0].emit_ns == 3


def test_an_aggregate_named_as_a_column_of_the_rows_that_came_is_refused() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"v": count()}))
    with pytest.raises(InvalidJob, match="output column 'v' exists already"):
        driven.feed([{"k": 1, "v": 2}])


def test_a_batch_of_another_type_is_refused_with_both_types() -> None:
    driven = Driven(RunningAggregateOperator("r", ["k"], {"n": count()}))
    driven.feed([{"k": 1}])
    with pytest.raises(InvalidJob, match=r"made of \(k: int64\), but now its rows have \(k: string\)"):
        driven.feed([{"k": "1"}])


@examples(100)
@given(st.lists(st.integers(0, 2**32 - 1), max_size=3_000))
def test_the_radix_order_is_the_stable_order(values: list[int]) -> None:
    row_ids = np.array(values, np.int64)
    assert (stable_order(row_ids) == np.argsort(row_ids, kind="stable")).all()


@pytest.mark.parametrize("spread", [3, 70_000])
def test_the_radix_order_of_a_large_batch_is_stable(spread: int) -> None:
    row_ids = np.random.default_rng(1).integers(0, spread, 20_000)
    assert (stable_order(row_ids) == np.argsort(row_ids, kind="stable")).all()


@pytest.mark.parametrize("spread", [1, 5, 2**20, 2**62])
@pytest.mark.parametrize("rows", [0, 1, 900, 20_000])
def test_rows_are_ordered_by_several_columns_of_ints_first_column_first(rows: int, spread: int) -> None:
    random = np.random.default_rng(3)
    first, second, third = random.integers(-spread, spread, rows), random.integers(0, 4, rows), np.full(rows, -7)
    assert (order_of_ints([second, third, first]) == np.lexsort([first, third, second])).all()


def test_values_are_counted_in_slices_of_batches_with_nulls_and_without() -> None:
    """If every row of a batch has a value, the count of values equals the count of rows only for keys that never had a
    null.
    """
    random = np.random.default_rng(4)
    names = ("v", "w")
    driven = Driven(
        RunningAggregateOperator("r", ["k"], {"n": count(), **{f"n_{name}": count(name) for name in names}})
    )
    seen: dict[int, list[int]] = {}
    for nulls in (0, 0.3, 0, 0.9, 0):
        columns = {name: pa.array(random.integers(0, 9, 700), mask=random.random(700) < nulls) for name in names}
        batch = pa.record_batch({"k": pa.array(random.integers(0, 5, 700)), **columns}).slice(13, 650)
        driven.feed(batch)
        for row, came in zip(driven.take(), batch.to_pylist(), strict=True):
            counts = seen.setdefault(came["k"], [0, 0, 0])
            for at, value in enumerate((0, came["v"], came["w"])):
                counts[at] += value is not None
            assert [row["n"], row["n_v"], row["n_w"]] == counts


@pytest.mark.parametrize("rows", [5, 5_000])
def test_groups_are_numbered_by_first_appearance_in_small_and_large_batches(rows: int) -> None:
    random = np.random.default_rng(2)
    a = pa.array([None if v == 3 else f"s{v}" for v in random.integers(0, 5, rows)])
    b = pa.array([None if v == 3 else int(v) for v in random.integers(0, 50, rows)], pa.int64())
    same, null = pa.array(["the same"] * rows), pa.array([None] * rows, pa.int64())
    for columns in ([a, b], [same, b, null], [a, same], [same], [null, same], [b, same, a], [b]):
        groups = group_rows(columns)
        keys = list(zip(*[column.to_pylist() for column in columns], strict=True))
        assert groups.keys == list(dict.fromkeys(keys))
        assert [groups.keys[i] for i in groups.of_row.tolist()] == keys


@pytest.mark.parametrize("entries", [False, True])
def test_aggregates_of_a_column_may_change_places(entries: bool) -> None:
    """`entries`: not as segments, as evicted tables are written; their rows do not name their columns."""
    world = World()
    first = RunningAggregateOperator("r", ["k"], {"low": min_("x"), "high": max_("x")})
    driven = Driven(first, world, name="r")
    driven.feed([{"k": 1, "x": 3}, {"k": 1, "x": 9}])
    for checkpoint in (1, 2, 3):
        if entries:
            driven.operator._table._leave_segments()  # type: ignore[attr-defined]
        snapshot = driven.snapshot(checkpoint)
        driven.operator.close()
        aggregates = {"high": max_("x"), "low": min_("x")}
        if checkpoint == 2:
            aggregates = dict(reversed(aggregates.items()))
        driven = Driven(RunningAggregateOperator("r", ["k"], aggregates), world, (snapshot,), name="r")
        driven.feed([{"k": 1, "x": 5}])
        assert driven.rows == [{"k": 1, "x": 5, "low": 3, "high": 9}]
