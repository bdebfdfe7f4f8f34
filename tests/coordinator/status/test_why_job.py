"""Reasons why a job does not start, shows no rows, or became slow: a table of statuses and reports."""

import msgspec
import pytest
from coordinator_world import Coordinator, spec, started
from test_bottleneck import INPUT_BOUND, SLOW_SINK

from barrier_runtime.coordinator.status.status import (
    ChainStatus,
    CheckpointsStatus,
    CheckpointStatus,
    CommitsStatus,
    CommitTrouble,
    JobStatus,
    LatencyPoint,
    LatencyStatus,
    RecoveryStatus,
    Room,
    SourceStatus,
    SubtaskPhases,
    bounded,
    with_holders,
)
from barrier_runtime.coordinator.status.why.job import answer, why_job
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore

NOW = 10_000_000


def complete(number: int, duration_ms: int = 50, commit_ms: int = 20, **more) -> CheckpointStatus:
    return CheckpointStatus(
        checkpoint=number,
        token=1,
        outcome="complete",
        triggered_ms=NOW - 1_000 * (50 - number),
        duration_ms=duration_ms,
        commit_duration_ms=commit_ms,
        **more,
    )


HISTORY = tuple(complete(number) for number in range(1, 20))
HOUR = tuple(LatencyPoint(NOW - 60_000 * (20 - at), 5.0, 20.0, 25.0, 30.0, 1_000) for at in range(20))


def running(**changes: object) -> JobStatus:
    """Returns the status of a healthy job, as the protocol reports it."""
    coordinator, _, _ = started(MemoryStore())
    checkpoints = CheckpointsStatus(triggered=19, completed=19, last_completed=HISTORY[-1], history=HISTORY)
    well = {
        "checkpoints": checkpoints,
        "records": 5_000,
        "latency_last_minute": {"out:processed": LatencyStatus(5.0, 21.0, 30.0, 1_000)},
        "latency_hour": {"out:processed": HOUR, "out:visible": HOUR},
        "recoveries": coordinator.status.recoveries[:1],
    }
    return msgspec.structs.replace(coordinator.status, **{**well, **changes})


def first(status: JobStatus) -> tuple[str, str]:
    reasons = why_job(status, NOW)
    assert reasons
    assert all(reason.remedy and reason.sentence for reason in reasons)
    return reasons[0].cause, reasons[0].sentence


def test_of_a_job_that_runs_well_nothing_is_said() -> None:
    assert why_job(running(), NOW) == ()


def test_a_job_that_waits_for_slots_tells_cores_and_who_holds_them() -> None:
    coordinator = Coordinator(MemoryStore()).begin().settle()
    coordinator.slot(0).connect()
    held = {"buses": 2, "trains": 4}
    cause, sentence = first(msgspec.structs.replace(coordinator.status, room=Room(8, held_by=held)))
    assert cause == "cores"
    assert "needs 2 slots, free 2 of 8 cores, held by trains (4), buses (2)" in sentence
    many = Room(64, 2, {f"job-{number}": 9 - number for number in range(9)})
    cause, sentence = first(msgspec.structs.replace(coordinator.status, room=many))
    assert "needs 2 slots of 2 cores, free 19 of 64 cores, held by job-0 (9), job-1 (8)" in sentence
    assert sentence.endswith("job-4 (5) and 4 others (10).")
    cause, sentence = first(coordinator.status)
    assert "needs 2 slots, 1 have come" in sentence


def test_missing_slots_have_the_remedy_of_what_carries_them() -> None:
    for carrier, remedy in (("spark", "spark.task.cpus"), ("processes", "slots with `barrier-runtime slot`")):
        coordinator = Coordinator(MemoryStore(), spec(carrier=carrier)).begin().settle()
        assert remedy in why_job(coordinator.status, NOW)[0].remedy
        for _ in range(13):
            coordinator.later(5_000)
        coordinator.settle()
        assert ("`barrier-runtime slot`" in coordinator.ended.reason) is (carrier == "processes")


def test_other_jobs_of_the_daemon_hold_cores_unless_the_program_knows_better() -> None:
    coordinator = Coordinator(MemoryStore()).begin().settle()
    jobs = {coordinator.status.job: 1, "trains": 2, "ended": 0}
    assert "held by trains (2)." in first(with_holders(coordinator.status, jobs))[1]
    told = msgspec.structs.replace(coordinator.status, room=Room(8, held_by={"trains": 4, "export": 1}))
    assert "free 3 of 8 cores, held by trains (4), export (1)." in first(with_holders(told, jobs))[1]
    assert with_holders(running(), jobs) == running()


def test_the_error_of_processes_that_do_not_become_slots_is_evidence() -> None:
    coordinator = Coordinator(MemoryStore()).begin().settle()
    error = "a slot's process failed on host worker-b: No module named 'prices'"
    told = msgspec.structs.replace(coordinator.status, room=bounded(Room(8, failing=f"{error}\x1b[2J")))
    assert f"{error}\N{REPLACEMENT CHARACTER}[2J" in why_job(told, told.at_ms)[0].evidence


def test_names_of_core_holders_are_short_and_harmless_and_the_largest_are_kept() -> None:
    many = {f"{number}\x1b[2J\u202e" + "x" * 500: number for number in range(1, 201)}
    kept = bounded(Room(8, 1, many))
    assert sorted(kept.held_by.values()) == list(range(101, 201))
    assert all(name.isprintable() and len(name) == 100 for name in kept.held_by)


def test_a_job_that_restores_says_for_what_it_waits() -> None:
    coordinator = Coordinator(MemoryStore()).begin()
    for index in (0, 1):
        coordinator.slot(index).connect()
    coordinator.settle()
    assert coordinator.phase == "restoring"
    cause, sentence = first(coordinator.status)
    assert (cause, "waits for slots 0, 1 of 2 to restore" in sentence) == ("starting", True)


def test_a_commit_that_fails_is_why_nothing_is_visible() -> None:
    trouble = CommitTrouble("out/1", 19, 7, "OperationalError: disk full")
    cause, sentence = first(running(commits=CommitsStatus({"out/1": 12}, (trouble,))))
    assert cause == "commit"
    assert "in out, because its commit fails: OperationalError: disk full" in sentence


def test_without_a_completed_checkpoint_nothing_can_be_visible() -> None:
    checkpoints = CheckpointsStatus(triggered=2, failed=1, waiting_for=("1/0",))
    assert first(running(checkpoints=checkpoints))[0] == "no_checkpoint"


def test_a_source_that_brings_nothing_is_why_nothing_is_visible() -> None:
    assert first(running(records=0))[0] == "no_rows"


@pytest.mark.parametrize("watermark_ms", [None, NOW - 600_000])
def test_a_split_that_holds_the_watermark_back_is_named(watermark_ms: int | None) -> None:
    lag_ms = None if watermark_ms is None else NOW - watermark_ms
    source = SourceStatus(source="clicks", watermark_ms=watermark_ms, lag_ms=lag_ms, split="clicks-3", split_slot=1)
    cause, sentence = first(running(sources=(source,)))
    assert (cause, "split clicks-3 of clicks holds the watermark back" in sentence) == ("watermark", True)


def test_of_several_sources_the_one_with_the_lowest_watermark_is_named() -> None:
    old = SourceStatus(source="clicks", watermark_ms=NOW - 900_000, lag_ms=900_000, split="clicks-3", split_slot=1)
    older = msgspec.structs.replace(old, source="views", watermark_ms=NOW - 990_000, lag_ms=990_000, split="views-1")
    silent = SourceStatus(source="prices", split="prices-0", split_slot=0)
    for sources, named in (((old, older), "views"), ((old, older, silent), "prices")):
        assert f"of {named} holds the watermark back" in first(running(sources=sources))[1]


def test_a_source_without_rows_that_holds_another_back_is_named() -> None:
    folder = SourceStatus(source="prices", idle_slots=(0, 1))
    clicks = SourceStatus(source="clicks", watermark_ms=NOW - 500, lag_ms=500, split="clicks-3", split_slot=1)
    for reached_ms, said in ((None, "Event time has not begun"), (NOW - 600_500, "Event time is 600 s behind")):
        cause, sentence = first(running(sources=(folder, clicks), watermark_ms=reached_ms))
        assert cause == "standing_source"
        assert sentence.startswith(f"{said}, because source prices brings no rows")
    assert not why_job(running(sources=(folder, clicks), watermark_ms=NOW - 1_000), NOW)
    idle = msgspec.structs.replace(folder, idle_splits=("prices/a.csv",), idle_count=1)
    assert not why_job(running(sources=(idle, clicks), watermark_ms=NOW - 600_500), NOW)


def test_a_source_that_paused_after_rows_and_holds_another_back_is_named() -> None:
    """Also where a window in the chain of the sink reads rows."""
    begun = NOW - 600_000
    rules = SourceStatus(source="rules", watermark_ms=begun, lag_ms=600_000, split="all", split_slot=0)
    clicks = msgspec.structs.replace(rules, source="clicks", watermark_ms=NOW - 500, lag_ms=500)
    chains = tuple(
        ChainStatus(chain=number, operators=names, inputs=inputs, sinks=sinks, is_source=not inputs, rows_in_per_s=rate)
        for number, (names, inputs, sinks, rate) in enumerate(
            ((("rules",), (), (), 0.0), (("clicks",), (), (), 90.0), (("w", "out"), (0, 1), ("out",), 90.0))
        )
    )
    cause, sentence = first(running(sources=(rules, clicks), watermark_ms=begun, chains=chains))
    assert cause == "standing_source"
    assert sentence.startswith("Event time is 600 s behind, because source rules brings no rows")
    busy = (msgspec.structs.replace(chains[0], rows_in_per_s=1.0), *chains[1:])
    assert "rules" not in str(why_job(running(sources=(rules, clicks), watermark_ms=begun, chains=busy), NOW)[:1])


def test_a_trouble_of_the_job_comes_before_all_that_follows_from_it() -> None:
    status = running(condition="WAITING_STORE", condition_reason="append of log/7: timed out", records=0)
    assert first(status) == ("waiting_store", "Job flights is WAITING_STORE: append of log/7: timed out.")


def test_a_latency_that_rose_after_a_restart_names_the_restart() -> None:
    ago = RecoveryStatus(9, "slot 1 lost contact", NOW - 30_000, NOW - 29_000, NOW - 28_000, 2_000)
    rose = {"out:processed": LatencyStatus(8.0, 900.0, 2_000.0, 1_000)}
    status = running(latency_last_minute=rose, recoveries=(ago, ago))
    (reason, *_) = why_job(status, NOW)
    assert reason.cause == "recovery"
    assert "rose to 900 ms (p99 of the last minute, usually 20 ms), because the job restarted" in reason.sentence
    assert "slot 1 lost contact" in reason.evidence[0]


def test_a_visible_latency_that_rose_with_the_checkpoints_names_one() -> None:
    slow = (*HISTORY, complete(20, 4_000))
    checkpoints = msgspec.structs.replace(running().checkpoints, history=slow)
    status = running(checkpoints=checkpoints, latency_last_minute={"out:visible": LatencyStatus(900, 3_900, 4_000, 9)})
    cause, sentence = first(status)
    assert (cause, "because checkpoints take longer: 4,000 ms, usually 50 ms" in sentence) == ("checkpoint", True)
    assert "barrier-runtime why flights 20" in why_job(status, NOW)[0].remedy


def test_a_visible_latency_that_rose_with_the_commits_names_the_sink() -> None:
    slow = (*HISTORY, complete(20, 50, 3_000, slowest_commit="out/1"))
    checkpoints = msgspec.structs.replace(running().checkpoints, history=slow)
    status = running(checkpoints=checkpoints, latency_last_minute={"out:visible": LatencyStatus(900, 3_100, 4_000, 9)})
    assert first(status)[0] == "commit"
    assert "out/1 committed last" in why_job(status, NOW)[0].evidence[0]


def test_a_latency_that_rose_behind_a_bottleneck_names_that() -> None:
    rose = {"out:processed": LatencyStatus(300.0, 900.0, 2_000.0, 1_000)}
    cause, sentence = first(running(latency_last_minute=rose, chains=SLOW_SINK))
    assert (cause, "`out` is the bottleneck" in sentence) == ("server", True)


def test_a_latency_that_rose_without_a_trace_is_said_to_be_unclear() -> None:
    rose = {"out:processed": LatencyStatus(300.0, 900.0, 2_000.0, 1_000)}
    assert first(running(latency_last_minute=rose, chains=INPUT_BOUND))[0] == "unclear"


@pytest.mark.parametrize("p99", [59.0, 65.0])
def test_a_latency_within_its_usual_range_has_not_risen(p99: float) -> None:
    assert why_job(running(latency_last_minute={"out:processed": LatencyStatus(5.0, p99, 90.0, 1_000)}), NOW) == ()


def test_an_answer_about_a_checkpoint_is_its_reason_or_that_it_was_not_slow() -> None:
    slow = complete(20, 4_000, parts=2, subtasks=(SubtaskPhases(0, 0, 3_990, alignment_ms=3_900.0, busy_ms=3_900.0),))
    checkpoints = msgspec.structs.replace(running().checkpoints, history=(*HISTORY, slow))
    status = running(checkpoints=checkpoints)
    assert [reason.cause for reason in answer(status, 20).reasons] == ["backpressure"]
    usual = answer(status, 12)
    assert usual.reasons == ()
    assert str(usual) == "Checkpoint 12 was not slow: it took 50 ms; slow is from 900 ms on."


def test_an_answer_that_a_checkpoint_was_not_slow_names_the_limit_that_applied() -> None:
    """Checkpoints of long ago were slower."""
    history = (
        *(complete(number, 5_000, parts=2) for number in range(1, 61)),
        *(complete(number, parts=2) for number in range(61, 111)),
        complete(120, 250, parts=2),
    )
    status = running(checkpoints=msgspec.structs.replace(running().checkpoints, history=history))
    assert str(answer(status, 120)) == "Checkpoint 120 was not slow: it took 250 ms; slow is from 300 ms on."


def test_a_checkpoint_that_is_not_in_the_history_is_refused_with_those_that_are() -> None:
    under_way = msgspec.structs.replace(running().checkpoints, in_progress=(20,), waiting_for=("1/0",))
    with pytest.raises(InvalidJob, match="checkpoint 20 of job flights is under way, and waits for 1/0"):
        answer(running(checkpoints=under_way), 20)
    with pytest.raises(InvalidJob, match="checkpoint 99 of job flights is not known: the history has 1 to 19"):
        answer(running(), 99)


@pytest.mark.parametrize(
    ("outcome", "reason", "sentence"),
    [
        ("finished", "job flights has read all of its input", "Job flights is finished: it has read all of its input."),
        ("cancelled", "job flights was stopped by its user", "Job flights is stopped: it was stopped by its user."),
        ("fenced", "job flights-2 took over", "Job flights is fenced: job flights-2 took over."),
        ("failed", "ValueError: x", "Job flights is failed: ValueError: x."),
        ("finished", "", "Job flights is finished."),
    ],
)
def test_the_end_of_a_job_names_it_once(outcome: str, reason: str, sentence: str) -> None:
    (told,) = why_job(running(outcome=outcome, reason=reason, error=""), 0)
    assert told.sentence == sentence


def test_a_job_that_failed_says_in_which_operator() -> None:
    coordinator, a, _ = started(MemoryStore())
    a.fail("Traceback (most recent call last):\n  …\nValueError: no number", retryable=False)
    coordinator.settle()
    (reason,) = why_job(coordinator.status, coordinator.now_ms)
    assert reason.cause == "ended"
    assert "ValueError: no number" in reason.sentence
    assert reason.evidence == ("operator count in slot 0: ValueError: no number",)
