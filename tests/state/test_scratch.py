"""Scratch folders of processes: a living process keeps its folder, a killed process's folder is removed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

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
