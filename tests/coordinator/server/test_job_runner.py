"""The edge around one protocol: links of the same process, a real store with faults, real time."""

import asyncio
import gc
import threading

import pytest
from coordinator_world import options, spec

from barrier_runtime.coordinator.job.events import SlotLost, SlotMessages
from barrier_runtime.coordinator.job.protocol import JobProtocol
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.messages import (
    Ack,
    CheckpointComplete,
    Committed,
    Deploy,
    Heartbeat,
    Register,
    RestartOptions,
    Restored,
    Shutdown,
    Start,
    SubtaskEnded,
    SubtaskId,
    Trigger,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import Fault, MemoryStore
from tests.waiting import eventually

JOB = spec(checkpoints=options(interval_ms=20), parallelism=1)


class LocalSlot:
    """A slot in the same process, as in local mode, that answers at once."""

    def __init__(self, runner, checkpoints=3, attempt=0, index=0):
        self.runner = runner
        self.left = checkpoints
        self.inbox = []
        self.token = 0
        self.closed = asyncio.Event()
        runner.slot_connected(
            self, Register(index, f"local{attempt or index or ''}", 1, "h", attempt, "", 0, 0, "idle")
        )

    def close(self):
        self.closed.set()

    def send(self, message):
        self.inbox.append(message)
        asyncio.get_running_loop().call_soon(self.react, message)

    def say(self, message):
        self.runner.slot_message(self, message)

    def react(self, message):
        if isinstance(message, Deploy):
            self.token = message.token
            self.say(Restored(self.token))
        elif isinstance(message, Trigger):
            self.left -= 1
            for chain in (0, 1):
                snapshot = OperatorSnapshot("numbers", 0, 1, {"position": b"1"})
                self.say(Ack(self.token, message.checkpoint, SubtaskId(chain, 0), (snapshot,) if chain == 0 else ()))
            if self.left == 0:
                for chain in (0, 1):
                    self.say(SubtaskEnded(self.token, SubtaskId(chain, 0)))
        elif isinstance(message, CheckpointComplete):
            self.say(Committed(self.token, message.checkpoint, "out", 0))

    def kinds(self):
        return [type(message).__name__ for message in self.inbox]


def lead(store, check=None, job=JOB, checkpoints=3):
    """Runs the job to the end with a local slot; returns (outcome, slot, runner)."""

    async def whole():
        runner = JobRunner(job, store, leader="a", host="h")
        running = asyncio.create_task(runner.run())
        slot = LocalSlot(runner, checkpoints)
        if check is not None:
            await check(runner, slot)
        return await asyncio.wait_for(running, 60), slot, runner

    return asyncio.run(whole())


def test_a_job_runs_from_its_first_to_its_last_checkpoint_in_one_process():
    outcome, slot, runner = lead(MemoryStore())
    assert outcome.outcome == "finished"
    assert slot.kinds()[:3] == ["Registered", "Deploy", "Start"]
    assert isinstance(slot.inbox[-1], Shutdown)
    assert slot.closed.is_set()
    status = runner.status()
    assert status.checkpoints.completed >= 4
    assert status.checkpoints.last_completed.commit_duration_ms is not None
    assert status.outcome == "finished"


def test_trouble_with_the_store_is_shown_and_waited_out(store):
    """O5, O6 (coordinator side): every operation fails for a while; nothing crashes, nothing is lost."""
    store.inject(Fault.FAIL_BEFORE, times=None)

    async def check(runner, slot):
        await eventually(lambda: runner.status().storage_trouble, "the trouble to be shown")
        assert "read the log" in runner.status().storage_trouble
        store.heal()
        await eventually(lambda: runner.phase == "running", "the job to run")
        store.inject(Fault.CONFLICT, "put_if_absent", times=None)
        await eventually(lambda: "append" in runner.status().storage_trouble, "a stuck append to be shown")
        store.heal()

    outcome, _, runner = lead(store, check)
    assert outcome.outcome == "finished"
    assert runner.status().storage_trouble == ""


@pytest.mark.slow
def test_a_store_that_fails_at_random_gives_the_same_log_in_the_end(store):
    """O3, C12."""
    for fault in (Fault.APPLY_THEN_FAIL, Fault.FAIL_BEFORE, Fault.LAND_LATE, Fault.CONFLICT):
        store.inject(fault, "put_if_absent")
    for fault in (Fault.APPLY_THEN_FAIL, Fault.FAIL_BEFORE) * 2:
        store.inject(fault, "put", "manifest")
        store.inject(Fault.FAIL_BEFORE, "get")
    outcome, slot, _ = lead(store, checkpoints=5)
    assert outcome.outcome == "finished"
    completed = [message.checkpoint for message in slot.inbox if isinstance(message, CheckpointComplete)]
    assert completed == list(range(1, len(completed) + 1))


class ReadOnlyStore(MemoryStore):
    """A real store whose bucket policy forbids writing."""

    def put_if_absent(self, key, data):
        raise InvalidJob(f"{key}: access denied: allow s3:PutObject")


def test_a_store_that_forbids_writing_ends_the_job_with_the_remedy():
    outcome, slot, _ = lead(ReadOnlyStore())
    assert outcome.outcome == "failed"
    assert "allow s3:PutObject" in outcome.reason
    assert isinstance(slot.inbox[-1], Shutdown)


def test_stop_ends_the_job_with_a_checkpoint():
    async def check(runner, slot):
        await eventually(lambda: runner.phase == "running", "the job to run")
        runner.stop("checkpoint")

    outcome, slot, _ = lead(MemoryStore(), check, checkpoints=10_000)
    assert outcome.outcome == "cancelled"
    assert "CheckpointComplete" in slot.kinds()


def test_a_job_that_is_stopped_before_it_begins_ends():
    async def whole():
        runner = JobRunner(JOB, MemoryStore(), leader="a", host="h")
        running = asyncio.create_task(runner.run())
        runner.stop("now")
        return await asyncio.wait_for(running, 60)

    assert asyncio.run(whole()).outcome == "cancelled"


def test_a_slot_that_disconnects_and_never_returns_is_waited_for_then_named():
    restart = RestartOptions("fixed_delay", initial_ms=10, max_attempts=1)
    job = spec(
        parallelism=1, reconnect_grace_ms=20, slot_timeout_ms=300, resource_wait_timeout_ms=5_000, restart=restart
    )

    async def check(runner, slot):
        await eventually(lambda: runner.phase == "running", "the job to run")
        runner.slot_disconnected(slot)
        runner.slot_disconnected(slot)
        await eventually(lambda: runner.status().kill, "the kill request")
        assert runner.status().kill[0].uuid == "local"

    outcome, _, _ = lead(MemoryStore(), check, job)
    assert outcome.outcome == "failed"
    assert "slot 0 of host h missing" in outcome.reason


@pytest.mark.slow
def test_a_runner_that_was_cancelled_is_deaf_to_what_slots_still_say(caplog):
    """F9: Ctrl-C or a stopping daemon while acks are on their way: no write and no error."""

    class Held(LocalSlot):
        trigger = None

        def react(self, message):
            if isinstance(message, Trigger):
                self.trigger = message
            else:
                super().react(message)

    async def whole():
        store = MemoryStore()
        runner = JobRunner(JOB, store, leader="a", host="h")
        running = asyncio.create_task(runner.run())
        slot = Held(runner)
        await eventually(lambda: slot.trigger, "a checkpoint to be triggered")
        running.cancel()
        await asyncio.wait([running])
        await runner.quiet()
        before = store.keys()
        LocalSlot.react(slot, slot.trigger)  # the last ack: a manifest would be written now
        runner.slot_disconnected(slot)
        runner.stop("checkpoint")
        for _ in range(10):
            await asyncio.sleep(0)  # whatever was begun gets turns
        assert store.keys() == before
        assert runner.outcome is None

    gc.collect()  # tasks of earlier tests, whose errors nobody has read
    caplog.clear()
    asyncio.run(whole())
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def test_a_runner_is_quiet_when_its_last_store_call_has_ended():
    class SlowStore(MemoryStore):
        def __init__(self):
            super().__init__()
            self.entered, self.leave, self.left = threading.Event(), threading.Event(), threading.Event()

        def put_if_absent(self, key, data):
            self.entered.set()
            assert self.leave.wait(60)
            outcome = super().put_if_absent(key, data)
            self.left.set()
            return outcome

    async def whole():
        store = SlowStore()
        runner = JobRunner(JOB, store, leader="a", host="h")
        running = asyncio.create_task(runner.run())
        await eventually(store.entered.is_set, "the first append")
        running.cancel()
        await asyncio.wait([running])
        quiet = asyncio.create_task(runner.quiet())
        for _ in range(100):
            await asyncio.sleep(0)
        assert not quiet.done()
        store.leave.set()
        await asyncio.wait_for(quiet, 60)
        assert store.left.is_set()

    asyncio.run(whole())


def test_a_bug_in_one_job_ends_that_job_visibly():
    class BadLink(LocalSlot):
        def send(self, message):
            if isinstance(message, Start):
                raise RuntimeError("broken link")
            super().send(message)

    async def whole():
        runner = JobRunner(JOB, MemoryStore(), leader="a", host="h")
        running = asyncio.create_task(runner.run())
        BadLink(runner)
        outcome = await asyncio.wait_for(running, 60)
        return outcome, runner.status()

    outcome, status = asyncio.run(whole())
    assert outcome.outcome == "failed"
    assert "broken link" in outcome.reason
    assert (status.outcome, status.error) == ("failed", outcome.reason)


async def test_messages_of_all_slots_in_a_turn_are_one_event_before_later_events(monkeypatch):
    handled = []
    handle = JobProtocol.handle

    def kept(protocol, event, now_ms):
        handled.append(event)
        return handle(protocol, event, now_ms)

    runner = JobRunner(spec(parallelism=2), MemoryStore(), leader="a", host="h")
    running = asyncio.create_task(runner.run())
    await eventually(lambda: runner.phase == "waiting", "slots are awaited")
    first, second = LocalSlot(runner), LocalSlot(runner, index=1)
    monkeypatch.setattr(JobProtocol, "handle", kept)
    for slot in (first, second, first):
        slot.say(Heartbeat(0))
    runner.slot_disconnected(first)
    messages, lost = (event for event in handled if isinstance(event, SlotMessages | SlotLost))
    assert [each.link for each in messages.messages] == [1, 2, 1]
    assert lost == SlotLost(1)
    second.say(Heartbeat(0))
    await eventually(lambda: sum(isinstance(event, SlotMessages) for event in handled) == 2, "the next turn")
    running.cancel()
    await asyncio.wait([running])
