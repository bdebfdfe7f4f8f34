"""Jobs in one process whose program is replaced while they run: rows, state that stays, begins, is read as another."""

import asyncio
import collections
import dataclasses
import uuid
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, ProcessContext, ValueState, count, max_
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.status.status import JobStatus, RescaleStatus
from barrier_runtime.launch.local import make_runner, run_graph
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.launch.prepare import PreparedJob
from barrier_runtime.state.store.open import open_store

PATIENCE_S = 60.0
KEYS = 40


class Target(CollectSink):
    """All subtasks write to this one object."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Target":
        return self


class Number:
    seen = ValueState(int, default=0)
    program = 1

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.seen.value += 1
        return [{"key": key, "n": row["n"], "own": self.seen.value, "program": self.program, "sum": 0, "top": 0}]


class Summed(Number):
    total = ValueState(int, default=0)
    program = 2

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.total.value += 1
        found = super().process(key, row, ctx)
        return [{**each, "sum": self.total.value, "top": row["top"]} for each in found]


class Unwell(Number):
    def open(self, ctx: Any) -> None:
        raise RuntimeError("no such table: rules")


class Lossy:
    other = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        return []


SCHEMA = {"key": int, "n": int, "own": int, "program": int, "sum": int, "top": int}


def flow(target: Target, function: type, read: list[int], name: str = "own") -> Dataflow:
    flow = Dataflow("job")
    rows = flow.rate("numbers", 4_000, keys=KEYS, splits=5)
    rows = rows.filter(lambda row: read.append(row["value"]) or True)
    aggregates = {"n": count()} if function is not Summed else {"n": count(), "top": max_("value")}
    counted = rows.key_by("key").aggregate("count", **aggregates)
    counted.key_by("key").process(name, function, schema=SCHEMA).sink("out", target)
    return flow


class Running:
    def __init__(self, begins: Dataflow, others: dict[str, Dataflow], folder: Path, **options: Any) -> None:
        self.options = JobOptions.from_keywords({"checkpoints": str(folder), "checkpoint_interval": 0.2, **options})
        job = PreparedJob(begins.plan, self.options)
        self.others = {name: PreparedJob(each.plan, self.options) for name, each in others.items()}
        store = open_store(str(folder))
        job.begin_with_savepoint(store)
        self.runner = make_runner(job.spec, store)
        graphs = {name: each.graph for name, each in self.others.items()}
        self.task = asyncio.create_task(
            run_graph(job.graph, job.spec, store, self.options, self.runner, programs=graphs)
        )

    async def until(self, found: Any) -> JobStatus:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                status = self.runner.status()
                if found(status):
                    return status
                assert not self.task.done(), (status.outcome, status.error)
                await asyncio.sleep(0.02)

    async def over(self, request: RescaleRequest, ask: Any) -> RescaleStatus:
        ask(request)
        over = lambda status: any(each.id == request.id and each.ended_ms for each in status.rescales)  # noqa: E731
        return next(each for each in (await self.until(over)).rescales if each.id == request.id)

    async def replace(self, name: str, **changes: Any) -> RescaleStatus:
        request = RescaleRequest(name, 1, 60_000, self.others[name].spec)
        return await self.over(dataclasses.replace(request, **changes), self.runner.replace)

    async def rescale(self, parallelism: int) -> RescaleStatus:
        return await self.over(RescaleRequest(uuid.uuid4().hex, parallelism), self.runner.rescale)

    async def stop(self) -> JobStatus:
        self.runner.stop("checkpoint")
        return await asyncio.wait_for(self.task, PATIENCE_S)


@pytest.mark.parametrize("unaligned", [False, True])
async def test_a_job_goes_through_programs_and_parallelisms_and_loses_doubles_and_repeats_nothing(
    tmp_path: Path, unaligned: bool
) -> None:
    """Each key's numbers are 1, 2, 3, and so on; what is new begins at the barrier, and what goes and comes keeps what
    it had."""
    target, read = Target(), list[int]()
    programs = {"two": flow(target, Summed, read), "three": flow(target, Number, read)}
    job = Running(flow(target, Number, read), programs, tmp_path, parallelism=2, unaligned=unaligned)

    async def more() -> None:
        before = len(target.rows())
        await job.until(lambda status: len(target.rows()) >= before + 300)

    await more()
    told = await job.replace("two")
    assert (told.state, told.kind, told.error) == ("done", "replace", ""), told
    await more()
    assert (await job.rescale(3)).state == "done"
    await more()
    refused = await job.replace("three")
    assert refused.state == "failed", "aggregate top has no home"
    await more()
    status = await job.stop()
    assert len(read) == len(set(read)), "a row was read twice"
    rows = collections.defaultdict(list)
    for row in target.rows():
        assert row["n"] == row["own"], row
        rows[row["key"]].append(row)
    assert set(rows) == set(range(KEYS))
    for of_key in rows.values():
        of_key.sort(key=lambda row: row["own"])
        assert [row["own"] for row in of_key] == list(range(1, len(of_key) + 1))
        programs_seen = [row["program"] for row in of_key]
        assert programs_seen == sorted(programs_seen), "nothing of the old program behind the barrier"
        sums = [row["sum"] for row in of_key if row["program"] == 2]
        assert sums == list(range(1, len(sums) + 1)), "new state begins at the barrier"
    reasons = [each.reason for each in status.recoveries]
    assert reasons[1].startswith("its program was replaced; new since checkpoint")
    assert reasons[2:] == ["rescaled from 2 to 3 slots"]


@pytest.mark.parametrize(
    ("program", "changes", "said"),
    [
        ("lossy", {}, "has state of operators that the job no longer has"),
        ("unwell", {}, "the new program did not start, and the one before goes on"),
    ],
)
async def test_a_program_that_cannot_go_on_leaves_the_job_as_it_was(
    tmp_path: Path, program: str, changes: dict[str, Any], said: str
) -> None:
    target, read = Target(), list[int]()
    programs = {"lossy": flow(target, Lossy, read, name="another"), "unwell": flow(target, Unwell, read)}
    job = Running(flow(target, Number, read), programs, tmp_path, parallelism=2)
    await job.until(lambda status: len(target.rows()) >= 200)
    told = await job.replace(program, **changes)
    assert told.state == "failed"
    assert said in told.error
    before = len(target.rows())
    status = await job.until(lambda status: len(target.rows()) >= before + 200)
    assert (status.program, status.parallelism) == ("", 2)
    await job.stop()
    assert len(read) == len(set(read)), "a row was read twice"
    seen = collections.Counter((row["key"], row["own"]) for row in target.rows())
    assert max(seen.values()) == 1


async def test_state_that_a_program_has_not_is_dropped_when_that_is_wanted(tmp_path: Path) -> None:
    target, read = Target(), list[int]()
    job = Running(flow(target, Number, read), {"lossy": flow(target, Lossy, read, name="another")}, tmp_path)
    await job.until(lambda status: len(target.rows()) >= 200)
    told = await job.replace("lossy", allow_non_restored=True)
    assert told.state == "done", told
    await job.until(lambda status: status.checkpoints.last_completed.checkpoint > told.checkpoint)
    assert (await job.stop()).outcome == "cancelled"
