"""Errors as an operator sees them: the status of a whole job in this process, with real slots and stores.

Every state appears with a reason, and disappears by itself once the cause is gone.
"""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, count
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions, job_spec
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from tests.far_apart_keys import scatter

pytestmark = pytest.mark.usefixtures("both_ways")

PATIENCE_S = 60


class Target(CollectSink):
    """Sink for one subtask whose target refuses commits or hangs in pre-commits on the test's command."""

    def __init__(self) -> None:
        super().__init__()
        self.down = threading.Event()
        self.answers = threading.Event()
        self.answers.set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "Target":
        return self

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        assert self.answers.wait(PATIENCE_S), "the test let go of the target"
        return super().pre_commit(transaction, checkpoint)

    def commit(self, committable: bytes) -> None:
        if self.down.is_set():
            raise OSError("the target is down")
        super().commit(committable)


class Job:
    running: "asyncio.Task[JobStatus]"

    def __init__(self, runner: JobRunner, store: MemoryStore, target: Any) -> None:
        self.runner = runner
        self.store = store
        self.target = target

    async def until(self, condition: str, *reasons: str) -> JobStatus:
        """Returns the first status with this condition and all `reasons` in the text."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            status = self.runner.status()
            if status.condition == condition and all(reason in status.condition_reason for reason in reasons):
                return status
            assert asyncio.get_running_loop().time() < deadline, f"never {condition} {reasons}, but {status}"
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def begun(flow: Dataflow, target: CollectSink, **options: object) -> AsyncIterator[Job]:
    """Starts an endless job; stops the job at the end if it still runs."""
    chosen = JobOptions.from_keywords({"parallelism": 1, "checkpoint_interval": 0.1, **options})
    graph = compile_plan(flow.plan, 1, chosen.max_parallelism, mode=chosen.mode)
    spec, store = job_spec(graph, chosen), MemoryStore()
    job = Job(make_runner(spec, store), store, target)
    job.running = asyncio.create_task(run_graph(graph, spec, store, chosen, job.runner))
    yield job
    if not job.running.done():
        job.runner.stop("now")
    await asyncio.wait_for(job.running, PATIENCE_S)


@contextlib.asynccontextmanager
async def watched(**options: object) -> AsyncIterator[Job]:
    """A running job; store and target work again before the job is stopped."""
    target, flow = Target(), Dataflow("watched")
    numbers = flow.rate("numbers", 20_000, keys=20_000)
    numbers.map_batches(scatter).key_by("key").aggregate("count", n=count()).sink("out", target)
    async with begun(flow, target, **{"progress_timeout": 0.5, "tolerable_failures": 1_000, **options}) as job:
        await job.until("RUNNING")
        yield job
        job.store.heal()
        target.down.clear()
        target.answers.set()
    status = job.running.result()
    assert (status.outcome, status.condition) == ("cancelled", "STOPPED")


@contextlib.asynccontextmanager
async def with_away(**options: object) -> AsyncIterator[Job]:
    """A running job whose sink's server may become unreachable."""
    flow, target = Dataflow("away"), Away()
    flow.rate("numbers", 1_000).sink("out", target)
    async with begun(flow, target, **{"checkpoint_interval": 0.05, **options}) as job:
        await job.until("RUNNING")
        yield job


@pytest.mark.slow
@pytest.mark.usefixtures("manifests_are_objects")
async def test_a_store_outage_is_shown_with_the_object_until_it_heals() -> None:
    """O5, O6: the coordinator's own writes."""
    async with watched() as job:
        job.store.inject(Fault.FAIL_BEFORE, "put", "manifest.json", times=None)
        status = await job.until(
            "WAITING_STORE", "write watched/checkpoints/", "manifest.json", "got no answer", "attempts"
        )
        assert status.phase == "running"
        job.store.heal()
        await job.until("RUNNING")
        job.store.inject(Fault.CONFLICT, "put_if_absent", times=None)
        await job.until("WAITING_STORE", "append watched/log/0000")
        job.store.heal()
        await job.until("RUNNING")
        assert job.runner.status().storage_trouble == ""


@pytest.mark.slow
async def test_uploads_that_fail_are_shown_with_the_object_until_they_succeed() -> None:
    """O5: a slot's writes; the slot's checkpoints are declined with the object and the reason."""
    async with watched() as job:
        job.store.inject(Fault.FAIL_BEFORE, "put", "/data/", times=None)
        await job.until(
            "NO_CHECKPOINT",
            "declined",
            "subtask 1/0",
            "Unavailable: put of memory://memory/watched/data/",
            "got no answer",
        )
        job.store.heal()
        await job.until("RUNNING")


@pytest.mark.slow
async def test_a_commit_that_fails_is_shown_with_the_sink_until_it_succeeds() -> None:
    """T4: retried forever, visible in the status, never dropped."""
    async with watched() as job:
        job.target.down.set()
        status = await job.until("WAITING_SINK", "sink out/0 cannot commit checkpoint", "OSError: the target is down")
        seen = len(job.target.rows())
        job.target.down.clear()
        await job.until("RUNNING")
        assert len(job.target.rows()) > seen
        assert status.commits.troubles


@pytest.mark.slow
async def test_a_subtask_that_never_acknowledges_is_named_until_it_does() -> None:
    """C7: one subtask delays the checkpoint."""
    async with watched() as job:
        job.target.answers.clear()
        await job.until("NO_CHECKPOINT", "waits for 1/0 (count, out)")
        job.target.answers.set()
        await job.until("RUNNING")


@pytest.mark.slow
async def test_endless_snapshot_expires_and_the_job_reports_each_repeated_recovery() -> None:
    """C7, C11: an expiry counts as a failure; with none tolerated, every expiry ends a generation."""
    async with watched(
        checkpoint_timeout=0.2, tolerable_failures=0, restart="fixed_delay", restart_delay=0, restart_attempts=None
    ) as job:
        job.target.answers.clear()
        await job.until("NO_CHECKPOINT", "expired: no answer within 200 ms; missing subtasks: 1/0")
        assert job.runner.status().generations > 1


class Away(CollectSink):
    """A sink whose server is temporarily unreachable."""

    def __init__(self) -> None:
        super().__init__()
        self.away = threading.Event()
        self.opened = 0

    def __deepcopy__(self, memo: dict[int, Any]) -> "Away":
        return self

    def open(self, context: Any) -> None:
        self.opened += 1
        self._answer()
        super().open(context)

    def pre_commit(self, transaction: Any, checkpoint: int) -> bytes | None:
        self._answer()
        return super().pre_commit(transaction, checkpoint)

    def _answer(self) -> None:
        if self.away.is_set():
            raise Unavailable("the server at 10.0.0.1 does not answer: start it")


@pytest.mark.slow
async def test_a_server_that_is_down_is_waited_for_in_one_generation_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T4: many more attempts than allowed restarts, few log lines, no stack."""
    monkeypatch.setattr("barrier_runtime.runtime.opening._OPEN_AGAIN_MOST_S", 0.05)
    with caplog.at_level(logging.WARNING, "barrier_runtime"):
        async with with_away(restart_attempts=3) as job:
            before = job.runner.status().token
            job.target.away.set()
            status = await job.until(
                "WAITING_SERVER", "operator out/0 cannot be opened", "the server at 10.0.0.1 does not answer: start it"
            )
            while job.target.opened < 30:
                await asyncio.sleep(0.02)
            waiting = job.runner.status()
            assert (waiting.condition, waiting.token) == ("WAITING_SERVER", status.token)
            assert (before, status.token) == (1, 2)
            job.target.away.clear()
            await job.until("RUNNING")
    assert job.running.result().outcome == "cancelled"
    told = [record for record in caplog.records if "10.0.0.1" in record.getMessage()]
    assert 10 * len(told) < job.target.opened, "no line per attempt"
    assert all(record.exc_info is None for record in told)


async def test_a_strategy_that_allows_no_restart_waits_for_no_server() -> None:
    async with with_away(restart="none") as job:
        job.target.away.set()
        status = await asyncio.wait_for(job.running, PATIENCE_S)
    assert status.outcome == "failed"
    assert "the server at 10.0.0.1 does not answer" in str(status.error)


@pytest.mark.slow
async def test_a_server_is_waited_for_as_long_as_a_strategy_with_an_end_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.runtime.opening._OPEN_AGAIN_MOST_S", 0.05)
    async with with_away(restart="fixed_delay", restart_delay=0.1, restart_attempts=5) as job:
        job.target.away.set()
        status = await asyncio.wait_for(job.running, PATIENCE_S)
    assert status.outcome == "failed"
    assert "the server at 10.0.0.1 does not answer: start it" in str(status.error)
    assert "restart strategy fixed_delay waits 0.5 s for a server that does not answer" in str(status.error)


@pytest.mark.slow
async def test_a_sink_that_hangs_while_it_is_opened_is_named_until_it_opens() -> None:
    answers = threading.Event()

    class Hanging(Target):
        def open(self, context: SinkContext) -> None:
            answers.wait()
            super().open(context)

    flow = Dataflow("hanging")
    flow.rate("numbers", 1_000).sink("out", Hanging())
    async with begun(flow, Target(), progress_timeout=0.5) as job:
        await job.until("WAITING_RESTORE", "slot 0 has been opening out for")
        answers.set()
        await job.until("RUNNING")


@pytest.mark.slow
async def test_a_function_that_keeps_a_slot_from_everything_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("barrier_runtime.runtime.scheduler._LONG_STEP_S", 0.2)
    slept: list[float] = []

    def sleeps_once(row: dict[str, Any]) -> dict[str, Any]:
        if not slept:
            slept.append(0.3)
            time.sleep(0.3)
        return row

    flow = Dataflow("blocked")
    flow.rate("numbers", 1_000).map(sleeps_once, name="sleepy").sink("out", CollectSink())
    async with begun(flow, Target()) as job:
        await job.until("BLOCKED", "slot 0 by 0/0 (numbers → sleepy → out) for ")
