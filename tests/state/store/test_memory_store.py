"""Faults of the in-memory store: each has exactly its documented effect, once, in the order of injection."""

import hashlib

import pytest

from barrier_runtime.state.errors import Corrupt, Unavailable
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import PutOutcome


def test_a_put_that_fails_before_changes_nothing(store: MemoryStore) -> None:
    store.inject(Fault.FAIL_BEFORE)
    with pytest.raises(Unavailable):
        store.put("a", b"x")
    assert store.keys() == ()
    store.put("a", b"x")
    assert store.keys() == ("a",)


def test_an_answer_can_be_lost_after_the_object_landed(store: MemoryStore) -> None:
    """O3: unknown, and the writer's next try finds its own bytes."""
    store.inject(Fault.APPLY_THEN_FAIL, "put_if_absent")
    assert store.put_if_absent("log/1", b"mine") is PutOutcome.UNKNOWN
    assert store.put_if_absent("log/1", b"mine") is PutOutcome.EXISTS
    assert store.get("log/1") == b"mine"


def test_a_conflict_is_unknown_and_the_same_put_may_land_next(store: MemoryStore) -> None:
    """O2"""
    store.inject(Fault.CONFLICT, "put_if_absent")
    assert store.put_if_absent("log/1", b"mine") is PutOutcome.UNKNOWN
    assert store.put_if_absent("log/1", b"mine") is PutOutcome.CREATED


def test_a_put_that_lands_late_never_replaces_what_came_before_it(store: MemoryStore) -> None:
    """O3"""
    store.inject(Fault.LAND_LATE, "put_if_absent", times=2)
    assert store.put_if_absent("log/1", b"late") is PutOutcome.UNKNOWN
    assert store.put_if_absent("log/2", b"late") is PutOutcome.UNKNOWN
    assert store.keys() == ()
    assert store.put_if_absent("log/1", b"first") is PutOutcome.CREATED
    assert store.land_late() == 2
    assert store.get("log/1") == b"first"
    assert store.get("log/2") == b"late"
    assert store.land_late() == 0


def test_reads_can_be_cut_short_or_wrong_by_one_bit(store: MemoryStore) -> None:
    """O4, O8"""
    store.put("a", b"0123")
    store.inject(Fault.TRUNCATED_READ, "get")
    store.inject(Fault.FLIPPED_BYTE, "get")
    assert store.get("a") == b"01"
    assert store.get("a") == b"1123"
    assert store.get("a") == b"0123"


def test_a_list_can_be_stale(store: MemoryStore) -> None:
    """O10"""
    store.put("a/1", b"")
    store.inject(Fault.STALE_LIST)
    store.put("a/2", b"")
    store.delete(["a/1"])
    assert [info.key for info in store.list("a/")] == ["a/1"]
    assert [info.key for info in store.list("a/")] == ["a/2"]


def test_a_fault_strikes_only_the_operation_and_the_keys_it_was_injected_for(store: MemoryStore) -> None:
    store.inject(Fault.FAIL_BEFORE, "get", "log/")
    store.put("log/1", b"x")
    store.put("data/1", b"x")
    assert store.get("data/1") == b"x"
    with pytest.raises(Unavailable, match="log/1"):
        store.get("log/1")
    store.inject(Fault.FAIL_BEFORE, times=None)
    for _ in range(3):
        with pytest.raises(Unavailable):
            store.put("data/2", b"x")
    store.heal()
    store.put("data/2", b"x")


def test_a_publish_whose_answer_is_lost_is_success_when_repeated(store: MemoryStore) -> None:
    store.put("staged", b"rows")
    store.inject(Fault.APPLY_THEN_FAIL, "publish")
    sha256 = hashlib.sha256(b"rows").hexdigest()
    with pytest.raises(Unavailable):
        store.publish("staged", "final", sha256)
    store.publish("staged", "final", sha256)
    assert store.keys() == ("final",)


def test_damage_behind_its_back_is_found_by_publish(store: MemoryStore) -> None:
    store.put("final", b"rows")
    store.damage("final", b"r0ws")
    with pytest.raises(Corrupt):
        store.publish("staged", "final", hashlib.sha256(b"rows").hexdigest())


def test_modification_times_come_from_the_given_clock() -> None:
    now_ms = iter([10, 20])
    store = MemoryStore(now_ms=lambda: next(now_ms))
    store.put("a", b"")
    store.put("b", b"")
    assert [(info.key, info.modified_ms) for info in store.list("")] == [("a", 10), ("b", 20)]
