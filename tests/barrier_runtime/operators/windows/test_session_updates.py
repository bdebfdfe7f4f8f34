"""Sessions with early results and updates for late rows, against a row-by-row model: any order, batch borders,
restores at other parallelisms, and retractions of merged sessions.
"""

import datetime
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots, entries_left
from window_models import Rows, actions_of, driven_beside, plain
from window_operators import aggregating

from barrier_runtime import CollectSink, Dataflow, Every, Session, count, first, last, max_, sum_
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.windows.operator import LATE, WindowOperator
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples, some

MS = datetime.timedelta(milliseconds=1)
GAP, LATENESS = 10, 15
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
AGGREGATES = {"n": count(), "total": sum_("v"), "first_v": first("v"), "last_v": last("v"), "newest": max_("t")}
IN_ANY_ORDER = {name: aggregate for name, aggregate in AGGREGATES.items() if name not in ("first_v", "last_v")}
Row = dict[str, Any]


def operator(
    early: Every | None, lateness: int, gap: int = GAP, aggregates: dict[str, Any] = AGGREGATES
) -> WindowOperator:
    return aggregating(
        "s", ["k"], Session(gap * MS), "t", aggregates, SCHEMA, late=True, lateness_ms=lateness, early=early
    )


def row(k: str | None, t: int, v: int | None = 1) -> Row:
    return {"k": k, "t": t, "v": v}


@dataclass
class Held:
    first: int
    last: int
    rows: Rows
    updates: int = 0
    told: int = 0  # rows in the last result
    told_last: int = 0
    over: bool = False  # fired as over, and no row arrived since

    @property
    def since(self) -> int:
        return len(self.rows) - self.told


@dataclass
class Model:
    early: Every | None
    lateness: int
    gap: int = GAP
    sessions: dict[Any, list[Held]] = field(default_factory=lambda: defaultdict(list))
    watermark: int = WATERMARK_MIN
    late: Rows = field(default_factory=list)
    out: Rows = field(default_factory=list)

    def feed(self, each: Row, reached: int = WATERMARK_MIN) -> None:
        self.advance(reached)
        k, t = each["k"], each["t"]
        touching = [s for s in self.sessions[k] if s.first - self.gap <= t <= s.last + self.gap]
        if not touching and t + self.gap + self.lateness <= self.watermark:
            self.late.append(each)
            return
        touching.sort(key=lambda s: s.first)
        now = Held(t, t, [each])
        if touching:
            now = Held(min(t, touching[0].first), max(t, touching[-1].last), [r for s in touching for r in s.rows])
            now.rows.append(each)
            for s in reversed(touching):
                if s.updates and s.first != now.first:
                    self.tell(k, Held(s.first, s.told_last, [], s.updates), retracted=True)
            if touching[0].first == now.first:
                now.updates, now.told = touching[0].updates, touching[0].told
                now.told_last = touching[0].told_last
        self.sessions[k] = [s for s in self.sessions[k] if not any(s is gone for gone in touching)] + [now]
        if now.last + self.gap <= self.watermark:
            self.tell(k, now)
        elif self.early is not None and self.early.rows is not None and now.since >= self.early.rows:
            self.tell(k, now, early=True)

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        interval = self.early.interval_ms if self.early is not None else None
        if interval:
            first_due = (self.watermark // interval + 1) * interval
            if first_due <= watermark:
                self.end(first_due)
                for k, s in self.ordered(lambda s: s.since and not s.over):
                    self.tell(k, s, early=True)
        self.end(watermark)
        self.watermark = watermark
        for k in self.sessions:
            self.sessions[k] = [s for s in self.sessions[k] if s.last + self.gap + self.lateness > watermark]

    def end(self, watermark: int) -> None:
        for k, s in self.ordered(lambda s: not s.over and s.last + self.gap <= watermark):
            self.tell(k, s)

    def ordered(self, which: Any) -> list[tuple[Any, Held]]:
        found = [(k, s) for k, sessions in self.sessions.items() for s in sessions if which(s)]
        return sorted(found, key=lambda each: (each[1].last, each[1].first, each[0] is None, each[0] or ""))

    def tell(self, k: Any, s: Held, early: bool = False, retracted: bool = False) -> None:
        v = [r["v"] for r in s.rows if r["v"] is not None]
        told = {"k": k, "window_start": s.first, "window_end": s.last + self.gap, "update": s.updates}
        if self.early is not None:
            told["early"] = early
        self.out.append(
            {
                **told,
                "retracted": retracted,
                "n": len(s.rows),
                "total": sum(v) if v else None,
                "first_v": s.rows[0]["v"] if s.rows else None,
                "last_v": s.rows[-1]["v"] if s.rows else None,
                "newest": max((r["t"] for r in s.rows), default=None),
            }
        )
        s.updates, s.told, s.told_last, s.over = s.updates + 1, len(s.rows), s.last, not early


ROW = st.builds(row, st.sampled_from(["a", "b", None]), st.integers(-60, 60), st.one_of(st.none(), st.integers(-9, 9)))
ACTION = actions_of(ROW)
EARLY = st.one_of(
    st.none(),
    st.sampled_from([1, 3, 7, 50]).map(lambda interval: Every(interval * MS)),
    st.sampled_from([1, 2, 3, 7]).map(lambda rows: Every(rows=rows)),
)


@pytest.mark.slow
@examples(60)
@given(EARLY, st.sampled_from([0, 1, LATENESS, 1_000]), st.lists(ACTION, max_size=10), st.booleans())
def test_sessions_tell_what_a_row_by_row_model_does_over_restarts_at_any_parallelism(
    early: Every | None, lateness: int, actions: list[tuple[str, Any]], in_any_order: bool
) -> None:
    beside_model(early, lateness, actions, in_any_order)


def beside_model(early: Every | None, lateness: int, actions: list[tuple[str, Any]], in_any_order: bool) -> None:
    """`in_any_order`: uses aggregates that ignore the order of rows, whose sessions are found by another algorithm."""
    model, aggregates = Model(early, lateness, GAP), IN_ANY_ORDER if in_any_order else AGGREGATES
    slots = Slots(lambda: operator(early, lateness, GAP, aggregates), 1, tags=[LATE])
    slots, got, late, alone = driven_beside(model, slots, actions, SCHEMA)
    left_out = AGGREGATES.keys() - aggregates.keys()
    if early is None and not lateness:  # a single result per session, without the columns of updates
        left_out |= {"update", "retracted"}
    model.out = [{name: value for name, value in each.items() if name not in left_out} for each in model.out]
    if not alone:  # then the order of each key
        late, model.late = (sorted(rows, key=repr) for rows in (late, model.late))
        got, model.out = (sorted(rows, key=lambda each: str(each["k"])) for rows in (got, model.out))
    assert got == model.out
    assert late == model.late
    for driven in slots.driven:
        driven.snapshot(len(actions) + 2)
        assert entries_left(driven.operator) == 0


TOLD = [(None, LATENESS), (Every(7 * MS), 0), (Every(7 * MS), LATENESS), (Every(rows=2), 0), (Every(rows=3), LATENESS)]


@pytest.mark.slow
@pytest.mark.draws
@pytest.mark.parametrize(("early", "lateness"), TOLD)
def test_some_streams_of_many_rows(early: Every | None, lateness: int) -> None:
    for seed in some(4):
        rng, at = random.Random(seed), -50
        actions: list[tuple[str, Any]] = []
        for _ in range(6):
            rows = []
            for n in range(rng.choice([5, 60, 150])):
                at += (step := rng.choice([0, 0, 0, 1, 3, GAP]))
                rows.append((row(rng.choice("abcdefgh"), at + 5 - rng.randint(0, 60), n), step))
            actions.append(("told rows", rows))
            if rng.random() < 0.5:
                actions.append(("restart", rng.randint(1, 3)))
        beside_model(early, lateness, actions, in_any_order=seed % 2 == 1)


@pytest.mark.slow
def test_where_batches_end_shows_in_nothing() -> None:
    rng = random.Random(5)
    steps = [rng.choice([0, 0, 1, 4]) for _ in range(60)]
    reached = np.cumsum(steps).astype(np.int64)
    rows = [row(rng.choice("abc"), int(at) + 5 - rng.randint(0, 45), n) for n, at in enumerate(reached)]
    for early, lateness in TOLD:
        wanted = None
        for cut in (1, 7, 60):
            it = Driven(operator(early, lateness), name="s", tags=[LATE])
            for begin in range(0, len(rows), cut):
                it.feed(rows[begin : begin + cut], SCHEMA, reached=reached[begin : begin + cut])
            it.watermark(WATERMARK_MAX)
            told = [int(at) for batch in it.batches for at in batch.reached]
            assert told == sorted(told)
            got = plain(it.take()), told, [each for batch in it.side[LATE] for each in batch.rows.to_pylist()]
            wanted = wanted or got
            assert got == wanted


def told(rows: Rows, *more: str) -> list[tuple[Any, ...]]:
    names = ("window_start", "window_end", "update", "retracted", "n", *more)
    return [tuple(each[name] for name in names) for each in plain(rows)]


def test_a_late_row_tells_its_session_again_until_the_lateness_is_over() -> None:
    it = Driven(operator(None, LATENESS), name="s", tags=[LATE])
    it.feed([row("a", 0)], SCHEMA)
    it.watermark(GAP)
    assert told(it.take()) == [(0, 10, 0, False, 1)]
    it.watermark(GAP + LATENESS - 1)
    it.feed([row("a", 0)], SCHEMA)
    assert told(it.take()) == [(0, 10, 1, False, 2)]
    it.watermark(GAP + LATENESS)
    it.feed([row("a", 0)], SCHEMA)
    assert it.take() == []
    assert [batch.rows.num_rows for batch in it.side[LATE]] == [1]
    it.snapshot(1)
    assert entries_left(it.operator) == 0


def test_a_late_row_may_open_a_session_again_which_is_told_at_its_new_end() -> None:
    it = Driven(operator(None, LATENESS), name="s", tags=[LATE])
    it.feed([row("a", 0)], SCHEMA)
    it.watermark(GAP)
    it.take()
    it.feed([row("a", 9)], SCHEMA)
    assert it.take() == []
    it.watermark(18)
    assert it.take() == []
    it.watermark(19)
    assert told(it.take()) == [(0, 19, 1, False, 2)]


def test_results_of_sessions_that_merge_are_retracted_before_the_merged_result() -> None:
    it = Driven(operator(None, 100), name="s", tags=[LATE])
    it.feed([row("a", 0), row("a", 20)], SCHEMA)
    it.watermark(50)
    it.take()
    it.feed([row("a", 10)], SCHEMA)
    assert told(it.take()) == [(20, 30, 1, True, 0), (0, 30, 1, False, 3)]
    it.feed([row("a", -5)], SCHEMA)
    assert told(it.take()) == [(0, 30, 2, True, 0), (-5, 30, 0, False, 4)]


@pytest.mark.parametrize("lateness", [0, 100])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_row_between_two_sessions_joins_them_after_a_restore_at_other_parallelism(
    before: int, after: int, lateness: int
) -> None:
    """The second session's result is retracted; the merged session has the rows of both and ends once, where the
    second session ended.
    """
    keys = [f"k{n}" for n in range(20)]
    early = None if lateness else Every(rows=1_000)  # adds the columns of updates for sessions without lateness, too
    slots = Slots(lambda: operator(early, lateness), before, tags=[LATE])
    slots.feed([row(k, t, v) for k in keys for t, v in ((0, 1), (3, 2), (20, 4))], SCHEMA)
    reached = 40 if lateness else 5
    slots.watermarks(*[reached] * before)
    both = [(0, 13, 0, False, 2)] * 20 + [(20, 30, 0, False, 1)] * 20
    assert sorted(told(slots.take())) == (both if lateness else [])
    slots = slots.rescaled(1, after)
    slots.feed([row(k, 11, 8) for k in keys], SCHEMA)
    one = (0, 30, 1 if lateness else 0, False, 4, 15, 1, 8, 20)  # the row between the sessions arrives last
    names = ("total", "first_v", "last_v", "newest")
    if lateness:
        rows = slots.take()
        assert len(rows) == 40
        for k in keys:
            its = told([each for each in rows if each["k"] == k], *names)
            assert [each[:5] for each in its] == [(20, 30, 1, True, 0), (0, 30, 1, False, 4)]
            assert its[1][5:] == one[5:]
    else:
        assert slots.take() == []
        slots.watermarks(*[29] * after)
        assert slots.take() == []
        slots.watermarks(*[30] * after)
        rows = slots.take()
        assert sorted(each["k"] for each in rows) == sorted(keys)
        assert told(rows, *names) == [one] * 20
    slots = slots.rescaled(2, before)
    slots.watermarks(*[WATERMARK_MAX] * before)
    assert slots.take() == []
    for it in slots.driven:
        it.snapshot(3)
        assert entries_left(it.operator) == 0


@pytest.mark.slow
def test_the_rows_that_are_not_retracted_are_the_sessions() -> None:
    """A table by key and start, from which retractions delete, equals the sessions of the sorted rows."""
    rng = random.Random(3)
    rows = [row(rng.choice("ab"), rng.randrange(3_000), n) for n in range(300)]
    for early, lateness in ((Every(rows=2), 5_000), (Every(50 * MS), 5_000), (None, 5_000)):
        it = Driven(operator(early, lateness), name="s", tags=[LATE])
        for begin in range(0, 300, 40):
            it.feed(rows[begin : begin + 40], SCHEMA)
            it.watermark(begin * 12)
        it.watermark(WATERMARK_MAX)
        table: dict[Any, Any] = {}
        for each in plain(it.take()):
            table[each["k"], each["window_start"]] = each
            if each["retracted"]:
                del table[each["k"], each["window_start"]]
        wanted = {}
        for k in "ab":
            times = sorted(each["t"] for each in rows if each["k"] == k)
            while times:
                end = next((n for n in range(1, len(times)) if times[n] - times[n - 1] > GAP), len(times))
                wanted[k, times[0]], times = end, times[end:]
        assert {key: each["n"] for key, each in table.items()} == wanted


def test_early_results_by_the_wall_clock_are_of_the_sessions_that_changed() -> None:
    it = Driven(operator(Every(5 * MS, clock="processing"), 0), name="s", tags=[LATE])
    now_s = [0.0]
    object.__setattr__(it.operator.context, "now_s", lambda: now_s[0])  # type: ignore[attr-defined]
    it.feed([row("a", 0), row("b", 3)], SCHEMA)
    assert not it.operator.on_wall_clock(it._emit)
    now_s[0] = 0.01
    assert it.operator.on_wall_clock(it._emit)
    assert told(it.take(), "early") == [(0, 10, 0, False, 1, True), (3, 13, 0, False, 1, True)]
    it.feed([row("a", -4)], SCHEMA)
    assert told(it.take()) == [(0, 10, 1, True, 0)]
    now_s[0] = 0.02
    while it.operator.on_wall_clock(it._emit):
        pass
    assert told(it.take(), "early") == [(-4, 10, 0, False, 2, True)]
    it.watermark(WATERMARK_MAX)
    assert told(it.take(), "early") == [(-4, 10, 1, False, 2, False), (3, 13, 1, False, 1, False)]


def test_a_job_with_late_visits_writes_each_session_once_by_its_last_update() -> None:
    rows = [{"k": "a", "t": t, "v": 1} for t in (0, 50_000, 200_000, 60_000, 70_000, 400_000)]
    flow, out, late_out = Dataflow("late-visits"), CollectSink(), CollectSink()
    read = flow.from_iterator(
        "rows", lambda part, of: rows, schema={"k": str, "t": int, "v": int}, splits=1, event_time="t"
    )
    visits = read.key_by("k").window(
        "visits",
        Session(datetime.timedelta(minutes=1)),
        event_time="t",
        allowed_lateness=datetime.timedelta(minutes=5),
        early=Every(rows=2),
    )
    sessions, late = visits.aggregate(late=True, n=count())
    sessions.sink("out", out)
    late.sink("late", late_out)
    flow.run_local(parallelism=1)
    assert [(each["update"], each["early"], each["retracted"], each["n"]) for each in out.rows()] == [
        (0, True, False, 2),
        (1, False, False, 2),
        (2, False, False, 3),
        (3, False, False, 4),
        (0, False, False, 1),
        (0, False, False, 1),
    ]
    assert late_out.rows() == []


def test_parts_of_sessions_are_refused() -> None:
    keyed = Dataflow("f").from_iterator(
        "rows", lambda part, of: [], schema={"k": str, "t": int}, splits=1, event_time="t"
    )
    with pytest.raises(InvalidJob, match="leave accumulate=False out"):
        keyed.key_by("k").window("s", Session(MS), event_time="t", early=Every(rows=2, accumulate=False))
