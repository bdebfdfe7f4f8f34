"""Sinks with a global committer: requests to commit, and their survival of any death (I5, I6, I10)."""

import msgspec
import pytest
from coordinator_world import CHAINS, SINK, SOURCE, Coordinator, FakeSlot, kinds, spec, started

from barrier_runtime.coordinator.checkpoints.commits import CommitTracker
from barrier_runtime.coordinator.job.effects import ReadManifest
from barrier_runtime.coordinator.wire.messages import (
    GLOBAL_COMMITTER,
    CommitGlobally,
    Committed,
    Deploy,
    Heartbeat,
    ManifestRef,
    Shutdown,
    Visible,
    sink_key,
)
from barrier_runtime.state.store.memory import MemoryStore

JOB = spec(chains=(CHAINS[SOURCE], msgspec.structs.replace(CHAINS[SINK], global_sinks=("out",))))


def told(slot: FakeSlot) -> list[int]:
    """Returns the checkpoints that the coordinator requested slot 0 to make visible."""
    return [message.checkpoint for message in slot.got(CommitGlobally)]


def visible(slot: FakeSlot) -> list[int]:
    return [message.checkpoint for message in slot.got(Visible)]


def succeeded(store: MemoryStore, *slots: FakeSlot) -> Coordinator:
    """Returns a restarted coordinator with all slots reconnected; the slots have forgotten earlier messages."""
    successor = Coordinator(store, JOB, leader="leader-b").begin().settle()
    for slot in slots:
        slot.coordinator = successor
        slot.inbox.clear()
        slot.connect()
    return successor


def test_slot_0_hears_of_all_subtasks_commits_and_every_slot_of_the_global_commit() -> None:
    coordinator, a, b = started(MemoryStore(), JOB)
    n = coordinator.checkpoint(a, b)
    a.commit(n)
    assert told(a) == []
    b.commit(n)
    assert told(a) == [n]
    assert told(b) == [], "the global committer is in subtask 0"
    wanted = a.last(CommitGlobally)
    assert [each.values["pending"] for each in wanted.snapshots] == [b"%d of 0" % n, b"%d of 1" % n]
    b.commit(n)
    assert told(a) == [n], "said once"
    a.commit_globally(n)
    assert visible(a) == visible(b) == [n]
    assert coordinator.status.commits.through == {"out/0": n, "out/1": n, "out/global": n}


def test_lagging_subtask_delays_the_whole_and_newest_common_checkpoint_is_enough() -> None:
    coordinator, a, b = started(MemoryStore(), JOB)
    first, second = coordinator.checkpoint(a, b), coordinator.checkpoint(a, b)
    a.commit(first)
    a.commit(second)
    assert told(a) == []
    b.commit(second)
    assert told(a) == [second]


def test_another_slot_cannot_speak_for_the_global_committer() -> None:
    coordinator, a, b = started(MemoryStore(), JOB)
    n = coordinator.checkpoint(a, b)
    b.say(Committed(b.token, n, "out", GLOBAL_COMMITTER))
    assert coordinator.status.commits.through["out/global"] == 0
    assert coordinator.status.checkpoints.ignored == {"commit of another slot's sink": 1}


def test_slot_0_hears_it_again_on_a_new_connection() -> None:
    coordinator, a, b = started(MemoryStore(), JOB)
    n = coordinator.checkpoint(a, b)
    a.commit(n)
    b.commit(n)
    a.cut()
    a.connect()
    assert told(a) == [n, n]
    a.commit_globally(n)
    b.cut()
    b.connect()
    assert visible(b) == [n, n], "it may have been said while it did not hear"
    assert told(a) == [n, n]


def test_a_restarted_coordinator_reads_the_manifest_and_goes_on(store: MemoryStore) -> None:
    """F4: the coordinator dies after the decision and half of the commits."""
    coordinator, a, b = started(store, JOB)
    n = coordinator.checkpoint(a, b)
    a.commit(n)
    b.commit(n)
    succeeded(store, a, b).settle()
    assert kinds(store)[-1] == "LEAD"
    assert told(a) == [n]
    assert [each.values["pending"] for each in a.last(CommitGlobally).snapshots] == [b"%d of 0" % n, b"%d of 1" % n]


def test_a_restarted_coordinator_believes_slot_0_that_it_is_done(store: MemoryStore) -> None:
    coordinator, a, b = started(store, JOB)
    n = coordinator.checkpoint(a, b)
    for slot in (a, b):
        slot.commit(n)
    a.commit_globally(n)
    succeeded(store, a, b).settle()
    assert told(a) == []
    assert n in visible(b)


@pytest.mark.slow
@pytest.mark.usefixtures("manifests_are_objects")
def test_a_damaged_manifest_is_reported_and_the_next_checkpoint_carries_all(store: MemoryStore) -> None:
    coordinator, a, b = started(store, JOB)
    n = coordinator.checkpoint(a, b)
    a.commit(n)
    b.commit(n)
    key = coordinator.paths.manifest(n, a.token)
    store.damage(key, store.get(key)[:-1] + b"x")
    successor = succeeded(store, a, b).settle()
    assert told(a) == []
    assert any(key in reason for reason in successor.status.checkpoints.ignored)
    later = successor.checkpoint(a, b)
    a.commit(later)
    b.commit(later)
    assert told(a) == [later]


def test_the_next_generation_is_told_again(store: MemoryStore) -> None:
    """Half of the commits done when a slot dies: the successor finishes what the restored manifest lists."""
    coordinator, a, b = started(store, JOB)
    n = coordinator.checkpoint(a, b)
    a.commit(n)
    b.cut()
    c = coordinator.slot(1, attempt=1)
    coordinator.run_with(a, c)
    assert told(a) == []
    a.commit(n)
    c.commit(n)
    assert told(a) == [n]
    assert a.last(CommitGlobally).token == a.token


@pytest.mark.parametrize("done", [True, False])
def test_next_generation_does_not_revisit_checkpoints_that_every_sink_committed(done: bool) -> None:
    """I6: the global committer skips such checkpoints, too; before the global commit all are repeated."""
    coordinator, a, b = started(MemoryStore(), JOB)
    n = coordinator.checkpoint(a, b)
    for slot in (a, b):
        slot.commit(n)
    if done:
        a.commit_globally(n)
    b.fail()
    coordinator.settle()
    coordinator.run_with(a, b)
    assert a.last(Deploy).settled is done
    assert told(a) == ([n] if done else [n, n])


def test_the_job_is_finished_only_when_all_is_visible(store: MemoryStore) -> None:
    """I10"""
    coordinator, a, b = started(store, JOB)
    a.end()
    b.end()
    n = coordinator.status.checkpoints.in_progress[-1]
    a.ack(n, ended=True)
    b.ack(n, ended=True)
    coordinator.settle()
    a.commit(n)
    b.commit(n)
    coordinator.settle()
    assert kinds(store)[-1] == "COMPLETE"
    a.commit_globally(n)
    coordinator.settle()
    assert kinds(store)[-1] == "FINISH"
    assert a.last(Shutdown).outcome == "finished"


def test_only_the_first_slot_tells_what_the_global_committer_has_done() -> None:
    """Another slot may have been first before a rescale, and knows fewer commits, or another lineage."""
    tracker = CommitTracker(JOB)
    told = {sink_key("out", subtask): 7 for subtask in (0, 1, GLOBAL_COMMITTER)}
    tracker.reconcile(1, told)
    assert tracker.through == {**dict.fromkeys(told, 0), sink_key("out", 1): 7}
    tracker.reconcile(0, told)
    assert tracker.through == told


def test_only_a_commit_that_raises_the_lowest_one_or_a_global_one_counts_as_a_rise() -> None:
    tracker = CommitTracker(JOB)
    rises = [
        tracker.committed(Committed(1, checkpoint, "out", subtask))
        for checkpoint, subtask in ((1, 0), (2, 0), (2, 0), (1, 1), (1, 1), (3, 1), (1, GLOBAL_COMMITTER), (9, 7))
    ]
    assert rises == [False, False, False, True, False, True, True, False]


def test_a_sink_that_stays_far_behind_becomes_visible_all_the_same() -> None:
    tracker = CommitTracker(JOB)
    asked: list[int] = []
    for n in range(1, 200):
        tracker.decided(n, (), ManifestRef(f"m{n}", "00"))
        tracker.completed(n, n)
        for subtask in range(2):
            tracker.committed(Committed(1, max(0, n - 20), "out", subtask))
        for due in tracker.due_globally():
            if due.part is None:
                continue  # none of the manifests at hand is at or below what all have committed
            asked.append(due.checkpoint)
            tracker.committed(Committed(1, due.checkpoint, "out", GLOBAL_COMMITTER))
    assert len(asked) > 5
    assert asked == sorted(set(asked))


@pytest.mark.slow
def test_no_more_checkpoints_are_taken_while_a_sink_is_too_far_behind() -> None:
    """Every snapshot lists the invisible committables, so their number must be bounded."""
    coordinator, a, b = started(MemoryStore(), JOB)
    for _ in range(JOB.checkpoints.max_commits_behind):
        number = coordinator.checkpoint(a, b)
        a.commit(number)
    triggered = coordinator.status.checkpoints.triggered
    for _ in range(5):
        coordinator.later(1_000)
        a.say(Heartbeat(a.token))
        b.say(Heartbeat(b.token))
    assert coordinator.status.checkpoints.triggered == triggered
    assert coordinator.checkpoint(a, b) == triggered + 1, "unless somebody asks for one"
    b.commit(triggered + 1)
    a.commit(triggered + 1)
    a.commit_globally(triggered + 1)
    coordinator.later(1_000)
    assert coordinator.status.checkpoints.triggered == triggered + 2


def test_two_answers_to_one_read_of_the_manifest_begin_one_generation(store: MemoryStore) -> None:
    """The global committers request the manifest, and so does the generation that starts after a slot's failure."""
    coordinator, a, b = started(store, JOB)
    n = coordinator.checkpoint(a, b)
    a.commit(n)
    b.commit(n)
    successor = succeeded(store, a, b)
    successor.run_until(ReadManifest)
    a.fail("boom")
    successor.settle()
    assert successor.phase in ("waiting", "restoring")
    assert kinds(store)[-2:] == ["LEAD", "FENCE"]
