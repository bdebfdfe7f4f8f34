"""A job's condition, computed from facts and time, and then through the whole protocol."""

import pytest
from coordinator_world import Coordinator, options, spec, started

from barrier_runtime.coordinator.checkpoints.commits import FailingCommit
from barrier_runtime.coordinator.job.effects import Append, WriteManifest
from barrier_runtime.coordinator.job.events import SlotsStarting, StoreAnswered, StoreRetried
from barrier_runtime.coordinator.status.health import (
    BLOCKED_MS,
    HANGING_MS,
    REPORT_AFTER_MS,
    BlockedSlot,
    Condition,
    Facts,
    OpenCheckpoint,
    ProgressWatch,
    StoreRetry,
    StoreWait,
)
from barrier_runtime.coordinator.status.status import Room
from barrier_runtime.coordinator.wire.messages import CommitFailing, Heartbeat, RestartOptions
from barrier_runtime.state.store.memory import MemoryStore

TIMEOUT = 60_000


def facts(phase="running", **changes):
    return Facts(phase=phase, timeout_ms=TIMEOUT, **changes)


def seen(*looks):
    """Returns the condition after each look: (now, facts)."""
    watch = ProgressWatch()
    return [watch.look(said, now) for now, said in looks]


def states(*looks):
    return [condition.state for condition in seen(*looks)]


# ---------------------------------------------------------------- phases and ends


def test_a_job_starts_runs_recovers_and_runs_again():
    assert states(
        (0, facts("loading")), (1, facts("fencing")), (2, facts("waiting")), (3, facts("restoring")), (4, facts()),
        (5, facts("fencing")), (6, facts("waiting")), (7, facts("restoring")), (8, facts()), (9, facts("finishing")),
    ) == ["STARTING"] * 4 + ["RUNNING"] + ["RECOVERING"] * 3 + ["RUNNING", "FINISHING"]  # fmt: skip


def test_a_restarted_coordinator_recovers_and_does_not_start():
    assert states((0, facts("loading")), (1, facts("resuming")), (2, facts("fencing"))) == [
        "STARTING",
        "RECOVERING",
        "RECOVERING",
    ]


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("finished", "FINISHED: why"),
        ("failed", "FAILED: why"),
        ("cancelled", "STOPPED: why"),
        ("fenced", "FENCED why"),
        ("replaced", "FENCED why"),
    ],
)
def test_an_ended_job_says_how_it_ended_whatever_else_is_wrong(outcome, said):
    trouble = facts(outcome, outcome=outcome, ended_because="why", store=(StoreRetry("append x", "down"),))
    assert [str(condition) for condition in seen((0, trouble), (10 * TIMEOUT, trouble))] == [said, said]


# ---------------------------------------------------------------- restoring


def test_a_restore_that_does_not_end_is_a_trouble_until_it_does():
    hangs = facts("restoring", activity="waits for slot 1")
    assert seen((0, facts("waiting")), (1, hangs), (TIMEOUT, hangs), (TIMEOUT + 1, hangs), (TIMEOUT + 2, facts())) == [
        Condition("STARTING", "", 0),
        Condition("STARTING", "waits for slot 1", 0),
        Condition("STARTING", "waits for slot 1", 0),
        Condition("WAITING_RESTORE", "waits for slot 1", TIMEOUT + 1),
        Condition("RUNNING", "", TIMEOUT + 2),
    ]


def test_each_restore_has_its_own_time():
    hangs = facts("restoring")
    assert (
        states((0, hangs), (TIMEOUT - 1, facts("waiting")), (TIMEOUT, hangs), (2 * TIMEOUT - 1, hangs))
        == ["STARTING"] * 4
    )


def test_what_a_slot_has_been_opening_is_named_with_its_time():
    coordinator = Coordinator(MemoryStore(), spec(progress_timeout_ms=5_000)).begin().settle()
    a, b = coordinator.slot(0).connect(), coordinator.slot(1).connect()
    b.say(Heartbeat(1, opening={"out": 0.9}))
    assert "opening" not in coordinator.status.condition_reason, "not yet worth a word"
    a.say(Heartbeat(1))
    b.say(Heartbeat(1, opening={"out": 4.2, "numbers": 12.0}))
    assert coordinator.status.condition == "STARTING"
    assert coordinator.status.condition_reason == (
        "waits for slots 0, 1 of 2 to restore checkpoint 0: slot 1 has been opening numbers for 12 s; slot 1 has been "
        "opening out for 4.2 s (started by ann@host pid 1)"
    )
    coordinator.later(5_000)
    assert coordinator.status.condition == "WAITING_RESTORE"
    b.say(Heartbeat(0, opening={"old": 99.0}))
    assert "old" not in coordinator.status.condition_reason, "of an older generation"
    b.say(Heartbeat(1, opening={"out": 9.2}))
    assert coordinator.status.condition_reason.endswith(
        ": slot 1 has been opening out for 9.2 s (started by ann@host pid 1)"
    )
    a.restored()
    b.restored()
    assert coordinator.status.condition == "RUNNING"


# ---------------------------------------------------------------- a slot that was blocked


def test_a_slot_that_was_blocked_is_shown_for_a_while():
    blocked = facts(blocked=(BlockedSlot(1, "0/1 (numbers → slow) for 5.2 s", 10),))
    shown = seen((10, blocked), (10 + BLOCKED_MS - 1, blocked), (10 + BLOCKED_MS, blocked))
    assert [condition.state for condition in shown] == ["BLOCKED", "BLOCKED", "RUNNING"]
    assert shown[0].reason.startswith("slot 1 by 0/1 (numbers → slow) for 5.2 s: ")


def test_a_reader_of_this_package_that_blocked_a_slot_is_no_fault_of_the_program():
    ours, users = BlockedSlot(0, "0/0 (read → map) for 3.0 s", 10, reading=True), BlockedSlot(1, "0/1 (slow)", 10)
    (shown,) = seen((10, facts(blocked=(ours,))))
    assert "slot 0 by 0/0 (read → map) for 3.0 s" in shown.reason
    assert "no function of the program" in shown.reason
    assert "return sooner" not in shown.reason
    (both,) = seen((10, facts(blocked=(ours, users))))
    assert both.reason.index("slot 1 by") < both.reason.index("return sooner") < both.reason.index("slot 0 by")


@pytest.mark.parametrize("reading", [False, True])
def test_slot_blocked_without_a_free_core_blames_the_machine(reading: bool):
    coordinator, _, b = started(MemoryStore(), spec(slot_timeout_ms=20_000, progress_timeout_ms=600_000))
    b.say(Heartbeat(1, blocked="1/1 (count → out) for 5.2 s", blocked_reading=reading, blocked_starved=True))
    told = coordinator.status.condition_reason
    assert told.startswith("slot 1 by 1/1 (count → out) for 5.2 s: ")
    assert "the machine had no free core" in told
    assert "fewer slots" in told
    assert "report it" not in told
    b.say(Heartbeat(1, blocked="1/1 (count → out) for 3.0 s", blocked_reading=reading))
    assert "report it" in coordinator.status.condition_reason


def test_slot_reports_its_blocker_afterwards_and_a_silent_slot_is_remembered():
    coordinator, a, b = started(MemoryStore(), spec(slot_timeout_ms=20_000, progress_timeout_ms=600_000))
    b.say(Heartbeat(1, blocked="1/1 (count → out) for 5.2 s", blocked_reading=True))
    assert coordinator.status.condition == "BLOCKED"
    assert "a source or sink of barrier-runtime needed this time" in coordinator.status.condition_reason
    assert "slot 1 by 1/1 (count → out) for 5.2 s" in coordinator.status.condition_reason
    for _ in range(3):
        coordinator.later(BLOCKED_MS // 3)
        a.say(Heartbeat(1))
    coordinator.settle()
    assert "it had been blocked by 1/1 (count → out) for 5.2 s" in coordinator.status.recoveries[-1].reason


# ---------------------------------------------------------------- checkpoints


def test_without_a_checkpoint_for_the_timeout_it_is_not_running():
    waits = OpenCheckpoint(7, 30_000, lambda: ("0/1 (numbers)", "1/0 (count, out)"))
    stuck = facts(completed=6, checkpoint=waits, last_failure="checkpoint 5 expired: late")
    conditions = seen((0, facts(completed=6)), (TIMEOUT - 1, stuck), (TIMEOUT, stuck), (TIMEOUT + 5_000, stuck))
    assert [condition.state for condition in conditions] == ["RUNNING", "RUNNING", "NO_CHECKPOINT", "NO_CHECKPOINT"]
    assert conditions[-1] == Condition(
        "NO_CHECKPOINT",
        "none has completed for 65 s of running; checkpoint 7, triggered 35 s ago, waits for 0/1 (numbers), "
        "1/0 (count, out); the last one failed: checkpoint 5 expired: late",
        TIMEOUT,
    )


def test_a_completed_checkpoint_brings_it_back_and_time_starts_anew():
    assert states(
        (0, facts()), (TIMEOUT, facts()), (TIMEOUT + 1, facts(completed=1)),
        (2 * TIMEOUT, facts(completed=1)), (2 * TIMEOUT + 1, facts(completed=1)),
    ) == ["RUNNING", "NO_CHECKPOINT", "RUNNING", "RUNNING", "NO_CHECKPOINT"]  # fmt: skip


def test_a_job_that_restarts_for_ever_without_a_checkpoint_does_not_look_well():
    watch, now, shown = ProgressWatch(), 0, []
    for _ in range(10):
        watch.look(facts(), now)
        now += TIMEOUT // 5
        watch.look(facts("fencing"), now)
        now += 1_000_000  # recovering is not counted
        shown.append(watch.look(facts(), now).state)
    assert shown == ["RUNNING"] * 4 + ["NO_CHECKPOINT"] * 6


def test_running_time_before_a_recovery_is_forgotten_with_the_next_checkpoint():
    looks = [(0, facts()), (TIMEOUT - 1, facts("fencing")), (TIMEOUT, facts())]
    looks += [(TIMEOUT, facts(completed=1)), (2 * TIMEOUT - 1, facts(completed=1)), (2 * TIMEOUT, facts(completed=1))]
    assert states(*looks)[2:] == ["RUNNING", "RUNNING", "RUNNING", "NO_CHECKPOINT"]


def test_a_long_recovery_alone_is_no_reason_to_miss_a_checkpoint():
    assert states((0, facts()), (1, facts("waiting")), (9 * TIMEOUT, facts()), (10 * TIMEOUT - 2, facts())) == [
        "RUNNING",
        "RECOVERING",
        "RUNNING",
        "RUNNING",
    ]


def test_when_no_checkpoint_is_wanted_any_more_none_is_missed():
    done = facts(expects_checkpoint=False)
    assert states((0, done), (10 * TIMEOUT, done)) == ["RUNNING", "RUNNING"]


def test_that_nothing_is_under_way_is_said_too():
    assert "none is under way" in seen((0, facts()), (TIMEOUT, facts()))[-1].reason


def test_many_subtasks_are_counted_and_not_all_named():
    waits = OpenCheckpoint(1, 0, lambda: tuple(f"0/{index} (numbers)" for index in range(1_000)))
    reason = seen((0, facts()), (TIMEOUT, facts(checkpoint=waits)))[-1].reason
    assert reason.endswith("0/7 (numbers), and 992 more")


# ---------------------------------------------------------------- the store


def test_a_store_call_that_keeps_failing_is_named_and_one_that_heals_at_once_is_not():
    down = facts(store=(StoreRetry("append flights/log/3.json", "no route to host", 9),))
    conditions = seen((0, down), (REPORT_AFTER_MS - 1, down), (REPORT_AFTER_MS, down), (REPORT_AFTER_MS + 1, facts()))
    assert [condition.state for condition in conditions] == ["RUNNING", "RUNNING", "WAITING_STORE", "RUNNING"]
    assert conditions[2].reason == "append flights/log/3.json: no route to host (9 attempts, it is tried again)"
    assert (
        states((0, down), (REPORT_AFTER_MS - 1, facts()), (REPORT_AFTER_MS, down), (REPORT_AFTER_MS + 5, down))
        == ["RUNNING"] * 4
    ), "another trouble is judged by its own time"


@pytest.mark.parametrize("phase", ["loading", "resuming", "fencing", "waiting", "running", "finishing"])
def test_in_every_phase_a_store_that_fails_is_what_is_waited_for(phase):
    down = facts(phase, store=(StoreRetry("read flights/log/", "down"),))
    assert states((0, down), (REPORT_AFTER_MS, down))[-1] == "WAITING_STORE"


def test_a_store_that_does_not_even_refuse_is_waited_for():
    hangs = facts(undecided=StoreWait(4, "flights/checkpoints/4-1/manifest.json", 1_000))
    conditions = seen(
        (1_000, hangs), (999 + HANGING_MS, hangs), (1_000 + HANGING_MS, hangs), (8_000, facts(completed=4))
    )
    assert [condition.state for condition in conditions] == ["RUNNING", "RUNNING", "WAITING_STORE", "RUNNING"]
    assert conditions[2].reason == (
        "write of flights/checkpoints/4-1/manifest.json for checkpoint 4: no answer for 5.0 s"
    )


@pytest.mark.parametrize(
    "trouble", [{"appending": "flights/log/3.json"}, {"undecided": StoreWait(4, "flights/checkpoints/4", 0)}]
)
@pytest.mark.parametrize(("timeout_ms", "waited_ms"), [(TIMEOUT, HANGING_MS), (HANGING_MS // 2, HANGING_MS // 2)])
def test_a_store_that_hangs_is_waited_for_no_longer_than_a_checkpoint_may_take(trouble, timeout_ms, waited_ms):
    hangs = Facts(phase="running", timeout_ms=timeout_ms, expects_checkpoint=False, **trouble)
    assert states((0, hangs), (waited_ms - 1, hangs), (waited_ms, hangs)) == ["RUNNING", "RUNNING", "WAITING_STORE"]


# ---------------------------------------------------------------- sinks


def test_a_commit_that_keeps_failing_is_named_with_its_sink_attempts_and_error():
    fails = facts(failing=(FailingCommit("out/1", 7, 3, "OSError: target down"),))
    conditions = seen((0, fails), (REPORT_AFTER_MS, fails), (REPORT_AFTER_MS + 1, facts()))
    assert [condition.state for condition in conditions] == ["RUNNING", "WAITING_SINK", "RUNNING"]
    assert conditions[1].reason == (
        "sink out/1 cannot commit checkpoint 7: OSError: target down (3 attempts, it is tried again)"
    )


def test_a_commit_that_fails_for_newer_checkpoints_is_one_trouble():
    """A global committer does so: it continues to the newest checkpoint while no commit succeeds."""
    looks = [
        (now, facts(completed=now // 500, failing=(FailingCommit("out/-1", now // 500, 1, "down", since_ms=7),)))
        for now in range(0, 5_001, 500)
    ]
    assert states(*looks) == ["RUNNING"] * 2 + ["WAITING_SINK"] * 9
    commits = (5_100, facts(completed=11))
    fails_again = facts(completed=12, failing=(FailingCommit("out/-1", 12, 1, "down", since_ms=5_200),))
    assert states(*looks, commits, (5_200, fails_again))[-2:] == ["RUNNING", "RUNNING"]


def test_a_sink_that_commits_nothing_is_overdue_although_checkpoints_complete():
    looks = [(now, facts(completed=7 + now // 1_000, behind=(("out/0", 6),))) for now in range(0, TIMEOUT + 1, 1_000)]
    conditions = seen(*looks)
    assert {condition.state for condition in conditions[:-1]} == {"RUNNING"}
    assert conditions[-1].state == "WAITING_SINK"
    assert "sink out/0 has committed nothing for 60 s: it is at checkpoint 6, 67 is completed" in conditions[-1].reason


def test_a_slow_sink_that_advances_is_not_overdue():
    looks = [
        (now, facts(completed=now // 1_000 + 1, behind=(("out/0", now // 30_000),)))
        for now in range(0, 10 * TIMEOUT, 1_000)
    ]
    assert set(states(*looks)) == {"RUNNING"}


def test_sinks_are_judged_only_while_the_job_runs():
    def fails(phase):
        return facts(phase, failing=(FailingCommit("out/1", 7, 3, "down"),), behind=(("out/1", 6),))

    assert states(
        (0, fails("running")), (500, fails("waiting")), (5 * TIMEOUT, fails("restoring")),
        (6 * TIMEOUT, fails("running")), (6 * TIMEOUT + REPORT_AFTER_MS, fails("running")),
    ) == ["RUNNING", "RECOVERING", "RECOVERING", "RUNNING", "WAITING_SINK"]  # fmt: skip


# ---------------------------------------------------------------- time


@pytest.mark.parametrize(
    ("said", "at"),
    [
        (facts(), TIMEOUT),
        (facts(store=(StoreRetry("append x", "down"),)), REPORT_AFTER_MS),
        (facts(undecided=StoreWait(1, "x", 0)), HANGING_MS),
        (facts(failing=(FailingCommit("out/0", 1, 1, "down"),)), REPORT_AFTER_MS),
        (facts("waiting"), None),
        (facts(expects_checkpoint=False), None),
        (facts("running", expects_checkpoint=False, behind=(("out/0", 1),)), TIMEOUT),
    ],
)
def test_the_watch_says_when_time_alone_will_change_something(said, at):
    watch = ProgressWatch()
    before = watch.look(said, 0).state
    assert watch.next_ms == at
    if at is not None:
        assert watch.look(said, at - 1).state == before
        assert watch.look(said, at).state != before
        assert watch.next_ms is None or watch.next_ms > at


# ---------------------------------------------------------------- through the protocol


WATCHED = spec(
    progress_timeout_ms=5_000, checkpoints=options(timeout_ms=3_000, tolerable_failures=100), slot_timeout_ms=600_000
)


def run_on(coordinator, ms, *slots):
    """Advances time by `ms` with heartbeats of the slots, but without acks."""
    for _ in range(ms // 500):
        for slot in slots:
            slot.say(Heartbeat(slot.token))
        coordinator.later(500)


def test_a_subtask_that_never_acknowledges_is_named_and_its_ack_heals():
    """C7 in the status: NO_CHECKPOINT names the checkpoint, the subtasks and their operators."""
    coordinator, a, b = started(MemoryStore(), WATCHED)
    assert coordinator.status.condition == "RUNNING"
    for _ in range(6):
        run_on(coordinator, 1_000, a, b)
        a.ack(a.highest)
        b.ack(b.highest, 0)
    status = coordinator.status
    assert status.condition == "NO_CHECKPOINT"
    assert "waits for 1/1 (count, out)" in status.condition_reason
    assert "the last one failed: checkpoint 1 expired: no answer within 3000 ms" in status.condition_reason
    assert status.checkpoints.in_progress
    b.ack(b.highest, 1)
    coordinator.settle()
    assert (coordinator.status.condition, coordinator.status.condition_reason) == ("RUNNING", "")


def test_a_declined_upload_shows_the_object_and_the_reason():
    """O5 (a slot's side, as the coordinator shows it)."""
    coordinator, a, b = started(MemoryStore(), WATCHED)
    for _ in range(6):
        run_on(coordinator, 1_000, a, b)
        b.decline(b.highest, reason="Unavailable: put of s3://lake/flights/data/1/u/f failed (503) (gave up after 8 …)")
    status = coordinator.status
    assert status.condition == "NO_CHECKPOINT"
    assert "declined: subtask 1/1 declined: Unavailable: put of s3://lake/flights/data/1/u/f" in status.condition_reason


def test_an_append_that_is_retried_is_named_until_it_lands():
    """C12, I9 in the status: while the decision is unknown, the status names the pending append."""
    coordinator, a, b = started(MemoryStore(), WATCHED)
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(1)
    coordinator.run_until(Append)
    key = coordinator.paths.log_record(2)
    for _ in range(3):
        coordinator.post(StoreRetried(f"append {key}", "no route to host"))
        coordinator.later(500)
    status = coordinator.status
    assert status.condition == "WAITING_STORE"
    assert status.condition_reason == f"append {key}: no route to host (3 attempts, it is tried again)"
    assert status.storage_trouble == f"append {key}: no route to host"
    coordinator.post(StoreAnswered(f"append {key}"))
    assert coordinator.protocol.condition.state == "RUNNING"
    coordinator.settle()
    assert coordinator.status.storage_trouble == ""


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_manifest_whose_write_hangs_is_named():
    coordinator, a, b = started(MemoryStore(), WATCHED)
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(1)
    assert isinstance(coordinator.todo[0], WriteManifest)
    coordinator.later(2_900)
    assert coordinator.status.condition == "RUNNING"
    late = spec(progress_timeout_ms=20_000, checkpoints=options(timeout_ms=60_000), slot_timeout_ms=600_000)
    coordinator, a, b = started(MemoryStore(), late)
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(1)
    coordinator.later(HANGING_MS)
    assert coordinator.status.condition == "WAITING_STORE"
    assert coordinator.paths.manifest(1, 1) in coordinator.status.condition_reason
    coordinator.settle()
    assert coordinator.status.condition == "RUNNING"


def test_what_only_the_sweep_waits_for_does_not_keep_the_job_from_running():
    coordinator, _a, _b = started(MemoryStore(), WATCHED)
    coordinator.post(StoreRetried("list for the sweep", "throttled", "sweeping"))
    coordinator.later(2_000)
    assert coordinator.status.condition == "RUNNING"
    assert coordinator.status.storage_trouble == "list for the sweep: throttled"


def test_a_failing_sink_is_named_until_it_has_committed():
    """T4 in the status: the endless retry is visible."""
    coordinator, a, b = started(MemoryStore(), WATCHED)
    number = coordinator.checkpoint(a, b)
    a.commit(number)
    b.say(CommitFailing(1, number, "out", 1, 1, "OSError: down"))
    coordinator.later(REPORT_AFTER_MS)
    status = coordinator.status
    assert status.condition == "WAITING_SINK"
    assert "sink out/1 cannot commit checkpoint 1: OSError: down (1 attempt" in status.condition_reason
    b.commit(number)
    assert coordinator.protocol.condition.state == "RUNNING"


def test_a_sink_that_never_answers_is_overdue_although_checkpoints_go_on():
    coordinator, a, b = started(MemoryStore(), WATCHED)
    for _ in range(8):
        number = coordinator.checkpoint(a, b)
        a.commit(number)
        coordinator.later(900)
    status = coordinator.status
    assert status.condition == "WAITING_SINK"
    assert (
        "sink out/1 has committed nothing for 7.2 s: it is at checkpoint 0, 8 is completed" in status.condition_reason
    )
    b.commit(8)
    assert coordinator.protocol.condition.state == "RUNNING"


def test_starting_and_recovering_name_the_slots_that_are_waited_for():
    coordinator = Coordinator(MemoryStore(), spec()).begin()
    assert (coordinator.status.condition, coordinator.status.condition_reason) == ("STARTING", "reads the decision log")
    coordinator.settle()
    a = coordinator.slot(0).connect()
    assert "waits for slots 1 of 2 to register" in coordinator.status.condition_reason
    error = "a slot's process failed on host worker-b: No module named 'prices'"
    coordinator.post(SlotsStarting(Room(starting=1, failing=error)))
    assert f"waits for slots 1 of 2 to register: {error}" in coordinator.status.condition_reason
    b = coordinator.slot(1).connect()
    a.restored()
    assert "waits for slots 1 of 2 to restore checkpoint 0" in coordinator.status.condition_reason
    b.restored()
    assert coordinator.status.condition == "RUNNING"
    b.fail("Traceback …\nUnavailable: get of s3://lake/x failed")
    coordinator.settle()
    status = coordinator.status
    assert status.condition == "RECOVERING"
    assert "Traceback … Unavailable: get of s3://lake/x failed" in status.condition_reason


def test_a_fenced_job_says_by_whom(store):
    coordinator, a, b = started(store, spec())
    started(store, spec(run_id="run-2", submitter="bob@laptop pid 7"), leader="leader-b")
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(1)
    coordinator.settle()
    assert str(coordinator.protocol.condition) == "FENCED by generation 2 of bob@laptop pid 7"
    assert coordinator.status.condition == "FENCED"


def test_a_failed_job_names_the_strategy_that_ended_it():
    coordinator, a, _b = started(MemoryStore(), spec(restart=RestartOptions(strategy="none")))
    a.fail("boom")
    coordinator.settle()
    assert coordinator.status.condition == "FAILED"
    assert (
        "boom job flights: restart strategy none: the first failure ends the job" in coordinator.status.condition_reason
    )


def test_no_checkpoint_is_missed_while_last_commits_of_finished_input_are_awaited():
    coordinator, a, b = started(MemoryStore(), WATCHED)
    a.end()
    b.end()
    for slot in (a, b):
        slot.ack(slot.highest, ended=True)
    coordinator.settle()
    a.commit(1)
    run_on(coordinator, 6_000, a, b)
    status = coordinator.status
    assert status.condition == "WAITING_SINK"
    assert "out/1" in status.condition_reason
    b.commit(1)
    coordinator.settle()
    assert coordinator.status.condition == "FINISHED"


@pytest.mark.slow
def test_a_watched_job_that_is_well_needs_no_ticks_of_its_own():
    """The watchdog must not wake an idle coordinator again and again."""
    coordinator, a, b = started(MemoryStore(), spec(progress_timeout_ms=3_000_000, slot_timeout_ms=600_000))
    ticks = 0
    for _ in range(50):
        number = coordinator.checkpoint(a, b)
        for slot in (a, b):
            slot.commit(number)
        deadline = coordinator.protocol.next_deadline()
        assert deadline > coordinator.now_ms
        ticks += deadline - coordinator.now_ms < 1_000
        coordinator.later(deadline - coordinator.now_ms)
        for slot in (a, b):
            slot.ack(slot.highest)
        coordinator.settle()
    assert ticks == 0


def test_a_silent_slot_does_not_spin_a_coordinator_that_waits_for_the_store():
    """The deadline of a phase that ignores silent slots must not stay in the past."""
    coordinator, a, _b = started(MemoryStore(), spec(slot_timeout_ms=1_000))
    a.fail("trouble")
    assert coordinator.phase == "fencing"
    coordinator.later(60_000)
    deadline = coordinator.protocol.next_deadline()
    assert deadline is None or deadline > coordinator.now_ms
