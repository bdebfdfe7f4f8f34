"""Stops with a savepoint while the coordinator dies at each point between the request and the job's end.

The request is not repeated. Afterwards the job runs, or has ended with that savepoint."""

import uuid
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from coordinator_world import Coordinator, FakeSlot, kinds, log_of, spec, started

from barrier_runtime.coordinator import savepoint_files
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.effects import Append, CopySavepoint, Effect, WriteManifest
from barrier_runtime.coordinator.job.events import SavepointCopied, SavepointNotCopied, SlotRegistered
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import Finish, Stop, decode_record, encode_record
from barrier_runtime.coordinator.savepoint_files import find_savepoint, missing_objects, read_savepoint
from barrier_runtime.coordinator.status.history import past_status
from barrier_runtime.coordinator.wire.messages import (
    CheckpointComplete,
    CheckpointOptions,
    Deploy,
    EndSources,
    Start,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import MemoryStore

MODES = ["checkpoint", "drain"]
_ROUNDS = 40


def wish() -> SavepointRequest:
    return SavepointRequest(uuid.uuid4().hex, f"memory://savepoint-{uuid.uuid4().hex}", stops=True)


def answer(slot: FakeSlot) -> None:
    """Lets the slot execute all requests received since the last call."""
    heard, slot.inbox = slot.inbox, []
    for message in heard:
        if isinstance(message, Deploy):
            slot.restored()
        elif isinstance(message, EndSources) or (isinstance(message, Start) and slot.drained):
            slot.end()
        elif isinstance(message, Trigger):
            name = f"f{message.checkpoint}"
            slot.upload(name)
            slot.ack(message.checkpoint, files=name)
        elif isinstance(message, CheckpointComplete):
            slot.commit(message.checkpoint)


def go_on(coordinator: Coordinator, *slots: FakeSlot, until: Callable[[Effect], bool] = lambda _: False) -> bool:
    """Runs coordinator and slots until the job has ended, or up to a store effect."""
    for _ in range(_ROUNDS):
        while coordinator.todo:
            if until(coordinator.todo[0]):
                return True
            coordinator.step()
        if coordinator.ended is not None:
            return False
        for slot in slots:
            answer(slot)
        if not coordinator.todo:
            coordinator.later(1)
    return False


def appends(kind: type) -> Callable[[Effect], bool]:
    return lambda effect: isinstance(effect, Append) and isinstance(decode_record("it", effect.data), kind)


def the(kind: type) -> Callable[[Effect], bool]:
    return lambda effect: isinstance(effect, kind)


def completes(effect: Effect) -> bool:
    return isinstance(effect, Append) and b'"COMPLETE"' in effect.data


POINTS: dict[str, tuple[Callable[[Effect], bool], bool]] = {  # the effect, and whether it happens before the death
    "the wish is in the log": (appends(Stop), True),
    "the last manifest is to be written": (the(WriteManifest), False),
    "the last manifest is written": (the(WriteManifest), True),
    "the last checkpoint is to be decided": (completes, False),
    "the last checkpoint is decided": (completes, True),
    "the savepoint is to be copied": (the(CopySavepoint), False),
    "the savepoint is copied": (the(CopySavepoint), True),
    "the end is to be written": (appends(Finish), False),
    "the end is written": (appends(Finish), True),
}


def died(point: str, store: MemoryStore, asked: SavepointRequest, mode: str) -> tuple[Coordinator, FakeSlot, FakeSlot]:
    coordinator, a, b = started(store)
    coordinator.stop(mode, asked)
    effect, happens = POINTS[point]
    assert go_on(coordinator, a, b, until=effect), coordinator.protocol.phase
    if happens:
        coordinator.step_without_answer()
    return coordinator, a, b


def successor(of: Coordinator, *slots: FakeSlot) -> Coordinator:
    coordinator = Coordinator(of.store, leader="leader-b", now_ms=of.now_ms + 1_000)
    coordinator.begin()
    for slot in slots:
        slot.coordinator = coordinator
        slot.inbox.clear()
        slot.connect()
        if slot.drained:
            slot.end()
    return coordinator


def check_it_ended_with(coordinator: Coordinator, asked: SavepointRequest, mode: str) -> None:
    assert coordinator.ended is not None, coordinator.phase
    assert coordinator.ended.outcome == ("finished" if mode == "drain" else "cancelled")
    savepoint = read_savepoint(asked.url)
    last = [each for each in log_of(coordinator.store) if hasattr(each, "checkpoint")][-1]
    assert (savepoint.id, savepoint.final, savepoint.taken.checkpoint) == (asked.id, True, last.checkpoint)
    assert bool(savepoint.taken.drained_by) == (mode == "drain")
    assert missing_objects(asked.url, savepoint) == ()
    (told,) = coordinator.status.savepoints
    assert (told.id, told.state, told.checkpoint, told.stops) == (asked.id, "done", last.checkpoint, True)
    assert told.bytes > 0
    assert kinds(coordinator.store)[-1] == "FINISH"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.usefixtures("manifests_are_objects")
def test_the_coordinator_dies_and_its_successor_stops_the_job(point: str, mode: str) -> None:
    store, asked = MemoryStore(), wish()
    before, a, b = died(point, store, asked, mode)
    after = successor(before, a, b)
    go_on(after, a, b)
    check_it_ended_with(after, asked, mode)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.usefixtures("manifests_are_objects")
def test_coordinator_and_slots_die_and_the_next_generation_is_stopped(point: str, mode: str) -> None:
    store, asked = MemoryStore(), wish()
    before, _, _ = died(point, store, asked, mode)
    after = successor(before)
    slots = [after.slot(index, attempt=1).connect() for index in (0, 1)]
    if point != "the end is written":
        after.later(after.protocol.spec.resume_timeout_ms + 1)
    go_on(after, *slots)
    check_it_ended_with(after, asked, mode)


@pytest.mark.parametrize("mode", MODES)
def test_leader_that_stalls_before_the_copy_leaves_the_successors_savepoint(mode: str) -> None:
    store, asked = MemoryStore(), wish()
    before, _, _ = died("the savepoint is to be copied", store, asked, mode)
    copying = before.todo.popleft()
    after = successor(before)
    slots = [after.slot(index, attempt=1).connect() for index in (0, 1)]
    after.later(after.protocol.spec.resume_timeout_ms + 1)
    go_on(after, *slots)
    check_it_ended_with(after, asked, mode)
    assert isinstance(before.answer(copying), SavepointNotCopied)
    check_it_ended_with(after, asked, mode)


def test_savepoint_that_a_deposed_leader_completes_meanwhile_is_replaced() -> None:
    """Both leaders copy, the deposed leader is faster."""
    store, asked = MemoryStore(), wish()
    before, a, b = died("the savepoint is to be copied", store, asked, "checkpoint")
    deposed = before.todo.popleft()
    after = successor(before, a, b)
    assert go_on(after, a, b, until=the(CopySavepoint))
    copying, copy_all = after.todo[0], savepoint_files.copy_objects
    assert isinstance(copying, CopySavepoint)

    def copied(*objects: Any, **how: Any) -> None:
        copy_all(*objects, **how)
        with patch.object(savepoint_files, "copy_objects", copy_all):
            assert isinstance(before.answer(deposed), SavepointCopied)

    with patch.object(savepoint_files, "copy_objects", copied), pytest.raises(Unavailable, match="earlier leader"):
        savepoint_files.write_savepoint(store, copying.url, copying.copy)
    go_on(after, a, b)  # as the coordinator's thread does: it copies again
    check_it_ended_with(after, asked, "checkpoint")


def test_successor_that_finds_all_ended_marks_the_last_checkpoint_as_drained() -> None:
    """The slots report in their first message that they have ended, so no source is left to end."""
    store, asked = MemoryStore(), wish()
    before, a, b = died("the last checkpoint is decided", store, asked, "drain")
    after = Coordinator(store, leader="leader-b", now_ms=before.now_ms + 1_000).begin()
    after.settle()
    for slot in (a, b):
        slot.coordinator = after
        slot.inbox.clear()
        slot.link = after.new_link(slot)
        ended = tuple(SubtaskId(chain, slot.index) for chain in (0, 1))
        after.post(SlotRegistered(slot.link, msgspec.structs.replace(slot.register(), ended=ended)))
    go_on(after, a, b)
    check_it_ended_with(after, asked, "drain")


@pytest.mark.parametrize("mode", MODES)
def test_a_wish_that_is_in_no_record_yet_is_gone_and_the_job_runs_on(mode: str) -> None:
    store, asked = MemoryStore(), wish()
    before, a, b = started(store)
    before.stop(mode, asked)
    assert appends(Stop)(before.todo[0])
    before.later(5_000)
    assert not a.got(Trigger)
    assert not a.got(EndSources), "the sources read on until it is logged"
    after = successor(before, a, b)
    go_on(after, a, b)
    after.trigger()
    assert not a.last(Trigger).stop
    assert after.phase == "running"
    assert find_savepoint(asked.url) is None


@pytest.mark.usefixtures("manifests_are_objects")
def test_next_record_has_the_stop_request_and_the_job_stops_at_a_later_checkpoint() -> None:
    store, asked = MemoryStore(), wish()
    coordinator, a, b = started(store)
    coordinator.trigger()
    for slot in (a, b):
        answer(slot)
    coordinator.run_until(WriteManifest)
    coordinator.stop("checkpoint", asked)
    coordinator.settle()
    assert [each.stops_with is not None for each in log_of(store)] == [False, True]
    assert kinds(store) == ["FENCE", "COMPLETE"]
    go_on(coordinator, a, b)
    check_it_ended_with(coordinator, asked, "checkpoint")
    assert read_savepoint(asked.url).taken.checkpoint == 2


def test_record_whose_append_precedes_the_stop_request_does_not_mention_the_stop() -> None:
    store, asked = MemoryStore(), wish()
    coordinator, a, b = started(store)
    coordinator.trigger()
    for slot in (a, b):
        answer(slot)
    coordinator.run_until(Append)
    coordinator.stop("drain", asked)
    coordinator.settle()
    assert [each.stops_with is not None for each in log_of(store)] == [False, False, True]
    go_on(coordinator, a, b)
    check_it_ended_with(coordinator, asked, "drain")


def test_the_end_of_a_generation_meanwhile_says_so_in_its_fence() -> None:
    store, asked = MemoryStore(), wish()
    coordinator, a, b = started(store)
    coordinator.stop("checkpoint", asked)
    a.fail()
    coordinator.settle()
    assert kinds(store) == ["FENCE", "STOP", "FENCE"]
    assert log_of(store)[-1].stops_with is not None
    go_on(coordinator, a, b)
    check_it_ended_with(coordinator, asked, "checkpoint")


def test_a_wish_before_the_job_runs_needs_no_record_of_its_own() -> None:
    store, asked = MemoryStore(), wish()
    coordinator = Coordinator(store).begin()
    coordinator.stop("checkpoint", asked)
    slots = [coordinator.slot(index).connect() for index in (0, 1)]
    go_on(coordinator, *slots)
    check_it_ended_with(coordinator, asked, "checkpoint")
    assert "STOP" not in kinds(store)


def test_a_savepoint_that_cannot_be_written_is_asked_for_by_no_successor() -> None:
    store = MemoryStore()
    before, a, b = started(store)
    before.stop("checkpoint", SavepointRequest(uuid.uuid4().hex, "/proc/none/here", stops=True))
    assert not go_on(before, a, b, until=lambda _: "so the job goes on" in before.protocol.reason and not before.todo)
    assert before.phase == "running"
    after = successor(before, a, b)
    go_on(after, a, b)
    after.trigger()
    assert not a.last(Trigger).stop
    assert log_of(store)[-1].stops_with is None


def test_a_drained_job_whose_savepoint_cannot_be_written_does_not_end_with_it() -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.stop("drain", SavepointRequest(uuid.uuid4().hex, "/proc/none/here", stops=True))
    go_on(coordinator, a, b)
    assert coordinator.ended.outcome == "finished"
    assert log_of(store)[-1].stops_with is None


@pytest.mark.parametrize("mode", MODES)
def test_another_run_of_the_job_is_not_stopped(mode: str) -> None:
    """A user has started the whole program again."""
    store, asked = MemoryStore(), wish()
    before, _, _ = died("the savepoint is to be copied", store, asked, mode)
    after = Coordinator(store, spec(run_id="run-2", allow_drained=True), now_ms=before.now_ms + 1).begin()
    slots = [after.slot(index, attempt=1).connect() for index in (0, 1)]
    go_on(after, *slots)
    assert after.phase == "running"
    assert log_of(store)[-1].stops_with is None


def test_stopping_at_once_wins_over_what_the_log_says() -> None:
    store, asked = MemoryStore(), wish()
    before, a, b = died("the wish is in the log", store, asked, "checkpoint")
    after = Coordinator(store, leader="leader-b", now_ms=before.now_ms + 1_000)
    after.begin()
    after.stop("now")
    go_on(after, a, b)
    assert after.ended.outcome == "cancelled"
    assert find_savepoint(asked.url) is None


def test_a_checkpoint_that_fails_while_the_job_stops_is_followed_by_another() -> None:
    store, asked = MemoryStore(), wish()
    coordinator, a, b = started(store, spec(checkpoints=CheckpointOptions(tolerable_failures=3)))
    coordinator.stop("checkpoint", asked)
    coordinator.settle()
    a.decline(a.last(Trigger).checkpoint)
    coordinator.settle()
    go_on(coordinator, a, b)
    check_it_ended_with(coordinator, asked, "checkpoint")


def test_who_looks_after_the_end_finds_the_savepoint_without_a_history() -> None:
    store, asked = MemoryStore(), wish()
    coordinator, _, _ = died("the end is written", store, asked, "checkpoint")
    view = read_log(store, coordinator.paths, run_id="run-1")
    status = past_status(view, None, "run-1")
    assert status is not None
    assert [(each.id, each.state, each.url) for each in status.savepoints] == [(asked.id, "done", asked.url)]


def test_only_records_that_need_a_newer_version_have_one() -> None:
    """FENCE and COMPLETE list kept checkpoints, FINISH names what is visible; others are old but for savepoints."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.stop("checkpoint")
    go_on(coordinator, a, b)
    assert all(b'"stop"' not in encode_record(each) for each in log_of(store))
    versions = {"Fence": 3, "Complete": 3, "Finish": 4}
    assert all(each.version == versions[type(each).__name__] for each in log_of(store))
    other = MemoryStore()
    died("the end is written", other, wish(), "checkpoint")
    assert [each.version for each in log_of(other)] == [3, 2, 3, 4]
