"""Sliding windows with one entry per slice: results and late rows equal those of windows with one entry per window,
for any rows, watermarks, restarts and parallelism; state stored per window stays per window.
"""

import dataclasses
import datetime
from collections import Counter
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots, World, entries_left, held_in_memory
from window_operators import aggregating, slicing

from barrier_runtime import Sliding, count, first, last, max_, mean, min_, sum_, variance
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.windows import firing
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.backend import keyed_backend
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
WINDOW = Sliding(40 * MS, 10 * MS, 3 * MS)
AGGREGATES: dict[str, AnyAggregate] = {"n": count(), "total": sum_("v"), "low": min_("v"), "mid": mean("v")}
SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.int64()), ("v", pa.int64())])


def sliced(aggregates: dict[str, AnyAggregate] = AGGREGATES) -> WindowOperator:
    return slicing("op", ["k"], WINDOW, "t", aggregates, SCHEMA)


def windowed() -> WindowOperator:
    return aggregating("op", ["k"], WINDOW, "t", AGGREGATES, SCHEMA)


def rows(*rows: tuple[int, int], v: int = 1) -> list[dict[str, int]]:
    return [{"k": k, "t": t, "v": v} for k, t in rows]


def starts_and_counts(it: Driven) -> list[tuple[int, int]]:
    return [(each["window_start"].timestamp() * 1_000 // 1, each["n"]) for each in it.take()]  # type: ignore[misc]


def plain(results: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(result.values()) for result in results)


_ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-60, 120), st.integers(-9, 9)), min_size=1, max_size=25)
_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), _ROWS),
        st.tuples(st.just("watermarks"), st.lists(st.integers(-60, 160), min_size=3, max_size=3)),
        st.tuples(st.just("on the way"), st.tuples(st.integers(-60, 160), st.integers(1, 3))),
        st.tuples(st.just("restored"), st.integers(1, 3)),
    ),
    min_size=2,
    max_size=14,
)


@pytest.mark.slow
@examples(150)
@given(_ACTIONS, st.booleans(), st.sampled_from([None, 3]))
def test_slices_give_the_windows_and_late_rows_that_entries_per_window_give(
    actions: list[tuple[str, Any]], by_row: bool, held: int | None
) -> None:
    """`by_row`: rows carry event time, too."""
    with pytest.MonkeyPatch.context() as patch, held_in_memory(held):
        for name in ("FEW", "FEW_TUPLES", "PART"):
            patch.setattr(firing, name, 2)
        found = [_run(make, actions, by_row) for make in (windowed, sliced)]
    assert found[0] == found[1]


def _run(make: Any, actions: list[tuple[str, Any]], by_row: bool) -> tuple[Counter[tuple[Any, ...]], float]:
    slots, results, late, reached_ms = Slots(make, 1), Counter[tuple[Any, ...]](), 0.0, -100
    for checkpoint, (action, given_) in enumerate(actions, 1):
        if action == "rows":
            batch = [dict(zip("ktv", row, strict=True)) for row in given_]
            reached = np.maximum(np.maximum.accumulate([row["t"] - 30 for row in batch]), reached_ms)
            reached_ms = int(reached[-1])
            slots.feed(batch, SCHEMA, reached if by_row else None)
        elif action == "watermarks":
            slots.watermarks(*given_[: slots.parallelism])
        elif action == "on the way":
            to_ms, steps = given_
            it = slots.driven[0]
            for _ in range(steps):
                it.operator.toward(max(to_ms, it.operator.going_to_ms or to_ms), it._emit)
        else:
            results += plain(slots.take())
            late += slots.late()
            slots = slots.rescaled(checkpoint, given_)
    slots.watermarks(*[WATERMARK_MAX] * slots.parallelism)
    for driven in slots.driven:
        driven.snapshot(len(actions) + 1)
        assert entries_left(driven.operator) == 0
    return results + plain(slots.take()), late + slots.late()


def test_a_row_of_a_slice_of_which_windows_have_gone_out_counts_in_the_others() -> None:
    """FLINK-21305: the slice began before the watermark, and two windows of the slice are over."""
    it = Driven(sliced())
    it.feed(rows((1, 25)), SCHEMA)
    it.watermark(42)  # [-7, 33) and [3, 43) have fired
    assert starts_and_counts(it) == [(-7, 1), (3, 1)]
    it.feed(rows((1, 24), (2, 24), (1, 12)), SCHEMA)
    assert it.world.metrics.counts == {"late_rows": 1.0}
    it.watermark(WATERMARK_MAX)
    assert starts_and_counts(it) == [(13, 2), (13, 1), (23, 2), (23, 1)]


def test_row_behind_its_batchs_watermark_does_not_count_in_windows_over_by_then() -> None:
    it = Driven(sliced())
    it.feed(rows((1, 25), (1, 85), (1, 26)), SCHEMA, reached=np.array([0, 45, 45]))
    assert starts_and_counts(it) == [(-7, 1), (3, 1)]
    it.watermark(52)
    assert starts_and_counts(it) == [(13, 2)]


@pytest.mark.parametrize("restored", [False, True])
def test_event_time_that_was_told_before_the_first_row_counts(restored: bool) -> None:
    slots = Slots(sliced, 1)
    slots.watermarks(42)
    if restored:
        slots = slots.rescaled(1, 2).rescaled(2, 1)
    slots.feed(rows((1, 25)), SCHEMA)
    slots.watermarks(WATERMARK_MAX)
    assert starts_and_counts(slots.driven[0]) == [(13, 1), (23, 1)]


def test_keys_without_rows_in_any_slice_have_no_window_and_a_gap_takes_no_time() -> None:
    it = Driven(sliced())
    far = 10**14  # a window per 10 ms until then would take for ever
    it.feed(rows((1, 3), (2, far + 3)), SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert [each["k"] for each in it.take()] == [1] * 4 + [2] * 4


def test_an_entry_is_a_slice_and_is_gone_once_its_last_window_is_over() -> None:
    it = Driven(sliced())
    it.feed(rows((1, 3), (1, 12), (1, 13), (2, 13)), SCHEMA)
    table = it.operator._table  # type: ignore[attr-defined]
    assert sorted(table.keys_of(table.load_all())) == [(1, 3), (1, 13), (2, 13)]
    it.watermark(42)
    assert sorted(table.keys_of(table.load_all())) == [(1, 13), (2, 13)]
    assert it.operator.entries._keys.limit  # type: ignore[attr-defined]
    it.watermark(52)
    assert table.entries == 0


@pytest.mark.slow
def test_numbers_of_keys_are_used_again() -> None:
    """However many keys appear and disappear, the arrays stay as short as the number of keys in a window."""
    it = Driven(sliced())
    for number in range(60):
        it.feed(rows(*[(number * 100 + k, number * 10) for k in range(100)]), SCHEMA)
        it.watermark(number * 10 - 10)
    assert it.operator.entries._keys.limit < 1_500  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [pa.string(), pa.decimal128(20, 3), pa.float64(), pa.timestamp("us")])
def test_values_of_all_kinds_are_added_up(kind: pa.DataType) -> None:
    made: dict[Any, Any] = {
        pa.string(): lambda n: f"é{n}",
        pa.decimal128(20, 3): lambda n: Decimal(n) / 8,
        pa.float64(): lambda n: n / 8,
        pa.timestamp("us"): lambda n: datetime.datetime(2026, 1, 1) + n * MS,
    }
    schema = SCHEMA.set(2, pa.field("v", kind))
    aggregates: dict[str, AnyAggregate] = {"n": count("v"), "low": min_("v"), "high": max_("v")}
    if kind in (pa.decimal128(20, 3), pa.float64()):
        aggregates |= {"total": sum_("v"), "mid": mean("v")}
    drawn = np.random.default_rng(5)
    given_ = [
        {"k": int(drawn.integers(3)), "t": int(drawn.integers(0, 90)), "v": made[kind](n) if n % 5 else None}
        for n in range(80)
    ]
    results = []
    for make in (aggregating, slicing):
        it = Driven(make("op", ["k"], WINDOW, "t", aggregates, schema))
        it.feed(given_, schema)
        it.watermark(WATERMARK_MAX)
        results.append(it.take())
    assert results[0] == results[1]


def test_bits_of_a_float_sum_depend_on_slices_not_on_batches_or_earlier_results() -> None:
    schema = SCHEMA.set(2, pa.field("v", pa.float64()))
    drawn = np.random.default_rng(7)
    given_ = [
        {"k": 1, "t": n, "v": float(v)} for n, v in enumerate(drawn.normal(size=90) * 10.0 ** drawn.integers(-9, 9, 90))
    ]
    sums = []
    for cuts in ([90], [1] * 90, [17, 30, 43]):
        it, at = Driven(slicing("op", ["k"], WINDOW, "t", {"x": sum_("v")}, schema)), 0
        for many in cuts:
            it.feed(given_[at : at + many], schema)
            at += many
            it.watermark(at - 1)
        it.watermark(WATERMARK_MAX)
        sums.append([each["x"] for each in it.take()])
    assert sums[0] == sums[1] == sums[2]


def test_a_sum_that_leaves_64_bits_when_slices_meet_names_the_key() -> None:
    it = Driven(sliced())
    it.feed(rows((7, 3), v=2**62) + rows((7, 13), v=2**62), SCHEMA)
    with pytest.raises(InvalidJob, match=r"sum_\('v'\) of key 7 leaves 64 bits"):
        it.watermark(WATERMARK_MAX)


# ---- stored state


def stored(made: Any, world: World) -> Any:
    it = Driven(made, world)
    it.feed(rows((1, 25), (2, 40)), SCHEMA)
    it.watermark(33)
    assert starts_and_counts(it) == [(-7, 1)]
    snapshot = it.snapshot(1)
    it.operator.close()
    return snapshot


def test_state_of_windows_goes_on_as_windows() -> None:
    world = World()
    it = Driven(sliced(), world, (stored(windowed(), world),))
    again = it.snapshot(2)
    it.operator.close()
    it = Driven(sliced(), world, (again,))
    it.feed(rows((1, 26), (3, 50)), SCHEMA)
    assert not it.operator.entries.in_slices  # type: ignore[attr-defined]
    it.watermark(WATERMARK_MAX)
    # key and count of [3, 43), [13, 53), [23, 63) and [33, 73), and of [43, 83) with the row of key 3 alone
    assert [(each["k"], each["n"]) for each in it.take()] == [
        *[(1, 2), (2, 1)],
        *[(1, 2), (2, 1), (3, 1)],
        *[(1, 2), (2, 1), (3, 1)],
        *[(2, 1), (3, 1)],
        (3, 1),
    ]


def test_slices_become_windows_when_an_aggregate_comes_that_does_not_add_up() -> None:
    world = World()
    evolved = sliced(AGGREGATES | {"v1": first("v"), "spread": variance("v")})
    it = Driven(evolved, world, (stored(sliced(), world),))
    it.feed(rows((1, 26), (3, 50), v=5), SCHEMA)
    assert not it.operator.entries.in_slices  # type: ignore[attr-defined]
    snapshot = it.snapshot(2)
    it.operator.close()
    it = Driven(sliced(AGGREGATES | {"v1": first("v"), "spread": variance("v")}), world, (snapshot,))
    it.watermark(WATERMARK_MAX)
    results = it.take()
    assert [(each["k"], each["n"], each["total"]) for each in results] == [
        *[(1, 2, 6), (2, 1, 1)],
        *[(1, 2, 6), (2, 1, 1), (3, 1, 5)],
        *[(1, 2, 6), (2, 1, 1), (3, 1, 5)],
        *[(2, 1, 1), (3, 1, 5)],
        (3, 1, 5),
    ]
    assert {each["k"]: each["v1"] for each in results} == {1: 5, 2: None, 3: 5}


def test_slices_becoming_windows_emit_none_twice_at_another_parallelism() -> None:
    expected, slots = Driven(windowed()), Slots(sliced, 2)
    given_ = rows(*[(k, t) for k in range(40) for t in (0, 21, 35)])
    expected.feed(given_, SCHEMA)
    expected.watermark(WATERMARK_MAX)
    slots.feed(given_, SCHEMA)
    slots.driven[0].watermark(44)
    slots.driven[1].watermark(13)
    found = slots.take()
    slots.make = lambda: sliced(AGGREGATES | {"v9": last("v")})
    slots = slots.rescaled(1, 1)
    slots.watermarks(WATERMARK_MAX)
    found += [{name: value for name, value in each.items() if name != "v9"} for each in slots.take()]
    assert plain(found) == plain(expected.take())


def test_a_release_that_takes_entries_for_windows_refuses_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    snapshot = stored(sliced(), world)
    assert snapshot.keyed.described["windows"].layout == 3
    monkeypatch.setattr(keyed_backend, "_IN_SLICES", 2)  # the greatest layout an older release reads
    with pytest.raises(InvalidJob, match=r"columns 'windows' of op were written by a newer release \(layout 3"):
        Driven(windowed(), world, (snapshot,))


def test_a_run_that_reads_on_after_all_windows_had_gone_out_has_new_ones() -> None:
    world = World()
    it = Driven(sliced(), world)
    it.feed(rows((1, 25)), SCHEMA)
    it.watermark(WATERMARK_MAX)
    snapshot = it.snapshot(1)
    again = sliced()
    context = dataclasses.replace(world.context("op", (snapshot,)), reopened=True)
    world.context = lambda name, restored=(): context  # type: ignore[method-assign]
    it = Driven(again, world, (snapshot,))
    it.feed(rows((1, 95)), SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert [count for _, count in starts_and_counts(it)] == [1] * 4
