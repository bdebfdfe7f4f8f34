"""Savepoints of a running job, as interleavings of the request, checkpoints, commits, lost slots and the copy."""

import uuid

import pytest
from coordinator_world import FILE, Coordinator, checkpoint, keys_of, kinds, new_generation, spec, started

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.effects import CopySavepoint
from barrier_runtime.coordinator.log.savepoint import encode_savepoint
from barrier_runtime.coordinator.savepoint_files import missing_objects, read_savepoint
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, RestartOptions, Shutdown, Trigger
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.open import open_store


def wish(stops: bool = False, url: str = "") -> SavepointRequest:
    return SavepointRequest(uuid.uuid4().hex, url or f"memory://savepoint-{uuid.uuid4().hex}", stops)


def state(coordinator: Coordinator, request: SavepointRequest) -> str:
    return next(each.state for each in coordinator.status.savepoints if each.id == request.id)


def acked(coordinator: Coordinator, *slots, files: str = "f") -> int:
    """Acknowledges the pending checkpoint in all slots, with files that exist in the store; returns the id."""
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        for name in files.split():
            if slot.data_key(name) not in keys_of(coordinator.store):
                slot.upload(name)
        slot.ack(number, files=files)
    return number


def committed(number: int, *slots) -> None:
    for slot in slots:
        slot.commit(number)


def test_a_savepoint_is_a_visible_checkpoint_in_a_folder_of_its_own():
    coordinator, a, b = started(MemoryStore())
    asked = wish()
    coordinator.savepoint(asked)
    number = acked(coordinator, a, b, files="f g")
    assert state(coordinator, asked) == "waiting"
    coordinator.settle()
    assert state(coordinator, asked) == "covered"
    a.commit(number)
    coordinator.settle()
    assert state(coordinator, asked) == "covered", "one sink is not through"
    b.commit(number)
    coordinator.settle()
    (told,) = coordinator.status.savepoints
    assert (told.state, told.checkpoint) == ("done", number)
    savepoint = read_savepoint(asked.url)
    assert told.bytes == 4 * len(FILE) + len(encode_savepoint(savepoint))
    assert (savepoint.id, savepoint.taken.checkpoint, savepoint.final) == (asked.id, number, False)
    assert missing_objects(asked.url, savepoint) == ()
    assert coordinator.phase == "running"
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE"]


def test_a_commit_that_is_told_with_a_new_connection_counts_for_it():
    """The commit's message was lost with the old connection; a drained job, for example, has no later commit."""
    coordinator, a, b = started(MemoryStore())
    asked = wish()
    coordinator.savepoint(asked)
    number = acked(coordinator, a, b)
    coordinator.settle()
    a.commit(number)
    b.cut()
    b.committed["out/1"] = number
    b.connect()
    coordinator.settle()
    assert state(coordinator, asked) == "done"
    assert (coordinator.phase, kinds(coordinator.store)) == ("running", ["FENCE", "COMPLETE"])


def test_nothing_of_it_is_shared_with_the_job():
    """The savepoint is complete after the job's folder was emptied, and contains no location."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    asked = wish()
    coordinator.savepoint(asked)
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    store.delete(list(keys_of(store)))
    savepoint = read_savepoint(asked.url)
    assert missing_objects(asked.url, savepoint) == ()
    assert b"flights/data" not in open_store(asked.url).get("savepoint.json")


def test_it_counts_only_checkpoints_that_were_triggered_after_it_was_asked_for():
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=CheckpointOptions(interval_ms=1_000, max_concurrent=2)))
    coordinator.trigger()
    before = a.last(Trigger).checkpoint
    asked = wish()
    coordinator.savepoint(asked)
    after = a.last(Trigger).checkpoint
    assert after == before + 1
    for slot in (a, b):
        slot.upload("f")
        slot.ack(before, files="f")
    coordinator.settle()
    committed(before, a, b)
    coordinator.settle()
    assert state(coordinator, asked) == "waiting"
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    assert read_savepoint(asked.url).taken.checkpoint == after


def test_sinks_that_are_always_a_checkpoint_behind_hold_it_up_no_longer_than_that():
    """The savepoint's files stay, although newer checkpoints are complete."""
    coordinator, a, b = started(MemoryStore())
    asked = wish()
    coordinator.savepoint(asked)
    first = acked(coordinator, a, b, files="f g")
    coordinator.settle()
    coordinator.trigger()
    assert acked(coordinator, a, b, files="h") == first + 1
    coordinator.settle()
    assert state(coordinator, asked) == "covered"
    committed(first, a, b)
    coordinator.settle()
    assert state(coordinator, asked) == "done"
    savepoint = read_savepoint(asked.url)
    assert savepoint.taken.checkpoint == first
    assert missing_objects(asked.url, savepoint) == ()


def test_its_checkpoint_is_aligned():
    options = CheckpointOptions(interval_ms=1_000, unaligned=True, aligned_timeout_ms=10)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options))
    asked = wish()
    coordinator.savepoint(asked)
    assert a.last(Trigger).aligned_timeout_ms is None
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    coordinator.trigger()
    assert a.last(Trigger).aligned_timeout_ms == 10


def test_the_same_wish_again_changes_nothing_and_another_under_its_id_is_refused():
    coordinator, a, b = started(MemoryStore())
    asked = wish()
    coordinator.savepoint(asked)
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    triggered = coordinator.status.checkpoints.triggered
    coordinator.savepoint(asked)
    coordinator.settle()
    assert coordinator.status.checkpoints.triggered == triggered
    assert len(coordinator.status.savepoints) == 1
    assert "use a new id" in coordinator.protocol.refuses(SavepointRequest(asked.id, "memory://elsewhere"))
    assert coordinator.protocol.refuses(asked) == ""


def test_what_waits_for_slow_commits_is_not_deleted_though_one_checkpoint_is_kept():
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=CheckpointOptions(interval_ms=1_000, retained=1)))
    asked = wish()
    coordinator.savepoint(asked)
    number = acked(coordinator, a, b, files="old")
    coordinator.settle()
    later = [checkpoint(coordinator, a, b, files="new") for _ in range(4)]
    assert state(coordinator, asked) == "covered"
    assert a.data_key("old") in keys_of(coordinator.store)
    for each in (number, *later):
        committed(each, a, b)
    coordinator.settle()
    assert state(coordinator, asked) == "done", coordinator.status.savepoints
    savepoint = read_savepoint(asked.url)
    assert (savepoint.taken.checkpoint, missing_objects(asked.url, savepoint)) == (number, ())
    committed(checkpoint(coordinator, a, b, files="new"), a, b)
    coordinator.settle()
    assert a.data_key("old") not in keys_of(coordinator.store), "nothing holds it any more"


def test_what_is_being_copied_is_not_deleted():
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=CheckpointOptions(interval_ms=1_000, retained=1)))
    asked = wish()
    coordinator.savepoint(asked)
    number = acked(coordinator, a, b, files="old")
    committed(number, a, b)
    coordinator.run_until(CopySavepoint)
    copying = coordinator.todo.popleft()
    for _ in range(4):
        committed(checkpoint(coordinator, a, b, files="new"), a, b)
        coordinator.settle()
    assert a.data_key("old") in keys_of(coordinator.store)
    coordinator.post(coordinator.answer(copying))
    coordinator.settle()
    assert state(coordinator, asked) == "done"
    assert missing_objects(asked.url, read_savepoint(asked.url)) == ()
    committed(checkpoint(coordinator, a, b, files="new"), a, b)
    coordinator.settle()
    assert a.data_key("old") not in keys_of(coordinator.store), "it is let go when it is copied"


def test_what_is_being_copied_is_not_deleted_by_a_later_generation():
    """A copy of large state may outlive a slot, and the first decision of the next generation sweeps."""
    options = CheckpointOptions(interval_ms=1_000, retained=1)
    restart = RestartOptions(strategy="fixed_delay", initial_ms=0)
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options, restart=restart))
    asked = wish()
    coordinator.savepoint(asked)
    committed(acked(coordinator, a, b, files="old"), a, b)
    coordinator.run_until(CopySavepoint)
    copying = coordinator.todo.popleft()
    for _ in range(2):
        committed(checkpoint(coordinator, a, b, files="new"), a, b)
    old = a.data_key("old")
    for _ in range(2):
        new_generation(coordinator, a, b)
        for _ in range(3):
            committed(checkpoint(coordinator, a, b, files="newer"), a, b)
            coordinator.settle()
    assert old in keys_of(coordinator.store)
    coordinator.post(coordinator.answer(copying))
    coordinator.settle()
    assert state(coordinator, asked) == "done"
    assert missing_objects(asked.url, read_savepoint(asked.url)) == ()
    assert old not in keys_of(coordinator.store), "it is let go when it is copied"


@pytest.mark.parametrize("when", ["waiting", "covered"])
def test_a_slot_is_lost_before_the_copy_begins(when):
    coordinator, a, b = started(MemoryStore())
    asked = wish()
    coordinator.savepoint(asked)
    if when == "covered":
        acked(coordinator, a, b)
        coordinator.settle()
    assert state(coordinator, asked) == when
    new_generation(coordinator, a, b)
    number = acked(coordinator, a, b, files="again")
    coordinator.settle()
    committed(number, a, b)
    coordinator.settle()
    assert read_savepoint(asked.url).taken.checkpoint == number


def test_a_checkpoint_that_fails_is_followed_by_another():
    coordinator, a, b = started(
        MemoryStore(), spec(checkpoints=CheckpointOptions(interval_ms=3_600_000, tolerable_failures=3))
    )
    asked = wish()
    coordinator.savepoint(asked)
    first = a.last(Trigger).checkpoint
    a.decline(first)
    coordinator.settle()
    assert a.last(Trigger).checkpoint > first
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    assert state(coordinator, asked) == "done"


def test_a_copy_that_fails_is_told_and_the_job_goes_on():
    coordinator, a, b = started(MemoryStore())
    taken, asked = wish(), wish()
    coordinator.savepoint(taken)
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    refused = SavepointRequest(asked.id, taken.url)
    coordinator.savepoint(refused)
    committed(acked(coordinator, a, b, files="g"), a, b)
    coordinator.settle()
    told = coordinator.status.savepoints[-1]
    assert told.state == "failed"
    assert "another savepoint already" in told.error
    assert read_savepoint(taken.url).id == taken.id
    assert coordinator.phase == "running"


def test_a_job_stops_with_a_savepoint_of_its_last_checkpoint():
    coordinator, a, b = started(MemoryStore())
    asked = wish(stops=True)
    coordinator.stop("checkpoint", asked)
    coordinator.settle()  # the log says so
    number = acked(coordinator, a, b)
    assert a.last(Trigger).stop
    coordinator.settle()
    committed(number, a, b)
    assert coordinator.ended is None, "it is not copied yet"
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    savepoint = read_savepoint(asked.url)
    assert (savepoint.taken.checkpoint, savepoint.final) == (number, True)


def test_a_savepoint_asked_for_behind_the_last_checkpoint_is_of_that_too():
    """A later checkpoint would show rows that are not in the savepoint that the job stops with."""
    coordinator, a, b = started(MemoryStore())
    last, other = wish(stops=True), wish()
    coordinator.stop("checkpoint", last)
    coordinator.settle()
    number = acked(coordinator, a, b)
    coordinator.settle()
    coordinator.savepoint(other)
    coordinator.settle()
    assert a.last(Trigger).checkpoint == number
    committed(number, a, b)
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    assert [read_savepoint(each.url).taken.checkpoint for each in (last, other)] == [number, number]


@pytest.mark.parametrize("copied", [False, True], ids=["copying", "copied"])
def test_a_slot_is_lost_while_the_job_stops_with_a_savepoint(copied):
    """The next generation reads further rows before the stop, so the savepoint is taken again at the stop."""
    coordinator, a, b = started(MemoryStore())
    asked = wish(stops=True)
    coordinator.stop("checkpoint", asked)
    coordinator.settle()  # the log says so
    first = acked(coordinator, a, b)
    coordinator.settle()
    committed(first, a, b)
    coordinator.run_until(CopySavepoint)
    copying = coordinator.todo.popleft()
    a.fail()
    coordinator.settle()
    if copied:
        coordinator.post(coordinator.answer(copying))
    coordinator.run_with(a, b)
    assert coordinator.ended is None
    if not copied:
        coordinator.post(coordinator.answer(copying))
        assert state(coordinator, asked) == "waiting", "the answer is of an earlier checkpoint"
    number = acked(coordinator, a, b, files="again")
    coordinator.settle()
    committed(number, a, b)
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    assert read_savepoint(asked.url).taken.checkpoint == number > first


def test_a_job_that_cannot_have_its_last_savepoint_goes_on():
    coordinator, a, b = started(MemoryStore(), spec(restart=RestartOptions(strategy="none")))
    taken = wish()
    coordinator.savepoint(taken)
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    asked = wish(stops=True, url=taken.url)
    coordinator.stop("checkpoint", asked)
    coordinator.settle()  # the log says so
    number = acked(coordinator, a, b, files="g")
    coordinator.settle()
    committed(number, a, b)
    coordinator.settle()
    assert coordinator.ended is None
    assert "so the job goes on" in coordinator.protocol.reason
    coordinator.run_with(a, b)
    assert coordinator.phase == "running"
    coordinator.trigger()
    assert not a.last(Trigger).stop
    assert read_savepoint(taken.url).id == taken.id


def test_a_job_whose_input_ends_waits_for_its_savepoints():
    coordinator, a, b = started(MemoryStore())
    asked = wish()
    for slot in (a, b):
        slot.end()
    coordinator.settle()
    final = a.last(Trigger).checkpoint
    coordinator.savepoint(asked)
    for slot in (a, b):
        slot.ack(final, ended=True)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(final)
    assert coordinator.ended is None
    later = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(later, ended=True)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(later)
    coordinator.settle()
    assert coordinator.ended.outcome == "finished"
    assert read_savepoint(asked.url).taken.checkpoint == later


def test_a_job_that_is_stopped_at_once_tells_that_there_is_no_savepoint():
    coordinator, *slots = started(MemoryStore())
    asked = wish()
    coordinator.savepoint(asked)
    coordinator.stop("now")
    coordinator.settle()
    assert slots[0].last(Shutdown)
    (told,) = coordinator.status.savepoints
    assert (told.state, "ended before" in told.error) == ("failed", True)
    assert "has ended" in coordinator.protocol.refuses(wish())
    with pytest.raises(InvalidJob, match="there is no savepoint"):
        read_savepoint(asked.url)


def test_a_wish_that_comes_before_the_job_runs_is_kept():
    coordinator = Coordinator(MemoryStore()).begin()
    asked = wish()
    coordinator.savepoint(asked)
    a, b = coordinator.slot(0), coordinator.slot(1)
    coordinator.run_with(a, b)
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    assert state(coordinator, asked) == "done"


@pytest.mark.parametrize("early", [True, False], ids=["before the history is read", "later"])
def test_a_completed_savepoint_is_not_replaced_when_the_request_comes_again(early):
    """The coordinator died before the client heard that the savepoint is done; others may be reading the files."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    asked = wish()
    coordinator.savepoint(asked)
    committed(acked(coordinator, a, b), a, b)
    coordinator.settle()
    assert state(coordinator, asked) == "done"
    store.put(coordinator.paths.history, encode_history(coordinator.protocol.history()))
    after = Coordinator(store, leader="leader-b", now_ms=2_000_000).begin()
    if early:
        after.savepoint(asked)
    after.settle()
    for slot in (a, b):
        slot.coordinator = after
        slot.connect()
    after.settle()
    if not early:
        after.savepoint(asked)
    assert (after.phase, state(after, asked)) == ("running", "done")
    assert after.protocol.facts.savepoints.open == ()
