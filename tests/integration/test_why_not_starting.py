"""Reasons why a job on Spark does not start: the jobs that hold the cores, as Spark reports them. `handle.why()`,
report and command.
"""

import subprocess
import threading
import time
from pathlib import Path

import pytest
from harness import counting_flow, verdict
from test_operating import COMMAND, running_daemon

from barrier_runtime.spark.stage import SparkCarrier
from tests.waiting import until

pytestmark = pytest.mark.spark


def hold(spark, cores: int, released: Path, description: str) -> threading.Thread:
    """A Spark job of the user, in the same session, that keeps so many cores until the file exists."""
    name = str(released)

    def wait(_: int) -> None:
        while not Path(name).exists():
            time.sleep(0.05)

    def run() -> None:
        spark.sparkContext.setLocalProperty("spark.job.description", description)
        spark.sparkContext.parallelize(range(cores), cores).foreach(wait)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_a_job_that_waits_for_cores_says_who_holds_them_until_it_has_them(spark, tmp_path: Path) -> None:
    rows, released = 2_000, tmp_path / "released"
    holding = hold(spark, 3, released, "nightly export")
    try:
        store = spark.sparkContext._jsc.sc().statusStore()
        until(lambda: any(job_tasks(store)) and max(job_tasks(store)) == 3, "the other job has its cores")
        with running_daemon(tmp_path) as daemon:
            options = {"spark": spark, "parallelism": 2, "checkpoint_interval": 0.3, **daemon.options()}
            with counting_flow("starved", tmp_path / "out", rows, 4_000).start(**options) as handle:
                until(lambda: handle.status().missing_slots == (1,), "one slot has come")
                until(lambda: "held by" in str(handle.why()), "it is known who holds the cores")
                sentence = handle.why().reasons[0].sentence
                assert sentence == (
                    "Job starved does not start: it needs 2 slots, free 1 of 4 cores, held by nightly export (3)."
                )
                assert "stop a job, add executors, or use a smaller parallelism" in str(handle.why())
                assert sentence in said(daemon, "why", "starved"), "who asks from elsewhere hears the same"
                assert sentence in handle.report().decode()
                until(lambda: handle.status().room.starting == 1, "one of its slots has a core")
                released.touch()
                until(lambda: handle.status().phase == "running", "it runs")
                assert "held by" not in str(handle.why())
                assert handle.wait(180).records == rows
    finally:
        released.touch()
        holding.join(60)
    assert verdict(tmp_path / "out", rows).right


def job_tasks(store) -> list[int]:
    jobs = store.jobsList(None)
    return [jobs.apply(index).numActiveTasks() for index in range(jobs.size())]


def said(daemon, *command: str) -> str:
    address = ["--coordinator", daemon.url, "--token-file", str(daemon.token_file)]
    return subprocess.run([COMMAND, *command, *address], capture_output=True, text=True, check=True, timeout=120).stdout


def test_a_slot_prefers_the_hosts_that_it_is_submitted_for(spark) -> None:
    placed = SparkCarrier(spark, own_session=False)._slots_on([3, 4], ["worker-b"])
    assert placed.map(lambda slot: 2 * slot).collect() == [6, 8]
    of_spark = placed._jrdd.rdd()
    assert [of_spark.preferredLocations(each).mkString() for each in of_spark.partitions()] == ["worker-b"] * 2
