"""The n largest and smallest values of a key, against plain Python."""

import datetime
import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.operators.aggregation.functions import Aggregate, count, largest, max_, smallest
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.operators.aggregation.everywhere import Row, check
from tests.drawn import examples

STEPS = ["running", "tumbling", "sliding", "session"]
NAN = float("nan")
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("i", pa.int64()),
        ("small", pa.int8()),
        ("x", pa.float64()),
        ("day", pa.date32()),
        ("on", pa.bool_()),
    ]
)
AGGREGATES: dict[str, Aggregate] = {
    "n": count("i"),
    "most": max_("i"),
    "high": largest("i", 3),
    "higher": largest("i", 1),
    "low": smallest("i", 4),
    "high_small": largest("small", 2),
    "high_x": largest("x", 3),
    "low_x": smallest("x", 3),
    "days": smallest("day", 2),
    "was_on": largest("on", 2),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "t": st.integers(0, 250),
            "i": st.none() | st.sampled_from([2**63 - 1, -(2**63), 2**53, 2**53 + 1]) | st.integers(-3, 3),
            "small": st.none() | st.integers(-128, 127),
            "x": st.none() | st.sampled_from([NAN, 0.0, -0.0, math.inf, -math.inf, 0.5, -0.5]),
            "day": st.none() | st.dates(datetime.date(1960, 1, 1), datetime.date(1960, 1, 9)),
            "on": st.none() | st.booleans(),
        }
    ),
    max_size=60,
)


def expected(rows: list[Row]) -> Row:
    known = {name: [row[name] for row in rows if row[name] is not None] for name in SCHEMA.names}
    floats = [value + 0.0 for value in known["x"]]  # -0.0 is 0.0
    rising = sorted((value for value in floats if not math.isnan(value)), key=float)
    rising += [value for value in floats if math.isnan(value)]
    return {
        "n": len(known["i"]),
        "most": max(known["i"], default=None),
        "high": sorted(known["i"], reverse=True)[:3],
        "higher": sorted(known["i"], reverse=True)[:1],
        "low": sorted(known["i"])[:4],
        "high_small": sorted(known["small"], reverse=True)[:2],
        "high_x": rising[::-1][:3],
        "low_x": rising[:3],
        "days": sorted(known["day"])[:2],
        "was_on": sorted(known["on"], reverse=True)[:2],
    }


@pytest.mark.parametrize("step", STEPS)
@examples(40)
@given(rows=ROWS, seed=st.integers(0, 2**32))
def test_extreme_values_equal_plain_python_in_every_step_over_cuts_and_restores(
    step: str, rows: list[Row], seed: int
) -> None:
    check(step, AGGREGATES, SCHEMA, rows, expected, seed)


@pytest.mark.parametrize(
    ("rising", "step"),
    [
        pytest.param(rising, step, marks=pytest.mark.slow if rising or step == "running" else ())
        for rising in (True, False)
        for step in STEPS
    ],
)
def test_keys_with_very_many_rows_beside_those_with_few(step: str, rising: bool) -> None:
    rng = np.random.default_rng(3)
    values = np.sort(rng.integers(-1_000, 1_000, 3_000))
    rows = [
        {
            "k": "a" if rng.random() < 0.6 else f"k{rng.integers(0, 300)}",
            "t": int(rng.integers(0, 250)),
            "i": int(value),
            "small": int(rng.integers(-9, 9)),
            "x": float(value),
            "day": datetime.date(2020, 1, 1) + datetime.timedelta(days=int(rng.integers(0, 9))),
            "on": None,
        }
        for value in (values if rising else values[::-1])
    ]
    check(step, AGGREGATES, SCHEMA, rows, expected, 11)


def test_equal_values_stand_there_as_often_as_they_come() -> None:
    flow, sink = Dataflow("bids"), CollectSink()
    prices = [{"auction": 1, "price": price} for price in (5, 7, 7, 6, 7)]
    bids = flow.from_iterator(
        "bids", lambda i, of: iter(prices if i == 0 else ()), schema={"auction": "int64", "price": "int64"}
    )
    bids.key_by("auction").aggregate("top", top=largest("price", 3), bottom=smallest("price", 2)).sink("out", sink)
    flow.run_local(parallelism=1)
    assert [row["top"] for row in sink.rows()] == [[5], [7, 5], [7, 7, 5], [7, 7, 6], [7, 7, 7]]
    assert [row["bottom"] for row in sink.rows()] == [[5], [5, 7], [5, 7], [5, 6], [5, 6]]


def test_what_has_no_order_of_one_number_is_refused_and_so_are_places_without_end() -> None:
    schema = pa.schema([("k", pa.string()), ("s", pa.string())])
    keyed = Dataflow("f").from_iterator("s", lambda i, n: iter(()), schema=schema).key_by("k")
    with pytest.raises(InvalidJob, match=r"top=largest\(s, limit=3\) cannot be computed of type string.*cast the"):
        keyed.aggregate("a", top=largest("s", 3))
    for n in (0, 101, True):
        with pytest.raises(InvalidJob, match=r"largest: .* is not a number of values to keep: give one from 1 to 100"):
            largest("x", n)
