"""A job that runs in parallel to the program: stop, status, wait, and display in a notebook."""

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from barrier_runtime import CallableSink, Dataflow, Fenced, InvalidJob, JobFailed, Unavailable, committed_files
from barrier_runtime.launch import steering
from barrier_runtime.launch.display import table_of
from barrier_runtime.launch.local_handle import LocalJobHandle
from barrier_runtime.launch.outcome import JobResult
from barrier_runtime.launch.requests import SavepointFailed
from tests.waiting import until


def endless(rows: list[int]) -> Dataflow:
    flow = Dataflow("beside")
    flow.rate("ticks", 2_000).sink("out", CallableSink(lambda batch: rows.extend(batch.column("value").to_pylist())))
    return flow


def start(flow: Dataflow, **options: object) -> LocalJobHandle:
    return flow.start_local(**{"parallelism": 1, "checkpoint_interval": 0.05, **options})


def until_checkpoints(job: LocalJobHandle, count: int) -> None:
    while job.status().checkpoints.completed < count:
        assert not job.done, job


@pytest.mark.slow
def test_a_job_runs_beside_the_program_until_it_is_stopped() -> None:
    rows: list[int] = []
    job = start(endless(rows))
    until_checkpoints(job, 3)
    assert repr(job).startswith("<job beside: RUNNING, ")
    with pytest.raises(Unavailable, match=r"still runs after 0\.01 s"):
        job.wait(0.01)
    job.stop()
    result = job.wait(60)
    assert result.status.outcome == "cancelled"
    assert job.done
    assert sorted(rows) == list(range(len(rows))), "everything that was read is committed, once"
    assert result.records == len(rows), "sources read nothing after the barrier of a stop"
    job.stop()
    assert job.status().outcome == "cancelled"
    assert job.why().reasons[0].cause == "ended"


@pytest.mark.slow
def test_records_read_after_the_last_checkpoint_are_told_apart(tmp_path: Path) -> None:
    """A stop at once leaves such records, and the next run reads them; a stop with a checkpoint leaves none."""
    first: list[int] = []
    job = start(endless(first), checkpoint_interval=3600, checkpoints=str(tmp_path))
    until(lambda: job.status().records, "rows are read")
    job.trigger_checkpoint()
    until_checkpoints(job, 1)
    last = job.status().checkpoints.last_completed
    assert last is not None
    covered = last.records
    assert covered is not None
    until(lambda: job.status().records > covered, "rows are read after the checkpoint")
    job.stop("now")
    result = job.wait(60)
    assert result.records_after_checkpoint == result.records - covered > 0
    said = f"; at least {result.records - covered:,} of the records w"
    assert said in str(result)
    assert str(result).endswith("read after the last checkpoint: the next run reads them again")
    assert said in repr(job)

    again: list[int] = []
    job = start(endless(again), checkpoint_interval=3600, checkpoints=str(tmp_path))
    until(lambda: job.status().records > result.records, "the next run has read the records again")
    job.stop()
    result = job.wait(60)
    assert result.records_after_checkpoint == 0
    assert "after the last checkpoint" not in str(result)
    assert set(again) == set(range(covered, result.records)), "the next run begins after the checkpoint"


@pytest.mark.slow
def test_reports_older_than_the_last_checkpoint_do_not_hide_records_read_after(tmp_path: Path) -> None:
    """Slots report once a second here, so a stop soon after a checkpoint finds reports from before."""
    for attempt in range(4):
        rows: list[int] = []
        folder = str(tmp_path / str(attempt))
        job = start(endless(rows), checkpoint_interval=3600, checkpoints=folder, slot_timeout=10)
        until(lambda job=job: job.status().phase == "running", "the job runs")
        job.trigger_checkpoint()
        until_checkpoints(job, 1)
        last = job.status().checkpoints.last_completed
        assert last is not None
        covered = last.records
        assert covered is not None
        job.stop("now")
        result = job.wait(60)
        assert result.records >= covered
        beyond = result.records - covered
        assert result.records_after_checkpoint == (beyond or None), "no report after the checkpoint: unknown"
        assert re.search(rf"\b{result.records:,} records? read", str(result))
        assert f"{result.records:,} rows read" in repr(job)
        assert ("after the last checkpoint" in str(result)) == bool(beyond)


@pytest.mark.slow
def test_a_run_that_restores_nothing_counts_all_its_records_as_after_a_checkpoint(tmp_path: Path) -> None:
    """The checkpoint of the run before, which the status still shows, covers none of them."""
    first = start(endless([]), checkpoints=str(tmp_path))
    until_checkpoints(first, 2)
    until(lambda: first.status().records > 500, "the first run reads more than the second run will")
    first.stop()
    job = start(endless([]), checkpoints=str(tmp_path), checkpoint_interval=3600, restore="none", allow_replay=True)
    until(lambda: job.status().records, "rows are read")
    job.stop("now")
    result = job.wait(60)
    assert result.status.checkpoints.last_completed is not None
    assert result.status.restored_checkpoint == 0
    assert result.records_after_checkpoint == result.records > 0
    assert f"at least {result.records:,} of the records" in str(result)


@pytest.mark.slow
def test_a_restored_older_checkpoint_covers_its_own_records(tmp_path: Path) -> None:
    options: dict[str, object] = {"checkpoints": str(tmp_path), "checkpoint_interval": 3600, "retained": 3}
    first = start(endless([]), **options)
    covered: list[int | None] = []
    for count in (1, 2):
        seen = covered[-1] or 0 if covered else 0
        until(lambda seen=seen: first.status().records > seen, "rows are read before the checkpoint")
        first.trigger_checkpoint()
        until_checkpoints(first, count)
        last = first.status().checkpoints.last_completed
        assert last is not None
        covered.append(last.records)
    first.stop()
    job = start(endless([]), **options, restore="1", allow_replay=True)
    older = covered[0]
    assert older is not None
    until(lambda: job.status().records > older, "rows are read after the restored checkpoint")
    job.stop("now")
    result = job.wait(60)
    assert result.status.restored_checkpoint == 1
    assert result.records_after_checkpoint == result.records - older > 0


@pytest.mark.slow
def test_no_later_run_is_said_to_read_again_what_at_most_once_passes_over() -> None:
    job = start(endless([]), checkpoint_interval=3600)
    until(lambda: job.status().records, "rows are read")
    job.stop("now")
    status = job.wait(60).status
    assert status.options["mode"] == "exactly_once"
    other = JobResult(msgspec.structs.replace(status, options={**status.options, "mode": "at_most_once"}))
    assert str(other).endswith("read after the last checkpoint")


@pytest.mark.slow
def test_a_run_that_another_run_replaced_says_nothing_of_records_read_again(tmp_path: Path) -> None:
    job = start(endless([]), checkpoints=str(tmp_path), checkpoint_interval=3600)
    until(lambda: job.status().records, "rows are read")
    with start(endless([]), checkpoints=str(tmp_path)) as other:
        with pytest.raises(Fenced):
            job.wait(60)
        assert job.status().outcome == "fenced"
        assert job.status().records_after_checkpoint is None
        assert "after the last checkpoint" not in repr(job)
        until_checkpoints(other, 1)


def test_a_job_that_has_ended_is_not_kept_until_the_program_ends() -> None:
    job = start(endless([]))
    job.stop("now")
    assert job._end not in steering._calls.values()


@pytest.mark.slow
def test_a_stop_waits_for_the_end_unless_asked_not_to() -> None:
    job = start(endless([]))
    until_checkpoints(job, 1)
    job.stop()
    assert job.done
    asked = start(endless([]))
    asked.stop(wait=False)
    assert asked.wait(60).status.outcome == "cancelled"


@pytest.mark.slow
def test_a_stop_raises_the_error_that_ended_the_job() -> None:
    stopping = threading.Event()

    def refused(batch: Any) -> None:
        if stopping.is_set():
            raise ValueError("mine")

    flow = Dataflow("beside")
    flow.rate("ticks", 2_000).sink("out", CallableSink(refused))
    job = start(flow, restart="none", checkpoint_interval=3600)
    while job.status().records < 100:
        assert not job.done, job
    stopping.set()
    with pytest.raises(JobFailed):
        job.wait(60)
    for _ in range(2):
        with pytest.raises(JobFailed, match="mine"):
            job.stop()


@pytest.mark.slow
def test_a_function_of_the_job_may_stop_the_job() -> None:
    flow, started, jobs = Dataflow("beside"), threading.Event(), []

    def last(row: dict[str, Any]) -> dict[str, Any]:
        assert started.wait(60)
        jobs[0].stop("now")
        return {"x": row["value"]}

    flow.rate("ticks", 10).map(last).sink("out", CallableSink(lambda batch: None))
    jobs.append(start(flow))
    started.set()
    assert jobs[0].wait(60).status.outcome == "cancelled"


PROGRAM = """
import sys, time
from barrier_runtime import Dataflow, JsonlSink
flow = Dataflow("beside")
flow.rate("ticks", 2_000).sink("out", JsonlSink(sys.argv[1] + "/out"))
def begun(): return flow.start_local(parallelism=1, checkpoints=sys.argv[1] + "/checkpoints", checkpoint_interval=3600)
def running(job):
    while job.status().records < 100: time.sleep(0.01)
job = begun()
running(job)
"""


@pytest.mark.slow
@pytest.mark.parametrize("end", ["", "raise SystemError('mine')", "job.stop(wait=False)", "job.stop()", "sys.exit(3)"])
def test_a_program_that_ends_beside_a_job_takes_a_last_checkpoint(tmp_path: Path, end: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM + end, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == (1 if "raise" in end else 3 if "exit" in end else 0), done.stderr
    assert done.stderr.count("Traceback") == ("raise" in end), done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("job ")]
    assert told == (
        []
        if end == "job.stop()"
        else ["job beside was running while its context or program ended: stopped after a last checkpoint"]
    )
    files = [Path(url.removeprefix("file://")) for url in committed_files(str(tmp_path / "out"))]
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    values = sorted(row["value"] for row in rows)
    assert len(values) >= 100
    assert values == list(range(len(values)))


@pytest.mark.slow
def test_a_context_takes_a_last_checkpoint_and_an_exception_takes_none(tmp_path: Path) -> None:
    for fails in (True, False):
        rows: list[int] = []
        with contextlib.suppress(KeyError), start(endless(rows), checkpoint_interval=3600) as job:
            while job.status().records < 100:
                assert not job.done, job
            if fails:
                raise KeyError
        assert job.done
        assert (job.status().checkpoints.completed == 0) == fails


@pytest.mark.slow
def test_a_local_job_takes_a_savepoint_and_ends_with_another(tmp_path: Path) -> None:
    """Another job continues from each: with the row after the last row that the savepoint covers."""
    rows: list[int] = []
    job = start(endless(rows), checkpoints=str(tmp_path / "jobs"))
    while job.status().records < 100:
        assert not job.done, job
    taken = job.savepoint(str(tmp_path / "taken"))
    assert not job.done
    last = job.stop(savepoint=str(tmp_path / "last"))
    assert last is not None
    assert job.done
    assert last.checkpoint > taken.checkpoint
    assert job.status().outcome == "cancelled"
    assert sorted(rows) == list(range(len(rows)))
    again: list[int] = []
    other = start(endless(again), checkpoints=str(tmp_path / "others"), restore=last.url)
    until_checkpoints(other, 3)
    other.stop()
    assert sorted(again) == list(range(len(rows), len(rows) + len(again)))


def test_a_savepoint_that_cannot_be_written_leaves_a_local_job_running(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    job = start(endless([]), checkpoints=str(tmp_path / "jobs"))
    with pytest.raises(SavepointFailed):
        job.stop(savepoint=str(tmp_path / "file"))
    assert not job.done
    with pytest.raises(InvalidJob, match="takes no last checkpoint"):
        job.stop("now", savepoint=str(tmp_path / "here"))
    job.stop()
    with pytest.raises(SavepointFailed, match="ended"):
        job.savepoint(str(tmp_path / "late"))


def test_a_stop_before_the_job_runs_is_not_forgotten() -> None:
    job = start(endless([]))
    job.stop("now")
    assert job.wait(60).status.outcome == "cancelled"


@pytest.mark.slow
def test_a_job_goes_on_where_the_last_one_stopped(tmp_path) -> None:
    rows: list[int] = []
    for _ in range(2):
        with start(endless(rows), checkpoints=str(tmp_path)) as job:
            until_checkpoints(job, 2)
            job.stop()
            job.wait(60)
    assert set(rows) == set(range(max(rows) + 1)), "a function may be called again with rows of the last checkpoint"


def test_a_warning_about_the_flow_comes_once_and_names_the_line_of_the_user() -> None:
    flow = Dataflow("beside")
    unread = flow.rate("ticks", 2_000, 10)
    unread.filter("value > 3", name="unread")
    unread.sink("out", CallableSink(lambda batch: None))
    with pytest.warns(UserWarning, match="nothing reads the output of 'unread'") as told:
        start(flow).wait(60)
    assert [each.filename for each in told] == [__file__]


def test_what_is_wrong_with_a_flow_is_said_at_once_and_what_goes_wrong_by_wait() -> None:
    with pytest.raises(InvalidJob, match="has no source"):
        Dataflow("empty").start_local()
    flow = Dataflow("beside")
    flow.rate("ticks", 2_000, 100).map(lambda row: {"x": 1 // row["value"]}).sink("out", CallableSink(print))
    job = start(flow, restart="none")
    with pytest.raises(JobFailed, match="ZeroDivisionError"):
        job.wait(60)
    assert job.status().outcome == "failed"
    assert "FAILED" in repr(job)


def test_a_program_may_look_from_several_threads() -> None:
    with start(endless([])) as job:
        until_checkpoints(job, 1)
        seen: list[int] = []
        lookers = [threading.Thread(target=lambda: seen.append(job.status().records)) for _ in range(8)]
        for each in lookers:
            each.start()
        for each in lookers:
            each.join(60)
        assert len(seen) == 8
    assert job.done


@pytest.mark.slow
def test_a_question_that_the_loop_has_not_answered_when_it_ends_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ending loop cancels the request, and the caller gets the last status."""
    go_on, asked = threading.Event(), threading.Event()
    ask = asyncio.run_coroutine_threadsafe

    async def never(question: Any) -> None:
        question.close()
        asked.set()
        await asyncio.get_running_loop().create_future()

    flow = Dataflow("beside")
    rows = flow.from_iterator(
        "rows", lambda part, of: ({"n": n} for n in range(3) if go_on.wait(60)), schema={"n": int}
    )
    rows.sink("out", CallableSink(lambda batch: None))
    job = start(flow)
    until_checkpoints(job, 1)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", lambda question, loop: ask(never(question), loop))
    statuses: list[Any] = []
    asking = threading.Thread(target=lambda: statuses.append(job.status()))
    asking.start()
    assert asked.wait(60)
    go_on.set()
    asking.join(60)
    assert [status.outcome for status in statuses] == ["finished"]


@pytest.mark.slow
def test_a_notebook_shows_the_line_where_there_are_no_widgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    with start(endless([])) as job:
        until_checkpoints(job, 1)
        assert job._repr_mimebundle_()["text/plain"].startswith("<job beside: RUNNING")
        assert "<b>beside: RUNNING</b>" in table_of(job.status())


# ---------------------------------------------------------------- preview


def test_a_preview_shows_rows_as_text_and_as_html() -> None:
    rows = Dataflow("shown").rate("ticks", 50_000).map(lambda row: {"text": f"[red]<b>{row['value']}"}).preview(3)
    assert len(rows) == 3
    assert rows.table.column("text").to_pylist() == ["[red]<b>0", "[red]<b>1", "[red]<b>2"]
    assert "[red]<b>2" in repr(rows)
    assert repr(rows).endswith("3 rows")
    assert "[red]&lt;b&gt;2</td>" in rows._repr_html_()


def test_a_preview_of_a_slow_stream_ends_in_time_and_says_so() -> None:
    rows = Dataflow("slow").rate("ticks", 0.001).preview(3, within=0.5)
    assert len(rows) <= 1
    assert "the stream has no more, or none came in time" in repr(rows)
    with pytest.raises(InvalidJob, match="give seconds above 0"):
        Dataflow("slow").rate("ticks", 1).preview(within=0)
