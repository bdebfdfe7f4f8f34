"""Global commits that are held back for `commit_every`: due times, and the count of commits behind."""

import msgspec
import pytest
from coordinator_world import CHAINS, SINK, SOURCE, Coordinator, FakeSlot, options, spec, started

from barrier_runtime.coordinator.checkpoints.commits import HOLD_BYTES, CommitTracker, HeldCommits
from barrier_runtime.coordinator.checkpoints.slowness import Uncommitted
from barrier_runtime.coordinator.options import validated_spec
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    CommitGlobally,
    Committed,
    Heartbeat,
    JobSpec,
    ManifestRef,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore

EVERY = 30_000


def job(every_ms: int = EVERY, **changes: object) -> JobSpec:
    sink = msgspec.structs.replace(CHAINS[SINK], global_sinks=("out",), commit_every_ms={"out": every_ms})
    return spec(chains=(CHAINS[SOURCE], sink), **changes)


class Tracked:
    """A tracker whose subtasks commit at once, with the requests to the global committer."""

    def __init__(self, every_ms: int = EVERY, bound: int = 3) -> None:
        self.tracker = CommitTracker(job(every_ms, checkpoints=options(max_commits_behind=bound)))
        self.number = 0

    def complete(self, now_ms: int, *, at_once: bool = False, pending: int = 0) -> list[int]:
        self.number += 1
        listed = (OperatorSnapshot("out", 0, 2, values={"pending": b"x" * pending}),)
        self.tracker.completed(self.number, now_ms)
        self.tracker.decided(self.number, listed, ManifestRef(f"m{self.number}", "00"))
        for subtask in range(2):
            self.tracker.committed(Committed(1, self.number, "out", subtask))
        return self.due(now_ms, at_once=at_once)

    def due(self, now_ms: int, *, at_once: bool = False) -> list[int]:
        self.tracker.look(self.number, now_ms, at_once=at_once)
        return [each.checkpoint for each in self.tracker.due_globally()]

    def commit(self, checkpoint: int) -> None:
        self.tracker.committed(Committed(1, checkpoint, "out", GLOBAL_COMMITTER))


def test_first_checkpoint_is_committed_at_once_and_the_next_after_commit_every() -> None:
    world = Tracked()
    assert world.complete(1_000) == [1]
    world.commit(1)
    for now_ms in range(2_000, 31_000, 1_000):
        assert world.complete(now_ms) == []
        assert world.tracker.uncommitted() == ()
        assert world.tracker.behind(world.number) == ()
        assert world.tracker.too_far_behind == ""
    assert world.tracker.next_due_ms(world.number) == 31_000
    assert world.due(30_999) == []
    assert world.due(31_000) == [world.number]
    assert world.tracker.uncommitted() == (Uncommitted("out", world.number, 31_000),)
    assert world.tracker.behind(world.number) == ("out/global",)
    assert not world.tracker.all_through(world.number)


@pytest.mark.parametrize("bound", [1, 2, 40])
def test_a_due_commit_counts_as_one_until_the_next_is_due_too(bound: int) -> None:
    world = Tracked(10_000, bound)
    world.complete(0)
    assert bool(world.tracker.too_far_behind) == (bound == 1)
    world.commit(1)
    for second in range(1, 11):
        world.complete(second * 1_000)
    assert bool(world.tracker.too_far_behind) == (bound == 1), "ten checkpoints wait for one commit"
    for second in range(11, 20):
        world.complete(second * 1_000)
    assert bool(world.tracker.too_far_behind) == (bound == 1)
    assert world.complete(20_000) == [world.number]
    assert bool(world.tracker.too_far_behind) == (bound <= 11), "the table does not keep up"
    assert world.tracker.uncommitted() == (Uncommitted("out", 11, 10_000),)
    world.commit(world.number)
    assert world.tracker.too_far_behind == ""
    assert world.tracker.uncommitted() == ()


def test_a_stop_makes_everything_due_at_once() -> None:
    world = Tracked()
    world.complete(0)
    world.commit(1)
    assert world.complete(1_000) == []
    assert world.due(1_001, at_once=True) == [2]
    assert world.complete(2_000, at_once=True) == [3]


def test_many_pending_bytes_bring_the_commit_forward() -> None:
    world = Tracked()
    world.complete(0)
    world.commit(1)
    assert world.complete(1_000, pending=HOLD_BYTES) == []
    assert world.complete(2_000, pending=HOLD_BYTES + 1) == [3]


def test_a_subtask_that_lags_counts_as_behind_while_the_commit_is_held_back() -> None:
    world = Tracked()
    world.complete(0)
    world.commit(1)
    world.tracker.completed(2, 1_000)
    world.tracker.committed(Committed(1, 2, "out", 0))
    assert world.tracker.uncommitted() == (Uncommitted("out", 2, 1_000),)
    assert world.tracker.behind(2) == ("out/1",)


def test_a_due_commit_waits_for_the_subtasks_and_has_all_of_it() -> None:
    tracker = CommitTracker(job())
    for number in (1, 2):
        tracker.completed(number, number)
        tracker.decided(number, (), ManifestRef("m", "00"))
    tracker.look(2, 5, at_once=False)
    for subtask in range(2):
        tracker.committed(Committed(1, 1, "out", subtask))
    assert tracker.due_globally() == (), "one commit for both is cheaper than two"
    for subtask in range(2):
        tracker.committed(Committed(1, 2, "out", subtask))
    assert [each.checkpoint for each in tracker.due_globally()] == [2]


def test_a_clock_that_is_set_back_holds_back_for_no_longer_than_commit_every() -> None:
    held = HeldCommits({"out": 1_000})
    held.look("out", 1, 0, 1_000_000, at_once=False)
    held.committed("out", 1)
    held.look("out", 2, 1, 5_000, at_once=False)
    assert held.oldest_due("out") is None
    assert held.next_ms(2, {"out": 1}) == 6_000
    held.look("out", 2, 1, 6_000, at_once=False)
    assert held.oldest_due("out") is not None


# ---------------------------------------------------------------- the coordinator


def told(slot: FakeSlot) -> list[int]:
    return [message.checkpoint for message in slot.got(CommitGlobally)]


def committed(coordinator: Coordinator, *slots: FakeSlot) -> int:
    number = coordinator.checkpoint(*slots)
    for slot in slots:
        slot.commit(number)
    return number


def beating(coordinator: Coordinator, ms: int, *slots: FakeSlot) -> None:
    """Advances time by `ms` with heartbeats of the slots; triggered checkpoints stay open."""
    for _ in range(0, ms, 1_000):
        for slot in slots:
            slot.say(Heartbeat(slot.token))
        coordinator.later(1_000)


def held_back() -> tuple[Coordinator, FakeSlot, FakeSlot, int]:
    coordinator, a, b = started(MemoryStore(), job())
    first = committed(coordinator, a, b)
    assert told(a) == [first]
    a.commit_globally(first)
    return coordinator, a, b, committed(coordinator, a, b)


def test_time_alone_brings_the_commit() -> None:
    coordinator, a, b, held = held_back()
    beating(coordinator, EVERY - 2_000, a, b)
    assert told(a)[1:] == []
    assert coordinator.protocol.condition.state == "RUNNING"
    beating(coordinator, 3_000, a, b)
    assert told(a)[1:] == [held]


def test_a_stop_with_a_checkpoint_commits_before_the_job_ends() -> None:
    coordinator, a, _, held = held_back()
    coordinator.stop("checkpoint")
    assert told(a)[1:] == [held]


def test_a_new_generation_keeps_the_rhythm_and_loses_nothing() -> None:
    coordinator, a, b, held = held_back()
    b.fail()
    coordinator.settle()
    coordinator.run_with(a, b)
    for slot in (a, b):
        slot.commit(held)
    assert told(a)[1:] == []
    beating(coordinator, EVERY, a, b)
    assert told(a)[1:] == [held]


def test_another_coordinator_commits_at_once_what_was_decided() -> None:
    coordinator, a, b, held = held_back()
    successor = Coordinator(coordinator.store, job(), leader="leader-b").begin().settle()
    for slot in (a, b):
        slot.coordinator = successor
        slot.inbox.clear()
        slot.connect()
    successor.settle()
    assert told(a) == [held]


@pytest.mark.parametrize("every_ms", [-1, 86_400_001])
def test_a_negative_time_or_more_than_a_day_is_refused(every_ms: int) -> None:
    with pytest.raises(InvalidJob, match="for a day at most"):
        validated_spec(job(every_ms))


def test_only_a_global_committer_can_be_held_back() -> None:
    sink = msgspec.structs.replace(CHAINS[SINK], commit_every_ms={"out": 5})
    with pytest.raises(InvalidJob, match="global committer"):
        validated_spec(spec(chains=(CHAINS[SOURCE], sink)))
