"""A job from the first slot to the end, as interleavings of slots, store and time."""

import msgspec
import pytest
from coordinator_world import Coordinator, keys_of, kinds, log_of, new_generation, options, spec, started

from barrier_runtime.coordinator.job.effects import Append, CloseLink, Delete, ListForSweep, WriteManifest
from barrier_runtime.coordinator.job.events import ManifestFailed, SlotRegistered, SlotsStarting, Tick
from barrier_runtime.coordinator.job.generation import UNKNOWN_MS
from barrier_runtime.coordinator.log.records import Finish
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    CancelGeneration,
    CheckpointComplete,
    CommitFailing,
    Deploy,
    EventTimeReached,
    Heartbeat,
    HeldBack,
    LowestEventTime,
    Registered,
    RestartOptions,
    Shutdown,
    Start,
    SubtaskEnded,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import Fault, MemoryStore

# ---------------------------------------------------------------- gathering


def test_a_generation_starts_when_all_slots_are_there_and_restored(store):
    coordinator = Coordinator(store).begin().settle()
    assert kinds(store) == ["FENCE"]
    first = coordinator.slot(0).connect()
    assert coordinator.phase == "waiting"
    assert first.got(Deploy) == []
    second = coordinator.slot(1).connect()
    deploy = first.last(Deploy)
    assert [peer.slot for peer in deploy.peers] == [0, 1]
    assert (deploy.token, deploy.checkpoint) == (1, 0)
    first.restored()
    assert first.got(Start) == []
    second.restored()
    assert first.last(Start) == second.last(Start) == Start(1)
    assert coordinator.phase == "running"


def test_slots_that_come_before_the_log_is_read_are_answered_after():
    coordinator = Coordinator(MemoryStore()).begin()
    slots = [coordinator.slot(index).connect() for index in (0, 1)]
    assert slots[0].inbox == []
    coordinator.settle()
    assert slots[0].inbox[0] == Registered(1, 0, 1_000)
    assert slots[1].last(Deploy)


def test_missing_slots_are_named_with_the_remedy_when_the_time_is_up():
    """B5 (coordinator side)."""
    coordinator = Coordinator(MemoryStore(), spec(parallelism=4)).begin().settle()
    present = coordinator.slot(2).connect()
    coordinator.later(5_000)
    present.say(Heartbeat(1))
    for _ in range(12):
        coordinator.later(5_000)
        present.say(Heartbeat(1))
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    assert "1 of 4 registered within 60 s, missing: 0, 1, 3" in coordinator.ended.reason
    assert "free cores" in coordinator.ended.reason
    assert present.last(Shutdown).outcome == "failed"


def test_slots_that_have_their_cores_are_waited_for_longer_and_not_for_ever():
    """On a busy machine a process may need minutes until it can register."""
    starting = Coordinator(MemoryStore(), spec(parallelism=2)).begin().settle()
    without = Coordinator(MemoryStore(), spec(parallelism=2)).begin().settle()
    for coordinator, cores in ((starting, 2), (without, 1)):
        coordinator.post(SlotsStarting(Room(starting=cores)))
        pass_time(coordinator, 65)
    assert without.ended.outcome == "failed"
    assert "within 60 s" in without.ended.reason
    assert starting.phase == "waiting"
    pass_time(starting, 240)
    assert starting.ended.outcome == "failed"
    assert "0 of 2 registered within 300 s, missing: 0, 1. All have their cores" in starting.ended.reason


def test_error_of_failing_processes_replaces_the_question_for_free_cores():
    coordinator = Coordinator(MemoryStore(), spec(parallelism=2)).begin().settle()
    coordinator.post(SlotsStarting(Room(failing="a slot's process failed on host worker-b: No module named 'prices'")))
    pass_time(coordinator, 65)
    assert coordinator.ended.outcome == "failed"
    assert "within 60 s, missing: 0, 1: a slot's process failed on host worker-b: No mod" in coordinator.ended.reason
    assert "free cores" not in coordinator.ended.reason


def test_wait_for_slots_ends_when_their_starts_failed_and_late_slots_still_run():
    failing = Coordinator(MemoryStore(), spec(parallelism=2)).begin().settle()
    late = Coordinator(MemoryStore(), spec(parallelism=2)).begin().settle()
    failing.post(SlotsStarting(Room(starting=2)))
    failing.post(SlotsStarting(Room()))
    late.post(SlotsStarting(Room(starting=2)))
    for coordinator in (failing, late):
        pass_time(coordinator, 65)
    assert failing.ended.outcome == "failed"
    slots = [late.slot(index).connect() for index in (0, 1)]
    assert all(slot.last(Deploy) for slot in slots)


def pass_beats(coordinator, slot, times):
    """Lets so many heartbeats of `slot` pass, five seconds apart."""
    for _ in range(times):
        slot.say(Heartbeat(coordinator.protocol.token or 0))
        coordinator.later(5_000)
        coordinator.settle()


@pytest.mark.slow
def test_a_job_that_has_run_waits_for_lost_slots_without_end():
    coordinator, first, second = started(MemoryStore())
    second.cut()
    pass_beats(coordinator, first, 720)
    assert coordinator.phase == "waiting"
    status = coordinator.status
    assert status.condition == "WAITING_SLOTS"
    assert "slot 1 of host worker missing for 3600 s, Spark has not replaced task 0 there" in status.condition_reason
    coordinator.post(SlotsStarting(Room(starting=1, held_by={"reports": 3})))
    assert "cores are held by reports (3)" in coordinator.status.condition_reason
    second.attempt, second.uuid, second.token, second.phase = 7, "anew", 0, "idle"
    second.connect()
    for slot in (first, second):
        slot.restored()
    assert coordinator.status.condition == "RUNNING"


@pytest.mark.slow
def test_a_lost_slot_of_a_run_without_spark_is_not_expected_from_spark():
    coordinator, first, second = started(MemoryStore(), spec(carrier="processes"))
    second.cut()
    pass_beats(coordinator, first, 720)
    reason = coordinator.status.condition_reason
    assert "slot 1 of host worker missing for 3600 s, no new process has started there" in reason


def test_a_restarted_coordinator_waits_without_end_once_the_run_has_a_checkpoint():
    store = MemoryStore()
    coordinator, *slots = started(store)
    coordinator.later(1_000)
    for slot in slots:
        slot.ack(1)
    coordinator.settle()
    assert coordinator.protocol.status(coordinator.now_ms).checkpoints.completed == 1
    successor = Coordinator(store, coordinator.protocol.spec, "leader-b", now_ms=coordinator.now_ms).begin().settle()
    pass_time(successor, 600)
    assert (successor.phase, successor.ended) == ("waiting", None)
    anew = Coordinator(store, spec(run_id="run-2"), "leader-c", now_ms=successor.now_ms).begin().settle()
    again = Coordinator(store, anew.protocol.spec, "leader-d", now_ms=anew.now_ms).begin().settle()
    pass_time(again, 70)
    assert again.ended.outcome == "failed", "the first start of another run, whose coordinator restarted"


def test_a_strategy_with_a_limit_names_the_slots_that_it_stops_waiting_for():
    restart = RestartOptions("fixed_delay", initial_ms=20_000, max_attempts=6)
    coordinator, first, second = started(MemoryStore(), spec(restart=restart))
    second.cut()
    pass_beats(coordinator, first, 23)
    assert coordinator.phase == "waiting"
    pass_beats(coordinator, first, 6)
    assert coordinator.ended.outcome == "failed"
    assert "slot 1 of host worker missing for" in coordinator.ended.reason
    assert "fixed_delay does not wait longer for slots" in coordinator.ended.reason


def pass_time(coordinator: Coordinator, seconds: int) -> None:
    for _ in range(seconds // 5):
        coordinator.later(5_000)
        coordinator.settle()


def test_a_higher_task_attempt_replaces_a_lower_one_and_not_the_other_way():
    """Z10: two attempts of the same slot; the older attempt is dismissed."""
    coordinator = Coordinator(MemoryStore()).begin().settle()
    old, new = coordinator.slot(0, attempt=3).connect(), coordinator.slot(0, attempt=4).connect()
    assert old.last(Shutdown).outcome == "replaced"
    assert old.closed
    again = coordinator.slot(0, uuid="late", attempt=3).connect()
    assert again.last(Shutdown).outcome == "replaced"
    assert again.closed
    assert not new.closed


def test_a_replaced_process_never_comes_back_under_its_old_name():
    coordinator = Coordinator(MemoryStore()).begin().settle()
    old = coordinator.slot(0, attempt=1).connect()
    coordinator.slot(0, attempt=2).connect()
    old.attempt = 9
    assert old.connect().last(Shutdown).outcome == "replaced"


def test_a_slot_that_does_not_exist_is_refused():
    coordinator = Coordinator(MemoryStore()).begin().settle()
    stranger = coordinator.slot(7).connect()
    assert "does not exist" in stranger.last(Shutdown).reason


def test_a_slot_may_come_and_go_until_it_is_deployed():
    coordinator = Coordinator(MemoryStore()).begin().settle()
    first = coordinator.slot(0).connect()
    first.cut()
    second = coordinator.slot(1).connect()
    assert second.got(Deploy) == []
    coordinator.slot(0, attempt=1).connect()
    assert second.last(Deploy).token == 1
    assert kinds(coordinator.store) == ["FENCE"]


def test_a_slot_lost_while_restoring_means_a_new_generation(store):
    coordinator = Coordinator(store).begin().settle()
    first, second = coordinator.slot(0).connect(), coordinator.slot(1).connect()
    first.cut()
    coordinator.settle()
    assert kinds(store) == ["FENCE", "FENCE"]
    assert second.last(CancelGeneration).token == 2
    coordinator.slot(0, attempt=1).connect()
    assert second.last(Deploy).token == 2


# ---------------------------------------------------------------- checkpoints


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_checkpoint_is_complete_only_when_its_record_is_in_the_log():
    """C4, Z7: no slot is notified before; the manifest is stored before the decision that names the manifest."""
    coordinator, a, b = started(MemoryStore())
    coordinator.later(1_000)
    assert a.last(Trigger) == b.last(Trigger)
    a.ack(1)
    b.ack(1, 0)
    assert not coordinator.todo
    b.ack(1, 1)
    assert [type(effect) for effect in coordinator.todo] == [WriteManifest]
    coordinator.step()
    assert [type(effect) for effect in coordinator.todo] == [Append]
    assert a.got(CheckpointComplete) == []
    coordinator.step()
    assert a.got(CheckpointComplete) == b.got(CheckpointComplete) == [CheckpointComplete(1, 1)]
    record = log_of(coordinator.store)[-1]
    assert record.checkpoint == 1
    assert coordinator.get(record.manifest) is not None


def test_acks_of_another_generation_another_slot_or_an_unknown_link_do_not_count():
    """I8, C8, C9, G7."""
    coordinator, a, _b = started(MemoryStore())
    coordinator.later(1_000)
    a.ack(1, token=0)
    a.ack(1, token=2)
    a.index = 1
    a.ack(1)
    a.index = 0
    a.link = coordinator.new_link(a)
    a.ack(1)
    assert len(coordinator.status.checkpoints.waiting_for) == 4
    assert sum(coordinator.status.checkpoints.ignored.values()) == 8
    assert coordinator.phase == "running"


def test_a_declined_checkpoint_is_aborted_everywhere_and_tolerated_as_often_as_asked():
    """C2, C11."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(tolerable_failures=1)))
    coordinator.later(1_000)
    a.ack(1)
    b.decline(1, reason="disk full")
    assert "disk full" in a.last(AbortCheckpoint).reason
    b.decline(1)
    assert len(a.got(AbortCheckpoint)) == 1
    coordinator.later(1_000)
    a.decline(2)
    coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE", "FENCE"]
    assert "tolerable_failures = 1 is exceeded" in log_of(coordinator.store)[-1].reason


def test_an_expired_checkpoint_names_the_subtasks_it_waited_for():
    """C7."""
    coordinator, a, b = started(
        MemoryStore(), spec(checkpoints=options(timeout_ms=600, tolerable_failures=5), slot_timeout_ms=60_000)
    )
    coordinator.later(1_000)
    a.ack(1)
    coordinator.later(600)
    assert "missing subtasks: 0/1, 1/1" in b.last(AbortCheckpoint).reason
    assert a.got(CheckpointComplete) == []
    b.ack(1)
    assert not coordinator.todo


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_checkpoint_whose_manifest_can_not_be_stored_fails_and_nothing_is_deleted():
    """C12: a definite refusal."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(tolerable_failures=3)))
    coordinator.later(1_000)
    a.ack(1)
    b.ack(1)
    effect = coordinator.todo.popleft()
    coordinator.post(ManifestFailed(effect.key, "access denied"))
    assert "access denied" in a.last(AbortCheckpoint).reason
    assert kinds(coordinator.store) == ["FENCE"]
    assert coordinator.deleted == []
    assert coordinator.checkpoint(a, b) == 2


def test_while_a_decision_is_unknown_nothing_is_decided_or_deleted():
    """C12, I9 (FLINK-22494): the put is repeated until the outcome is known."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(max_concurrent=3)))
    for number in (1, 2, 3):
        coordinator.checkpoint(a, b, files=f"f{number}")
    before = list(coordinator.deleted)
    coordinator.store.inject(Fault.APPLY_THEN_FAIL, "put_if_absent")
    coordinator.trigger()
    coordinator.trigger()
    for number in (4, 5):
        for slot in (a, b):
            slot.ack(number, files=f"f{number}")
    coordinator.run_until(Append)
    coordinator.step()
    assert [type(effect) for effect in coordinator.todo] == [Append]
    assert coordinator.todo[0].attempt == 2
    assert coordinator.deleted == before
    coordinator.settle()
    assert [message.checkpoint for message in a.got(CheckpointComplete)] == [1, 2, 3, 4, 5]


def test_one_of_several_checkpoints_completes_first_and_subsumes_the_older():
    """C6."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(max_concurrent=2)))
    coordinator.trigger()
    coordinator.trigger()
    a.ack(1)
    a.ack(2)
    b.ack(2)
    coordinator.settle()
    b.ack(1)
    coordinator.settle()
    assert a.got(CheckpointComplete) == [CheckpointComplete(1, 2)]
    assert [entry.outcome for entry in coordinator.status.checkpoints.history] == ["subsumed", "complete"]
    assert a.got(AbortCheckpoint) == []


def test_a_generation_change_aborts_what_is_under_way_and_ids_go_on():
    """F10, C11: failovers do not count as failures."""
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    coordinator.later(1_000)
    assert a.last(Trigger).checkpoint == 2
    a.fail("worker trouble")
    coordinator.settle()
    coordinator.run_with(a, b)
    a.ack(2)
    b.ack(2)
    assert not coordinator.todo
    assert coordinator.checkpoint(a, b) == 3
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "FENCE", "COMPLETE"]


@pytest.mark.usefixtures("manifests_are_objects")
def test_leader_deletes_files_of_dropped_checkpoints_only_when_nobody_needs_them(store):
    """S1, S9, I7."""
    coordinator, a, b = started(store)
    for number in range(1, 5):
        for slot in (a, b):
            slot.upload(f"f{number}")
        coordinator.checkpoint(a, b, files="f1" if number == 1 else f"f1 f{number}")
    assert keys_of(store).count(a.data_key("f1")) == 1
    assert a.data_key("f2") in coordinator.deleted
    assert a.data_key("f3") not in coordinator.deleted
    assert coordinator.paths.manifest(1, 1) not in keys_of(store)
    assert coordinator.paths.manifest(4, 1) in keys_of(store)


def test_a_checkpoint_that_refers_to_deleted_files_is_never_decided():
    """I2."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(tolerable_failures=9)))
    for number in range(1, 5):
        coordinator.checkpoint(a, b, files=f"f{number}")
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(5, files="f1")
    coordinator.settle()
    assert "already deleted" in a.last(AbortCheckpoint).reason
    assert a.last(CheckpointComplete).checkpoint == 4


def test_orphans_of_an_older_generation_are_swept_and_nothing_else_is(store):
    """S5, S9: a new generation sweeps while uploads of the new generation continue."""
    coordinator, a, b = started(store)
    for slot in (a, b):
        slot.upload("kept")
    coordinator.checkpoint(a, b, files="kept")
    a.upload("orphan")
    orphan, kept = a.data_key("orphan"), a.data_key("kept")
    a.fail()
    coordinator.settle()
    coordinator.run_with(a, b)
    a.upload("in-progress")
    fresh = a.data_key("in-progress")
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(2)
    coordinator.settle()
    assert orphan in coordinator.deleted
    assert orphan not in keys_of(store)
    assert {kept, fresh} <= set(keys_of(store)), "1 was dropped just now, and uploads of this generation are sacred"


def test_the_checkpoint_that_a_job_stops_with_says_so_to_every_slot(store):
    """Slots report their last figures with this checkpoint."""
    coordinator, *slots = started(store)
    coordinator.checkpoint(*slots)
    assert [slot.last(Trigger).stop for slot in slots] == [False, False]
    coordinator.stop("checkpoint")
    coordinator.settle()
    assert [slot.last(Trigger).stop for slot in slots] == [True, True]


def test_a_stale_list_changes_no_decision(store):
    """O10."""
    store.inject(Fault.STALE_LIST, "list", times=None)
    coordinator, a, b = started(store)
    for number in range(1, 4):
        coordinator.checkpoint(a, b, files=f"f{number}")
    assert [record.checkpoint for record in log_of(store)[1:]] == [1, 2, 3]


# ---------------------------------------------------------------- slots lost


def test_a_cut_connection_alone_changes_nothing():
    """A slot comes back within the grace: same token, running; the unanswered trigger is repeated."""
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    coordinator.later(1_000)
    a.ack(2)
    b.ack(2, 0)
    b.cut()
    coordinator.later(300)
    before = len(b.got(Trigger))
    b.connect()
    assert b.inbox[-2] == Registered(1, 1, 1_000)
    assert len(b.got(Trigger)) == before + 1
    b.ack(2, 1)
    coordinator.settle()
    assert a.last(CheckpointComplete) == b.last(CheckpointComplete) == CheckpointComplete(1, 2)
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "COMPLETE"]


def test_an_old_connection_that_lingers_is_closed_when_its_slot_comes_again():
    coordinator, a, _b = started(MemoryStore())
    first = a.link
    a.link = coordinator.new_link(a)
    effects = coordinator.protocol.handle(SlotRegistered(a.link, a.register()), coordinator.now_ms)
    closed = [effect.link for effect in effects if isinstance(effect, CloseLink)]
    assert closed == [first]
    assert coordinator.phase == "running"


def test_the_grace_over_the_job_recovers_with_the_survivors():
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    b.cut()
    coordinator.later(499)
    assert coordinator.phase == "running"
    coordinator.later(1)
    coordinator.settle()
    assert a.last(CancelGeneration) == CancelGeneration(3, 1)
    assert coordinator.status.kill == ()
    replacement = coordinator.slot(1, attempt=1).connect()
    deploy = replacement.last(Deploy)
    assert (deploy.token, deploy.checkpoint) == (3, 1)
    restored = {(snapshot.operator, snapshot.subtask) for snapshot in deploy.operators if snapshot.keyed is not None}
    assert all(subtask == 1 for _, subtask in restored)
    assert ("numbers", 0) in {(snapshot.operator, snapshot.subtask) for snapshot in deploy.operators}
    coordinator.run_with(a, replacement)
    recovery = coordinator.status.recoveries[-1]
    assert recovery.duration_ms is not None
    assert "lost contact" in recovery.reason


def test_lost_process_that_stays_away_for_the_slot_timeout_is_to_be_ended():
    """A process that a short fault of the network cut off returns: its task must not be killed meanwhile."""
    coordinator, a, b = started(MemoryStore(), spec(slot_timeout_ms=3_000))
    b.cut()
    for _ in range(5):
        coordinator.later(500)
        a.say(Heartbeat(coordinator.protocol.token or 0))
        coordinator.settle()
        assert coordinator.status.kill == ()
    coordinator.later(500)
    coordinator.settle()
    assert [kill.slot for kill in coordinator.status.kill] == [1]
    coordinator.slot(1, attempt=1).connect()
    assert coordinator.status.kill == ()


def test_lost_process_that_returns_after_the_grace_takes_part_in_the_next_generation():
    coordinator, a, b = started(MemoryStore())
    b.cut()
    coordinator.later(2_000)
    coordinator.settle()
    b.connect()
    coordinator.settle()
    assert coordinator.kills == []
    coordinator.run_with(a, b)
    assert coordinator.phase == "running"


def test_a_new_process_for_the_slot_ends_the_grace_at_once():
    coordinator, a, b = started(MemoryStore())
    b.cut()
    coordinator.slot(1, attempt=1).connect()
    coordinator.settle()
    assert a.last(CancelGeneration).token == 2
    assert coordinator.phase == "restoring"


def test_the_signal_that_a_lost_process_died_of_is_told():
    """Spark's worker daemon knows the signal, and so does the process that replaces the dead process."""
    coordinator, a, b = started(MemoryStore())
    b.cut()
    coordinator.later(500)
    coordinator.settle()
    replacement = coordinator.slot(1, attempt=1)
    replacement.died = {1001: "SIGSEGV", 7: "SIGKILL"}
    coordinator.run_with(a, replacement)
    assert coordinator.status.recoveries[-1].reason == (
        "slot 1 (worker pid 1001) lost contact; process 1001 of slot 1 died of SIGSEGV"
    )
    at_once = coordinator.slot(1, attempt=2)
    at_once.died = {1001: "SIGABRT"}
    at_once.connect()
    coordinator.settle()
    assert coordinator.status.recoveries[-1].reason == "process 1001 of slot 1 died of SIGABRT"


def test_a_silent_slot_is_given_up_and_its_zombie_is_turned_away():
    """C1, Z8: the coordinator's side."""
    coordinator, a, b = started(MemoryStore(), spec(slot_timeout_ms=1_000))
    for _ in range(3):
        a.say(Heartbeat(1))
        coordinator.later(400)
    assert coordinator.kills == [], "not before the FENCE says that this coordinator leads"
    coordinator.settle()
    assert [kill.uuid for kill in coordinator.kills] == [b.uuid]
    assert a.last(CancelGeneration).token == 2
    b.ack(1)
    assert b.connect().last(Shutdown).outcome == "replaced"
    assert "silent" in b.last(Shutdown).reason
    assert b.closed


def test_a_coordinator_that_stood_still_blames_no_slot_for_it():
    """A stalled process reads the received messages before judging silence."""
    coordinator, _a, _b = started(MemoryStore(), spec(slot_timeout_ms=1_000))
    coordinator.now_ms += 60_000
    coordinator.post(Tick())
    assert coordinator.phase == "running"
    assert coordinator.kills == []


def test_heartbeats_carry_metrics_watermark_and_latency():
    from hdrh.histogram import HdrHistogram

    coordinator, a, b = started(MemoryStore())
    for slot, micros in ((a, 500), (b, 1_500)):
        histogram = HdrHistogram(1, 3_600_000_000, 3)
        histogram.record_value(micros, 10)
        encoded = {"out:processed": histogram.encode().decode(), "out:visible": "garbage"}
        slot.say(Heartbeat(1, {"records": 10.0, "watermark_ms": float(micros)}, encoded))
    status = coordinator.status
    assert (status.records, status.watermark_ms) == (20, 500)
    assert status.latency["out:processed"].count == 20
    assert status.latency["out:processed"].max == pytest.approx(1.5, rel=0.01)
    assert "out:visible" not in status.latency
    assert msgspec.json.decode(msgspec.json.encode(status), type=type(status)) == status


# ---------------------------------------------------------------- failures


def test_a_retryable_failure_backs_off_when_it_repeats_without_progress():
    job = spec(restart=RestartOptions(initial_ms=200, max_ms=1_000))
    coordinator, a, b = started(MemoryStore(), job)
    a.fail("first")
    coordinator.settle()
    assert a.last(Deploy).token == 2, "the first restart is immediate"
    coordinator.run_with(a, b)
    b.fail("second")
    coordinator.settle()
    assert a.last(CancelGeneration).token == 3
    assert a.last(Deploy).token == 2
    coordinator.later(200)
    assert a.last(Deploy).token == 3


def test_too_many_restarts_in_a_row_end_the_job():
    coordinator, a, b = started(MemoryStore(), spec(restart=RestartOptions(max_attempts=1)))
    a.fail("first")
    coordinator.run_with(a, b)
    a.fail("second")
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    assert "second" in coordinator.ended.reason
    assert b.last(Shutdown).outcome == "failed"


def test_a_failure_that_no_restart_cures_ends_the_job_with_its_text():
    coordinator, a, b = started(MemoryStore())
    a.fail("Traceback …\nZeroDivisionError in operator count", retryable=False)
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    assert "ZeroDivisionError" in b.last(Shutdown).reason
    assert coordinator.status.error.startswith("Traceback")
    assert kinds(coordinator.store) == ["FENCE", "FINISH"]
    restarted = Coordinator(coordinator.store, leader="leader-b").begin().settle()
    assert restarted.ended.outcome == "failed"
    assert restarted.status.error.startswith("Traceback"), "and its next coordinator knows"


@pytest.mark.usefixtures("manifests_are_objects")
def test_an_ended_job_takes_no_more_events():
    """C16, F9: nothing is appended or deleted after the end, and late slots are sent home."""
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    coordinator.later(1_000)
    a.ack(2)
    b.ack(2)
    a.fail("fatal", retryable=False)
    coordinator.settle()
    keys = keys_of(coordinator.store)
    coordinator.later(60_000)
    coordinator.settle()
    assert coordinator.slot(1, attempt=5).connect().last(Shutdown).outcome == "failed"
    assert keys_of(coordinator.store) == keys
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "FINISH"]


# ---------------------------------------------------------------- the end


def test_a_finished_job_has_a_final_checkpoint_and_all_its_rows_visible():
    """C18, I10."""
    coordinator, a, b = started(MemoryStore())
    a.end()
    assert a.got(Trigger) == []
    b.end()
    final = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(final, ended=True)
    coordinator.settle()
    a.commit(final)
    assert coordinator.ended is None
    assert coordinator.status.commits.through == {"out/0": 1, "out/1": 0}
    b.say(CommitFailing(1, final, "out", 1, 3, "target down"))
    assert coordinator.status.commits.troubles[0].error == "target down"
    b.commit(final)
    coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "FINISH"]
    assert coordinator.ended.outcome == "finished"
    assert a.last(Shutdown).outcome == "finished"
    assert coordinator.status.commits.troubles == ()
    assert [slot.state for slot in coordinator.status.slots] == ["ended", "ended"]


@pytest.mark.parametrize("outcome", ["finished", "failed"])
def test_a_checkpoint_whose_decision_is_under_way_when_the_job_ends_is_its_last_one(outcome):
    """A later run restores this checkpoint, so the status must not name the checkpoint before."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(max_concurrent=2)))
    coordinator.later(1_000)
    a.end()
    b.end()
    for number in (1, 2):  # triggered before the sources' end was known, and for it
        coordinator.settle()
        for slot in (a, b):
            slot.ack(number, ended=True)
        coordinator.run_until(Append)
    if outcome == "finished":
        for slot in (a, b):
            slot.commit(1)
    else:
        a.fail(retryable=False)
    coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "COMPLETE", "FINISH"]
    assert coordinator.ended.outcome == outcome
    assert coordinator.status.checkpoints.last_completed.checkpoint == 2
    assert coordinator.status.checkpoints.completed == 2


def test_part_of_the_input_ended_checkpoints_go_on():
    """C18."""
    coordinator, a, b = started(MemoryStore())
    a.end()
    b.say(SubtaskEnded(1, SubtaskId(0, 1)))
    coordinator.later(1_000)
    a.ack(1, ended=True)
    b.ack(1)
    coordinator.settle()
    assert coordinator.phase == "running"
    coordinator.later(1_000)
    assert a.last(Trigger).checkpoint == 2


def test_the_end_is_learned_from_acks_too():
    """A lost SubtaskEnded does not keep a job alive for ever."""
    coordinator, a, b = started(MemoryStore())
    coordinator.later(1_000)
    for slot in (a, b):
        slot.ack(1, ended=True)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(1)
    coordinator.settle()
    assert coordinator.ended.outcome == "finished"


def test_a_failure_after_the_end_of_input_restores_and_ends_again():
    """C18: failover after part finished."""
    coordinator, a, b = started(MemoryStore())
    a.end()
    b.end()
    a.fail("sink trouble")
    coordinator.run_with(a, b)
    assert coordinator.ended is None
    a.end()
    b.end()
    final = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(final, ended=True)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(final)
    coordinator.settle()
    assert coordinator.ended.outcome == "finished"


def test_what_had_ended_before_a_failure_has_not_ended_after_it():
    """C18: the new generation reads from the checkpoint, so every end of input must be reported again."""
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b)
    a.end()
    b.fail("boom")
    coordinator.run_with(a, b)
    b.end()
    coordinator.later(0)
    coordinator.checkpoint(a, b)
    for slot in (a, b):
        slot.commit(2)
    coordinator.settle()
    assert coordinator.phase == "running", "a job that ends early loses the rest of its input"
    assert coordinator.ended is None


def test_a_declined_final_checkpoint_is_taken_again():
    _coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(tolerable_failures=3)))
    a.end()
    b.end()
    a.decline(1)
    assert a.last(Trigger).checkpoint == 2


def test_stop_with_a_checkpoint_waits_for_its_rows():
    coordinator, a, b = started(MemoryStore())
    coordinator.stop("checkpoint")
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(number)
    coordinator.settle()
    coordinator.later(5_000)
    assert a.last(Trigger).checkpoint == number, "no more checkpoints after this one"
    a.commit(number)
    assert coordinator.ended is None
    b.commit(number)
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    assert a.last(Shutdown).outcome == "cancelled"
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "FINISH"]
    assert log_of(coordinator.store)[-1].visible == number


def test_a_stop_survives_the_loss_of_a_slot():
    coordinator, a, b = started(MemoryStore())
    coordinator.stop("checkpoint")
    a.fail("trouble")
    coordinator.run_with(a, b)
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(number)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(number)
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"


def test_stop_now_leaves_everything_as_it_is():
    """C16: suspend keeps everything."""
    coordinator, a, b = started(MemoryStore())
    coordinator.checkpoint(a, b, files="f1")
    keys = keys_of(coordinator.store)
    coordinator.stop("now")
    assert coordinator.ended.outcome == "cancelled"
    coordinator.settle()
    assert keys_of(coordinator.store) == keys


def test_on_cancel_delete_drops_the_checkpoints_after_saying_so_in_the_log(store):
    coordinator, a, b = started(store, spec(checkpoints=options(on_cancel="delete")))
    a.upload("f1")
    coordinator.checkpoint(a, b, files="f1")
    store.put("flights/savepoints/mine/manifest.json", b"theirs")
    coordinator.stop("now")
    assert coordinator.ended is None
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    assert isinstance(log_of(store)[-1], Finish)
    left = [key for key in keys_of(store) if "/log/" not in key]
    assert left == ["flights/savepoints/mine/manifest.json"]
    again, *_ = started(store, spec(run_id="run-2"))
    assert again.status.restored_checkpoint == 0
    assert again.status.token == 4


def test_a_checkpoint_asked_for_by_the_user_comes_at_once():
    coordinator, a, b = started(MemoryStore())
    coordinator.trigger()
    assert a.last(Trigger).checkpoint == 1
    coordinator.trigger()
    assert a.last(Trigger).checkpoint == 1, "one at a time"
    for slot in (a, b):
        slot.ack(1)
    coordinator.settle()
    assert a.last(Trigger).checkpoint == 2


def test_an_unsound_job_is_refused_before_anything_is_written(store):
    with pytest.raises(InvalidJob):
        Coordinator(store, spec(parallelism=0))
    assert keys_of(store) == ()


def test_nothing_is_listed_or_deleted_before_the_first_decision():
    coordinator, _a, _b = started(MemoryStore())
    assert not any(isinstance(effect, ListForSweep | Delete) for effect in coordinator.todo)


# ---------------------------------------------------------------- event time of slots that wait for slower ones


def test_a_slot_that_tells_how_far_it_is_hears_how_far_the_slowest_one_is(store):
    _, a, b = started(store)
    a.say(EventTimeReached(1, {"numbers": HeldBack("p-0", 9_000)}))
    assert a.last(LowestEventTime) == LowestEventTime(1, UNKNOWN_MS), "the other one has not told yet"
    b.say(EventTimeReached(1, {"numbers": HeldBack("p-1", 4_000)}))
    assert b.last(LowestEventTime) == LowestEventTime(1, 4_000)
    a.say(EventTimeReached(1, {"numbers": HeldBack("p-0", 9_000)}))
    assert a.last(LowestEventTime) == LowestEventTime(1, 4_000)
    b.say(EventTimeReached(1))
    assert b.last(LowestEventTime) == LowestEventTime(1, 9_000), "its splits have ended"


def test_reports_of_slots_before_a_restart_are_forgotten_and_late_reports_ignored(store):
    """The next generation restores a checkpoint: reports from before the restart are ahead of this generation."""
    coordinator, a, b = started(store)
    for slot in (a, b):
        slot.say(EventTimeReached(1, {"numbers": HeldBack("p", 9_000)}))
    a.fail()
    new_generation(coordinator, a, b)
    a.say(EventTimeReached(2, {"numbers": HeldBack("p", 3_000)}))
    b.say(EventTimeReached(1, {"numbers": HeldBack("p", 9_500)}))
    a.say(EventTimeReached(2, {"numbers": HeldBack("p", 3_000)}))
    assert a.last(LowestEventTime) == LowestEventTime(2, UNKNOWN_MS)
    b.say(EventTimeReached(2, {"numbers": HeldBack("p", 2_000)}))
    assert b.last(LowestEventTime) == LowestEventTime(2, 2_000)
