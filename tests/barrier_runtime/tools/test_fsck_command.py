"""`barrier-runtime fsck` from an operator's view: on files that killed jobs left in a folder and on S3."""

import json
import os
import pty
import shutil
import signal
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import COMMAND, Done, run_here

from barrier_runtime.connectors.files.sink.commit_record import COMMIT_RECORD_VERSION
from barrier_runtime.coordinator.log.records import RECORD_VERSION
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from tests.waiting import until

PATHS = Paths("killed")
APP = """
    import pyarrow.compute as pc

    from barrier_runtime import Dataflow, JsonlSink, count

    flow = Dataflow("killed")
    numbers = flow.rate("numbers", 20_000, None, keys=20_000)
    scattered = numbers.select({{"key": pc.field("key") * 0x9E3779B97F}})  # state that is objects of its own
    scattered.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink("{out}"))
"""


def fsck(*arguments: str) -> Done:
    return run_here("fsck", *arguments)


def as_json(*arguments: str) -> dict:
    done = fsck(*arguments, "--format", "json")
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["exit_code"] == done.returncode
    return report


def records(store: ObjectStore) -> int:
    return sum(1 for _ in store.list(PATHS.log_prefix))


def run_and_kill(folder: Path, url: str) -> ObjectStore:
    """Runs the job of `folder` for some checkpoints, and kills the job with SIGKILL."""
    app = folder / "app.py"
    app.write_text(textwrap.dedent(APP.format(out=folder / "out")))
    command = [*COMMAND, "run", f"{app}:flow", "--local", "--interval", "0.1", "--checkpoints", url]
    store = open_store(url)
    wanted = records(store) + 5
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: records(store) >= wanted or running.poll() is not None, f"{wanted} log records")
    assert running.poll() is None, running.communicate()[0]
    running.send_signal(signal.SIGKILL)
    running.communicate()
    return store


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a job that was killed twice."""
    folder = tmp_path_factory.mktemp("original") / "job"
    folder.mkdir()
    for _ in range(2):
        run_and_kill(folder, str(folder / "checkpoints"))
    return folder


@pytest.fixture
def killed(original: Path, tmp_path: Path) -> Iterator[Path]:
    """Yields the killed job's folder under the path of the job's rows; restores the folder afterwards."""
    shutil.copytree(original, tmp_path / "kept")
    yield original
    shutil.rmtree(original)
    shutil.copytree(tmp_path / "kept", original)


@pytest.mark.slow
def test_a_terminal_shows_progress_and_a_pipe_does_not(killed: Path) -> None:
    controller, terminal = pty.openpty()
    done = subprocess.run(
        [*COMMAND, "fsck", str(killed / "checkpoints")],
        stdout=subprocess.PIPE,
        stderr=terminal,
        timeout=120,
        check=True,
    )
    os.close(terminal)
    assert b"killed: log records" in os.read(controller, 1 << 16)
    os.close(controller)
    assert b"log records," in done.stdout
    assert b"\x1b" not in done.stdout
    piped = fsck(str(killed / "checkpoints"))
    assert (piped.returncode, piped.stderr) == (0, "")


@pytest.fixture(params=["folder", "s3"])
def url(request: pytest.FixtureRequest, killed: Path) -> str:
    """URL where the job continues: the job's folder, or a bucket to which all objects were moved."""
    folder = str(killed / "checkpoints")
    if request.param == "folder":
        return folder
    s3_url: Callable[[str], str] = request.getfixturevalue("s3_url")
    moved, bucket = open_store(folder), open_store(s3_url("some/checkpoints"))
    for found in moved.list(""):
        bucket.put(found.key, moved.get(found.key))
    return s3_url("some/checkpoints")


@pytest.mark.slow
def test_a_killed_job_is_whole_and_its_orphans_go_when_asked(killed: Path, url: str) -> None:
    """I1, I2, S9: after a byte of a snapshot file is changed, the exit code reports the damage."""
    store = open_store(url)
    store.put("killed/data/1/slot/never-decided", b"of a checkpoint that was under way at the kill")
    report = as_json(url, "--min-age", "0")
    (job,) = report["jobs"]
    assert (report["exit_code"], job["damage"], job["records"]) == (1, [], records(store))
    assert job["verified"] == [job["checkpoint"]]
    assert job["files"] > 0
    orphans = {each["key"] for each in job["unreferenced"] if each["state"] == "orphan"}
    assert "killed/data/1/slot/never-decided" in orphans

    done = fsck(url, "--min-age", "0", "--delete")
    assert (done.returncode, done.stderr) == (0, "")
    assert "deleted  killed/data/1/slot/never-decided" in done.stdout
    assert "upload of generation 1 that no retained checkpoint names" in done.stdout
    assert done.stdout.endswith("clean\n")
    assert not orphans & {found.key for found in store.list("")}
    run_and_kill(killed, url)  # the job continues from there

    (job,) = as_json(url)["jobs"]
    assert [each for each in job["unreferenced"] if each["state"] == "orphan"] == [], "too young"
    loose = {each["key"] for each in job["unreferenced"]}
    key = next(found.key for found in store.list(PATHS.data_prefix) if found.key not in loose)
    whole = store.get(key)
    middle = len(whole) // 2
    store.put(key, whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    damaged = fsck(url, "--job", "killed", "--min-age", "0", "--delete")
    assert damaged.returncode == 2
    for line in (f"damage   {key}", "expected: ", "found:    ", "remedy:   restore the object", "1 damaged"):
        assert line in damaged.stdout
    assert loose <= {found.key for found in store.list("")}, "nothing is deleted where anything is damaged"


# ---------------------------------------------------------------- failed checks


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{folder}/nowhere"], "there is no folder {folder}/nowhere"),
        (["{folder}"], "there is no job below file://{folder}: give the URL that the job has as checkpoints="),
        (["{folder}", "--job", "mine"], "there is no job mine below"),
        (["{folder}", "--job", "../up"], "job"),
        (["{folder}", "--format", "xml"], "--format 'xml' is not known: use text or json"),
        (["{folder}", "--min-age", "-1"], "--min-age -1.0: give seconds"),
        (["hdfs://host/path"], "use webhdfs://namenode:9870/folder"),
        (["ftp://host/path"], "unknown scheme 'ftp'"),
        (["s3://key:secret@bucket/x"], "must not carry credentials"),
    ],
)
def test_what_cannot_be_checked_is_explained(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = fsck(*(argument.format(folder=tmp_path) for argument in arguments))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert said.format(folder=tmp_path) in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == [], "looking makes no folder"


def of_a_newer_release(folder: Path, version: int) -> str:
    """Returns a record without a stamp, as a newer release may write it."""
    (folder / "_commits" / "flights" / "out").mkdir(parents=True)
    return json.dumps({"version": version})


def test_a_newer_commit_log_is_not_checked_and_not_called_damaged(tmp_path: Path) -> None:
    """A backup in its place would roll back a log that a newer release writes."""
    record = of_a_newer_release(tmp_path, COMMIT_RECORD_VERSION + 1)
    (tmp_path / "_commits" / "flights" / "out" / f"{1:020d}.json").write_text(record)
    done = fsck(str(tmp_path), "--job", "flights")
    assert (done.returncode, done.stderr) == (2, "")
    assert "not checked: commit record" in done.stdout
    assert "a newer release wrote it: use that release" in done.stdout
    assert done.stdout.endswith("1 not checked\n")
    assert "remedy" not in done.stdout


def test_a_newer_job_beside_a_commit_log_is_never_called_clean(tmp_path: Path) -> None:
    record = of_a_newer_release(tmp_path, RECORD_VERSION + 1)
    key = tmp_path / Paths("flights").log_record(1)
    key.parent.mkdir(parents=True)
    key.write_text(record)
    (tmp_path / "_commits" / "flights" / "out" / f"{1:020d}.json").write_text("{}")
    done = fsck(str(tmp_path), "--job", "flights")
    assert (done.returncode, done.stdout) == (3, "")
    assert "a newer release wrote it: use that release" in done.stderr


@pytest.mark.slow
def test_a_bucket_that_is_not_there_is_named(s3_endpoint: str) -> None:
    done = fsck(f"s3://no-such-bucket/x?endpoint={s3_endpoint}")
    assert done.returncode == 3
    assert "bucket 'no-such-bucket' does not exist" in done.stderr
