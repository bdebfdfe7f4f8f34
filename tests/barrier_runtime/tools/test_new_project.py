"""`barrier-runtime new`: the generated project runs, and the project's tests pass."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from command_line import run_here

from barrier_runtime.tools.commands.flows import FILES


def test_a_new_project_has_its_name_in_all_files_that_tell_it(tmp_path: Path) -> None:
    done = run_here("new", "my-job", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "make run" in done.stdout
    folder = tmp_path / "my-job"
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    assert 'Dataflow("my-job")' in (folder / "flow.py").read_text()
    assert not [path.name for path in folder.iterdir() if "@NAME@" in path.read_text()]
    assert set(yaml.safe_load((folder / "compose.yaml").read_text())["services"]) == {"kafka", "postgres", "s3"}


def test_its_servers_are_those_of_the_repository() -> None:
    root = Path(__file__).resolve().parents[3]
    ours = yaml.safe_load((root / "compose.yaml").read_text())["services"]
    template = (root / "barrier_runtime" / "tools" / "project" / "compose.yaml.txt").read_text()
    for name, service in yaml.safe_load(template)["services"].items():
        assert service == ours[name]


def test_what_is_there_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "flow.py").write_text("mine")
    done = run_here("new", "mine", cwd=tmp_path)
    assert done.returncode == 2
    assert "not empty: choose another name" in done.stderr
    assert (tmp_path / "mine" / "flow.py").read_text() == "mine"


def test_a_name_that_cannot_be_a_jobs_is_refused(tmp_path: Path) -> None:
    done = run_here("new", "My_Job", cwd=tmp_path)
    assert done.returncode == 2
    assert "a-z, 0-9 and '-'" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_new_project_runs_and_its_tests_pass(tmp_path: Path) -> None:
    assert run_here("new", "first", cwd=tmp_path).returncode == 0
    folder = tmp_path / "first"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # without those of our tests
    for target in ("run", "test"):
        done = subprocess.run(
            ["make", target], cwd=folder, capture_output=True, text=True, timeout=120, check=False, env=environment
        )
        assert done.returncode == 0, done.stdout + done.stderr
    again = run_here("run", "flow.py:flow", "--local", "--checkpoints", "checkpoints", cwd=folder)  # nothing new
    assert again.returncode == 0, again.stderr
    lines = [line for file in (folder / "out" / "alarms").glob("*.jsonl") for line in file.read_text().splitlines()]
    assert sorted(json.loads(line)["minute"][14:16] for line in lines) == ["04", "05"]


def test_its_tests_say_what_to_install_where_pytest_is_not(tmp_path: Path) -> None:
    assert run_here("new", "first", cwd=tmp_path).returncode == 0
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')  # -S: no installed packages
    (tmp_path / "python").chmod(0o755)
    outside_make = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    done = subprocess.run(
        ["make", "test"],
        cwd=tmp_path / "first",
        capture_output=True,
        text=True,
        check=False,
        env={**outside_make, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
    )
    assert done.returncode != 0
    assert done.stdout == "make test needs pytest: python -m pip install pytest\n"
