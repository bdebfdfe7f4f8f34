"""The end of a job with stored rows (`stable`): the coordinator requests the checkpoints that the rows need."""

import msgspec
import pytest
from coordinator_world import CHAINS, SINK, SOURCE, Coordinator, FakeSlot, kinds, new_generation, options, spec, started

from barrier_runtime.coordinator.wire.messages import (
    STABLE_KIND,
    JobSpec,
    Registered,
    SubtaskEnded,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.store.memory import MemoryStore


@pytest.fixture
def job() -> JobSpec:
    """A job that takes no periodic checkpoint, and tolerates failed checkpoints."""
    source, sink = CHAINS
    chains = (source, msgspec.structs.replace(sink, kinds={"count": STABLE_KIND}))
    return spec(chains=chains, checkpoints=options(interval_ms=3_600_000, tolerable_failures=3))


def end(chain: int, *slots: FakeSlot) -> None:
    for slot in slots:
        slot.say(SubtaskEnded(slot.token, SubtaskId(chain, slot.index)))


def decide(coordinator: Coordinator, *slots: FakeSlot) -> int:
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.ack(number)
    coordinator.settle()
    return number


def test_a_checkpoint_follows_the_end_of_the_last_source(job: JobSpec) -> None:
    coordinator, a, b = started(MemoryStore(), job)
    end(SOURCE, a)
    assert not a.got(Trigger), "the other source may have rows for the same step"
    end(SOURCE, b)
    decide(coordinator, a, b)
    assert len(a.got(Trigger)) == 1, "nothing has ended since"
    end(SINK, a)
    decide(coordinator, a, b)
    assert len(a.got(Trigger)) == 2, "the subtask may have sent rows to another such step before its end"
    end(SINK, b)
    final = decide(coordinator, a, b)
    for slot in (a, b):
        slot.commit(final)
    coordinator.settle()
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE", "COMPLETE", "COMPLETE", "FINISH"]


def test_a_failed_checkpoint_is_requested_again(job: JobSpec) -> None:
    coordinator, a, b = started(MemoryStore(), job)
    end(SOURCE, a, b)
    first = a.last(Trigger).checkpoint
    b.decline(first)
    coordinator.settle()
    assert a.last(Trigger).checkpoint > first, "otherwise the rows wait for the interval"
    decide(coordinator, a, b)
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE"]


@pytest.mark.slow
@pytest.mark.parametrize("chains", [(SOURCE,), (SOURCE, SINK)], ids=["rows wait", "all ended"])
def test_checkpoints_that_fail_again_and_again_are_requested_after_pauses(
    job: JobSpec, chains: tuple[int, ...]
) -> None:
    job = msgspec.structs.replace(job, checkpoints=options(interval_ms=3_600_000, tolerable_failures=1_000))
    coordinator, a, b = started(MemoryStore(), job)
    for chain in chains:
        end(chain, a, b)
    began_ms = coordinator.now_ms
    for _ in range(20):
        known = a.last(Trigger).checkpoint
        b.decline(known)
        for _ in range(100):  # steps of 100 ms
            if a.last(Trigger).checkpoint > known:
                break
            coordinator.later(100)
            a.beat()
            b.beat()
    assert coordinator.now_ms - began_ms > 100_000, "the coordinator's clock, which the test sets"
    decide(coordinator, a, b)
    assert kinds(coordinator.store) == ["FENCE", "COMPLETE"]


def test_a_new_generation_requests_its_own(job: JobSpec) -> None:
    coordinator, a, b = started(MemoryStore(), job)
    end(SOURCE, a, b)
    first = decide(coordinator, a, b)
    new_generation(coordinator, a, b)
    assert a.last(Trigger).checkpoint == first
    end(SOURCE, a, b)
    assert a.last(Trigger).checkpoint > first


def test_a_decision_that_no_slot_heard_of_is_announced_by_the_next_coordinator(job: JobSpec) -> None:
    """The first coordinator dies after the append: the decided rows must not wait for another decision."""
    store = MemoryStore()
    coordinator, a, b = started(store, job)
    end(SOURCE, a, b)
    number = decide(coordinator, a, b)
    successor = Coordinator(store, job, leader="leader-b", now_ms=coordinator.now_ms + 1_000)
    successor.begin().settle()
    for slot in (a, b):
        slot.coordinator = successor
        slot.inbox.clear()  # with the notice of the decision
        slot.connect()
    successor.settle()
    assert a.last(Registered).last_completed == b.last(Registered).last_completed == number
