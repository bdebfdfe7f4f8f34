"""The handle of `start_local` steers a job as the handle on Spark does: rescale, replace, page, status line."""

import os
import pty
import subprocess
import threading
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from command_line import COMMAND

from barrier_runtime import CallableSink, Dataflow, InvalidJob
from barrier_runtime.launch.local_handle import LocalJobHandle
from barrier_runtime.launch.requests import ReplaceFailed, RescaleFailed
from barrier_runtime.tools.rescaling import replace
from tests.waiting import until


def counting(rows: list[int], begin: int = 0, name: str = "beside") -> Dataflow:
    """Flow that writes the numbers of a source, each increased by `begin`."""
    flow = Dataflow(name)
    numbers = flow.rate("ticks", 2_000).select({"n": f"value + {begin}"})
    numbers.sink("out", CallableSink(lambda batch: rows.extend(batch.column("n").to_pylist())))
    return flow


def start(flow: Dataflow, **options: object) -> LocalJobHandle:
    return flow.start_local(**{"parallelism": 1, "checkpoint_interval": 0.05, **options})


def until_rows(job: LocalJobHandle, rows: list[int], more: int) -> None:
    wanted = len(rows) + more
    until(lambda: len(rows) >= wanted or job.done)
    assert not job.done, job


@pytest.mark.slow
def test_a_rescale_of_a_local_job_loses_no_row() -> None:
    rows: list[int] = []
    with start(counting(rows)) as job:
        until_rows(job, rows, 100)
        done = job.rescale(3)
        assert (done.before, done.parallelism) == (1, 3)
        assert job.status().parallelism == 3
        until_rows(job, rows, 100)
        assert job.rescale(1).parallelism == 1
        until_rows(job, rows, 100)
    assert set(rows) == set(range(max(rows) + 1))


@pytest.mark.slow
def test_a_replaced_local_program_continues_at_the_next_row() -> None:
    first: list[int] = []
    second: list[int] = []
    with start(counting(first)) as job:
        until_rows(job, first, 100)
        job.replace(counting(second, 1_000_000))
        until_rows(job, second, 100)
    assert set(first) == set(range(max(first) + 1))
    assert set(second) == set(range(max(first) + 1 + 1_000_000, max(second) + 1))


def test_refused_requests_leave_a_local_job_running() -> None:
    rows: list[int] = []
    with start(counting(rows)) as job:
        until_rows(job, rows, 1)
        with pytest.raises(InvalidJob, match="give the flow the job's name"):
            job.replace(counting([], name="another"))
        with pytest.raises(InvalidJob, match="give a whole number of slots"):
            job.rescale(0)
        with pytest.raises(InvalidJob, match="max_parallelism"):
            job.rescale(1_000)
        with pytest.raises(InvalidJob, match="start it with ui=True"):
            job.page_link()
        until_rows(job, rows, 100)
    with pytest.raises(RescaleFailed, match="ended"):
        job.rescale(2)


@pytest.mark.slow
def test_the_page_of_a_local_job_shows_and_stops_the_job(capfd: pytest.CaptureFixture[str]) -> None:
    rows: list[int] = []
    job = start(counting(rows), ui=True)
    until_rows(job, rows, 1)
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
    with browser.open(job.page_link(), timeout=120) as answer:
        assert b"beside" in answer.read()
    assert b"beside" in job.report()
    client = job._page
    assert client is not None
    assert capfd.readouterr().err == f"job beside: page at {client.url}/jobs/beside\n"
    with pytest.raises(ReplaceFailed, match=r"call handle\.replace"):
        replace(client, "beside", "app.py:flow", 60)
    client.stop("beside")
    assert job.wait(120).status.outcome == "cancelled"
    assert set(rows) == set(range(max(rows) + 1))


APP = """
from barrier_runtime import Dataflow, JsonlSink
flow = Dataflow("shown")
flow.rate("ticks", 2_000).sink("out", JsonlSink("out"))
"""


@pytest.mark.slow
def test_a_local_run_on_a_terminal_shows_its_progress(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    ours, of_the_command = pty.openpty()
    shown = bytearray()
    reading = threading.Thread(target=read_to_the_end, args=(ours, shown), daemon=True)
    running = subprocess.Popen(
        [*COMMAND, "run", "app.py:flow", "--local", "--interval", "0.1"],
        stdout=subprocess.DEVNULL,
        stderr=of_the_command,
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(of_the_command)
    try:
        reading.start()
        until(lambda: b"visible through checkpoint" in shown or running.poll() is not None)
        running.terminate()
        assert running.wait(timeout=120) == 143, shown
    finally:
        running.kill()  # no effect on an ended process
        running.wait()
        reading.join()
        os.close(ours)
    assert b"rows read" in shown


def read_to_the_end(terminal: int, shown: bytearray) -> None:
    try:
        while more := os.read(terminal, 4096):
            shown.extend(more)
    except OSError:  # on Linux, the end of a terminal
        return
