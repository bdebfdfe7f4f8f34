"""Uploads slower than the checkpoint interval: reported as `slow_upload` once per episode."""

import logging

import pytest
from coordinator_world import SINK, SOURCE, Coordinator, FakeSlot, options, spec, started

from barrier_runtime.coordinator.checkpoints.slowness import (
    CheckpointUploads,
    SlowUpload,
    SlowUploads,
    SubtaskUpload,
)
from barrier_runtime.coordinator.server.logs import SlowLines
from barrier_runtime.coordinator.status.figure_table import SLOW_UPLOAD, samples
from barrier_runtime.coordinator.status.why.job import why_job
from barrier_runtime.coordinator.wire.messages import Ack, SubtaskId, Trigger
from barrier_runtime.state.snapshots.snapshot import SnapshotTimes
from barrier_runtime.state.store.memory import MemoryStore

INTERVAL = 2_000


class Watch:
    """Looks, and keeps the lines of the log."""

    def __init__(self, interval_ms: int = INTERVAL) -> None:
        self.slow, self.lines, self.interval_ms = SlowUploads(), SlowLines(), interval_ms
        self.warnings: list[str] = []

    def look(self, checkpoint: int, *took_ms: int, running: bool = True) -> list[str]:
        """Judges a checkpoint; `took_ms` are the uploads of slots 0, 1, … in chain 1."""
        uploads = tuple(SubtaskUpload(1, slot, "out", took) for slot, took in enumerate(took_ms))
        newest = CheckpointUploads(checkpoint, checkpoint * 1_000, uploads) if uploads else None
        self.slow.look(newest, self.interval_ms, running=running)
        self.warnings += [text for level, text in self.lines.look(self.slow.known) if level == logging.WARNING]
        return [each.operator for each in self.slow.shown]


def test_an_upload_longer_than_the_interval_is_exported_with_operator_slot_and_time() -> None:
    watch = Watch()
    assert watch.look(7, 10, 2_000) == []
    assert watch.look(8, 10, 2_001) == ["out"]
    assert watch.slow.shown == (SlowUpload("out", 1, 8, 8_000),)
    assert watch.warnings == [
        "slow_upload: uploads of out in slot 1 take longer than the interval between checkpoints, since checkpoint 8 "
        "at 00:00:08 UTC"
    ]


def test_a_short_interval_is_exceeded_after_a_second() -> None:
    watch = Watch(interval_ms=50)
    assert watch.look(1, 1_000) == []
    assert watch.look(2, 1_001) == ["out"]


def test_slow_uploads_of_each_second_checkpoint_are_one_trouble() -> None:
    watch = Watch()
    for checkpoint in range(1, 20):
        assert watch.look(checkpoint, 3_000 if checkpoint % 2 else 100) == (["out"] if checkpoint % 2 else [])
    assert watch.slow.known == (SlowUpload("out", 0, 1, 1_000),)
    assert watch.look(21, 100) == []
    assert watch.look(22, 100) == []
    assert watch.slow.known == ()
    assert watch.look(23, 3_000) == ["out"]
    assert len(watch.warnings) == 2, "it has begun anew"


def test_the_same_checkpoint_is_judged_once_and_a_restart_ends_nothing() -> None:
    watch = Watch()
    watch.look(1, 3_000)
    assert watch.look(2, 100) == []
    assert watch.look(2, 100) == []
    assert watch.slow.known
    assert watch.look(2, 100, running=False) == []
    assert watch.look(0) == [], "nothing is known of the new generation"
    assert watch.slow.known
    assert watch.look(3, 3_000) == ["out"]
    assert len(watch.warnings) == 1


def acknowledged(coordinator: Coordinator, *slots: FakeSlot, upload_ms: float, precommit_ms: float) -> int:
    """Acknowledges a checkpoint with these durations of the sink subtask in the last slot."""
    coordinator.later(INTERVAL)
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.ack(number, SOURCE)
        slow = slot is slots[-1]
        times = SnapshotTimes(
            async_ms=upload_ms + precommit_ms,
            upload_ms=upload_ms if slow else 1.0,
            precommit_ms=precommit_ms if slow else 1.0,
            slowest="out" if precommit_ms > upload_ms else "count",
        )
        slot.say(
            Ack(
                token=slot.token,
                checkpoint=number,
                subtask=SubtaskId(SINK, slot.index),
                operators=slot.snapshots(SINK, number),
                times=times,
            )
        )
    coordinator.settle()
    for slot in slots:
        slot.commit(number)
    return number


@pytest.mark.parametrize(
    ("upload_ms", "precommit_ms", "operator"), [(2_500.0, 10.0, "count"), (10.0, 2_500.0, "out")], ids=["state", "rows"]
)
def test_status_metrics_and_why_name_operator_and_slot_until_it_keeps_up(
    upload_ms: float, precommit_ms: float, operator: str
) -> None:
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(interval_ms=INTERVAL)))
    acknowledged(coordinator, a, b, upload_ms=10, precommit_ms=10)
    assert coordinator.status.checkpoints.slow_uploads == ()
    number = acknowledged(coordinator, a, b, upload_ms=upload_ms, precommit_ms=precommit_ms)
    status = coordinator.status
    (slow,) = status.checkpoints.slow_uploads
    assert (slow.operator, slow.slot, slow.checkpoint) == (operator, 1, number)
    assert status.condition == "RUNNING"
    assert status.condition_reason.startswith(f"uploads of {operator} in slot 1 take longer than the interval")
    assert [each[1] for each in samples(status) if each[0] is SLOW_UPLOAD] == [(operator, "1")]
    (reason, *_) = why_job(status, coordinator.now_ms)
    assert reason.cause == "slow_upload"
    assert f"uploads of {operator} take longer" in reason.sentence
    assert any(f"newest checkpoint, {operator} in slot 1: pre-commit" in text for text in reason.evidence)
    acknowledged(coordinator, a, b, upload_ms=10, precommit_ms=10)
    status = coordinator.status
    assert (status.checkpoints.slow_uploads, status.condition_reason) == ((), "")
    assert coordinator.protocol.slow_uploads, "the next one may be slow, too: that is the same trouble"
    acknowledged(coordinator, a, b, upload_ms=10, precommit_ms=10)
    assert coordinator.protocol.slow_uploads == ()


def test_uploads_of_the_generation_before_are_not_judged() -> None:
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(interval_ms=INTERVAL)))
    acknowledged(coordinator, a, b, upload_ms=3_000, precommit_ms=10)
    a.fail()
    coordinator.settle()
    coordinator.run_with(a, b)
    status = coordinator.status
    assert (status.phase, status.checkpoints.slow_uploads) == ("running", ())
    assert coordinator.protocol.slow_uploads, "the trouble has not ended"
