"""Sketches are exact for small inputs, within bounds for large ones, and independent of batch borders and restores."""

import collections
import math
import random
import sys
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven

from barrier_runtime import Dataflow
from barrier_runtime.operators.aggregation.functions import Aggregate, count_distinct, quantile, quantiles, top_k
from barrier_runtime.operators.aggregation.kinds import sketches
from barrier_runtime.operators.aggregation.kinds.cells import EncodedValues
from barrier_runtime.operators.aggregation.kinds.sketches import (
    DistinctSketch,
    FrequentSketch,
    QuantileSketch,
    quantiles_of,
)
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.operators.aggregation.everywhere import Row, Slots, check, operator_of
from tests.drawn import examples

STEPS = ["running", "tumbling", "sliding", "session"]
RANKS = [0.0, 0.25, 0.5, 0.99, 1.0]
SCHEMA = pa.schema(
    [
        ("k", pa.string()),
        ("t", pa.int64()),
        ("i", pa.int64()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("d", pa.decimal128(20, 2)),
        ("on", pa.bool_()),
    ]
)
AGGREGATES: dict[str, Aggregate] = {
    "users": count_distinct("s", approximate=True),
    "numbers": count_distinct("x", approximate=True),
    "decimals": count_distinct("d", approximate=True),
    "median": quantile("x", 0.5),
    "spread": quantiles("x", RANKS),
    "of_decimals": quantile("d", 0.25),
    "frequent": top_k("s", 2),
    "frequent_x": top_k("x", 1),
    "frequent_on": top_k("on", 9),
}
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "k": st.sampled_from(["a", "b", None]),
            "t": st.integers(0, 250),
            "i": st.none() | st.integers(-3, 3),
            "x": st.none() | st.sampled_from([float("nan"), 0.0, -0.0, math.inf, -math.inf, 0.5, 2.0**53]),
            "s": st.none() | st.sampled_from(["", "a", "a\0", "\U0001f600", "\xff"]),
            "d": st.none() | st.integers(-(10**18), 10**18).map(lambda cents: Decimal(cents).scaleb(-2)),
            "on": st.none() | st.booleans(),
        }
    ),
    max_size=40,
)


def nearest(values: list[Any], rank: float) -> float | None:
    values = sorted(float(value) for value in values if not math.isnan(value))
    return values[max(0, math.ceil(rank * len(values)) - 1)] if values else None


def most(values: list[Any], k: int, order: Any) -> list[Row]:
    counts = collections.Counter(values)
    ordered = sorted(counts, key=lambda value: (-counts[value], order(value)))
    return [{"value": value, "count": counts[value]} for value in ordered[:k]]


def expected(rows: list[Row]) -> Row:
    known = {name: [row[name] for row in rows if row[name] is not None] for name in SCHEMA.names}
    plain = [float("nan") if math.isnan(value) else value + 0.0 for value in known["x"]]
    encoded = EncodedValues(pa.string())
    by_bytes = {value: pa.array([value]).cast(pa.binary())[0].as_py() for value in known["s"]}
    assert encoded.kind == pa.string()
    nan_is_one = ["nan" if math.isnan(value) else value for value in plain]
    return {
        "users": len(set(known["s"])),
        "numbers": len(set(nan_is_one)),
        "decimals": len(set(known["d"])),
        "median": nearest(plain, 0.5),
        "spread": [nearest(plain, rank) for rank in RANKS],
        "of_decimals": nearest(known["d"], 0.25),
        "frequent": most(known["s"], 2, lambda value: (len(by_bytes[value]), by_bytes[value])),
        "frequent_x": [
            {"value": float(each["value"]), "count": each["count"]}
            for each in most(nan_is_one, 1, lambda value: np.float64(value).tobytes())
        ],
        "frequent_on": most(known["on"], 9, int),
    }


@pytest.mark.parametrize("step", STEPS)
@examples(40)
@given(rows=ROWS, seed=st.integers(0, 2**32))
def test_results_for_few_values_are_exact_in_every_step_over_cuts_and_restores(
    step: str, rows: list[Row], seed: int
) -> None:
    check(step, AGGREGATES, SCHEMA, rows, expected, seed)


KINDS = [
    DistinctSketch("v", EncodedValues(pa.int64(), distinct=True)),
    QuantileSketch("v"),
    FrequentSketch("v", EncodedValues(pa.int64(), distinct=True)),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("spread", [50, 900, 60_000])
def test_the_bytes_of_a_state_do_not_depend_on_how_often_it_was_closed_and_opened(kind: Any, spread: int) -> None:
    rng = random.Random(spread)
    numbers = [int(rng.paretovariate(0.5)) % spread for _ in range(6_000)]
    values: list[Any] = [float(each) if isinstance(kind, QuantileSketch) else str(each) for each in numbers]
    results = []
    for cuts in ([6_000], [1, 4_000, 1_999], [7] * 857 + [1]):
        cell, at = b"", 0
        for cut in cuts:
            cell = kind.closed(kind.add(kind.opened(cell), values[at : at + cut]))
            at += cut
        results.append(read_all(kind, cell))
    assert results[0] == results[1] == results[2]


def read_all(kind: Any, cell: bytes) -> Any:
    state = kind.opened(cell)
    if isinstance(kind, DistinctSketch):
        return state.get_estimate()
    if isinstance(kind, QuantileSketch):
        return quantiles_of(state, [each / 100 for each in range(101)])
    return sorted(state.get_frequent_items(sketches._library().NO_FALSE_NEGATIVES, 0))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 7])
def test_estimates_of_many_values_are_within_their_bounds_also_merged(parts: int) -> None:
    rng = np.random.default_rng(3)
    numbers = (rng.pareto(1.0, 60_000) * 300).astype(np.int64)
    cells: dict[int, bytes] = {}
    for at, kind in enumerate(KINDS):
        for part in np.array_split(numbers, parts):
            values: Any = [float(each) for each in part] if at == 1 else [as_characters(each) for each in part]
            new = kind.closed(kind.add(kind.opened(b""), values))
            cells[at] = kind.merged(cells[at], new) if at in cells else new
    distinct = len(np.unique(numbers))
    assert abs(KINDS[0].opened(cells[0]).get_estimate() - distinct) < 0.06 * distinct  # nearly four standard errors
    ordered = np.sort(numbers)
    for rank in (0.01, 0.1, 0.5, 0.9, 0.99, 0.999):
        (found,) = quantiles_of(KINDS[1].opened(cells[1]), [rank])  # type: ignore[arg-type]
        below, up_to = np.searchsorted(ordered, [found, found], "left")[0], np.searchsorted(ordered, found, "right")
        assert below / len(ordered) - 0.025 <= rank <= up_to / len(ordered) + 0.025
    counts = collections.Counter(map(int, numbers))
    found_most = sketches.most_frequent(KINDS[2].opened(cells[2]), 5)
    assert [int.from_bytes(value, "little", signed=True) for value, _ in found_most] == [
        value for value, _ in counts.most_common(5)
    ]
    for value, number in found_most:
        true = counts[int.from_bytes(value, "little", signed=True)]
        assert true <= number <= true + 0.0035 * len(numbers)


def as_characters(value: Any) -> str:
    return int(value).to_bytes(8, "little", signed=True).decode("latin-1")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["tumbling", "session"])
def test_sketches_of_many_values_continue_at_other_parallelisms_without_a_trace(step: str) -> None:
    rng = np.random.default_rng(8)
    batches = [
        pa.record_batch(
            {
                "k": pa.array([f"k{each}" for each in rng.integers(0, 3, 2_000)]),
                "t": pa.array(rng.integers(0, 60, 2_000)),
                "v": pa.array(rng.integers(0, 5_000, 2_000)),
                "x": pa.array(rng.random(2_000)),
            }
        )
        for _ in range(6)
    ]
    aggregates = {
        "n": count_distinct("v", approximate=True),
        "q": quantiles("x", [0.1, 0.5, 0.9]),
        "top": top_k("v", 3),
    }

    def run(rescales: list[int]) -> list[str]:
        slots = Slots(step, aggregates)
        for batch, parallelism in zip(batches, rescales, strict=True):
            slots.feed(batch)
            if parallelism:
                slots.rescale(parallelism, entries=parallelism == 3)
        out = sorted(map(repr, slots.finish()))
        slots.close()
        return out

    assert run([0] * 6) == run([2, 3, 1, 2, 0, 3])


def test_a_state_of_a_newer_layout_is_refused() -> None:
    for kind in KINDS:
        cell = kind.closed(kind.add(kind.opened(b""), ["1"] if not isinstance(kind, QuantileSketch) else [1.0]))
        with pytest.raises(InvalidJob, match=r"the state of .*:v has version 2, this release reads 1"):
            kind.opened(b"\x02" + cell[1:])


def test_without_the_package_the_flow_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "datasketches", None)
    sketches._library.cache_clear()
    keyed = Dataflow("f").from_iterator("s", lambda i, n: iter(()), schema=SCHEMA).key_by("k")
    for aggregate in (count_distinct("s", approximate=True), quantile("x", 0.5), top_k("s", 3)):
        with pytest.raises(InvalidJob, match=r"pip install 'barrier-runtime\[sketches\]'"):
            keyed.aggregate("a", r=aggregate)
    keyed.aggregate("b", r=count_distinct("s"))
    sketches._library.cache_clear()


@pytest.mark.parametrize("rank", [-0.1, 1.1, float("nan"), "0.5", True])
def test_ranks_and_numbers_that_are_none_are_refused(rank: Any) -> None:
    with pytest.raises(InvalidJob, match="a number from 0 to 1"):
        quantile("x", rank)
    with pytest.raises(InvalidJob, match="give a list of ranks"):
        quantiles("x", [])
    with pytest.raises(InvalidJob, match="give a list of ranks"):
        quantiles("x", 0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="give one from 1 to 100"):
        top_k("x", 101)


def test_quantiles_of_text_are_refused_and_lists_keep_the_type_of_their_column() -> None:
    keyed = Dataflow("f").from_iterator("s", lambda i, n: iter(()), schema=SCHEMA).key_by("k")
    with pytest.raises(InvalidJob, match=r"r=quantile\(s, 0.5\) cannot be computed of type string"):
        keyed.aggregate("a", r=quantile("s", 0.5))
    driven = Driven(operator_of("running", {"top": top_k("d", 2), "q": quantiles("d", [0.5])}))
    driven.feed(pa.record_batch({"k": [1], "d": pa.array([None], pa.decimal128(5, 1))}))
    schema = driven.batches[0].schema
    assert schema.field("top").type == pa.list_(pa.struct([("value", pa.decimal128(5, 1)), ("count", pa.int64())]))
    assert driven.rows == [{"k": 1, "d": None, "top": [], "q": [None]}]
