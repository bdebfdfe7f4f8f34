"""Reports about sinks' transactions: ages, safe time, and the alarm at half of the safe time."""

import msgspec
from coordinator_world import started

from barrier_runtime.coordinator.status.figure_table import SPENT, samples
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.coordinator.status.transactions import of_sinks
from barrier_runtime.coordinator.status.why.job import why_job
from barrier_runtime.coordinator.wire.messages import Heartbeat

NOW_MS = 1_000_000_000
HOUR_MS = 3_600_000


def told(store, age_ms: int, timeout_ms: int) -> JobStatus:
    coordinator, a, b = started(store)
    for slot in (a, b):
        figures = {
            "out.transaction_oldest_ms": float(NOW_MS - age_ms) if slot is b else 0.0,
            "out.transaction_opened_ms": float(NOW_MS - 300),
            "out.transaction_timeout_ms": float(timeout_ms),
            "out.transactions_undecided": 1.0,
            "records": 5.0,
        }
        slot.say(Heartbeat(slot.token, figures))
        slot.commit(0)
    return msgspec.structs.replace(coordinator.status, at_ms=NOW_MS)


def test_ages_and_the_time_until_which_a_transaction_is_safe(store) -> None:
    first, second = of_sinks(told(store, 4 * HOUR_MS, 10 * HOUR_MS), NOW_MS)
    assert (first.sink, first.open_ms, first.undecided, first.oldest_ms, first.safe_until_ms) == (
        "out/0",
        300,
        1,
        None,
        None,
    )
    assert (second.oldest_ms, second.safe_until_ms) == (4 * HOUR_MS, NOW_MS + 6 * HOUR_MS)
    assert not second.in_danger


def test_half_of_the_targets_time_is_an_alarm(store) -> None:
    status = told(store, 5 * HOUR_MS, 10 * HOUR_MS)
    assert of_sinks(status, NOW_MS)[1].in_danger
    reason = why_job(status, NOW_MS)[0]
    assert reason.cause == "transaction_age"
    assert reason.sentence.startswith("A transaction of out/1 is ")
    assert "50% of that time is over" in reason.evidence[0]
    assert [(labels, value) for family, labels, value in samples(status) if family is SPENT] == [(("out",), 0.5)]


def test_a_target_that_never_forgets_is_no_alarm(store) -> None:
    status = told(store, 5_000 * HOUR_MS, 0)
    assert not any(each.in_danger for each in of_sinks(status, NOW_MS))
    assert [family for family, _, _ in samples(status) if family is SPENT] == []
