"""A job that runs in parallel to the program: stop, status, wait, and display in a notebook."""

import asyncio
import atexit
import sys
import threading
from typing import Any

import pytest

from barrier_runtime import CallableSink, Dataflow, InvalidJob, JobFailed, Unavailable
from barrier_runtime.launch.display import table_of
from barrier_runtime.launch.local_handle import LocalJobHandle


def endless(rows: list[int]) -> Dataflow:
    flow = Dataflow("beside")
    flow.rate("ticks", 2_000).sink("out", CallableSink(lambda batch: rows.extend(batch.column("value").to_pylist())))
    return flow


def start(flow: Dataflow, **options: object) -> LocalJobHandle:
    return flow.start_local(parallelism=1, checkpoint_interval=0.05, **options)


def until_checkpoints(job: LocalJobHandle, count: int) -> None:
    while job.status().checkpoints.completed < count:
        assert not job.done, job


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
    assert len(rows) >= result.records, "as the last heartbeat told"
    job.stop()
    assert job.status().outcome == "cancelled"
    assert job.why().reasons[0].cause == "ended"


def test_a_job_that_ends_at_once_is_not_kept_until_the_program_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    gone = threading.Event()

    def register(function: Any) -> None:
        if function.__self__._thread.ident is not None:  # if the thread runs, wait until it ends
            assert gone.wait(60)
        order.append("register")

    def unregister(function: Any) -> None:
        order.append("unregister")
        gone.set()

    monkeypatch.setattr(atexit, "register", register)
    monkeypatch.setattr(atexit, "unregister", unregister)
    job = start(endless([]))
    job.stop("now")
    job.wait(60)
    assert gone.wait(60)
    assert order == ["register", "unregister"]


def test_a_stop_before_the_job_runs_is_not_forgotten() -> None:
    job = start(endless([]))
    job.stop("now")
    assert job.wait(60).status.outcome == "cancelled"


def test_a_job_goes_on_where_the_last_one_stopped(tmp_path) -> None:
    rows: list[int] = []
    for _ in range(2):
        with start(endless(rows), checkpoints=str(tmp_path)) as job:
            until_checkpoints(job, 2)
            job.stop()
            job.wait(60)
    assert set(rows) == set(range(max(rows) + 1)), "a function may be called again with rows of the last checkpoint"


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
