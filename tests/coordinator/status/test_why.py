"""Why checkpoints were slow: causes that were planted in real runs are named, and ordinary checkpoints are passed over.

The records are of a job on Spark with two slot processes (`tests/recorded_checkpoints/record.py`). Those in `held_out`
(`held_out.py`) are of other flows, rates and stores, and were recorded after the thresholds had been set.
"""

import lzma
from pathlib import Path

import msgspec
import pytest
from coordinator_world import spec, started

from barrier_runtime.coordinator.status.status import ChainStatus, CheckpointStatus, SlotDuring, SubtaskPhases
from barrier_runtime.coordinator.status.why.checkpoint import CAUSES, slow_above_ms, why_checkpoint
from barrier_runtime.coordinator.wire.messages import Heartbeat, Trigger

RECORDED = Path(__file__).resolve().parents[2] / "recorded_checkpoints"


class Recorded(msgspec.Struct):
    cause: str
    planted: list[int]
    chains: tuple[ChainStatus, ...]
    history: tuple[CheckpointStatus, ...]

    def slow(self) -> list[tuple[CheckpointStatus, str]]:
        """The planted checkpoints of which something is said, and the cause."""
        reasons = [(each, why_checkpoint(each, self.history, self.chains)) for each in self.history]
        return [(each, why.cause) for each, why in reasons if why is not None and each.checkpoint in self.planted]


def recorded(cause: str) -> Recorded:
    return msgspec.json.decode(lzma.decompress((RECORDED / f"{cause}.json.xz").read_bytes()), type=Recorded)


@pytest.mark.parametrize(
    ("planted", "cause", "named"),
    [
        ("step", "step", "one step of `numbers → read`"),
        ("skew", "skew", "of `keep` got"),
        ("precommit", "precommit", "the pre-commit of out took 1.5 s"),
        ("store", "store", "the store was slow"),
        ("large", "large_state", "much more state had changed than usual"),
        ("backpressure", "backpressure", "`out` gets more than it can process"),
        ("starved", "starved", "slot 1 got no processor"),
    ],
)
def test_a_planted_cause_is_named(planted: str, cause: str, named: str) -> None:
    of = recorded(planted)
    slow = of.slow()
    assert slow, "the cause was planted, and no checkpoint was slow"
    worst, found = max(slow, key=lambda each: each[0].duration_ms)
    reason = why_checkpoint(worst, of.history, of.chains)
    assert reason is not None
    assert found == cause, str(reason)
    assert named in reason.sentence
    assert reason.evidence
    assert reason.remedy


def test_ordinary_checkpoints_are_passed_over() -> None:
    """At least 98 of 100, on a machine that had other work meanwhile."""
    normal = recorded("normal").history
    said = [why for each in normal[-100:] if (why := why_checkpoint(each, normal)) is not None]
    assert len(normal) == 100
    assert len(said) <= 2, "\n".join(map(str, said))


def test_the_checkpoints_before_a_planted_cause_are_passed_over() -> None:
    for cause in ("step", "precommit", "store", "large"):
        of = recorded(cause)
        before = [each for each in of.history if each.checkpoint < of.planted[0]]
        said = [why for each in before[5:] if (why := why_checkpoint(each, of.history, of.chains)) is not None]
        assert len(said) <= 1, "\n".join(map(str, said))


# ---------------------------------------------------------------- held out


@pytest.mark.parametrize(
    ("planted", "cause", "named"),
    [
        ("step", "step", "one step of `baskets → baskets-out` kept slot"),
        ("skew", "skew", "of `baskets → baskets-out` got 68% of the rows"),
        ("precommit", "precommit", "the pre-commit of sums-out took 1.1 s"),
        ("store", "store", "the store took 967 ms for the manifest and the log record"),
        ("large", "large_state", "much more state had changed than usual"),
        ("slow-keyed", "backpressure", "`baskets → baskets-out` gets more than it can process"),
        ("starved", "starved", "got no processor for 6.9 s"),
        ("partition", "partition", "nothing came from slot 2 for 4.1 s"),
        ("stalled", "step", "kept slot 2 for 2.4 s"),  # stopped in the middle of a step: nothing tells the two apart
    ],
)
def test_a_cause_planted_in_another_flow_is_named(planted: str, cause: str, named: str) -> None:
    of = recorded(f"held_out/{planted}")
    completed = [(each, found) for each, found in of.slow() if each.outcome == "complete"]
    worst, found = max(completed, key=lambda each: each[0].duration_ms)
    reason = why_checkpoint(worst, of.history, of.chains)
    assert reason is not None
    assert found == cause, str(reason)
    assert named in reason.sentence


def test_ordinary_checkpoints_of_other_flows_are_passed_over() -> None:
    """Two runs of 100, at 2,400 rows/s by Python functions and at 9,000 rows/s, on a machine with a load of 5 to 6."""
    for run in ("normal", "normal-quick"):
        normal = recorded(f"held_out/{run}").history
        said = [why for each in normal if (why := why_checkpoint(each, normal)) is not None]
        assert len(normal) == 100
        assert len(said) <= 2, "\n".join(map(str, said))


# ---------------------------------------------------------------- played by the protocol


def beat(coordinator, *slots, late_ms: int = 0) -> None:
    for slot in slots:
        slot.say(Heartbeat(slot.token, sent_at_ms=coordinator.now_ms - late_ms))


def with_history(store):
    """Two running slots, and ten checkpoints of 20 ms behind them."""
    coordinator, a, b = started(store, spec(slot_timeout_ms=60_000))
    for _ in range(10):
        coordinator.later(500)
        beat(coordinator, a, b)
        coordinator.trigger()
        coordinator.later(20)
        for slot in (a, b):
            slot.ack(slot.last(Trigger).checkpoint)
        coordinator.settle()
    return coordinator, a, b


def test_a_partition_between_a_slot_and_the_coordinator_is_named(store) -> None:
    coordinator, a, b = with_history(store)
    coordinator.trigger()
    number = a.last(Trigger).checkpoint
    a.ack(number)
    for _ in range(8):
        coordinator.later(1_000)
        beat(coordinator, a)
    beat(coordinator, b, late_ms=7_000)
    b.ack(number)
    coordinator.settle()
    history = coordinator.status.checkpoints.history
    reason = why_checkpoint(history[-1], history)
    assert reason is not None
    assert reason.cause == "partition"
    assert "nothing came from slot 1 for 8." in reason.sentence


@pytest.mark.usefixtures("manifests_are_objects")
def test_a_slow_decision_is_the_stores(store) -> None:
    coordinator, a, b = with_history(store)
    coordinator.trigger()
    for slot in (a, b):
        slot.ack(a.last(Trigger).checkpoint)
    coordinator.step()  # the manifest
    coordinator.later(2_000)
    beat(coordinator, a, b)
    coordinator.settle()
    history = coordinator.status.checkpoints.history
    reason = why_checkpoint(history[-1], history)
    assert reason is not None
    assert (reason.cause, "2.0 s for the manifest and the log record" in reason.sentence) == ("store", True)


def test_a_declined_checkpoint_says_what_was_declined(store) -> None:
    coordinator, a, b = with_history(store)
    coordinator.trigger()
    b.decline(a.last(Trigger).checkpoint, reason="Unavailable: broker kafka-1 does not answer")
    failed = coordinator.status.checkpoints.history[-1]
    reason = why_checkpoint(failed, coordinator.status.checkpoints.history)
    assert reason is not None
    assert reason.cause == "declined"
    assert "Unavailable: broker kafka-1 does not answer" in reason.sentence


def test_a_checkpoint_that_a_failure_ended_names_the_failure_by_its_last_line(store) -> None:
    coordinator, _, b = with_history(store)
    coordinator.trigger()
    b.fail('Traceback (most recent call last):\n  File "a.py", line 3\nValueError: no number')
    reason = why_checkpoint(coordinator.status.checkpoints.history[-1], ())
    assert reason is not None
    assert reason.cause == "recovery"
    assert reason.sentence.endswith("ValueError: no number.")


# ---------------------------------------------------------------- the table, row by row


def phases(chain: int = 1, subtask: int = 0, ack_ms: int = 2_000, **more: object) -> SubtaskPhases:
    return SubtaskPhases(chain, subtask, ack_ms, **more)


def record(*subtasks: SubtaskPhases, outcome: str = "complete", **more: object) -> CheckpointStatus:
    slowest = max((each.ack_ms for each in subtasks), default=0)
    base = {
        "checkpoint": 42,
        "token": 1,
        "outcome": outcome,
        "triggered_ms": 0,
        "duration_ms": slowest,
        "subtasks": subtasks,
        "parts": 4,
        "chain_rows": {"0": 1_000, "1": 1_000},
        "median_ack_ms": 20,
    }
    return CheckpointStatus(**{**base, **more})


USUAL = tuple(
    CheckpointStatus(
        checkpoint=number,
        token=1,
        outcome="complete",
        triggered_ms=0,
        duration_ms=40,
        parts=4,
        new_bytes=10_000,
        subtasks=(phases(ack_ms=30, starved_ms=5.0),),
    )
    for number in range(1, 42)
)


@pytest.mark.parametrize(
    ("slow", "cause"),
    [
        (record(phases(async_ms=1_900, precommit_ms=1_800, slowest="out")), "precommit"),
        (record(phases(async_ms=1_900, upload_ms=1_800, new_bytes=9_000), new_bytes=9_000), "store"),
        (record(phases(async_ms=1_900, upload_ms=1_800, new_bytes=50 << 20), new_bytes=50 << 20), "large_state"),
        (record(phases(start_delay_ms=1_900, step_ms=1_800, step_chain=0)), "step"),
        (record(phases(start_delay_ms=1_900, step_ms=1_800, starved_ms=1_700)), "starved"),
        (record(phases(start_delay_ms=1_900), slots=(SlotDuring(0, 1_900, 1_700.0),)), "stalled"),
        (record(phases(start_delay_ms=1_900), slots=(SlotDuring(0, 1_900, 0.0),)), "partition"),
        (record(phases(ack_ms=2_000), slots=(SlotDuring(0, 0, 0.0, 1_900.0),)), "partition"),
        (record(phases(alignment_ms=1_900, rows=950, busy_ms=1_900)), "skew"),
        (record(phases(alignment_ms=1_900, rows=500, busy_ms=1_900)), "backpressure"),
        (record(phases(alignment_ms=1_900), phases(0, 1, 5, blocked_ms=1_800)), "backpressure"),
        (record(phases(alignment_ms=1_900, held_ms=1_900)), "server"),
        (record(phases(alignment_ms=1_900)), "unclear"),
        (record(phases(async_ms=1_900, precommit_ms=1_800, starved_ms=1_200), triggered_ms=300), "starved"),
        (record(phases(sync_ms=1_900)), "unclear"),
        (record(phases(ack_ms=20), duration_ms=2_000, persist_duration_ms=1_500, decide_duration_ms=400), "store"),
        (record(outcome="expired", missing=("1/0",), slots=(SlotDuring(0, 9_000, 0.0),)), "partition"),
        (record(outcome="expired", missing=("1/0",), slots=(SlotDuring(1, 9_000, 0.0),)), "backpressure"),
        (
            record(outcome="expired", duration_ms=600_000, missing=("1/0",), slots=(SlotDuring(0, 0, 200.0),)),
            "backpressure",
        ),
        (record(outcome="expired"), "store"),
        (record(outcome="subsumed", reason="checkpoint 43 completed first"), "subsumed"),
        (record(outcome="aborted", reason="the job ended: cancelled"), "ended"),
    ],
)
def test_a_row_of_the_table(slow: CheckpointStatus, cause: str) -> None:
    reason = why_checkpoint(slow, USUAL)
    assert reason is not None
    assert reason.cause == cause, str(reason)
    assert cause in CAUSES
    assert "42" in reason.sentence
    assert reason.remedy


def test_chains_are_told_by_their_operators_where_those_are_known() -> None:
    slow = record(phases(start_delay_ms=1_900, step_ms=1_800, step_chain=0))
    names = (ChainStatus(chain=0, operators=("numbers", "read")),)
    told, numbered = why_checkpoint(slow, USUAL, names), why_checkpoint(slow, USUAL)
    assert told is not None
    assert numbered is not None
    assert "`numbers → read`" in told.sentence
    assert "chain 0" in numbered.sentence


@pytest.mark.parametrize(("usual_ms", "above_ms"), [(10, 300), (200, 600), (60_000, 10_000)])
def test_slow_is_three_times_the_usual_within_bounds(usual_ms: int, above_ms: int) -> None:
    before = [msgspec.structs.replace(each, duration_ms=usual_ms) for each in USUAL]
    assert slow_above_ms(before) == above_ms
    slow = record(phases(ack_ms=above_ms, alignment_ms=float(above_ms)))
    assert why_checkpoint(slow, before) is not None
    assert why_checkpoint(msgspec.structs.replace(slow, duration_ms=above_ms - 1), before) is None


def test_only_checkpoints_before_it_say_what_is_usual() -> None:
    later = tuple(msgspec.structs.replace(each, checkpoint=each.checkpoint + 100, duration_ms=9_000) for each in USUAL)
    slow = record(phases(alignment_ms=1_900.0))
    assert why_checkpoint(slow, (*USUAL, *later)) == why_checkpoint(slow, USUAL)


def test_a_record_of_before_these_facts_is_told_as_far_as_it_goes() -> None:
    old = CheckpointStatus(checkpoint=42, token=1, outcome="complete", triggered_ms=0, duration_ms=5_000)
    assert why_checkpoint(old, ()) is not None
    assert why_checkpoint(msgspec.structs.replace(old, duration_ms=0), ()) is None


def test_a_long_step_in_a_connector_of_ours_asks_the_user_to_mend_nothing() -> None:
    slow = record(phases(start_delay_ms=1_900, step_ms=1_800, step_chain=0, step_reading=True))
    reason = why_checkpoint(slow, USUAL)
    assert reason is not None
    assert reason.cause == "step"
    assert "because reading or writing of chain 0 kept slot" in reason.sentence
    assert "no function of the program" in reason.remedy
    assert "return sooner" not in reason.remedy
