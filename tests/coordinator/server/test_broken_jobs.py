"""Jobs with an internal error: the job ends, and the log says so if possible (`coordinator.server.failure_record`)."""

import asyncio

import pytest
from coordinator_world import spec
from test_job_runner import JOB, LocalSlot, lead

from barrier_runtime.coordinator.job.events import SlotMessages
from barrier_runtime.coordinator.job.facts import Origin
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.record_builder import Identity
from barrier_runtime.coordinator.log.records import Complete, Fence, Finish, Lead
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.server.store_effects import write_end
from barrier_runtime.coordinator.wire.messages import Ack
from barrier_runtime.state.store.memory import Fault
from barrier_runtime.state.store.paths import Paths
from tests.waiting import eventually

PATHS = Paths(JOB.job)


def head(store):
    return read_log(store, PATHS).head


def broken_at_second_ack(runner):
    """A bug: the protocol raises when the second checkpoint is acknowledged."""
    handle = runner._protocol.handle

    def raising(event, now_ms):
        messages = event.messages if isinstance(event, SlotMessages) else ()
        if any(isinstance(each.message, Ack) and each.message.checkpoint == 2 for each in messages):
            raise RuntimeError("a bug of ours")
        return handle(event, now_ms)

    runner._protocol.handle = raising


def test_internally_broken_job_logs_its_fault_and_no_other_daemon_takes_the_job(store):

    async def check(runner, slot):
        broken_at_second_ack(runner)

    outcome, slot, _ = lead(store, check, checkpoints=50)
    assert outcome.outcome == "failed"
    assert outcome.reason == "job flights was stopped by an internal error: a bug of ours"
    assert slot.closed.is_set()
    record = head(store).record
    assert isinstance(record, Finish)
    assert (record.outcome, record.reason, record.discarded) == ("failed", outcome.reason, False)

    async def adopted():
        runner = JobRunner(JOB, store, leader="b", host="h", origin=Origin.ADOPTED)
        return await asyncio.wait_for(runner.run(), 60)

    position = head(store).position
    again = asyncio.run(adopted())
    assert (again.outcome, again.reason) == ("failed", outcome.reason)
    assert head(store).position == position


def test_job_that_waits_for_slots_ends_when_its_deadline_cannot_be_told(store):

    async def main():
        runner = JobRunner(JOB, store, leader="a", host="h")
        deadline = runner._protocol.next_deadline

        def raising():
            if runner.lead_position is not None:
                raise RuntimeError("a bug of ours")
            return deadline()

        runner._protocol.next_deadline = raising
        asyncio.get_running_loop().set_exception_handler(lambda _, context: escaped.append(context))
        return await asyncio.wait_for(runner.run(), 60)

    escaped = []
    assert asyncio.run(main()).reason == "job flights was stopped by an internal error: a bug of ours"
    assert isinstance(head(store).record, Finish)
    assert escaped == []


def test_a_store_that_does_not_answer_does_not_keep_a_broken_job_from_ending(store):
    """A coordinator that adopts the job breaks again, and then logs the end."""

    async def check(runner, slot):
        await eventually(lambda: runner.status().checkpoints.completed, "a checkpoint")
        store.inject(Fault.FAIL_BEFORE, times=None)
        runner._sleep = lambda seconds: None
        runner._break("a bug")

    outcome, _, runner = lead(store, check, checkpoints=50)
    assert (outcome.outcome, outcome.reason) == ("failed", "a bug")
    assert runner.status().condition == "FAILED"
    store.heal()
    assert not isinstance(head(store).record, Finish)


# ---------------------------------------------------------------- the table


def one_checkpoint_decided(store):
    """The log of a job led by "a", which died after a decision. Returns the position of the FENCE."""

    async def main():
        runner = JobRunner(JOB, store, leader="a", host="h")
        running = asyncio.create_task(runner.run())
        LocalSlot(runner, 50)
        await eventually(lambda: runner.status().checkpoints.completed, "a checkpoint")
        running.cancel()
        await asyncio.wait([running])
        await runner.quiet()

    asyncio.run(main())
    return next(entry.position for entry in [read_log(store, PATHS).fence] if isinstance(entry.record, Fence))


def end(store, led_at, leader="a"):
    waits = []
    return write_end(store, JOB, Identity(leader, "h"), led_at, "a bug", 5, waits.append), waits


def test_it_is_said_behind_what_was_still_under_way(store):
    led_at = one_checkpoint_decided(store)
    assert isinstance(head(store).record, Complete)
    assert head(store).position > led_at
    assert end(store, led_at) == ("", [])
    assert isinstance(head(store).record, Finish)
    position = head(store).position
    assert end(store, led_at) == ("", []), "said once, however often it is tried"
    assert head(store).position == position


@pytest.mark.parametrize("fault", [Fault.FAIL_BEFORE, Fault.APPLY_THEN_FAIL, Fault.CONFLICT])
def test_an_answer_that_is_lost_or_no_answer_is_asked_for_again(fault, store):
    led_at = one_checkpoint_decided(store)
    before = head(store).position
    store.inject(fault, "put_if_absent", times=2)
    why, waits = end(store, led_at)
    assert why == ""
    assert waits
    assert head(store).position == before + 1
    assert isinstance(head(store).record, Finish)


@pytest.mark.parametrize("taken_by", ["another run", "another daemon of the run"])
def test_nothing_is_said_where_somebody_else_leads(taken_by, store):
    """Z5"""
    led_at = one_checkpoint_decided(store)
    job = JOB if taken_by != "another run" else spec(run_id="run-2", parallelism=1, checkpoints=JOB.checkpoints)

    async def other():
        runner = JobRunner(job, store, leader="b", host="h")
        running = asyncio.create_task(runner.run())
        LocalSlot(runner, 50)
        await eventually(lambda: runner.phase == "running", "the other one to lead")
        running.cancel()
        await asyncio.wait([running])
        await runner.quiet()

    asyncio.run(other())
    why, waits = end(store, led_at)
    assert "leads it now with generation" in why
    assert waits == []
    assert not isinstance(head(store).record, Finish)
    assert isinstance(store_record(store), Fence | Lead | Complete)


def store_record(store):
    return head(store).record


def test_a_log_that_is_damaged_is_left_alone(store):
    led_at = one_checkpoint_decided(store)
    position = head(store).position
    store.put(PATHS.log_record(position), b"nonsense")
    why, waits = end(store, led_at)
    assert PATHS.log_record(position) in why
    assert waits == []
