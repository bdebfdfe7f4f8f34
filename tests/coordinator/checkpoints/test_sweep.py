"""Deletes of a real coordinator in a real store: crashes between any two deletes, zombies, concurrent uploads."""

import asyncio
from collections import deque

import pytest
from coordinator_world import Coordinator, checkpoint, keys_of, log_of, new_generation, options, spec, started
from test_job_runner import JOB, LocalSlot, lead

from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.job.effects import CopySavepoint, Delete, DeleteAll, ListForSweep
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import Deploy, Trigger
from barrier_runtime.state.store.memory import Fault, MemoryStore
from tests.waiting import eventually


@pytest.mark.usefixtures("manifests_are_objects")
def test_as_many_checkpoints_as_asked_for_outlive_a_new_generation(store):
    """I7, R4: checkpoints completed before a failure, with all their files, are still kept after the failure."""
    coordinator, a, b = started(store, spec(checkpoints=options(retained=3)))
    for number in (1, 2, 3):
        checkpoint(coordinator, a, b, files=f"f{number}")
    old = {coordinator.paths.manifest(number, 1) for number in (2, 3)}
    old |= {slot.data_key(f"f{number}") for slot in (a, b) for number in (2, 3)}
    new_generation(coordinator, a, b)
    checkpoint(coordinator, a, b, files="f4")
    assert old <= set(keys_of(store)), "2, 3 and 4 are kept"
    checkpoint(coordinator, a, b, files="f5")
    assert coordinator.paths.manifest(1, 1) not in keys_of(store)


@pytest.mark.usefixtures("manifests_are_objects")
def test_they_outlive_a_generation_that_ended_before_what_is_kept_was_known(store):
    """I7, R4: the list of old manifests arrives after the end of the generation that requested the list."""
    first, a, b = started(store, spec(checkpoints=options(retained=3)))
    for number in (1, 2, 3):
        checkpoint(first, a, b, files=f"f{number}")
    second = Coordinator(store, spec(run_id="run-2", checkpoints=options(retained=3)), leader="leader-b").begin()
    c, d = second.slot(0, "c"), second.slot(1, "d")
    second.run_with(c, d)
    expected = {3: 1, 4: c.token, 5: c.token}  # checkpoint -> generation that decided it
    for number in (4, 5):
        second.todo = deque(effect for effect in second.todo if not isinstance(effect, ListForSweep))  # it hangs
        second.trigger()
        for slot in (c, d):
            slot.upload(f"f{number}")
            slot.ack(number, files=f"f{number}")
        while any(not isinstance(effect, ListForSweep) for effect in second.todo):
            second.step()
    second.todo.clear()
    new_generation(second, c, d)
    assert c.last(Deploy).checkpoint == 5
    for number in (6, 7):
        checkpoint(second, c, d, files=f"f{number}")
        expected[number] = c.token
        kept = {second.paths.manifest(each, expected[each]) for each in range(number - 2, number + 1)}
        assert kept <= set(keys_of(store)), f"{number - 2} to {number} are kept"


# ---------------------------------------------------------------- crashes


def littered(store):
    """Returns a running second generation whose first sweep is about to delete the first generation's orphans."""
    coordinator, a, b = started(store)
    checkpoint(coordinator, a, b, files="f1")
    coordinator.trigger()
    for slot in (a, b):
        for name in ("f2", "f3"):
            slot.upload(name)  # for a checkpoint that is never decided
    orphan = coordinator.paths.manifest(2, 1)
    store.put(orphan, b"never decided")
    new_generation(coordinator, a, b)
    coordinator.trigger()
    for slot in (a, b):
        slot.upload("g1")
        slot.ack(3, files="g1")
    return coordinator, a, b, coordinator.run_until(Delete)


def test_the_sweep_lists_undecided_manifests_before_files():
    """S9."""
    coordinator, *_, delete = littered(MemoryStore())
    assert delete.keys[0] == coordinator.paths.manifest(2, 1)
    assert len(delete.keys) == 5


@pytest.mark.parametrize("done", range(6))
@pytest.mark.usefixtures("manifests_are_objects")
def test_a_sweep_that_dies_between_any_two_deletes_is_finished_by_the_successor(done, store):
    """S9: crash table, "sweep half done". The newest checkpoint is always complete; in the end no orphan is left."""
    coordinator, a, b, delete = littered(store)
    store.delete(delete.keys[:done])
    needed = {slot.data_key("g1") for slot in (a, b)} | {coordinator.paths.manifest(3, a.token)}
    assert needed <= set(keys_of(store))

    successor = Coordinator(store, spec(run_id="run-2"), leader="leader-b", now_ms=9_000_000).begin()
    c, d = successor.slot(0, "c"), successor.slot(1, "d")
    successor.run_with(c, d)
    assert c.last(Deploy).checkpoint == 3
    checkpoint(successor, c, d, files="h1")
    assert needed <= set(keys_of(store)), "3 was dropped only just now"
    checkpoint(successor, c, d, files="h2")
    left = [key for key in keys_of(store) if "/log/" not in key and not key.endswith("/history.json")]
    expected = [successor.paths.manifest(4, c.token), successor.paths.manifest(5, c.token)]
    expected += [slot.data_key(name) for slot in (c, d) for name in ("h1", "h2")]
    assert sorted(left) == sorted(expected)


@pytest.mark.parametrize("done", range(1, 6))
def test_a_delete_that_was_answered_too_late_is_repeated_and_does_no_harm(done, store):
    """S9: a delete is executed and the answer lost, five times in a row at any place; then the next sweep runs."""
    coordinator, _a, _b, delete = littered(store)
    store.inject(Fault.APPLY_THEN_FAIL, "delete", delete.keys[done - 1], times=5)
    coordinator.settle()
    assert sum(coordinator.status.checkpoints.ignored.values()) == 1, "the failed delete is shown"
    successor = Coordinator(store, spec(run_id="run-2"), leader="leader-b", now_ms=9_000_000).begin()
    c, d = successor.slot(0, "c"), successor.slot(1, "d")
    successor.run_with(c, d)
    checkpoint(successor, c, d, files="h1")
    assert not set(delete.keys) & set(keys_of(store))


def test_files_that_are_uploaded_while_the_sweep_lists_and_deletes_stay(store):
    """S9."""
    coordinator, a, b, delete = littered(store)
    coordinator.todo.clear()
    coordinator.trigger()
    number = a.highest
    a.upload("before")
    listing = ListForSweep(())
    listed = coordinator.answer(listing)
    a.upload("between")
    coordinator.post(listed)
    b.upload("before")
    coordinator.settle()
    b.upload("between")
    assert set(delete.keys) <= set(coordinator.deleted), "there was something to sweep"
    for slot in (a, b):
        slot.ack(number, files="before between")
    coordinator.settle()
    assert {slot.data_key(name) for slot in (a, b) for name in ("before", "between")} <= set(keys_of(store))


# ---------------------------------------------------------------- zombies


@pytest.mark.usefixtures("manifests_are_objects")
def test_coordinator_replaced_while_stalled_before_its_delete_deletes_nothing(store):
    """I7, Z8: the successor may keep more checkpoints."""
    zombie, a, b = started(store)
    for number in (1, 2, 3):
        for slot in (a, b):
            slot.upload(f"f{number}")
    zombie.checkpoint(a, b, files="f1")
    zombie.checkpoint(a, b, files="f2")
    zombie.trigger()
    for slot in (a, b):
        slot.ack(3, files="f3")
    delete = zombie.run_until(Delete)
    assert zombie.paths.manifest(1, 1) in delete.keys
    keeps = spec(run_id="run-2", checkpoints=options(retained=3))
    Coordinator(store, keeps, leader="leader-b").begin().settle()
    before = keys_of(store)
    zombie.settle()
    assert keys_of(store) == before
    assert zombie.deleted == []


def test_coordinator_replaced_by_a_LEAD_of_its_own_generation_deletes_nothing(store):
    """I7, F6."""
    zombie, a, b, _delete = littered(store)
    successor = Coordinator(store, leader="leader-b").begin().settle()
    for slot in (a, b):
        slot.coordinator = successor
        slot.connect()
    successor.settle()
    assert successor.phase == "running"
    before = keys_of(store)
    zombie.settle()
    assert keys_of(store) == before


def test_its_own_later_decision_does_not_keep_a_coordinator_from_deleting(store):
    coordinator, a, b, delete = littered(store)
    coordinator.todo.remove(delete)
    checkpoint(coordinator, a, b, files="g2")
    coordinator.todo.append(delete)
    coordinator.settle()
    assert not set(delete.keys) & set(keys_of(store))


def test_a_zombie_that_was_to_drop_all_checkpoints_leaves_the_next_runs_alone(store):
    """I7, F9: on_cancel=delete, a stall between FINISH and the deletes, and a new run in between."""
    zombie, a, b = started(store, spec(checkpoints=options(on_cancel="delete")))
    checkpoint(zombie, a, b, files="f1")
    zombie.stop("now")
    everything = zombie.run_until(DeleteAll)
    second = Coordinator(store, spec(run_id="run-2"), leader="leader-b").begin()
    c, d = second.slot(0, "c"), second.slot(1, "d")
    second.run_with(c, d)
    checkpoint(second, c, d, files="h1")
    before = keys_of(store)
    zombie.todo.clear()
    zombie.post(zombie.answer(everything))
    assert keys_of(store) == before
    assert zombie.ended.outcome == "cancelled"
    assert "run-2" in zombie.status.error or "generation 4" in zombie.status.error


def test_what_a_user_drops_is_all_of_the_job_and_nothing_that_is_not_its_own(store):
    """S10."""
    coordinator, a, b = started(store, spec(checkpoints=options(on_cancel="delete")))
    checkpoint(coordinator, a, b, files="f1")
    strange = ["flights/data/notes.txt", "flights/checkpoints/1-1/notes.txt", "flights/savepoints/mine/manifest.json"]
    for key in strange:
        store.put(key, b"mine")
    coordinator.stop("now")
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    assert sorted(key for key in keys_of(store) if "/log/" not in key) == sorted(strange)


@pytest.mark.usefixtures("manifests_are_objects")
def test_the_runner_looks_at_the_log_again_before_it_repeats_a_delete(store):
    """I7: a delete fails, and another run takes over the job before the retry."""
    store.inject(Fault.FAIL_BEFORE, "delete", "/checkpoints/")
    others = []

    def meanwhile(seconds):
        if not others:
            others.append(Coordinator(store, spec(run_id="run-2", parallelism=1), leader="leader-b").begin().settle())

    async def whole():
        runner = JobRunner(JOB, store, leader="leader-a", host="h", sleep=meanwhile)
        running = asyncio.create_task(runner.run())
        LocalSlot(runner, checkpoints=1_000_000)
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(whole()).outcome == "fenced"
    decided = {record.manifest for record in log_of(store) if hasattr(record, "manifest")}
    assert len(decided) >= 3, "the first one was to be deleted"
    assert decided <= set(keys_of(store))


@pytest.mark.usefixtures("manifests_are_objects")
def test_the_runner_deletes_what_nobody_needs(store):
    """S1."""

    def decided():
        return [record.manifest for record in log_of(store) if hasattr(record, "manifest")]

    async def check(runner, slot):
        await eventually(
            lambda: len(decided()) > 3 and not set(decided()[:2]) & set(keys_of(store)), "1 and 2 to be deleted"
        )
        runner.stop("now")

    outcome, *_ = lead(store, check, checkpoints=1_000_000)
    assert outcome.outcome == "cancelled"
    assert set(decided()[-2:]) <= set(keys_of(store))


# ---------------------------------------------------------------- savepoints


def all_but(coordinator, *hanging):
    """Executes effects, and returns those of the kinds `hanging`, which stay without an answer."""
    found = []
    while coordinator.todo:
        effect = coordinator.todo.popleft()
        if isinstance(effect, hanging):
            found.append(effect)
        else:
            coordinator.post(coordinator.answer(effect))
    return found


def test_a_savepoint_under_way_keeps_its_files_although_a_list_of_objects_hangs(store, tmp_path):
    """A restarted coordinator learns the kept checkpoints from the list; a generation begins before the answer."""
    job = spec(checkpoints=options(retained=1))
    before, a, b = started(store, job)
    checkpoint(before, a, b, files="f1")
    coordinator = Coordinator(store, job, leader="leader-b", now_ms=5_000_000).begin().settle()
    for slot in (a, b):
        slot.coordinator = coordinator
        slot.connect()
    assert all_but(coordinator, ListForSweep)
    coordinator.savepoint(SavepointRequest("sp", (tmp_path / "sp").as_uri()))
    covering = decided(coordinator, a, b, "f2")
    for slot in (a, b):
        slot.commit(covering)
    (copy,) = all_but(coordinator, CopySavepoint)
    files = {slot.data_key("f2") for slot in (a, b)}
    coordinator.trigger()
    decided(coordinator, a, b, "f3")
    new_generation(coordinator, a, b)
    for name in ("f4", "f5"):
        checkpoint(coordinator, a, b, files=name)
    assert files <= set(keys_of(store))
    coordinator.post(coordinator.answer(copy))
    assert coordinator.status.savepoints[-1].state == "done"
    checkpoint(coordinator, a, b, files="f6")
    assert not files & set(keys_of(store))


def decided(coordinator, a, b, name):
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.upload(name)
        slot.ack(number, files=name)
    all_but(coordinator, ListForSweep)
    return number
