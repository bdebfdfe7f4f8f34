"""Calendar windows: each local day, week and month as in zoneinfo, against a model of rows."""

import datetime
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots
from window_models import plain
from window_operators import aggregating, applying, topping

from barrier_runtime import Calendar, CollectSink, Dataflow, Every, Tumbling, count, sum_
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.windows.operator import LATE
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

UTC = datetime.timezone.utc
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
MS = datetime.timedelta(milliseconds=1)
HOUR = 3_600_000
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
ZONES = (
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kolkata",  # half an hour
    "Australia/Lord_Howe",  # clocks are set by half an hour
    "America/Sao_Paulo",  # at midnight
    "Pacific/Apia",  # a day was skipped
    "America/Toronto",  # 1919: from 23:30 to 00:30
    "Africa/Cairo",
    "UTC",
)


def at(text: str, zone: str = "UTC") -> int:
    return (datetime.datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)) - EPOCH) // MS


def label(every: str, zone: str, time_ms: int) -> Any:
    """Which local day, week or month a time is in."""
    day = (EPOCH + time_ms * MS).astimezone(ZoneInfo(zone)).date()
    if every == "week":
        return day - datetime.timedelta(days=day.weekday())
    return day if every == "day" else (day.year, day.month)


def hours(window: Calendar, *times_ms: int) -> list[float]:
    _, starts = window.assign(np.array(times_ms))
    return [length / HOUR for length in (window.ends(starts) - starts).tolist()]


def test_days_have_23_and_25_hours_when_clocks_are_set() -> None:
    berlin = Calendar("day", "Europe/Berlin")
    assert hours(berlin, at("2026-03-29T12:00"), at("2026-10-25T12:00"), at("2026-07-01T12:00")) == [23, 25, 24]
    assert hours(Calendar("day", "Australia/Lord_Howe"), at("2026-04-04T20:00"), at("2026-10-03T20:00")) == [24.5, 23.5]
    assert hours(Calendar("week", "Europe/Berlin"), at("2026-03-29T12:00"), at("2026-10-25T12:00")) == [167, 169]
    assert hours(Calendar("month", "Europe/Berlin"), at("2026-03-05T00:00"), at("2026-02-05T00:00")) == [743, 672]


def test_windows_begin_with_the_first_time_of_their_day_in_the_zone() -> None:
    def start(every: Any, zone: str, time: str) -> str:
        return str(EPOCH + Calendar(every, zone).first_start(at(time)) * MS)

    assert start("day", "Asia/Kolkata", "2026-06-01T18:30") == "2026-06-01 18:30:00+00:00"
    assert start("day", "Asia/Kolkata", "2026-06-01T18:29:59.999") == "2026-05-31 18:30:00+00:00"
    assert start("week", "Europe/Berlin", "2026-03-29T21:59:59.999") == "2026-03-22 23:00:00+00:00"  # a Sunday
    assert start("week", "Europe/Berlin", "2026-03-29T22:00") == "2026-03-29 22:00:00+00:00"  # Monday, summer time
    assert start("month", "America/New_York", "2026-03-31T12:00") == "2026-03-01 05:00:00+00:00"
    assert start("day", "America/Sao_Paulo", "2018-11-04T12:00") == "2018-11-04 03:00:00+00:00"  # there is no midnight
    assert start("day", "America/Toronto", "1919-03-31T12:00") == "1919-03-31 04:30:00+00:00"  # 00:30


@pytest.mark.parametrize("every", ["day", "week", "month"])
def test_years_beside_a_known_year_have_their_first_and_last_windows(every: Any) -> None:
    """A calendar loads years on demand, with their neighbours; the order of the times does not matter."""
    times = [at("2025-12-31T23:30"), at("2023-01-01T00:30"), at("2026-01-01T02:00"), at("2022-12-31T23:30")]
    for time in times:
        known, fresh = Calendar(every, "America/New_York"), Calendar(every, "America/New_York")
        known.assign(np.array([at("2024-06-15T12:00")]))
        asked = np.array([time])
        starts = known.assign(asked)[1]
        assert starts.tolist() == fresh.assign(asked)[1].tolist()
        assert known.ends(starts).tolist() == fresh.ends(starts).tolist()
        assert starts[0] <= time < known.ends(starts)[0]


def test_a_day_that_a_zone_has_skipped_is_no_window() -> None:
    apia = Calendar("day", "Pacific/Apia")
    _, starts = apia.assign(np.array([at("2011-12-29T12:00"), at("2011-12-30T09:00"), at("2011-12-30T11:00")]))
    assert np.diff(starts).tolist() == [0, 24 * HOUR]
    assert apia.ends(starts[:1]) == starts[2:]


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("every", ["day", "week", "month"])
@examples(15)
@given(times=st.lists(st.integers(at("1900-01-01T00:00"), at("2200-01-01T00:00")), min_size=1, max_size=20))
def test_times_of_one_local_day_week_or_month_are_one_window(every: Any, zone: str, times: list[int]) -> None:
    window = Calendar(every, zone)
    _, starts = window.assign(np.array(times))
    ends = window.ends(starts)
    for time, start, end in zip(times, starts.tolist(), ends.tolist(), strict=True):
        assert start <= time < end <= start + window.longest_ms
        assert label(every, zone, start) == label(every, zone, time)
        assert label(every, zone, end) != label(every, zone, time)
        assert label(every, zone, start - 1) < label(every, zone, time)
        assert window.first_start(time) == start == window.first_start(end - 1)
        assert window.last_ms(start) == end - 1
        assert window.first_open_start(end - 2) == start
        assert window.first_open_start(end - 1) == end


def test_far_watermarks_close_all_windows_or_none() -> None:
    window = Calendar("month", "Europe/Berlin")
    far = np.array([WATERMARK_MIN, at("2026-01-10T00:00"), WATERMARK_MAX])
    starts = window.first_open_starts(far).tolist()
    assert starts[0] < at("0005-01-01T00:00") < starts[1] == at("2026-01-01T00:00", "Europe/Berlin") < starts[2]
    assert not window.holds(-(2**62), 0)
    assert not window.holds(0, 2**62)
    assert window.over_by(far).tolist() == sorted(set(window.over_by(far).tolist()))
    assert window.first_open_start(WATERMARK_MIN - 1) == starts[0]


def test_an_unknown_zone_or_period_is_refused_with_the_remedy() -> None:
    for zone in ("Europe/Berlinn", "../etc/passwd", "Europe", "", None):
        with pytest.raises(InvalidJob, match="Europe/Berlin"):
            Calendar("day", zone)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="pass 'day', 'week' or 'month'"):
        Calendar("year", "UTC")  # type: ignore[arg-type]


def test_days_of_utc_are_tumbling_windows() -> None:
    times = np.array([at("2026-01-01T00:00") + n * 5 * HOUR + n for n in range(200)])
    assert (Calendar("day", "UTC").assign(times)[1] == Tumbling(datetime.timedelta(days=1)).assign(times)[1]).all()


def rows() -> list[dict[str, Any]]:
    """Around both changes of the clocks, three hours apart."""
    begins = at("2026-03-28T00:00"), at("2026-10-24T00:00")
    times = [begin + n * 3 * HOUR + n for begin in begins for n in range(24)]
    return [{"k": "ab"[n % 2], "t": time, "v": n} for n, time in enumerate(times)]


def expected(every: str, zone: str = "Europe/Berlin") -> dict[Any, tuple[int, int]]:
    found: dict[Any, tuple[int, int]] = {}
    for row in rows():
        key = row["k"], label(every, zone, row["t"])
        n, total = found.get(key, (0, 0))
        found[key] = n + 1, total + row["v"]
    return found


@pytest.mark.parametrize("every", ["day", "week", "month"])
@pytest.mark.parametrize("form", ["aggregate", "early rows", "early time", "lateness", "apply", "top"])
def test_each_content_and_trigger_has_the_windows_over_restarts_at_any_parallelism(every: Any, form: str) -> None:
    window, aggregates = Calendar(every, "Europe/Berlin"), {"n": count(), "total": sum_("v")}
    early = {"early rows": Every(rows=2), "early time": Every(datetime.timedelta(hours=5))}.get(form)

    def whole(key: str, of: Any, table: pa.Table) -> dict[str, Any]:
        total = sum(table["v"].to_pylist())
        return {"k": key, "window_start": of.start, "window_end": of.end, "n": len(table), "total": total}

    def made() -> Any:
        if form == "apply":
            spans = [(name, pa.timestamp("ms", "UTC")) for name in ("window_start", "window_end")]
            out = pa.schema([("k", pa.string()), *spans, ("n", pa.int64()), ("total", pa.int64())])
            return applying("w", ["k"], window, "t", whole, SCHEMA, out)
        if form == "top":
            return topping("w", ["k"], window, "t", 1_000, "v", True, SCHEMA)
        lateness = 2 * HOUR if form == "lateness" else 0
        return aggregating("w", ["k"], window, "t", aggregates, SCHEMA, lateness_ms=lateness, early=early)

    slots, got, of = Slots(made, 1, tags=[LATE]), [], rows()
    for checkpoint, parallelism in enumerate((2, 1, 3), 1):
        part = of[(checkpoint - 1) * 16 : checkpoint * 16]
        slots.feed(part, SCHEMA)
        slots.watermarks(*[part[-1]["t"] - 1] * slots.parallelism)
        got += slots.take()
        slots = slots.rescaled(checkpoint, parallelism)
    slots.watermarks(*[WATERMARK_MAX] * slots.parallelism)
    results: dict[Any, tuple[int, int]] = {}
    for row in plain(got + slots.take()):
        assert window.assign(np.array([row["window_start"]]))[1] == row["window_start"]
        assert window.last_ms(row["window_start"]) + 1 == row["window_end"]
        key = row["k"], label(every, "Europe/Berlin", row["window_start"])
        if form == "top":
            n, total = results.get(key, (0, 0))
            results[key] = n + 1, total + row["v"]
        else:
            assert form in ("early rows", "early time") or key not in results
            results[key] = row["n"], row["total"]
    assert results == expected(every)


def test_late_rows_are_kept_for_the_lateness_behind_a_long_day() -> None:
    window = Calendar("day", "Europe/Berlin")
    end = at("2026-10-26T00:00", "Europe/Berlin")
    it = Driven(aggregating("w", ["k"], window, "t", {"n": count()}, SCHEMA, True, HOUR), tags=[LATE])
    it.feed([{"k": "a", "t": end - 25 * HOUR, "v": 1}], SCHEMA)
    it.watermark(end - 2)
    assert it.take() == []
    it.watermark(end - 1)
    assert [(row["n"], row["update"]) for row in it.take()] == [(1, 0)]
    it.watermark(end - 2 + HOUR)
    it.feed([{"k": "a", "t": end - 1, "v": 1}], SCHEMA)
    assert [(row["n"], row["update"]) for row in it.take()] == [(2, 1)]
    it.watermark(end - 1 + HOUR)
    it.feed([{"k": "a", "t": end - 1, "v": 1}], SCHEMA)
    assert it.take() == []
    assert len(it.side[LATE]) == 1


@pytest.mark.slow
def test_a_flow_explains_its_calendar_and_runs_by_either_clock() -> None:
    flow, out, by_clock = Dataflow("days"), CollectSink(), CollectSink()
    read = flow.from_iterator("rows", lambda part, of: rows(), schema=SCHEMA, splits=1, event_time="t")
    keyed = read.key_by("k")
    days = keyed.window("days", Calendar("day", zone="Europe/Berlin"), event_time="t")
    days.aggregate(n=count(), total=sum_("v")).sink("out", out)
    keyed.window("now", Calendar("month", zone="UTC"), clock="processing").aggregate(n=count()).sink(
        "by-clock", by_clock
    )
    assert "calendar day of Europe/Berlin" in str(flow.explain())
    flow.run_local(parallelism=1)
    assert len(out.rows()) == len(expected("day"))
    assert sum(row["n"] for row in by_clock.rows()) == 48
