"""Users' own triggers against a row-by-row model, for any batch borders and over restarts."""

import datetime
import decimal
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots, World
from window_operators import aggregating

from barrier_runtime import (
    CollectSink,
    Count,
    Dataflow,
    Global,
    OwnTrigger,
    Session,
    Sliding,
    TriggerResult,
    TriggerWindow,
    Tumbling,
    count,
    first,
    sum_,
)
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.operator import LATE
from barrier_runtime.state.errors import BarrierRuntimeError, InvalidJob
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
AGGREGATES = {"n": count(), "total": sum_("v"), "first": first("v")}
WINDOWS: tuple[WindowAssigner, ...] = (Tumbling(20 * MS), Sliding(20 * MS, 10 * MS), Global())


class Steps(OwnTrigger):
    """Fires when a sum has reached 5, forgets rows at a 4, and ends silently after an odd number of rows."""

    state = {"sum": 0, "seen": 0.0}

    def on_row(self, row: Any, window: TriggerWindow) -> TriggerResult | None:
        window.state["sum"] += row["v"]
        window.state["seen"] += 1
        told = TriggerResult.NOTHING
        if window.state["sum"] >= 5:
            window.state["sum"] = 0
            told |= TriggerResult.FIRE
        if row["v"] == 4:
            told |= TriggerResult.PURGE
        return told or None

    def on_close(self, window: TriggerWindow) -> TriggerResult | None:
        return TriggerResult.NOTHING if window.state["seen"] % 2 else None


class AtTimes(OwnTrigger):
    """Trigger that fires at each third call for a window, and purges the window's rows at each second call."""

    state = {"calls": 0}
    interval = 7 * MS

    def on_time(self, time_ms: int, window: TriggerWindow) -> TriggerResult:
        assert time_ms % 7 == 0
        window.state["calls"] += 1
        fires, purges = window.state["calls"] % 3 == 0, window.state["calls"] % 2 == 0
        fire = TriggerResult.FIRE if fires else TriggerResult.NOTHING
        return fire | TriggerResult.PURGE if purges else fire


def model(rows: list[dict[str, Any]], size: int, slide: int) -> list[Any]:
    """Expected results of `Steps` for rows in time order, as (key, start, early, update, total) per window."""
    found: dict[Any, Any] = {}
    told = []
    for row in rows:
        last = row["t"] // slide * slide if size else 0
        for start in range(last - size + slide, last + 1, slide) if size else (0,):
            its = found.setdefault((row["k"], start), {"rows": [], "sum": 0, "seen": 0, "fired": 0})
            its["rows"].append(row["v"])
            its["sum"] += row["v"]
            its["seen"] += 1
            if its["sum"] >= 5:
                its["sum"] = 0
                told.append((row["k"], start, True, its["fired"], len(its["rows"]), sum(its["rows"]), its["rows"][0]))
                its["fired"] += 1
            if row["v"] == 4:
                its["rows"] = []
    for (key, start), its in found.items():
        if its["seen"] % 2 == 0 and its["rows"]:
            told.append((key, start, False, its["fired"], len(its["rows"]), sum(its["rows"]), its["rows"][0]))
    return sorted(told)


def told(rows: list[dict[str, Any]]) -> list[Any]:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    starts = [(row["window_start"] - epoch) // MS if "window_start" in row else 0 for row in rows]
    return [
        (row["k"], start, row["early"], row["update"], row["n"], row["total"], row["first"])
        for row, start in zip(rows, starts, strict=True)
    ]


def made(window: WindowAssigner, trigger: OwnTrigger, lateness_ms: int = 0) -> Any:
    time = "t" if window.bounded else None
    return aggregating("w", ["k"], window, time, AGGREGATES, SCHEMA, lateness_ms=lateness_ms, early=trigger)


@st.composite
def drawn_rows(draw: st.DrawFn) -> list[dict[str, Any]]:
    steps = draw(
        st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 9), st.integers(0, 5)), min_size=1, max_size=40)
    )
    times = np.cumsum([step for _, step, _ in steps]).tolist()
    return [{"k": k, "t": time, "v": v} for (k, _, v), time in zip(steps, times, strict=True)]


def cuts(rows: list[Any], sizes: list[int]) -> list[list[Any]]:
    parts, rest = [], rows
    while rest:
        size = sizes[len(parts) % len(sizes)]
        parts.append(rest[:size])
        rest = rest[size:]
    return parts


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@examples(25)
@given(rows=drawn_rows(), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4), restarts=st.booleans())
def test_results_are_those_of_a_model_however_rows_are_cut_and_over_restarts(
    window: Any, rows: list[dict[str, Any]], sizes: list[int], restarts: bool
) -> None:
    slots, got = Slots(lambda: made(window, Steps()), 1, tags=[LATE]), []
    for checkpoint, part in enumerate(cuts(rows, sizes), 1):
        slots.feed(part, SCHEMA, np.array([row["t"] - 1 for row in part]))
        got += slots.take()
        if restarts:
            slots = slots.rescaled(checkpoint, 1 + checkpoint % 3)
    slots.watermarks(*[WATERMARK_MAX] * slots.parallelism)
    size, slide = (20, window.step_ms) if window.bounded else (0, 1)
    assert sorted(told(got + slots.take())) == model(rows, size, slide)


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS[:2], ids=str)
@examples(25)
@given(rows=drawn_rows(), sizes=st.lists(st.integers(1, 12), min_size=1, max_size=4))
def test_what_is_due_by_event_time_does_not_depend_on_cuts_or_restarts(
    window: Any, rows: list[dict[str, Any]], sizes: list[int]
) -> None:
    def given_rows(sizes: list[int], restarts: bool) -> list[Any]:
        slots, got = Slots(lambda: made(window, AtTimes()), 1, tags=[LATE]), []
        for checkpoint, part in enumerate(cuts(rows, sizes), 1):
            slots.feed(part, SCHEMA, np.array([row["t"] - 1 for row in part]))
            got += slots.take()
            if restarts:
                slots = slots.rescaled(checkpoint, 1)
        slots.watermarks(*[WATERMARK_MAX] * slots.parallelism)
        return told(got + slots.take())

    assert given_rows(sizes, False) == given_rows([1], False) == given_rows(sizes, True)


@pytest.mark.parametrize(
    ("initial", "value", "said"),
    [
        (0, 0.5, r"begins with 0, but 0.5 \(float\) was set"),
        (0, decimal.Decimal(1), r"begins with 0, but .* \(Decimal\) was set"),
        (0, 1 << 63, "cannot hold 9223372036854775808: whole numbers have 64 bits; begin with 0.0"),
        (0.5, 0.25, None),
        (0.0, (1 << 53) + 1, "begins with 0.0, which does not hold all digits of 9007199254740993"),
        (0.0, 1, None),
    ],
)
def test_a_number_that_the_column_would_change_is_refused(initial: Any, value: Any, said: str | None) -> None:
    class Sets(OwnTrigger):
        state = {"sum": initial}

        def on_row(self, row: dict[str, Any], window: TriggerWindow) -> None:
            window.state["sum"] = value

    slots = Slots(lambda: made(Global(), Sets()), 1, tags=[LATE])
    rows = [{"k": "a", "t": 1, "v": 1}]
    if said is None:
        slots.feed(rows, SCHEMA)
        return
    with pytest.raises(BarrierRuntimeError, match=rf"Sets.on_row: window.state\['sum'\] {said}"):
        slots.feed(rows, SCHEMA)


def test_a_window_is_asked_at_the_first_time_behind_its_rows() -> None:
    asked: list[Any] = []

    class Noting(OwnTrigger):
        interval = 10 * MS

        def on_time(self, time_ms: int, window: TriggerWindow) -> TriggerResult:
            asked.append((time_ms, window.key, window.start_ms, window.end_ms, window.rows))
            return TriggerResult.FIRE | TriggerResult.PURGE

    it = Driven(made(Tumbling(100 * MS), Noting()), tags=[LATE])
    it.watermark(0)
    it.feed([{"k": "a", "t": 5, "v": 1}, {"k": "a", "t": 6, "v": 2}], SCHEMA)
    it.watermark(35)
    it.watermark(60)  # no row came
    assert asked == [(10, "a", 0, 100, 2)]
    it.feed([{"k": "a", "t": 61, "v": 4}], SCHEMA)
    it.watermark(99)
    assert asked == [(10, "a", 0, 100, 2), (70, "a", 0, 100, 1)]
    assert told(it.take()) == [("a", 0, True, 0, 2, 3, 1), ("a", 0, True, 1, 1, 4, 4)]
    it.watermark(WATERMARK_MAX)
    assert it.take() == [], "a window without rows emits nothing"
    assert it.operator._table.entries == 0  # type: ignore[attr-defined]


def test_late_rows_emit_a_window_whatever_its_trigger_said() -> None:
    it = Driven(made(Tumbling(20 * MS), Steps(), lateness_ms=50), tags=[LATE])
    it.feed([{"k": "a", "t": 1, "v": 1}], SCHEMA)
    it.watermark(30)
    assert it.take() == [], "it ended silently"
    it.feed([{"k": "a", "t": 2, "v": 2}], SCHEMA)
    assert told(it.take()) == [("a", 0, False, 0, 2, 3, 1)]
    it.watermark(70)
    assert it.operator._table.entries == 0  # type: ignore[attr-defined]


def test_by_the_wall_clock_windows_are_asked_in_turns() -> None:
    class ByClock(OwnTrigger):
        interval, clock = 10 * MS, "processing"

        def on_time(self, time_ms: int, window: TriggerWindow) -> TriggerResult:
            return TriggerResult.FIRE | TriggerResult.PURGE

    now_s = [0.0]

    class Clocked(World):
        def context(self, *arguments: Any) -> Any:
            return replace(super().context(*arguments), now_s=lambda: now_s[0], call_later=lambda seconds, wake: None)

    it = Driven(made(Tumbling(1_000 * MS), ByClock()), Clocked(), tags=[LATE])
    for n in range(3):
        it.feed([{"k": "a", "t": n, "v": n + 1}], SCHEMA)
        assert not it.operator.on_wall_clock(it._emit)
        now_s[0] += 0.02
        assert it.operator.on_wall_clock(it._emit)
        assert told(it.take()) == [("a", 0, True, n, 1, n + 1, n + 1)]
        assert not it.operator.on_wall_clock(it._emit)


def test_what_a_trigger_raises_or_returns_wrongly_ends_the_job_with_its_name() -> None:
    class Raising(OwnTrigger):
        def on_row(self, row: Any, window: TriggerWindow) -> TriggerResult:
            raise ValueError("no")

    class Wrong(OwnTrigger):
        def on_row(self, row: Any, window: TriggerWindow) -> Any:
            return True

    class Writing(OwnTrigger):
        def on_row(self, row: Any, window: TriggerWindow) -> None:
            window.state["more"] = 1

    for trigger, said in ((Raising(), "Raising.on_row"), (Wrong(), "return a TriggerResult"), (Writing(), "more")):
        it = Driven(made(Global(), trigger), tags=[LATE])
        with pytest.raises(BarrierRuntimeError, match=said):
            it.feed([{"k": "a", "t": 1, "v": 1}], SCHEMA)


def test_what_it_cannot_be_is_refused_with_the_remedy() -> None:
    class Text(OwnTrigger):
        state = {"name": "x"}  # type: ignore[dict-item]

    flow = Dataflow("refused")
    keyed = flow.from_iterator("r", lambda part, of: [], schema=SCHEMA, splits=1, event_time="t").key_by("k")
    with pytest.raises(InvalidJob, match="use a number"):
        keyed.window("w", Global(), early=Text()).aggregate(n=count())
    with pytest.raises(InvalidJob, match="use Every"):
        keyed.window("w", Session(MS), event_time="t", early=Steps())
    with pytest.raises(InvalidJob, match="leave early= out"):
        keyed.window("w", Count(3), early=Steps())
    with pytest.raises(InvalidJob, match="leave early= out"):
        keyed.window("w", Global(), early=Steps()).top(1, by="v")


def test_a_flow_with_a_trigger_of_its_own_names_it_and_gives_its_results() -> None:
    rows = [{"k": "a", "t": n, "v": n % 5} for n in range(20)]
    flow, out = Dataflow("own"), CollectSink()
    read = flow.from_iterator("r", lambda part, of: rows, schema=SCHEMA, splits=1, event_time="t")
    read.key_by("k").window("w", Tumbling(10 * MS), event_time="t", early=Steps()).aggregate(**AGGREGATES).sink(
        "o", out
    )
    assert "by Steps" in flow.explain()
    flow.run_local(parallelism=2)
    assert sorted(told(out.rows())) == model(rows, 10, 10)
