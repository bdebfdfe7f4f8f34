"""`.ci/steps`, by which `make test` runs its steps: all of them, whatever becomes of one, and one beside the others."""

import os
import signal
import subprocess
import time
from pathlib import Path

STEPS = str(Path(__file__).resolve().parents[1] / ".ci" / "steps")


def run(*steps: str) -> tuple[int, list[str]]:
    done = subprocess.run([STEPS, *steps], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_steps_run_and_the_last_line_and_the_exit_code_tell_that_all_passed() -> None:
    code, lines = run("echo one", "echo two; echo three")
    assert code == 0
    assert lines[:-1] == ["== echo one", "one", "== echo two; echo three", "two", "three"]
    assert "passed" in lines[-1]


def test_steps_behind_one_that_failed_run_too_and_what_failed_is_told_once_more_at_the_end() -> None:
    code, lines = run("echo FAILED a test; exit 1", "echo ERROR another; exit 2", "echo on")
    assert code == 1
    assert "on" in lines
    assert lines[-5:] == [
        "== of 3 steps 2 failed",
        "FAILED a test",
        "ERROR another",
        "== FAILED: echo FAILED a test; exit 1",
        "== FAILED: echo ERROR another; exit 2",
    ]


def test_a_step_runs_beside_those_behind_it_and_what_it_prints_stands_behind_what_they_print(tmp_path: Path) -> None:
    """It waits for the one behind it, which says so before it is over."""
    beside = f"echo FAILED the long one; until [ -e {tmp_path}/told ]; do sleep 0.05; done; echo over; exit 1 &"
    code, lines = run(beside, f"echo one; touch {tmp_path}/told", "echo two")
    assert code == 1
    assert [line for line in lines[:7] if not line.startswith("== ")] == ["one", "two", "FAILED the long one", "over"]
    assert lines[4:5] == [f"== {beside}"]
    assert lines[7:] == ["== of 3 steps 1 failed", "FAILED the long one", f"== FAILED: {beside}"]


def test_a_step_beside_others_is_interrupted_with_them(tmp_path: Path) -> None:
    told = tmp_path / "told"
    beside = f"trap 'echo interrupted >{told}; exit 1' INT; echo begun >{told}; while :; do sleep 0.05; done &"
    steps = subprocess.Popen([STEPS, beside, "sleep 600"], stdout=subprocess.DEVNULL, start_new_session=True)

    def until(text: str) -> None:
        deadline = time.monotonic() + 60
        while not (told.exists() and told.read_text() == text):
            assert time.monotonic() < deadline, text
            time.sleep(0.02)

    until("begun\n")
    os.killpg(steps.pid, signal.SIGINT)
    until("interrupted\n")
    assert steps.wait(60) != 0
