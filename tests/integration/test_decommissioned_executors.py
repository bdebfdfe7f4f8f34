"""Spark decommissions an executor of a local cluster: the slot moves to another executor at a barrier."""

import os
import signal

import psutil
import pytest

from barrier_runtime import Dataflow, JsonlSink
from tests.waiting import until


def noted(folder):
    """Notes each row that a process reads: a row that is read again is noted twice."""

    def note(row):
        with open(f"{folder}/{os.getpid()}", "a") as seen:
            seen.write(f"{row['value']}\n")
        return {"value": row["value"]}

    return note


def executor_of(pid):
    process = psutil.Process(pid)
    while "java" not in process.name():
        process = process.parent()
    return process


def running(job, condition):
    def found():
        status = job.status()
        return status if status is not None and status.phase == "running" and condition(status) else None

    return until(found, "the job runs", 300)


@pytest.mark.spark
@pytest.mark.long(40)
def test_slot_moves_off_a_decommissioned_executor_and_no_row_is_read_twice(tmp_path):
    (tmp_path / "seen").mkdir()
    flow = Dataflow("leaves")
    rows = flow.rate("ticks", 500, splits=4).map(noted(str(tmp_path / "seen")), schema={"value": int})
    rows.sink("out", JsonlSink(str(tmp_path / "out")))
    options = {"checkpoints": str(tmp_path / "jobs"), "checkpoint_interval": 0.5, "resource_wait_timeout": 300}
    with flow.start(
        master="local-cluster[2,2,1024]", parallelism=2, ui=False, insecure_network_ok=True, **options
    ) as job:
        leaver = running(job, lambda status: status.checkpoints.completed > 2).slots[1]
        executor = executor_of(leaver.pid)
        os.kill(executor.pid, signal.SIGPWR)
        status = running(job, lambda status: status.slots[1].pid != leaver.pid)
        assert [(each.what, each.state) for each in status.rescales] == [("move off a host", "done")]
        assert status.generations == 2
        assert psutil.wait_procs([executor], timeout=120)[0], "Spark ends an executor without tasks"
        completed = status.checkpoints.completed
        running(job, lambda status: status.checkpoints.completed > completed + 1)
    seen = [int(line) for file in (tmp_path / "seen").iterdir() for line in file.read_text().splitlines()]
    assert len(seen) == len(set(seen)), "rows were read twice"
