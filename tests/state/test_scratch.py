"""Scratch folders of processes: a living process keeps its folder, a killed process's folder is removed."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from barrier_runtime.coordinator.client.private_directory import PrivateDirectory
from barrier_runtime.launch.options import JobOptions, StorageOfRun
from barrier_runtime.state import scratch
from barrier_runtime.state.scratch import scratch_folder

PREFIX = "barrier-runtime-tried-"
_WORKS = f"""
import signal
from barrier_runtime.state.scratch import scratch_folder
with scratch_folder({PREFIX!r}) as folder:
    (folder / "file").write_bytes(b"x")
    print("works", flush=True)
    signal.pause()
"""


@pytest.fixture
def parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(scratch, "_YOUNG_S", -1.0)
    return tmp_path


def test_what_a_killed_process_leaves_goes_when_another_begins_and_what_lives_stays(parent: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _WORKS], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "works\n"
            (theirs,) = parent.iterdir()
            with scratch_folder(PREFIX) as outer, scratch_folder(PREFIX) as inner:
                (outer / "file").touch()
                (inner / "file").touch()
            assert [*parent.iterdir()] == [theirs], "it lives"
            assert [*theirs.rglob("file")]
        finally:
            process.send_signal(signal.SIGKILL)
    with scratch_folder(PREFIX):
        assert not theirs.exists()
    assert [*parent.iterdir()] == []


_STORES = """
import signal
from pathlib import Path
from barrier_runtime.launch.options import JobOptions, StorageOfRun
with StorageOfRun(JobOptions.for_local_run({})) as folder:
    Path(folder, "checkpoint").write_bytes(b"x")
    print(folder, flush=True)
    signal.pause()
"""


def test_checkpoints_of_a_killed_local_run_are_removed_by_the_next(parent: Path) -> None:
    """No run could use them: without `checkpoints=` each begins anew."""
    with subprocess.Popen([sys.executable, "-c", _STORES], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            theirs = Path(process.stdout.readline().strip())
            with StorageOfRun(JobOptions.for_local_run({})):
                assert [*theirs.iterdir()] == [theirs / "checkpoint"], "it lives"
        finally:
            process.send_signal(signal.SIGKILL)
    with StorageOfRun(JobOptions.for_local_run({})) as ours:
        assert [*parent.iterdir()] == [Path(ours).parent]
    assert [*parent.iterdir()] == []


@contextmanager
def of_coordinator() -> Iterator[Path]:
    directory = PrivateDirectory(PREFIX)
    yield directory.path
    directory.remove()


@contextmanager
def of_checkpoints() -> Iterator[Path]:
    with StorageOfRun(JobOptions.for_local_run({})) as folder:
        yield Path(folder).parent


@contextmanager
def of_process() -> Iterator[Path]:
    with scratch_folder(PREFIX) as folder:
        yield folder.parent


@pytest.mark.parametrize("made", [of_coordinator, of_checkpoints, of_process])
def test_systemd_tmpfiles_leaves_folders_of_long_jobs_alone(
    parent: Path, made: Callable[[], AbstractContextManager[Path]]
) -> None:
    """It deletes files that nobody has touched for ten days, except where it cannot lock a folder above."""
    with made() as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    assert not folder.exists()


def test_only_folders_are_taken_for_what_somebody_left_and_no_link_is_followed(
    parent: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (parent / f"{PREFIX}link").symlink_to(elsewhere)
    (parent / f"{PREFIX}file").touch()
    (parent / f"{PREFIX}trap").mkdir()
    (parent / f"{PREFIX}trap" / scratch.LOCK).symlink_to(elsewhere / "file")
    with scratch_folder(PREFIX):
        assert sorted(os.listdir(elsewhere)) == ["file"]
        assert {"link", "file", "trap"} <= {path.name.removeprefix(PREFIX) for path in parent.iterdir()}
