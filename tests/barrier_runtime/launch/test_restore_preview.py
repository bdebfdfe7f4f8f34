"""`explain --restore`: a preview of a start with a savepoint, before any write."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from command_line import run_here

from barrier_runtime import CollectSink, Dataflow, JobFailed, ProcessContext, ValueState, count
from barrier_runtime.api.dataflow import preview_of_restore
from barrier_runtime.coordinator.savepoint_files import claimed_by
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.running_job import RunningJob, Target, numbers_flow


class Seen:
    seen = ValueState(str, default="")
    last = ValueState(int, default=0)

    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        return [row]


def changed(name: str = "next") -> Dataflow:
    """`numbers_flow` with another type of a state, a new state, and a renamed operator."""
    flow = Dataflow(name)
    rows = flow.rate("numbers", 4_000, keys=40, splits=5)
    counted = rows.key_by("key").aggregate("renamed", n=count())
    counted.key_by("key").process("own", Seen, schema={"key": int, "n": int}).sink("out", CollectSink())
    return flow


def contents(folder: Path) -> Mapping[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
async def test_a_start_with_a_savepoint_is_told_by_names_and_nothing_is_written(tmp_path: Path) -> None:
    """1.2, 1.9: no byte of the savepoint names a folder; `explain` shows each refusal and exits with code 2."""
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
    assert told[told.index("transactions to commit: none") + 1 : -2] == [
        "parallelism 2 -> 3: key groups and splits move",
        "numbers: matched",
        "renamed: new",
        "own: refused",
        "state last: new",
        "state seen: refused",
        "out: matched",
        "count: gone; its state is dropped if allow_non_restored is set",
    ]
    assert "state seen: refused, type changed" in page
    assert "refused: " in page
    assert not starts
    app = tmp_path / "app.py"
    app.write_text("from tests.barrier_runtime.launch.test_restore_preview import changed\n\nflow = changed()\n")
    command = ("explain", f"{app}:flow", "--local", "--checkpoints", options["checkpoints"], "--restore", url)
    done = run_here(*command)
    assert (done.returncode, "refused: " in done.stdout) == (2, True), done.stderr
    assert contents(stored) == before


def read_in(splits: int, sink: CollectSink) -> Dataflow:
    flow = Dataflow("split")
    rows = flow.from_iterator(
        "rows", lambda index, of: ({"n": n} for n in range(index, 10**9, of)), schema={"n": int}, splits=splits
    )
    rows.sink("out", sink)
    return flow


@pytest.mark.slow
async def test_splits_that_are_gone_are_refused_by_explain_and_before_anything_is_written(tmp_path: Path) -> None:
    url, sink = str(tmp_path / "savepoint"), Target()
    job = RunningJob(read_in(3, sink), tmp_path / "first", parallelism=1)
    await job.rows_in(sink, 1)
    await job.stop(savepoint=url)
    said = "source 'rows': split '0-of-3' was read up to row .* but is not there any more: bring it back"
    for folder, restore in ((tmp_path / "first", "latest"), (tmp_path / "second", url)):
        options: dict[str, Any] = {"checkpoints": str(folder), "restore": restore, "parallelism": 1}
        page, starts = preview_of_restore(read_in(5, sink), options)
        assert re.search(f"refused: .*{said}", page)
        assert not starts
        assert preview_of_restore(read_in(3, sink), options)[1]
    with pytest.raises(InvalidJob, match=said):
        read_in(5, sink).run_local(checkpoints=tmp_path / "second", restore=url, restore_mode="claim", parallelism=1)
    assert not list((tmp_path / "second").rglob("manifest.json"))
    assert claimed_by(url) in (None, "")


@pytest.mark.slow
def test_rows_read_to_their_end_are_not_read_again_in_another_number_of_splits(tmp_path: Path) -> None:
    def flow(splits: int | None, sink: CollectSink) -> Dataflow:
        flow = Dataflow("few")
        rows = flow.from_iterator(
            "rows", lambda index, of: ({"n": n} for n in range(index, 9, of)), schema={"n": int}, splits=splits
        )
        rows.sink("out", sink)
        return flow

    options: dict[str, Any] = {"checkpoints": str(tmp_path), "parallelism": 3}
    first, again = CollectSink(), CollectSink()
    flow(None, first).run_local(**options)
    flow(3, again).run_local(**{**options, "parallelism": 2})
    assert (len(first.rows()), again.rows()) == (9, [])
    said = "source 'rows'.*: it has 2 splits now, and 3 of another number of splits were read to their end"
    for splits in (2, None):
        others = {**options, "parallelism": 2}
        page, starts = preview_of_restore(flow(splits, again), others)
        assert re.search(f"refused: .*{said}", page)
        assert not starts
        with pytest.raises(JobFailed, match=said):
            flow(splits, again).run_local(**others)
    assert again.rows() == []
    flow(2, again).run_local(**options, restore="none", allow_replay=True)
    assert len(again.rows()) == 9


async def test_an_older_checkpoint_that_is_not_kept_is_refused_with_what_to_do(tmp_path: Path) -> None:
    sink = Target()
    job = RunningJob(read_in(1, sink), tmp_path, parallelism=1, checkpoint_interval=0.05)
    first = tmp_path / "split" / "checkpoints" / "1-1"
    await job.until(lambda status: status.checkpoints.completed > 1 and not first.exists())
    await job.stop()
    said = r"checkpoint 1 of job split is not kept any more \(kept: \d+\): "
    said += "restore the latest one or a savepoint, and keep more"
    options: dict[str, Any] = {"checkpoints": str(tmp_path), "restore": "1", "allow_replay": True, "parallelism": 1}
    with pytest.raises(InvalidJob, match=said):
        preview_of_restore(read_in(1, sink), options)
    with pytest.raises(JobFailed, match=said):
        read_in(1, sink).run_local(**options)


class Retyped(Seen):
    seen = ValueState(list[int], default_factory=list)
    last = ValueState(dict[str, int], default_factory=dict)


def of_two_states(function: type) -> Dataflow:
    flow = Dataflow("typed")
    rows = flow.from_iterator("rows", lambda index, of: [{"key": 1, "n": 1}], schema={"key": int, "n": int}, splits=1)
    rows.key_by("key").process("own", function, schema={"key": int, "n": int}).sink("out", CollectSink())
    return flow


class Writes(Seen):
    def process(self, key: int, row: dict[str, Any], ctx: ProcessContext) -> list[dict[str, Any]]:
        self.seen.value, self.last.value = "x", 1
        return [row]


@pytest.mark.slow
def test_explain_in_python_checks_the_restore_and_names_each_refusal_once(tmp_path: Path) -> None:
    of_two_states(Writes).run_local(checkpoints=tmp_path, parallelism=1)
    options: dict[str, Any] = {"checkpoints": tmp_path, "restore": "latest", "parallelism": 1}
    text = of_two_states(Writes).explain(**options)
    assert text.startswith("job typed: ")
    assert "restore: checkpoint 1 of job typed" in text
    assert "state seen: matched\n" in text
    with pytest.raises(InvalidJob) as refused:
        of_two_states(Retyped).explain(**options)
    told = str(refused.value)
    assert ("own: refused" in told, "matched, type changed" in told) == (True, False)
    assert ("state seen: refused, type changed" in told, "state last: refused, type changed" in told) == (True, True)
    reasons = [line for line in told.splitlines() if line.startswith("refused: ")]
    assert [re.findall(r"state '(\w+)'", line) for line in reasons] == [["last"], ["seen"]]
    with pytest.raises(InvalidJob, match="nowhere"):
        of_two_states(Writes).explain(checkpoints=tmp_path, restore=str(tmp_path / "nowhere"))
    with pytest.raises(InvalidJob, match="give checkpoints="):
        of_two_states(Writes).explain(restore="latest")
