"""The driver and a Spark task in edge cases of a job: a coordinator that is gone for good, a dismissed slot."""

import asyncio
import fcntl
import gc
import os
import signal
import subprocess
import sys
import tempfile

import pytest

from barrier_runtime.coordinator.wire.messages import ChainSpec, JobSpec, Shutdown
from barrier_runtime.launch.coordinator_of_job import CoordinatorOfJob
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.spark.session import settings_of
from barrier_runtime.spark.task import (
    _run_on_new_loop,
    lent_environment,
    living_in,
    remove_what_the_dead_left,
    result_of,
)
from barrier_runtime.state.errors import Unavailable
from tests.waiting import until

SPEC = JobSpec(
    job="flights",
    run_id="run-1",
    submitter="ann@host pid 1",
    parallelism=1,
    max_parallelism=128,
    chains=(ChainSpec(chain=0, operators=("numbers", "out"), sinks=("out",), is_source=True),),
)


@pytest.fixture
def coordinator(tmp_path):
    found = CoordinatorOfJob(SPEC, JobOptions(checkpoints=str(tmp_path / "checkpoints")))
    yield found
    found.close()


@pytest.mark.slow
def test_a_killed_coordinator_is_waited_for(coordinator):
    pid = coordinator.pid
    assert coordinator.status().run_id == "run-1"
    os.kill(pid, signal.SIGKILL)
    until(lambda: coordinator.pid != pid and coordinator.status(), "its successor to know the run")


@pytest.mark.slow
def test_a_coordinator_that_can_not_be_started_again_ends_the_waiting_with_its_words(
    coordinator, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    coordinator._embedded._token_file.unlink()
    os.kill(coordinator.pid, signal.SIGKILL)

    def refused():
        try:
            coordinator.status()
        except Unavailable as error:
            return str(error)
        return None

    assert "can't be kept alive" in until(refused, "the error")
    assert "gone" in refused()


def test_a_slot_that_was_replaced_fails_its_task_so_that_spark_starts_another():
    """Z8, rP6: Spark treats a returned task as done, so the slot would stay empty."""
    assert result_of(1, Shutdown("finished", "all read")) == (1, "finished", "all read")
    with pytest.raises(Unavailable, match=r"slot 1 .* was silent"):
        result_of(1, Shutdown("replaced", "it was silent"))


def test_no_task_outlives_the_loop_of_a_slot_that_leaves(caplog):
    """For each such task Python would log "Task was destroyed but it is pending" in the executor's log."""
    ended: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def lasting():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async def leaves():
        tasks.append(
            asyncio.get_running_loop().create_task(lasting())
        )  # the reference keeps the waiting task from being collected
        await asyncio.sleep(0)
        return Shutdown("finished", "")

    gc.collect()  # of earlier tests
    caplog.clear()
    assert _run_on_new_loop(leaves()) == Shutdown("finished", "")
    gc.collect()
    assert ended == ["cleaned up"]
    assert "destroyed" not in caplog.text


def test_only_the_folders_of_dead_slots_are_removed(tmp_path):
    """A folder in use contains open databases; process ids are meaningless across containers."""
    living, dead, newborn = (tmp_path / "run" / name for name in ("0-living", "1-dead", "2-newborn"))
    killed, beside = tmp_path / "killed-run" / "0-dead", tmp_path / "other-run" / "0-living"
    for folder in (living, dead, newborn, killed, beside):
        folder.mkdir(parents=True)
    with living_in(dead):
        pass
    with living_in(killed):
        pass
    with living_in(living), living_in(beside):
        remove_what_the_dead_left(tmp_path)
        left = [str(entry.relative_to(tmp_path)) for entry in tmp_path.rglob("*") if entry.is_dir()]
        assert sorted(left) == ["other-run", "other-run/0-living", "run", "run/0-living", "run/2-newborn"]
        with (living / "life.lock").open() as life, pytest.raises(BlockingIOError):
            fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
    remove_what_the_dead_left(tmp_path / "never-made")


def test_a_folder_stays_that_another_slot_looks_at_before_its_lock_is_held(tmp_path, monkeypatch):
    """Slots of a host begin together, and each looks for folders of dead slots."""
    folder = tmp_path / "run" / "0-begins"
    folder.mkdir(parents=True)
    flock = fcntl.flock

    def looked_at_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        remove_what_the_dead_left(tmp_path)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", looked_at_first)
    with living_in(folder):
        remove_what_the_dead_left(tmp_path)
        assert folder.is_dir()
    remove_what_the_dead_left(tmp_path)
    assert not folder.is_dir()


@pytest.mark.slow
def test_the_worker_daemon_has_everything_a_slot_needs_before_it_forks():
    """Imports after the fork delay the replacement of a killed slot."""
    script = """
import sys
from barrier_runtime.spark import worker_daemon
worker_daemon.preload()
loaded = set(sys.modules)
from barrier_runtime.spark.stage import _slot_partition
import barrier_runtime.connectors.files.sink.sink, barrier_runtime.connectors.files.source.parquet
import barrier_runtime.operators.functions.process, barrier_runtime.operators.windows.operator
import barrier_runtime.runtime.execution, rocksdict, uvloop
print(sorted(set(sys.modules) - loaded))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_the_worker_daemon_of_a_job_on_s3_imports_its_clients_before_it_forks():
    script = """
import os, sys
from barrier_runtime.spark.session import STORE
os.environ.update({STORE: sys.argv[1], "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"})
from barrier_runtime.spark import worker_daemon
worker_daemon.preload()
loaded = set(sys.modules)
from barrier_runtime.state.store.open import open_store
open_store("s3://bucket/prefix")
print(len(set(sys.modules) - loaded) > 0)
"""
    late = {}
    for scheme in ("file", "s3"):
        command = [sys.executable, "-c", script, scheme]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        late[scheme] = done.stdout.strip()
    assert late == {"file": "True", "s3": "False"}


def test_forked_worker_rereads_no_archive_and_collector_skips_earlier_imports(tmp_path):
    """Every worker of pyspark, which is packed in an archive, begins with `importlib.invalidate_caches`."""
    script = """
import gc, importlib, os, sys, zipfile, zipimport
path = sys.argv[1]
with zipfile.ZipFile(path, "w") as archive:
    for name in ("first", "second"):
        archive.writestr(f"packed/{name}.py", f"name = {name!r}")
    archive.writestr("packed/__init__.py", "")
sys.path.insert(0, path)
import packed.first
from barrier_runtime.spark import worker_daemon
read = []
really = zipimport._read_directory
zipimport._read_directory = lambda archive: read.append(archive) or really(archive)
importlib.invalidate_caches()
seen = len(read)
worker_daemon.forget_archives()
worker_daemon.keep_from_collector()
importlib.invalidate_caches()
import packed.second
print(seen, len(read) - seen, packed.second.name, len(gc.get_objects()) < 1_000 < gc.get_freeze_count())
"""
    command = [sys.executable, "-c", script, str(tmp_path / "archive.zip")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "2 0 second True"


def test_endpoint_of_a_job_is_cleared_before_the_next_job_in_the_same_worker(monkeypatch):
    monkeypatch.setenv("AWS_REGION", "of-the-worker")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    for endpoint in ("http://first", "http://second"):
        with lent_environment({"AWS_ENDPOINT_URL": endpoint, "AWS_REGION": "of-the-driver"}):
            assert os.environ["AWS_ENDPOINT_URL"] == endpoint
            assert os.environ["AWS_REGION"] == "of-the-worker"
        assert "AWS_ENDPOINT_URL" not in os.environ
    assert os.environ["AWS_REGION"] == "of-the-worker"


@pytest.mark.parametrize(("master", "within"), [("spark://node-1:7077", "20s"), ("yarn", "20s"), ("local[4]", None)])
def test_a_session_of_a_cluster_notices_lost_executors_in_seconds(master, within):
    """A local master has a single executor, which a stall of the process must not lose."""
    assert settings_of(master).get("spark.storage.blockManagerHeartbeatTimeoutMs") == within
