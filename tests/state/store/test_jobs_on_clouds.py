"""Jobs with checkpoints and files in emulators of Azure Blob and Google Cloud Storage."""

import inspect
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from barrier_runtime import Dataflow, JsonlSink, compact_files, count
from barrier_runtime.connectors.files.sink.commit_log import read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import live_files
from barrier_runtime.state.store.open import open_store
from tests.cloud_emulators import Cloud
from tests.waiting import until


@pytest.mark.slow
def test_a_job_keeps_its_checkpoints_and_files_there(cloud: Cloud) -> None:
    checkpoints, target = cloud.new_url(), cloud.new_url()

    def run() -> None:
        flow = Dataflow("clouds")
        rows = flow.rate("numbers", 1_000, 600, keys=7)
        rows.key_by("key").aggregate("counts", n=count()).sink("out", JsonlSink(target, partition_by="key"))
        flow.run_local(parallelism=2, checkpoints=checkpoints, checkpoint_interval=0.1)

    run()
    run()  # restores the last checkpoint, with no input left, and writes no row again
    store = open_store(target)

    def rows_seen() -> int:
        files = live_files(read_commit_log(store, "clouds", "out"))
        return sum(len(store.get(file.name).splitlines()) for file in files)

    assert rows_seen() == 600
    for _ in range(3):
        compact_files(target, keep_s=0)
        assert rows_seen() == 600
    assert len(live_files(read_commit_log(store, "clouds", "out"))) == 7


@pytest.mark.slow
def test_a_job_outlives_a_stop_of_the_server(cloud: Cloud) -> None:
    """Checkpoints and files are on the server. Requests are cut off and refused while the job runs."""
    checkpoints, target = cloud.new_url(), cloud.new_url()
    store, rows = open_store(target), 1_000
    flow = Dataflow("clouds-away")
    flow.rate("numbers", 500, rows).select(["value"]).sink("out", JsonlSink(target))

    def seen() -> list[int]:
        files = live_files(read_commit_log(store, "clouds-away", "out"))
        return sorted(json.loads(line)["value"] for file in files for line in store.get(file.name).splitlines())

    options: dict[str, Any] = {"restart": "fixed_delay", "restart_attempts": None, "restart_delay": 0.2}
    with flow.start_local(parallelism=2, checkpoints=checkpoints, checkpoint_interval=0.1, **options) as job:
        until(lambda: len(seen()) >= 400)
        cloud.emulator.stop()
        try:
            time.sleep(0.5)  # a request or more fails
        finally:
            cloud.emulator.start()
        job.wait(300)
    assert seen() == list(range(rows))


def killed(checkpoints: str, target: str, ends: str = "yes") -> None:
    """Counts numbers by key; unless the job `ends`, no number comes after the first 900."""

    def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
        for value in range(1_500):
            while value == 900 and ends != "yes":
                time.sleep(0.1)
            yield {"value": value, "key": value % 7}

    flow = Dataflow("killed")
    rows = flow.from_iterator("numbers", numbers, schema={"value": int, "key": int}, splits=1)
    rows.key_by("key").aggregate("counts", n=count()).sink("out", JsonlSink(target))
    flow.run_local(parallelism=2, checkpoints=checkpoints, checkpoint_interval=0.2)


_PROGRAM = (
    "from collections.abc import Iterator\nfrom barrier_runtime import Dataflow, JsonlSink, count\nimport sys, time\n"
)
_PROGRAM += f"{inspect.getsource(killed)}\nkilled(*sys.argv[1:])\n"


@pytest.mark.slow
def test_a_job_that_is_killed_goes_on_from_its_checkpoint_there(cloud: Cloud) -> None:
    """SIGKILL after rows have become visible: each row is visible once, and counts continue from the state."""
    checkpoints, target = cloud.new_url(), cloud.new_url()
    store = open_store(target)

    def rows() -> list[dict[str, int]]:
        files = live_files(read_commit_log(store, "killed", "out"))
        return [json.loads(line) for file in files for line in store.get(file.name).splitlines()]

    job = subprocess.Popen([sys.executable, "-c", _PROGRAM, checkpoints, target, "no"])
    try:
        until(lambda: job.poll() is not None or len(rows()) >= 300)
        assert job.poll() is None
    finally:
        job.kill()
        job.wait()
    killed(checkpoints, target)
    assert sorted((row["key"], row["n"]) for row in rows()) == [
        (key, n) for key in range(7) for n in range(1, 1 + len(range(key, 1_500, 7)))
    ]
