"""History and counters outlive coordinators and runs, agree with the log, and never block a job."""

import asyncio

import msgspec
import pytest
from coordinator_world import Coordinator, kinds, options, spec, started
from test_job_runner import JOB, LocalSlot, lead

from barrier_runtime.coordinator.checkpoints.commits import NOTE_AGAIN_MS
from barrier_runtime.coordinator.job.effects import ReadLog
from barrier_runtime.coordinator.job.events import LogRead
from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.server import history_writer
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.history import (
    History,
    RunOutcome,
    decode_history,
    encode_history,
    led_elsewhere,
    past_status,
)
from barrier_runtime.coordinator.status.status import CommitsStatus, CommitTrouble
from barrier_runtime.coordinator.wire.messages import CommitFailing, Heartbeat, Trigger
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import get_or_none
from barrier_runtime.state.store.paths import Paths
from tests.waiting import eventually

PATHS = Paths("flights")


def stored(store):
    return decode_history(PATHS.history, store.get(PATHS.history))


def stored_run(store):
    return stored(store).run_id if get_or_none(store, PATHS.history) is not None else None


def view(store):
    return read_log(store, PATHS, completes=5, run_id="run-1")


# ---------------------------------------------------------------- counters


def test_counters_and_checkpoints_go_on_in_the_next_run_of_the_job(store):
    _, _, first = lead(store, checkpoints=3)
    before = first.status().checkpoints
    assert stored(store).completed == before.completed == len(before.history)
    _, _, second = lead(store, job=msgspec.structs.replace(JOB, run_id="run-2"), checkpoints=3)
    after = second.status()
    assert after.checkpoints.completed > before.completed
    assert after.checkpoints.triggered >= after.checkpoints.completed + after.checkpoints.failed
    assert after.checkpoints.history[: before.completed] == before.history
    assert after.generations == 2
    assert after.recoveries[0].token == 1
    assert stored(store).completed == after.checkpoints.completed


def test_generations_of_a_history_without_kinds_are_told_apart_by_their_reasons():
    def of(reason, **kind):
        return {
            "token": 1,
            "reason": reason,
            "started_ms": 1,
            "slots_ready_ms": 2,
            "running_ms": 3,
            "duration_ms": 2,
            **kind,
        }

    reasons = ("started by ann@host pid 1", "rescaled from 2 to 3", "its program was replaced", "slot 1 was lost")
    given = [*map(of, reasons), of("rescaled from 2 to 3", kind="recovery")]
    data = msgspec.json.encode({"version": 1, "job": "flights", "run_id": "run-1", "recoveries": given})
    known = decode_history("history", data).recoveries
    assert [each.kind for each in known] == ["start", "rescale", "replace", "recovery", "recovery"]
    again = decode_history("history", encode_history(History(job="flights", run_id="run-1", recoveries=known)))
    assert again.recoveries == known


def test_a_decision_that_the_history_lacks_is_counted_from_the_log(store):
    """The put comes after the decision: a coordinator may die in between."""
    _, _, runner = lead(store, checkpoints=3)
    status = runner.status().checkpoints
    older = status.history[-2]
    behind = msgspec.structs.replace(
        stored(store), completed=status.completed - 1, last_completed=older, history=status.history[:-1]
    )
    store.put(PATHS.history, encode_history(behind))
    _, _, second = lead(store, job=msgspec.structs.replace(JOB, run_id="run-2"), checkpoints=1)
    known = second.status().checkpoints.history
    assert [each.checkpoint for each in known][: status.completed] == [each.checkpoint for each in status.history]
    assert known[status.completed - 1].reason == "known from the log alone"


@pytest.mark.slow
def test_at_most_the_last_hundred_checkpoints_are_kept(store):
    lead(store, job=msgspec.structs.replace(JOB, checkpoints=options(interval_ms=10)), checkpoints=110)
    kept = stored(store)
    assert len(kept.history) == 100
    assert kept.completed > 100


# ---------------------------------------------------------------- trouble


@pytest.mark.parametrize(
    "damage",
    [b"", b"\x80\x04\x95pickle", b'{"version":9,"job":"flights","run_id":"run-1"}', b'{"version":1,"job":"flights"'],
    ids=["empty", "pickle", "another version", "cut"],
)
def test_a_damaged_history_is_reported_and_stops_nothing(damage, store):
    """B6: refused undecoded; the job runs, and only figures restart at zero."""
    store.put(PATHS.history, damage)
    with pytest.raises(InvalidJob if b"9" in damage else Corrupt, match=r"flights/history\.json"):
        decode_history(PATHS.history, damage)
    outcome, _, runner = lead(store)
    assert outcome.outcome == "finished"
    assert any("flights/history.json" in reason for reason in runner.status().checkpoints.ignored)
    assert stored(store).completed == runner.status().checkpoints.completed


def test_a_history_that_can_not_be_read_or_written_for_a_while_holds_nothing_up(store):
    for _ in range(3):
        store.inject(Fault.FAIL_BEFORE, "get", "history")
    store.inject(Fault.FAIL_BEFORE, "put", "history")

    async def check(runner, slot):
        await eventually(lambda: runner.status().checkpoints.completed >= 2, "checkpoints")

    outcome, _, runner = lead(store, check, checkpoints=4)
    assert outcome.outcome == "finished"
    ignored = runner.status().checkpoints.ignored
    assert any("could not be read" in reason for reason in ignored)
    assert any("could not be written" in reason for reason in ignored)
    assert stored(store).completed == runner.status().checkpoints.completed


class NoHistoryAllowed(MemoryStore):
    """A real store whose bucket policy forbids only this key."""

    def put(self, key, data):
        if key.endswith("history.json"):
            raise InvalidJob(f"{key}: access denied: allow s3:PutObject")
        super().put(key, data)


def test_a_history_that_may_not_be_written_is_reported():
    outcome, _, runner = lead(NoHistoryAllowed())
    assert outcome.outcome == "finished"
    assert any("history could not be written" in reason for reason in runner.status().checkpoints.ignored)


def test_a_coordinator_that_was_replaced_does_not_write_over_its_successors_history(store):
    """F6: the coordinator reads the log's next position before the write."""

    async def main():
        zombie = JobRunner(JOB, store, leader="zombie", host="h")
        running = asyncio.create_task(zombie.run())
        await eventually(lambda: zombie.lead_position is not None, "the first to lead")
        successor = JobRunner(msgspec.structs.replace(JOB, run_id="run-2"), store, leader="b", host="h")
        following = asyncio.create_task(successor.run())
        await eventually(lambda: successor.lead_position is not None, "the second to lead")
        await eventually(lambda: stored_run(store) == "run-2", "the successor's history")
        await zombie._history._put(None)
        assert stored(store).run_id == "run-2"
        for task in (running, following):
            task.cancel()
        await asyncio.gather(running, following, return_exceptions=True)

    asyncio.run(asyncio.wait_for(main(), 60))


# ---------------------------------------------------------------- how a run ended


def test_how_a_run_ended_is_told_by_a_daemon_that_did_not_see_it(store):
    """The log has no record of failed and cancelled runs: the history reports these ends."""

    async def stop(runner, slot):
        await eventually(lambda: runner.status().checkpoints.completed >= 1, "a checkpoint")
        runner.stop("now")

    lead(store, stop, checkpoints=10_000)

    async def ask(run_id):
        directory = JobDirectory(store, daemon_key=b"k" * 32, leader="b", host="h")
        status = await directory.past("flights", run_id)
        await directory.close()
        return status

    status = asyncio.run(ask("run-1"))
    assert (status.outcome, status.run_id, status.token) == ("cancelled", "run-1", 1)
    assert "stopped by its user" in status.reason
    assert status.checkpoints.completed >= 1
    assert asyncio.run(ask(None)) == status
    assert asyncio.run(ask("run-9")) is None


def test_an_end_that_the_log_has_grown_beyond_is_void(store):
    _, first, _second = started(store)
    head = view(store).head.position
    ended = RunOutcome("run-1", "failed", "the disk was full", 1, head)
    history = History(job="flights", run_id="run-1", outcome=ended)
    assert past_status(view(store), history, "run-1").outcome == "failed"
    assert past_status(view(store), history, "run-1").error == "the disk was full"
    assert past_status(view(store), msgspec.structs.replace(history, outcome=None), "run-1") is None
    older = msgspec.structs.replace(ended, position=head - 1)
    assert past_status(view(store), msgspec.structs.replace(history, outcome=older), "run-1") is None
    assert first.token == 1


def test_a_run_that_finished_or_was_taken_over_is_told_from_the_log_alone(store):
    lead(store)
    assert past_status(view(store), None, "run-1").outcome == "finished"
    lead(store, job=msgspec.structs.replace(JOB, run_id="run-2"))
    fenced = past_status(view(store), None, "run-1")
    assert (fenced.outcome, fenced.fenced_by.split()[0]) == ("fenced", "generation")
    assert past_status(view(MemoryStore()), None, None) is None


def committed_by_one(store):
    """Returns a job with two slots and a checkpoint that only slot 1 has committed."""
    coordinator, a, b = started(store)
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(slot.last(Trigger).checkpoint)
    coordinator.settle()
    b.commit(1)
    return coordinator, a, b


def test_standbys_and_ended_jobs_report_visible_checkpoints_and_failing_commits(store):
    coordinator, a, _ = committed_by_one(store)
    a.say(CommitFailing(a.token, 1, "out", 0, 3, f"the disk is full {'x' * 100_000} at the end"))
    (trouble,) = coordinator.status.commits.troubles
    assert (trouble.sink, trouble.checkpoint, trouble.attempts) == ("out/0", 1, 3)
    assert trouble.error.startswith("the disk is full x")
    assert trouble.error.endswith("x at the end")
    assert len(trouble.error) < 5_000, "every subtask of a sink may tell one"
    history = decode_history(PATHS.history, encode_history(coordinator.protocol.history()))
    assert led_elsewhere(view(store), history, "another daemon leads").commits == coordinator.status.commits
    assert coordinator.status.commits.through == {"out/0": 0, "out/1": 1}


def failing(slot, attempts, error="the disk is full", checkpoint=1):
    slot.say(CommitFailing(slot.token, checkpoint, "out", slot.index, attempts, error))


def in_trouble(store):
    """Returns a job whose checkpoint only slot 1 has committed and slot 0 fails to commit, and the reported failure."""
    coordinator, a, b = committed_by_one(store)
    failing(a, 1)
    began_ms = coordinator.now_ms
    coordinator.later(700)
    failing(a, 2)
    (trouble,) = coordinator.status.commits.troubles
    assert (trouble.sink, trouble.checkpoint, trouble.attempts, trouble.since_ms) == ("out/0", 1, 2, began_ms)
    return coordinator, a, b, trouble


def reads(first, history):
    """Returns a second coordinator that has read log and history, without any slot."""
    second = Coordinator(first.store, first.protocol.spec, "leader-b", Origin.ADOPTED, first.now_ms).begin()
    assert isinstance(second.todo.popleft(), ReadLog)
    second.post(LogRead(view(first.store), encode_history(history)))
    return second


def come_to(second, *slots):
    for slot in slots:
        slot.coordinator = second
        slot.connect()
    second.settle()


def test_a_commit_that_fails_is_known_to_a_successor_before_any_slot_has_come(store):
    first, a, b, trouble = in_trouble(store)
    second = reads(first, first.protocol.history())
    assert second.status.commits.troubles == (trouble,)
    a.coordinator = second
    a.connect()
    failing(a, 3, "still full")  # received during the takeover
    come_to(second, b)
    assert second.phase == "running"
    (later,) = second.status.commits.troubles
    assert later == msgspec.structs.replace(trouble, attempts=3, error="still full"), "since the same time"
    a.commit(1)
    assert second.status.commits.troubles == ()
    assert second.protocol.history().commits.troubles == ()


@pytest.mark.parametrize("hears_of_it", ["after", "before"])
def test_a_trouble_that_ended_while_nobody_led_is_gone_when_its_slot_comes_back(store, hears_of_it):
    first, a, b, trouble = in_trouble(store)
    history = first.protocol.history()
    a.committed["out/0"] = 1  # reported to no coordinator
    second = Coordinator(first.store, first.protocol.spec, "leader-b", Origin.ADOPTED, first.now_ms).begin()
    second.todo.popleft()
    if hears_of_it == "before":
        a.coordinator = second
        a.connect()
    second.post(LogRead(view(first.store), encode_history(history)))
    if hears_of_it == "after":
        come_to(second, b)
        assert second.status.commits.troubles == (trouble,)
        come_to(second, a)
    assert second.status.commits.troubles == ()


def test_trouble_of_a_slot_that_died_with_its_coordinator_stays_until_a_new_commit(store):
    first, _, b, trouble = in_trouble(store)
    second = reads(first, first.protocol.history())
    a = second.slot(0, attempt=1)
    come_to(second, b, a)
    second.run_with(a, b)
    assert second.phase == "running"
    assert second.status.commits.troubles == (trouble,)
    a.commit(1)
    assert second.status.commits.troubles == ()


def test_troubles_of_another_run_or_of_a_sink_that_is_gone_are_forgotten(store):
    first, *_ = in_trouble(store)
    history = first.protocol.history()
    assert reads(first, msgspec.structs.replace(history, run_id="run-0")).status.commits.troubles == ()
    (known,) = history.commits.troubles
    gone = msgspec.structs.replace(history.commits, troubles=(msgspec.structs.replace(known, sink="gone/0"),))
    assert reads(first, msgspec.structs.replace(history, commits=gone)).status.commits.troubles == ()


def test_failing_commit_is_recorded_at_begin_change_and_end_not_at_each_attempt(store):
    """No checkpoint happens in between: none is taken while sinks are too far behind."""
    coordinator, a, _, _ = in_trouble(store)
    revisions = [coordinator.protocol.history_revision]

    def is_news():
        revisions.append(coordinator.protocol.history_revision)
        return revisions[-1] != revisions[-2]

    for attempts in range(3, 50):
        failing(a, attempts)
        assert not is_news()
    failing(a, 50, "request 7: full")
    assert not is_news(), "soon after it began"
    coordinator.now_ms += NOTE_AGAIN_MS
    failing(a, 51, "request 8: full")
    assert is_news()
    failing(a, 52, "request 9: full")
    assert not is_news()
    a.commit(1)
    assert is_news()
    failing(a, 53)  # an old, late message
    assert coordinator.status.commits.troubles == ()
    failing(a, 1, checkpoint=2)
    assert is_news()


def test_figures_of_an_older_version_have_troubles_without_their_beginning(store):
    first, *_ = in_trouble(store)
    older = encode_history(first.protocol.history()).replace(b',"since_ms":', b',"unknown":')
    assert older.count(b',"unknown":') == 1
    (trouble,) = decode_history(PATHS.history, older).commits.troubles
    assert (trouble.attempts, trouble.since_ms) == (2, 0)


def test_a_run_that_has_finished_has_no_trouble_whatever_was_stored_before(store):
    _, _, runner = lead(store)
    history = stored(store)
    assert runner.status().outcome == "finished"
    behind = msgspec.structs.replace(history, commits=CommitsStatus({}, (CommitTrouble("out/0", 1, 3, "full"),)))
    assert past_status(view(store), behind, None).commits.troubles == ()


# ---------------------------------------------------------------- slots that a predecessor knew


def test_successor_knows_a_slot_by_its_task_that_hangs_while_the_coordinator_dies(store):
    """Z9: only the predecessor knew the slot, whose Spark task would hold the place until the resource wait timeout."""
    first, survivor, _hanging = started(store, spec(slot_timeout_ms=5_000, resume_timeout_ms=1_000))
    history = first.protocol.history()
    assert [(known.slot, known.task_attempt) for known in history.slots] == [(0, 0), (1, 0)]
    second = successor_of(first, survivor, history)
    second.later(1_000)
    second.settle()
    assert second.phase == "waiting"
    assert second.kills == [], "it may still come"
    second.later(3_000)
    survivor.say(Heartbeat(survivor.token))
    second.later(3_000)
    assert [(kill.slot, kill.uuid) for kill in second.kills] == [(1, "uuid-1-0")]
    second.slot(1, attempt=1).connect()
    assert second.status.kill == ()
    assert second.phase == "restoring"


def test_slots_of_another_run_are_nobody_to_wait_for(store):
    first, survivor, _hanging = started(store)
    history = msgspec.structs.replace(first.protocol.history(), run_id="run-0")
    second = successor_of(first, survivor, history)
    assert [slot.slot for slot in second.status.slots] == [0]


def test_a_slot_that_a_predecessor_knew_and_that_comes_is_an_ordinary_survivor(store):
    first, *slots = started(store)
    second = successor_of(first, slots[0], first.protocol.history())
    slots[1].coordinator = second
    slots[1].connect()
    second.settle()
    assert second.phase == "running"
    assert kinds(store) == ["FENCE", "LEAD"]
    second.later(1_000)
    assert second.kills == []


def successor_of(first, survivor, history):
    """Returns a second coordinator that has read log and history, with a slot."""
    second = reads(first, history)
    come_to(second, survivor)
    return second


def test_quick_checkpoints_are_written_together_slots_at_once_and_rest_at_the_end(monkeypatch):
    """| while the last put is less than 5 seconds ago …     | the history is written          |
    |---|---|
    | a checkpoint ends                                       | when that time is over          |
    | a slot comes, with another task                 | now: its task may have to be killed |
    | the run ends                                    | now                             |
    """
    monkeypatch.setattr(history_writer, "_BETWEEN_S", 3_600.0)
    store = CountingStore()

    async def check(runner, slot):
        await eventually(lambda: runner.status().checkpoints.completed >= 5, "some checkpoints")
        before = store.histories
        slot.close()
        runner.slot_disconnected(slot)
        again = LocalSlot(runner, checkpoints=1_000, attempt=7)
        await eventually(
            lambda: [known.task_attempt for known in stored(store).slots] == [7], "the slot's task to be known"
        )
        assert store.histories <= before + 2
        await eventually(lambda: runner.status().checkpoints.completed >= 10, "more checkpoints")
        again.left = 1

    outcome, _, runner = lead(store, check, checkpoints=1_000)
    assert outcome.outcome == "finished"
    assert store.histories < 8 < 11 <= runner.status().checkpoints.completed
    assert stored(store).completed == runner.status().checkpoints.completed


class CountingStore(MemoryStore):
    histories = 0

    def put(self, key, data):
        super().put(key, data)
        self.histories += key == PATHS.history
