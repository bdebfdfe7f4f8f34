"""Interleavings that once ended in a hang or a wrong end, on the real classes: stalls, lost messages, races."""

import asyncio
import threading

from coordinator_world import options, spec, started

from barrier_runtime.coordinator.job.events import Tick
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import Heard, Heartbeat, Trigger
from barrier_runtime.state.store.memory import MemoryStore


class HeldStore(MemoryStore):
    """Store whose reads wait until the test releases them."""

    def __post_init__(self):
        super().__post_init__()
        self.reading = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def hold(self):
        self.reading.clear()
        self.go_on.clear()

    def get(self, key, offset=0, size=None):
        self.reading.set()
        assert self.go_on.wait(60)
        return super().get(key, offset, size)


class StrangeStore(MemoryStore):
    """Store that raises exceptions outside of the contract."""

    def get(self, key, offset=0, size=None):
        raise KeyError("a bug in a store")


def test_a_coordinator_that_stood_still_goes_on_triggering_checkpoints():
    """C10"""
    coordinator, first, _second = started(MemoryStore())
    coordinator.now_ms += 60_000  # stopped and continued, between two checkpoints
    for _ in range(3):
        coordinator.post(Tick())
        coordinator.now_ms += 1
    assert first.got(Trigger)
    assert coordinator.phase == "running"


def test_the_last_commit_counts_also_when_only_the_reconnection_tells_of_it():
    """rK8: the final commit's message is lost with the connection, and the slot sends no other message."""
    coordinator, first, second = started(MemoryStore())
    first.end()
    second.end()
    coordinator.later(0)
    final = first.last(Trigger).checkpoint
    for slot in (first, second):
        slot.ack(final, ended=True)
    coordinator.settle()
    first.commit(final)
    second.cut()
    second.committed[f"out/{second.index}"] = final
    second.connect()
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "finished"


def test_a_stop_whose_checkpoint_failed_takes_another_one():
    coordinator, first, second = started(MemoryStore(), spec(checkpoints=options(tolerable_failures=3)))
    coordinator.stop("checkpoint")
    coordinator.later(0)
    refused = first.last(Trigger).checkpoint
    first.decline(refused)
    coordinator.later(5_000)
    again = first.last(Trigger).checkpoint
    assert again > refused
    for slot in (first, second):
        slot.ack(again)
    coordinator.settle()
    for slot in (first, second):
        slot.commit(again)
    coordinator.settle()
    assert coordinator.ended is not None
    assert coordinator.ended.outcome == "cancelled"


def test_a_stop_asked_for_again_and_again_waits_for_one_checkpoint():
    coordinator, first, second = started(MemoryStore())
    coordinator.stop("checkpoint")
    number = first.last(Trigger).checkpoint
    coordinator.stop("checkpoint")
    for slot in (first, second):
        slot.ack(number)
    coordinator.settle()
    coordinator.stop("checkpoint")
    for slot in (first, second):
        slot.commit(number)
    coordinator.settle()
    assert coordinator.ended is not None
    assert first.last(Trigger).checkpoint == number


def test_heartbeats_are_answered_so_that_no_quiet_coordinator_counts_as_dead():
    """Z9: the lease of a slot counts from the last word of the coordinator, and checkpoints may be hours apart."""
    _coordinator, first, _second = started(MemoryStore())
    first.inbox.clear()
    first.say(Heartbeat(1))
    assert [type(message) for message in first.inbox] == [Heard]


async def test_a_run_that_is_submitted_while_one_of_its_slots_has_it_adopted_is_led_once():
    """F6: after a restart of the coordinator both happen at the same time."""
    store = HeldStore()
    coordinator, _first, _second = started(store)
    directory = JobDirectory(store, daemon_key=b"k" * 32, leader="b", host="h")
    job = coordinator.protocol.spec
    store.hold()
    adopting = asyncio.create_task(directory.for_slot(job.job, job.run_id))
    await asyncio.to_thread(store.reading.wait, 20)
    submitted = await directory.submit(job)
    store.go_on.set()
    assert await adopting is submitted
    await directory.close()


async def test_any_error_of_a_store_ends_the_job_instead_of_leaving_requests_unanswered():
    runner = JobRunner(spec(), StrangeStore(), leader="a", host="h")
    outcome = await asyncio.wait_for(runner.run(), 60)
    assert outcome.outcome == "failed"
    assert "a bug in a store" in outcome.reason
    assert "a bug in a store" in runner.status().error
