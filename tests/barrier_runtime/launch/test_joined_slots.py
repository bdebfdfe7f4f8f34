"""The command `slot` beside a running job: kill orders, a daemon that restarted, a coordinator that has ended."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
from coordinator_world import Coordinator, spec

from barrier_runtime.coordinator.client.client import UnknownJob
from barrier_runtime.coordinator.log.decision_log import LogView
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.status.status import JobStatus, KillRequest
from barrier_runtime.launch.processes import ended_in_log, followed
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.paths import Paths


def running() -> JobStatus:
    coordinator = Coordinator(MemoryStore()).begin()
    coordinator.run_with(coordinator.slot(0), coordinator.slot(1))
    return coordinator.status


def ended(status: JobStatus) -> JobStatus:
    return msgspec.structs.replace(status, outcome="finished", kill=())


def goes_on(silent_s: float) -> None:
    """The log of a job that has not ended."""


def answers(*given: JobStatus | Exception) -> Callable[[JobStatus], JobStatus]:
    left: Iterator[JobStatus | Exception] = iter(given)

    def next_status(_: JobStatus) -> JobStatus:
        answer = next(left)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return next_status


def test_each_kill_order_of_a_status_is_carried_out() -> None:
    begun, killed = running(), []
    orders = tuple(KillRequest(slot, 40 + slot, f"u{slot}") for slot in (0, 1))
    asks = msgspec.structs.replace(begun, kill=orders)
    kill = lambda attempt, _: killed.append(attempt)  # noqa: E731
    last = followed(begun, answers(asks, ended(begun)), kill, goes_on, lambda _: None)
    assert last.outcome == "finished"
    assert killed == [40, 41]


def test_a_daemon_that_does_not_know_the_job_is_asked_once_a_second_and_not_for_ever() -> None:
    begun, waited = running(), list[float]()
    unknown = UnknownJob("no such job")
    knows_again = answers(unknown, Unavailable("away"), unknown, ended(begun))
    assert followed(begun, knows_again, lambda *_: None, goes_on, waited.append).outcome == "finished"
    assert [seconds for seconds in waited if seconds >= 1] == [1.0, 1.0]
    now = iter([0.0, 600.0, 601.0])
    with pytest.raises(UnknownJob):
        followed(begun, answers(unknown, unknown), lambda *_: None, goes_on, lambda _: None, lambda: next(now))


def test_a_silent_coordinator_is_asked_while_the_log_has_no_end():
    begun, silences = running(), list[float]()

    def in_log(silent_s: float) -> JobStatus | None:
        silences.append(silent_s)
        return ended(begun) if silent_s > 6 else None

    away = [Unavailable("away")] * 20
    now = iter(range(100))
    last = followed(begun, answers(*away), lambda *_: None, in_log, lambda _: None, lambda: float(next(now)))
    assert last.outcome == "finished"
    assert silences == [2, 4, 6, 8], "the log is read every two seconds"


def test_the_log_tells_the_end_that_a_coordinator_no_longer_tells():
    store = MemoryStore()
    coordinator = Coordinator(store).begin()
    slots = coordinator.slot(0), coordinator.slot(1)
    coordinator.run_with(*slots)
    begun = coordinator.status

    def log() -> LogView:
        return read_log(store, Paths(begun.job), run_id=begun.run_id)

    assert ended_in_log(begun, log(), 3_600, returns=True) is None, "a daemon may return"
    with pytest.raises(Unavailable, match="start the program again, then this command"):
        ended_in_log(begun, log(), 3_600, returns=False)
    slots[0].fail("no such column", retryable=False)
    coordinator.settle()
    failed = ended_in_log(begun, log(), 1, returns=False)
    assert failed is not None
    assert (failed.outcome, failed.error) == ("failed", "no such column")
    Coordinator(store, spec(run_id="run-2")).begin().settle()
    taken = ended_in_log(begun, log(), 1, returns=False)
    assert taken is not None
    assert taken.outcome == "fenced"
    assert ended_in_log(begun, None, 1, returns=False) is None, "the store is away, too"
    with pytest.raises(Unavailable, match="its program's output names the outcome"):
        ended_in_log(begun, LogView(), 1, returns=True)
