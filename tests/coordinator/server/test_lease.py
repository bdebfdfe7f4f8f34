"""The tables of the lease: a daemon's judgement of a lease, and a leader's writes. No clock, no store."""

import msgspec
import pytest

from barrier_runtime.coordinator.log.lease import (
    Holder,
    Judgement,
    Lease,
    LeaseKeeper,
    LeaseState,
    LeaseWatch,
    decode_lease,
    encode_lease,
)
from barrier_runtime.state.errors import Corrupt, InvalidJob

FREE, OURS, HELD = LeaseState.FREE, LeaseState.OURS, LeaseState.HELD
A = Holder("a", "10.0.0.1:7000", "http://10.0.0.1:8000", 1_000)
B = Holder("b", "10.0.0.2:7000", "http://10.0.0.2:8000", 3_000)


def lease(holder=A, position=5, sequence=1, run_id="run-1", released=False):
    return Lease(
        job="flights",
        run_id=run_id,
        leader=holder.daemon,
        control=holder.control,
        http=holder.http,
        position=position,
        sequence=sequence,
        lease_ms=holder.lease_ms,
        released=released,
    )


def watched(by, *reads):
    """Returns the state after each read (data, time)."""
    watch = LeaseWatch("flights/lease.json", by)
    return [watch.judge(data if data is None else bytes(data), at, at).state for data, at in reads]


# ---------------------------------------------------------------- reads


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (None, FREE),
        (lease(released=True), FREE),
        (lease(B), OURS),
        (lease(B, position=99), OURS),
        (lease(A), HELD),
        (lease(B, released=True), FREE),
    ],
    ids=["nothing", "released", "own name", "own name, later position", "another's", "released by ourselves"],
)
def test_what_a_daemon_finds_at_first_sight(found, state):
    assert watched(B, (found and encode_lease(found), 10_000)) == [state]


def test_a_lease_is_held_while_it_changes_and_free_after_a_term_without_change():
    one, two = encode_lease(lease(sequence=1)), encode_lease(lease(sequence=2))
    reads = [(one, 0), (one, 999), (two, 1_000), (two, 1_999), (two, 2_000), (two, 9_000)]
    assert watched(B, *reads) == [HELD, HELD, HELD, HELD, FREE, FREE]


def test_the_term_is_the_holders_and_not_that_of_who_judges():
    data = encode_lease(lease(A))
    assert watched(B, (data, 0), (data, 1_000)) == [HELD, FREE]
    data = encode_lease(lease(B))
    assert watched(A, (data, 0), (data, 1_000), (data, 3_000)) == [HELD, HELD, FREE]


def test_a_leader_that_comes_back_after_its_term_is_believed_again():
    one, two = encode_lease(lease(sequence=1)), encode_lease(lease(sequence=2))
    assert watched(B, (one, 0), (one, 5_000), (two, 5_001)) == [HELD, FREE, HELD]


def test_a_slow_read_counts_against_the_taker():
    """New content is new from the end of the read that found it; unchanged only up to the beginning of that read."""
    watch = LeaseWatch("flights/lease.json", B)
    data = encode_lease(lease())
    assert watch.judge(data, 0, 900).state is HELD
    assert watch.judge(data, 1_800, 60_000).state is HELD
    assert watch.judge(data, 1_900, 1_901).state is FREE


def test_a_lease_that_can_not_be_read_is_waited_for_as_for_our_own_term_and_told():
    watch = LeaseWatch("flights/lease.json", B)
    first = watch.judge(b"{", 0, 0)
    assert (first.state, first.lease) == (HELD, None)
    assert "flights/lease.json is not readable" in first.trouble
    assert watch.judge(b"{", 2_999, 2_999).state is HELD
    assert watch.judge(b"{", 3_000, 3_000).state is FREE


@pytest.mark.parametrize(
    ("found", "at_once"),
    [
        (None, False),
        (lease(A, run_id="run-0", released=True), False),
        (lease(B, run_id="run-0"), False),
        (lease(A, released=True), True),
        (lease(B), True),
    ],
    ids=["no lease", "released for another run", "ours, of another run", "released", "ours"],
)
def test_a_run_that_no_lease_names_may_just_be_starting_elsewhere(found, at_once):
    """A run's FENCE is in the log shortly before the first lease is written."""
    watch = LeaseWatch("flights/lease.json", B)
    found = watch.judge(found and encode_lease(found), 10_000, 10_000)
    assert watch.may_take(found, "run-1", 10_000) is at_once
    assert watch.may_take(found, "run-1", 12_999) is at_once
    assert watch.may_take(found, "run-1", 13_000)
    assert watch.may_take(found, "run-2", 13_001) is False, "another run has its own time"


def test_a_held_lease_is_never_free_to_take_however_long_the_run_is_known():
    watch, now = LeaseWatch("flights/lease.json", B), 0
    assert not watch.may_take(watch.judge(None, 0, 0), "run-1", 0)
    for sequence in range(1, 20):
        now += 900
        found = watch.judge(encode_lease(lease(A, sequence=sequence, run_id="run-9")), now, now)
        assert not watch.may_take(found, "run-1", now)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"\x80\x04\x95pickle",
        encode_lease(lease())[:-4],
        encode_lease(lease()).replace(b'"lease_ms":1000', b'"lease_ms":99999999999'),
        encode_lease(lease()).replace(b'"lease_ms":1000', b'"lease_ms":0'),
        encode_lease(lease()).replace(b'"sequence":1', b'"sequence":1,"more":1'),
    ],
    ids=["empty", "another type", "pickle", "cut", "endless", "no term", "unknown field"],
)
def test_a_damaged_lease_is_refused(damage):
    """B6: unknown fields are refused, and no lease can last for ever."""
    with pytest.raises(Corrupt, match=r"lease flights/lease\.json"):
        decode_lease("flights/lease.json", damage)


def test_a_lease_of_a_newer_release_is_held_until_it_is_gone():
    """B6: only the newer release knows the lease's term."""
    newer = encode_lease(lease()).replace(b'"version":1', b'"version":2')
    said = "has version 2, this release reads 1: run the same release in all daemons of one storage"
    with pytest.raises(InvalidJob, match=said):
        decode_lease("flights/lease.json", newer)
    watch = LeaseWatch("flights/lease.json", B)
    for now_ms in (0, 3_000, 10_000_000):
        found = watch.judge(newer, now_ms, now_ms)
        assert (found.state, found.lease) == (HELD, None)
        assert said in found.trouble
        assert not watch.may_take(found, "run-1", now_ms)
    assert watch.judge(None, 10_000_001, 10_000_001).state is FREE


# ---------------------------------------------------------------- writes


def keeper():
    return LeaseKeeper(A, "flights", "run-1")


def test_a_leader_writes_at_first_and_before_any_slot_has_come():
    """Slots are expected: Spark may take a minute to start them."""
    written = keeper().renewal(Judgement(FREE), position=1, slots=0, now_ms=0)
    assert (written.leader, written.position, written.lease_ms, written.released) == ("a", 1, 1_000, False)
    assert (written.control, written.http) == (A.control, A.http)
    assert keeper().renewal(Judgement(FREE), 1, 0, 60_000) is not None


def test_every_write_has_another_content():
    """After a restart the sequence continues from the stored lease."""
    leader, found, seen = keeper(), Judgement(FREE), set()
    for now in range(0, 3_000, 333):
        written = leader.renewal(found, 1, 2, now)
        seen.add(encode_lease(written))
        found = Judgement(OURS, written)
    assert len(seen) == 10
    assert keeper().renewal(found, 1, 2, 0).sequence == found.lease.sequence + 1


def test_a_leader_that_has_lost_all_its_slots_for_a_whole_term_gives_way():
    """A leader without a connection to the slots must not keep a standby from leading them."""
    leader, found = keeper(), Judgement(OURS, lease(A))
    assert leader.renewal(found, 1, 2, 0)
    assert leader.renewal(found, 1, 0, 999)
    assert leader.renewal(found, 1, 0, 1_000) is None
    assert leader.renewal(found, 1, 0, 1_333) is None
    assert leader.renewal(found, 1, 1, 1_666), "a slot is back: it leads on"


@pytest.mark.parametrize(
    ("found", "writes"),
    [
        (Judgement(HELD, lease(B, position=4)), True),
        (Judgement(HELD, lease(B, position=5)), False),
        (Judgement(HELD, lease(B, position=6)), False),
        (Judgement(FREE, lease(B, position=6)), True),
        (Judgement(FREE, lease(B, position=6, released=True)), True),
        (Judgement(HELD, None, "unreadable"), True),
    ],
    ids=["a predecessor's last put", "claimed after us", "leads after us", "expired", "released", "unreadable"],
)
def test_leader_does_not_reclaim_a_taken_lease_but_a_later_leader_does(found, writes):
    leader = keeper()
    assert (leader.renewal(found, position=5, slots=2, now_ms=0) is not None) is writes
    assert leader.displaced is not writes


def test_a_lease_is_given_back_only_by_whom_it_belongs_to():
    leader = keeper()
    given_back = leader.release(Judgement(OURS, lease(A)), 5)
    assert given_back.released
    assert watched(B, (encode_lease(given_back), 0)) == [FREE]
    for found in (Judgement(FREE), Judgement(HELD, lease(B)), Judgement(FREE, lease(B))):
        assert leader.release(found, 5) is None


def test_an_older_run_of_the_same_daemon_leaves_the_lease_to_the_newer_one():
    leader, newer = keeper(), Judgement(OURS, lease(A, position=6, run_id="run-2"))
    assert leader.renewal(newer, position=5, slots=2, now_ms=0) is None
    assert leader.release(newer, position=5) is None
    assert not leader.displaced
    older = Judgement(OURS, lease(A, position=4, run_id="run-0"))
    assert leader.renewal(older, position=5, slots=2, now_ms=0).run_id == "run-1"


def test_what_is_written_is_read_back():
    written = lease(position=7, released=True)
    assert decode_lease("x", encode_lease(written)) == written
    assert msgspec.json.decode(encode_lease(written))["version"] == 1
