"""`.ci/steps`, by which `make test` runs its steps: all of them, whatever becomes of one."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

STEPS = str(Path(__file__).resolve().parents[1] / ".ci" / "steps")


def run(*steps: str) -> tuple[int, list[str]]:
    done = subprocess.run([STEPS, *steps], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_steps_run_and_the_last_line_and_the_exit_code_tell_that_all_passed() -> None:
    assert run("echo one", "beside echo two; echo three", "echo four") == (
        0,
        [
            "== echo one",
            "one",
            "== echo four",
            "four",
            "== beside echo two; echo three",
            "two",
            "three",
            "== all 3 steps passed",
        ],
    )


def test_steps_behind_one_that_failed_run_too_and_what_failed_is_told_once_more_at_the_end() -> None:
    code, lines = run("echo FAILED a test; exit 1", "beside echo ERROR another; kill $$", "echo on")
    assert code == 1
    assert "on" in lines
    assert lines[-5:] == [
        "== of 3 steps 2 failed",
        "FAILED a test",
        "ERROR another",
        "== FAILED: echo FAILED a test; exit 1",
        "== FAILED: beside echo ERROR another; kill $$",
    ]


def test_a_step_beside_the_others_runs_while_they_do(tmp_path: Path) -> None:
    """Each waits for the other."""
    here, there = tmp_path / "here", tmp_path / "there"
    wait = "until [ -e {0} ]; do sleep 0.05; done"
    code, lines = run(f"beside touch {here}; {wait.format(there)}", f"touch {there}; {wait.format(here)}")
    assert (code, lines[-1]) == (0, "== all 2 steps passed")


def test_what_runs_beside_the_others_ends_with_them_when_they_are_broken_off(tmp_path: Path) -> None:
    told = tmp_path / "told"
    steps = subprocess.Popen([STEPS, f"beside sleep 1000 & echo $! > {told}; wait", "echo on"])
    wait_until(lambda: told.exists() and told.read_text())
    steps.terminate()
    assert steps.wait(60) == -signal.SIGTERM
    wait_until(lambda: not running(told.read_text().strip()))


def running(pid: str) -> bool:
    try:
        return Path("/proc", pid, "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "gave up waiting"
        time.sleep(0.02)
