"""A job on Spark with `at_least`: a slot stays away, the job goes on with the others, and returns to all slots."""

from pathlib import Path

import pytest
from away import Same
from harness import NumbersUntilEnough, enough, kill, verdict

from barrier_runtime import Dataflow, count
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.spark.stage import _group_of, _jobs
from tests.waiting import until

pytestmark = pytest.mark.spark

RATE, ROWS = 500, 30_000


def test_a_job_goes_on_without_a_slot_that_stays_away_and_returns_to_all(spark, tmp_path: Path) -> None:
    out, away = tmp_path / "out", tmp_path / "away"
    flow = Dataflow("narrow")
    numbers = flow.source("numbers", NumbersUntilEnough(RATE, ROWS, keys=200, out=str(out)))
    numbers.map(Same(str(away))).key_by("key").aggregate("count", n=count()).sink("out", JsonlSink(str(out)))
    options = {"parallelism": 2, "at_least": 1, "degrade_after": 1.0, "checkpoint_interval": 0.3}
    try:
        with flow.start(spark=spark, checkpoints=str(tmp_path / "checkpoints"), **options) as handle:
            until(lambda: handle.status().checkpoints.completed > 1, "there is state")
            away.touch()
            kill(next(slot.pid for slot in handle.status().slots if slot.slot == 1))
            until(lambda: runs_with(handle, 1), "it goes on with one slot")
            completed = handle.status().checkpoints.completed
            until(lambda: handle.status().checkpoints.completed > completed + 1, "rows become visible meanwhile")
            assert " without slot 1 of host " in handle.status().condition_reason
            assert "runs with 1 of 2 slots, because slot 1 of host " in str(handle.why())
            assert b"with 1 of 2 slots without slot 1" in handle.report(), "the page says the same"
            jobs = until(lambda: jobs_of_slot_1(spark, handle), "Spark runs a job for the missing slot")
            for job in jobs:
                spark.sparkContext._jsc.sc().cancelJob(job)  # as on Spark's page
            until(lambda: jobs_of_slot_1(spark, handle) - jobs, "and another, as the slot is still wanted")
            away.unlink()
            until(lambda: runs_with(handle, 2), "it has returned to all slots")
            enough(out)
            status = handle.wait(300).status
    finally:
        away.unlink(missing_ok=True)
    assert verdict(out, ROWS).right, verdict(out, ROWS)
    assert [(each.before, each.parallelism, each.state) for each in status.rescales][-1] == (1, 2, "done")


def runs_with(handle, slots: int) -> bool:
    status = handle.status()
    return (status.phase, status.parallelism) == ("running", slots)


def jobs_of_slot_1(spark, handle) -> set[int]:
    running = [job for job in _jobs(spark) if job.status().toString() == "RUNNING"]
    return {job.jobId() for job in running if _group_of(job).startswith(f"{handle._slots.group}-1-")}
