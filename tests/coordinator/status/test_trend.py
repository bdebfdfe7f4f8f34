"""The hour of a job's figures: bounds, gaps, a clock that jumps, and points joined for a chart."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.metric_table import BACKLOG_ROWS, ROWS_IN
from barrier_runtime.coordinator.status.shares import ReportedFigures, SubtaskWork, subtask_work
from barrier_runtime.coordinator.status.trend import (
    HOUR_MS,
    POINTS,
    STEP_MS,
    Trend,
    TrendPoint,
    downsampled,
    trend_point,
)
from barrier_runtime.coordinator.wire.messages import ChainSpec, HeldBack

NOW_MS = 1_790_000_000_000


def looked(trend: Trend, *times_ms: int, rate: float | None = 5.0) -> list[int]:
    for now_ms in times_ms:
        trend.look(lambda now_ms=now_ms: TrendPoint(now_ms, rate, 1.0, 2.0), now_ms)  # type: ignore[misc]
    return [each.at_ms for each in trend.points(times_ms[-1])]


def test_heartbeats_of_a_second_give_a_point_per_ten_seconds():
    asked = []
    trend = Trend()
    for second in range(35):
        now_ms = NOW_MS + 1_000 * second
        trend.look(lambda now_ms=now_ms: asked.append(now_ms) or TrendPoint(now_ms, 5.0), now_ms)  # type: ignore[misc]
    assert asked == [NOW_MS + STEP_MS * index for index in range(4)], "facts are requested for points only"
    assert trend.newest == TrendPoint(NOW_MS + 30_000, 5.0)


def test_unknown_figures_stay_unknown():
    trend = Trend()
    trend.look(lambda: TrendPoint(NOW_MS), NOW_MS)
    assert trend.points(NOW_MS) == (TrendPoint(NOW_MS),)


def test_a_clock_that_goes_back_removes_the_points_after_it():
    trend = Trend()
    assert looked(trend, NOW_MS, NOW_MS + 20_000, NOW_MS + 40_000, NOW_MS + 25_000) == [
        NOW_MS,
        NOW_MS + 20_000,
        NOW_MS + 25_000,
    ]
    assert looked(trend, NOW_MS - HOUR_MS) == [NOW_MS - HOUR_MS]
    assert len(trend) == 1


def test_a_clock_that_leaps_ahead_leaves_no_older_point():
    trend = Trend()
    assert looked(trend, NOW_MS, NOW_MS + 10 * HOUR_MS) == [NOW_MS + 10 * HOUR_MS]


def test_a_gap_is_left_empty():
    trend = Trend()
    assert looked(trend, NOW_MS, NOW_MS + 600_000) == [NOW_MS, NOW_MS + 600_000]


@given(st.lists(st.integers(-HOUR_MS, 3 * HOUR_MS), min_size=1, max_size=60), st.integers(1, 400))
def test_points_are_in_order_within_an_hour_and_few_whatever_the_clock_does(steps, most):
    trend, now_ms = Trend(), NOW_MS
    for step in steps:
        now_ms += step
        for later in range(3):
            looked(trend, now_ms + later * STEP_MS)
        times = [each.at_ms for each in trend.points(now_ms + 2 * STEP_MS)]
        assert times == sorted(set(times))
        assert len(trend) <= POINTS
        assert all(now_ms + 2 * STEP_MS - HOUR_MS < at for at in times)
    assert len(downsampled(trend.points(now_ms + 2 * STEP_MS), most)) <= most + 1


@pytest.mark.slow
def test_a_thousand_jobs_take_a_bounded_memory():
    trends = [Trend() for _ in range(1_000)]
    for trend in trends:
        looked(trend, *(NOW_MS + STEP_MS * index for index in range(0, POINTS, 40)))
    looked(trends[0], *(NOW_MS + STEP_MS * index for index in range(2 * POINTS)))
    full = trends[0]
    assert len(full) == POINTS
    assert sum(sys.getsizeof(column) for column in (full._at_ms, *full._figures)) <= 20_000, "bytes of a job"


def test_a_chart_has_the_mean_rate_and_the_worst_lag_of_each_part():
    rates = (10.0, 20.0, None, 40.0, None, None)
    points = [TrendPoint(NOW_MS + STEP_MS * n, rate, float(n), None) for n, rate in enumerate(rates)]
    assert downsampled(points, POINTS) == tuple(points)
    joined = downsampled(points, POINTS // 3)
    assert [(each.rows_per_s, each.lag_ms, each.backlog) for each in joined] in (
        [(15.0, 2.0, None), (40.0, 5.0, None)],
        [(10.0, 0.0, None), (30.0, 3.0, None), (None, 5.0, None)],
        [(15.0, 1.0, None), (40.0, 4.0, None), (None, 5.0, None)],
    )


def reports(rows: float, backlog: float | None = None) -> ReportedFigures:
    figures = ReportedFigures()
    figures.tell(1, 0, {ROWS_IN.key("a"): 0.0, ROWS_IN.key("b"): 0.0})
    more = {} if backlog is None else {BACKLOG_ROWS.key("a"): backlog}
    figures.tell(1, 10_000, {ROWS_IN.key("a"): rows, ROWS_IN.key("b"): 1.0, **more})
    return figures


def test_a_point_has_the_figures_of_all_sources_and_slots():
    chains = [ChainSpec(0, ("a",), is_source=True), ChainSpec(1, ("b",))]
    times = [{"a": HeldBack("x", NOW_MS - 5_000)}, {"a": HeldBack("y", NOW_MS - 9_000)}]
    point = trend_point(chains, {0: reports(100.0, 7.0), 1: reports(300.0)}, times, NOW_MS)
    assert point == TrendPoint(NOW_MS, 40.0, 9_000.0, 7.0)
    assert trend_point([*chains, ChainSpec(2, ("c",), is_source=True)], {0: reports(1.0)}, [], NOW_MS) == TrendPoint(
        NOW_MS
    )
    assert trend_point(chains, {}, [*times, {"a": HeldBack("z", None)}], NOW_MS).lag_ms is None


def test_the_rate_is_unknown_until_all_slots_that_read_have_one():
    begun, other = ReportedFigures(), ReportedFigures()
    begun.tell(1, 0, {ROWS_IN.key("a"): 0.0})
    other.tell(1, 0, {ROWS_IN.key("b"): 0.0})

    def rate(*of_slots: ReportedFigures) -> float | None:
        chains = [ChainSpec(0, ("a",), is_source=True)]
        return trend_point(chains, dict(enumerate(of_slots)), [], NOW_MS).rows_per_s

    assert rate(reports(100.0), begun) is None
    assert rate(reports(100.0), ReportedFigures()) is None, "connected, and has not reported"
    assert rate(reports(100.0), other) == 10.0, "reads nothing of this source"
    assert rate(reports(100.0), reports(300.0)) == 40.0
    assert rate() is None


def test_each_subtask_has_a_rate_and_a_slot_that_has_just_begun_has_none():
    begun = ReportedFigures()
    begun.tell(1, 0, {ROWS_IN.key("a"): 3.0})
    work = subtask_work(ChainSpec(0, ("a", "b"), is_source=True), {1: begun, 0: reports(200.0)})
    assert work == (SubtaskWork(0, 20.0, None, None, None, 200), SubtaskWork(1, None, None, None, None, 3))
