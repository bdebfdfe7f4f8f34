"""Slots that leave their hosts, as interleavings of notices, successors, the move's checkpoint, commits and deaths."""

import uuid

from coordinator_world import Coordinator, FakeSlot, commit, log_of, pause, started, successor

from barrier_runtime.coordinator.job.events import UserLeaving, UserRescale
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.job.slot import NOTICE_MS
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.wire.messages import Deploy, Heartbeat, Shutdown, Start
from barrier_runtime.state.store.memory import MemoryStore


def leaving_job(store: MemoryStore) -> tuple[Coordinator, FakeSlot, FakeSlot]:
    """A job of slots 0 and 1, which has completed a checkpoint; slot 1 is on another host."""
    coordinator = Coordinator(store).begin()
    a, b = coordinator.slot(0), coordinator.slot(1)
    b.host = "spot"
    coordinator.run_with(a, b)
    coordinator.checkpoint(a, b)
    return coordinator, a, b


def notice(slot: FakeSlot, count: int = 1) -> None:
    slot.say(Heartbeat(slot.token, notices=count))


def states(coordinator: Coordinator) -> list[tuple[int, str]]:
    return [(each.slot, each.state) for each in coordinator.status.leaving]


def restored(store: MemoryStore) -> list[int]:
    """Returns the restored checkpoint of each FENCE."""
    return [each.restored_checkpoint for each in log_of(store) if isinstance(each, Fence)]


def out_of_grace(coordinator: Coordinator, *living: FakeSlot) -> None:
    """Until a slot that was cut off counts as lost."""
    for _ in range(3):
        coordinator.later(600)
        for slot in living:
            slot.beat()
        coordinator.settle()


def run(coordinator: Coordinator, *slots: FakeSlot) -> None:
    for slot in slots:
        slot.restored()
    assert coordinator.phase == "running", coordinator.protocol.reason
    assert all(slot.got(Start) for slot in slots)


def test_a_slot_moves_at_a_barrier_before_its_process_ends():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    assert states(coordinator) == [(1, "asked")]
    assert "host spot leaves since" in coordinator.status.condition_reason
    assert "slot 1 awaits a process on another host" in coordinator.status.condition_reason
    new = successor(coordinator)
    assert not b.got(Shutdown)
    assert states(coordinator) == [(1, "moving")]
    number = pause(coordinator, a, b)
    assert not b.got(Shutdown), "its commits are due"
    commit(coordinator, number, a, b)
    assert b.last(Shutdown).outcome == "left", "Spark must not start it again"
    assert restored(store)[-1] == number
    assert new.last(Deploy).checkpoint == number
    run(coordinator, a, new)
    assert coordinator.protocol.summary(coordinator.now_ms).restarts == 0, "no recovery"
    assert states(coordinator) == []
    assert coordinator.status.rescales[-1].what == "move off a host"
    assert coordinator.status.rescales[-1].state == "done"
    coordinator.checkpoint(a, new)


def test_a_host_is_named_by_a_user():
    coordinator, _, b = leaving_job(MemoryStore())
    coordinator.post(UserLeaving("elsewhere"))
    assert states(coordinator) == []
    coordinator.post(UserLeaving("spot"))
    assert states(coordinator) == [(1, "asked")]
    assert coordinator.status.leaving[0].task_attempt == b.attempt


def test_a_second_notice_changes_nothing_until_the_first_has_ended():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    (first,) = coordinator.status.leaving
    coordinator.later(1_000)
    notice(b, 2)
    assert coordinator.status.leaving == (first,)
    for _ in range(NOTICE_MS // 1_000):
        coordinator.later(1_000)
        for slot in (a, b):
            slot.say(Heartbeat(slot.token, notices=2 * (slot is b)))
        coordinator.settle()
    assert states(coordinator) == [(1, "ended")]
    notice(b, 3)
    assert states(coordinator) == [(1, "asked")]


def test_a_successor_takes_the_place_of_a_process_that_died_before_the_move():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    new = successor(coordinator)
    b.cut()
    coordinator.later(1_000)
    coordinator.settle()
    coordinator.later(0)
    assert restored(store) == [0, 1], "from the last checkpoint, as without a notice"
    run(coordinator, a, new)
    again = coordinator.slot(1, attempt=9).connect()
    assert again.last(Shutdown).outcome == "left", "the task of the dead process starts again"
    assert coordinator.phase == "running"


def test_a_successor_that_dies_before_the_sources_stop_leaves_the_job_as_it_was():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    new = coordinator.slot(1, attempt=5)
    new.succeeds, new.prefetches = True, False
    new.connect()
    assert states(coordinator) == [(1, "moving")]
    new.cut()
    coordinator.later(0)
    assert states(coordinator) == [(1, "asked")]
    assert coordinator.phase == "running"
    assert restored(store) == [0]
    coordinator.checkpoint(a, b)


def test_a_successor_that_dies_after_the_sources_stopped_costs_no_row():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    new = successor(coordinator)
    number = pause(coordinator, a, b)
    new.cut()
    commit(coordinator, number, a, b)
    run(coordinator, a, b)
    assert not b.got(Shutdown)
    assert restored(store) == [0, number], "nothing is read twice"
    coordinator.later(3_000)
    again = successor(coordinator, attempt=6)
    number = pause(coordinator, a, b)
    commit(coordinator, number, a, b)
    run(coordinator, a, again)


def test_a_restarted_coordinator_takes_no_successor_for_the_slot():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    new = successor(coordinator)
    other = Coordinator(store, coordinator.protocol.spec).begin()
    other.settle()
    for slot in (new, a, b):  # the successor comes first
        slot.coordinator = other
        slot.inbox.clear()
        slot.connect()
    other.settle()
    assert other.phase == "running"
    assert not b.got(Shutdown)
    assert restored(store) == [0]
    number = pause(other, a, b)
    commit(other, number, a, b)
    run(other, a, new)


def test_a_rescale_waits_for_no_host_and_the_slot_moves_afterwards():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    request = RescaleRequest(uuid.uuid4().hex, 1)
    assert coordinator.protocol.refuses_rescale(request) == ""
    coordinator.post(UserRescale(request))
    number = pause(coordinator, a, b)
    commit(coordinator, number, a, b)
    run(coordinator, a)
    assert states(coordinator) == [], "the slot is gone"
    late = successor(coordinator)
    assert late.last(Shutdown).outcome == "left"


def test_a_stop_ends_a_move_and_dismisses_the_successor():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    new = successor(coordinator)
    coordinator.stop("checkpoint")
    number = pause(coordinator, a, b)
    commit(coordinator, number, a, b)
    assert coordinator.ended is not None
    assert new.got(Shutdown)


def test_both_slots_of_a_host_move_at_one_barrier():
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    coordinator.post(UserLeaving("worker"))
    assert states(coordinator) == [(0, "asked"), (1, "asked")]
    first = successor(coordinator, 0, 5)
    assert states(coordinator) == [(0, "registered"), (1, "asked")], "waits for the other"
    second = successor(coordinator, 1, 6)
    number = pause(coordinator, a, b)
    commit(coordinator, number, a, b)
    run(coordinator, first, second)
    assert restored(store) == [0, number]
    assert (a.last(Shutdown).outcome, b.last(Shutdown).outcome) == ("left", "left")


def test_successor_has_a_slot_that_dies_after_the_log_has_the_generation():
    coordinator, a, b = leaving_job(MemoryStore())
    coordinator.post(UserLeaving(a.host))
    coordinator.post(UserLeaving(b.host))
    a.cut()
    out_of_grace(coordinator)
    assert coordinator.phase == "waiting"
    later = successor(coordinator, 1, 6)
    b.cut()
    first = successor(coordinator, 0, 5)
    coordinator.settle()
    coordinator.later(0)
    assert first.got(Deploy)
    assert later.got(Deploy)
    run(coordinator, first, later)


def test_successor_that_wakes_up_has_the_slot_of_a_process_that_died():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    waiting = successor(coordinator)
    for _ in range(4):
        coordinator.later(1_000)
        a.beat()
        notice(b)
    b.cut()
    out_of_grace(coordinator, a)
    assert coordinator.phase == "waiting"
    assert not waiting.got(Deploy)
    waiting.beat()
    coordinator.later(1_000)
    assert waiting.got(Deploy)


def test_successor_that_came_after_the_death_is_not_replaced_by_the_old_task():
    store = MemoryStore()
    coordinator, a, b = leaving_job(store)
    notice(b)
    b.cut()
    out_of_grace(coordinator, a)
    new = successor(coordinator)
    coordinator.settle()
    coordinator.later(0)
    run(coordinator, a, new)
    again = coordinator.slot(1, attempt=9).connect()
    assert again.got(Shutdown)
    assert coordinator.phase == "running"

    other = Coordinator(store, coordinator.protocol.spec).begin()
    for slot in (new, a):
        slot.coordinator = other
        slot.connect()
    other.settle()
    assert other.slot(1, attempt=10).connect().got(Shutdown)
    assert other.phase == "running"


def others_hang(coordinator: Coordinator, *living: FakeSlot, for_ms: int) -> None:
    for _ in range(for_ms // 1_000):
        coordinator.later(1_000)
        for slot in living:
            slot.beat()
    coordinator.later(0)
    coordinator.settle()
    coordinator.later(0)


def test_process_that_hangs_while_its_successor_waits_is_ended():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    new = coordinator.slot(1, attempt=5)
    new.succeeds, new.prefetches = True, False
    new.connect()
    others_hang(coordinator, a, new, for_ms=coordinator.protocol.spec.slot_timeout_ms + 2_000)
    run(coordinator, a, new)
    assert [(each.slot, each.uuid) for each in coordinator.status.kill] == [(1, b.uuid)]
    new.connect()
    assert coordinator.status.kill, "a successor says nothing of the other task"
    again = coordinator.slot(1, attempt=9).connect()
    assert again.last(Shutdown).outcome == "left"
    assert coordinator.status.kill == ()


def test_late_successor_does_not_keep_the_driver_from_ending_the_old_task():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    others_hang(coordinator, a, for_ms=coordinator.protocol.spec.slot_timeout_ms + 2_000)
    assert [each.uuid for each in coordinator.status.kill] == [b.uuid]
    new = successor(coordinator)
    coordinator.settle()
    coordinator.later(0)
    run(coordinator, a, new)
    assert [each.uuid for each in coordinator.status.kill] == [b.uuid]


def test_silent_process_is_ended_if_another_slot_dies_and_its_successor_has_the_slot():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    new = coordinator.slot(1, attempt=5)
    new.succeeds, new.prefetches = True, False
    new.connect()
    others_hang(coordinator, a, new, for_ms=4_000)
    a.fail()
    coordinator.settle()
    coordinator.later(0)
    run(coordinator, a, new)
    assert [each.uuid for each in coordinator.status.kill] == [b.uuid]


def test_process_that_leaves_in_time_is_not_ended():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    new = successor(coordinator)
    number = pause(coordinator, a, b)
    commit(coordinator, number, a, b)
    run(coordinator, a, new)
    assert coordinator.status.kill == ()


def test_successor_that_hangs_is_closed_and_keeps_nobody_from_rescaling():
    coordinator, a, b = leaving_job(MemoryStore())
    notice(b)
    hangs = coordinator.slot(1, attempt=5)
    hangs.succeeds, hangs.prefetches = True, False
    hangs.connect()
    silent_ms = 0
    while silent_ms < coordinator.protocol.spec.slot_timeout_ms:
        assert not hangs.closed
        coordinator.later(1_000)
        silent_ms += 1_000
        a.beat()
        notice(b)
        if coordinator.status.checkpoints.in_progress:
            coordinator.acknowledge(a, b)
    coordinator.later(0)
    assert hangs.closed
    coordinator.post(UserRescale(RescaleRequest("down", 1, 60_000)))
    assert pause(coordinator, a, b)
