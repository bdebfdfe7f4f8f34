"""Figures in readable units, at the boundaries between units."""

import pytest

from barrier_runtime.coordinator.page.figures import (
    day_and_time,
    duration,
    machine_time,
    number,
    rate,
    share,
    size,
    time_of_day,
)


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (None, "\u2013"),
        (0, "0 ms"),
        (0.44, "0.4 ms"),
        (9.94, "9.9 ms"),
        (12.4, "12 ms"),
        (999.4, "999 ms"),
        (999.5, "1 s"),
        (1_449, "1.4 s"),
        (59_949, "59.9 s"),
        (59_950, "1 min"),
        (200_000, "3 min 20 s"),
        (3_599_499, "59 min 59 s"),
        (3_600_000, "1 h 0 min"),
        (86_400_000, "1 d 0 h"),
        (-1_500, "-1.5 s"),
    ],
)
def test_durations(ms, shown):
    assert duration(ms) == shown


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (None, "\u2013"),
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "1.0 kB"),
        (999_400, "999 kB"),
        (1e6, "1.0 MB"),
        (4e15, "4000 TB"),
    ],
)
def test_sizes(count, shown):
    assert size(count) == shown


def test_counts_rates_and_shares():
    assert [number(each) for each in (None, 0, 3, 3.25, 10.4, 1_234_567)] == [
        "\u2013",
        "0",
        "3",
        "3.2",
        "10",
        "1,234,567",
    ]
    assert (rate(None), rate(0.5), rate(70_000)) == ("\u2013", "0.5/s", "70,000/s")
    assert (share(None), share(0.005), share(1)) == ("\u2013", "0 %", "100 %")


@pytest.mark.parametrize("ms", [None, 0, -1, 10**18, -(2**63), 2**63 - 1])
def test_times_that_are_none_are_absent(ms):
    """Watermarks start before all times and end after them."""
    assert (time_of_day(ms), day_and_time(ms), machine_time(ms)) == ("\u2013", "\u2013", "")


def test_times_are_utc():
    assert day_and_time(1_790_000_000_000) == "2026-09-21 14:13:20"
    assert time_of_day(1_790_000_000_000) == "14:13:20"
    assert machine_time(1_790_000_000_000) == "2026-09-21T14:13:20Z"
