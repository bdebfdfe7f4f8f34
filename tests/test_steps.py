"""`.ci/steps`, by which `make test` runs its steps: all steps run, whatever the outcome of one; `.ci/run`, of CI;
and `.ci/python`, which chooses the contents of `.venv`.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CI = Path(__file__).resolve().parents[1] / ".ci"
STEPS = str(CI / "steps")
ROOT = CI.parent


def run(*steps: str) -> tuple[int, list[str]]:
    done = subprocess.run([STEPS, *steps], capture_output=True, text=True, timeout=120, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


def test_all_steps_run_and_the_last_line_and_the_exit_code_tell_that_all_passed() -> None:
    code, lines = run("echo one", "echo two; echo three")
    assert code == 0
    assert lines[:-2] == ["== echo one", "one", "== echo two; echo three", "two", "three"]
    assert re.fullmatch(r"== the steps took \d+ s \(\d+ s of CPU\) \d+ s \(\d+ s of CPU\)", lines[-2])
    assert "passed" in lines[-1]


def test_steps_after_a_failed_step_run_too_and_failures_are_repeated_at_the_end() -> None:
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


@pytest.mark.parametrize("chore", ["check", "test", "docs", "sim", "matrix"])
def test_the_newest_versions_are_tried_in_an_environment_of_their_own(chore: str) -> None:
    command = ["make", "--dry-run", chore, "NEWEST=1"]
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=True)
    assert ".venv-newest/bin/python -m" in done.stdout or ".venv-newest/bin/python tests" in done.stdout
    assert re.findall(r"\.venv/", done.stdout) == []


@pytest.mark.parametrize(
    ("failing", "tested"), [("none", "test CHECKED=1"), ("docs", "test CHECKED=1"), ("check", "test")]
)
def test_ci_leaves_out_only_tests_of_a_check_that_passed(failing: str, tested: str, tmp_path: Path) -> None:
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho called "$@"\n[ "$1" != {failing} ]\n')
    make.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        [CI / "run"], env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=120, check=False
    )
    called = [line for line in done.stdout.splitlines() if line.startswith("called ")]
    assert called == ["called check", "called docs", "called wheel", f"called {tested}"]
    assert done.returncode == (failing != "none")
    assert ("== all passed" in done.stdout) == (failing == "none")


def chosen(first: Path) -> str:
    path = f"{first}:{os.environ['PATH']}"
    return subprocess.check_output([CI / "python"], env={**os.environ, "PATH": path}, text=True, timeout=120).strip()


def test_a_python_is_chosen_that_makes_environments(tmp_path: Path) -> None:
    (tmp_path / "python3").symlink_to(sys.executable)
    needed = "import ensurepip, sys, venv; assert sys.version_info >= (3, 10)"
    subprocess.run([chosen(tmp_path), "-c", needed], check=True, timeout=120)


def test_a_python_that_is_too_old_is_passed_over_where_there_is_another(tmp_path: Path) -> None:
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    assert chosen(tmp_path) in ("/usr/bin/python3", "python3")


def test_every_test_file_is_in_a_step_of_make_test() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = [ROOT / name for name in re.findall(r"tests(?:/\w+)*(?:\.py)?\b", makefile)]
    files = list((ROOT / "tests").rglob("test_*.py"))
    left_out = [file for file in files if not {file, *file.parents} & (set(named) - {ROOT / "tests"})]
    assert [str(file.relative_to(ROOT)) for file in left_out] == []
