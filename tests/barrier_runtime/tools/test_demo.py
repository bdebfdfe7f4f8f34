"""`barrier-runtime demo`: a job of real processes with a page, of which each process may be killed."""

import os
import re
import signal
import subprocess
import urllib.request
from functools import partial
from pathlib import Path

import pytest
from command_line import COMMAND, run_here

from barrier_runtime import __version__
from barrier_runtime.coordinator.client.client import CoordinatorClient
from barrier_runtime.coordinator.client.private_directory import coordinators_here
from barrier_runtime.coordinator.client.rest_token import read_token_file
from barrier_runtime.coordinator.status.status import JobStatus
from barrier_runtime.launch.requests import rescale_asked
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.tools.demo import counted
from tests.waiting import until as until_within

KILLS = int(os.environ.get("KILLS", "4"))
until = partial(until_within, patience_s=600)  # several processes start in turn
_WRITTEN = re.compile(r"written: ([\d,]+) orders in [\d,]+ windows, of which 0 are there twice\n")


def running(client: CoordinatorClient, parallelism: int, after: int = 0) -> JobStatus | None:
    """The status, once the job runs with a checkpoint after number `after`; None while processes are away."""
    try:
        status = client.status("demo")
    except (Unavailable, InvalidJob):
        return None
    last = status.checkpoints.last_completed
    ready = status.phase == "running" and status.parallelism == parallelism and not status.missing_slots
    return status if ready and last is not None and last.checkpoint > after else None


def last_of(status: JobStatus) -> int:
    assert status.checkpoints.last_completed is not None
    return status.checkpoints.last_completed.checkpoint


@pytest.mark.slow
def test_the_demo_survives_kills_and_starts_the_slot_of_a_rescale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    command = [*COMMAND, "demo", "--no-browser", "--rate", "300"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert demo.stdout is not None
        invited = next(line for line in demo.stdout if line.startswith("try it"))
        (here,) = coordinators_here()
        client = CoordinatorClient(here.url, read_token_file(here.token_file))
        assert any(f"kill -9 {slot.pid} " in invited for slot in client.status("demo").slots)
        assert f"or {client.health().pid}, the coordinator" in invited
        status = until(lambda: running(client, 2))
        for number in range(KILLS):
            before, slot, coordinator = last_of(status), status.slots[0].pid, client.health().pid
            os.kill(coordinator if number % 2 else slot, signal.SIGKILL)
            status = until(lambda: running(client, 2, before))  # noqa: B023 - called at once
            assert (status.slots[0].pid, client.health().pid)[number % 2] != (slot, coordinator)[number % 2]
        with urllib.request.urlopen(client.page_link("demo"), timeout=600) as page:
            assert page.status == 200
        client.rescale("demo", rescale_asked(3, 3_600))
        moved = until(lambda: running(client, 3, last_of(status)))
        assert len({slot.pid for slot in moved.slots}) == 3
        demo.terminate()
        rest = list(demo.stdout)
        assert demo.wait(timeout=600) == 0
    finally:
        demo.kill()  # no effect on an ended process
        demo.communicate()
    assert _WRITTEN.fullmatch(rest[-2]), rest


@pytest.mark.slow
def test_sigterm_ends_the_demo_with_a_last_checkpoint_and_no_folder(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*COMMAND, "demo", "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    try:
        assert running.stdout is not None
        told = iter(running.stdout)
        assert any(line.startswith("Ctrl-C") for line in told), "it said that it runs"
        running.terminate()
        rest = list(told)
        assert (running.wait(timeout=600), rest[0]) == (0, "stopping, with a last checkpoint\n"), rest
        assert re.match(r"written: (nothing|[\d,]+ orders in [\d,]+ windows, of which 0 are there twice)", rest[-2])
    finally:
        running.kill()  # no effect on an ended process
        running.communicate()
    assert list(tmp_path.glob("barrier-runtime-demo-*")) == []


def test_a_window_that_is_there_twice_is_told(tmp_path: Path) -> None:
    from barrier_runtime import Dataflow, JsonlSink

    rows = [{"shop": 1, "window_start": "a", "orders": 2}, {"shop": 1, "window_start": "a", "orders": 2}]
    flow = Dataflow("twice")
    schema = {"shop": int, "window_start": str, "orders": int}
    flow.from_iterator("rows", lambda index, of: iter(rows), schema=schema, splits=1).sink(
        "out", JsonlSink(str(tmp_path / "out"))
    )
    flow.run_local(parallelism=1)
    assert counted(str(tmp_path / "out")) == "written: 4 orders in 1 windows, of which 1 are there twice"


def test_the_command_tells_its_version() -> None:
    done = run_here("--version")
    assert (done.returncode, done.stdout) == (0, f"barrier-runtime {__version__}\n")
