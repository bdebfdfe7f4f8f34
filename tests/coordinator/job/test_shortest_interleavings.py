"""Bugs found by the simulation, each as the shortest interleaving that shows the bug."""

import pytest
from coordinator_world import Coordinator, kinds, log_of, options, spec, started

from barrier_runtime.coordinator.job.effects import Append, DeleteAll, ReadManifest, ReadRecord, WriteManifest
from barrier_runtime.coordinator.wire.messages import AbortCheckpoint, Heartbeat, Registered, Shutdown, Trigger
from barrier_runtime.state.store.memory import MemoryStore


def test_a_leader_that_waits_for_slots_finds_out_that_somebody_else_leads(store: MemoryStore) -> None:
    """Found by the simulation: the waiting leader appends no record, and the successor has the slots."""
    coordinator, _a, b = started(store)
    b.cut()
    coordinator.later(2_000)
    coordinator.settle()
    assert coordinator.phase == "waiting"
    successor = Coordinator(store, leader="leader-b", now_ms=coordinator.now_ms).begin().settle()
    successor.later(5_000)
    successor.settle()
    assert kinds(store)[-1] == "FENCE"
    coordinator.later(10_000)
    coordinator.settle()
    assert coordinator.ended.outcome == "replaced"
    assert "leader-b" in coordinator.ended.reason


def test_a_manifest_that_went_while_the_log_was_being_read_is_looked_for_again(store: MemoryStore) -> None:
    """Found by the simulation: a starting coordinator read the log, then the leader completed the next checkpoint and
    dropped the checkpoint before. A missing manifest is damage only if the log still names the manifest."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    other = Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin()
    other.run_until(ReadManifest)
    for _ in range(3):
        coordinator.checkpoint(a, b)
    other.settle()
    assert other.phase == "waiting"
    assert log_of(store)[-1].restored_checkpoint == 4


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_manifest_that_the_log_still_names_and_that_is_gone_ends_the_job(store: MemoryStore) -> None:
    coordinator, a, b = started(store)
    n = coordinator.checkpoint(a, b)
    store.delete([coordinator.paths.manifest(n, a.token)])
    other = Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin()
    other.settle()
    assert other.ended.outcome == "failed"
    assert "missing from the store: restore it from a backup" in other.ended.reason
    assert kinds(store)[-1] == "COMPLETE"


def test_a_fenced_coordinator_does_not_take_what_its_successor_dropped_for_damage(store: MemoryStore) -> None:
    """Found by the simulation: a slot restored a checkpoint whose files the successor had deleted."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin().settle()
    a.fail("snapshot file 000017.sst is gone: restore it from a backup", retryable=False)
    coordinator.settle()
    assert coordinator.ended.outcome == "fenced"
    assert a.last(Shutdown).outcome == "fenced"


def test_a_log_record_with_a_flipped_bit_in_its_text_is_corrupt_and_not_a_crash(store: MemoryStore) -> None:
    """Found by the simulation: the decoder raises no `DecodeError` for invalid UTF-8."""
    coordinator, _, _ = started(store)
    key = coordinator.paths.log_record(1)
    store.damage(key, store.get(key).replace(b"run-1", b"ru\xee-1"))
    other = Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin().settle()
    assert other.ended.outcome == "failed"
    assert f"log record {key} is not readable" in other.ended.reason


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_leader_looks_again_only_when_its_last_look_was_answered() -> None:
    """While the store does not answer, reads of the log must not queue before pending writes."""
    coordinator, a, b = started(MemoryStore())
    coordinator.trigger()
    a.ack(1)
    b.ack(1)
    coordinator.run_until(WriteManifest)  # and no answer comes
    for _ in range(60):
        coordinator.later(1_000)
        a.say(Heartbeat(1))
        b.say(Heartbeat(1))
    assert sum(isinstance(effect, ReadRecord) for effect in coordinator.todo) == 1


def test_a_run_that_comes_after_our_finish_fences_nobody(store: MemoryStore) -> None:
    coordinator, a, b = started(store, spec(checkpoints=options(on_cancel="delete")))
    coordinator.checkpoint(a, b)
    coordinator.stop("now")
    coordinator.run_until(DeleteAll)
    Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin().settle()
    coordinator.todo.clear()  # the deleting hangs
    coordinator.later(10_000)
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"


def test_successor_that_must_fail_the_job_waits_for_work_of_its_predecessor(store: MemoryStore) -> None:
    coordinator, a, b = started(store)
    coordinator.trigger()
    a.ack(1)
    b.ack(1)
    coordinator.run_until(Append)
    successor = Coordinator(store, leader="leader-b").begin().settle()
    for slot in (a, b):
        slot.coordinator = successor
        slot.connect()
        slot.phase = "running"
    a.fail("division by zero", retryable=False)
    coordinator.step_without_answer()  # the predecessor's COMPLETE arrives at last
    successor.settle()
    assert successor.ended.outcome == "failed"
    assert "division by zero" in a.last(Shutdown).reason
    assert kinds(store) == ["FENCE", "COMPLETE", "LEAD", "FINISH"]


@pytest.mark.parametrize("decided", [1, 3])
@pytest.mark.usefixtures("manifests_are_objects")
def test_leader_that_stood_still_sends_nothing_to_slots_that_know_its_successor(
    decided: int, store: MemoryStore
) -> None:
    """I3: found by the simulation. The successor decided checkpoints and died; the slots came back to the old leader.

    The old leader had triggered a checkpoint with the same id, whose manifest would replace the decided manifest."""
    zombie, a, b = started(store, spec(reconnect_grace_ms=2_000))
    a.cut()
    b.cut()
    zombie.later(1_000)  # triggers checkpoint 1, which no slot receives
    assert zombie.phase == "running"
    successor = Coordinator(store, leader="leader-b", now_ms=zombie.now_ms).begin().settle()
    for slot in (a, b):
        slot.coordinator = successor
        slot.connect()
    successor.settle()
    for _ in range(decided):
        successor.checkpoint(a, b)
    manifest = successor.paths.manifest(decided, 1)
    kept = store.get(manifest)
    for slot in (a, b):
        heard = len(slot.inbox)
        slot.coordinator = zombie
        slot.connect()
        slot.ack(decided)  # the old leader may not know this decision
        assert slot.closed
        assert len(slot.inbox) == heard
    zombie.settle()
    assert zombie.ended.outcome == "replaced"
    assert "leader-b" in zombie.ended.reason
    assert store.get(manifest) == kept


def test_a_slot_that_comes_back_to_its_own_leader_is_answered_at_once() -> None:
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    coordinator.trigger()
    a.cut()
    a.connect()
    assert not a.closed
    assert a.last(Registered).last_completed == 1
    assert [message.checkpoint for message in a.got(Trigger)] == [1, 2, 2]
    assert a.got(AbortCheckpoint) == []
