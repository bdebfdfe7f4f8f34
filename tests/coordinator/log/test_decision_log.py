"""The decision log: a single append at a time, three outcomes, and only records in the log count."""

import msgspec
import pytest
from coordinator_world import spec

from barrier_runtime.coordinator.log.decision_log import Appended, DecisionLog, Foreign, LogView, ReadBack, Repeat
from barrier_runtime.coordinator.log.reader import LogReader, find_head, read_log
from barrier_runtime.coordinator.log.records import (
    FIRST_POSITION,
    NO_RECORD,
    Complete,
    Fence,
    Finish,
    decode_record,
    encode_record,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation, Unavailable
from barrier_runtime.state.store.memory import Fault
from barrier_runtime.state.store.object_store import PutOutcome
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

PATHS = Paths("flights")


def fence(log, put_id="f", run="run-1", restored=NO_RECORD, checkpoint=0, floor=0):
    previous = log.fence
    other_run = previous is not None and previous.spec.run_id != run
    prior = NO_RECORD if previous is None else previous.token if other_run else previous.prior_run
    return Fence(
        put_id=put_id,
        parent_sha256=log.head_sha256,
        token=log.next_position,
        writer="host",
        wall_ms=0,
        prior_complete=log.prior_complete,
        reason="test",
        restored_checkpoint=checkpoint,
        restored_position=restored,
        lineage="l",
        prior_run=prior,
        checkpoint_floor=max(floor, log.checkpoint_floor),
        spec=spec(run_id=run),
    )


def complete(log, checkpoint, put_id=None):
    return Complete(
        put_id=put_id or f"c{checkpoint}-{log.next_position}",
        parent_sha256=log.head_sha256,
        token=log.token,
        writer="host",
        wall_ms=0,
        prior_complete=log.prior_complete,
        checkpoint=checkpoint,
        lineage="l",
        manifest=PATHS.manifest(checkpoint, log.token),
        sha256="0",
    )


def finish(log, discarded=False):
    return Finish(
        put_id="fin",
        parent_sha256=log.head_sha256,
        token=log.token,
        writer="host",
        wall_ms=0,
        prior_complete=log.prior_complete,
        outcome="finished",
        discarded=discarded,
    )


def view(store, completes=1, restore=None, run_id="run-1"):
    return read_log(store, PATHS, completes=completes, restore=restore, run_id=run_id)


def opened(store, **arguments):
    return DecisionLog("flights", view(store, **arguments))


def put(store, log, record):
    """Proposes a record, and repeats the put until the outcome is known."""
    step = log.propose(record)
    while not isinstance(step, Appended | Foreign):
        if isinstance(step, Repeat):
            step = log.on_put(step.position, store.put_if_absent(PATHS.log_record(step.position), step.data))
        else:
            name = PATHS.log_record(step.position)
            step = log.on_read_back(step.position, name, store.get(name))
    return step


def fenced(store):
    """Returns a log with a generation, fenced by this log's process."""
    log = opened(store)
    put(store, log, fence(log))
    return log


def test_records_land_in_order_and_are_found_again(store):
    """I1, I3."""
    log = opened(store)
    assert put(store, log, fence(log)).permit.token == FIRST_POSITION
    for checkpoint in (1, 2, 3):
        assert isinstance(put(store, log, complete(log, checkpoint)), Appended)
    again = opened(store)
    assert (again.token, again.next_position, again.head_sha256) == (1, 5, log.head_sha256)
    assert again.restore_point.record.checkpoint == 3
    assert again.checkpoint_floor == 3


def test_unknown_outcome_repeats_the_same_bytes_at_its_position_until_known(store):
    """O3: the put times out, the record is missing, the put lands later: a single outcome."""
    log = opened(store)
    first = log.propose(fence(log))
    store.inject(Fault.LAND_LATE, "put_if_absent")
    outcome = store.put_if_absent(PATHS.log_record(1), first.data)
    again = log.on_put(1, outcome)
    assert again == first
    store.land_late()
    read_back = log.on_put(1, store.put_if_absent(PATHS.log_record(1), again.data))
    assert read_back == ReadBack(1)
    key = PATHS.log_record(1)
    assert isinstance(log.on_read_back(1, key, store.get(key)), Appended)


def test_a_conflict_is_undecided_and_tried_again(store):
    """O2: 409 → retried."""
    store.inject(Fault.CONFLICT, "put_if_absent", times=3)
    log = opened(store)
    assert isinstance(put(store, log, fence(log)), Appended)


def test_our_own_record_behind_a_lost_answer_is_a_success(store):
    """O2, Z6: 412 on our own record, which is owned."""
    store.inject(Fault.APPLY_THEN_FAIL, "put_if_absent")
    log = opened(store)
    assert isinstance(put(store, log, fence(log)), Appended)
    assert store.calls["put_if_absent"] == 2


def test_somebody_elses_record_at_our_position_is_foreign(store):
    """O2, Z6: 412 foreign → fenced."""
    ours, theirs = opened(store), opened(store)
    assert isinstance(put(store, theirs, fence(theirs, "theirs", run="run-2")), Appended)
    result = put(store, ours, fence(ours, "ours"))
    assert isinstance(result, Foreign)
    assert result.entry.record.spec.run_id == "run-2"
    assert not ours.in_flight


def test_nothing_else_is_appended_while_an_outcome_is_unknown(store):
    """I9."""
    log = fenced(store)
    log.propose(complete(log, 1))
    with pytest.raises(ProtocolViolation, match="is undecided"):
        log.propose(complete(log, 2))


def test_a_late_answer_to_a_settled_append_changes_nothing(store):
    log = fenced(store)
    assert log.on_put(1, PutOutcome.EXISTS) is None
    assert log.on_read_back(1, "x", b"garbage") is None


def test_a_writer_can_not_append_for_a_generation_that_is_not_the_highest(store):
    """Z4, Z5, I3: a token never goes down, and a record of an older generation is a broken law."""
    log = opened(store)
    put(store, log, fence(log, "one"))
    stale = complete(log, 1)
    put(store, log, fence(log, "two"))
    with pytest.raises(ProtocolViolation, match="never decrease"):
        log.propose(stale)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"checkpoint": 1}, "needs a checkpoint id above 1, and has 1"),
        ({"lineage": "another"}, "needs lineage = l, and has lineage = another"),
        ({"prior_complete": NO_RECORD}, "needs prior_complete = 2"),
        ({"manifest": "flights/checkpoints/3-1/manifest.json"}, "needs a manifest key of checkpoint 2, generation 1"),
        ({"kept": (1,)}, "needs as kept what was kept before, and has also 1"),
    ],
)
def test_the_writer_refuses_a_record_that_fsck_would_report(store, changes, said):
    log = fenced(store)
    put(store, log, complete(log, 1))
    with pytest.raises(ProtocolViolation, match=said):
        log.propose(msgspec.structs.replace(complete(log, 2), **changes))
    assert not log.in_flight
    assert isinstance(put(store, log, complete(log, 2)), Appended)


def test_a_fence_carries_its_own_position_as_token(store):
    """Z4."""
    log = opened(store)
    wrong = fence(log)
    put(store, log, wrong)
    with pytest.raises(ProtocolViolation):
        log.propose(wrong)


def test_the_fencer_finds_the_zombies_decision_and_takes_it_over(store):
    """Z3, crash table: the FENCE position was lost to a zombie's COMPLETE(n): n is decided."""
    zombie = opened(store)
    put(store, zombie, fence(zombie))
    successor = opened(store)
    put(store, zombie, complete(zombie, 1))
    assert isinstance(put(store, successor, fence(successor, "new")), Foreign)
    successor = opened(store)
    assert successor.last_complete.record.checkpoint == 1
    position = successor.last_complete.position
    assert isinstance(put(store, successor, fence(successor, "new", restored=position, checkpoint=1)), Appended)
    assert successor.restore_point.record.checkpoint == 1
    assert isinstance(put(store, zombie, complete(zombie, 2)), Foreign)


def test_a_generation_that_restored_something_older_grows_from_that(store):
    log = fenced(store)
    old = put(store, log, complete(log, 1)).entry
    put(store, log, complete(log, 2))
    log.choose_restore(old)
    put(store, log, fence(log, "replay", run="run-2", restored=old.position, checkpoint=old.record.checkpoint))
    assert log.restore_point == old
    assert log.last_complete.record.checkpoint == 2
    again = opened(store)
    assert again.restore_point == old
    put(store, again, complete(again, 3))
    assert again.restore_point.record.checkpoint == 3


def test_discarded_checkpoints_are_out_of_reach_but_their_ids_are_not_used_again(store):
    log = fenced(store)
    put(store, log, complete(log, 7))
    put(store, log, finish(log, discarded=True))
    again = opened(store)
    assert again.last_complete is None
    assert (log.prior_complete, again.prior_complete) == (NO_RECORD, NO_RECORD), "no later record links to them"
    put(store, again, fence(again, "next", run="run-2", floor=max(7, again.checkpoint_floor)))
    last = opened(store)
    assert last.last_complete is None
    assert last.checkpoint_floor == 7


# ---------------------------------------------------------------- reading


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 7, 8, 9, 100, 1_000, 100_000])
def test_the_head_is_found_in_few_reads(length):
    asked = []

    def exists(position):
        asked.append(position)
        return position < FIRST_POSITION + length

    assert find_head(exists) == (FIRST_POSITION + length - 1 if length else NO_RECORD)
    assert len(asked) <= 2 + 2 * max(1, length.bit_length())


def test_who_reads_again_asks_only_for_what_is_new(store):
    """Found by the simulation: a takeover of a job with short checkpoint intervals lost a hundred races for the log's
    head, because the process read the whole log again after each race."""
    log = opened(store)
    for run in range(20):
        put(store, log, fence(log, f"f{run}", run=f"run-{run}"))
        put(store, log, complete(log, run + 1))
    reader = LogReader(store, PATHS)
    asked = {"completes": 2, "restore": None, "run_id": "another"}
    assert reader.read(**asked) == view(store, **asked)
    for checkpoint in range(100, 103):
        put(store, log, complete(log, checkpoint))
        before = store.calls["get"]
        found = reader.read(**asked)
        assert store.calls["get"] - before <= 4  # the new record, the missing records after it, the next milestone
        assert found == view(store, **asked)


def test_a_reading_that_failed_is_no_ground_for_the_next_one(store):
    log = fenced(store)
    reader = LogReader(store, PATHS)
    asked = {"completes": 1, "restore": None, "run_id": "run-1"}
    reader.read(**asked)
    put(store, log, complete(log, 1))
    store.inject(Fault.FLIPPED_BYTE, "get", PATHS.log_record(2))
    with pytest.raises(Corrupt):
        reader.read(**asked)
    assert reader.read(**asked) == view(store)


def test_the_list_of_the_store_is_never_asked(store):
    """O10: no decision rests on LIST."""
    store.inject(Fault.STALE_LIST, "list", times=None)
    fenced(store)
    assert opened(store).token == 1
    assert store.calls.get("list", 0) == 0


def test_a_record_that_can_not_be_read_stops_the_reader(store):
    """F11, C15: retried by the caller or failed, never passed over."""
    log = fenced(store)
    put(store, log, complete(log, 1))
    store.inject(Fault.FAIL_BEFORE, "get", "0002.json")
    with pytest.raises(Unavailable):
        view(store)
    store.inject(Fault.TRUNCATED_READ, "get", "0002.json")
    with pytest.raises(Corrupt, match=r"0002\.json"):
        view(store)
    store.damage(PATHS.log_record(2), b"\x80\x04pickle")
    with pytest.raises(Corrupt, match=r"0002\.json"):
        view(store)


def test_a_changed_predecessor_breaks_the_chain(store):
    """J1: the log is a hash chain."""
    log = fenced(store)
    put(store, log, complete(log, 1))
    record = decode_record("x", store.get(PATHS.log_record(1)))
    forged = encode_record(msgspec.structs.replace(record, writer="mole"))
    store.damage(PATHS.log_record(1), forged)
    with pytest.raises(Corrupt, match=r"expected sha256 .*found"):
        view(store)


@pytest.mark.slow
def test_a_bit_of_the_head_that_was_read_wrongly_does_not_get_into_the_chain(store):
    """Found by the simulation: no other record covers the head, and the next record takes over the hash of the head."""
    fenced(store)
    intact = store.get(PATHS.log_record(1))
    for at in range(len(intact)):
        store.damage(PATHS.log_record(1), intact[:at] + bytes([intact[at] ^ 1]) + intact[at + 1 :])
        with pytest.raises(Corrupt, match=r"0001\.json"):
            view(store)


def test_a_missing_fence_below_the_head_is_corruption_not_an_empty_log(store):
    log = fenced(store)
    put(store, log, fence(log, "two"))
    put(store, log, complete(log, 1))
    store.delete([PATHS.log_record(2)])
    hidden = opened(store)
    assert hidden.token == 1, "the gap hides the head"
    put(store, hidden, fence(hidden, "three"))
    with pytest.raises(Corrupt):
        opened(store)


def test_an_unknown_record_version_is_refused(store):
    """B6."""
    fenced(store)
    record = decode_record(PATHS.log_record(1), store.get(PATHS.log_record(1)))
    store.damage(PATHS.log_record(1), encode_record(msgspec.structs.replace(record, version=9)))
    with pytest.raises(
        InvalidJob, match="version 9, this release reads 1 to 5: a newer release wrote it: use that release"
    ):
        view(store)


def test_a_version_that_was_read_wrongly_is_no_newer_release(store):
    """O8: the record's own hash tells."""
    fenced(store)
    intact = store.get(PATHS.log_record(1))
    store.damage(PATHS.log_record(1), intact.replace(b'"version":1', b'"version":3', 1))
    with pytest.raises(Corrupt, match="is damaged: its bytes should hash to"):
        view(store)


def test_earlier_runs_are_found_through_their_fences(store):
    log = opened(store)
    for run in ("run-1", "run-1", "run-2", "run-3", "run-3"):
        put(store, log, fence(log, f"{run}-{log.next_position}", run=run))
    found = view(store, run_id="run-1").earlier_runs
    assert [entry.record.spec.run_id for entry in found] == ["run-2", "run-1"]
    assert view(store, run_id="run-3").earlier_runs == ()


def test_canonical_bytes_do_not_depend_on_the_order_of_fields():
    record = fence(DecisionLog("flights", LogView()))
    assert encode_record(record) == encode_record(decode_record("x", encode_record(record)))


def test_a_record_that_an_older_release_wrote_without_a_field_is_intact():
    """B6: what a record hashes to is of the record's bytes, not of what this release would write."""
    record = fence(DecisionLog("flights", LogView()))
    unstamped = msgspec.json.encode(record).replace(b',"definitions":{}', b"")
    check = sha256_hex(unstamped)
    written = unstamped.replace(b'"check":""', f'"check":"{check}"'.encode())
    assert decode_record("x", written) == msgspec.structs.replace(record, check=check)
    with pytest.raises(Corrupt, match="is damaged"):
        decode_record("x", written.replace(b"flights", b"frights"))
