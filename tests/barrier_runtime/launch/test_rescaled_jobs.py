"""Jobs in one process whose parallelism changes while they run: rows, keyed state, timers and reads of the source."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.launch import local
from barrier_runtime.launch.requests import RescaleFailed, rescale_asked, wait_for_rescale
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted
from tests.barrier_runtime.running_job import PATIENCE_S, RunningJob, Target, check_each_once, numbers_flow


@pytest.mark.slow
@pytest.mark.parametrize("unaligned", [False, True])
async def test_a_job_goes_through_other_parallelisms_and_loses_doubles_and_repeats_nothing(
    tmp_path: Path, unaligned: bool
) -> None:
    """Each key's numbers are 1, 2, 3, and so on, and no row came out of a source twice in all six generations."""
    target, read = Target(), list[int]()
    job = RunningJob(numbers_flow(target, read=read), tmp_path, parallelism=2, unaligned=unaligned)
    for parallelism in (4, 3, 2, 5, 1):
        await job.more_in(target, 400)
        told = await job.rescale(parallelism)
        assert (told.state, told.parallelism, told.error) == ("done", parallelism, ""), told
        assert told.pause_ms is not None
        status = job.runner.status()
        assert (status.parallelism, len(status.slots)) == (parallelism, parallelism)
        assert status.token == status.recoveries[-1].token
    await job.more_in(target, 400)
    replayed = len(read) - len(set(read))
    status = await job.stop()
    assert replayed == 0
    check_each_once(target)
    assert [each.reason for each in status.recoveries][1:] == [
        f"rescaled from {before} to {counted(after, 'slot')}"
        for before, after in [(2, 4), (4, 3), (3, 2), (2, 5), (5, 1)]
    ]


@pytest.mark.slow
async def test_no_slots_in_time_and_the_job_goes_on_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def starts_none(*_: object) -> None:
        """Starts no slots: slots in the same process would register within a millisecond."""
        await asyncio.Event().wait()

    monkeypatch.setattr(local, "_start_standbys", starts_none)
    target = Target()
    job = RunningJob(numbers_flow(target), tmp_path, parallelism=2)
    await job.rows_in(target, 100)
    token = job.runner.status().token
    told = await job.rescale(4, timeout_ms=1)
    assert (told.state, told.pause_ms, told.checkpoint) == ("failed", None, None)
    assert "did not come within 0.001 s; the job goes on with 2" in told.error
    status = await job.more_in(target, 100)
    assert (status.token, status.parallelism, status.phase) == (token, 2, "running")
    again = await job.rescale(2)
    assert (again.state, again.checkpoint) == ("done", None), "there is nothing to do"
    with pytest.raises(InvalidJob, match="give 1 to 128, the job's max_parallelism"):
        job.runner.rescale(RescaleRequest("too-many", 129))
    status = await job.stop()
    assert status.outcome == "cancelled"
    assert [each.state for each in status.rescales] == ["failed", "done"]


async def test_a_wish_that_the_end_of_the_job_makes_void_is_told_so(tmp_path: Path) -> None:
    target, asked = Target(), rescale_asked(4, 60.0)
    job = RunningJob(numbers_flow(target), tmp_path, parallelism=2)
    await job.rows_in(target, 100)
    job.runner.rescale(RescaleRequest(asked.id, asked.parallelism))
    job.runner.stop("now", None)
    status = await asyncio.wait_for(job.task, PATIENCE_S)
    assert [(each.id, each.state) for each in status.rescales] == [(asked.id, "failed")]
    with pytest.raises(RescaleFailed, match=r"^job job ended \(stopped\) before it was rescaled$"):
        wait_for_rescale("job", asked, lambda: None, lambda: status)
    failed = msgspec.structs.replace(status, outcome="failed", error="its program was replaced")
    with pytest.raises(
        RescaleFailed, match=r"^job job ended \(failed\) before it was rescaled: its program was replaced$"
    ):
        wait_for_rescale("job", asked, lambda: None, lambda: failed)
