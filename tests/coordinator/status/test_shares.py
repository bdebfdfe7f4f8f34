"""Shares of the last 10 s from sums reported by slots, and the split that holds a source's watermark back."""

import pytest

from barrier_runtime.coordinator.job.slot import Contact
from barrier_runtime.coordinator.status.shares import ReportedFigures, chain_statuses, source_statuses
from barrier_runtime.coordinator.status.status import SlotDuring
from barrier_runtime.coordinator.wire.messages import ChainSpec, HeldBack

SOURCE = ChainSpec(chain=0, operators=("numbers", "double"), is_source=True)
SINK = ChainSpec(chain=1, operators=("count", "out"), sinks=("out",), inputs=(0,))


def figures(work_s: float, blocked_s: float = 0.0, held_s: float = 0.0, rows: float = 0.0) -> dict[str, float]:
    return {
        "numbers.work_s": work_s,
        "numbers.blocked_s": blocked_s,
        "numbers.held_s": held_s,
        "numbers.rows_in": rows,
        "numbers.rows_out": rows * 2,
    }


def told(*sums: dict[str, float], step_ms: int = 1_000, token: int = 1) -> ReportedFigures:
    known = ReportedFigures()
    for at, each in enumerate(sums):
        known.tell(token, at * step_ms, each)
    return known


def test_shares_are_the_rise_of_sums_over_the_last_ten_seconds() -> None:
    slot = told(*[figures(work_s=0.5 * second, blocked_s=0.25 * second, rows=100 * second) for second in range(60)])
    assert 9.5 <= slot.seconds <= 11
    source, sink = chain_statuses([SOURCE, SINK], {0: slot})
    assert (source.busy, source.backpressured, source.held, source.idle) == (0.5, 0.25, 0.0, 0.25)
    assert (source.rows_in_per_s, source.rows_out_per_s, source.rows_in) == (100.0, 200.0, 5_900)
    assert (sink.busy, sink.idle, sink.rows_in_per_s, sink.inputs) == (None, None, None, (0,))


def test_how_long_slots_lacked_a_processor_is_the_mean_of_those_that_run_the_chain() -> None:
    def slot(starved_s: float) -> ReportedFigures:
        return told(*[{**figures(0.1 * at), "starved_s": 50.0 + starved_s * at} for at in range(20)])

    (source,) = chain_statuses([SOURCE], {0: slot(0.5), 3: slot(0.1)})
    assert source.starved == pytest.approx(0.3)
    (unknown,) = chain_statuses([SOURCE], {0: told(figures(0.1), figures(0.2))})
    assert (unknown.busy, unknown.starved) == (0.1, None), "an older slot does not tell it"


def test_the_busiest_slot_is_named_and_its_share_of_the_rows() -> None:
    slow = told(*[figures(work_s=0.9 * second, rows=300 * second) for second in range(5)])
    other = told(*[figures(work_s=0.1 * second, rows=100 * second) for second in range(5)])
    (source,) = chain_statuses([SOURCE], {0: other, 3: slow})
    assert (source.busy, source.busiest, source.busiest_slot, source.busiest_rows) == (0.5, 0.9, 3, 0.75)


def test_a_rate_over_slots_is_unknown_until_each_slot_of_the_chain_has_one() -> None:
    """The tile and /metrics would otherwise show the rate of some slots as that of the job."""
    reads, begun = told(figures(0.0), figures(0.0, rows=100)), told(figures(0.0, rows=7))

    def rates(*slots: ReportedFigures) -> tuple[float | None, float | None]:
        (source,) = chain_statuses([SOURCE], dict(enumerate(slots)))
        return source.rows_in_per_s, source.rows_out_per_s

    assert rates(reads, begun) == (None, None)
    assert rates(reads, ReportedFigures()) == (None, None), "connected, and has not reported"
    assert rates(reads, told({"rss_bytes": 1.0}, {"rss_bytes": 1.0})) == (100.0, 200.0), "runs no subtask of the chain"
    assert rates(reads, reads) == (200.0, 400.0)


def test_a_backlog_that_falls_tells_when_the_source_has_caught_up() -> None:
    def slot(*backlogs: float) -> ReportedFigures:
        return told(*[{**figures(0.1 * at), "numbers.backlog_rows": rows} for at, rows in enumerate(backlogs)])

    (falling,) = chain_statuses([SOURCE], {0: slot(9_000, 7_000, 5_000), 1: slot(1_000, 2_000, 3_000)})
    assert (falling.backlog, falling.caught_up_in_s) == (8_000, 8.0), "2,000 rows/s less here, 1,000 more there"
    (rising,) = chain_statuses([SOURCE], {0: slot(5_000, 6_000)})
    assert (rising.backlog, rising.caught_up_in_s) == (6_000, None)
    (none,) = chain_statuses([SOURCE], {0: slot(500, 0)})
    assert (none.backlog, none.caught_up_in_s) == (0, 0.0)
    (new,) = chain_statuses([SOURCE], {0: slot(500)})
    assert (new.backlog, new.caught_up_in_s) == (500, None), "a rate needs two heartbeats"
    (unknown,) = chain_statuses([SOURCE], {0: told(figures(0.1), figures(0.2))})
    assert (unknown.backlog, unknown.caught_up_in_s) == (None, None)


def test_one_heartbeat_tells_no_share() -> None:
    (source,) = chain_statuses([SOURCE], {0: told(figures(7.0))})
    assert source.busy is None
    assert chain_statuses([SOURCE], {})[0].busy is None


@pytest.mark.parametrize(("token", "at_ms"), [(1, 5_000), (2, 8_000)])
def test_no_shares_are_compared_over_a_generation_start_or_a_backward_clock(token: int, at_ms: int) -> None:
    slot = told(*[figures(1.0 * second) for second in range(8)])
    slot.tell(token, at_ms, figures(0.0))
    assert slot.seconds == 0.0
    slot.tell(token, at_ms + 1_000, figures(0.5))
    assert slot.per_second("numbers.work_s") == 0.5


def test_of_many_heartbeats_a_second_few_are_kept() -> None:
    slot = told(*[figures(0.01 * number) for number in range(5_000)], step_ms=10)
    assert len(slot._kept) <= 13


def test_the_split_that_is_least_far_is_named_with_its_slot() -> None:
    held = {
        0: {"numbers": HeldBack("a", 900)},
        1: {"numbers": HeldBack("b", 400)},
        2: {"numbers": HeldBack("", None, True)},
    }
    (source,) = source_statuses([SOURCE, SINK], held, 1_000)
    assert (source.split, source.split_slot, source.watermark_ms, source.lag_ms) == ("b", 1, 400, 600)
    assert source.idle_slots == (2,)


def test_idle_splits_are_named_in_part_and_counted() -> None:
    held = {
        0: {"numbers": HeldBack("a", 900, False, ("f", "d"), 2)},
        1: {"numbers": HeldBack("", None, True, ("b", "c", "e", "g"), 5)},
    }
    (source,) = source_statuses([SOURCE], held, 1_000)
    assert (source.split, source.idle_slots, source.idle_count) == ("a", (1,), 7)
    assert source.idle == "b, c, d, e, f, g and 1 more; all of slot 1"
    (lively,) = source_statuses([SOURCE], {0: {"numbers": HeldBack("a", 900)}}, 1_000)
    assert lively.idle == ""


def test_a_split_without_a_row_holds_back_before_all_others() -> None:
    (source,) = source_statuses([SOURCE], {0: {"numbers": HeldBack("a", -5)}, 1: {"numbers": HeldBack("b")}}, 1_000)
    assert (source.split, source.watermark_ms, source.lag_ms) == ("b", None, None)


def test_a_source_that_told_nothing_is_absent() -> None:
    assert source_statuses([SOURCE, SINK], {0: {}}, 1_000) == ()


# ---------------------------------------------------------------- contact


def test_a_silence_is_noted_once_it_is_longer_than_heartbeats_are_apart() -> None:
    contact = Contact(heartbeat_ms=1_000, now_ms=0)
    for now_ms in (1_000, 2_000, 3_400):
        contact.heard(now_ms)
    assert contact.during(7, 0, 3_500) is None
    contact.heard(5_400)
    assert contact.during(7, 0, 5_500) == SlotDuring(7, 2_000, 0.0)
    assert contact.during(7, 5_400, 5_500) is None  # it was before
    assert contact.during(7, 5_400, 9_000) == SlotDuring(7, 3_600, 0.0)  # and it lasts


def test_a_heartbeat_that_was_late_in_its_slot_is_no_late_message() -> None:
    contact = Contact(1_000, 0)
    contact.heartbeat(1_000_100, 0.0, 100)  # this slot's clock is far ahead
    contact.heartbeat(1_003_100, 2_000.0, 3_100)
    contact.heard(3_100)
    assert contact.during(0, 0, 3_200) == SlotDuring(0, 3_100, 2_000.0)
    contact.heartbeat(1_003_200, 0.0, 4_000)  # 800 ms longer under way than the first
    assert contact.during(0, 3_100, 4_000) == SlotDuring(0, 0, 0.0, 800.0)


def test_a_coordinator_that_stood_still_blames_no_slot() -> None:
    contact = Contact(1_000, 0)
    contact.forgive(60_000)
    contact.heard(60_010)
    assert contact.during(0, 0, 60_020) is None
