"""Coordinators that die, stall and compete: one log, no fork, and the log decides the outcome."""

import pytest
from coordinator_world import Coordinator, keys_of, kinds, log_of, options, spec, started

from barrier_runtime.coordinator.job.effects import Append, ReadManifest, WriteManifest
from barrier_runtime.coordinator.job.events import StoreRefused, Tick, UserRescale
from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    CancelGeneration,
    CheckpointComplete,
    CommitFailing,
    Committed,
    Deploy,
    Registered,
    Restored,
    Shutdown,
    Start,
    SubtaskEnded,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore


def moved(slot, coordinator):
    """Connects the surviving slot's process to another coordinator."""
    slot.coordinator = coordinator
    return slot.connect()


def successor(store, *slots, leader="leader-b", job=None, **arguments):
    """Restarts the coordinator; all slots reconnect."""
    coordinator = Coordinator(store, job, leader=leader, now_ms=2_000_000, **arguments).begin().settle()
    for slot in slots:
        moved(slot, coordinator)
    return coordinator


def at_decision(store):
    """Returns a coordinator whose next effect is the put of COMPLETE for checkpoint 1."""
    coordinator, a, b = started(store)
    coordinator.later(1_000)
    a.ack(1)
    b.ack(1)
    coordinator.run_until(Append)
    return coordinator, a, b


# ---------------------------------------------------------------- a restarted coordinator, slots alive


def test_restarted_coordinator_leads_in_the_same_generation_if_all_slots_survived(store):
    """F6: LEAD takes the position that the old process would need."""
    old, a, b = started(store)
    old.checkpoint(a, b)
    new = successor(store, a, b).settle()
    assert new.phase == "running"
    assert kinds(store) == ["FENCE", "COMPLETE", "LEAD"]
    assert a.got(CancelGeneration) == []
    assert a.last(Registered) == Registered(1, 1, 1_000)
    assert new.checkpoint(a, b) == 2


def test_checkpoints_under_way_are_aborted_and_their_ids_are_not_used_again(store):
    """F10."""
    old, a, b = started(store)
    old.checkpoint(a, b)
    old.later(1_000)
    assert a.last(Trigger).checkpoint == 2
    new = successor(store, a, b).settle()
    assert a.last(AbortCheckpoint).checkpoint == 2
    a.ack(2)
    b.ack(2)
    assert not new.todo
    assert new.checkpoint(a, b) == 3


def test_a_fresh_slot_among_the_survivors_means_a_new_generation_at_once(store):
    old, a, b = started(store)
    old.checkpoint(a, b)
    new = successor(store, a)
    fresh = new.slot(1, attempt=1).connect()
    new.settle()
    assert a.last(CancelGeneration) == CancelGeneration(3, 1)
    assert kinds(store) == ["FENCE", "COMPLETE", "FENCE"]
    new.run_with(a, fresh)


def test_a_slot_that_does_not_come_back_in_time_means_a_new_generation(store):
    _old, a, _b = started(store)
    new = successor(store, a)
    new.later(2_999)
    assert new.phase == "resuming"
    new.later(1)
    new.settle()
    assert kinds(store) == ["FENCE", "FENCE"]
    assert a.last(CancelGeneration).token == 2


def test_a_slot_lost_while_LEAD_is_on_its_way_is_noticed(store):
    _old, a, b = started(store)
    new = successor(store, a, b)
    b.cut()
    new.settle()
    assert kinds(store) == ["FENCE", "LEAD", "FENCE"]
    assert a.last(CancelGeneration).token == 3


def test_commits_reported_at_the_reconnection_count(store):
    """I10: the FINISH of a restarted coordinator waits for exactly the commits that are not visible yet."""
    old, a, b = started(store)
    a.end()
    b.end()
    for slot in (a, b):
        slot.ack(1, ended=True)
    old.settle()
    a.commit(1)
    new = successor(store, a, b).settle()
    for slot in (a, b):
        for chain in (0, 1):
            slot.say(SubtaskEnded(1, SubtaskId(chain, slot.index)))
    final = a.last(Trigger).checkpoint
    assert final == 2
    for slot in (a, b):
        slot.ack(final, ended=True)
    new.settle()
    assert new.status.commits.through == {"out/0": 1, "out/1": 0}
    for slot in (a, b):
        slot.commit(final)
    new.settle()
    assert new.ended.outcome == "finished"


def test_zombie_of_the_same_generation_loses_its_append_and_leaves_slots_alone(store):
    """F6, Z6, crash table."""
    zombie, a, b = at_decision(store)
    new = successor(store, a, b).settle()
    messages = len(a.inbox)
    zombie.settle()
    assert zombie.ended.outcome == "replaced"
    assert "leader-b" in zombie.ended.reason
    assert len(a.inbox) == messages, "no CheckpointComplete, no Shutdown from the zombie"
    assert kinds(store) == ["FENCE", "LEAD"]
    assert zombie.deleted == []
    assert new.checkpoint(a, b) == 2


def test_a_zombies_decision_that_came_first_counts(store):
    """Z3: LEAD finds COMPLETE(1) at the position of LEAD; 1 is decided."""
    zombie, a, b = at_decision(store)
    new = successor(store, a, b)
    zombie.step_without_answer()
    new.settle()
    assert kinds(store) == ["FENCE", "COMPLETE", "LEAD"]
    assert new.protocol.status(0).phase == "running"
    for slot in (a, b):
        assert slot.last(CheckpointComplete).checkpoint == 1, "its Registered came before this was decided"
    assert new.checkpoint(a, b) == 2


def test_stalled_coordinator_requests_no_kill_before_reading_its_mail_on_waking(store):
    """Z8."""
    zombie, a, b = started(store)
    successor(store, a, b).settle()
    zombie.now_ms += 120_000
    zombie.post(Tick())
    assert zombie.kills == []


def test_new_slots_look_for_the_successor_of_a_coordinator_that_was_replaced(store):
    """A replaced coordinator must not answer heartbeats: the slots would stay while the successor waits for them."""
    coordinator, a, b = started(store)
    coordinator.post(UserRescale(RescaleRequest("wish", 3, 600_000)))
    c = coordinator.slot(2).connect()
    successor(store, a, b).settle()
    coordinator.later(5_000)
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "replaced"
    assert c.closed
    said = len(c.inbox)
    c.connect()
    assert (c.closed, len(c.inbox)) == (True, said), "without a word, which would be taken for an answer"
    assert not c.got(Shutdown)


# ---------------------------------------------------------------- crash points of a decision


def recovered_checkpoint(store, *dead):
    """Starts a new run after all processes died; returns the restored checkpoint, the coordinator and the slots."""
    coordinator = Coordinator(store, spec(run_id="run-2"), leader="leader-c").begin().settle()
    slots = [coordinator.slot(index, attempt=9) for index in (0, 1)]
    coordinator.run_with(*slots)
    return slots[0].last(Deploy).checkpoint, coordinator, slots


def test_a_crash_before_the_decision_means_it_never_happened(store):
    """F1."""
    at_decision(store)
    restored, new, slots = recovered_checkpoint(store)
    assert restored == 0
    assert new.checkpoint(*slots) == 1


def test_a_crash_between_the_decision_and_its_answer_means_it_is_decided(store):
    """F2."""
    coordinator, *_ = at_decision(store)
    coordinator.step_without_answer()
    restored, _new, slots = recovered_checkpoint(store)
    assert restored == 1
    assert slots[0].last(Deploy).operators, "what has to be committed again is in the snapshot"


def test_a_crash_before_anyone_is_told_is_made_good_at_the_reconnection(store):
    """F3: survivors learn from Registered about a decision whose CheckpointComplete was lost."""
    coordinator, a, b = at_decision(store)
    coordinator.step_without_answer()
    assert a.got(CheckpointComplete) == []
    successor(store, a, b).settle()
    assert a.last(Registered).last_completed == 1


def test_a_crash_when_half_were_told_is_made_good_for_the_other_half(store):
    """F4."""
    coordinator, a, b = at_decision(store)
    coordinator.step()
    a.commit(1)
    new = successor(store, a, b).settle()
    assert b.last(Registered).last_completed == 1
    assert new.status.commits.through == {"out/0": 1, "out/1": 0}
    b.commit(1)
    assert new.status.commits.through == {"out/0": 1, "out/1": 1}


def test_a_crash_between_the_last_commit_and_FINISH_ends_the_job_once(store):
    """F5."""
    coordinator, a, b = started(store)
    for slot in (a, b):
        slot.end()
    for slot in (a, b):
        slot.ack(1, ended=True)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(1)
    coordinator.run_until(Append)
    coordinator.step_without_answer()
    again = Coordinator(store, leader="leader-b").begin().settle()
    assert again.ended.outcome == "finished"
    assert moved(a, again).last(Shutdown).outcome == "finished"
    assert kinds(store).count("FINISH") == 1


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_crash_after_the_manifest_alone_decides_nothing(store):
    """F8: an orphaned manifest is not canonical."""
    coordinator, a, b = started(store)
    coordinator.later(1_000)
    a.ack(1)
    b.ack(1)
    coordinator.run_until(WriteManifest)
    coordinator.step_without_answer()
    assert recovered_checkpoint(store)[0] == 0


def test_a_crash_between_FENCE_and_deployment_is_just_another_generation(store):
    """F8."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    a.fail()
    coordinator.run_until(Append)
    coordinator.step_without_answer()
    new = successor(store)
    survivor = moved(b, new)
    new.settle()
    assert kinds(store) == ["FENCE", "COMPLETE", "FENCE", "FENCE"]
    replacement = new.slot(0, attempt=1).connect()
    assert survivor.last(Deploy).checkpoint == replacement.last(Deploy).checkpoint == 1


# ---------------------------------------------------------------- generation change during a decision


def test_a_slot_lost_while_the_decision_is_unknown_waits_for_the_decision(store):
    """I9: the new generation restores the checkpoint in the log, which is known only after the decision."""
    coordinator, a, b = at_decision(store)
    store.inject(Fault.APPLY_THEN_FAIL, "put_if_absent")
    a.fail("trouble")
    assert coordinator.phase == "fencing"
    coordinator.settle()
    assert kinds(store) == ["FENCE", "COMPLETE", "FENCE"]
    assert b.last(CancelGeneration).keep_checkpoint == 1
    assert b.last(Deploy).checkpoint == 1


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_manifest_that_is_written_too_late_decides_nothing(store):
    coordinator, a, b = started(store)
    coordinator.later(1_000)
    a.ack(1)
    b.ack(1)
    late = coordinator.todo.popleft()
    a.fail("trouble")
    coordinator.post(coordinator.answer(late))
    coordinator.settle()
    assert kinds(store) == ["FENCE", "FENCE"]
    assert b.last(Deploy).checkpoint == 0


# ---------------------------------------------------------------- two runs


def test_a_second_run_takes_over_and_the_first_learns_by_whom(store):
    """Z3, bug 12: one log, no fork."""
    first, a, b = started(store)
    first.checkpoint(a, b)
    second = Coordinator(store, spec(run_id="run-2", submitter="bob@other pid 7"), leader="leader-b").begin()
    c, d = second.slot(0), second.slot(1)
    second.run_with(c, d)
    assert c.last(Deploy).checkpoint == 1
    first.later(1_000)
    a.ack(2)
    b.ack(2)
    first.settle()
    assert first.ended.outcome == "fenced"
    assert "was taken over by generation 3 of bob@other pid 7" in first.ended.reason
    assert a.last(Shutdown).outcome == "fenced"
    assert a.last(CheckpointComplete).checkpoint == 1, "2 was never told complete"
    assert first.status.fenced_by == "generation 3 of bob@other pid 7"
    assert second.checkpoint(c, d) == 2
    assert kinds(store) == ["FENCE", "COMPLETE", "FENCE", "COMPLETE"]


def test_a_fenced_run_that_is_submitted_again_stays_fenced(store):
    """No ping-pong: only a run that never led may take over."""
    started(store)
    started(store, spec(run_id="run-2", submitter="bob"), leader="leader-b")
    again = Coordinator(store, leader="leader-c").begin().settle()
    assert again.ended.outcome == "fenced"
    assert "bob" in again.ended.reason
    assert kinds(store) == ["FENCE", "FENCE"]


def test_a_fenced_coordinator_deletes_nothing(store):
    """I7, F9."""
    first, a, b = started(store)
    for number in (1, 2):
        first.checkpoint(a, b, files=f"f{number}")
    started(store, spec(run_id="run-2"), leader="leader-b")
    first.deleted.clear()
    first.trigger()
    for slot in (a, b):
        slot.ack(3, files="f3")
    first.settle()
    assert first.ended.outcome == "fenced"
    assert first.deleted == []


def test_two_runs_that_start_at_once_end_with_one_leader(store):
    """Z3, Z4: the loser of a position adopts the record there, and fences at the next position."""
    one = Coordinator(store, spec(run_id="run-1"), leader="leader-a").begin()
    two = Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin()
    one.run_until(Append)
    two.run_until(Append)
    one.step()
    two.settle()
    assert kinds(store) == ["FENCE", "FENCE"]
    a, b = one.slot(0), one.slot(1)
    one.run_with(a, b)
    one.trigger()
    for slot in (a, b):
        slot.ack(1)
    one.settle()
    assert one.ended.outcome == "fenced"
    two.run_with(two.slot(0), two.slot(1))


@pytest.mark.parametrize("order", ["ab", "ba", "aabb", "abab", "bbaa", "abba", "baab"])
def test_whatever_the_order_of_two_coordinators_there_is_one_chain(order, store):
    """F6, Z5: two live coordinators of one run, and both checkpoints race for one position."""
    old, a, b = at_decision(store)
    new = successor(store, a, b)
    sides = {"a": old, "b": new}
    for name in order * 4:
        if sides[name].todo:
            sides[name].step()
    old.settle()
    new.settle()
    log_of(store)
    assert kinds(store) in (["FENCE", "COMPLETE", "LEAD"], ["FENCE", "LEAD"])
    assert old.ended is None or old.ended.outcome == "replaced"


def test_an_adopted_job_leads_only_the_newest_run_of_the_log(store):
    started(store)
    started(store, spec(run_id="run-2", submitter="bob"), leader="leader-b")
    stale = Coordinator(store, spec(run_id="run-0"), leader="leader-c", origin=Origin.ADOPTED).begin().settle()
    assert stale.ended.outcome == "fenced"
    assert kinds(store) == ["FENCE", "FENCE"]


def test_facts_told_while_LEAD_is_on_its_way_are_not_lost(store):
    """Slots do not repeat these messages: a commit, an end of input, a failure."""
    _, a, b = started(store)
    new = successor(store, a, b)
    a.commit(0)
    a.say(Committed(1, 1, "out", 0))
    a.end()
    b.end()
    new.settle()
    assert new.status.commits.through["out/0"] == 1
    assert a.last(Trigger).checkpoint == 1, "the final checkpoint"


def test_commits_told_while_another_slot_restores_are_not_lost(store):
    """A sink commits the restored rows as it opens, and reports that once."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    a.fail()
    coordinator.settle()
    coordinator.later(0)
    a.say(Committed(a.token, 1, "out", 0))
    a.restored()
    b.say(CommitFailing(b.token, 1, "out", 1, 1, "refused"))
    b.restored()
    coordinator.settle()
    assert coordinator.phase == "running"
    assert coordinator.status.commits.through["out/0"] == 1
    assert [each.error for each in coordinator.status.commits.troubles] == ["refused"]


@pytest.mark.parametrize("retryable", [True, False])
def test_a_failure_told_while_LEAD_is_on_its_way_is_not_lost(retryable, store):
    _, a, b = started(store)
    new = successor(store, a, b)
    b.fail("operator count: boom", retryable=retryable)
    new.settle()
    if retryable:
        assert kinds(store) == ["FENCE", "LEAD", "FENCE"]
        assert a.last(CancelGeneration).token == 3
    else:
        assert new.ended.outcome == "failed"


def test_messages_to_a_coordinator_that_does_not_lead_yet_have_no_effect(store):
    """Z7: no sink call before ownership is proven."""
    _old, a, b = started(store)
    successor(store, a, b)
    for slot in (a, b):
        slot.say(Restored(1))
        slot.ack(1)
    assert a.got(CheckpointComplete) == []


# ---------------------------------------------------------------- storage errors at the start


def test_an_unreadable_head_is_an_end_not_a_fresh_start(store):
    """F11, C15: never from an older checkpoint, never empty."""
    first, a, b = started(store)
    first.checkpoint(a, b)
    store.damage(first.paths.log_record(2), b"{}")
    new = Coordinator(store, spec(run_id="run-2")).begin().settle()
    assert new.ended.outcome == "failed"
    assert "00000000000000000002.json" in new.ended.reason
    assert len([key for key in keys_of(store) if "/log/" in key]) == 2


def test_a_transient_read_error_is_the_edges_to_retry_and_decides_nothing(store):
    """F11 (FLINK-22502)."""
    started(store)
    store.inject(Fault.FAIL_BEFORE, "get", "log/")
    new = Coordinator(store, spec(run_id="run-2")).begin()
    with pytest.raises(Unavailable):
        new.answer(new.todo[0])
    new.settle()
    assert kinds(store) == ["FENCE", "FENCE"]


@pytest.mark.parametrize("damage", ["flip", "missing"])
@pytest.mark.usefixtures("manifests_are_objects")
def test_a_damaged_or_missing_manifest_ends_the_job_and_names_it(damage, store):
    """C15, F8, O8: the head is the only candidate; no older checkpoint is restored."""
    first, a, b = started(store, spec(checkpoints=options(retained=3)))
    for _ in range(2):
        first.checkpoint(a, b)
    key = first.paths.manifest(2, 1)
    if damage == "flip":
        store.damage(key, store.get(key).replace(b'"checkpoint":2', b'"checkpoint":1'))
    else:
        store.delete([key])
    new = Coordinator(store, spec(run_id="run-2")).begin().settle()
    assert new.ended.outcome == "failed"
    assert key in new.ended.reason
    assert log_of(store)[-1].sha256 in new.ended.reason
    assert kinds(store) == ["FENCE", "COMPLETE", "COMPLETE"], "the running job was not disturbed"


def test_a_store_that_refuses_ends_the_job_with_its_words():
    coordinator = Coordinator(MemoryStore()).begin()
    coordinator.post(StoreRefused("file:///x: permission denied: chmod it"))
    assert coordinator.ended.outcome == "failed"
    assert "chmod" in coordinator.ended.reason


def test_ids_and_times_rise_over_generations_runs_and_restarts(store):
    """C10, F10, C14: recovery in the order of the log."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    a.fail()
    coordinator.run_with(a, b)
    coordinator.checkpoint(a, b)
    new = successor(store, a, b).settle()
    new.checkpoint(a, b)
    last, c, d = started(store, spec(run_id="run-2"), leader="leader-z", now_ms=3_000_000)
    last.checkpoint(c, d)
    ids = [record.checkpoint for record in log_of(store) if kinds and hasattr(record, "checkpoint")]
    assert ids == sorted(set(ids)) == [1, 2, 3, 4]
    times = [record.wall_ms for record in log_of(store)]
    assert times == sorted(times)


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_restarted_coordinator_sweeps_only_when_it_knows_what_is_kept(store):
    """C13, S10: with several kept checkpoints an unreadable manifest turns deleting off."""
    job = spec(checkpoints=options(retained=2))
    first, a, b = started(store, job)
    for number in (1, 2):
        first.checkpoint(a, b, files=f"f{number}")
    key = first.paths.manifest(1, 1)
    store.damage(key, b"not a manifest")
    new = successor(store, a, b, job=job).settle()
    for number in range(3, 8):
        new.checkpoint(a, b, files=f"f{number}")
    assert new.deleted == []
    assert any("retention is off" in reason for reason in new.status.checkpoints.ignored)


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_restarted_coordinator_goes_on_dropping_old_checkpoints(store):
    first, a, b = started(store)
    first.checkpoint(a, b, files="f1")
    new = successor(store, a, b).settle()
    for number in (2, 3, 4):
        new.checkpoint(a, b, files=f"f{number}")
    assert a.data_key("f1") in new.deleted
    assert new.paths.manifest(1, 1) in new.deleted
    assert a.data_key("f3") not in new.deleted


def test_start_is_sent_once_all_restored_even_if_the_manifest_is_read_slowly(store):
    first, a, b = started(store)
    first.checkpoint(a, b)
    second = Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin()
    c, d = second.slot(0).connect(), second.slot(1).connect()
    second.run_until(ReadManifest)
    assert c.got(Deploy) == []
    second.run_with(c, d)
    assert c.got(Start) == [Start(3)]


def test_a_slot_that_connects_again_while_LEAD_is_on_its_way_is_answered(store):
    """The slot repeats a failure, which may have found no connection, with that answer only."""
    _old, a, b = started(store)
    new = successor(store, a, b)
    answers = len(a.got(Registered))
    a.cut()
    a.connect()
    assert isinstance(new.todo[0], Append)
    new.settle()
    assert new.phase == "running"
    assert len(a.got(Registered)) == answers + 1
