"""A whole program on real Spark dies between a decision and the commit; another process resolves the transactions."""

import json
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness import gone, verdict, visible_files

from tests.waiting import until

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).parent / "programs" / "killed_before_commit.py"
COMMAND = [str(Path(sys.executable).with_name("barrier-runtime")), "transactions", "settled"]
ROWS = 60_000
START_S = 400.0  # a program with Spark needs minutes on a machine with much other work


def launch(folder: Path, rate: int) -> "subprocess.Popen[bytes]":
    with (folder / "program.log").open("ab") as log:
        command = [sys.executable, str(PROGRAM), str(folder), str(ROWS), str(rate)]
        return subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)


def settle(folder: Path, action: str) -> dict:
    command = [*COMMAND, action, "--checkpoints", str(folder / "checkpoints"), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def values(folder: Path) -> list[int]:
    return [
        json.loads(line)["value"] for file in visible_files(folder / "out") for line in file.read_text().splitlines()
    ]


def family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def test_what_a_killed_program_had_decided_is_settled_without_it(tmp_path):
    """T3, T6, T11: listed, committed by another process, twice; the program continues, no row is lost or doubled."""
    first = launch(tmp_path, 600)
    known: dict[int, psutil.Process] = {}

    def died() -> bool:
        known.update((process.pid, process) for process in family(first.pid))
        return first.poll() is not None

    try:
        until(died, "the program was killed before a commit", START_S)
        assert (tmp_path / "before commit happened").exists(), (tmp_path / "program.log").read_text()[-3000:]
    finally:
        first.kill()
        first.wait()
    until(lambda: all(gone(each) for each in known.values()), "every process of the killed program left")
    before = set(values(tmp_path))
    listed = settle(tmp_path, "list")["transactions"]
    assert listed, "nothing was pending"
    assert {(each["sink"], each["kind"]) for each in listed} == {("out", "jsonl")}
    assert set(values(tmp_path)) == before
    for _ in range(2):
        done = settle(tmp_path, "commit")
        assert [(each["checkpoint"], each["subtask"]) for each in done["transactions"]] == [
            (each["checkpoint"], each["subtask"]) for each in listed
        ]
        seen = values(tmp_path)
        assert len(seen) == len(set(seen))
        assert before < set(seen)
    assert launch(tmp_path, 60_000).wait(START_S) == 0, (tmp_path / "program.log").read_text()[-3000:]
    assert verdict(tmp_path / "out", ROWS).right, verdict(tmp_path / "out", ROWS)
