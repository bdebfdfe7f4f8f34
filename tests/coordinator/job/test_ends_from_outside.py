"""Ends of each phase for external reasons: the user's stop, a store that refuses, another coordinator.

These are the transitions of `transitions` into the end that no other test module covers, each with the event.
"""

from collections.abc import Callable

import pytest
from coordinator_world import Coordinator, FakeSlot, kinds, options, spec, started

from barrier_runtime.coordinator.job.effects import Append, ReadManifest
from barrier_runtime.coordinator.job.events import RecordRead, StoreRefused
from barrier_runtime.coordinator.wire.messages import JobSpec, RestartOptions, Shutdown, Trigger
from barrier_runtime.state.store.memory import MemoryStore

REFUSED = StoreRefused("file:///x: permission denied: chmod it")


def loading(store: MemoryStore, job: JobSpec) -> Coordinator:
    return Coordinator(store, job).begin()


def resuming(store: MemoryStore, job: JobSpec) -> Coordinator:
    started(store, job)
    return Coordinator(store, job, leader="leader-b").begin().settle()


def leading_on(store: MemoryStore, job: JobSpec) -> Coordinator:
    _, a, b = started(store, job)
    new = Coordinator(store, job, leader="leader-b").begin().settle()
    for slot in (a, b):
        slot.coordinator = new
        slot.connect()
    new.run_until(Append)
    return new


def fencing_first(store: MemoryStore, job: JobSpec) -> Coordinator:
    coordinator = Coordinator(store, job).begin()
    coordinator.run_until(Append)
    return coordinator


def fencing_again(store: MemoryStore, job: JobSpec) -> Coordinator:
    coordinator, a, _ = started(store, job)
    a.fail()
    coordinator.run_until(Append)
    return coordinator


def waiting(store: MemoryStore, job: JobSpec) -> Coordinator:
    return Coordinator(store, job).begin().settle()


def running(store: MemoryStore, job: JobSpec) -> Coordinator:
    return started(store, job)[0]


def finishing(store: MemoryStore, job: JobSpec) -> Coordinator:
    coordinator, a, b = started(store, job)
    for slot in (a, b):
        slot.end()
    number = a.last(Trigger).checkpoint  # the last ack
    for slot in (a, b):
        slot.ack(number)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(number)
    coordinator.run_until(Append)
    return coordinator


Begun = Callable[[MemoryStore, JobSpec], Coordinator]


def in_phase(begun: Begun, store: MemoryStore, job: JobSpec) -> Coordinator:
    coordinator = begun(store, job)
    assert coordinator.phase == ("resuming" if begun is leading_on else begun.__name__.partition("_")[0])
    return coordinator


@pytest.mark.parametrize("begun", [loading, resuming, fencing_first, fencing_again, waiting])
def test_a_stop_ends_the_job_in_every_phase_and_leaves_what_is_stored(begun: Begun, store: MemoryStore) -> None:
    coordinator = in_phase(begun, store, spec())
    before = store.keys()
    coordinator.stop("now")
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "cancelled"
    coordinator.settle()
    assert set(store.keys()) >= set(before)
    assert "FINISH" not in kinds(store)


@pytest.mark.parametrize("begun", [loading, resuming, fencing_first])
def test_a_stop_drops_no_checkpoints_of_a_job_that_it_does_not_lead(begun: Begun) -> None:
    store, job = MemoryStore(), spec(checkpoints=options(on_cancel="delete"))
    coordinator = in_phase(begun, store, job)
    coordinator.stop("now")
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "cancelled"
    coordinator.settle()
    assert coordinator.deleted == []
    assert "FINISH" not in kinds(store)


@pytest.mark.parametrize("begun", [fencing_again, waiting])
def test_a_stop_of_who_leads_drops_the_checkpoints_when_that_is_wanted(begun: Begun) -> None:
    store, job = MemoryStore(), spec(checkpoints=options(on_cancel="delete"))
    coordinator = in_phase(begun, store, job)
    coordinator.stop("now")
    assert coordinator.phase == "finishing"
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "cancelled"
    assert kinds(store)[-1] == "FINISH"


@pytest.mark.parametrize(
    "begun", [loading, resuming, leading_on, fencing_first, fencing_again, waiting, running, finishing]
)
def test_a_store_that_refuses_ends_the_job_in_every_phase(begun: Begun, store: MemoryStore) -> None:
    coordinator = in_phase(begun, store, spec())
    coordinator.post(REFUSED)
    assert coordinator.ended is not None
    assert (coordinator.ended.outcome, coordinator.ended.reason) == ("failed", REFUSED.error)
    for slot in coordinator.links.values():
        assert slot.closed
        assert slot.last(Shutdown).reason == REFUSED.error
    coordinator.post(REFUSED)  # the job ends once


def test_damage_that_is_found_after_the_end_makes_it_a_failure(store: MemoryStore) -> None:
    coordinator = running(store, spec())
    coordinator.stop("now")
    assert coordinator.ended is not None
    coordinator.ended = None
    coordinator.post(RecordRead(coordinator.protocol.next_position, "log/2", b"damaged"))
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "failed"
    assert "log/2" in coordinator.ended.reason


@pytest.mark.parametrize("begun", [leading_on, fencing_again, finishing])
def test_another_run_that_took_the_job_over_ends_this_one(begun: Begun, store: MemoryStore) -> None:
    coordinator = in_phase(begun, store, spec())
    Coordinator(store, spec(run_id="run-2", submitter="bob@host pid 2"), leader="leader-c").begin().settle()
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "fenced"
    assert "bob@host" in coordinator.ended.reason
    assert kinds(store).count("FENCE") == 2
    assert "FINISH" not in kinds(store)


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_manifest_that_is_missing_when_a_generation_is_to_begin_fails_the_job(store: MemoryStore) -> None:
    """The leader is fencing: only the leader's FINISH ends the job."""
    _, a, b = started(store)
    a.coordinator.checkpoint(a, b)
    key = a.coordinator.paths.manifest(1, 1)
    new = successor_of(store, a, b)
    a.fail()
    store.delete([key])
    new.run_until(ReadManifest)
    assert new.phase == "fencing"
    new.step()
    assert new.phase == "failing"
    new.settle()
    assert new.ended is not None
    assert new.ended.outcome == "failed"
    assert key in new.ended.reason
    assert kinds(store)[-1] == "FINISH"


def successor_of(store: MemoryStore, *slots: FakeSlot) -> Coordinator:
    """Returns a successor with these slots that has not read the manifest to restore."""
    new = Coordinator(store, leader="leader-b").begin().settle()
    for slot in slots:
        slot.coordinator = new
        slot.connect()
    new.settle()
    assert new.phase == "running"
    return new


def test_a_slot_that_is_lost_while_the_job_restores_once_too_often_fails_it(store: MemoryStore) -> None:
    coordinator = Coordinator(store, spec(restart=RestartOptions(max_attempts=0))).begin().settle()
    slots = [coordinator.slot(index).connect() for index in range(2)]
    coordinator.settle()
    coordinator.later(0)
    assert coordinator.phase == "restoring"
    slots[0].cut()
    assert coordinator.phase == "failing"
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "failed"
    assert "was lost while the job was restoring" in coordinator.ended.reason
