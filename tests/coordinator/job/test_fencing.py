"""Fencing: every new owner of a job fences the older owner, under any storage faults."""

import random

import pytest
from coordinator_world import Coordinator, keys_of, kinds, log_of, options, spec

from barrier_runtime.coordinator.job.effects import Append, Effect, ListForSweep, ReadLog, ReadManifest, WriteManifest
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, Trigger
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from tests.drawn import seeds

TROUBLE = (Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.LAND_LATE)


def opened(store, number, retained=1):
    job = spec(run_id=f"run-{number}", checkpoints=options(retained=retained))
    return Coordinator(store, job, leader=f"leader-{number}", now_ms=number * 1_000_000).begin()


def carried_out(coordinator, rng=None):
    """Executes all store effects, with retries while the store fails; `rng` injects failures."""
    store = coordinator.store
    for _ in range(5_000):
        if not coordinator.todo:
            return
        if rng is not None and rng.random() < 0.4:
            operation = rng.choice(["put_if_absent", "put", "get", "list", "delete"])
            store.inject(rng.choice(TROUBLE) if operation == "put_if_absent" else Fault.FAIL_BEFORE, operation)
        if rng is not None and rng.random() < 0.2:
            store.inject(Fault.CONFLICT, "put_if_absent")
        effect = coordinator.todo.popleft()
        try:
            event = coordinator.answer(effect)
        except Unavailable:
            coordinator.todo.appendleft(effect)
            continue
        coordinator.post(event)
        if rng is not None and rng.random() < 0.1:
            store.land_late()
    raise AssertionError("the coordinator never comes to rest")


def running(coordinator, number, rng=None):
    carried_out(coordinator, rng)
    slots = [coordinator.slot(index, f"{number}-{index}") for index in (0, 1)]
    for slot in slots:
        slot.connect()
    carried_out(coordinator, rng)
    for slot in slots:
        slot.restored()
    carried_out(coordinator, rng)
    assert coordinator.phase == "running", coordinator.protocol.reason
    return slots


def take_checkpoint(coordinator, slots, rng=None):
    coordinator.trigger()
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.ack(number)
    carried_out(coordinator, rng)
    return number


@pytest.mark.parametrize("seed", seeds(20))
def test_writer_with_an_old_handle_is_fenced_after_every_opening_and_store_fault(seed, store):
    """Z1, O2, O3: ten openings under storage faults; the old owner writes after each of them."""
    rng = random.Random(seed)
    old, old_slots, decided = None, [], []
    for number in range(1, 11):
        new = opened(store, number)
        slots = running(new, number, rng)
        if old is not None:
            take_checkpoint(old, old_slots, rng)
            assert old.ended is not None, "its write was not refused"
            assert old.ended.outcome == "fenced"
            assert f"generation {new.status.token}" in old.ended.reason
            assert [slot.last(CheckpointComplete).checkpoint for slot in old_slots] == [decided[-1]] * 2, (
                "it told of no decision"
            )
        decided.append(take_checkpoint(new, slots, rng))
        old, old_slots = new, slots
    store.heal()
    store.land_late()
    assert [record.checkpoint for record in log_of(store) if hasattr(record, "checkpoint")] == decided
    assert kinds(store).count("FENCE") == 10


# ---------------------------------------------------------------- paused between claiming and using


def pauses(store):
    """Returns all store effects of the owner from the claim to the first decision."""
    owner = owner_on(store)
    found: list[Effect] = []
    owner.run_until(Append)
    found.append(owner.todo[0])
    carried_out(owner)
    slots = [owner.slot(index, f"probe-{index}").connect() for index in (0, 1)]
    for slot in slots:
        slot.restored()
    found += owner.todo
    carried_out(owner)
    owner.trigger()
    for slot in slots:
        slot.ack(slot.highest)
    while owner.todo:
        found.append(owner.todo[0])
        owner.step()
    return found


def owner_on(store):
    """Returns a run that restores an earlier run's checkpoint, and has more objects to read."""
    return Coordinator(store, spec(run_id="owner", checkpoints=options(retained=2)), leader="leader-owner").begin()


def with_history():
    store = MemoryStore()
    first = opened(store, 1, retained=2)
    slots = running(first, 1)
    for _ in range(3):
        take_checkpoint(first, slots)
    return store


@pytest.mark.usefixtures("manifests_are_objects")
def test_the_pauses_of_the_next_test_cover_claim_reading_and_writing():
    kinds_of_pauses = [type(effect) for effect in pauses(with_history())]
    assert kinds_of_pauses[0] is Append
    assert {ListForSweep, WriteManifest, Append} <= set(kinds_of_pauses[1:])
    assert not {ReadLog, ReadManifest} & set(kinds_of_pauses), "these come before the claim"


@pytest.mark.usefixtures("manifests_are_objects")
@pytest.mark.parametrize("pause", range(4))
@pytest.mark.parametrize("answered", ["before", "after"])
def test_owner_paused_anywhere_after_its_claim_is_fenced_by_whoever_opens_next(pause, answered):
    """Z2: the request in flight at the pause reaches the store before or after the other's claim (`answered`)."""
    store = with_history()
    owner = owner_on(store)
    owner.run_until(Append)
    slots = []
    for number in range(pause + 1):
        if number == 1:
            carried_out_claim(owner)
            slots = [owner.slot(index, f"owner-{index}").connect() for index in (0, 1)]
            for slot in slots:
                slot.restored()
        elif number == 2:
            owner.step()
            owner.trigger()
            for slot in slots:
                slot.ack(slot.highest)
        elif number == 3:
            owner.run_until(Append)
    in_flight = owner.todo.popleft()
    claims = isinstance(in_flight, Append) and pause == 0
    event = owner.answer(in_flight) if answered == "before" or claims else None
    other = opened(store, 7)
    others = running(other, 7)
    newest = take_checkpoint(other, others)
    before = keys_of(store)
    owner.post(event if event is not None else owner.answer(in_flight))
    carried_out(owner)
    if not slots:
        slots = [owner.slot(index, f"owner-{index}").connect() for index in (0, 1)]
        carried_out(owner)
        for slot in slots:
            slot.restored()
    if owner.ended is None:
        owner.trigger()
        for slot in slots:
            slot.ack(slot.highest)
    carried_out(owner)
    assert owner.ended is not None
    assert owner.ended.outcome == "fenced"
    assert owner.deleted == []
    own_decision = pause == 3 and answered == "before"
    assert own_decision or not any(slot.got(CheckpointComplete) for slot in slots)
    assert set(before) <= set(keys_of(store))
    assert other.ended is None
    assert take_checkpoint(other, others) == newest + 1
    assert log_of(store)[-1].token == other.status.token


def carried_out_claim(owner):
    owner.step()
    assert owner.protocol._job.leads
