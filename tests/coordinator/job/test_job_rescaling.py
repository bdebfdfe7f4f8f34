"""Rescales of a running job, as interleavings of the request, new slots, the last checkpoint, commits and deaths."""

import uuid

import pytest
from coordinator_world import Coordinator, FakeSlot, kinds, log_of, options, pause, spec, started

from barrier_runtime.coordinator.client.rest_types import RescaleAsked
from barrier_runtime.coordinator.job.effects import Append, WriteManifest
from barrier_runtime.coordinator.job.events import Tick, UserRescale, UserTrigger
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.records import Complete, Fence
from barrier_runtime.coordinator.status.health import HANGING_MS
from barrier_runtime.coordinator.status.status import RescaleStatus
from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    CancelGeneration,
    CheckpointComplete,
    Committed,
    Deploy,
    Prefetch,
    Registered,
    Shutdown,
    Start,
    Trigger,
)
from barrier_runtime.launch.requests import RescaleFailed, wait_for_rescale
from barrier_runtime.state.store.memory import MemoryStore

PATIENCE_MS = 5_000


def ask(coordinator: Coordinator, parallelism: int, timeout_ms: int = PATIENCE_MS) -> RescaleRequest:
    request = RescaleRequest(uuid.uuid4().hex, parallelism, timeout_ms)
    assert coordinator.protocol.refuses_rescale(request) == ""
    coordinator.post(UserRescale(request))
    return request


def told(coordinator: Coordinator) -> RescaleStatus:
    return coordinator.status.rescales[-1]


def standbys(coordinator: Coordinator, *indices: int) -> tuple[FakeSlot, ...]:
    return tuple(coordinator.slot(index, attempt=10 + index).connect() for index in indices)


def last_checkpoint(coordinator: Coordinator, *slots: FakeSlot) -> int:
    """Decides the last checkpoint of the old slots, without the sinks' commits; returns the id."""
    coordinator.later(0)
    if not slots[0].last(Trigger).pause:  # the checkpoint of the last round
        coordinator.acknowledge(*slots)
    trigger = slots[0].last(Trigger)
    assert trigger.pause, "sources stop with it"
    for slot in slots:
        slot.ack(trigger.checkpoint)
    coordinator.settle()
    return trigger.checkpoint


def commit(number: int, *slots: FakeSlot) -> None:
    for slot in slots:
        slot.commit(number)


def fences(store: MemoryStore) -> list[tuple[int, int]]:
    """Returns (parallelism, restored checkpoint) of each FENCE."""
    return [(each.spec.parallelism, each.restored_checkpoint) for each in log_of(store) if isinstance(each, Fence)]


def test_new_slots_are_ready_before_the_pause_and_the_job_moves_at_its_checkpoint():
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    triggers = len(a.got(Trigger))
    ask(coordinator, 4)
    wanted = coordinator.status.standbys
    assert (wanted.first, wanted.last) == (2, 3)
    (c,) = standbys(coordinator, 2)
    assert c.got(Registered), "it is heard like any slot"
    assert (len(a.got(Trigger)), told(coordinator).state) == (triggers, "starting"), "the job has not noticed"
    (d,) = standbys(coordinator, 3)
    number = last_checkpoint(coordinator, a, b)
    assert not c.got(Trigger)
    assert told(coordinator).state == "committing"
    commit(number, a)
    coordinator.settle()
    assert fences(store) == [(2, 0)], "not all that was read is visible yet"
    commit(number, b)
    coordinator.settle()
    assert fences(store) == [(2, 0), (4, number)]
    coordinator.later(0)
    for slot in (a, b, c, d):
        deploy = slot.last(Deploy)
        assert (deploy.checkpoint, len(deploy.peers), deploy.settled) == (number, 4, True)
        assert len(deploy.operators) == 2 * 2, "every snapshot: key groups and splits move"
        slot.restored()
    assert all(slot.got(Start) for slot in (a, b, c, d))
    assert coordinator.protocol.summary(coordinator.now_ms).restarts == 0, "a rescale is no recovery"
    assert [each.stored_kind for each in coordinator.status.recoveries] == ["start", "rescale"]
    rescale = told(coordinator)
    assert (rescale.state, rescale.before, rescale.parallelism, rescale.checkpoint) == ("done", 2, 4, number)
    assert rescale.pause_ms is not None
    assert (coordinator.status.parallelism, coordinator.status.standbys) == (4, None)
    coordinator.checkpoint(a, b, c, d)
    assert coordinator.status.checkpoints.failed == 0


def test_slots_that_are_not_needed_leave_when_the_log_says_so():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 1)
    number = last_checkpoint(coordinator, a, b)
    commit(number, a, b)
    coordinator.run_until(Append)
    assert not b.got(Shutdown), "the record may still be somebody else's"
    coordinator.settle()
    assert b.last(Shutdown).outcome == "left"
    assert b.closed
    coordinator.later(0)
    a.restored()
    assert (coordinator.phase, told(coordinator).state) == ("running", "done")
    b.connect()
    assert [each.outcome for each in b.got(Shutdown)] == ["left", "left"], "it did not hear: its task ends well"
    coordinator.checkpoint(a)


def test_a_rescale_that_is_asked_for_while_the_job_restores_gets_its_slots():
    """A restarted program does so: the new slots have registered, but have not opened their state."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    number = coordinator.checkpoint(a, b)
    again = coordinator.slot(1, attempt=1).connect()
    coordinator.later(10_000)
    coordinator.settle()
    for slot in (a, again):
        slot.beat()
    coordinator.later(0)
    assert coordinator.phase == "restoring"
    ask(coordinator, 3)
    assert coordinator.status.standbys is not None, "the driver starts them at once"
    (c,) = standbys(coordinator, 2)
    assert not c.got(Shutdown), "the driver would not start it again"
    for slot in (a, again):
        slot.restored()
    assert coordinator.phase == "running"
    last = last_checkpoint(coordinator, a, again)
    commit(last, a, again)
    coordinator.settle()
    assert [parallelism for parallelism, _ in fences(store)] == [2, 2, 3]
    assert number < last


def asked_while_it_restores(store):
    """Returns a job whose two slots restore, with a requested rescale to three."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    b.fail()
    coordinator.settle()
    assert coordinator.phase == "restoring"
    ask(coordinator, 3)
    return coordinator, a, b


def test_a_restore_takes_nothing_from_the_time_that_a_rescale_has():
    coordinator, a, b = asked_while_it_restores(MemoryStore())
    for _ in range(3):
        coordinator.later(PATIENCE_MS)
        for slot in (a, b):
            slot.beat()
    for slot in (a, b):
        slot.restored()
    assert (coordinator.phase, told(coordinator).state) == ("running", "starting")
    coordinator.later(PATIENCE_MS - 1)
    for slot in (a, b):
        slot.beat()
    assert told(coordinator).state == "starting"
    coordinator.later(1)
    assert "slots 2 did not come within 5 s" in told(coordinator).error


def test_a_new_slot_that_is_lost_while_the_job_restores_is_none_of_its_slots():
    """The generation does not need the new slot, and must not restart."""
    store = MemoryStore()
    coordinator, a, b = asked_while_it_restores(store)
    assert coordinator.protocol.summary(coordinator.now_ms).restarts == 1
    (c,) = standbys(coordinator, 2)
    c.cut()
    for slot in (a, b):
        slot.restored()
    assert coordinator.phase == "running"
    assert len(fences(store)) == 2
    c.connect()
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.settle()
    assert fences(store)[-1][0] == 3


def test_who_asks_for_a_change_of_a_job_that_failed_hears_why():
    coordinator, a, _ = started(MemoryStore())
    a.fail("rows of another kind: mend the source", retryable=False)
    coordinator.settle()
    refused = coordinator.protocol.refuses_rescale(RescaleRequest("late", 3, PATIENCE_MS))
    assert refused == "job flights has ended (failed): rows of another kind: mend the source"

    def status():
        return coordinator.status

    with pytest.raises(RescaleFailed, match=r"ended \(failed\) before it was rescaled: rows of another kind: mend"):
        wait_for_rescale("flights", RescaleAsked("late", 3), lambda: None, status)


def test_no_slots_in_time_leave_the_job_as_it_was():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 4)
    (c,) = standbys(coordinator, 2)
    coordinator.later(100)
    before = len(a.inbox)
    for _ in range(60):
        coordinator.later(100)
        for slot in (a, b, c):
            slot.beat()
    assert told(coordinator).state == "failed"
    assert "slots 3 did not come within 5 s; the job goes on with 2" in told(coordinator).error
    assert c.last(Shutdown).outcome == "left"
    assert not [each for each in a.inbox[before:] if isinstance(each, CancelGeneration | Deploy)]
    assert not any(each.pause for each in a.got(Trigger)), "no source was stopped"
    assert (coordinator.phase, fences(store)) == ("running", [(2, 0)])


def test_a_failed_last_checkpoint_lets_the_sources_go_on_without_a_restart():
    store = MemoryStore()
    coordinator, a, b = started(store, spec(checkpoints=options(tolerable_failures=1)))
    ask(coordinator, 1)
    coordinator.later(0)
    number = a.last(Trigger).checkpoint
    a.ack(number)
    b.decline(number)
    coordinator.settle()
    assert told(coordinator).state == "failed"
    assert "disk full" in told(coordinator).error
    assert a.last(AbortCheckpoint).checkpoint == number, "with this they go on"
    assert (coordinator.phase, fences(store)) == ("running", [(2, 0)])
    coordinator.checkpoint(a, b)
    assert not a.last(Trigger).pause
    ask(coordinator, 1)  # and again
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.settle()
    assert fences(store)[-1][0] == 1


@pytest.mark.parametrize("moment", ["commits hang", "a new slot is lost"])
def test_sources_that_have_stopped_for_nothing_read_on_in_a_new_generation(moment):
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3)
    (c,) = standbys(coordinator, 2)
    number = last_checkpoint(coordinator, a, b)
    if moment == "a new slot is lost":
        c.cut()
        commit(number, a, b)
    else:
        for _ in range(60):
            coordinator.later(100)
            for slot in (a, b, c):
                slot.beat()
    coordinator.settle()
    assert told(coordinator).state == "failed"
    assert fences(store) == [(2, 0), (2, number)], "nothing is read twice"
    if moment != "a new slot is lost":
        assert c.last(Shutdown).outcome == "left"
    coordinator.run_with(a, b)


@pytest.mark.slow
def test_a_leaving_slot_that_stands_still_between_decision_and_commit_holds_the_move():
    """The slot has pre-committed checkpoint m, knows that m is decided, stalls for a minute, then commits.

    No new slot takes over before the slot is fenced. The new slots restore m, whose manifest lists the transactions,
    and the coordinator ignores late messages of the old slot."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 1)
    number = last_checkpoint(coordinator, a, b)
    assert b.last(CheckpointComplete).checkpoint == number
    stalled_in = b.token
    commit(number, a)
    for _ in range(600):
        coordinator.later(100)
        coordinator.settle()
        a.beat()
    assert told(coordinator).state == "failed"
    assert fences(store)[0] == (2, 0)
    assert set(fences(store)[1:]) == {(2, number)}, "the same slots, behind m"
    again = coordinator.slot(1, attempt=1).connect()
    coordinator.run_with(a, again)
    for slot in (a, again):
        assert (slot.last(Deploy).checkpoint, slot.last(Deploy).settled) == (number, False), "they commit it first"
    ask(coordinator, 1)
    last = last_checkpoint(coordinator, a, again)
    commit(last, a)
    b.say(Committed(stalled_in, last, "out", 1))
    coordinator.settle()
    assert fences(store)[-1] == (2, number), "a late word is not that of the slot which is waited for"
    commit(last, again)
    coordinator.settle()
    assert fences(store)[-1] == (1, last)


def test_trouble_before_the_move_ends_the_rescale_and_not_the_job():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3)
    (c,) = standbys(coordinator, 2)
    a.fail()
    coordinator.settle()
    coordinator.run_with(a, b)
    assert told(coordinator).state == "failed"
    assert "boom" in told(coordinator).error
    assert c.last(Shutdown).outcome == "left"
    assert fences(store) == [(2, 0), (2, 0)]


@pytest.mark.parametrize("appended", [False, True])
def test_the_log_alone_says_which_slots_the_job_has_when_the_coordinator_dies(appended):
    """The successor has the first description from the driver, but the parallelism of the newest FENCE."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3)
    (c,) = standbys(coordinator, 2)
    number = last_checkpoint(coordinator, a, b)
    commit(number, a, b)
    assert isinstance(coordinator.run_until(Append), Append)
    if appended:
        coordinator.step_without_answer()
    successor = Coordinator(store, leader="leader-b", now_ms=coordinator.now_ms).begin()
    for slot in (a, b, c):
        slot.coordinator, slot.link, slot.phase = successor, 0, "idle" if slot is c else "paused"
    c.connect()
    assert not c.got(Shutdown), "the log is not read yet: it may be a slot of the job"
    successor.run_with(a, b, *([c] if appended else []))
    assert successor.status.parallelism == (3 if appended else 2)
    assert fences(store)[-1] == (3 if appended else 2, number), "nothing is read twice, whoever has it"
    assert bool(c.got(Shutdown)) != appended
    if not appended:
        assert c.last(Shutdown).outcome == "left"


def test_a_successor_goes_on_with_living_slots_of_another_number():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3)
    (c,) = standbys(coordinator, 2)
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.run_with(a, b, c)
    successor = Coordinator(store, leader="leader-b", now_ms=coordinator.now_ms).begin()
    for slot in (c, b, a):
        slot.coordinator = successor
        slot.connect()
    successor.settle()
    assert (successor.phase, kinds(store)[-1]) == ("running", "LEAD")
    successor.checkpoint(a, b, c)


def test_slots_of_another_number_may_restore_for_longer_than_the_rescale_was_to_take():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 1)
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.settle()
    coordinator.later(0)
    for _ in range(3):
        coordinator.later(PATIENCE_MS)
        coordinator.settle()
        a.beat()
    assert (coordinator.phase, told(coordinator).state) == ("restoring", "moving"), "there is nothing to go back to"
    a.restored()
    assert (coordinator.phase, told(coordinator).state) == ("running", "done")


def test_a_user_who_stops_the_job_has_priority():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3)
    (c,) = standbys(coordinator, 2)
    coordinator.later(0)
    coordinator.stop("checkpoint")
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(number)
    coordinator.settle()
    stop = a.last(Trigger).checkpoint
    if stop != number:
        for slot in (a, b):
            slot.ack(stop)
        coordinator.settle()
    commit(stop, a, b)
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "cancelled"
    assert (told(coordinator).state, fences(store)) == ("failed", [(2, 0)])
    assert c.last(Shutdown).outcome == "left"


def test_what_cannot_be_had_is_refused_and_asking_twice_changes_nothing():
    coordinator, _a, _b = started(MemoryStore())
    protocol = coordinator.protocol
    assert "give 1 to 128" in protocol.refuses_rescale(RescaleRequest("x", 129))
    assert "give 1 to 128" in protocol.refuses_rescale(RescaleRequest("x", 0))
    request = ask(coordinator, 3)
    coordinator.post(UserRescale(request))
    assert len(coordinator.status.rescales) == 1
    assert "wait until that is done" in protocol.refuses_rescale(RescaleRequest("y", 4))
    assert "use a new id" in protocol.refuses_rescale(RescaleRequest(request.id, 4))


def test_sources_continue_until_new_slots_fetched_a_checkpoint_and_the_rest_follows():
    store = MemoryStore()
    coordinator, a, b = started(store)
    first = coordinator.checkpoint(a, b)
    ask(coordinator, 3)
    c = coordinator.slot(2, attempt=12)
    b.prefetches = c.prefetches = False
    c.connect()
    coordinator.later(0)
    order = c.last(Prefetch)
    assert (order.checkpoint, order.parallelism) == (first, 3)
    assert a.got(Prefetch), "those that stay fetch what they get, beside their work"
    c.fetched(first)
    coordinator.later(0)
    assert not any(each.pause for each in a.got(Trigger)), "b stays, and what it gets more is in files of a"
    b.prefetches = c.prefetches = True
    b.fetched(first)
    number = last_checkpoint(coordinator, a, b)
    assert number == first + 2
    assert c.last(Prefetch).checkpoint == number, "the difference, while sinks commit it"
    commit(number, a, b)
    coordinator.settle()
    assert fences(store)[-1] == (3, number), "whether that has come or not"


def test_current_and_leaving_slots_fetch_before_a_fresh_checkpoint_stops_sources():
    store = MemoryStore()
    coordinator, a, b = started(store)
    a.prefetches = b.prefetches = False
    first = coordinator.checkpoint(a, b)
    ask(coordinator, 1)
    coordinator.later(400)
    assert a.last(Prefetch) == b.last(Prefetch), "b leaves: it lets its databases rest"
    a.fetched(first)
    coordinator.later(0)
    assert a.last(Trigger).checkpoint == first
    b.fetched(first)
    coordinator.later(0)
    assert (a.last(Trigger).checkpoint, a.last(Trigger).pause) == (first + 1, False), "much may have come since"
    coordinator.acknowledge(a, b)
    assert a.last(Prefetch).checkpoint == first + 1
    assert not a.last(Trigger).pause
    a.fetched(first + 1)
    b.fetched(first + 1)
    number = last_checkpoint(coordinator, a, b)
    assert number == first + 2
    commit(number, a, b)
    coordinator.settle()
    assert fences(store)[-1] == (1, number)


def test_compacted_files_are_in_the_checkpoint_before_the_pause_of_the_sources():
    """Otherwise the compacted files, maybe much of the state, would be written and fetched during the pause."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    a.prefetches = b.prefetches = False
    first = coordinator.checkpoint(a, b)
    ask(coordinator, 1)
    coordinator.later(0)
    coordinator.post(UserTrigger())
    under_way = a.last(Trigger).checkpoint
    assert under_way == first + 1
    for slot in (a, b):
        slot.fetched(first)
    coordinator.later(0)
    coordinator.acknowledge(a, b)
    assert (a.last(Trigger).checkpoint, a.last(Trigger).pause) == (under_way + 1, False)
    coordinator.acknowledge(a, b)
    coordinator.later(2_000)
    coordinator.post(UserTrigger())
    coordinator.later(0)
    assert a.last(Trigger).checkpoint == under_way + 1, "no other comes between, though one is due, and asked for"
    for slot in (a, b):
        slot.fetched(under_way + 1)
    number = last_checkpoint(coordinator, a, b)
    assert number == under_way + 2
    commit(number, a, b)
    coordinator.settle()
    assert fences(store)[-1] == (1, number)


def test_earlier_requested_checkpoint_is_not_always_due_while_checkpoints_are_off():
    """Otherwise ticks would follow each other at once, use a whole core, and count as late, so all waits restart."""
    coordinator, a, b = started(MemoryStore())
    a.prefetches = b.prefetches = False
    first = coordinator.checkpoint(a, b)
    ask(coordinator, 1)
    coordinator.later(0)
    for slot in (a, b):
        slot.fetched(first)
    coordinator.later(0)
    assert a.last(Trigger).checkpoint == first + 1
    coordinator.post(UserTrigger())
    coordinator.acknowledge(a, b)
    assert coordinator.protocol.next_deadline() > coordinator.now_ms
    for slot in (a, b):
        slot.fetched(first + 1)
    assert last_checkpoint(coordinator, a, b) == first + 2


def test_new_slots_are_not_lost_because_the_coordinator_stood_still():
    store = MemoryStore()
    coordinator, a, b = started(store)
    ask(coordinator, 3, 60_000)
    standbys(coordinator, 2)
    number = last_checkpoint(coordinator, a, b)
    coordinator.now_ms = coordinator.protocol.next_deadline() + 5_000
    coordinator.post(Tick())
    commit(number, a, b)
    coordinator.settle()
    assert fences(store)[-1] == (3, number)


def test_checkpoints_are_not_held_back_longer_than_a_slot_may_take_to_fetch():
    coordinator, a, b = started(MemoryStore())
    a.prefetches = b.prefetches = False
    first = coordinator.checkpoint(a, b)
    ask(coordinator, 1)
    coordinator.later(0)
    coordinator.post(UserTrigger())
    for slot in (a, b):
        slot.fetched(first)
    coordinator.later(0)
    for _ in range(2):
        coordinator.acknowledge(a, b)
    coordinator.later(PATIENCE_MS)
    assert (a.last(Trigger).checkpoint, a.last(Trigger).pause) == (first + 3, True)


def test_what_was_fetched_for_another_move_does_not_count():
    coordinator, a, b = started(MemoryStore())
    first = coordinator.checkpoint(a, b)
    ask(coordinator, 3)
    c = coordinator.slot(2, attempt=12)
    c.prefetches = False
    c.connect()
    coordinator.later(0)
    assert a.prefetched == first
    coordinator.later(PATIENCE_MS)
    for slot in (a, b):
        slot.beat()
    coordinator.settle()
    assert told(coordinator).state == "failed"
    a.prefetches = False
    ask(coordinator, 1)
    coordinator.later(0)
    assert [(each.checkpoint, each.parallelism) for each in a.got(Prefetch)] == [(first, 3), (first, 1)]
    coordinator.acknowledge(a, b)
    assert not a.last(Trigger).pause


def test_an_order_to_fetch_that_went_with_its_connection_comes_again():
    coordinator, a, b = started(MemoryStore())
    first = coordinator.checkpoint(a, b)
    a.prefetches = False
    ask(coordinator, 1)
    coordinator.later(0)
    a.cut()
    coordinator.settle()
    a.inbox.clear()
    a.prefetches = True
    a.connect()
    coordinator.later(0)
    assert a.got(Prefetch)
    assert a.last(Trigger).checkpoint == first + 1, "for the last round"


def test_slots_that_do_not_fetch_in_time_leave_the_job_as_it_was():
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    ask(coordinator, 3)
    c = coordinator.slot(2, attempt=12)
    c.prefetches = False
    c.connect()
    for _ in range(60):
        coordinator.later(100)
        for slot in (a, b, c):
            slot.beat()
        trigger = a.last(Trigger)
        if trigger.checkpoint > coordinator.status.checkpoints.last_completed.checkpoint:
            coordinator.settle()
    assert "slots 2 did not fetch their key groups within 5 s" in told(coordinator).error
    assert not any(each.pause for each in a.got(Trigger))


def test_a_fence_whose_put_hangs_is_the_stores_trouble_until_it_lands() -> None:
    """1.15 in the status: no rows are read meanwhile, and the silent store is named."""
    coordinator, a, b = started(MemoryStore(), spec(slot_timeout_ms=600_000, progress_timeout_ms=60_000))
    ask(coordinator, 1)
    commit(last_checkpoint(coordinator, a, b), a, b)
    append = coordinator.todo[0]
    assert isinstance(append, Append)
    coordinator.later(HANGING_MS - 1)
    assert coordinator.status.condition == "RECOVERING"
    coordinator.later(1)
    assert coordinator.status.condition == "WAITING_STORE"
    key = coordinator.paths.log_record(append.position)
    assert coordinator.status.condition_reason == f"append {key}: no answer for 5.0 s"
    coordinator.step()
    assert coordinator.status.condition == "RECOVERING"
    coordinator.settle()
    a.restored()
    assert told(coordinator).state == "done"
    assert coordinator.status.condition == "RUNNING"


def stopped_sources(coordinator: Coordinator, *slots: FakeSlot) -> int:
    """Acknowledges the last checkpoint of the sources, before any write; returns the id."""
    ask(coordinator, 1)
    coordinator.later(0)
    trigger = slots[0].last(Trigger)
    assert trigger.pause
    for slot in slots:
        slot.ack(trigger.checkpoint)
    return trigger.checkpoint


@pytest.mark.usefixtures("manifests_are_objects")
def test_sources_do_not_stand_longer_than_was_allowed_for_a_manifest_that_hangs() -> None:
    """1.15: sources continue in their generation, and no failed checkpoint is counted.

    No record names a manifest that is stored after that."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(slot_timeout_ms=600_000))
    number = stopped_sources(coordinator, a, b)
    write = coordinator.run_until(WriteManifest)
    coordinator.todo.remove(write)
    coordinator.later(PATIENCE_MS - 1)
    assert (told(coordinator).state, a.got(AbortCheckpoint)) == ("stopping", [])
    coordinator.later(1)
    assert told(coordinator).state == "failed"
    why = f"{number}, failed: it was not decided within {PATIENCE_MS} ms, its manifest is not stored"
    assert why in told(coordinator).error
    assert [each.checkpoint for slot in (a, b) for each in slot.got(AbortCheckpoint)] == [number] * 2
    coordinator.post(coordinator.answer(write))
    coordinator.settle()
    assert coordinator.phase == "running"
    assert fences(store) == [(2, 0)], "nobody began again"
    assert not any(isinstance(record, Complete) for record in log_of(store))
    after = a.last(Trigger)
    assert (after.checkpoint, after.pause) == (number + 1, False), "the next one was due"
    for slot in (a, b):
        slot.ack(after.checkpoint)
    coordinator.settle()
    commit(after.checkpoint, a, b)
    ask(coordinator, 1)
    assert last_checkpoint(coordinator, a, b) == number + 3


def test_a_subtask_that_does_not_answer_holds_the_sources_no_longer_than_was_allowed() -> None:
    coordinator, a, b = started(MemoryStore(), spec(slot_timeout_ms=600_000))
    ask(coordinator, 1)
    coordinator.later(0)
    a.ack(a.last(Trigger).checkpoint)
    coordinator.later(PATIENCE_MS)
    assert told(coordinator).state == "failed"
    assert "have not answered: give a longer timeout" in told(coordinator).error
    assert (coordinator.phase, coordinator.status.condition) == ("running", "RUNNING")
    assert b.got(AbortCheckpoint)


def test_a_decision_that_is_on_its_way_is_not_given_up() -> None:
    """Only the log decides about the pending record (I9)."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(slot_timeout_ms=600_000))
    number = stopped_sources(coordinator, a, b)
    coordinator.run_until(Append)
    coordinator.later(3 * PATIENCE_MS)
    assert (told(coordinator).state, a.got(AbortCheckpoint)) == ("stopping", [])
    coordinator.settle()
    assert told(coordinator).state == "committing"
    commit(number, a, b)
    coordinator.settle()
    assert fences(store) == [(2, 0), (1, number)]


def test_checkpoints_go_on_while_a_new_slot_of_the_last_round_is_missing() -> None:
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    ask(coordinator, 3, timeout_ms=600_000)
    (c,) = standbys(coordinator, 2)
    coordinator.later(0)
    c.prefetches = False
    coordinator.acknowledge(a, b)
    seconds(coordinator, 2, a, b, c)
    assert not coordinator.status.checkpoints.in_progress, "only that with which the sources stop may follow"
    c.cut()
    seconds(coordinator, 2, a, b)
    assert coordinator.status.checkpoints.in_progress
    coordinator.acknowledge(a, b)
    assert told(coordinator).state == "starting"
    (again,) = standbys(coordinator, 2)
    commit(pause(coordinator, a, b), a, b)
    coordinator.settle()
    coordinator.run_with(a, b, again)


def seconds(coordinator: Coordinator, count: int, *living: FakeSlot) -> None:
    for _ in range(count):
        coordinator.later(1_000)
        for slot in living:
            slot.beat()
        coordinator.settle()


def returned(coordinator: Coordinator, a: FakeSlot, b: FakeSlot) -> FakeSlot:
    """Rescales to a single slot while `b` is out of reach, and back; returns the new slot."""
    ask(coordinator, 1)
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.run_until(Append)
    b.cut()
    coordinator.run_with(a)
    ask(coordinator, 2)
    (new,) = standbys(coordinator, 1)
    commit(last_checkpoint(coordinator, a), a)
    coordinator.run_with(a, new)
    return new


def test_surplus_slot_that_hears_of_a_rescale_after_the_next_ends_its_task_well() -> None:
    """Another Spark job carries the slot now: a task that fails would start again, and replace that slot."""
    coordinator, a, b = started(MemoryStore())
    returned(coordinator, a, b)
    b.connect()
    assert b.last(Shutdown).outcome == "left"
    assert coordinator.phase == "running"


def test_two_spark_jobs_of_a_slot_do_not_replace_each_other_for_ever() -> None:
    coordinator, a, b = started(MemoryStore())
    new = returned(coordinator, a, b)
    again = coordinator.slot(1, attempt=99).connect()  # the task of `b`, whose executor was lost
    assert new.last(Shutdown).outcome == "left"
    coordinator.run_with(a, again)


def test_surplus_slot_that_hangs_is_closed_and_not_killed() -> None:
    coordinator, a, b = started(MemoryStore())
    ask(coordinator, 1)
    commit(last_checkpoint(coordinator, a, b), a, b)
    coordinator.run_until(Append)
    for _ in range(4):
        coordinator.later(1_000)
        a.beat()
    coordinator.run_with(a)
    assert b.closed
    assert b.last(Shutdown).outcome == "left", "the task ends as soon as the process wakes up"
    assert (coordinator.kills, coordinator.status.kill) == ([], ())
