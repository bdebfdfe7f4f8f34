"""The standard error of `barrier-runtime run` while a slot dies: one line about the slot, and no stack trace."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import kill, visible_files

from tests.waiting import until

pytestmark = pytest.mark.spark

COMMAND = str(Path(sys.executable).with_name("barrier-runtime"))
PROGRAM = """
    import logging
    import os
    from barrier_runtime import Dataflow, JsonlSink, count

    def noted(row):
        if row["value"] == 0:
            logging.getLogger("app").warning("the row of number %s", row["value"])
        with open({pids!r}, "a") as file:
            file.write(f"{{os.getpid()}}\\n")
        return row

    flow = Dataflow("told")
    rows = flow.rate("numbers", 400, 4000, keys=20).map(noted)
    rows.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink({out!r}))
"""


def test_a_slot_that_dies_is_one_line(tmp_path: Path) -> None:
    pids, out = tmp_path / "pids", tmp_path / "out"
    (tmp_path / "app.py").write_text(textwrap.dedent(PROGRAM).format(pids=str(pids), out=str(out)))
    said = tmp_path / "stderr"
    options = ["--parallelism", "2", "--master", "local[2]", "--checkpoint-interval", "0.3", "--log-format", "json"]
    command = [COMMAND, "run", "app.py:flow", "--checkpoints", str(tmp_path / "checkpoints"), *options]
    with said.open("wb") as stderr:
        running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=stderr, text=True)
        try:
            until(lambda: out.exists() and visible_files(out), "a checkpoint's rows are visible")
            kill(int(pids.read_text().splitlines()[-1]))
            result, _ = running.communicate(timeout=240)
        finally:
            running.kill()
    lines = said.read_text().splitlines()
    # A recovery of more than ten seconds is also reported while it lasts.
    told = [line for line in lines if "back after" in line and "not back after" not in line]
    assert running.returncode == 0, "\n".join(lines)
    assert len(told) == 1, "\n".join(lines)
    assert told[0].startswith("job told: process ")
    assert " died of SIGKILL; " in told[0]
    assert "all slots go on from checkpoint" in told[0]
    assert not [line for line in lines if "Traceback" in line]
    of_slots = [json.loads(line) for line in lines if line.startswith("{")]
    assert "the row of number 0" in [each["message"] for each in of_slots]
    assert {each["job"] for each in of_slots} == {"told"}
    assert all({"slot", "level", "message"} <= each.keys() for each in of_slots)
    assert "finished" in result
