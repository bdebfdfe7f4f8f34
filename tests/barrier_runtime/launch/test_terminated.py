"""SIGTERM to a program that calls `run_local`, as sent by `docker stop`, systemd and `kill`."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PROGRAM = """
import asyncio, signal
from pathlib import Path
from barrier_runtime import Dataflow, JsonlSink

def run():
    flow = Dataflow("from-a-script")
    flow.rate("numbers", 1_000).sink("out", JsonlSink("{folder}/out"))
    flow.run_local(checkpoint_interval=0.2)

async def in_a_loop():
    run()

{call}
"""


def rows_in(folder: Path) -> int:
    return sum(
        len(Path(where, name).read_text().splitlines())
        for where, _, names in os.walk(folder)
        if "_staging" not in where
        for name in names
        if name.endswith(".jsonl")
    )


def wait_until(condition: Callable[[], object], running: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert running.poll() is None, running.communicate()
        assert time.monotonic() < deadline, "no row was committed"
        time.sleep(0.05)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param("run()", id="script", marks=pytest.mark.slow),
        pytest.param("asyncio.run(in_a_loop())", id="as in a notebook", marks=pytest.mark.slow),
    ],
)
def test_sigterm_ends_a_program_with_a_local_run_as_usual_and_leaves_no_folder(tmp_path: Path, call: str) -> None:
    (tmp_path / "tmp").mkdir()
    running = started(tmp_path, call)
    try:
        wait_until(lambda: rows_in(tmp_path / "out"), running)
        assert list((tmp_path / "tmp").glob("barrier-runtime-*"))
        committed = rows_in(tmp_path / "out")
        running.terminate()
        _, printed = running.communicate(timeout=120)
    finally:
        running.kill()  # no effect on an ended process
    assert running.returncode == -signal.SIGTERM
    assert "Traceback" not in printed
    assert rows_in(tmp_path / "out") >= committed
    assert list((tmp_path / "tmp").glob("barrier-runtime-*")) == []


@pytest.mark.slow
def test_a_program_that_handles_sigterm_itself_goes_on_doing_so(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    handler = f'signal.signal(signal.SIGTERM, lambda *_: Path("{tmp_path}/handled").touch())\nrun()'
    running = started(tmp_path, handler)
    try:
        wait_until(lambda: rows_in(tmp_path / "out"), running)
        running.terminate()
        wait_until((tmp_path / "handled").exists, running)
    finally:
        running.kill()
        running.communicate()


def started(folder: Path, call: str) -> "subprocess.Popen[str]":
    program = folder / "program.py"
    program.write_text(textwrap.dedent(PROGRAM).format(folder=folder, call=call))
    return subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
    )
