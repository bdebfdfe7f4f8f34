"""`explain --restore` and `run --restore` report the rows read and the transactions still to be committed."""

import re
from pathlib import Path

import pytest
from command_line import run_here

from barrier_runtime import Dataflow, JsonlSink
from barrier_runtime.api.dataflow import preview_of_restore
from tests.barrier_runtime.running_job import RunningJob, Target, numbers_flow
from tests.waiting import until


@pytest.mark.slow
async def test_positions_of_sources_and_the_age_are_told_of_a_savepoint(tmp_path: Path) -> None:
    target, url = Target(), str(tmp_path / "savepoint")
    job = RunningJob(numbers_flow(target, "job"), tmp_path / "jobs", parallelism=2)
    await job.rows_in(target, 400)
    status = await job.stop(url)
    rows = len(target.rows())
    options = {"checkpoints": str(tmp_path / "other"), "restore": url}
    page, starts = preview_of_restore(numbers_flow(target, "next"), options, local=True)
    assert starts, "a folder that is not there yet is made by the start"
    assert not (tmp_path / "other").exists()
    assert f"source numbers: {rows:,} rows read, splits that go on: 5, that ended: 0" in page
    assert page.count(" rows, position ") == 3
    assert "and 2 more, each with as many rows or more" in page
    assert "transactions to commit: none" in page
    assert status.savepoints[-1].state == "done"


def program(folder: Path, rows: int) -> str:
    (folder / "app.py").write_text(
        "from barrier_runtime import Dataflow, JsonlSink\n"
        'flow = Dataflow("shown")\n'
        f'flow.rate("numbers", 100_000, rows={rows}, splits=1).sink("out", JsonlSink("{folder}/out"))\n'
    )
    return f"{folder}/app.py:flow"


@pytest.mark.slow
def test_a_run_prints_the_same(tmp_path: Path) -> None:
    flow = program(tmp_path, 100)
    folder = ("--local", "--checkpoints", str(tmp_path / "jobs"))
    assert run_here("run", flow, *folder).returncode == 0
    explained = run_here("explain", flow, *folder, "--restore", "latest")
    told = explained.stdout[explained.stdout.index("restore: checkpoint") :].splitlines()
    assert "  source numbers: 100 rows read, splits that go on: 0, that ended: 1" in told
    ran = run_here("run", flow, *folder, "--restore", "latest")
    assert set(told[1:]) <= set(ran.stderr.splitlines())


@pytest.mark.slow
def test_transactions_of_a_checkpoint_that_are_not_known_to_be_visible_are_told(tmp_path: Path) -> None:
    """The job was stopped at once: the newest checkpoint lists the transactions still pending at the checkpoint."""
    flow = Dataflow("shown")
    flow.rate("numbers", 20_000, splits=1).sink("out", JsonlSink(str(tmp_path / "out")))
    folder = str(tmp_path / "jobs")
    handle = flow.start_local(checkpoints=folder, checkpoint_interval=3600)
    until(lambda: handle.status().records > 0, "rows are read")
    handle.trigger_checkpoint()
    until(lambda: any((tmp_path / "out").glob("*.jsonl")), "a file is visible")
    handle.stop("now")
    page, starts = preview_of_restore(flow, {"checkpoints": folder, "restore": "latest"}, local=True)
    assert starts
    assert re.search(r"transactions to commit: [1-9]\d* of sink out, of checkpoints ", page), page


def test_how_much_of_files_is_left_is_told(tmp_path: Path) -> None:
    """1.9: bytes of files that were not begun, plus the bytes after the position of the others."""
    (tmp_path / "in").mkdir()
    for name in "abcd":
        (tmp_path / "in" / f"{name}.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(10_000)))
    sizes = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())

    def flow(pace: float | None) -> Dataflow:
        flow = Dataflow("files")
        rows = flow.read_jsonl("rows", str(tmp_path / "in"), schema={"n": int}, pace=pace)
        rows.sink("out", JsonlSink(str(tmp_path / "out")))
        return flow

    folder = {"checkpoints": str(tmp_path / "jobs")}
    _stopped_after_a_file(flow(4_000.0), folder["checkpoints"], tmp_path / "out")
    assert 0 < _left_of(flow(None), folder) <= sizes
    (tmp_path / "in" / "e.jsonl").write_text('{"n": 1}\n' * 100_000)
    assert 900_000 < _left_of(flow(None), folder) <= sizes + 900_000
    flow(None).run_local(**folder)
    assert _left_of(flow(None), folder) == 0


def _stopped_after_a_file(flow: Dataflow, checkpoints: str, out: Path) -> None:
    handle = flow.start_local(checkpoints=checkpoints, checkpoint_interval=0.05)
    until(lambda: any(out.glob("*.jsonl")), "a file is visible")
    handle.stop()
    handle.wait()


def _left_of(flow: Dataflow, folder: dict[str, str]) -> int:
    page, starts = preview_of_restore(flow, {**folder, "restore": "latest"}, local=True)
    found = re.search(r"source rows: .*, to be read: at most ([\d,]+) bytes\n", page)
    assert found is not None, page
    assert starts
    return int(found[1].replace(",", ""))
