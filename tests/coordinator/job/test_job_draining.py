"""Draining as interleavings: the sources' end, checkpoints, lost slots, coordinators and savepoints."""

import uuid

import pytest
from coordinator_world import Coordinator, FakeSlot, checkpoint, keys_of, kinds, new_generation, spec, started

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, Deploy, EndSources, Register, Trigger
from barrier_runtime.state.store.memory import MemoryStore


def ended(*slots: FakeSlot) -> None:
    for slot in slots:
        slot.end()


def final(coordinator: Coordinator, *slots: FakeSlot) -> int:
    """Completes and commits the checkpoint after all input."""
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.ack(number)
    coordinator.settle()
    for slot in slots:
        slot.commit(number)
    coordinator.settle()
    return number


def wish() -> SavepointRequest:
    return SavepointRequest(uuid.uuid4().hex, f"memory://savepoint-{uuid.uuid4().hex}", stops=True)


def test_sources_end_and_the_job_finishes_behind_one_last_checkpoint():
    coordinator, a, b = started(MemoryStore())
    coordinator.stop("drain")
    assert a.got(EndSources)
    assert b.got(EndSources)
    ended(a, b)
    final(coordinator, a, b)
    assert coordinator.phase == "finished"
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "FINISH"]


def test_no_checkpoint_is_taken_of_a_half_drained_job():
    coordinator, a, b = started(MemoryStore())
    coordinator.stop("drain")
    ended(a)
    coordinator.trigger()
    coordinator.savepoint(SavepointRequest("another", "memory://another"))
    coordinator.stop("checkpoint")
    coordinator.later(5_000)
    assert not a.got(Trigger)
    ended(b)
    assert a.got(Trigger)


def test_sources_end_only_when_no_checkpoint_is_under_way():
    coordinator, a, b = started(MemoryStore())
    coordinator.trigger()
    before = a.last(Trigger).checkpoint
    coordinator.stop("drain")
    assert not a.got(EndSources)
    a.ack(before)
    b.ack(before)
    coordinator.settle()
    assert a.got(EndSources)
    assert b.got(EndSources)


def test_a_checkpoint_that_fails_meanwhile_does_not_keep_the_job_from_draining():
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=CheckpointOptions(tolerable_failures=3)))
    coordinator.trigger()
    coordinator.stop("drain")
    a.decline(a.last(Trigger).checkpoint)
    coordinator.settle()
    assert a.got(EndSources)
    assert b.got(EndSources)


def test_a_lost_slot_makes_the_job_drain_again_from_before():
    coordinator, a, b = started(MemoryStore())
    number = checkpoint(coordinator, a, b, files="f")
    coordinator.stop("drain")
    ended(a)
    told = len(a.got(EndSources))
    new_generation(coordinator, a, b)
    assert a.last(Deploy).checkpoint == number
    assert not a.last(Deploy).drained
    assert len(a.got(EndSources)) == told + 1
    ended(a, b)
    final(coordinator, a, b)
    assert coordinator.phase == "finished"


def test_a_slot_that_comes_back_is_told_once_more():
    coordinator, a, b = started(MemoryStore())
    a.cut()
    coordinator.stop("drain")
    assert b.got(EndSources)
    assert not a.got(EndSources)
    a.connect()
    assert a.got(EndSources)


def test_stopping_at_once_is_always_possible():
    coordinator, _, _ = started(MemoryStore())
    coordinator.stop("drain")
    coordinator.stop("now")
    coordinator.settle()
    assert coordinator.phase == "cancelled"


def test_a_job_that_is_stopping_already_is_not_drained():
    coordinator, a, _ = started(MemoryStore())
    coordinator.stop("checkpoint")
    coordinator.stop("drain")
    assert a.got(Trigger)
    assert not a.got(EndSources)


def test_the_next_coordinator_goes_on_draining_what_its_predecessor_began():
    """The successor learns of the drain from the slots: a checkpoint of a half drained job would be restorable."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.stop("drain")
    successor = Coordinator(store, leader="leader-b", now_ms=coordinator.now_ms + 1_000)
    successor.begin().settle()
    for slot in (a, b):
        slot.coordinator = successor
        slot.inbox.clear()
        slot.connect()
    successor.settle()
    assert successor.phase == "running"
    successor.later(5_000)
    assert a.got(EndSources)
    assert not a.got(Trigger)
    ended(a, b)
    final(successor, a, b)
    assert successor.phase == "finished"


def test_what_was_drained_stays_drained_in_the_run_that_did_it():
    """The generation dies between the last checkpoint and the end: the next generation reads no further row."""
    coordinator, a, b = started(MemoryStore())
    coordinator.stop("drain")
    ended(a, b)
    number = a.last(Trigger).checkpoint
    a.ack(number)
    b.ack(number)
    coordinator.settle()
    new_generation(coordinator, a, b)
    deploy = a.last(Deploy)
    assert (deploy.checkpoint, deploy.drained) == (number, True)


def drained(store: MemoryStore, savepoint: SavepointRequest | None = None) -> Coordinator:
    coordinator, a, b = started(store)
    coordinator.stop("drain", savepoint)
    coordinator.settle()
    ended(a, b)
    final(coordinator, a, b)
    assert coordinator.phase == "finished"
    return coordinator


def test_another_run_does_not_go_on_with_it_by_mistake():
    store = MemoryStore()
    drained(store)
    again = Coordinator(store, spec(run_id="run-2"), now_ms=2_000_000).begin().settle()
    assert again.phase == "failed"
    assert "was drained" in again.ended.reason
    assert "allow_drained" in again.ended.reason


def test_another_run_reads_on_where_that_is_allowed():
    store = MemoryStore()
    drained(store)
    again = Coordinator(store, spec(run_id="run-2", allow_drained=True), now_ms=2_000_000).begin().settle()
    a, b = again.slot(0).connect(), again.slot(1).connect()
    again.settle()
    assert a.last(Deploy).checkpoint == 1
    assert not a.last(Deploy).drained
    assert not b.last(Deploy).drained


def test_the_savepoint_is_of_the_last_checkpoint_and_says_what_it_is():
    from barrier_runtime.coordinator.savepoint_files import read_savepoint

    asked = wish()
    coordinator = drained(MemoryStore(), asked)
    savepoint = read_savepoint(asked.url)
    assert (savepoint.final, savepoint.taken.drained_by) == (True, coordinator.protocol.spec.run_id)
    assert coordinator.status.savepoints[-1].state == "done"


def test_a_savepoint_that_is_asked_for_behind_the_last_checkpoint_gets_one():
    coordinator, a, b = started(MemoryStore())
    coordinator.stop("drain")
    ended(a, b)
    last = a.last(Trigger).checkpoint
    a.ack(last)
    b.ack(last)
    coordinator.settle()
    coordinator.savepoint(SavepointRequest("late", f"memory://savepoint-{uuid.uuid4().hex}"))
    coordinator.stop("drain")
    assert a.last(Trigger).checkpoint == last + 1
    final(coordinator, a, b)
    assert coordinator.phase == "finished"


def test_a_drained_job_ends_though_its_savepoint_cannot_be_written():
    coordinator = drained(MemoryStore(), SavepointRequest(uuid.uuid4().hex, "/proc/none/here", stops=True))
    assert coordinator.status.savepoints[-1].state == "failed"


@pytest.mark.parametrize("told", [True, False])
def test_a_register_says_nothing_of_draining_to_older_coordinators_unless_it_must(told: bool):
    from barrier_runtime.coordinator.wire.codec import encode

    register = Register(0, "u", 1, "h", 0, "h", 1, token=1, phase="running", drained=told)
    assert (b"drained" in encode(register)) == told


@pytest.mark.usefixtures("manifests_are_objects")
def test_manifests_of_jobs_that_were_not_drained_are_as_they_were():
    store = MemoryStore()
    coordinator, a, b = started(store)
    checkpoint(coordinator, a, b, files="f")
    manifests = [store.get(key) for key in keys_of(store) if "manifest" in key]
    assert manifests
    assert not any(b"drained" in data for data in manifests)
