"""Metrics of a job, computed from the reports of several slots."""

from barrier_runtime.coordinator.metric_table import LATE_ROWS, LOOP_LAG_MS, RECORDS, WATERMARK_MS
from barrier_runtime.coordinator.status.statistics import over_slots


def test_the_row_of_the_table_says_how_figures_of_slots_become_one() -> None:
    told = [
        {"records": 10.0, "watermark_ms": 7.0, "loop_lag_ms": 1.0},
        {"records": 5.0, "watermark_ms": 9.0, "loop_lag_ms": 3.0},
        {"loop_lag_ms": 2.0},  # between two generations
    ]
    assert over_slots(RECORDS, told) == 15
    assert over_slots(WATERMARK_MS, told) == 7
    assert over_slots(LOOP_LAG_MS, told) == 3


def test_counters_of_operators_are_summed_over_operators_too() -> None:
    told = [{"a.late_rows": 1.0, "b.late_rows": 2.0, "b.lookups": 8.0}, {"a.late_rows": 4.0, "late_rows": 100.0}]
    assert over_slots(LATE_ROWS, told) == 7


def test_what_nobody_told_is_not_zero() -> None:
    assert over_slots(WATERMARK_MS, [{}, {}]) is None
    assert over_slots(LATE_ROWS, []) is None
