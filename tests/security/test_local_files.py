"""Files on local disks: no other user can read them, or plant them first (J7, G2)."""

import json
import os
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.rest_token import read_token_file
from barrier_runtime.launch.options import JobOptions, StorageOfRun
from barrier_runtime.spark.task import local_root
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory

ROOT = Path(__file__).resolve().parents[2]
MAIN = "from barrier_runtime.tools.cli import main; main()"


def open_to_others(folder: Path) -> list[str]:
    """Files and folders below `folder` that another user could read or list, going down as that user could."""
    found = []
    for entry in folder.iterdir():
        mode = entry.lstat().st_mode
        if not mode & 0o077:
            continue
        found.append(f"{stat.filemode(mode)} {entry}")
        if stat.S_ISDIR(mode):
            found += open_to_others(entry)
    return found


@pytest.mark.slow
def test_running_local_job_leaves_no_readable_files_for_others_in_the_temp_folder(tmp_path: Path) -> None:
    """J7: checked from within the job, while state, snapshots and checkpoints are on disk; all files are deleted at the
    end.
    """
    program = """
        import json, os, stat, sys
        from pathlib import Path
        from barrier_runtime import Dataflow, CollectSink, count

        os.umask(0)  # the most careless user there is
        seen, temporary = [], Path(sys.argv[1])

        def look(row):
            if row["n"] == 20:
                seen.append([(entry.name, stat.filemode(entry.lstat().st_mode)) for entry in temporary.iterdir()])
            return row

        flow = Dataflow("private")
        counted = flow.rate("numbers", 20_000, 4_000, keys=40).key_by("key").aggregate("count", n=count())
        counted.map(look, name="look").sink("out", CollectSink())
        flow.run_local(checkpoint_interval=0.02)
        print(json.dumps(seen[-1]))
        print(list(temporary.iterdir()))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    during, after = done.stdout.splitlines()
    for name in ("barrier-runtime-local-", "barrier-runtime-checkpoints-"):
        assert name in during
    assert {mode for _, mode in json.loads(during)} == {"drwx------"}
    assert after == "[]"


@pytest.mark.slow
def test_a_coordinators_files_are_its_users_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """G2, J7: token file 0600 in a folder 0700, whatever the umask."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    before = os.umask(0)
    try:
        with EmbeddedCoordinator(str(tmp_path / "store")) as coordinator:
            coordinator.wait_ready()
            assert [found for found in open_to_others(tmp_path) if str(tmp_path / "store") not in found] == []
            [token] = tmp_path.glob("barrier-runtime-coordinator-*/*.token")
            assert stat.S_IMODE(token.stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert [entry.name for entry in tmp_path.iterdir()] == ["store"]


def test_the_folder_of_slots_is_private_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """J7"""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'a'},{tmp_path / 'b'}")
    before = os.umask(0)
    try:
        root = local_root("run-1").parent
    finally:
        os.umask(before)
    assert root == tmp_path / "a" / f"barrier-runtime-{os.getuid()}"
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


@pytest.mark.parametrize("trap", ["open to others", "link", "file", "another owner"])
def test_a_folder_that_somebody_else_made_first_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    """J7: the folder's name is guessable, and every user may write to the temporary folder."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    root = tmp_path / f"barrier-runtime-{os.getuid()}"
    if trap == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        root.symlink_to(tmp_path / "elsewhere")
    elif trap == "file":
        root.write_text("")
    else:
        root.mkdir()
        root.chmod(0o777 if trap == "open to others" else 0o700)
        if trap == "another owner":
            if os.getuid() != 0:
                pytest.skip("only root can give a folder away")
            os.chown(root, 12_345, -1)
    with pytest.raises((InvalidJob, FileExistsError)):
        local_root("run-1")


def test_checkpoints_of_a_local_run_without_a_place_of_its_own_are_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J7"""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with StorageOfRun(JobOptions()) as folder:
        assert stat.S_IMODE(Path(folder).parent.stat().st_mode) == 0o700
    assert list(tmp_path.iterdir()) == []


def test_a_database_and_its_snapshots_are_private(tmp_path: Path) -> None:
    """J7"""
    database = RocksDbKv(tmp_path / "db", SlotMemory(8 << 20))
    database.write([(b"k", b"v")])
    database.flush()
    database.checkpoint(tmp_path / "snapshot")
    database.close()
    for folder in ("db", "snapshot"):
        assert stat.S_IMODE((tmp_path / folder).stat().st_mode) == 0o700


# ---------------------------------------------------------------- token files


def test_a_token_file_is_read_only_when_nobody_else_can(tmp_path: Path) -> None:
    """G2: for the daemon and for clients."""
    path = tmp_path / "t.token"
    path.write_text("5" * 64 + "\n")
    for mode in (0o644, 0o640, 0o604, 0o620, 0o601):
        path.chmod(mode)
        with pytest.raises(InvalidJob, match="chmod 600"):
            read_token_file(path)
    path.chmod(0o600)
    assert read_token_file(path) == "5" * 64


@pytest.mark.parametrize(
    "content", [b"", b"short", b"5" * 31, b"\xff" * 64, b"a b" * 30, b"5" * 40 + b"\r\n" + b"X: y"]
)
def test_a_token_that_can_be_guessed_or_cannot_be_sent_is_refused_without_being_said(
    tmp_path: Path, content: bytes
) -> None:
    """G2, J6"""
    path = tmp_path / "t.token"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(InvalidJob, match="32 random bytes") as error:
        read_token_file(path)
    assert not content or content.decode("latin-1") not in str(error.value)


def test_a_token_given_where_its_file_is_wanted_is_not_repeated() -> None:
    """J6"""
    with pytest.raises(InvalidJob, match="the token itself was given") as error:
        read_token_file(Path("0123456789abcdef" * 4))
    assert "0123456789abcdef" not in str(error.value)


@pytest.mark.slow
def test_callers_refuse_a_token_file_that_others_can_read(tmp_path: Path) -> None:
    """G2: the command line too."""
    path = tmp_path / "t.token"
    path.write_text("5" * 64)
    path.chmod(0o644)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "status", "--coordinator", address, "--token-file", str(path)],
            capture_output=True, text=True, timeout=240, check=False, cwd=ROOT,
        )  # fmt: skip
    assert done.returncode == 2
    assert "chmod 600" in done.stderr
