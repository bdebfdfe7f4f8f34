"""Sessions against a model in plain Python: any order, late rows, cuts into batches, restores at other parallelisms."""

import datetime
import itertools
import random
from collections import defaultdict
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World
from window_operators import aggregating

from barrier_runtime import Session, count, first, last, max_, mean, min_, stddev, sum_
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.windows.operator import LATE, WindowOperator
from barrier_runtime.operators.windows.sessions import assignment
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
GAP = 10
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("x", pa.float64())])
AGGREGATES = {
    "n": count(),
    "nv": count("v"),
    "total": sum_("v"),
    "low": min_("v"),
    "high": max_("v"),
    "sum_x": sum_("x"),
    "mean_v": mean("v"),
    "first_v": first("v"),
    "last_v": last("v"),
}
IN_ANY_ORDER = {name: AGGREGATES[name] for name in ("n", "nv", "total", "low", "high", "mean_v")}
EITHER = pytest.mark.parametrize("aggregates", [AGGREGATES, IN_ANY_ORDER], ids=["in order", "in any order"])
Rows = list[dict[str, Any]]


def operator(gap: int = GAP, aggregates: Any = None, late: bool = True) -> WindowOperator:
    return aggregating("s", ["k"], Session(gap * MS), "t", aggregates or AGGREGATES, late=late)


def driven(made: WindowOperator | None = None, *rest: Any, **more: Any) -> Driven:
    return Driven(made or operator(), *rest, name="s", tags=[LATE], **more)


def row(k: str | None, t: int, v: int | None = 1, x: float | None = 0.5) -> dict[str, Any]:
    return {"k": k, "t": t, "v": v, "x": x}


class Model:
    """Row-by-row reference model. A session is a list of rows in arrival order; on a merge the earlier session's rows
    are first.
    """

    def __init__(self, gap: int = GAP) -> None:
        self.gap = gap
        self.open: dict[Any, list[tuple[int, int, float, Rows]]] = defaultdict(list)  # first, last, sum of x, rows
        self.watermark = WATERMARK_MIN
        self.late: Rows = []
        self.out: Rows = []

    def feed(self, rows: Rows, reached: list[int] | None = None) -> None:
        for each, watermark in zip(rows, reached or itertools.repeat(self.watermark), strict=False):
            self.advance(watermark)
            t, sessions = each["t"], self.open[each["k"]]
            touching = [s for s in sessions if s[0] - self.gap <= t <= s[1] + self.gap]
            if not touching and t + self.gap <= self.watermark:
                self.late.append(each)
                continue
            assert len(touching) <= 2
            touching.sort(key=lambda s: s[0])
            first_ms, last_ms = min([t, *(s[0] for s in touching)]), max([t, *(s[1] for s in touching)])
            total = sum(s[2] for s in touching) + (each["x"] or 0.0)
            held = [r for s in touching for r in s[3]]
            self.open[each["k"]] = [s for s in sessions if s not in touching]
            self.open[each["k"]].append((first_ms, last_ms, total, [*held, each]))

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        self.watermark = watermark
        over = [(s, k) for k, sessions in self.open.items() for s in sessions if s[1] + self.gap <= watermark]
        for s, k in sorted(over, key=lambda each: (each[0][1], each[0][0], each[1] is None, each[1] or "")):
            self.open[k].remove(s)
            self.out.append(self.result(k, *s))

    def result(self, k: Any, first_ms: int, last_ms: int, sum_x: float, rows: Rows) -> dict[str, Any]:
        v = [r["v"] for r in rows if r["v"] is not None]
        return {
            "k": k,
            "window_start": at(first_ms),
            "window_end": at(last_ms + self.gap),
            "n": len(rows),
            "nv": len(v),
            "total": sum(v) if v else None,
            "low": min(v, default=None),
            "high": max(v, default=None),
            "sum_x": sum_x if any(r["x"] is not None for r in rows) else None,
            "mean_v": sum(v) / len(v) if v else None,
            "first_v": rows[0]["v"],
            "last_v": rows[-1]["v"],
        }


def at(ms: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc) + ms * MS


ROW = st.builds(
    row,
    st.sampled_from(["a", "b", None]),
    st.integers(-60, 60),
    st.one_of(st.none(), st.integers(-100, 100)),
    st.one_of(st.none(), st.sampled_from([0.1, 0.7, 1e17, -1e17, 3.0])),
)
ACTION = st.one_of(
    st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=25)),
    st.tuples(st.just("told rows"), st.lists(st.tuples(ROW, st.integers(0, 12)), min_size=1, max_size=25)),
    st.tuples(st.just("watermark"), st.integers(-80, 90)),
    st.tuples(st.just("restart"), st.none()),
)


def by_sorting(rows: Rows, gap: int) -> list[tuple[Any, int, int, int, int]]:
    """(key, first, last, rows, total) of each session: rows of a key in order of time, cut at the gaps."""
    found = []
    keys = sorted({each["k"] for each in rows}, key=str)
    for k in keys:
        its = sorted((each for each in rows if each["k"] == k), key=lambda each: each["t"])
        while its:
            end = next((i for i in range(1, len(its)) if its[i]["t"] - its[i - 1]["t"] > gap), len(its))
            found.append((k, its[0]["t"], its[end - 1]["t"], end, sum(each["v"] for each in its[:end])))
            its = its[end:]
    return found


class Slots:
    """Subtasks side by side, which are restored at other parallelisms."""

    def __init__(
        self, parallelism: int, gap: int, restored: tuple[OperatorSnapshot, ...] = (), old: "Slots | None" = None
    ) -> None:
        self.parallelism, self.gap = parallelism, gap
        self.subtasks: list[Driven] = []
        for subtask in range(parallelism):
            world = World("memory", subtask, parallelism)
            shared = old.subtasks[0].world if old else (self.subtasks[0].world if self.subtasks else world)
            world.store, world._numbers = shared.store, shared._numbers
            made = aggregating("s", ["k"], Session(gap * MS), "t", {"n": count(), "total": sum_("v")}, late=True)
            self.subtasks.append(Driven(made, world, restored, name="s", tags=[LATE]))

    def feed(self, rows: Rows) -> None:
        batch = Batch(pa.RecordBatch.from_pylist(rows, schema=SCHEMA), 0)
        for subtask, part in hash_partition(batch, ("k",), self.parallelism, 128):
            self.subtasks[subtask].feed(part.rows)

    def watermark(self, ms: int) -> None:
        for it in self.subtasks:
            it.watermark(ms)

    def take(self) -> tuple[Rows, Rows]:
        late = [each for it in self.subtasks for batch in it.side[LATE] for each in batch.rows.to_pylist()]
        for it in self.subtasks:
            it.side[LATE].clear()
        return [each for it in self.subtasks for each in it.take()], late

    def rescaled(self, checkpoint: int, parallelism: int) -> "Slots":
        snapshots = tuple(it.snapshot(checkpoint) for it in self.subtasks)
        for it in self.subtasks:
            it.operator.close()
        return Slots(parallelism, self.gap, snapshots, self)


@pytest.mark.slow
@examples(60)
@given(
    seed=st.integers(0, 2**32),
    gap=st.sampled_from([1, 7, 50]),
    keys=st.sampled_from([1, 5, 60]),
    disorder=st.sampled_from([0, 5, 100]),
    parallelisms=st.lists(st.integers(1, 4), min_size=1, max_size=4),
)
def test_rows_in_time_give_sessions_of_their_sorted_times_and_others_are_late(
    seed: int, gap: int, keys: int, disorder: int, parallelisms: list[int]
) -> None:
    """R1: for any order of rows in time, batch borders and parallelism; no row is lost."""
    rng = random.Random(seed)
    rows: Rows = []
    at_ms, planted = -500, 0
    for n in range(rng.choice([30, 400])):
        at_ms += rng.choice([0, 0, 1, gap // 2, gap, gap + 1]) if keys == 1 else rng.choice([0, 0, 0, 1, gap // 3])
        rows.append(row(f"k{rng.randrange(keys)}", at_ms - rng.randint(0, disorder), n))
    slots, got, late = Slots(parallelisms[0], gap), [], []
    left, greatest, watermark, in_time = list(rows), WATERMARK_MIN, WATERMARK_MIN, []
    steps = iter(enumerate(parallelisms[1:], 1))
    while left:
        cut = rng.randint(1, len(left))
        batch, left = left[:cut], left[cut:]
        too_late = rng.random() < 0.3
        if too_late and watermark > WATERMARK_MIN:
            batch = [*batch, row("late", watermark - gap, -1)]
            planted += 1
        in_time += [each for each in batch if each["v"] >= 0]
        slots.feed(batch)
        greatest = max([greatest, *(each["t"] for each in batch)])
        watermark = max(watermark, greatest - disorder - 1)
        slots.watermark(watermark)
        for collected, more in zip((got, late), slots.take(), strict=True):
            collected += more
        if rng.random() < 0.5 and (step := next(steps, None)):
            slots = slots.rescaled(*step)
    slots.watermark(WATERMARK_MAX)
    for collected, more in zip((got, late), slots.take(), strict=True):
        collected += more
    assert sorted(
        (each["k"], each["window_start"], each["window_end"], each["n"], each["total"]) for each in got
    ) == sorted((k, at(a), at(b + gap), n, total) for k, a, b, n, total in by_sorting(in_time, gap))
    assert [each["v"] for each in late] == [-1] * planted
    assert len(in_time) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_many_keys_equal_the_model_before_and_after_a_restore(kind: Kind) -> None:
    rng = np.random.default_rng(3)
    world, model, got = World(kind), Model(), []
    it = driven(operator(), world)
    for part in range(4):
        times = rng.integers(0, 400, 3_000) + part * 100
        rows = [row(f"k{k}", int(t), int(t), float(t)) for k, t in zip(rng.integers(0, 300, 3_000), times, strict=True)]
        it.feed(rows, SCHEMA)
        model.feed(rows)
        it.watermark(part * 100)
        model.advance(part * 100)
        if part in (1, 2):
            snapshot = it.snapshot(part)
            got += it.take()
            it.operator.close()
            it = driven(operator(), world, (snapshot,))
    it.watermark(WATERMARK_MAX)
    model.advance(WATERMARK_MAX)
    assert got + it.rows == model.out
    it.operator.close()


def spans(it: Driven) -> list[tuple[int, int, int]]:
    return [((each["window_start"] - at(0)) // MS, (each["window_end"] - at(0)) // MS, each["n"]) for each in it.take()]


def test_session_includes_a_row_exactly_at_the_gap_and_excludes_a_millisecond_later() -> None:
    it = driven()
    it.feed([row("a", 0), row("a", GAP), row("b", 0), row("b", GAP + 1)], SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert sorted(spans(it)) == [(0, GAP, 1), (0, 2 * GAP, 2), (GAP + 1, 2 * GAP + 1, 1)]


def test_a_session_is_over_when_no_row_in_time_can_touch_it_any_more() -> None:
    """R1: at the watermark last + gap - 1, a row at last + gap is still in time and joins the session."""
    it = driven()
    it.feed([row("a", 0)], SCHEMA)
    it.watermark(GAP - 1)
    assert it.take() == []
    it.feed([row("a", GAP)], SCHEMA)
    it.watermark(2 * GAP - 1)
    assert it.take() == []
    it.watermark(2 * GAP)
    assert spans(it) == [(0, 2 * GAP, 2)]


@EITHER
def test_session_over_inside_a_batch_is_emitted_before_a_row_that_would_extend(aggregates: Any) -> None:
    """R1: the same result as with each row in a separate batch."""
    it = driven(operator(aggregates=aggregates))
    it.feed([row("a", 0), row("b", 13), row("a", 5)], SCHEMA, reached=np.array([-1, 12, 12]))
    assert spans(it) == [(0, GAP, 1)]
    it.watermark(WATERMARK_MAX)
    assert spans(it) == [(5, 5 + GAP, 1), (13, 13 + GAP, 1)]


@EITHER
@pytest.mark.parametrize("restart", [False, True])
def test_one_row_joins_two_sessions_whose_accumulators_become_one(restart: bool, aggregates: Any) -> None:
    world = World()
    it = driven(operator(aggregates=aggregates), world)
    it.feed([row("a", 0, 5), row("a", 16, 7), row("b", 0, 1)], SCHEMA)
    if restart:
        it = driven(operator(aggregates=aggregates), world, (it.snapshot(1),))
    it.feed([row("a", 8, -3)], SCHEMA)
    it.watermark(16 + GAP - 1)
    assert [(each["k"], each["n"], each["total"]) for each in it.take()] == [("b", 1, 1)]
    it.watermark(16 + GAP)
    (one,) = it.take()
    assert (one["n"], one["total"], one["low"], one["high"]) == (3, 9, -3, 7)
    if "first_v" in aggregates:
        assert (one["first_v"], one["last_v"]) == (5, -3)
    assert (one["window_start"], one["window_end"]) == (at(0), at(26))


@EITHER
def test_a_late_row_that_touches_an_open_session_belongs_to_it_as_in_flink(aggregates: Any) -> None:
    it = driven(operator(aggregates=aggregates))
    it.feed([row("a", 0), row("a", 50), row("b", 50)], SCHEMA)
    it.watermark(55)
    it.feed([row("a", 41), row("a", 31), row("a", 20), row("b", 39)], SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert sorted(spans(it)) == [(0, 10, 1), (31, 60, 3), (50, 60, 1)]
    assert [(r["k"], r["t"]) for batch in it.side[LATE] for r in batch.rows.to_pylist()] == [("a", 20), ("b", 39)]


def test_late_rows_without_a_stream_of_theirs_are_counted() -> None:
    it = driven(operator(late=False))
    it.feed([row("a", 0)], SCHEMA)
    it.watermark(100)
    it.feed([row("a", 90), row("a", 91)], SCHEMA)
    assert it.world.metrics.counts["late_rows"] == 1
    assert it.side[LATE] == []


def test_variances_of_joined_sessions_are_those_of_all_their_rows() -> None:
    values = [1e9 + value for value in (1.0, 5.5, -3.0, 12.25, 7.0)]
    it = driven(operator(aggregates={"s": stddev("x")}))
    for t, value in zip((0, 4, 22, 30, 12), values, strict=True):
        it.feed([row("a", t, 1, value)], SCHEMA)
    it.watermark(WATERMARK_MAX)
    (one,) = it.rows
    assert one["s"] == pytest.approx(np.std(values, ddof=1), rel=1e-12)


def test_merged_64_bit_session_sum_that_overflows_ends_the_job_and_a_wide_does_not() -> None:
    most = 2**63 - 1
    for aggregate, fails in ((sum_("v"), True), (sum_("v", widen=True), False), (mean("v"), False)):
        it = driven(operator(aggregates={"r": aggregate}))
        it.feed([row("a", 0, most), row("a", 16, most)], SCHEMA)
        if fails:
            with pytest.raises(InvalidJob, match="sum_\\('v'\\) of key 'a' leaves 64 bits"):
                it.feed([row("a", 8, 0)], SCHEMA)
            continue
        it.feed([row("a", 8, most)], SCHEMA)
        it.watermark(WATERMARK_MAX)
        assert float(it.rows[0]["r"]) == (3.0 * most if aggregate.widen else float(most))


def test_row_that_overflows_a_64_bit_sum_ends_the_job_despite_later_merges() -> None:
    rows = [row("a", 0, -(2**63)), row("a", 16, 2**63 - 1), row("a", 17, 1), row("a", 8, 0)]
    with pytest.raises(InvalidJob, match="leaves 64 bits"):
        driven(operator(aggregates={"r": sum_("v")})).feed(rows, SCHEMA)
    it = driven(operator(aggregates={"r": sum_("v", widen=True)}))
    it.feed(rows, SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert [int(each["r"]) for each in it.rows] == [0]


def test_a_large_sum_may_become_part_of_a_session_that_joins_several() -> None:
    it = driven(operator(aggregates={"r": sum_("v")}))
    it.feed([row("a", 100, 2**62)], SCHEMA)
    it.watermark(85)
    it.feed([row("a", t, 1) for t in (84, 75, 92, 116, 108, 132, 124)], SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert [(each["window_start"], each["r"]) for each in it.rows] == [(at(75), 2**62 + 7)]


def test_sessions_of_the_whole_range_of_64_bits_are_given_and_those_beyond_refused() -> None:
    it = driven(operator(aggregates={"low": min_("t")}))
    times = [WATERMARK_MAX - GAP, WATERMARK_MIN + GAP, 0]
    it.feed([row("a", t) for t in times], SCHEMA)
    it.watermark(WATERMARK_MAX - 1)
    it.watermark(WATERMARK_MAX)
    assert [v for batch in it.batches for v in batch.rows.column("low").to_pylist()] == sorted(times)
    for t in (WATERMARK_MAX - GAP + 1, WATERMARK_MIN + GAP - 1):
        with pytest.raises(InvalidJob, match=f"window 's'.* {t} ms in column 't'.*filter or correct"):
            driven().feed([row("a", t)], SCHEMA)


@pytest.mark.parametrize("gap", [0, -1])
def test_an_empty_gap_is_refused(gap: int) -> None:
    with pytest.raises(InvalidJob, match="gap of a Session window"):
        Session(gap * MS)


def test_rows_of_one_key_that_join_hundreds_of_sessions_backwards_are_one_session() -> None:
    it, model = driven(), Model()
    times = [*range(0, 6_000, 16), *range(8, 6_000, 16)]
    random.Random(1).shuffle(times)
    rows = [row("a", t, t, float(t)) for t in times]
    it.feed(rows, SCHEMA)
    model.feed(rows)
    it.watermark(WATERMARK_MAX)
    model.advance(WATERMARK_MAX)
    assert it.rows == model.out
    assert [each["n"] for each in it.rows] == [len(times)]


def test_integer_keys_are_taken_for_tuples_from_the_first_null_on() -> None:
    made = aggregating("s", ["k"], Session(GAP * MS), "t", {"n": count()})
    schema = pa.schema([("k", pa.int32()), ("t", pa.int64())])
    it = driven(made)
    it.feed([{"k": 7, "t": 0}, {"k": 8, "t": 0}], schema)
    it.feed([{"k": None, "t": 1}, {"k": 7, "t": 2}], schema)
    it.watermark(WATERMARK_MAX)
    assert [(each["k"], each["n"]) for each in it.rows] == [(8, 1), (None, 1), (7, 2)]


@pytest.mark.slow
@examples(150)
@given(st.lists(ACTION, max_size=12), st.sampled_from(["one by one", "in rounds", "in any order"]))
def test_sessions_equal_a_row_by_row_model_bit_for_bit_whatever_comes(actions: list[tuple[str, Any]], how: str) -> None:
    """Float sums of these magnitudes reveal the order in which rows were added and sessions merged. `how`: the
    algorithm that merges sessions; "in any order" uses aggregates that ignore the order.
    """
    with patch.object(assignment, "_FEW", 1 if how == "in rounds" else 1_000):
        beside_model(actions, IN_ANY_ORDER if how == "in any order" else AGGREGATES)


def beside_model(actions: list[tuple[str, Any]], aggregates: dict[str, Any]) -> None:
    world, model = World(), Model()
    it, collected, late = driven(operator(aggregates=aggregates), world), [], []
    for checkpoint, (action, argument) in enumerate([*actions, ("watermark", WATERMARK_MAX)], 1):
        if action == "rows":
            it.feed(argument, SCHEMA)
            model.feed(argument)
        elif action == "told rows":
            base = max(model.watermark, -80)
            reached = (np.cumsum([step for _, step in argument]) + base).tolist()
            it.feed([each for each, _ in argument], SCHEMA, reached=np.array(reached))
            model.feed([each for each, _ in argument], reached)
            it.watermark(reached[-1])
            model.advance(reached[-1])
        elif action == "watermark":
            it.watermark(argument)
            model.advance(argument)
        else:
            snapshot = it.snapshot(checkpoint)
            collected += it.take()
            late += [r for batch in it.side[LATE] for r in batch.rows.to_pylist()]
            it.operator.close()
            it = driven(operator(aggregates=aggregates), world, (snapshot,))
    late += [r for batch in it.side[LATE] for r in batch.rows.to_pylist()]
    left_out = AGGREGATES.keys() - aggregates.keys()
    assert collected + it.rows == [{k: v for k, v in each.items() if k not in left_out} for each in model.out]
    assert late == model.late
    if any(action.endswith("rows") for action, _ in actions):
        assert it.operator._table.entries == len(it.operator.entries._open) == 0  # type: ignore[attr-defined]
