"""Resolving a dead job's transactions fences the job, and leaves a log from which any run can continue."""

import asyncio

import pytest
from coordinator_world import Coordinator, kinds, log_of, spec

from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Fence, Finish
from barrier_runtime.coordinator.maintenance.fsck import LogWalk
from barrier_runtime.coordinator.maintenance.in_doubt import InDoubtResolution
from barrier_runtime.coordinator.server.jobs import JobDirectory, NotHere
from barrier_runtime.coordinator.status.history import past_status
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, Trigger
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.paths import Paths

PATHS = Paths("flights")


def view_of(store, run_id=""):
    return read_log(store, PATHS, completes=2, run_id=run_id)


def resolution(store, view=None, sleep=lambda seconds: None):
    return InDoubtResolution(
        store, view or view_of(store), leader="settled-1", host="here", submitter="ann@here pid 7", sleep=sleep
    )


def running(store, run_id, **changes):
    coordinator = Coordinator(store, spec(run_id=run_id, **changes), leader=f"leader-{run_id}").begin().settle()
    slots = [coordinator.slot(index, f"{run_id}-{index}").connect() for index in (0, 1)]
    coordinator.settle()
    for slot in slots:
        slot.restored()
    coordinator.settle()
    assert coordinator.phase == "running", coordinator.protocol.reason
    return coordinator, slots


def take_checkpoint(coordinator, slots):
    coordinator.trigger()
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.ack(number)
    coordinator.settle()
    return number


@pytest.fixture
def left():
    """Returns the store of a job that was killed after two checkpoints."""
    store = MemoryStore()
    coordinator, slots = running(store, "run-1")
    for _ in range(2):
        take_checkpoint(coordinator, slots)
    return store


def assert_sound(store):
    walk = LogWalk(PATHS, lambda position: store.get(PATHS.log_record(position)))
    for position in range(1, len(log_of(store)) + 1):
        walk.feed(store.get(PATHS.log_record(position)))
    assert walk.damage == []
    return walk


def test_a_settlement_is_a_fence_of_its_own_and_the_word_that_nobody_leads(left):
    before = view_of(left)
    settled = resolution(left)
    token = settled.begin()
    assert token == before.head.position + 1
    settled.finish("by hand")
    fence, finish = log_of(left)[-2:]
    assert isinstance(fence, Fence)
    assert isinstance(finish, Finish)
    assert (fence.token, fence.spec.run_id, fence.restored_checkpoint) == (token, "settled-1", 2)
    assert fence.lineage == before.fence.record.lineage
    assert (finish.outcome, finish.reason) == ("cancelled", "by hand")
    walk = assert_sound(left)
    assert [decided.checkpoint for decided in walk.must_exist] == [2]


@pytest.mark.parametrize("died_between", [False, True])
def test_the_job_starts_again_from_what_it_had_reached_with_a_higher_token(left, died_between):
    lineage = view_of(left).fence.record.lineage
    settled = resolution(left)
    token = settled.begin()
    if not died_between:
        settled.finish("by hand")
    coordinator, slots = running(left, "run-2")
    assert coordinator.status.token > token
    assert coordinator.status.restored_checkpoint == 2
    assert view_of(left).fence.record.lineage == lineage
    assert take_checkpoint(coordinator, slots) == 3
    assert_sound(left)


def test_whoever_led_the_job_unnoticed_is_fenced_and_decides_nothing_more(store):
    """Z1: also if the leader restarts as the same run."""
    coordinator, slots = running(store, "run-1")
    take_checkpoint(coordinator, slots)
    resolution(store).begin()
    take_checkpoint(coordinator, slots)
    assert coordinator.ended.outcome == "fenced"
    assert "generation 3 of ann@here pid 7" in coordinator.ended.reason
    assert all(slot.last(CheckpointComplete).checkpoint == 1 for slot in slots)
    again = Coordinator(store, spec(run_id="run-1"), leader="leader-again").begin().settle()
    assert again.ended.outcome == "fenced"
    assert kinds(store).count("COMPLETE") == 1


@pytest.mark.parametrize("faster", ["FENCE", "COMPLETE", "FINISH"])
def test_who_was_faster_keeps_the_job_and_nothing_is_settled(faster, store):
    coordinator, slots = running(store, "run-1")
    take_checkpoint(coordinator, slots)
    settled = resolution(store)
    if faster == "FENCE":
        running(store, "run-2")
    elif faster == "COMPLETE":
        take_checkpoint(coordinator, slots)
    else:
        slots[0].fail("boom", retryable=False)
        coordinator.settle()
    before = kinds(store)
    with pytest.raises(InvalidJob, match=rf"log record 3 is a {faster} of host for ann@host.*Nothing was settled"):
        settled.begin()
    assert kinds(store) == before


def test_a_job_that_starts_before_the_end_of_a_settlement_keeps_its_log(left):
    settled = resolution(left)
    settled.begin()
    coordinator, slots = running(left, "run-2")
    settled.finish("by hand")
    assert "FINISH" not in kinds(left)
    assert take_checkpoint(coordinator, slots) == 3
    assert coordinator.ended is None


def test_how_the_job_had_ended_is_told_on(store):
    coordinator, slots = running(store, "run-1")
    take_checkpoint(coordinator, slots)
    slots[0].fail("boom", retryable=False)
    coordinator.settle()
    ended = log_of(store)[-1]
    assert isinstance(ended, Finish)
    settled = resolution(store)
    settled.begin()
    settled.finish("by hand")
    last = log_of(store)[-1]
    assert (last.outcome, last.reason) == ("failed", ended.reason)
    assert last.token > ended.token
    assert_sound(store)


def test_a_status_without_a_leader_says_what_became_of_either_run(left):
    settled = resolution(left)
    settled.begin()
    view = view_of(left)
    assert past_status(view, None, None) is None, "nobody said yet that the resolution is over"
    assert past_status(view, None, "run-1").outcome == "fenced"
    settled.finish("by hand")
    status = past_status(view_of(left), None, None)
    assert (status.outcome, status.reason) == ("cancelled", "by hand")
    assert "ann@here pid 7" in past_status(view_of(left), None, "run-1").reason


def test_daemon_does_not_adopt_a_settled_run_of_a_slot_and_dismisses_the_slot(left):
    settled = resolution(left)
    settled.begin()
    directory = JobDirectory(left, daemon_key=b"key", leader="daemon", host="here")

    answer = asyncio.run(directory.for_slot("flights", "run-1"))
    assert isinstance(answer, NotHere)
    assert answer.fenced
    assert "generation 4 of ann@here pid 7" in answer.reason
    assert directory.jobs == {}


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.LAND_LATE, Fault.CONFLICT])
def test_a_put_whose_outcome_is_unknown_is_repeated_until_it_is_known(left, fault):
    """O3: the record is in the log once."""
    left.inject(fault, "put_if_absent")
    waited = []
    assert resolution(left, sleep=waited.append).begin() == 4
    assert waited
    left.land_late()
    assert kinds(left) == ["FENCE", "COMPLETE", "COMPLETE", "FENCE"]
    assert_sound(left)


def test_a_store_that_does_not_answer_at_all_is_named_and_nothing_is_settled(left):
    for _ in range(100):
        left.inject(Fault.FAIL_BEFORE, "put_if_absent")
    with pytest.raises(Unavailable, match=r"whether FENCE was appended at log position 4 .* do the same again"):
        resolution(left).begin()
