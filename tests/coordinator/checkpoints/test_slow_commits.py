"""Commits slower than checkpoints: bounded by `max_commits_behind`, reported as `slow_commit` once per episode."""

import itertools
import logging
import random

import msgspec
import pytest
from coordinator_world import CHAINS, SINK, SOURCE, Coordinator, FakeSlot, options, spec, started

from barrier_runtime.coordinator.checkpoints.commits import CommitTracker
from barrier_runtime.coordinator.checkpoints.slowness import SlowCommit, SlowCommits, Uncommitted
from barrier_runtime.coordinator.options import validated
from barrier_runtime.coordinator.server.logs import SlowLines
from barrier_runtime.coordinator.status.figure_table import SLOW_COMMIT, samples
from barrier_runtime.coordinator.status.transactions import of_sinks
from barrier_runtime.coordinator.status.why.job import why_job
from barrier_runtime.coordinator.wire.messages import CheckpointOptions, CommitFailing, Committed, Heartbeat
from barrier_runtime.launch.options import JobOptions
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore

INTERVAL = 1_000
GLOBAL = (CHAINS[SOURCE], msgspec.structs.replace(CHAINS[SINK], global_sinks=("out",)))


def waiting(checkpoint: int, decided_ms: int, sink: str = "out") -> Uncommitted:
    return Uncommitted(sink, checkpoint, decided_ms)


class Watch:
    """Looks, and keeps the lines of the log."""

    def __init__(self) -> None:
        self.slow, self.lines = SlowCommits(), SlowLines()
        self.warnings: list[str] = []

    def look(self, now_ms: int, *oldest: Uncommitted, running: bool = True) -> list[str]:
        self.slow.look(oldest, INTERVAL, now_ms, running=running)
        found = self.lines.look(self.slow.known)
        self.warnings += [text for level, text in found if level == logging.WARNING]
        return [each.sink for each in self.slow.shown]


# ---------------------------------------------------------------- who is slow, and since when


def test_a_checkpoint_is_late_from_two_intervals_on_and_time_alone_shows_it() -> None:
    watch = Watch()
    assert watch.look(0) == []
    assert watch.look(10, waiting(7, 10)) == []
    assert watch.slow.next_ms == 2_011
    assert watch.look(2_010, waiting(7, 10)) == []
    assert watch.look(2_011, waiting(7, 10)) == ["out"]
    assert watch.slow.shown == (SlowCommit("out", 7, 10),)
    assert watch.warnings == [
        "slow_commit: sink out commits more slowly than checkpoints complete, since checkpoint 7 at 00:00:00 UTC"
    ]


def test_a_short_interval_is_late_after_a_second() -> None:
    slow = SlowCommits()
    slow.look((), 10, 0, running=True)
    slow.look((waiting(1, 0),), 10, 1_000, running=True)
    assert slow.shown == ()
    slow.look((waiting(1, 0),), 10, 1_001, running=True)
    assert slow.shown == (SlowCommit("out", 1, 0),)


def test_a_sink_that_keeps_up_is_never_shown() -> None:
    watch = Watch()
    for n in range(1, 200):
        now_ms = n * INTERVAL
        assert watch.look(now_ms, waiting(n, now_ms)) == []
        assert watch.look(now_ms + 900) == []
    assert watch.warnings == []


def test_each_commit_late_is_one_trouble_until_the_sink_keeps_up() -> None:
    """Checkpoints complete each second; a commit takes 2.5 s and covers all checkpoints decided before the start."""
    watch, through, shown = Watch(), 0, []
    watch.look(0)
    for now_ms in range(1_000, 60_000, 500):
        if now_ms % 2_500 == 0:
            through = now_ms // 1_000 - 2
        oldest = waiting(through + 1, (through + 1) * 1_000)
        shown.append(watch.look(now_ms, *([oldest] if oldest.decided_ms <= now_ms else [])))
    assert ["out"] in shown
    assert len(watch.warnings) == 1
    assert watch.look(60_000) == [], "nothing waits"
    assert watch.slow.known, "but its last commit was late"
    watch.look(60_001, waiting(60, 60_001))
    watch.look(60_100)
    assert watch.slow.known == (), "this one was not"


def test_a_sink_with_nothing_to_commit_has_caught_up_after_the_same_time() -> None:
    watch = Watch()
    watch.look(0, waiting(1, 0))
    watch.look(5_000, waiting(1, 0))
    assert watch.look(5_001) == []
    assert watch.slow.next_ms == 7_001
    watch.look(7_001)
    assert watch.slow.known == ()


def test_time_in_which_the_job_does_not_run_makes_nothing_late() -> None:
    watch = Watch()
    watch.look(0, waiting(1, 0))
    assert watch.look(9_000, running=False) == []
    assert watch.look(10_000, waiting(1, 0)) == []
    assert watch.look(12_000, waiting(1, 0)) == []
    assert watch.look(12_001, waiting(1, 0)) == ["out"]


def test_sinks_are_told_apart() -> None:
    watch = Watch()
    watch.look(0)
    assert watch.look(3_000, waiting(1, 0, "b"), waiting(3, 2_900, "a")) == ["b"]
    assert watch.look(6_000, waiting(1, 0, "b"), waiting(3, 2_900, "a")) == ["a", "b"]
    assert len(watch.warnings) == 2


# ---------------------------------------------------------------- the tracker, in every order of events


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::3])
def test_the_oldest_open_checkpoint_of_a_sink_is_the_same_in_every_order_of_commits(order: tuple[int, ...]) -> None:
    tracker = CommitTracker(spec())
    for n in (1, 2, 3):
        tracker.completed(n, 100 * n)
    said = [Committed(1, 1, "out", 0), Committed(1, 2, "out", 0), Committed(1, 1, "out", 1), Committed(1, 3, "out", 1)]
    reached = [0, 0]
    for index in order:
        message = said[index]
        tracker.committed(message)
        reached[message.subtask] = max(reached[message.subtask], message.checkpoint)
        first = min(reached) + 1
        assert tracker.uncommitted() == (Uncommitted("out", first, 100 * first),)


def test_a_sink_whose_commit_fails_is_a_trouble_of_its_own() -> None:
    tracker = CommitTracker(spec())
    tracker.completed(1, 5)
    assert tracker.uncommitted() == (Uncommitted("out", 1, 5),)
    tracker.failing(CommitFailing(1, 1, "out", 0, 1, "down"), 10)
    assert tracker.uncommitted() == ()
    tracker.committed(Committed(1, 1, "out", 0))
    assert tracker.uncommitted() == (Uncommitted("out", 1, 5),), "subtask 1 has it still to commit"


# ---------------------------------------------------------------- the bound


@pytest.mark.parametrize("bound", [1, 2, 10])
def test_a_trigger_waits_at_the_bound_and_goes_on_when_the_sink_comes_along(bound: int) -> None:
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(max_commits_behind=bound)))
    numbers = [taken(coordinator, a, b) for _ in range(bound)]
    a.commit(numbers[-1])
    triggered = coordinator.status.checkpoints.triggered
    idle(coordinator, 5, a, b)
    assert coordinator.status.checkpoints.triggered == triggered
    assert coordinator.protocol.condition.state == "WAITING_SINK"
    assert f"{bound} are allowed (max_commits_behind)" in coordinator.protocol.condition.reason
    b.commit(numbers[0])
    if bound > 1:
        idle(coordinator, 1, a, b)
        assert coordinator.status.checkpoints.triggered == triggered + 1


def taken(coordinator: Coordinator, a: FakeSlot, b: FakeSlot) -> int:
    coordinator.later(INTERVAL)
    number = coordinator.status.checkpoints.in_progress[0]
    a.ack(number)
    b.ack(number)
    coordinator.settle()
    return number


def idle(coordinator: Coordinator, seconds: int, *slots: FakeSlot) -> None:
    for _ in range(seconds):
        coordinator.later(1_000)
        for slot in slots:
            slot.say(Heartbeat(slot.token))


def test_a_record_without_the_option_means_what_it_did() -> None:
    assert CheckpointOptions().max_commits_behind == 64
    assert JobOptions().checkpoint_options().max_commits_behind == 10
    with pytest.raises(InvalidJob, match="max_commits_behind = 0 is out of bounds: use 1 to 1000"):
        validated(CheckpointOptions(max_commits_behind=0))


# ---------------------------------------------------------------- through the protocol


@pytest.mark.parametrize("chains", [CHAINS, GLOBAL], ids=["parts", "global"])
def test_status_metrics_page_and_why_name_the_sink_until_it_has_caught_up(chains: tuple[object, ...]) -> None:
    coordinator, a, b = started(MemoryStore(), spec(chains=chains, checkpoints=options(max_commits_behind=10)))
    first = taken(coordinator, a, b)
    decided_ms = coordinator.now_ms
    a.commit(first)
    if chains is GLOBAL:
        b.commit(first)  # the subtasks' commits are in time, the global commit is late
    second = taken(coordinator, a, b)
    assert coordinator.status.commits.slow == ()
    coordinator.later(INTERVAL + 1)
    status = coordinator.status
    assert status.commits.slow == (SlowCommit("out", first, decided_ms),)
    assert (status.condition, status.condition_reason.startswith("sink out commits more slowly")) == ("RUNNING", True)
    assert [each[1:] for each in samples(status) if each[0] is SLOW_COMMIT] == [(("out",), 2.001)]
    assert {each.slow_since_ms for each in of_sinks(status, coordinator.now_ms) if each.pending} == {decided_ms}
    (reason, *_) = why_job(status, coordinator.now_ms)
    assert (reason.cause, "because out commits more slowly" in reason.sentence) == ("slow_commit", True)
    assert f"out: since checkpoint {first}, for 2.0 s" in reason.evidence
    a.commit(second)
    b.commit(second)
    if chains is GLOBAL:
        a.commit_globally(second)
    status = coordinator.status
    assert (status.commits.slow, status.condition_reason) == ((), "")
    assert [each for each in samples(status) if each[0] is SLOW_COMMIT] == []
    assert coordinator.protocol.slow_commits, "the next commit may be late, too: that is the same trouble"
    coordinator.later(3 * INTERVAL)
    assert coordinator.protocol.slow_commits == ()


@pytest.mark.slow
def test_commits_that_hold_checkpoints_up_are_one_trouble_and_not_one_per_commit() -> None:
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(max_commits_behind=2, interval_ms=200)))
    run = Slow(coordinator, a, b, commit_ms=lambda: 4_000)
    states, warnings = run.until(30_000)
    assert [state for state, _ in itertools.groupby(states)] == ["RUNNING", "WAITING_SINK"]
    assert warnings == 1
    run.commit_ms = lambda: 20
    states, warnings = run.until(10_000)
    assert (states[-1], warnings) == ("RUNNING", 0)
    assert coordinator.status.commits.slow == ()


class Slow:
    """A job in virtual time: slots acknowledge at once; each sink subtask commits in sequence, of all that
    is decided when it begins."""

    def __init__(self, coordinator: Coordinator, a: FakeSlot, b: FakeSlot, commit_ms) -> None:
        self.coordinator, self.slots, self.commit_ms = coordinator, (a, b), commit_ms
        self.lines = SlowLines()
        self.busy: dict[int, tuple[int, int]] = {}  # subtask -> (checkpoint of the commit, end of the commit)
        self.decided: dict[int, int] = {}  # checkpoint -> time of the decision
        self.longest_ms = self.most_open = 0
        self.through = [0, 0]

    def until(self, ms: int) -> tuple[list[str], int]:
        """Returns the states seen within `ms`, and the number of logged warnings."""
        coordinator, states, warnings = self.coordinator, [], 0
        end_ms = coordinator.now_ms + ms
        while coordinator.now_ms < end_ms:
            coordinator.later(100)
            number = self.slots[0].highest
            if number > max(self.decided, default=0):
                for slot in self.slots:
                    slot.ack(number)
                coordinator.settle()
                self.decided[number] = coordinator.now_ms
            for slot in self.slots:
                self._commit(slot)
                if coordinator.now_ms % 1_000 == 0:
                    slot.say(Heartbeat(slot.token))
            self.most_open = max(self.most_open, max(self.decided, default=0) - min(self.through))
            lines = self.lines.look(coordinator.protocol.slow_commits)
            warnings += sum(level == logging.WARNING for level, _ in lines)
            states.append(coordinator.protocol.condition.state)
        return states, warnings

    def _commit(self, slot: FakeSlot) -> None:
        now_ms, under_way = self.coordinator.now_ms, self.busy.get(slot.index)
        if under_way is not None and under_way[1] <= now_ms:
            del self.busy[slot.index]
            done = range(self.through[slot.index] + 1, under_way[0] + 1)
            self.longest_ms = max([self.longest_ms, *(now_ms - self.decided[n] for n in done if n in self.decided)])
            self.through[slot.index] = under_way[0]
            slot.commit(under_way[0])
        newest = max(self.decided, default=0)
        if slot.index not in self.busy and newest > self.through[slot.index]:
            self.busy[slot.index] = (newest, now_ms + self.commit_ms())


@pytest.mark.parametrize(
    ("interval_ms", "commit_ms", "minutes"),
    [
        (200, 900, 0.5),
        pytest.param(100, 3_000, 10, marks=pytest.mark.slow),
    ],
)
def test_minutes_of_commits_slower_than_the_interval_end_bounded(
    interval_ms: int, commit_ms: int, minutes: float
) -> None:
    """Pending sets, and the time from the decision until rows are visible: a commit under way and the next one."""
    rng = random.Random(commit_ms)
    job = spec(checkpoints=options(interval_ms=interval_ms, max_commits_behind=10))
    coordinator, a, b = started(MemoryStore(), job)
    run = Slow(coordinator, a, b, lambda: round(commit_ms * rng.uniform(0.7, 1.3)))
    states, warnings = run.until(round(60_000 * minutes))
    assert run.most_open <= 10
    assert run.longest_ms <= 2 * 1.3 * commit_ms + 200
    assert min(run.through) > 60_000 * minutes // max(commit_ms, 10 * interval_ms) // 2, "it has gone on all the time"
    assert warnings == 1
    assert set(states) <= {"RUNNING", "WAITING_SINK"}
