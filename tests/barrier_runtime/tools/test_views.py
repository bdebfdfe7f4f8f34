"""A job as tables on a terminal: present parts are shown, missing ones omitted, and no name moves the cursor."""

import io
import re

import msgspec
import pytest
from rich.console import Console

from barrier_runtime.coordinator.client.rest_types import JobSummary
from barrier_runtime.coordinator.status.status import (
    ChainStatus,
    CheckpointsStatus,
    CheckpointStatus,
    CommitsStatus,
    CommitTrouble,
    FailureStatus,
    JobStatus,
    LatencyStatus,
    RecoveryStatus,
    SlotStatus,
    SourceStatus,
    SubtaskPhases,
)
from barrier_runtime.state.errors import Unavailable
from barrier_runtime.tools.views import job_view, jobs_view, watch

EMPTY = JobStatus(
    job="flights",
    run_id="r",
    submitter="ann",
    phase="waiting",
    outcome=None,
    reason="",
    error=None,
    fenced_by=None,
    token=None,
    generations=0,
    leader="",
    parallelism=2,
    max_parallelism=128,
    slots=(),
    missing_slots=(0, 1),
    checkpoints=CheckpointsStatus(),
    recoveries=(),
    watermark_ms=None,
    records=0,
    latency={},
    commits=CommitsStatus({}, ()),
    kill=(),
    options={},
    restored_checkpoint=0,
    condition="STARTING",
)


def checkpoint(number: int, duration_ms: int = 40, **more: object) -> CheckpointStatus:
    subtask = SubtaskPhases(
        1, 0, duration_ms, async_ms=duration_ms - 5.0, precommit_ms=duration_ms - 10.0, slowest="out"
    )
    base = {"outcome": "complete", "ack_duration_ms": duration_ms - 3, "new_bytes": 2_500_000, "parts": 2}
    return CheckpointStatus(
        checkpoint=number, token=1, triggered_ms=0, duration_ms=duration_ms, subtasks=(subtask,), **{**base, **more}
    )


BUSY = msgspec.structs.replace(
    EMPTY,
    phase="running",
    condition="WAITING_SINK",
    condition_reason="sink out/1 cannot commit",
    token=3,
    records=1_234_567,
    missing_slots=(),
    at_ms=100_000,
    slots=(SlotStatus(0, "u", 77, "worker-1", 4, "running", 300, {"rss_bytes": 3.1e8, "loop_lag_ms": 2.0}),),
    chains=(
        ChainStatus(chain=0, operators=("numbers",), busy=0.1, backpressured=0.6, held=0.0, rows_in_per_s=5_000.0),
        ChainStatus(chain=1, operators=("count", "out"), inputs=(0,), busy=0.8, busiest=0.9, busiest_slot=1, held=0.0),
    ),
    sources=(SourceStatus(source="numbers", watermark_ms=1, lag_ms=12_000, split="part-3", split_slot=1),),
    latency_last_minute={"out:visible": LatencyStatus(3.0, 80.5, 120.0, 999, 100.25)},
    checkpoints=CheckpointsStatus(completed=9, history=(*map(checkpoint, range(1, 9)), checkpoint(9, 2_000))),
    commits=CommitsStatus({}, (CommitTrouble("out/1", 9, 4, "disk full"),)),
    failures=(FailureStatus(2, 95_000, 1, "1/1", "count", "Traceback …\n  line\nValueError: no number", True),),
)


def printed(status: JobStatus, width: int = 140) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(job_view(status))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_job_of_which_nothing_is_known_yet_is_two_lines() -> None:
    assert len(printed(EMPTY).strip().splitlines()) == 2


@pytest.mark.parametrize(
    "words",
    [
        "job flights: running, WAITING_SINK: sink out/1 cannot commit",
        "1,234,567 rows read",
        "count → out",
        "████████",
        "5,000",
        "90% (slot 1)",
        "12 s",
        "part-3 (slot 1)",
        "80.5",
        "precommit",
        "2.5 MB",
        "disk full",
        "310.0 MB",
        "5.0 s ago",
        "ValueError: no number",
        "`count → out` is the bottleneck",
    ],
)
def test_what_is_known_is_shown(words: str) -> None:
    assert words in printed(BUSY)


def test_what_is_wrong_stands_above_what_may_be_cut_off_and_a_start_is_no_event() -> None:
    recoveries = (
        RecoveryStatus(1, "started by ann", 1_000, 1_100, 1_300, 300),
        RecoveryStatus(3, "process 71 of slot 1 died of SIGKILL", 88_000, 89_000, 89_250, 1_250),
    )
    text = printed(msgspec.structs.replace(BUSY, recoveries=recoveries, generations=2))
    event, cause = text.index("recovery, generation 3"), text.index("`count → out` is the bottleneck")
    assert "12 s ago" in text
    assert "1.3 s  process 71 of slot 1 died of SIGKILL" in text or "1.2 s  process 71 of slot 1 died of" in text
    assert max(event, cause) < text.index("rows/s in") < text.index("checkpoint  ended") < text.index("memory")
    assert "started by ann" not in text


@pytest.mark.slow
@pytest.mark.parametrize(("height", "checkpoints"), [(60, 8), (31, 5), (24, 1)])
def test_in_a_low_window_top_shows_fewer_checkpoints(height: int, checkpoints: int) -> None:
    console = Console(file=io.StringIO(), width=140, height=height, force_terminal=True, highlight=False)
    watch(Answers(BUSY, ENDED), 1.0, console=console, sleep=lambda seconds: None)
    assert isinstance(console.file, io.StringIO)
    first = console.file.getvalue().split("Ctrl-C leaves")[1]
    assert len(re.findall(r"\d +complete ", first)) == checkpoints


def test_nothing_of_a_traceback_but_what_went_wrong() -> None:
    assert "Traceback" not in printed(BUSY)


def test_a_name_is_neither_markup_nor_a_command_to_the_terminal() -> None:
    chains = (ChainStatus(chain=0, operators=("[red]a\x1b[2J\nb\u202e",), busy=0.5),)
    text = printed(msgspec.structs.replace(BUSY, chains=chains))
    assert "[red]a" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_replayed_data_have_no_watermark_lag() -> None:
    days = 4_906 * 86_400_000
    replayed = msgspec.structs.replace(BUSY.sources[0], lag_ms=days)
    text = printed(msgspec.structs.replace(BUSY, sources=(replayed,)))
    assert "4906 d" not in text
    assert "numbers" in text


def test_of_no_jobs_it_is_said() -> None:
    console = Console(file=io.StringIO())
    console.print(jobs_view([]))
    console.print(jobs_view([JobSummary("flights", "r", "running", None, "RUNNING")]))
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue().splitlines()[0] == "no jobs"
    assert "flights" in console.file.getvalue()


class Answers:
    def __init__(self, *answers: JobStatus | Exception) -> None:
        self._answers = list(answers)
        self.slept: list[float] = []

    def __call__(self) -> JobStatus:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def watched(answers: Answers, *, terminal: bool = True, once: bool = False) -> str:
    console = Console(file=io.StringIO(), width=140, height=60, force_terminal=terminal, highlight=False)
    watch(answers, 2.0, once=once, console=console, sleep=answers.slept.append)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


ENDED = msgspec.structs.replace(BUSY, outcome="finished", phase="finished", condition="FINISHED", condition_reason="")


@pytest.mark.slow
def test_top_looks_until_the_job_ends_and_leaves_how_it_ended() -> None:
    answers = Answers(BUSY, BUSY, ENDED)
    text = watched(answers)
    assert answers.slept == [2.0, 2.0]
    assert "job flights: finished, FINISHED" in text


@pytest.mark.slow
def test_a_coordinator_that_is_away_is_said_and_asked_again() -> None:
    text = watched(Answers(BUSY, Unavailable("coordinator does not answer"), ENDED))
    assert "coordinator does not answer" in text
    assert text.index("does not answer") < text.rindex("FINISHED")


def test_a_coordinator_that_never_answered_is_an_error() -> None:
    with pytest.raises(Unavailable):
        watched(Answers(Unavailable("nobody there")))


@pytest.mark.parametrize(("terminal", "once"), [(False, False), (True, True)])
def test_without_a_terminal_or_once_it_looks_once(terminal: bool, once: bool) -> None:
    answers = Answers(BUSY)
    assert "job flights: running" in watched(answers, terminal=terminal, once=once)
    assert answers.slept == []


@pytest.mark.slow
def test_ctrl_c_leaves_quietly() -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    console = Console(file=io.StringIO(), force_terminal=True)
    watch(Answers(BUSY), 1.0, console=console, sleep=interrupted)
