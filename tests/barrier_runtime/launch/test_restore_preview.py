"""`explain --restore`: what a start with a savepoint would do, before anything is written."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here

from barrier_runtime import CollectSink, Dataflow, ProcessContext, ValueState, count
from barrier_runtime.api.dataflow import preview_of_restore
from tests.barrier_runtime.running_job import RunningJob, Target, numbers_flow


class Seen:
    seen = ValueState(str, default="")
    last = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        return [row]


def changed(name: str = "next") -> Dataflow:
    """`numbers_flow` with another type of one state, one that is new, and an operator of another name."""
    flow = Dataflow(name)
    rows = flow.rate("numbers", 4_000, keys=40, splits=5)
    counted = rows.key_by("key").aggregate("renamed", n=count())
    counted.key_by("key").process("own", Seen, schema={"key": int, "n": int}).sink("out", CollectSink())
    return flow


def contents(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
async def test_a_start_with_a_savepoint_is_told_by_names_and_nothing_is_written(tmp_path: Path) -> None:
    """1.2, 1.9: no byte of the savepoint names a place; what is refused is refused by `explain`, with exit code 2."""
    stored = tmp_path / "stored"
    target, url = Target(), str(stored / "savepoint")
    job = RunningJob(numbers_flow(target, "job"), stored / "job", parallelism=2)
    await job.rows_in(target, 400)
    await job.stop(url)
    (stored / "jobs").mkdir()
    before = contents(stored)
    places = [name for name, data in before.items() if name.startswith("savepoint") and tmp_path.name.encode() in data]
    assert places == []
    options = {"checkpoints": str(stored / "jobs"), "restore": url, "parallelism": 3}
    page, starts = preview_of_restore(numbers_flow(target, "next"), options, local=True)
    assert (starts, "refused" in page) == (True, False)
    assert "@" not in page, "what the runtime keeps beside a function's own states is no state of theirs"
    page, starts = preview_of_restore(changed(), options, local=True)
    told = [line.strip().split(", ")[0] for line in page.splitlines()]
    assert told[told.index("transactions to commit: none") + 1 : -1] == [
        "parallelism 2 -> 3: key groups and splits move",
        "numbers: matched",
        "renamed: new",
        "own: matched",
        "state last: new",
        "state seen: matched",
        "out: matched",
        "count: gone; its state is dropped if allow_non_restored is set",
    ]
    assert "state seen: matched, type changed" in page
    assert "refused: " in page
    assert not starts
    app = tmp_path / "app.py"
    app.write_text("from tests.barrier_runtime.launch.test_restore_preview import changed\n\nflow = changed()\n")
    command = ("explain", f"{app}:flow", "--local", "--checkpoints", options["checkpoints"], "--restore", url)
    done = run_here(*command)
    assert (done.returncode, "refused: " in done.stdout) == (2, True), done.stderr
    assert contents(stored) == before
