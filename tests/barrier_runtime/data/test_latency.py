"""Latencies: recorded per row, merged without loss, and stored compactly until rows are visible."""

import pytest
from hdrh.histogram import HdrHistogram

from barrier_runtime.coordinator.status.latency import HIGHEST_US, LOWEST_US, SIGNIFICANT_DIGITS, merged
from barrier_runtime.coordinator.status.status import LatencyStatus
from barrier_runtime.operators.metrics import EmitTimes, LatencyRecorder

MS = 1_000_000  # nanoseconds


def shown(*recorders: LatencyRecorder) -> LatencyStatus:
    return merged([{"sink": recorder.encoded()} for recorder in recorders])["sink"]


def test_a_batch_counts_as_many_rows_as_it_has() -> None:
    recorder = LatencyRecorder()
    recorder.record(1 * MS, rows=99)
    recorder.record(500 * MS, rows=1)
    assert shown(recorder).count == 100
    assert shown(recorder).p50 == pytest.approx(1.0, rel=0.001)
    assert shown(recorder).p99 == pytest.approx(1.0, rel=0.001)
    assert shown(recorder).max == pytest.approx(500.0, rel=0.001)


def test_merged_percentiles_are_those_of_one_recorder_that_saw_everything() -> None:
    together = LatencyRecorder()
    parts = [LatencyRecorder() for _ in range(3)]
    for value in range(1, 3_000):
        together.record(value * 7_919, rows=value % 5 + 1)
        parts[value % 3].record(value * 7_919, rows=value % 5 + 1)
    assert shown(*parts) == shown(together)


def test_a_recorder_is_as_exact_as_its_histogram() -> None:
    recorder, histogram = LatencyRecorder(), HdrHistogram(LOWEST_US, HIGHEST_US, SIGNIFICANT_DIGITS)
    for exponent in range(36):
        for us in {2**exponent - 1, 2**exponent, 2**exponent + 2**exponent // 3} - {0}:
            recorder.record(us * 1_000 + 999, rows=exponent + 1)
            histogram.record_value(min(us, HIGHEST_US), exponent + 1)
    assert recorder.encoded() == histogram.encode().decode()


def test_backward_clock_and_rows_of_yesterday_are_kept_at_the_ends_of_the_range() -> None:
    recorder = LatencyRecorder()
    recorder.record(-5 * MS)
    recorder.record(86_400_000 * MS)
    assert shown(recorder).count == 2
    assert shown(recorder).p50 == 0.001
    assert shown(recorder).max == pytest.approx(3_600_000, rel=0.001)


def test_nothing_recorded_reads_as_zeros() -> None:
    assert shown(LatencyRecorder()).max == 0.0


def test_emit_times_keep_every_row_and_the_earliest_time_of_each_bucket() -> None:
    times = EmitTimes()
    times.add(5 * MS + 10, rows=3)
    times.add(5 * MS + 2, rows=4)  # same bucket, earlier
    times.add(90 * MS, rows=1)
    assert times.pairs() == [(5 * MS + 2, 7), (90 * MS, 1)]


def test_emit_times_stay_bounded_over_any_span_and_never_look_faster_than_they_were() -> None:
    times = EmitTimes(limit=16)
    for at in range(1_000):
        times.add(at * 10 * MS, rows=2)
    pairs = times.pairs()
    assert len(pairs) <= 16
    assert sum(rows for _, rows in pairs) == 2_000
    bucket = 10_000 * MS // 8  # 10 s in at least 8 buckets, each doubled at most once more
    for at in range(1_000):
        assert any(emit <= at * 10 * MS < emit + bucket for emit, _ in pairs)
