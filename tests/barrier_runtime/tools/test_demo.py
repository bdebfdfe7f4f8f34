"""`barrier-runtime demo`: a job of real processes with a page; one process is killed while the job runs."""

import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from command_line import COMMAND, run_here

from barrier_runtime import __version__
from barrier_runtime.coordinator.client.embedded import EmbeddedCoordinator
from barrier_runtime.coordinator.wire.messages import JobSpec
from barrier_runtime.state.store.open import open_store
from barrier_runtime.tools import demo as demo_module
from barrier_runtime.tools.demo import counted, demo

_STARTED_AGAIN = re.compile(r"slot 0, process (\d+) died of SIGKILL and was started again as process \d+$")


def kill_once_something_is_there(output: Path, slot: int) -> None:
    while not list(output.glob("seconds/*.jsonl")):
        time.sleep(0.02)
    os.kill(slot, signal.SIGKILL)


@pytest.mark.slow
def test_the_demo_has_a_page_and_survives_the_kill_of_a_slot() -> None:
    said: list[str] = []
    page: list[int] = []

    def heard(line: str) -> None:
        said.append(line)
        if line.startswith("the page of the job"):
            with urllib.request.urlopen(line.split(": ", 1)[1], timeout=120) as answer:
                page.append(answer.status)
        slot = re.search(r"kill -9 (\d+)", line)
        if slot:
            output = Path(said[-2].split(": ", 1)[1])
            threading.Thread(target=kill_once_something_is_there, args=(output, int(slot[1])), daemon=True).start()

    result = demo(300, 6_000, browser=False, say=heard)  # 20 s at least: on a slow machine the kill is before the end
    assert result is not None
    assert page == [200]
    (told,) = [each for each in map(_STARTED_AGAIN.match, said) if each]
    assert any(f"process {told[1]} of slot 0 died of SIGKILL" in each.reason for each in result.status.recoveries)
    assert re.fullmatch(r"written: 6,000 orders in \d+ windows, of which 0 are there twice", said[-1])


@pytest.mark.slow
def test_the_demo_goes_on_with_a_coordinator_that_does_not_know_the_job_yet(tmp_path: Path) -> None:
    """For example a coordinator that was killed and restarted before the supervisor sent the job."""
    job, _ = demo_module._prepared(str(tmp_path), 2_000, 2_000)
    job.prove(open_store(demo_module._checkpoints(str(tmp_path))))
    with (
        EmbeddedCoordinator(demo_module._checkpoints(str(tmp_path))) as coordinator,
        demo_module._Slots() as slots,
        demo_module._Signals() as signals,
    ):
        coordinator.wait_ready()
        threading.Thread(target=start_slots_of, args=(coordinator, job.spec, slots, str(tmp_path)), daemon=True).start()
        status = demo_module._follow(coordinator, job.spec, slots, signals, lambda line: None)
    assert status.outcome == "finished"


def start_slots_of(coordinator: EmbeddedCoordinator, spec: JobSpec, slots: Any, folder: str) -> None:
    while not coordinator._specs:
        time.sleep(0.02)
    reply = coordinator.submit(spec)
    address = (reply.control_host, reply.control_port)
    slots.start(
        [
            demo_module._SlotOrder(slot, 0, spec.run_id, reply.secret, address, folder, 2_000, 2_000)
            for slot in range(demo_module._SLOTS)
        ]
    )


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
        assert (running.wait(timeout=120), rest[0]) == (0, "stopping, with a last checkpoint\n"), rest
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
