"""A coordinator after a long stall: an event loop delivers received messages before timers.

So the coordinator reads messages of slots before the first tick."""

from coordinator_world import Coordinator, FakeSlot, started
from test_job_replacing import ask as ask_to_replace
from test_job_replacing import new_slots
from test_job_replacing import told as told_of_replace
from test_job_rescaling import ask, commit, fences, last_checkpoint, standbys

from barrier_runtime.coordinator.job.events import Tick
from barrier_runtime.coordinator.wire.messages import Waiting
from barrier_runtime.state.store.memory import MemoryStore


def stands_still(coordinator: Coordinator, ms: int = 50_000) -> None:
    """Stalls the coordinator until `ms` after the deadline, without an event."""
    deadline = coordinator.protocol.next_deadline()
    assert deadline is not None
    coordinator.now_ms = max(coordinator.now_ms, deadline) + ms


def waits(slot: FakeSlot) -> None:
    slot.say(Waiting(slot.token, "out", 1, "connection refused"))


def test_new_slots_are_not_lost_when_the_last_commits_are_read_first() -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3, 600_000)
    standbys(coordinator, 2)
    number = last_checkpoint(coordinator, a, b)
    stands_still(coordinator, 8_000)
    commit(number, a, b)
    coordinator.settle()
    assert fences(store)[-1] == (3, number)


def test_no_slot_is_blamed_for_it_when_another_ones_wait_for_a_server_is_read_first() -> None:
    coordinator = Coordinator(MemoryStore()).begin().settle()
    a, b = coordinator.slot(0).connect(), coordinator.slot(1).connect()
    coordinator.settle()
    assert coordinator.phase == "restoring"
    stands_still(coordinator)
    waits(a)
    assert coordinator.phase == "restoring"
    for slot in (b, a):
        slot.restored()
    coordinator.post(Tick())
    assert coordinator.phase == "running"


def test_running_new_program_is_not_reverted_by_an_earlier_wait_read_late() -> None:
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    new = new_slots(coordinator, ask_to_replace(coordinator))
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.settle()
    coordinator.later(0)
    assert coordinator.phase == "restoring"
    stands_still(coordinator)
    waits(new[0])
    for slot in new:
        slot.restored()
    assert (coordinator.phase, told_of_replace(coordinator).state) == ("running", "done")


def test_who_is_silent_behind_that_is_lost_all_the_same() -> None:
    coordinator, a, b = started(MemoryStore())
    stands_still(coordinator)
    a.beat()
    assert coordinator.phase == "running"
    for _ in range(12):
        coordinator.later(1_000)
        a.beat()
    coordinator.settle()
    assert coordinator.phase == "waiting"
    assert "slot 1 " in coordinator.status.reason, coordinator.status.reason
    assert b.closed
