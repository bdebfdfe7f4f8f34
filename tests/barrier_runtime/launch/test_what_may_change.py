"""The table in docs/operating.md of changes allowed at a restore, by kind of snapshot: one test per cell."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from test_replaced_jobs import First, flow

from barrier_runtime import InvalidJob, ProcessContext, ValueState
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from tests.barrier_runtime.running_job import RunningJob, Target, check_each_once


class Also(First):
    """Has one more state; the rows have the same columns."""

    also = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.also.value += 1
        return super().process(key, row, ctx)


KINDS = ("aligned checkpoint", "unaligned checkpoint", "savepoint")


async def left_behind(kind: str, folder: Path, target: Target, **options: Any) -> dict[str, Any]:
    """Ends a job without notice, or with a savepoint. Returns the options with which a successor restores."""
    unaligned = {"unaligned": True, "aligned_timeout": 0.0} if kind == "unaligned checkpoint" else {}
    job = RunningJob(flow(target, First, []), folder, **unaligned, **options)
    await job.rows_in(target, 300)
    if kind == "savepoint":
        url = f"{folder}-savepoint"
        job.runner.stop("checkpoint", SavepointRequest("kept", url, stops=True))
        await job.task
        return {"restore": url}
    job.runner.stop("now")
    await job.task
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", ["parallelism", "program", "state backend", "folder"])
async def test_a_job_goes_on_though_something_is_another(tmp_path: Path, kind: str, change: str) -> None:
    target, folder = Target(), tmp_path / "first"
    restored = await left_behind(kind, folder, target, parallelism=2)
    options: dict[str, Any] = {"parallelism": 3 if change == "parallelism" else 2, **restored}
    if change == "state backend":
        options["state_backend"] = "memory"
    if change == "folder":
        shutil.move(folder, tmp_path / "moved")
        folder = tmp_path / "moved"
    elif kind == "savepoint":
        folder = tmp_path / "second"
    job = RunningJob(flow(target, Also if change == "program" else First, []), folder, **options)
    await job.more_in(target, 300)
    assert job.runner.status().restored_checkpoint > 0
    await job.stop()
    check_each_once(target)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_another_number_of_key_groups_is_refused(tmp_path: Path, kind: str) -> None:
    target, folder = Target(), tmp_path / "first"
    restored = await left_behind(kind, folder, target, parallelism=2)
    with pytest.raises(InvalidJob, match="max_parallelism 128, the job now has 64: set 128"):
        await ended(RunningJob(flow(target, First, []), folder, max_parallelism=64, parallelism=2, **restored))


async def ended(job: RunningJob) -> None:
    """Raises the job's error as for a program."""
    status = await job.task
    if status.outcome == "failed":
        raise InvalidJob(status.error)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_under_another_name_only_a_savepoint_is_gone_on_with(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "first"
    restored = await left_behind(kind, folder, Target(), parallelism=2)
    target = Target()
    job = RunningJob(flow(target, First, [], job="fork"), folder, parallelism=2, **restored)
    await job.more_in(target, 300)
    await job.stop()
    first = min(row["n"] for row in target.rows())
    assert (first > 1, job.runner.status().restored_checkpoint > 0) == ((True, True) if restored else (False, False))
