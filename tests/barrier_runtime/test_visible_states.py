"""Trouble as an operator sees it: a whole job in this process, real slots and stores, and what its status says.

Every state is seen to come with its reason, and to go by itself once the cause is gone.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from barrier_runtime import CollectSink, Dataflow, count
from barrier_runtime.compile import compile_flow
from barrier_runtime.local import make_runner, run_graph
from barrier_runtime.options import JobOptions, job_spec
from coordinator.job_runner import JobRunner
from coordinator.status import JobStatus
from state.memory_store import Fault, MemoryStore
from tests.scattered import scatter

PATIENCE_S = 60


class Target(CollectSink):
    """A sink whose target can be made to refuse commits and to hang in pre-commits. For one subtask."""

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
    """A running job: its coordinator and what its store and target can be made to do."""

    def __init__(self, runner: JobRunner, store: MemoryStore, target: Target) -> None:
        self.runner = runner
        self.store = store
        self.target = target

    async def until(self, condition: str, *reasons: str) -> JobStatus:
        """The first status with this condition and all of `reasons` in its text."""
        deadline = asyncio.get_running_loop().time() + PATIENCE_S
        while True:
            status = self.runner.status()
            if status.condition == condition and all(reason in status.condition_reason for reason in reasons):
                return status
            assert asyncio.get_running_loop().time() < deadline, f"never {condition} {reasons}, but {status}"
            await asyncio.sleep(0.02)


def watch(check: Callable[[Job], Awaitable[None]], **options: object) -> None:
    """Run a job that never ends, hand it to `check` when it runs, stop it."""
    target, store = Target(), MemoryStore()
    flow = Dataflow("watched")
    numbers = flow.rate("numbers", 20_000, keys=20_000)
    numbers.map_batches(scatter).key_by("key").aggregate("count", n=count()).sink("out", target)
    chosen = JobOptions.from_keywords(
        {"parallelism": 1, "checkpoint_interval": 0.1, "progress_timeout": 0.5, "tolerable_failures": 1_000, **options}
    )
    graph = compile_flow(flow, 1, chosen.max_parallelism, mode=chosen.mode)
    spec = job_spec(graph, chosen)

    async def main() -> None:
        job = Job(make_runner(spec, store), store, target)
        running = asyncio.create_task(run_graph(graph, spec, store, chosen, job.runner))
        await job.until("RUNNING")
        await check(job)
        store.heal()
        target.down.clear()
        target.answers.set()
        job.runner.stop("now")
        status = await asyncio.wait_for(running, PATIENCE_S)
        assert (status.outcome, status.condition) == ("cancelled", "CANCELLED")

    asyncio.run(main())


def test_a_store_outage_is_shown_with_the_object_until_it_heals() -> None:
    """O5, O6: the coordinator's own writes."""

    async def check(job: Job) -> None:
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

    watch(check)


def test_uploads_that_fail_are_shown_with_the_object_until_they_succeed() -> None:
    """O5: a slot's writes; its checkpoints are declined with the object and the reason."""

    async def check(job: Job) -> None:
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

    watch(check)


def test_a_commit_that_fails_is_shown_with_the_sink_until_it_succeeds() -> None:
    """T4: retried for ever, shown as such, never dropped."""

    async def check(job: Job) -> None:
        job.target.down.set()
        status = await job.until("WAITING_SINK", "sink out/0 cannot commit checkpoint", "OSError: the target is down")
        seen = len(job.target.rows())
        job.target.down.clear()
        await job.until("RUNNING")
        assert len(job.target.rows()) > seen
        assert status.commits.troubles

    watch(check)


def test_a_subtask_that_never_acknowledges_is_named_until_it_does() -> None:
    """C7: the checkpoint hangs in one subtask."""

    async def check(job: Job) -> None:
        job.target.answers.clear()
        await job.until("NO_CHECKPOINT", "waits for 1/0 (count, out)")
        job.target.answers.set()
        await job.until("RUNNING")

    watch(check)


def test_a_snapshot_that_never_ends_expires_and_the_job_says_so_while_it_recovers_again_and_again() -> None:
    """C7, C11: expiry counts as a failure; with none tolerated every expiry ends a generation."""

    async def check(job: Job) -> None:
        job.target.answers.clear()
        await job.until("NO_CHECKPOINT", "expired: no answer within 200 ms; missing subtasks: 1/0")
        assert job.runner.status().generations > 1

    watch(
        check,
        checkpoint_timeout=0.2,
        tolerable_failures=0,
        restart="fixed_delay",
        restart_delay=0,
        restart_attempts=None,
    )
