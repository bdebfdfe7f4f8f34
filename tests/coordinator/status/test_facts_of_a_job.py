"""A job's reports on checkpoints, failures and takeovers, equal from the coordinator and a successor."""

import itertools
import uuid

import msgspec
import pytest
from coordinator_world import SINK, SOURCE, Coordinator, spec, started
from hdrh.histogram import HdrHistogram

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.log.record_builder import Predecessor
from barrier_runtime.coordinator.status.history import all_subtasks, decode_history, encode_history
from barrier_runtime.coordinator.status.statistics import SUBTASKS, JobRecord
from barrier_runtime.coordinator.status.status import LATENCY_BOUNDS_MS, FailureStatus, TakeoverStatus
from barrier_runtime.coordinator.wire.messages import Ack, Heartbeat, HeldBack, SubtaskId, Trigger
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes
from barrier_runtime.state.store.paths import Paths


def ack(slot, checkpoint: int, chain: int, **times: object) -> None:
    operators = slot.snapshots(chain, checkpoint, "f1" if chain == SINK else "")
    slot.say(Ack(slot.token, checkpoint, SubtaskId(chain, slot.index), operators, SnapshotTimes(**times)))


def slow_checkpoint(coordinator, a, b) -> None:
    """Subtask 1/1 acknowledges half a second after the others."""
    coordinator.trigger()
    number = a.last(Trigger).checkpoint
    ack(a, number, SOURCE, start_delay_ms=2.04, rows=10)
    ack(a, number, SINK, rows=30)
    ack(b, number, SOURCE, rows=20)
    coordinator.later(500)
    ack(b, number, SINK, alignment_ms=1.0, async_ms=480.0, upload_ms=450.0, slowest="count", rows=970, step_chain=1)
    coordinator.settle()


def test_a_checkpoint_keeps_the_phases_of_its_subtasks_slowest_first(store) -> None:
    coordinator, a, b = started(store)
    a.upload("f1")
    b.upload("f1")
    slow_checkpoint(coordinator, a, b)
    last = coordinator.status.checkpoints.last_completed
    assert last is not None
    assert len(last.subtasks) == last.parts == 4
    slowest = last.subtasks[0]
    assert (slowest.chain, slowest.subtask, slowest.ack_ms) == (SINK, 1, 500)
    assert (slowest.async_ms, slowest.upload_ms, slowest.slowest, slowest.rows) == (480.0, 450.0, "count", 970)
    assert (slowest.new_bytes, slowest.full_bytes) == (3, 3)
    assert {each.ack_ms for each in last.subtasks[1:]} == {0}
    assert (last.median_ack_ms, last.chain_rows) == (0, {"0": 30, "1": 1_000})
    assert last.state_bytes == {"count": 6}


def test_of_many_subtasks_the_slowest_are_kept(store) -> None:
    coordinator = Coordinator(store, spec(parallelism=20)).begin()
    slots = [coordinator.slot(index) for index in range(20)]
    coordinator.run_with(*slots)
    coordinator.trigger()
    for slot in slots:
        coordinator.later(10)
        slot.ack(1)
    coordinator.settle()
    last = coordinator.status.checkpoints.last_completed
    assert (last.parts, len(last.subtasks)) == (40, SUBTASKS)
    assert last.subtasks[0].subtask == 19
    assert min(each.subtask for each in last.subtasks) == 12
    found = all_subtasks(coordinator.status.checkpoints.history[-1])
    assert [each.ack_ms for each in found] == [ms for ms in range(200, 0, -10) for _ in range(2)]


def test_a_checkpoint_that_expired_names_who_was_missing_and_which_slot_was_silent(store) -> None:
    job = spec(slot_timeout_ms=600_000, checkpoints=msgspec.structs.replace(spec().checkpoints, timeout_ms=5_000))
    coordinator, a, _ = started(store, job)
    coordinator.trigger()
    a.ack(1)
    for _ in range(5):
        coordinator.later(1_000)
        a.say(Heartbeat(a.token, sent_at_ms=coordinator.now_ms))
    (failed,) = coordinator.status.checkpoints.history[-1:]
    assert failed.outcome == "expired"
    assert failed.missing == ("0/1", "1/1")
    assert len(failed.subtasks) == 2
    (silent,) = failed.slots
    assert (silent.slot, silent.silent_ms >= 5_000) == (1, True)


def test_a_failure_is_kept_once_with_its_text_and_survives_the_coordinator(store) -> None:
    coordinator, a, _ = started(store)
    text = "Traceback …\nValueError: no number\n" + "x" * 9_000 + "\nin row 7 of split 'a'"
    a.fail(text)
    a.fail(text)
    coordinator.settle()
    (failure,) = coordinator.status.failures
    assert (failure.slot, failure.subtask, failure.operator, failure.retryable) == (0, "1/0", "count", True)
    assert failure.error.startswith("Traceback …\nValueError")
    assert failure.error.endswith("in row 7 of split 'a'")
    assert len(failure.error) < 4_200
    assert isinstance(failure, FailureStatus)
    kept = encode_history(coordinator.protocol.history())
    successor = JobRecord(lambda since_ms, now_ms: (), lambda: ())
    successor.remember(decode_history("history", kept), ())
    assert tuple(successor.failures) == (failure,)


def test_successors_report_savepoints_except_those_their_own_run_was_to_stop_with(store) -> None:
    """Such a savepoint is void when another coordinator continues the run: users repeat the request."""
    coordinator, a, b = started(store)
    coordinator.savepoint(SavepointRequest("kept", f"memory://{uuid.uuid4().hex}"))
    for slot in (a, b):
        slot.ack(slot.last(Trigger).checkpoint)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(slot.last(Trigger).checkpoint)
    coordinator.settle()
    (taken,) = coordinator.status.savepoints
    assert (taken.id, taken.state) == ("kept", "done")
    history = coordinator.protocol.history()
    assert history.savepoints == (taken,)
    stopping = msgspec.structs.replace(taken, id="stopping", stops=True)
    store.put(Paths("flights").history, encode_history(msgspec.structs.replace(history, savepoints=(taken, stopping))))
    successor = Coordinator(store, origin=Origin.ADOPTED, leader="b").begin()
    successor.settle()
    assert [each.id for each in successor.status.savepoints] == ["kept"]
    another_run = Coordinator(store, spec(run_id="run-2"), leader="c").begin()
    another_run.settle()
    assert [each.id for each in another_run.status.savepoints] == ["kept", "stopping"]


def test_a_takeover_is_a_mark_and_no_recovery(store) -> None:
    coordinator, a, b = started(store)
    assert coordinator.status.takeovers == ()
    successor = Coordinator(store).begin().settle()
    slots = [successor.slot(slot.index, slot.uuid) for slot in (a, b)]
    for slot, old in zip(slots, (a, b), strict=True):
        slot.token, slot.phase = old.token, "running"
        slot.connect()
    successor.settle()
    assert successor.phase == "running"
    (mark,) = successor.status.takeovers
    assert (mark.token, mark.at_ms, bool(mark.leader)) == (a.token, successor.now_ms, True)
    assert successor.status.recoveries == ()


@pytest.mark.parametrize(("ended_ms", "away_ms"), [(1_000_000, 700), (1_000_600, 100), (1_000_900, 0)])
def test_who_started_the_successor_tells_how_the_leader_before_ended_and_when(store, ended_ms, away_ms) -> None:
    """0: the clocks of two processes differ."""
    _, a, b = started(store)
    successor = Coordinator(store, predecessor=Predecessor("process 71 died of SIGKILL", ended_ms)).begin().settle()
    successor.now_ms = 1_000_700
    for old in (a, b):
        slot = successor.slot(old.index, old.uuid)
        slot.token, slot.phase = old.token, "running"
        slot.connect()
    successor.settle()
    (mark,) = successor.status.takeovers
    assert (mark.ended, mark.away_ms, mark.at_ms) == ("process 71 died of SIGKILL", away_ms, 1_000_700)
    again = msgspec.json.decode(msgspec.json.encode(mark), type=TakeoverStatus)
    assert again == mark
    assert msgspec.json.decode(b'{"token": 1, "leader": "a", "at_ms": 5}', type=TakeoverStatus).ended == ""


@pytest.mark.slow
def test_the_latencies_of_an_hour_are_a_point_a_minute(store) -> None:
    coordinator, a, b = started(store, spec(slot_timeout_ms=600_000))
    own = HdrHistogram(1, 3_600_000_000, 3)
    for minute in range(75):
        for _ in range(6):
            own.record_value((minute + 1) * 1_000, 10)
            coordinator.later(10_000)
            for slot in (a, b):
                latency = {"out:visible": own.encode().decode()} if slot is a else {}
                slot.say(Heartbeat(slot.token, latency=latency, sent_at_ms=coordinator.now_ms))
    points = coordinator.status.latency_hour["out:visible"]
    assert 58 <= len(points) <= 60
    assert {later.at_ms - sooner.at_ms for sooner, later in itertools.pairwise(points)} == {60_000}
    assert 73 <= points[-1].p50 <= 75.1
    assert points[-1].p50 > points[0].p50
    buckets = coordinator.status.latency["out:visible"].buckets
    assert len(buckets) == len(LATENCY_BOUNDS_MS)
    assert (buckets[0], buckets[5], buckets[-1]) == (60, 50 * 60, 75 * 60)  # 1 ms, 50 ms, a minute


def test_shares_and_sources_come_with_heartbeats(store) -> None:
    coordinator, a, b = started(store)
    for second in range(1, 4):
        coordinator.later(1_000)
        for slot in (a, b):
            figures = {"numbers.work_s": 0.5 * second, "numbers.blocked_s": 0.0, "numbers.held_s": 0.0}
            held = {"numbers": HeldBack(f"split-{slot.index}", coordinator.now_ms - 100 * slot.index)}
            slot.say(Heartbeat(slot.token, figures, sent_at_ms=coordinator.now_ms, sources=held))
    source, sink = coordinator.status.chains
    assert (source.operators, source.busy, sink.busy) == (("numbers", "double"), 0.5, None)
    (event_time,) = coordinator.status.sources
    assert (event_time.split, event_time.split_slot, event_time.lag_ms) == ("split-1", 1, 100)


def test_histories_of_before_these_facts_are_read() -> None:
    old = {
        "version": 1,
        "job": "flights",
        "run_id": "r",
        "completed": 1,
        "history": [
            {"checkpoint": 1, "token": 1, "outcome": "complete", "triggered_ms": 5, "duration_ms": 7, "sync_ms": 0.5}
        ],
    }
    known = decode_history("h", msgspec.json.encode(old))
    assert (known.failures, known.takeovers, known.latency_hour) == ((), (), {})
    assert known.history[0].subtasks == ()
