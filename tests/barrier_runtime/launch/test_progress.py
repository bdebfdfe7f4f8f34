"""Progress of a running job: a line per sink and per death, no death twice; on a terminal and in a file."""

import io

import msgspec
import pytest
from coordinator_world import started

from barrier_runtime.coordinator.status.status import (
    ChainStatus,
    CommitsStatus,
    CommitTrouble,
    JobStatus,
    LatencyStatus,
    RecoveryStatus,
    SlotStatus,
    TakeoverStatus,
)
from barrier_runtime.launch import display
from barrier_runtime.launch.display import Follower
from barrier_runtime.state.store.memory import MemoryStore

STARTED = RecoveryStatus(1, "run begins", 1_000, 1_200, 1_300, 300)
DIED = "slot 1 (worker-3 pid 71) died of SIGKILL"


def status(**changes: object) -> JobStatus:
    coordinator, _, _ = started(MemoryStore())
    chains = (
        ChainStatus(chain=0, operators=("read",), is_source=True),
        ChainStatus(chain=1, operators=("totals", "files"), inputs=(0,), sinks=("files",)),
        ChainStatus(chain=2, operators=("late",), inputs=(0,), sinks=("late",)),
    )
    well = {"chains": chains, "records": 5_000, "recoveries": (STARTED,), "at_ms": 10_000, "phase": "running"}
    return msgspec.structs.replace(coordinator.status, **{**well, **changes})


def recovering(**changes: object) -> JobStatus:
    recovery = RecoveryStatus(2, DIED, 20_000, None, None, None)
    return status(**{"recoveries": (STARTED, recovery), "phase": "waiting", "at_ms": 20_100, **changes})


def back() -> JobStatus:
    recovery = RecoveryStatus(2, DIED, 20_000, 21_000, 21_412, 1_412)
    return status(recoveries=(STARTED, recovery), at_ms=21_500, restored_checkpoint=41)


def test_a_death_is_one_line_with_what_died_what_happens_and_how_long_it_took() -> None:
    follower = Follower()
    told = [line for each in (status(), recovering(), recovering(), back(), back()) for line in follower.happened(each)]
    assert told == [f"job {back().job}: {DIED}; all slots go on from checkpoint 41; back after 1,412 ms"]


def test_slot_of_another_build_is_one_line() -> None:
    slot = SlotStatus(1, "u", 7, "worker", 3, "running", 0, {}, "slot 1 on host worker has another build")
    follower = Follower()
    told = [line for _ in range(2) for line in follower.happened(status(slots=(slot,)))]
    assert told == [f"job {back().job}: slot 1 on host worker has another build"]


def test_a_start_and_what_was_before_are_not_deaths() -> None:
    assert Follower().happened(back()) == []
    follower = Follower()
    begins = status(phase="waiting", recoveries=(RecoveryStatus(1, "run begins", 1_000, None, None, None),))
    assert [*follower.happened(begins), *follower.happened(status())] == []


def test_a_recovery_that_hangs_is_told_once_while_it_goes_on() -> None:
    follower = Follower()
    follower.happened(status())
    hanging = recovering(at_ms=26_000, missing_slots=(1,), restored_checkpoint=0)
    assert follower.happened(hanging) == [
        f"job {hanging.job}: {DIED}; all slots begin again from the start; not back after 6 s, waits for slot 1"
    ]
    assert follower.happened(msgspec.structs.replace(hanging, at_ms=30_000)) == []
    assert len(follower.happened(back())) == 1


def test_another_coordinator_is_a_line() -> None:
    follower = Follower()
    follower.happened(status())
    unknown = TakeoverStatus(1, "b-1", 20_000)
    once = status(taken_over=1, takeovers=(unknown,))
    assert follower.happened(once) == [f"job {once.job}: another coordinator process leads now; the slots went on"]
    assert follower.happened(once) == []
    killed = TakeoverStatus(1, "c-1", 30_000, "process 71 died of SIGKILL", 1_412)
    assert (
        follower.happened(status(taken_over=3, takeovers=(unknown, killed, killed)))
        == [f"job {once.job}: the coordinator, process 71 died of SIGKILL; the slots went on; back after 1,412 ms"] * 2
    )


def test_only_the_first_line_of_a_reason_is_told() -> None:
    follower = Follower()
    follower.happened(status())
    recovery = RecoveryStatus(2, "x" * 300 + "\nTraceback", 20_000, 20_500, 21_000, 1_000)
    (line,) = follower.happened(status(recoveries=(STARTED, recovery)))
    assert "Traceback" not in line
    assert len(line) < 260


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        (
            "PeerLost: the data connection with slot 1 broke; process 71 of slot 1 died of SIGKILL",
            "process 71 of slot 1 ",
        ),
        ("PeerLost: the data connection with slot 1 broke", "the data connection with slot 1 broke; all slots"),
        ("slot 1 (host pid 3) was silent for 5000 ms", "slot 1 (host pid 3) was silent for 5000 ms; all slots"),
    ],
)
def test_the_dead_process_is_named_where_it_is_known(reason: str, said: str) -> None:
    follower = Follower()
    follower.happened(status())
    (line,) = follower.happened(status(recoveries=(STARTED, RecoveryStatus(2, reason, 20_000, 20_500, 21_000, 1_000))))
    assert line.startswith(f"job {status().job}: {said}")


def test_a_line_for_each_sink_says_what_is_visible_and_how_late() -> None:
    follower = Follower()
    through = {"files/0": 41, "files/1": 40, "late/0": 39}
    troubles = (CommitTrouble("late/0", 40, 3, "refused"),)
    latencies = {"files:processed": LatencyStatus(5.0, 21.0, 30.0, 1_000)}
    facts = {"commits": CommitsStatus(through, troubles), "latency_last_minute": latencies}
    assert follower.lines(status(**facts)) == [
        "files: 5,000 rows read · visible through checkpoint 40 · processed p99 21 ms",
        "late: 5,000 rows read · visible through checkpoint 39 · its commit has failed 3 times",
    ]
    (first, _) = follower.lines(status(**facts, records=9_000, at_ms=12_000))
    assert first.startswith("files: 9,000 rows read, 2,000/s")
    (first, _) = follower.lines(status(records=3_000, at_ms=13_000))  # back to a checkpoint
    assert first == "files: 3,000 rows read"


@pytest.mark.parametrize(
    ("width", "first", "second"),
    [
        (
            200,
            "files: 5,000 rows read · visible through checkpoint 40 · processed p99 21 ms · visible p99 310 ms",
            "late: ",
        ),
        (
            60,
            "files: 5,000 rows · checkpoint 40 · p99 21/310 ms",
            "late: 5,000 rows · checkpoint 39 · 3 failed commits",
        ),
    ],
)
def test_on_a_narrow_terminal_the_same_is_told_in_fewer_words(width: int, first: str, second: str) -> None:
    through = {"files/0": 41, "files/1": 40, "late/0": 39}
    latencies = {
        "files:processed": LatencyStatus(5.0, 21.0, 30.0, 1_000),
        "files:visible": LatencyStatus(200.0, 310.0, 400.0, 1_000),
    }
    troubles = (CommitTrouble("late/0", 40, 3, "refused"),)
    told = status(commits=CommitsStatus(through, troubles), latency_last_minute=latencies)
    lines = Follower().lines(told, width)
    assert lines[0] == first
    assert lines[1].startswith(second)
    assert all(len(line) <= width for line in lines)


def test_a_long_name_is_cut_before_the_figures_are() -> None:
    chains = (ChainStatus(chain=0, operators=("n" * 90,), sinks=("n" * 90,)),)
    (line,) = Follower().lines(status(chains=chains), 60)
    assert line == f"{'n' * 47}…: 5,000 rows"
    (line,) = Follower().lines(status(chains=chains), 10)
    assert line == f"{'n' * 11}…: 5,000 rows", "the terminal cuts the rest"


def test_where_it_is_kept_output_does_not_grow_with_statuses() -> None:
    out = io.StringIO()
    with display.progress_shown(out) as show:
        for each in (status(), recovering(), *[back()] * 50):
            show(each)
    assert out.getvalue().splitlines() == [
        f"job {back().job}: {DIED}; all slots go on from checkpoint 41; back after 1,412 ms"
    ]
    with display.progress_shown(out := io.StringIO(), every_s=0.0) as show:
        show(status())
    assert out.getvalue().splitlines() == ["files: 5,000 rows read", "late: 5,000 rows read"]


def test_on_a_terminal_lines_are_written_over_and_deaths_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    out = Terminal()
    with display.progress_shown(out) as show:
        for each in (status(), back()):
            show(each)
    assert out.getvalue().count("back after 1,412 ms") == 1
    with display.progress_shown(plain := Terminal(), plain=True) as show:
        for each in (status(), back()):
            show(each)
    assert plain.getvalue() == f"job {back().job}: {DIED}; all slots go on from checkpoint 41; back after 1,412 ms\n"
    assert "\x1b[1A" in out.getvalue()  # the cursor moves up for a line per sink, whatever else is printed
