"""The commands `replay` and `verify`: a program in a file, a process and the output."""

import subprocess
import textwrap
from pathlib import Path

import pytest
from command_line import COMMAND, run_here

APP = """
    from barrier_runtime import Dataflow, ParquetSink, ValueState

    class Total:
        total = ValueState(int)
        def process(self, user, row, ctx):
            self.total.value = (self.total.value or 0) + row["n"]
            if row["n"] == 8:
                raise ValueError("no eights")
            yield {"user": user, "total": self.total.value}

    rows = [{"user": "ab"[n % 2], "n": n} for n in range(UPTO)]
    flow = Dataflow("told")
    read = flow.from_iterator("rows", lambda index, of: iter(rows), schema={"user": str, "n": int}, splits=1)
    totals = read.key_by("user").process("totals", Total, schema={"user": str, "total": int})
    totals.sink("out", ParquetSink("FOLDER/out"))
"""


def app(folder: Path, upto: int) -> str:
    file = folder / "app.py"
    file.write_text(textwrap.dedent(APP).replace("FOLDER", str(folder)).replace("UPTO", str(upto)))
    return f"{file}:flow"


@pytest.mark.slow
def test_the_command_of_a_failure_report_shows_the_row_and_stops_at_it(tmp_path: Path) -> None:
    storage = tmp_path / "ckpt"
    options = ["--checkpoints", str(storage), "--local", "--parallelism", "1", "--restart", "none"]
    failed = run_here("run", app(tmp_path, 20), *options)
    assert failed.returncode == 1, failed.stderr
    told = next(line for line in failed.stderr.splitlines() if "barrier-runtime replay" in line)
    words = told.split("barrier-runtime ")[1].split()
    assert words[1] == f"{tmp_path}/app.py:flow"
    shown = run_here(*words)
    assert shown.returncode == 1, shown.stderr
    assert 'row 4: {"user": "a", "n": 8}' in shown.stdout
    assert "raised: " in shown.stdout
    assert "no eights" in shown.stdout
    assert "state total: 6 -> 12" in shown.stdout
    stopped = subprocess.run(
        [*COMMAND, *words, "--pdb"],
        input="p 'stopped at', row['n']\ncontinue\n" * 4 + "p self.total.value\ncontinue\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "('stopped at', 6)" in stopped.stdout, stopped.stdout + stopped.stderr
    assert "app.py(" in stopped.stdout


@pytest.mark.slow
def test_verify_says_that_nothing_differs_or_what_does(tmp_path: Path) -> None:
    target, storage = app(tmp_path, 8), str(tmp_path / "ckpt")
    ran = run_here("run", target, "--checkpoints", storage, "--local", "--parallelism", "1")
    assert ran.returncode == 0, ran.stderr
    same = run_here("verify", target, "--checkpoints", storage, "--from", "0")
    assert same.returncode == 0, same.stderr
    assert "the same" in same.stdout
    assert "1 sinks read back" in same.stdout
    file = tmp_path / "app.py"
    file.write_text(file.read_text().replace('+ row["n"]', '+ row["n"] + (row["n"] == 5)'))
    other = run_here("verify", target, "--checkpoints", storage, "--from", "0", "--redact", "none")
    assert other.returncode == 1
    assert "state 'total' of key user='b': committed 16, replayed 17" in other.stdout


@pytest.mark.parametrize("command", ["replay", "verify"])
def test_without_checkpoints_it_says_what_to_give(command: str, tmp_path: Path) -> None:
    more = ["--operator", "totals"] if command == "replay" else []
    refused = run_here(command, app(tmp_path, 8), "--from", "3", *more)
    assert refused.returncode == 2
    assert "checkpoints=" in refused.stderr or "storage URL is empty" in refused.stderr
