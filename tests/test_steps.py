"""`.ci/steps`, by which `make test` runs its steps: all of them, whatever becomes of one."""

import subprocess
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
