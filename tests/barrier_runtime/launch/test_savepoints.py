"""Savepoints of whole jobs in this process: state, positions and rows of a job, a fork and a successor agree."""

import datetime
import shutil
import uuid
from itertools import pairwise
from pathlib import Path

import pytest

from barrier_runtime import Dataflow, Tumbling, count
from barrier_runtime.coordinator.checkpoints.savepoints import SavepointRequest
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.running_job import (
    RunningJob,
    Target,
    check_each_once,
    numbers_flow,
    numbers_of,
    without_gaps,
)

KEYS = 8  # of windows; even and odd numbers come from different splits
WIDTH = datetime.timedelta(milliseconds=200)


@pytest.mark.slow
@pytest.mark.parametrize(("parallelism", "later"), [(1, 3), (2, 2), (3, 5), (3, 1)])
async def test_a_successor_goes_on_where_the_job_stopped(tmp_path: Path, parallelism: int, later: int) -> None:
    """No row is lost or doubled: each key's numbers of both jobs are 1, 2, 3, and so on."""
    before, after = Target(), Target()
    job = RunningJob(numbers_flow(before, "job"), tmp_path / "job", parallelism=parallelism)
    await job.rows_in(before, 1_000)
    status = await job.stop(str(tmp_path / "savepoint"))
    assert status.savepoints[-1].state == "done"
    shutil.move(tmp_path / "savepoint", tmp_path / "elsewhere")
    shutil.rmtree(tmp_path / "job")
    successor = RunningJob(
        numbers_flow(after, "successor"), tmp_path / "new", parallelism=later, restore=str(tmp_path / "elsewhere")
    )
    await successor.rows_in(after, 1_000)
    await successor.stop()
    check_each_once(before, after)


@pytest.mark.slow
async def test_a_fork_goes_on_from_the_savepoint_and_the_job_is_not_disturbed(tmp_path: Path) -> None:
    target, forked = Target(), Target()
    job = RunningJob(numbers_flow(target, "job"), tmp_path / "job")
    await job.rows_in(target, 1_000)
    await job.savepoint(str(tmp_path / "savepoint"))
    fork = RunningJob(
        numbers_flow(forked, "fork"), tmp_path / "job", restore=str(tmp_path / "savepoint"), parallelism=3
    )
    await fork.rows_in(forked, 1_000)
    await fork.stop()
    await job.stop()
    check_each_once(target)
    origin, grown = numbers_of(target.rows()), numbers_of(forked.rows())
    assert all(without_gaps(of_key) for of_key in grown.values())
    assert all(grown[key][0] - 1 in origin[key] for key in grown), "it begins with what the job had counted"


@pytest.mark.slow
async def test_windows_and_timers_are_in_it(tmp_path: Path) -> None:
    """A window open in the savepoint has earlier and later rows once."""

    def windows(name: str, target: Target) -> Dataflow:
        flow = Dataflow(name)
        rows = flow.rate("numbers", 4_000, keys=KEYS, splits=2, event_time="intended_at")
        window = rows.key_by("key").window("w", Tumbling(WIDTH), event_time="intended_at")
        window.aggregate(n=count()).sink("out", target)
        return flow

    before, after = Target(), Target()
    job = RunningJob(windows("job", before), tmp_path / "job", unaligned=True)
    await job.rows_in(before, 30)
    await job.stop(str(tmp_path / "savepoint"))
    successor = RunningJob(windows("next", after), tmp_path / "job", restore=str(tmp_path / "savepoint"), parallelism=3)
    await successor.rows_in(after, 60)
    await successor.stop()
    rows = sorted((row["key"], row["window_start"], row["n"]) for row in [*before.rows(), *after.rows()])
    for key in range(KEYS):
        starts, numbers = zip(*((start, n) for of_key, start, n in rows if of_key == key), strict=True)
        assert {later - earlier for earlier, later in pairwise(starts)} == {WIDTH}
        assert set(numbers[1:]) == {100}, "4,000 rows/s make 100 in 200 ms for each of 8 keys"


@pytest.mark.slow
async def test_a_savepoint_where_one_is_already_is_refused_and_the_job_runs_on(tmp_path: Path) -> None:
    target = Target()
    job = RunningJob(numbers_flow(target, "job"), tmp_path / "job")
    await job.rows_in(target, 10)
    await job.savepoint(str(tmp_path / "savepoint"))
    job.runner.stop("checkpoint", SavepointRequest(uuid.uuid4().hex, str(tmp_path / "savepoint"), stops=True))
    await job.until(lambda status: status.savepoints[-1].state == "failed")
    await job.more_in(target, 500)
    await job.stop()
    check_each_once(target)


def test_wrong_places_are_refused_when_they_are_given(tmp_path: Path) -> None:
    target = Target()
    with pytest.raises(InvalidJob, match="there is no folder"):
        numbers_flow(target, "job").run_local(checkpoints=str(tmp_path / "ck"), restore=str(tmp_path / "none"))
    with pytest.raises(InvalidJob, match="the job has no folder of its own: give checkpoints="):
        numbers_flow(target, "job").run_local(restore=str(tmp_path / "none"))
    with pytest.raises(InvalidJob, match=r"restore='latest' names none: name one in restore=.* or leave restore_mode"):
        numbers_flow(target, "job").run_local(checkpoints=str(tmp_path / "ck"), restore_mode="claim")


@pytest.mark.slow
@pytest.mark.parametrize(("parallelism", "of_wall_clock"), [(1, False), (3, False), (3, True)])
async def test_drained_job_has_fired_all_windows_and_another_continues_only_if_allowed(
    tmp_path: Path, parallelism: int, of_wall_clock: bool
) -> None:
    """Windows of ten hours: none fires before the end. Each row read is in one window of each job."""
    size = Tumbling(datetime.timedelta(hours=10))

    def windows(name: str, target: Target, read: Target) -> Dataflow:
        flow = Dataflow(name)
        rows = flow.rate("numbers", 4_000, keys=KEYS, splits=3, event_time="intended_at")
        rows.sink("read", read)
        by_key = rows.key_by("key")
        if of_wall_clock:
            window = by_key.window("w", size, clock="processing")
        else:
            window = by_key.window("w", size, event_time="intended_at")
        window.aggregate(n=count()).sink("out", target)
        return flow

    out, read, folder, savepoint = Target(), Target(), tmp_path / "job", str(tmp_path / "savepoint")
    job = RunningJob(windows("job", out, read), folder, parallelism=parallelism)
    await job.rows_in(read, 1_000)
    assert not out.rows()
    status = await job.stop(savepoint, "drain")
    assert (status.outcome, status.savepoints[-1].state) == ("finished", "done"), status.error
    assert sum(row["n"] for row in out.rows()) == len(read.rows())
    with pytest.raises(InvalidJob, match="allow_drained"):
        RunningJob(windows("next", out, read), tmp_path / "next", restore=savepoint)
    refused = await RunningJob(windows("job", out, read), folder).task
    assert refused.outcome == "failed"
    assert "was drained" in refused.error

    later_out, later_read = Target(), Target()
    flow = windows("next", later_out, later_read)
    successor = RunningJob(flow, tmp_path / "next", restore=savepoint, allow_drained=True, parallelism=2)
    await successor.rows_in(later_read, 1_000)
    await successor.stop(mode="drain")
    assert sum(row["n"] for row in later_out.rows()) == len(later_read.rows()), "no row came late"
    values = sorted(row["value"] for row in [*read.rows(), *later_read.rows()])
    for split in range(3):
        of_split = [value for value in values if value % 3 == split]
        assert of_split == list(range(split, 3 * len(of_split), 3)), "no row was lost or read twice"
