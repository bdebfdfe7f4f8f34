"""Jobs in one process whose parallelism changes while they run: rows, keyed state, timers and reads of the source."""

import asyncio
import collections
import uuid
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, ProcessContext, ValueState, count
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.status.status import JobStatus, RescaleStatus
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_store

PATIENCE_S = 60.0
KEYS = 40


class Target(CollectSink):
    """All subtasks write to this one object."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Target":
        return self


class Number:
    seen = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.seen.value += 1
        return [{"key": key, "n": row["n"], "own": self.seen.value}]


def flow(target: Target, read: list[int] | None = None) -> Dataflow:
    flow = Dataflow("job")
    rows = flow.rate("numbers", 4_000, keys=KEYS, splits=5)
    if read is not None:
        rows = rows.filter(lambda row: read.append(row["value"]) or True)
    counted = rows.key_by("key").aggregate("count", n=count())
    counted.key_by("key").process("own", Number, schema={"key": int, "n": int, "own": int}).sink("out", target)
    return flow


class Running:
    def __init__(self, flow: Dataflow, folder: Path, **options: Any) -> None:
        self.options = JobOptions.from_keywords({"checkpoints": str(folder), "checkpoint_interval": 0.2, **options})
        job = PreparedJob(flow.plan, self.options)
        store = open_store(str(folder))
        self.runner = make_runner(job.spec, store)
        self.task = asyncio.create_task(run_graph(job.graph, job.spec, store, self.options, self.runner))

    async def until(self, found: Any) -> JobStatus:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = self.runner.status()
                if found(status):
                    return status
                assert not self.task.done(), (status.outcome, status.error)
                await asyncio.sleep(0.02)

    async def rescale(self, parallelism: int, timeout_ms: int = 60_000) -> RescaleStatus:
        id = uuid.uuid4().hex
        self.runner.rescale(RescaleRequest(id, parallelism, timeout_ms))
        over = lambda status: any(each.id == id and each.ended_ms for each in status.rescales)  # noqa: E731
        status = await self.until(over)
        return next(each for each in status.rescales if each.id == id)

    async def stop(self) -> JobStatus:
        self.runner.stop("checkpoint")
        return await asyncio.wait_for(self.task, PATIENCE_S)


@pytest.mark.slow
@pytest.mark.parametrize("unaligned", [False, True])
async def test_a_job_goes_through_other_parallelisms_and_loses_doubles_and_repeats_nothing(
    tmp_path: Path, unaligned: bool
) -> None:
    """Each key's numbers are 1, 2, 3, and so on, and no row came out of a source twice in all six generations."""
    target, read = Target(), list[int]()
    job = Running(flow(target, read), tmp_path, parallelism=2, unaligned=unaligned)
    for parallelism in (4, 3, 2, 5, 1):
        before = len(target.rows())
        await job.until(lambda status, before=before: len(target.rows()) >= before + 400)
        told = await job.rescale(parallelism)
        assert (told.state, told.parallelism, told.error) == ("done", parallelism, ""), told
        assert told.pause_ms is not None
        status = job.runner.status()
        assert (status.parallelism, len(status.slots)) == (parallelism, parallelism)
        assert status.token == status.recoveries[-1].token
    before = len(target.rows())
    await job.until(lambda status: len(target.rows()) >= before + 400)
    replayed = len(read) - len(set(read))
    status = await job.stop()
    assert replayed == 0
    rows = collections.defaultdict(list)
    for row in target.rows():
        assert row["n"] == row["own"], row
        rows[row["key"]].append(row["n"])
    assert set(rows) == set(range(KEYS))
    assert all(sorted(of_key) == list(range(1, len(of_key) + 1)) for of_key in rows.values())
    assert [each.reason for each in status.recoveries][1:] == [
        f"rescaled from {before} to {after} slots" for before, after in [(2, 4), (4, 3), (3, 2), (2, 5), (5, 1)]
    ]


async def test_no_slots_in_time_and_the_job_goes_on_as_it_was(tmp_path: Path) -> None:
    target = Target()
    job = Running(flow(target), tmp_path, parallelism=2)
    await job.until(lambda status: len(target.rows()) >= 100)
    token = job.runner.status().token
    told = await job.rescale(4, timeout_ms=1)
    assert (told.state, told.pause_ms, told.checkpoint) == ("failed", None, None)
    assert "did not come within 0.001 s; the job goes on with 2" in told.error
    before = len(target.rows())
    status = await job.until(lambda status: len(target.rows()) >= before + 100)
    assert (status.token, status.parallelism, status.phase) == (token, 2, "running")
    again = await job.rescale(2)
    assert (again.state, again.checkpoint) == ("done", None), "there is nothing to do"
    with pytest.raises(InvalidJob, match="give 1 to 128, the job's max_parallelism"):
        job.runner.rescale(RescaleRequest("too-many", 129))
    status = await job.stop()
    assert status.outcome == "cancelled"
    assert [each.state for each in status.rescales] == ["failed", "done"]
