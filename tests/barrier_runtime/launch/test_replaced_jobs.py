"""Jobs in one process whose program is replaced while they run: rows, and state that is kept, added or converted."""

import collections
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import Dataflow, ProcessContext, ValueState, count, max_
from tests.barrier_runtime.running_job import KEYS, ROWS_PER_S, Number, RunningJob, Target, check_each_once


class First(Number):
    program = 1

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        numbered = super().process(key, row, ctx)
        return [{**each, "program": self.program, "sum": 0, "top": 0} for each in numbered]


class Summed(First):
    total = ValueState(int, default=0)
    program = 2

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.total.value += 1
        found = super().process(key, row, ctx)
        return [{**each, "sum": self.total.value, "top": row["top"]} for each in found]


class Unwell(First):
    def open(self, ctx: Any) -> None:
        raise RuntimeError("no such table: rules")


class Lossy:
    other = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        return []


SCHEMA = {"key": int, "n": int, "own": int, "program": int, "sum": int, "top": int}


def flow(target: Target, function: type, read: list[int], name: str = "own", job: str = "job") -> Dataflow:
    flow = Dataflow(job)
    rows = flow.rate("numbers", ROWS_PER_S, keys=KEYS, splits=5).select(["key", "value"])
    rows = rows.filter(lambda row: read.append(row["value"]) or True)
    aggregates = {"n": count()} if function is not Summed else {"n": count(), "top": max_("value")}
    counted = rows.key_by("key").aggregate("count", **aggregates)
    counted.key_by("key").process(name, function, schema=SCHEMA).sink("out", target)
    return flow


@pytest.mark.slow
@pytest.mark.parametrize("unaligned", [False, True])
async def test_job_survives_program_and_parallelism_changes_without_loss_or_duplicates(
    tmp_path: Path, unaligned: bool
) -> None:
    """Each key's numbers are 1, 2, 3, and so on; new state begins at the barrier, and state removed and added again
    keeps the values.
    """
    target, read = Target(), list[int]()
    programs = {"two": flow(target, Summed, read), "three": flow(target, First, read)}
    job = RunningJob(flow(target, First, read), tmp_path, programs, parallelism=2, unaligned=unaligned)
    await job.more_in(target, 300)
    told = await job.replace("two")
    assert (told.state, told.kind, told.error) == ("done", "replace", ""), told
    await job.more_in(target, 300)
    assert (await job.rescale(3)).state == "done"
    await job.more_in(target, 300)
    refused = await job.replace("three")
    assert refused.state == "failed", "aggregate top has no home"
    await job.more_in(target, 300)
    status = await job.stop()
    assert len(read) == len(set(read)), "a row was read twice"
    check_each_once(target)
    rows = collections.defaultdict(list)
    for row in target.rows():
        rows[row["key"]].append(row)
    for of_key in rows.values():
        of_key.sort(key=lambda row: row["own"])
        programs_seen = [row["program"] for row in of_key]
        assert programs_seen == sorted(programs_seen), "nothing of the old program behind the barrier"
        sums = [row["sum"] for row in of_key if row["program"] == 2]
        assert sums == list(range(1, len(sums) + 1)), "new state begins at the barrier"
    reasons = [each.reason for each in status.recoveries]
    assert reasons[1].startswith("its program was replaced; new since checkpoint")
    assert reasons[2:] == ["rescaled from 2 to 3 slots"]


@pytest.mark.slow
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
    job = RunningJob(flow(target, First, read), tmp_path, programs, parallelism=2)
    await job.rows_in(target, 200)
    told = await job.replace(program, **changes)
    assert told.state == "failed"
    assert said in told.error
    status = await job.more_in(target, 200)
    assert (status.program, status.parallelism) == ("", 2)
    await job.stop()
    assert len(read) == len(set(read)), "a row was read twice"
    seen = collections.Counter((row["key"], row["own"]) for row in target.rows())
    assert max(seen.values()) == 1


@pytest.mark.slow
async def test_state_that_a_program_has_not_is_dropped_when_that_is_wanted(tmp_path: Path) -> None:
    target, read = Target(), list[int]()
    programs = {"lossy": flow(target, Lossy, read, name="another")}
    job = RunningJob(flow(target, First, read), tmp_path, programs)
    await job.rows_in(target, 200)
    told = await job.replace("lossy", allow_non_restored=True)
    assert told.state == "done", told
    await job.until(lambda status: status.checkpoints.last_completed.checkpoint > told.checkpoint)
    assert (await job.stop()).outcome == "cancelled"
