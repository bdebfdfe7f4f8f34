"""Logs and stacks of a slot, asked for while the job runs: in processes, and in the process of the program."""

import json
import logging
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here

from barrier_runtime import Dataflow, JsonlSink
from tests.waiting import until

PATIENCE_S = 600
LASTING: Any = {"resource_wait_timeout": 3_600, "slot_timeout": 3_600, "checkpoint_interval": 0.2}


def flow_that_logs(folder: Path) -> Dataflow:
    """A flow whose step logs a password, and has a thread that waits for ever."""

    def waits_for_ever() -> None:
        threading.Event().wait()

    def logs(row: dict[str, Any]) -> dict[str, Any]:
        if row["value"] == 0:
            threading.Thread(target=waits_for_ever, name="of-the-user", daemon=True).start()
            logging.getLogger("app").warning("the first row, password=%s \x1b[2J", "hunter2")
        return row

    flow = Dataflow("answers")
    flow.rate("ticks", 500, splits=1).map(logs, name="logs").sink("out", JsonlSink(str(folder / "out")))
    return flow


def printed(slot: int, subject: str, expected: str) -> str:
    """Returns the output of the command once it has `expected`."""
    found: list[str] = []

    def has() -> bool:  # the slot may not have connected yet
        asked = run_here("status", "answers", f"--{subject}", str(slot))
        found.append(asked.stdout)
        return asked.returncode == 0 and expected in asked.stdout

    until(has, f"{expected!r} in the {subject} of slot {slot}", patience_s=PATIENCE_S)
    return found[-1]


def printed_rows(step: str) -> list[dict[str, Any]]:
    """Returns the rows of a preview that is full: a slow machine may give fewer rows at first."""
    found: list[list[dict[str, Any]]] = []

    def full() -> bool:
        asked = run_here("status", "answers", "--rows", step)
        found.append([json.loads(line) for line in asked.stdout.splitlines()] if asked.returncode == 0 else [])
        return len(found[-1]) == 10

    until(full, f"ten rows of {step}", patience_s=PATIENCE_S)
    return found[-1]


@pytest.mark.slow
def test_a_process_answers_with_its_log_and_its_stacks_and_a_stopped_one_is_named(tmp_path: Path) -> None:
    options = {"checkpoints": str(tmp_path / "jobs"), "ui": False, **LASTING}
    with flow_that_logs(tmp_path).start_local(processes=2, **options):
        log = printed(0, "log", "the first row")
        assert "WARNING app: the first row, password=******" in log
        assert "hunter2" not in log
        assert "the first row" not in printed(1, "log", ""), "each process has a log of its own"
        stacks = printed(0, "stacks", "of-the-user: 10 of 10 samples")
        assert "in waits_for_ever" in stacks
        assert stacks.startswith("MainThread: "), "the event loop first"
        unknown = run_here("status", "answers", "--log", "7")
        assert (unknown.returncode, "job answers has no slot 7" in unknown.stderr) == (2, True)
        stopped = json.loads(run_here("status", "answers", "--json").stdout)["slots"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        silent = run_here("status", "answers", "--stacks", "1")
        assert silent.returncode == 2
        assert "slot 1 has not answered for 3.5 s" in silent.stderr
        assert f"`py-spy dump --pid {stopped}` on host" in silent.stderr
        os.kill(stopped, signal.SIGCONT)
        printed(1, "stacks", "MainThread: ")


@pytest.mark.slow
def test_slots_of_the_programs_own_process_share_its_log(tmp_path: Path) -> None:
    usual = logging.Logger.callHandlers
    with flow_that_logs(tmp_path).start_local(ui=True, checkpoints=str(tmp_path / "jobs")):
        log = printed(0, "log", "the first row")
        assert "password=****** \\u001b[2J" in log
        assert "\x1b" not in log
        assert "in waits_for_ever" in printed(0, "stacks", "of-the-user")
        for step in ("ticks", "logs", "out"):
            rows = printed_rows(step)
            assert len(rows) == 10
            assert all(row["value"] >= 0 for row in rows)
        unknown = run_here("status", "answers", "--rows", "none")
        assert (unknown.returncode, "has no step 'none': ticks, logs, out" in unknown.stderr) == (2, True)
        asked = json.loads(run_here("status", "answers", "--log", "0", "--json").stdout)
        assert (asked["slot"], len(asked["lines"]) > 0) == (0, True)
    assert logging.Logger.callHandlers is usual


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["status", "--log", "0"], "name the job"),
        (["status", "answers", "--log", "0", "--stacks", "0"], "several questions"),
    ],
)
def test_a_question_that_names_no_single_answer_is_refused(given: list[str], told: str) -> None:
    refused = run_here(*given)
    assert (refused.returncode, told in refused.stderr) == (2, True)
