"""Durations of all subtasks of a checkpoint: packing and unpacking, within bounds."""

import random

import msgspec
import pytest

from barrier_runtime.coordinator.status.history import (
    MOST,
    MOST_TOGETHER,
    History,
    all_subtasks,
    decode_history,
    encode_history,
    packed,
    unpacked,
)
from barrier_runtime.coordinator.status.spans import MOST_SUBTASKS, NewSpans, checkpoint_spans
from barrier_runtime.coordinator.status.statistics import SUBTASKS, JobRecord
from barrier_runtime.coordinator.status.status import CheckpointStatus, SubtaskPhases
from barrier_runtime.coordinator.wire.messages import Ack, SubtaskId
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes

TRIGGERED_MS = 1_795_000_000_000


def some(subtasks: int, seed: int = 1) -> tuple[dict[SubtaskId, Ack], dict[SubtaskId, int]]:
    """Returns acks of a chain's subtasks with random durations, and their arrival times."""
    chance = random.Random(seed)
    acks, acked_ms = {}, {}
    for index in range(subtasks):
        of = [round(chance.uniform(0, 10 ** chance.randrange(6)), 1) for _ in range(6)]
        subtask = SubtaskId(index // 64, index % 64)
        acks[subtask] = Ack(1, 7, subtask, (), SnapshotTimes(*of, rows=chance.randrange(10**9)))
        acked_ms[subtask] = TRIGGERED_MS + chance.randrange(100_000)
    return acks, acked_ms


def record(subtasks: int, checkpoint: int = 7, full: tuple[SubtaskPhases, ...] = ()) -> CheckpointStatus:
    return CheckpointStatus(
        checkpoint=checkpoint,
        token=1,
        outcome="complete",
        triggered_ms=TRIGGERED_MS,
        duration_ms=200,
        parts=subtasks,
        subtasks=full,
        phases=packed(*some(subtasks), TRIGGERED_MS),
    )


@pytest.mark.parametrize("count", [0, 1, 40, 1_000])
def test_what_is_packed_comes_out_again_the_slowest_first(count: int) -> None:
    acks, acked_ms = some(count)
    data = packed(acks, acked_ms, TRIGGERED_MS)
    found = unpacked(data)
    assert [each.ack_ms for each in found] == sorted((at - TRIGGERED_MS for at in acked_ms.values()), reverse=True)
    assert len(data) <= 30 * count + 30
    for each in found:
        times = acks[SubtaskId(each.chain, each.subtask)].times
        assert each.ack_ms == acked_ms[SubtaskId(each.chain, each.subtask)] - TRIGGERED_MS
        assert (each.start_delay_ms, each.alignment_ms, each.sync_ms) == pytest.approx(
            (times.start_delay_ms, times.alignment_ms, times.sync_ms)
        )
        assert (each.async_ms, each.precommit_ms, each.upload_ms, each.rows) == pytest.approx(
            (times.async_ms, times.precommit_ms, times.upload_ms, times.rows)
        )


@pytest.mark.parametrize("strange", [-1.0, float("nan"), float("inf"), 1e300])
def test_times_that_cannot_be_hold_up_no_checkpoint(strange: float) -> None:
    subtask = SubtaskId(0, 0)
    (found,) = unpacked(packed({subtask: Ack(1, 7, subtask, (), SnapshotTimes(strange))}, {subtask: 5}, 10))
    assert found.ack_ms == 0, "a clock that was set back"
    assert found.start_delay_ms in (0.0, (2**32 - 1) / 10)


@pytest.mark.slow
def test_of_more_subtasks_than_the_bound_the_slowest_are_kept() -> None:
    acks, acked_ms = some(MOST + 500)
    found = unpacked(packed(acks, acked_ms, TRIGGERED_MS))
    assert len(found) == MOST
    assert [each.ack_ms + TRIGGERED_MS for each in found] == sorted(acked_ms.values(), reverse=True)[:MOST]


@pytest.mark.slow
def test_of_all_checkpoints_together_the_newest_keep_them_in_the_bound() -> None:
    known = JobRecord(lambda *_: (), lambda: ())
    known.remember(History(job="j", run_id="r", history=tuple(record(2_000, number) for number in range(1, 12))), ())
    known.forget_phases()
    kept = [each.checkpoint for each in known.history if each.phases]
    assert kept == list(range(4, 12))
    assert len(kept) == MOST_TOGETHER // 2_000
    stored = encode_history(known.history_of("j", "r", (), None))
    assert len(stored) < MOST_TOGETHER * 30 * 4 / 3 + 11 * 500
    assert decode_history("h", stored).history == tuple(known.history)


def test_what_is_known_in_full_comes_first_and_once() -> None:
    short = record(40)
    slowest = unpacked(short.phases)[:2]
    full = tuple(msgspec.structs.replace(each, slowest="count") for each in slowest)
    found = all_subtasks(msgspec.structs.replace(short, subtasks=full))
    assert found[:2] == list(full)
    assert len({(each.chain, each.subtask) for each in found}) == len(found) == 40
    assert all_subtasks(msgspec.structs.replace(short, subtasks=full, phases=b"")) == list(full), "an older version's"


@pytest.mark.parametrize("wrong", [b"\x02abc", b"\x01abc", record(3).phases[:-4]])
def test_damage_is_told_as_such(wrong: bytes) -> None:
    with pytest.raises((Corrupt, InvalidJob), match="phase times of subtasks"):
        unpacked(wrong)


@pytest.mark.slow
def test_a_trace_has_all_subtasks_while_they_are_few_or_checkpoints_are_rare() -> None:
    def subtasks(spans) -> int:
        return sum(span.name.startswith("subtask ") for span in spans)

    assert subtasks(checkpoint_spans("j", record(150))) == 150
    assert subtasks(checkpoint_spans("j", record(3_000))) == MOST_SUBTASKS
    spans = NewSpans()
    history = History(job="j", run_id="r", history=(record(150, 1),))
    spans.look(history)
    one = msgspec.structs.replace(history, history=(*history.history, record(150, 2)))
    assert subtasks(spans.look(one)) == 150
    many = msgspec.structs.replace(one, history=tuple(record(150, number) for number in range(1, 43)))
    assert subtasks(spans.look(many)) == 40 * SUBTASKS, "forty at once: of each as many as ever"
