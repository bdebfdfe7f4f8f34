"""Windows due at the same watermark fire in slices: results and order equal those of a single pass, over snapshots and
restores between any two slices and at other parallelisms; no slice is long.
"""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, Slots, World
from window_operators import aggregating, slicing

from barrier_runtime import CollectSink, Dataflow, Every, Session, Sliding, Tumbling, count, sum_
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.base import Operator
from barrier_runtime.operators.windows import firing
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
AGGREGATES = {"n": count(), "total": sum_("v")}
MANY = 1_500
KINDS = ["tumbling", "sliding", "sliding windows", "lateness", "early", "early by lateness", "session"]


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shrinks the slices so that a few thousand windows take as many slices as a million."""
    for name, value in {"FEW": 100, "FEW_TUPLES": 100, "PART": 20, "_CHUNK": 200}.items():
        monkeypatch.setattr(firing, name, value)


def operator(kind: str) -> Operator:
    if kind == "session":
        return aggregating("w", ["k"], Session(10 * MS), "t", AGGREGATES)
    if kind == "sliding":
        return slicing("w", ["k"], Sliding(20 * MS, 10 * MS), "t", AGGREGATES)
    window = Sliding(20 * MS, 10 * MS) if kind == "sliding windows" else Tumbling(20 * MS)
    lateness_ms = 15 if "lateness" in kind else 0
    if "early" in kind:
        return aggregating("w", ["k"], window, "t", AGGREGATES, lateness_ms=lateness_ms, early=Every(interval=7 * MS))
    return aggregating("w", ["k"], window, "t", AGGREGATES, lateness_ms=lateness_ms)


def rows(text: bool, many: int = MANY, seed: int = 1) -> pa.RecordBatch:
    drawn = np.random.default_rng(seed)
    keys = drawn.permutation(many // 2)[drawn.integers(0, many // 2, many)]
    return pa.RecordBatch.from_pydict(
        {
            "k": pa.array([f"key {key}" for key in keys.tolist()]) if text else pa.array(keys),
            "t": pa.array(drawn.integers(0, 60, many)),
            "v": pa.array(drawn.integers(0, 1_000, many)),
        }
    )


def in_slices(it: Driven, watermark_ms: int, slices: int | None = None) -> bool:
    """Advances the operator slice by slice as a subtask does. `slices`: maximum; returns False if slices remain."""
    done = 0
    while slices is None or done < slices:
        if (going_to_ms := it.operator.going_to_ms) is not None:
            it.operator.toward(going_to_ms, it._emit)
        elif it.operator.toward(watermark_ms, it._emit):
            return True
        done += 1
    return False


def plain(results: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(tuple(result.values()) for result in results)


@given(st.lists(st.integers(0, 10**6), unique=True), st.integers(1, 40), st.integers(1, 40))
@examples(200)
def test_parts_one_behind_the_other_are_what_one_sort_gives(numbers: list[int], few: int, part: int) -> None:
    values = np.array(numbers, np.int64)  # by row id
    parts = firing.in_order(np.arange(len(values)), lambda some: some[np.argsort(values[some])], few, part)
    given = [part for part in parts if part is not None]
    assert [values[row_id] for part in given for row_id in part] == sorted(numbers)
    assert all(len(part) for part in given)


@given(
    st.lists(st.tuples(st.integers(-3, 3), st.sampled_from([0, 1, 7, 2**40, -(2**63), 2**63 - 1])), unique=True),
    st.sampled_from([1, 2**22]),
    st.integers(1, 8),
    st.integers(1, 8),
)
@examples(200)
def test_keys_of_ints_are_in_order_whether_they_fit_into_one_number_or_not(
    keys: list[tuple[int, int]], least: int, few: int, part: int
) -> None:
    """`least`: bound of second fields, which then fit into a packed number; 1: no bound."""
    keys = [key for key in keys if least == 1 or abs(key[1]) < least]
    first, second = np.array([key[0] for key in keys], np.int64), np.array([key[1] for key in keys], np.int64)

    def fields_of(some: firing.Ints) -> list[firing.Ints]:
        return [first[some], second[some]]

    parts = firing.ints_in_order(np.arange(len(keys)), fields_of, few, part)
    given = [part for part in parts if part is not None]
    assert [keys[row_id] for part in given for row_id in part] == sorted(keys)
    assert all(len(part) for part in given)


@pytest.mark.slow
@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_slices_give_what_comes_all_at_once_in_the_same_order(kind: str, text: bool) -> None:
    at_once, sliced = Driven(operator(kind)), Driven(operator(kind))
    for it in (at_once, sliced):
        it.feed(rows(text))
    for watermark_ms in (13, 55, WATERMARK_MAX):
        at_once.watermark(watermark_ms)
        assert in_slices(sliced, watermark_ms)
        assert sliced.take() == at_once.take()
    assert len(sliced.operator._table.load_all()) == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("backend", [pytest.param("memory", marks=pytest.mark.slow), "rocksdb"])
@pytest.mark.parametrize("kind", KINDS)
def test_restored_between_any_two_slices_none_is_missing_and_none_comes_twice(kind: str, backend: Kind) -> None:
    at_once = Driven(operator(kind))
    at_once.feed(rows(False))
    at_once.watermark(WATERMARK_MAX)
    expected = at_once.take()
    world = World(backend)
    it = Driven(operator(kind), world)
    it.feed(rows(False))
    found: list[dict[str, Any]] = []
    for checkpoint in range(1, 8):
        in_slices(it, WATERMARK_MAX, slices=1)
        found += it.take()
        if it.operator.going_to_ms is None:
            break
        snapshot = it.snapshot(checkpoint)
        it.operator.close()
        it = Driven(operator(kind), world, (snapshot,))
        assert it.operator.going_to_ms == WATERMARK_MAX
    assert checkpoint > 1
    in_slices(it, WATERMARK_MAX)
    assert found + it.take() == expected


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_subtasks_that_stopped_at_different_slices_go_on_at_another_parallelism(kind: str) -> None:
    at_once = Driven(operator(kind))
    at_once.feed(rows(False))
    at_once.watermark(WATERMARK_MAX)
    slots = Slots(lambda: operator(kind), 2)
    slots.feed(rows(False).to_pylist())
    found: list[dict[str, Any]] = []
    in_slices(slots.driven[0], 45, slices=3)
    in_slices(slots.driven[1], 45)
    found += slots.take()
    slots = slots.rescaled(1, 3)
    for it in slots.driven:
        in_slices(it, 45)
    slots.watermarks(*[WATERMARK_MAX] * 3)
    assert plain(found + slots.take()) == plain(at_once.take())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_lateness_known_to_a_single_subtask_survives_rescaling(kind: str) -> None:
    slots = Slots(lambda: operator(kind), 2)
    slots.feed(rows(False).to_pylist())
    ahead = slots.driven[0]
    while not ahead.rows:
        in_slices(ahead, 45, slices=1)
    assert ahead.operator.going_to_ms == 45
    in_slices(slots.driven[1], 5)
    expected = Driven(operator(kind))
    expected.feed(rows(False))
    expected.watermark(WATERMARK_MAX)
    found = [*ahead.rows, *slots.driven[1].take()]
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    emitted = {row["k"]: (row["window_start"] - epoch) // MS for row in ahead.take()}
    slots = slots.rescaled(1, 1)
    in_slices(slots.driven[0], 5)
    late = [{"k": key, "t": start if kind == "session" else 20, "v": 7} for key, start in emitted.items()]
    slots.feed(late)
    slots.watermarks(WATERMARK_MAX)
    assert slots.late() == len(late)
    assert plain(found + slots.take()) == plain(expected.take())


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_a_slice_does_a_small_part_of_many_windows_also_where_the_clock_stands_still(kind: str) -> None:
    it = Driven(operator(kind))
    object.__setattr__(it.operator.context, "now_s", lambda: 0.0)  # type: ignore[attr-defined]
    many = 2_000
    it.feed(pa.RecordBatch.from_pydict({"k": range(many), "t": [1] * many, "v": [1] * many}))
    most = found = 0
    while not in_slices(it, WATERMARK_MAX, slices=1):
        of_slice = len(it.take())
        most, found = max(most, of_slice), found + of_slice
    assert 0 < most <= many // 4
    assert found + len(it.take()) == many


@pytest.mark.slow
def test_rows_behind_an_early_result_of_many_windows_are_returned_and_follow() -> None:
    it, at_once = Driven(operator("early")), Driven(operator("early"))
    it.operator.stops = True
    first = rows(False)
    behind = pa.RecordBatch.from_pydict({"k": range(100), "t": [61] * 100, "v": [1] * 100})
    reached = np.full(100, 58)
    for each in (it, at_once):
        each.feed(first)
        each.feed(behind, reached=reached)
    rest = it.operator.take_rest()
    assert rest is not None
    assert len(rest) == 100
    assert it.operator.going_to_ms == 58
    in_slices(it, 58)
    it.feed(rest.rows, reached=rest.reached)
    assert it.operator.take_rest() is None
    assert it.take() == at_once.take()


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_has_every_window_once_though_they_go_out_in_slices(parallelism: int) -> None:
    keys = 700
    given = [{"k": number % keys, "t": number // keys * 20, "v": 1} for number in range(2 * keys)]
    flow, out, again = Dataflow("slices"), CollectSink(), CollectSink()
    read = flow.from_iterator(
        "rows",
        lambda part, of: given[part::of],
        schema={"k": int, "t": int, "v": int},
        splits=2,
        event_time="t",
        max_out_of_orderness=1_000 * MS,
    )
    counts = read.key_by("k").window("w", Tumbling(20 * MS), event_time="t").aggregate(n=count())
    counts.sink("out", out)
    counts.key_by("n").window("n", Tumbling(20 * MS), event_time="window_start").aggregate(keys=count()).sink(
        "n-out", again
    )
    flow.run_local(parallelism=parallelism)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    found = sorted((row["k"], (row["window_start"] - epoch) // MS, row["n"]) for row in out.rows())
    assert found == sorted((each["k"], each["t"], 1) for each in given)
    assert [row["keys"] for row in again.rows()] == [keys, keys]
