"""Merged latencies of a status: equal to one histogram of all slots, in total and for the last minute."""

import random

import pytest
from coordinator_world import started
from hdrh.histogram import HdrHistogram

from barrier_runtime.coordinator.status.latency import ReportedHistograms, last_minute, merged
from barrier_runtime.coordinator.wire.messages import Heartbeat
from barrier_runtime.state.store.memory import MemoryStore

HIGHEST_US = 3_600_000_000
MINUTE = 60_000


class Process:
    """A slot's histogram of a sink, and reports to the coordinator."""

    def __init__(self, began_empty: bool = True) -> None:
        self.told = ReportedHistograms(began_empty)
        self._own = HdrHistogram(1, HIGHEST_US, 3)

    def count(self, latency_ms: int, rows: int) -> None:
        self._own.record_value(latency_ms * 1_000, rows)

    def tell(self, now_ms: int) -> None:
        self.told.tell(self.encoded(), now_ms)

    def encoded(self) -> dict[str, str]:
        return {"out:visible": self._own.encode().decode()}

    def seconds(self, first: int, last: int, latency_ms: int, rows: int = 10) -> None:
        """Counts `rows` rows per second, and reports every second."""
        for second in range(first, last):
            self.count(latency_ms, rows)
            self.tell(second * 1_000)


def recent(now_ms: int, *processes: Process) -> tuple[float, float, float, int]:
    status = last_minute([each.told for each in processes], now_ms)["out:visible"]
    return status.p50, status.p99, status.max, status.count


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


def test_the_last_minute_is_not_hidden_by_the_hours_before() -> None:
    one, other = Process(), Process()
    for process, now_slow in ((one, 500), (other, 5)):
        process.seconds(0, 600, 5)
        process.seconds(600, 660, now_slow)
    p50, p99, highest, count = recent(660_000, one, other)
    assert 1_180 <= count <= 1_400  # 60 to 70 seconds of two processes
    assert (p50, p99, highest) == pytest.approx((5, 500, 500), rel=0.001)
    assert recent(660_000, one)[0] == pytest.approx(500, rel=0.001)
    total = merged([one.encoded(), other.encoded()])["out:visible"]
    assert total.p50 == pytest.approx(5, rel=0.001)
    assert total.count == 2 * 6_600


def test_all_of_a_young_process_is_of_the_last_minute_and_nothing_of_a_silent_one() -> None:
    young, silent = Process(), Process()
    young.seconds(1_000, 1_005, 20)
    silent.seconds(0, 930, 900)
    assert recent(1_005_000, young, silent) == pytest.approx((20, 20, 20, 50), rel=0.001)
    assert recent(1_005_000 + MINUTE + 1_000, young, silent) == (0, 0, 0, 0)


def test_counts_before_this_coordinators_first_contact_are_not_of_the_last_minute() -> None:
    survivor = Process(began_empty=False)
    survivor.count(700, 1_000_000)
    survivor.seconds(500, 520, 3)
    assert recent(520_000, survivor) == pytest.approx((3, 3, 3, 190), rel=0.001)  # all but the first second's


def test_few_histograms_are_kept_however_often_they_are_told() -> None:
    process = Process()
    process.seconds(0, 600, 5)
    assert len(process.told._kept) <= 8


def test_a_clock_that_goes_back_shows_more_than_a_minute_at_most() -> None:
    process = Process()
    process.seconds(0, 300, 5)
    process.seconds(100, 200, 5)
    assert 600 <= recent(200_000, process)[3] <= 4_000


def test_the_status_of_a_job_has_both() -> None:
    coordinator, slot, _ = started(MemoryStore())
    process = Process()

    def heartbeats(seconds: int, latency_ms: int) -> None:
        for _ in range(seconds):
            process.count(latency_ms, 10)
            slot.say(Heartbeat(slot.token, latency=process.encoded()))
            coordinator.now_ms += 1_000

    heartbeats(300, 5)
    heartbeats(60, 500)
    status = coordinator.status
    assert status.latency["out:visible"].p50 == pytest.approx(5, rel=0.001)
    assert status.latency["out:visible"].count == 3_600
    assert status.latency_last_minute["out:visible"].p50 == pytest.approx(500, rel=0.001)
