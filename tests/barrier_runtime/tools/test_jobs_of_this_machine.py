"""Commands without an address find this user's coordinators on this machine."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from command_line import run_here
from coordinator_world import options, spec

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.client.private_directory import coordinators_here
from tests.waiting import until

JOB = spec(checkpoints=options(interval_ms=50))
NONE = "no coordinator of this user runs on this machine"


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder for temporary files, separate from that of coordinators of other tests, and of child processes too."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@contextmanager
def daemon(folder: Path, *, storage: Path) -> Iterator["subprocess.Popen[bytes]"]:
    token = folder / "daemon.token"
    if not token.exists():
        token.write_text("d" * 64)
        token.chmod(0o600)
    command = [sys.executable, "-m", "barrier_runtime.coordinator.server.daemon", "--storage", str(storage)]
    command += ["--token-file", str(token), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_status_alone_lists_jobs_and_their_names_suffice(tmp_path: Path) -> None:
    with EmbeddedCoordinator(str(tmp_path / "a")) as first, EmbeddedCoordinator(str(tmp_path / "b")) as second:
        first.submit(JOB)
        second.submit(spec(job="trains", checkpoints=options(interval_ms=50)))
        listed = run_here("status")
        assert listed.returncode == 0, listed.stderr
        assert "flights" in listed.stdout
        assert "trains" in listed.stdout
        assert "job trains:" in run_here("status", "trains").stdout
        early = run_here("checkpoint", "trains")
        assert (early.returncode, early.stdout) == (1, ""), early.stdout
        assert "error: the job is waiting, not running: try again later" in early.stderr
        assert '"answer":"refused"' in run_here("checkpoint", "trains", "--json").stdout.replace(" ", "")
        assert first.url in run_here("page", "flights").stdout
        assert "job flights:" in run_here("status", "flights", "--coordinator", first.url).stdout
        unknown = run_here("why", "ships")
        assert (unknown.returncode, "knows job ships; known: flights, trains." in unknown.stderr) == (2, True)
        second.submit(JOB)
        twice = run_here("status", "flights")
        assert (twice.returncode, "2 coordinators of this machine know job flights: add --coord" in twice.stderr) == (
            2,
            True,
        )
        stopped = run_here("stop", "flights", "--now", variables={"BARRIER_RUNTIME_COORDINATOR": first.url})
        assert (stopped.returncode, stopped.stdout) == (0, "job flights: it stops\n"), stopped.stderr
        until(lambda: first.client.status("flights").outcome, "the end")
        assert second.client.status("flights").outcome is None
    assert (run_here("status").returncode, NONE in run_here("status").stderr) == (2, True)


@pytest.mark.slow
def test_a_broken_coordinator_hides_no_other_and_a_token_serves_two_stores(tmp_path: Path) -> None:
    with (
        EmbeddedCoordinator(str(tmp_path / "own")) as broken,
        daemon(tmp_path, storage=tmp_path / "a"),
        daemon(tmp_path, storage=tmp_path / "b"),
    ):
        until(lambda: len(coordinators_here()) == 3, "all coordinators")
        (broken._directory / "driver.token").unlink()
        first, second = (each.url for each in coordinators_here() if each.token_file.name == "daemon.token")
        until(lambda: run_here("status").stdout == "no jobs\n", "both answer")
        for url, name in ((first, "flights"), (second, "trains")):
            CoordinatorClient(url, "d" * 64).submit(spec(job=name, checkpoints=options(interval_ms=50)))
        listed = run_here("status", variables={"BARRIER_RUNTIME_TOKEN_FILE": str(tmp_path / "none")})
        assert listed.returncode == 0, listed.stderr
        assert {"flights", "trains"} <= set(listed.stdout.split())
        assert "job trains:" in run_here("status", "trains").stdout


@pytest.mark.slow
def test_a_daemon_is_found_while_it_lives_also_with_a_standby(tmp_path: Path, temporary: Path) -> None:
    storage = tmp_path / "store"
    with daemon(tmp_path, storage=storage) as killed:
        until(coordinators_here, "the daemon")
        until(lambda: run_here("status").stdout == "no jobs\n", "its answer")
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert coordinators_here() == []
        with daemon(tmp_path, storage=storage) as next_one, daemon(tmp_path, storage=storage):
            until(lambda: len(coordinators_here()) == 2, "both daemons")
            until(lambda: run_here("status").stdout == "no jobs\n", "one list of the same jobs")
            next_one.send_signal(signal.SIGTERM)
            next_one.wait()
            assert len(coordinators_here()) == 1
    assert len(list(temporary.iterdir())) == 1, "only a killed daemon leaves its folder, for the next to remove"


@pytest.mark.slow
def test_a_local_job_with_a_page_is_found(tmp_path: Path) -> None:
    end = Event()

    def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
        yield {"n": index}
        end.wait()

    flow = Dataflow("local")
    flow.from_iterator("numbers", numbers, schema={"n": int}, splits=1).sink("out", CollectSink())
    job = flow.start_local(checkpoints=str(tmp_path / "store"), ui=True)
    try:
        until(lambda: "job local:" in run_here("status", "local").stdout, "the job")
    finally:
        end.set()
    job.wait()


def test_folders_of_others_and_links_are_not_believed(tmp_path: Path, temporary: Path) -> None:
    """A folder whose lock nobody holds, and a link, name no coordinator."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("life.lock", "address"):
        (elsewhere / name).write_text("http://127.0.0.1:1\n/nowhere\n")
    os.symlink(elsewhere, temporary / "barrier-runtime-coordinator-link")
    dead = temporary / "barrier-runtime-coordinator-dead"
    dead.mkdir()
    for name in ("life.lock", "address"):
        (dead / name).write_text("http://127.0.0.1:1\n/nowhere\n")
    assert coordinators_here() == []
    done = run_here("status", "--coordinator", "http://127.0.0.1:1")
    assert (done.returncode, done.stderr) == (
        2,
        "error: --coordinator http://127.0.0.1:1: add --token-file, the file with its bearer token\n",
    )
