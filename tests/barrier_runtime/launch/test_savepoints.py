"""Savepoints of whole jobs in this process: state, positions and rows of a job, its fork and its successor agree."""

import asyncio
import collections
import datetime
import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from barrier_runtime import CollectSink, Dataflow, ProcessContext, Tumbling, ValueState, count
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.open import open_store

PATIENCE_S = 120
KEYS = 7


class Target(CollectSink):
    """All subtasks write to this one object."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Target":
        return self


class Number:
    """How many rows of its key came before, by its own state."""

    seen = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.seen.value += 1
        return [{"key": key, "n": row["n"], "own": self.seen.value}]


def flow(name: str, target: Target) -> Dataflow:
    flow = Dataflow(name)
    rows = flow.rate("numbers", 4_000, keys=KEYS, splits=3)
    counted = rows.key_by("key").aggregate("count", n=count())
    counted.key_by("key").process("own", Number, schema={"key": int, "n": int, "own": int}).sink("out", target)
    return flow


class Running:
    def __init__(self, flow: Dataflow, folder: Path, **options: Any) -> None:
        self.options = JobOptions.from_keywords({"checkpoints": str(folder), "checkpoint_interval": 0.2, **options})
        job = PreparedJob(flow.plan, self.options)
        store = open_store(str(folder))
        job.begin_with_savepoint(store)
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

    async def savepoint(self, url: str) -> int:
        """The checkpoint that it is a copy of."""
        id = uuid.uuid4().hex
        self.runner.savepoint(SavepointRequest(id, url))
        status = await self.until(lambda status: all(each.ended_ms for each in status.savepoints))
        taken = status.savepoints[-1]
        assert (taken.id, taken.state) == (id, "done"), taken
        assert taken.checkpoint
        return taken.checkpoint

    async def stop(
        self, savepoint: str | None = None, mode: Literal["checkpoint", "drain"] = "checkpoint"
    ) -> JobStatus:
        request = None if savepoint is None else SavepointRequest(uuid.uuid4().hex, savepoint, stops=True)
        self.runner.stop(mode, request)
        return await asyncio.wait_for(self.task, PATIENCE_S)


async def rows_in(target: Target, many: int, job: Running) -> None:
    await job.until(lambda status: len(target.rows()) >= many)


def numbers(rows: Sequence[dict[str, Any]]) -> dict[int, list[int]]:
    """Of each key, in order. The aggregate's count and the function's own are the same."""
    found: dict[int, list[int]] = collections.defaultdict(list)
    for row in rows:
        assert row["n"] == row["own"], row
        found[row["key"]].append(row["n"])
    return {key: sorted(of_key) for key, of_key in found.items()}


def without_gaps(of_key: list[int]) -> bool:
    return of_key == list(range(of_key[0], of_key[0] + len(of_key)))


@pytest.mark.slow
@pytest.mark.parametrize(("parallelism", "later"), [(1, 3), (2, 2), (3, 5), (3, 1)])
async def test_a_successor_goes_on_where_the_job_stopped(tmp_path: Path, parallelism: int, later: int) -> None:
    """No row is lost or doubled: each key's numbers of both jobs are 1, 2, 3, and so on."""
    before, after = Target(), Target()
    job = Running(flow("job", before), tmp_path / "job", parallelism=parallelism)
    await rows_in(before, 1_000, job)
    status = await job.stop(str(tmp_path / "savepoint"))
    assert status.savepoints[-1].state == "done"
    shutil.move(tmp_path / "savepoint", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "job")
    successor = Running(
        flow("successor", after), tmp_path / "new", parallelism=later, restore=str(tmp_path / "elsewhere")
    )
    await rows_in(after, 1_000, successor)
    await successor.stop()
    both = numbers([*before.rows(), *after.rows()])
    assert set(both) == set(range(KEYS))
    assert all(of_key[0] == 1 and without_gaps(of_key) for of_key in both.values()), both


@pytest.mark.slow
async def test_a_fork_goes_on_from_the_savepoint_and_the_job_is_not_disturbed(tmp_path: Path) -> None:
    target, forked = Target(), Target()
    job = Running(flow("job", target), tmp_path / "job")
    await rows_in(target, 1_000, job)
    await job.savepoint(str(tmp_path / "savepoint"))
    fork = Running(flow("fork", forked), tmp_path / "job", restore=str(tmp_path / "savepoint"), parallelism=3)
    await rows_in(forked, 1_000, fork)
    await fork.stop()
    await job.stop()
    origin, grown = numbers(target.rows()), numbers(forked.rows())
    assert all(of_key[0] == 1 and without_gaps(of_key) for of_key in origin.values())
    assert all(without_gaps(of_key) for of_key in grown.values())
    assert all(grown[key][0] - 1 in origin[key] for key in grown), "it begins with what the job had counted"


@pytest.mark.slow
async def test_windows_and_timers_are_in_it(tmp_path: Path) -> None:
    """A window that is open in the savepoint has its rows of before and after once."""

    def windows(name: str, target: Target) -> Dataflow:
        flow = Dataflow(name)
        rows = flow.rate("numbers", 4_000, keys=KEYS, splits=2, event_time="intended_at")
        window = rows.key_by("key").window(
            "w", Tumbling(datetime.timedelta(milliseconds=200)), event_time="intended_at"
        )
        window.aggregate(n=count()).sink("out", target)
        return flow

    before, after = Target(), Target()
    job = Running(windows("job", before), tmp_path / "job", unaligned=True)
    await rows_in(before, 30, job)
    await job.stop(str(tmp_path / "savepoint"))
    successor = Running(windows("next", after), tmp_path / "job", restore=str(tmp_path / "savepoint"), parallelism=3)
    await rows_in(after, 60, successor)
    await successor.stop()
    starts = collections.Counter((row["key"], row["window_start"]) for row in [*before.rows(), *after.rows()])
    assert max(starts.values()) == 1
    complete = sorted({start for _, start in starts})[1:-1]
    sums = [
        sum(row["n"] for row in [*before.rows(), *after.rows()] if row["window_start"] == start) for start in complete
    ]
    assert set(sums) == {800}, "4,000 rows/s make 800 in 200 ms"


@pytest.mark.slow
async def test_a_savepoint_where_one_is_already_is_refused_and_the_job_runs_on(tmp_path: Path) -> None:
    target = Target()
    job = Running(flow("job", target), tmp_path / "job")
    await rows_in(target, 10, job)
    await job.savepoint(str(tmp_path / "savepoint"))
    job.runner.stop("checkpoint", SavepointRequest(uuid.uuid4().hex, str(tmp_path / "savepoint"), stops=True))
    await job.until(lambda status: status.savepoints[-1].state == "failed")
    many = len(target.rows())
    await rows_in(target, many + 500, job)
    await job.stop()
    assert all(of_key[0] == 1 and without_gaps(of_key) for of_key in numbers(target.rows()).values())


def test_wrong_places_are_refused_when_they_are_given(tmp_path: Path) -> None:
    target = Target()
    with pytest.raises(InvalidJob, match="there is no folder"):
        flow("job", target).run_local(checkpoints=str(tmp_path / "ck"), restore=str(tmp_path / "none"))
    with pytest.raises(InvalidJob, match="the job has no folder of its own: give checkpoints="):
        flow("job", target).run_local(restore=str(tmp_path / "none"))


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 3])
async def test_a_drained_job_has_fired_all_windows_and_another_goes_on_only_where_that_is_allowed(
    tmp_path: Path, parallelism: int
) -> None:
    """Windows of ten hours: none would fire before the end. Each row that was read is in one, of each job."""

    def windows(name: str, target: Target, read: Target) -> Dataflow:
        flow = Dataflow(name)
        rows = flow.rate("numbers", 4_000, keys=KEYS, splits=3, event_time="intended_at")
        rows.sink("read", read)
        window = rows.key_by("key").window("w", Tumbling(datetime.timedelta(hours=10)), event_time="intended_at")
        window.aggregate(n=count()).sink("out", target)
        return flow

    out, read, folder, savepoint = Target(), Target(), tmp_path / "job", str(tmp_path / "savepoint")
    job = Running(windows("job", out, read), folder, parallelism=parallelism)
    await rows_in(read, 1_000, job)
    assert not out.rows()
    status = await job.stop(savepoint, "drain")
    assert (status.outcome, status.savepoints[-1].state) == ("finished", "done"), status.error
    assert sum(row["n"] for row in out.rows()) == len(read.rows())
    with pytest.raises(InvalidJob, match="allow_drained"):
        Running(windows("next", out, read), tmp_path / "next", restore=savepoint)
    refused = await Running(windows("job", out, read), folder).task
    assert refused.outcome == "failed"
    assert "was drained" in refused.error

    later_out, later_read = Target(), Target()
    flow = windows("next", later_out, later_read)
    successor = Running(flow, tmp_path / "next", restore=savepoint, allow_drained=True, parallelism=2)
    await rows_in(later_read, 1_000, successor)
    await successor.stop(mode="drain")
    assert sum(row["n"] for row in later_out.rows()) == len(later_read.rows()), "no row came late"
    values = sorted(row["value"] for row in [*read.rows(), *later_read.rows()])
    for split in range(3):
        of_split = [value for value in values if value % 3 == split]
        assert of_split == list(range(split, 3 * len(of_split), 3)), "no row was lost or read twice"
