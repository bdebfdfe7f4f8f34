"""The latencies a status shows: as if all slots had counted into one histogram."""

import random

import pytest
from hdrh.histogram import HdrHistogram

from coordinator.latency import merged

HIGHEST_US = 3_600_000_000


@pytest.mark.parametrize("values", [1, 2, 3, 50, 2_000])
def test_figures_are_those_of_the_library_over_all_slots(values: int) -> None:
    rng = random.Random(values)
    whole = HdrHistogram(1, HIGHEST_US, 3)
    slots = []
    for _ in range(3):
        own = HdrHistogram(1, HIGHEST_US, 3)
        for _ in range(values):
            latency_us, rows = int(rng.expovariate(1 / 5_000)) + 1, rng.randint(1, 9)
            own.record_value(latency_us, rows)
            whole.record_value(latency_us, rows)
        slots.append({"out:processed": own.encode().decode()})
    status = merged(slots)["out:processed"]
    expected = [whole.get_value_at_percentile(percentile) / 1000 for percentile in (50, 99)]
    assert [status.p50, status.p99] == expected
    assert (status.max, status.count) == (whole.get_max_value() / 1000, whole.get_total_count())


def test_an_empty_histogram_shows_zeros_and_junk_shows_nothing() -> None:
    empty = HdrHistogram(1, HIGHEST_US, 3).encode().decode()
    shown = merged([{"out:visible": empty, "junk": "none of ours"}])
    assert list(shown) == ["out:visible"]
    assert (shown["out:visible"].p99, shown["out:visible"].count) == (0.0, 0)
