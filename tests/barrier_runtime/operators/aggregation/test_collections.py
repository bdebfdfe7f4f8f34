"""Collected lists and sets and exact counts of distinct values, against plain Python."""

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.aggregation.functions import (
    Aggregate,
    collect_list,
    collect_set,
    count,
    count_distinct,
    max_,
)
from barrier_runtime.operators.aggregation.running import RunningAggregateOperator
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.operators.aggregation.everywhere import Row, Slots, check, operator_of
from tests.drawn import examples

STEPS = ["running", "tumbling", "sliding", "session"]
NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("raw", pa.binary()),
        ("d", pa.decimal128(20, 2)),
        ("day", pa.date32()),
    ]
)
AGGREGATES: dict[str, Aggregate] = {
    "n": count("i"),
    "list_i": collect_list("i", limit=3),
    "list_s": collect_list("s", limit=100),
    "list_x": collect_list("x", limit=4),
    "set_s": collect_set("s", limit=3),
    "set_x": collect_set("x", limit=2),
    "set_d": collect_set("d", limit=100),
    "set_day": collect_set("day", limit=100),
    "distinct_i": count_distinct("i"),
    "distinct_raw": count_distinct("raw"),
    "distinct_x": count_distinct("x"),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "t": st.integers(0, 250),
            "i": st.none() | st.sampled_from([2**63 - 1, -(2**63), 2**53, 2**53 + 1]) | st.integers(-2, 2),
            "x": st.none() | st.sampled_from([NAN, 0.0, -0.0, math.inf, 0.5]),
            "s": st.none() | st.sampled_from(["", "a", "a\0", "\U0001f600"]),
            "raw": st.none() | st.binary(max_size=2),
            "d": st.none() | st.integers(-(10**19), 10**19).map(lambda cents: Decimal(cents).scaleb(-2)),
            "day": st.none() | st.dates(datetime.date(1960, 1, 1), datetime.date(1960, 1, 9)),
        }
    ),
    max_size=40,
)


def distinct(values: list[Any]) -> list[Any]:
    """Returns the distinct values in order of first arrival; -0.0 equals 0.0, and all NaNs are equal."""
    found: dict[Any, Any] = {}
    for value in values:
        if isinstance(value, float):
            value = NAN if math.isnan(value) else value + 0.0
            found.setdefault(repr(value), value)
        else:
            found.setdefault(value, value)
    return list(found.values())


def expected(rows: list[Row]) -> Row:
    known = {name: [row[name] for row in rows if row[name] is not None] for name in SCHEMA.names}
    return {
        "n": len(known["i"]),
        "list_i": known["i"][:3],
        "list_s": known["s"][:100],
        "list_x": known["x"][:4],
        "set_s": distinct(known["s"])[:3],
        "set_x": distinct(known["x"])[:2],
        "set_d": [value.quantize(Decimal("0.01")) for value in distinct(known["d"])],
        "set_day": distinct(known["day"]),
        "distinct_i": len(set(known["i"])),
        "distinct_raw": len(set(known["raw"])),
        "distinct_x": len(distinct(known["x"])),
    }


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@examples(40)
@given(rows=ROWS, seed=st.integers(0, 2**32))
def test_collected_values_equal_plain_python_in_every_step_over_cuts_and_restores(
    step: str, rows: list[Row], seed: int
) -> None:
    check(step, AGGREGATES, SCHEMA, rows, expected, seed)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_many_keys_and_values_go_on_from_rocksdb(step: str) -> None:
    rng = np.random.default_rng(5)
    rows = [
        {
            "k": f"k{rng.integers(0, 30)}",
            "t": int(rng.integers(0, 250)),
            "i": int(rng.integers(0, 400)),
            "x": float(rng.integers(0, 5)),
            "s": f"s{rng.integers(0, 60)}",
            "raw": rng.bytes(1),
            "d": Decimal(int(rng.integers(0, 99))).scaleb(-2),
            "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=int(rng.integers(0, 9))),
        }
        for _ in range(1_500)
    ]
    check(step, AGGREGATES, SCHEMA, rows, expected, 7, "rocksdb")


@pytest.mark.parametrize("step", STEPS)
def test_one_distinct_value_too_many_ends_the_job_and_names_the_key_and_the_remedy(step: str) -> None:
    slots = Slots(step, {"n": count_distinct("v", limit=3)})
    slots.feed(pa.record_batch({"k": ["a"] * 5, "t": [0] * 5, "v": [1, 2, 3, 3, 1]}))
    message = r"count_distinct\('v'\) of key 'a' has more distinct values than its limit.*limit=.*approximate=True"
    with pytest.raises(InvalidJob, match=message):
        slots.feed(pa.record_batch({"k": ["b", "a"], "t": [0, 0], "v": [4, 4]}))


def test_sessions_that_have_too_many_distinct_values_together_end_the_job() -> None:
    slots = Slots("session", {"n": count_distinct("v", limit=3)})
    slots.feed(pa.record_batch({"k": ["a"] * 4, "t": [0, 0, 18, 18], "v": [1, 2, 3, 4]}))
    with pytest.raises(InvalidJob, match="of key 'a' has more distinct values"):
        slots.feed(pa.record_batch({"k": ["a"], "t": [9], "v": [1]}))


def test_a_higher_limit_of_distinct_values_goes_on_with_the_same_state() -> None:
    world = World()
    low = Driven(RunningAggregateOperator("r", ["k"], {"n": count_distinct("v", limit=2)}), world, name="r")
    low.feed([{"k": 1, "v": value} for value in (1, 2, 2)])
    snapshot = low.snapshot(1)
    low.operator.close()
    high = Driven(
        RunningAggregateOperator("r", ["k"], {"n": count_distinct("v", limit=5)}), world, (snapshot,), name="r"
    )
    high.feed([{"k": 1, "v": value} for value in (2, 3)])
    assert [row["n"] for row in high.rows] == [2, 3]


def test_sets_that_are_not_remembered_are_made_of_their_bytes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.operators.aggregation.kinds.collecting.REMEMBERED", 5)
    rows = [{"k": "ab"[n % 2], "t": 0, "v": str(n % 11)} for n in range(60)]
    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.string())])
    check("running", {"n": count_distinct("v")}, schema, rows, lambda its: {"n": len({row["v"] for row in its})}, 3)


def test_lists_have_the_type_of_their_column_with_its_time_zone() -> None:
    kind = pa.timestamp("us", "Europe/Berlin")
    times = pa.array([1_600_000_000_000_000, None, -1], kind)
    driven = Driven(operator_of("tumbling", {"list": collect_list("v", limit=9), "set": collect_set("v", limit=9)}))
    driven.feed(pa.record_batch({"k": [1, 1, 1], "t": [0, 0, 0], "v": times}))
    driven.watermark(1_000)
    (rows,) = (batch.rows for batch in driven.batches)
    assert rows.schema.field("list").type == rows.schema.field("set").type == pa.list_(kind)
    assert rows.column("list").to_pylist() == [[times[0].as_py(), times[2].as_py()]]


def test_columns_of_dictionaries_count_as_the_values_they_stand_for() -> None:
    kind = pa.dictionary(pa.int32(), pa.string())
    rows = [{"k": "a", "s": "x"}, {"k": "a", "s": "y"}, {"k": "a", "s": "x"}, {"k": "b", "s": None}]
    schema = pa.schema([("k", kind), ("s", kind)])
    flow, out = Dataflow("dictionaries"), CollectSink()
    keyed = flow.from_iterator("s", lambda i, of: rows[i::of], schema=schema).key_by("k")
    aggregates = {"most": max_("s"), "all": collect_set("s", limit=3), "n": count_distinct("s")}
    keyed.aggregate("r", **aggregates).sink("o", out)
    flow.run_local(parallelism=1)
    assert [(row["k"], row["most"], row["all"], row["n"]) for row in out.rows()] == [
        ("a", "x", ["x"], 1),
        ("a", "y", ["x", "y"], 2),
        ("a", "y", ["x", "y"], 2),
        ("b", None, [], 0),
    ]


@pytest.mark.parametrize("step", ["running", "tumbling"])
@pytest.mark.parametrize("kind", [pa.decimal32(7, 2), pa.decimal64(12, 2), pa.decimal128(12, 2)], ids=str)
def test_decimals_of_every_width_are_counted_and_collected(kind: pa.DataType, step: str) -> None:
    values = [Decimal("1.50"), None, Decimal("-2.25"), Decimal("1.50")]
    aggregates = {
        "n": count_distinct("v"),
        "all": collect_list("v", limit=10),
        "each": collect_set("v", limit=10),
    }
    driven = Driven(operator_of(step, aggregates))
    driven.feed(pa.record_batch({"k": ["a"] * 4, "t": [0] * 4, "v": pa.array(values, kind)}))
    driven.watermark(WATERMARK_MAX)
    row = driven.rows[-1]
    known = [values[0], values[2], values[3]]
    assert (row["n"], row["all"], row["each"]) == (2, known, known[:2])


def test_empty_and_null_only_groups_give_empty_lists_and_zero() -> None:
    driven = Driven(operator_of("running", AGGREGATES))
    driven.feed([], SCHEMA)
    driven.feed([{"k": "a", "t": 0}], SCHEMA)
    (row,) = driven.rows
    assert row["list_s"] == row["set_x"] == []
    assert row["distinct_i"] == 0


@pytest.mark.parametrize("limit", [0, -1, 1_000_001, 2.0, True])
def test_limits_that_are_none_are_refused(limit: Any) -> None:
    for made in (collect_list, collect_set, count_distinct):
        with pytest.raises(InvalidJob, match="give one from 1 to 1,000,000"):
            made("v", limit=limit)


def test_two_limits_for_one_count_are_refused() -> None:
    driven = Driven(operator_of("running", {"a": count_distinct("v", limit=2), "b": count_distinct("v", limit=3)}))
    with pytest.raises(InvalidJob, match=r"b=count_distinct\(v, limit=3\) has another limit"):
        driven.feed([{"k": 1, "v": 1}])
