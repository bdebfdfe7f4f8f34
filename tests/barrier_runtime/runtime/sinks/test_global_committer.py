"""Global committer of a sink: the table, the driver of a part, and the combined parts (I5, I6)."""

import pytest
from sink_harness import Subtask, numbers_in, numbers_in_commit_log

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.sink import TwoPhaseCommitSink, commits_parts
from barrier_runtime.runtime.sinks.driver import (
    Backoff,
    Commit,
    PreCommit,
    ReportCommitted,
    ReportFailing,
    RetryAt,
    SinkDriver,
    TransactionVisible,
)
from barrier_runtime.runtime.sinks.global_committer import (
    CommitAll,
    GlobalCommitDriver,
    ReadEntries,
    ReportGlobally,
    entries_of_all,
)
from barrier_runtime.runtime.sinks.pending_set import PendingEntry, PendingSet, decode_pending
from barrier_runtime.state.store.memory import Fault, MemoryStore


def entry(checkpoint: int, subtask: int = 0) -> PendingEntry:
    return PendingEntry(checkpoint, subtask, b"%d-%d" % (checkpoint, subtask))


def reads(*entries: PendingEntry) -> ReadEntries:
    return lambda: entries


NONE, ONE, TWO, THREE, BOTH = reads(), reads(entry(1)), reads(entry(2)), reads(entry(3)), reads(entry(1), entry(2))


def test_wishes_are_carried_out_in_order_and_reported_once_done() -> None:
    driver = GlobalCommitDriver()
    assert driver.wanted(1, ONE) == [CommitAll(1, ONE)]
    assert driver.committed() == [ReportGlobally(1)]
    assert driver.wanted(1, ONE) == [ReportGlobally(1)], "asked again after a reconnection"
    assert driver.wanted(2, NONE) == [CommitAll(2, NONE)]


def test_only_the_newest_wish_is_remembered_while_one_is_under_way() -> None:
    driver = GlobalCommitDriver()
    driver.wanted(1, ONE)
    assert driver.wanted(2, TWO) == []
    assert driver.wanted(3, THREE) == []
    assert driver.wanted(3, THREE) == []
    assert driver.committed() == [ReportGlobally(1), CommitAll(3, THREE)]
    assert driver.committed() == [ReportGlobally(3)]


def test_a_failure_is_tried_for_ever_with_the_newest_wish() -> None:
    """T4, T10: no committable is dropped, however often the commit fails."""
    driver = GlobalCommitDriver(Backoff(first=0.1, most=0.3))
    driver.wanted(1, ONE)
    assert driver.failed("down", now=5.0) == [ReportFailing(1, 1, "down"), RetryAt(5.1)]
    assert driver.wanted(2, BOTH) == [], "the time has not come"
    assert driver.retry() == [CommitAll(2, BOTH)]
    assert driver.failed("down", now=6.0) == [ReportFailing(2, 2, "down"), RetryAt(6.2)]
    assert driver.retry() == [CommitAll(2, BOTH)]
    assert driver.failed("down", now=7.0) == [ReportFailing(2, 3, "down"), RetryAt(7.3)]
    assert driver.retry() == [CommitAll(2, BOTH)]
    assert driver.committed() == [ReportGlobally(2)]
    assert driver.retry() == []


def test_entries_of_all_subtasks_come_in_the_order_of_their_rows() -> None:
    sets = (PendingSet(1, 3, (entry(1, 1), entry(3, 1))), PendingSet(1, 3, (entry(2, 0), entry(3, 0))))
    assert entries_of_all(sets) == (entry(1, 1), entry(2, 0), entry(3, 0), entry(3, 1))


def part() -> SinkDriver:
    driver = SinkDriver("job", 0, part_of_whole=True)
    driver.recover(0, ())
    driver.committed(0)
    driver.visible(0)
    return driver


def test_a_part_stays_listed_until_the_whole_is_visible() -> None:
    """A snapshot without the part would lose the part: a part's own commit makes nothing visible."""
    driver = part()
    driver.barrier(1)
    driver.precommitted(1, b"a")
    assert driver.complete(1) == [Commit(1, b"a")]
    assert driver.committed(1) == [ReportCommitted(1)], "not TransactionVisible yet"
    assert [each.checkpoint for each in driver.pending] == [1]
    assert driver.barrier(2) == [PreCommit(2, 2)]
    assert [each.checkpoint for each in driver.pending] == [1, 2]
    assert driver.visible(1) == [TransactionVisible(1)]
    assert driver.visible(1) == []
    assert [each.checkpoint for each in driver.pending] == [2]


def test_what_was_visible_before_the_part_was_committed_again_is_not_listed() -> None:
    """After a restore: the visibility notice arrives before the repeated commit ends."""
    driver = SinkDriver("job", 0, part_of_whole=True)
    driver.recover(4, (entry(3), entry(4)))
    assert [len(each.entries) for each in driver.pending] == [2]
    assert driver.visible(4) == []
    assert driver.committed(4) == [TransactionVisible(0), ReportCommitted(4)]
    assert driver.pending == ()


def test_later_parts_wait_for_their_own_word() -> None:
    driver = part()
    for checkpoint in (1, 2):
        driver.barrier(checkpoint)
        driver.precommitted(checkpoint, b"%d" % checkpoint)
    assert driver.complete(2) == [Commit(1, b"1")]
    assert driver.committed(1) == [Commit(2, b"2")]
    assert driver.committed(2) == [ReportCommitted(2)]
    assert driver.visible(1) == [TransactionVisible(1)]
    assert driver.visible(2) == [TransactionVisible(2)]


def jsonl() -> JsonlSink:
    return JsonlSink("memory://target")


def test_two_subtasks_become_visible_together(store: MemoryStore) -> None:
    """I6: a reader of the commit log never sees the rows of one subtask only."""
    parts = [Subtask(jsonl, store, subtask=index, parallelism=2) for index in range(2)]
    parts[0].write([1])
    parts[1].write([2])
    manifest = tuple(part.barrier(1)() for part in parts)
    parts[0].complete(1)
    assert numbers_in(store) == [1], "who lists the folder sees the first file"
    assert numbers_in_commit_log(store) == []
    parts[1].complete(1)
    assert [part.reports.committed_checkpoints[-1] for part in parts] == [1, 1]
    parts[0].operator.on_commit_globally(1, lambda: manifest)
    parts[0].executor.run()
    assert numbers_in_commit_log(store) == [1, 2]
    assert parts[0].reports.committed_globally_through == 1


def test_a_global_commit_that_fails_is_reported_and_tried_again(store: MemoryStore) -> None:
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    subtask.barrier(1)()
    store.inject(Fault.FAIL_BEFORE, "put_if_absent", "_commits/")
    subtask.complete(1)
    assert numbers_in_commit_log(store) == []
    assert subtask.reports.failing[0][:2] == (1, 1)
    subtask.write([2])
    snapshot = subtask.barrier(2)()
    listed = decode_pending(snapshot.values["pending"], "here").entries
    assert [each.checkpoint for each in listed] == [1, 2], "not visible, so still listed"
    subtask.pass_time()
    assert numbers_in_commit_log(store) == [1]


class Parts(TwoPhaseCommitSink):
    global_committer = True
    commits_only_globally = True

    def commit(self, committable: bytes) -> None:
        raise AssertionError("there is nothing to commit")


class Watching(Parts):
    def commit(self, committable: bytes) -> None:
        """Called all the same."""


class Alone(Parts):
    global_committer = False


@pytest.mark.parametrize(
    ("sink", "called"), [(Parts(), False), (Watching(), True), (Alone(), True), (JsonlSink("memory://target"), True)]
)
def test_commit_is_called_unless_the_class_that_has_it_commits_only_globally(
    sink: TwoPhaseCommitSink, called: bool
) -> None:
    assert commits_parts(sink) is called
