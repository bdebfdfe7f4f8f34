"""Interleavings of the two-phase driver: events in, effects out, without sink, store and clock."""

import pytest

from barrier_runtime.runtime.sinks.driver import (
    Commit,
    CommitTogether,
    PreCommit,
    Recover,
    ReportCommitted,
    ReportFailing,
    RetryAt,
    SinkDriver,
    Stage,
    TransactionVisible,
)
from barrier_runtime.runtime.sinks.pending_set import (
    PendingEntry,
    decode_pending,
    encode_pending,
    entries_of_subtask,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation


def driver(restored: int = 0, entries: tuple[PendingEntry, ...] = (), *, together: bool = False) -> SinkDriver:
    made = SinkDriver("job 'j', sink 's', subtask 0", 0, together=together)
    made.recover(restored, entries)
    made.committed(restored)
    return made


def sealed(made: SinkDriver, *checkpoints: int) -> SinkDriver:
    for checkpoint in checkpoints:
        made.barrier(checkpoint)
        made.precommitted(checkpoint, data(checkpoint))
    return made


def data(checkpoint: int) -> bytes:
    return b"rows of %d" % checkpoint


def entry(checkpoint: int, subtask: int = 0) -> PendingEntry:
    return PendingEntry(checkpoint, subtask, data(checkpoint))


def listed(made: SinkDriver) -> list[int]:
    return [e.checkpoint for t in made.pending for e in t.entries]


# ---------------------------------------------------------------- the usual life


def test_a_barrier_closes_the_open_transaction_and_begins_the_next() -> None:
    made = driver()
    assert made.open_txn == 1
    assert made.barrier(1) == [PreCommit(txn=1, checkpoint=1)]
    assert made.open_txn == 2
    assert made.barrier(2) == [PreCommit(txn=2, checkpoint=2)]


def test_nothing_is_committed_before_the_decision() -> None:
    made = driver()
    made.barrier(1)
    assert made.precommitted(1, data(1)) == []
    assert made.complete(1) == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), ReportCommitted(1)]
    assert made.pending == ()


def test_completion_commits_everything_up_to_it_and_leaves_the_rest_staged() -> None:
    """T2"""
    made = sealed(driver(), 1, 2, 3)
    assert made.complete(2) == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), Commit(2, data(2))]
    assert made.committed(2) == [TransactionVisible(2), ReportCommitted(2)]
    assert listed(made) == [3]


def test_a_late_notice_of_an_older_checkpoint_commits_nothing_twice() -> None:
    """T1"""
    made = sealed(driver(), 1, 2, 3)
    effects = made.complete(3) + made.committed(1) + made.committed(2) + made.committed(3)
    assert [e for e in effects if isinstance(e, Commit)] == [Commit(n, data(n)) for n in (1, 2, 3)]
    assert made.complete(2) == [ReportCommitted(2)]
    assert made.pending == ()


def test_a_repeated_decision_only_repeats_the_report() -> None:
    """T6"""
    made = sealed(driver(), 1)
    made.complete(1)
    assert made.complete(1) == [], "the commit is under way already"
    made.committed(1)
    assert made.complete(1) == [ReportCommitted(1)]


def test_an_empty_transaction_commits_without_a_call_and_is_still_reported() -> None:
    """T7"""
    made = driver()
    made.barrier(1)
    made.precommitted(1, None)
    assert made.complete(1) == [TransactionVisible(1), ReportCommitted(1)]


def test_an_empty_transaction_between_full_ones_keeps_the_order() -> None:
    """T7"""
    made = sealed(driver(), 1)
    made.barrier(2)
    made.precommitted(2, None)
    sealed(made, 3)
    assert made.complete(3) == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), TransactionVisible(2), Commit(3, data(3))]
    assert made.committed(3) == [TransactionVisible(3), ReportCommitted(3)]


# ---------------------------------------------------------------- waiting in order


def test_a_decision_waits_for_the_committable_it_needs() -> None:
    made = driver()
    made.barrier(1)
    assert made.complete(1) == []
    assert made.awaits_pre_commit
    assert made.precommitted(1, data(1)) == [Commit(1, data(1))]
    assert not made.awaits_pre_commit


def test_a_newer_committable_does_not_overtake_an_older_one_that_is_not_durable_yet() -> None:
    made = driver()
    made.barrier(1)
    made.barrier(2)
    made.precommitted(2, data(2))
    assert made.complete(2) == []
    assert made.precommitted(1, data(1)) == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), Commit(2, data(2))]


def test_a_decision_during_a_commit_waits_for_the_executor() -> None:
    made = sealed(driver(), 1, 2)
    assert made.complete(1) == [Commit(1, data(1))]
    assert made.complete(2) == []
    assert made.committed(1) == [TransactionVisible(1), ReportCommitted(1), Commit(2, data(2))]


def test_a_commit_of_the_past_has_no_effect_on_the_open_transaction() -> None:
    """Z11"""
    made = sealed(driver(), 1)
    made.complete(1)
    assert made.barrier(2) == [PreCommit(2, 2)]
    open_before = made.open_txn
    assert made.committed(1) == [TransactionVisible(1), ReportCommitted(1)]
    assert made.open_txn == open_before
    assert [(t.checkpoint, t.stage) for t in made.pending] == [(2, Stage.SEALING)]


# ---------------------------------------------------------------- failing commits


def test_a_failing_commit_is_tried_for_ever_with_growing_pauses_and_never_dropped() -> None:
    """T4, T10"""
    made = sealed(driver(), 1)
    made.complete(1)
    pauses = []
    for attempt in range(1, 21):
        report, retry = made.commit_failed(1, "503", now=100.0)
        assert report == ReportFailing(1, attempt, "503")
        assert isinstance(retry, RetryAt)
        pauses.append(retry.at - 100.0)
        assert listed(made) == [1], "a snapshot taken now still lists it"
        assert made.retry() == [Commit(1, data(1))]
    assert pauses[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert pauses[-1] == 30.0
    assert made.committed(1) == [TransactionVisible(1), ReportCommitted(1)]


def test_a_failing_commit_holds_back_the_later_ones() -> None:
    made = sealed(driver(), 1, 2)
    made.complete(2)
    made.commit_failed(1, "disk full", 0.0)
    assert made.complete(2) == []
    assert made.barrier(3) == [PreCommit(3, 3)], "but never the barriers"
    assert made.retry() == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), Commit(2, data(2))]


def test_every_repeat_of_a_commit_uses_the_persisted_committable() -> None:
    """T11"""
    made = sealed(driver(), 7)
    first = made.complete(7)
    made.commit_failed(7, "answer lost", 0.0)
    assert made.retry() == first
    kept = decode_pending(encode_pending(7, [e for t in made.pending for e in t.entries]), "here")
    successor = SinkDriver("successor", 0)
    assert successor.recover(kept.checkpoint, kept.entries) == [Recover(7, (data(7),))]


def test_a_retry_that_nothing_waits_for_has_no_effect() -> None:
    made = sealed(driver(), 1)
    assert made.retry() == []
    made.complete(1)
    assert made.retry() == []


# ---------------------------------------------------------------- several at once


def behind(*decided: int) -> SinkDriver:
    """Returns a driver that may commit several at once; `decided` were decided during the commit of checkpoint 1."""
    made = sealed(driver(together=True), 1, *decided)
    assert made.complete(1) == [Commit(1, data(1))], "one alone is committed as ever"
    for checkpoint in decided:
        assert made.complete(checkpoint) == []
    return made


def together(*checkpoints: int) -> CommitTogether:
    return CommitTogether(checkpoints[-1], tuple(data(checkpoint) for checkpoint in checkpoints))


def test_what_was_decided_during_a_commit_is_committed_at_once() -> None:
    made = behind(2, 3)
    assert made.committed(1) == [TransactionVisible(1), ReportCommitted(1), together(2, 3)]
    assert listed(made) == [2, 3], "a snapshot taken now lists both"
    assert made.committed(3) == [TransactionVisible(2), TransactionVisible(3), ReportCommitted(3)]
    assert made.pending == ()


def test_without_the_sinks_consent_every_transaction_is_committed_alone() -> None:
    made = sealed(driver(), 1, 2)
    assert made.complete(2) == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), Commit(2, data(2))]


def test_what_is_not_decided_does_not_go_along() -> None:
    """T2"""
    made = sealed(driver(together=True), 1, 2, 3)
    assert made.complete(2) == [together(1, 2)]
    assert made.committed(2) == [TransactionVisible(1), TransactionVisible(2), ReportCommitted(2)]
    assert listed(made) == [3]


def test_what_is_not_durable_holds_back_itself_and_all_behind_it() -> None:
    made = sealed(driver(together=True), 1, 2)
    made.barrier(3)
    made.barrier(4)
    made.precommitted(4, data(4))
    assert made.complete(4) == [together(1, 2)]
    assert made.precommitted(3, data(3)) == []
    assert made.committed(2) == [TransactionVisible(1), TransactionVisible(2), together(3, 4)]


def test_empty_transactions_among_several_become_visible_in_their_turn() -> None:
    """T7"""
    made = sealed(driver(together=True), 1)
    for checkpoint, held in ((2, None), (3, data(3)), (4, None)):
        made.barrier(checkpoint)
        made.precommitted(checkpoint, held)
    assert made.complete(4) == [together(1, 3)]
    assert made.committed(3) == [
        TransactionVisible(1),
        TransactionVisible(2),
        TransactionVisible(3),
        TransactionVisible(4),
        ReportCommitted(4),
    ]


def test_after_a_failure_the_oldest_is_tried_alone_and_the_others_follow_together() -> None:
    """T4, T10"""
    made = behind(2, 3, 4)
    made.committed(1)
    report, retry = made.commit_failed(4, "the rows of 3 are damaged", now=0.0)
    assert report == ReportFailing(2, 1, "the rows of 3 are damaged")
    assert retry == RetryAt(0.1)
    assert listed(made) == [2, 3, 4]
    assert made.complete(4) == [], "not before its time"
    assert made.retry() == [Commit(2, data(2))]
    assert made.committed(2) == [TransactionVisible(2), ReportCommitted(2), together(3, 4)]
    assert made.commit_failed(4, "the rows of 3 are damaged", 1.0)[0] == ReportFailing(
        3, 1, "the rows of 3 are damaged"
    )
    assert made.retry() == [Commit(3, data(3))], "what cannot be committed holds back nothing older"
    assert made.commit_failed(3, "the rows of 3 are damaged", 2.0) == [
        ReportFailing(3, 2, "the rows of 3 are damaged"),
        RetryAt(2.2),
    ]


def test_what_is_decided_while_several_are_committed_waits_for_the_executor() -> None:
    made = behind(2, 3)
    made.committed(1)
    sealed(made, 4)
    assert made.complete(4) == []
    assert made.committed(3) == [TransactionVisible(2), TransactionVisible(3), ReportCommitted(3), Commit(4, data(4))]


def test_an_answer_for_a_part_of_those_under_way_is_a_bug_that_stops() -> None:
    made = behind(2, 3)
    made.committed(1)
    for wrong in (lambda: made.committed(2), lambda: made.commit_failed(2, "?", 0.0)):
        with pytest.raises(ProtocolViolation, match="Recent events"):
            wrong()


def test_what_was_recovered_is_never_mixed_with_what_came_later() -> None:
    """T3"""
    made = SinkDriver("successor", 0, together=True)
    assert made.recover(5, (entry(4), entry(5))) == [Recover(5, (data(4), data(5)))]
    sealed(made, 6, 7)
    assert made.complete(7) == []
    assert made.committed(5) == [TransactionVisible(0), ReportCommitted(5), together(6, 7)]


def test_parts_of_a_whole_are_committed_at_once_and_stay_listed() -> None:
    made = SinkDriver("part", 0, part_of_whole=True, together=True)
    made.recover(0, ())
    made.committed(0)
    sealed(made, 1, 2)
    assert made.complete(2) == [together(1, 2)]
    assert made.committed(2) == [ReportCommitted(2)]
    assert listed(made) == [1, 2]
    assert made.visible(2) == [TransactionVisible(1), TransactionVisible(2)]


def test_parts_with_nothing_to_commit_are_reported_at_once_and_stay_listed() -> None:
    """The recovery still runs: it drops undecided transactions."""
    made = SinkDriver("part", 0, part_of_whole=True, only_globally=True)
    assert made.recover(0, ()) == [Recover(0, ())]
    sealed(made, 1, 2)
    assert made.complete(1) == [], "the recovery is under way"
    assert made.committed(0) == [TransactionVisible(0), ReportCommitted(1)]
    assert made.complete(2) == [ReportCommitted(2)]
    assert listed(made) == [1, 2]
    assert made.visible(1) == [TransactionVisible(1)]
    assert listed(made) == [2]


def test_a_part_with_nothing_to_commit_waits_for_its_rows_to_be_durable() -> None:
    made = SinkDriver("part", 0, part_of_whole=True, only_globally=True)
    made.recover(0, ())
    made.committed(0)
    made.barrier(1)
    assert made.complete(1) == []
    assert made.precommitted(1, b"rows") == [ReportCommitted(1)]


# ---------------------------------------------------------------- aborted checkpoints


def test_rows_of_an_expired_checkpoint_ride_with_the_next_one_of_the_generation() -> None:
    """T15"""
    made = sealed(driver(), 1)
    assert made.abort(1) == []
    sealed(made, 2)
    assert listed(made) == [1, 2]
    assert made.complete(2) == [Commit(1, data(1))]
    assert made.committed(1) == [TransactionVisible(1), Commit(2, data(2))]
    assert made.committed(2) == [TransactionVisible(2), ReportCommitted(2)]


def test_a_pre_commit_that_was_never_run_because_of_an_abort_is_made_up_for() -> None:
    """T15"""
    made = driver()
    made.barrier(1)
    made.abort(1)
    made.barrier(2)
    made.precommitted(1, data(1))
    made.precommitted(2, data(2))
    assert made.complete(2) == [Commit(1, data(1))]


def test_deciding_what_was_aborted_is_a_bug_that_stops() -> None:
    """T6"""
    made = sealed(driver(), 1)
    made.abort(1)
    with pytest.raises(ProtocolViolation, match=r"subtask 0: checkpoint 1 was aborted.*abort\(1\)"):
        made.complete(1)


def test_aborting_what_is_decided_is_a_bug_that_stops() -> None:
    made = sealed(driver(), 1)
    made.complete(1)
    with pytest.raises(ProtocolViolation, match="checkpoint 1 is decided"):
        made.abort(1)


def test_an_abort_of_a_subsumed_checkpoint_is_ordinary() -> None:
    made = sealed(driver(), 1, 2)
    made.complete(2)
    assert made.abort(1) == []
    assert made.committed(1) == [TransactionVisible(1), Commit(2, data(2))]


def test_answers_out_of_the_table_are_bugs_that_stop() -> None:
    made = sealed(driver(), 1)
    for wrong in (
        lambda: made.committed(1),  # nothing under way
        lambda: made.precommitted(1, data(1)),  # twice
        lambda: made.precommitted(9, data(9)),
        lambda: made.barrier(1),
        lambda: made.complete(2),  # no barrier 2 arrived
        lambda: made.recover(1, ()),
        lambda: made.commit_failed(1, "?", 0.0),
    ):
        with pytest.raises(ProtocolViolation, match="Recent events"):
            wrong()


# ---------------------------------------------------------------- recovery


def test_a_successor_commits_what_the_manifest_lists_before_anything_new() -> None:
    """T3"""
    made = SinkDriver("successor", 0)
    assert made.recover(5, (entry(4), entry(5))) == [Recover(5, (data(4), data(5)))]
    sealed(made, 6)
    assert made.complete(6) == []
    assert made.committed(5) == [TransactionVisible(0), ReportCommitted(5), Commit(6, data(6))]


def test_leftovers_of_older_generations_are_dropped_also_when_nothing_is_decided() -> None:
    """T8"""
    made = SinkDriver("successor", 0)
    assert made.recover(0, ()) == [Recover(0, ())], "recovering nothing still sweeps"
    assert made.committed(0) == [TransactionVisible(0)]


def test_a_failing_recovery_is_tried_for_ever_and_listed_in_every_snapshot_meanwhile() -> None:
    """T4"""
    made = SinkDriver("successor", 0)
    made.recover(5, (entry(4), entry(5)))
    for attempt in (1, 2, 3):
        assert made.commit_failed(5, "refused", 0.0)[0] == ReportFailing(5, attempt, "refused")
        assert made.retry() == [Recover(5, (data(4), data(5)))]
    sealed(made, 6)
    assert listed(made) == [4, 5, 6]


def test_a_crash_inside_recovery_leaves_everything_to_the_next_one() -> None:
    """T10"""
    first = SinkDriver("first successor", 0)
    first.recover(5, (entry(5),))
    sealed(first, 6)  # never decided: rows of 6 are not the second successor's
    second = SinkDriver("second successor", 0)
    assert second.recover(5, (entry(5),)) == [Recover(5, (data(5),))]


def test_the_decision_that_was_restored_may_be_repeated() -> None:
    made = driver(5)
    assert made.complete(5) == [ReportCommitted(5)]
    assert driver(0).complete(5) == [ReportCommitted(5)], "a sink that is new in this version of the job"


def test_last_rows_commit_under_the_real_final_checkpoint() -> None:
    """T13"""
    made = sealed(driver(), 1)
    made.complete(1)
    made.committed(1)
    sealed(made, 2)  # taken after the end of the input, like any other
    assert made.complete(2) == [Commit(2, data(2))]
    assert made.committed(2) == [TransactionVisible(2), ReportCommitted(2)]
    assert made.committed_through == 2


# ---------------------------------------------------------------- the pending set


def test_the_pending_set_survives_its_encoding() -> None:
    entries = (entry(3), entry(4, subtask=2))
    assert decode_pending(encode_pending(4, entries), "here").entries == entries


def test_a_pending_set_of_an_unknown_version_is_refused() -> None:
    """B6"""
    data_of_tomorrow = encode_pending(1, ()).replace(b'"version":1', b'"version":3')
    with pytest.raises(InvalidJob, match="version 3, this release reads 1 to 2"):
        decode_pending(data_of_tomorrow, "here")


def test_many_entries_are_packed_and_come_back_as_they_were() -> None:
    entries = tuple(PendingEntry(n, n % 3, b"the name of a staged file, number %d, \xff" % n) for n in range(600))
    data = encode_pending(700, entries)
    assert len(data) < sum(len(each.committable) for each in entries) / 3
    assert (decode_pending(data, "here").checkpoint, decode_pending(data, "here").entries) == (700, entries)
    with pytest.raises(Corrupt, match="not readable"):
        decode_pending(data.replace(b'"packed":"', b'"packed":"AAAA'), "here")


@pytest.mark.parametrize("wrong", [b"", b"\x80\x04K\x01.", b"{}", b'{"version":1,"checkpoint":1,"entries":[[1,2]]}'])
def test_bytes_that_are_no_pending_set_are_refused_undecoded(wrong: bytes) -> None:
    """B4: the second value is a pickle."""
    with pytest.raises(Corrupt, match=r"^here: .*not readable"):
        decode_pending(wrong, "here")


def test_after_rescaling_each_entry_has_exactly_one_new_owner_and_keeps_it() -> None:
    """T8"""
    sets = [decode_pending(encode_pending(9, [entry(8, s), entry(9, s)]), "here") for s in range(5)]
    for parallelism in (1, 2, 3, 5, 6):
        shares = [entries_of_subtask(sets, s, parallelism) for s in range(parallelism)]
        together = sorted((e.checkpoint, e.subtask) for share in shares for e in share)
        assert together == [(c, s) for c in (8, 9) for s in range(5)]
        again = [decode_pending(encode_pending(9, share), "here") for share in shares]
        assert [entries_of_subtask(again, s, parallelism) for s in range(parallelism)] == shares
