"""A table of values over a real key-value store: reads, writes, isolation of captured values."""

import tracemalloc

import msgspec
import pytest
from backend_bench import Bench, checkpoint, drain, of_operator, values

from barrier_runtime.state.errors import InvalidJob, ProtocolViolation

_MIB = 1 << 20


def test_a_value_is_what_was_put_last_and_none_when_absent_or_deleted(bench: Bench) -> None:
    table = values(bench.open())
    assert table.get(("a",)) is None
    table.put(("a",), 1)
    assert table.get(("a",)) == 1
    table.put(("a",), 2)
    table.delete(("b",))
    assert (table.get(("a",)), table.get(("b",))) == (2, None)
    table.delete(("a",))
    assert table.get(("a",)) is None


def test_a_value_keeps_its_content_through_freeze_drain_and_the_next_change(bench: Bench) -> None:
    backend = bench.open()
    table = values(backend)
    table.put(("a",), [1])
    backend.snapshots.freeze(1)
    assert table.get(("a",)) == [1]
    table.put(("a",), [1, 2])
    drain(backend)
    assert table.get(("a",)) == [1, 2]


def test_changing_a_value_in_place_after_the_barrier_does_not_reach_the_snapshot(bench: Bench) -> None:
    """U12: what comes after the barrier belongs to the next checkpoint"""
    backend = bench.open()
    table = values(backend)
    table.put(("a",), [1])
    backend.snapshots.freeze(1)
    changed = table.get(("a",))
    changed.append(2)
    table.put(("a",), changed)
    drain(backend)
    snapshot = backend.snapshots.write(1)
    assert table.get(("a",)) == [1, 2]
    assert values(bench.open([of_operator(snapshot)])).get(("a",)) == [1]
    later = checkpoint(backend, 2)
    assert values(bench.open([of_operator(later)])).get(("a",)) == [1, 2]


def test_immutable_values_are_handed_out_without_being_encoded_first(bench: Bench) -> None:
    encoded: list[int] = []

    def encode(value: int) -> bytes:
        encoded.append(value)
        return msgspec.msgpack.encode(value)

    backend = bench.open()
    table = backend.table("value", encode, msgspec.msgpack.decode, 1, immutable=True)
    table.put(("a",), 7)
    backend.snapshots.freeze(1)
    assert table.get(("a",)) == 7
    assert encoded == []
    drain(backend)
    assert encoded == [7]


def test_a_deletion_survives_the_snapshot(bench: Bench) -> None:
    backend = bench.open()
    table = values(backend)
    table.put(("a",), 1)
    table.put(("b",), 2)
    checkpoint(backend, 1)
    table.delete(("a",))
    restored = values(bench.open([of_operator(checkpoint(backend, 2))]))
    assert (restored.get(("a",)), restored.get(("b",))) == (None, 2)
    assert dict(restored.scan()) == {("b",): 2}


def test_a_scan_sees_every_entry_once_wherever_it_is(bench: Bench) -> None:
    backend = bench.open()
    table, other = values(backend), values(backend, "other")
    for number in range(100):
        table.put((number,), "stored")
        other.put((number,), "of another state")
    checkpoint(backend, 1)
    for number in range(50, 60):
        table.put((number,), "frozen")
    table.delete((60,))
    backend.snapshots.freeze(2)
    for number in range(55, 58):
        table.put((number,), "dirty")
    table.put((1000,), "new")
    table.delete((61,))
    expected = {(number,): "stored" for number in range(100) if number not in (60, 61)}
    expected |= {(number,): "frozen" for number in range(50, 60)} | {(number,): "dirty" for number in range(55, 58)}
    expected[(1000,)] = "new"
    found = list(table.scan())
    assert dict(found) == expected
    assert len(found) == len(expected)


def test_the_namespace_does_not_decide_where_an_entry_lives(bench: Bench) -> None:
    backend = bench.open(subtask=1, parallelism=3)
    table = backend.table("windows", msgspec.msgpack.encode, msgspec.msgpack.decode, key_width=1)
    owned = next(number for number in range(100) if _belongs(backend, number))
    for window in range(50):
        table.put((owned, window), window)
    snapshots = [checkpoint(bench.open(subtask=subtask, parallelism=3), 1) for subtask in (0, 2)]
    keyed = [snapshots[0], checkpoint(backend, 1), snapshots[1]]
    restored = bench.open([of_operator(keyed[subtask], subtask, 3) for subtask in range(3)])
    table = restored.table("windows", msgspec.msgpack.encode, msgspec.msgpack.decode, key_width=1)
    assert dict(table.scan()) == {(owned, window): window for window in range(50)}


def _belongs(backend: object, number: int) -> bool:
    from barrier_runtime.state.keys.key_groups import key_group

    return backend.key_group_first <= key_group((number,), backend.max_parallelism) <= backend.key_group_last  # type: ignore[attr-defined]


def test_a_key_of_another_subtask_is_a_broken_law_that_names_key_and_ranges(bench: Bench) -> None:
    backend = bench.open(subtask=1, parallelism=3)
    foreign = next(number for number in range(100) if not _belongs(backend, number))
    with pytest.raises(ProtocolViolation, match=rf"key \({foreign},\) belongs to key group \d+, but subtask 1"):
        values(backend).get((foreign,))


@pytest.mark.slow
def test_a_small_cache_spills_what_is_dirty_and_forgets_nothing(bench: Bench) -> None:
    """Mixes puts and reads of more entries than the cache may hold, with checkpoints in between."""
    bench.cache_bytes = 200_000
    backend = bench.open()
    table = values(backend)
    expected = {}
    for number in range(6_000):
        key = (number * 7919 % 3_000,)
        table.put(key, number)
        expected[key] = number
        if number % 1_500 == 700:
            checkpoint(backend, number)
            backend.snapshots.completed(number)
    assert table.memory_bytes() < 4 * bench.cache_bytes
    assert {key: table.get(key) for key in expected} == expected
    assert dict(table.scan()) == expected


@pytest.mark.slow
def test_a_few_large_values_do_not_fill_memory_before_their_size_is_known(rocksdb_bench: Bench) -> None:
    """The cache holds thousands of small values, but only sixteen of these."""
    rocksdb_bench.cache_bytes = 16 * _MIB
    backend = rocksdb_bench.open()
    table = values(backend)
    tracemalloc.start()
    try:
        for number in range(200):
            table.put((number,), bytes([number]) * _MIB)
            if number == 150:
                checkpoint(backend, number)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 4 * rocksdb_bench.cache_bytes
    assert all(table.get((number,)) == bytes([number]) * _MIB for number in range(200))


def test_tables_that_need_little_leave_their_part_of_the_cache_to_others(bench: Bench) -> None:
    bench.cache_bytes = 90 * _MIB
    backend = bench.open()
    table = values(backend)
    for name in ("@timers", "@wall_timers"):  # every function has these tables
        backend.timer_table(name, 1)
    number = 0
    while not table.frozen_entries:  # until the table spills: a quarter of its memory waits to be written
        table.put((number,), number)
        number += 1
    assert 4 * table.memory_bytes() > 0.5 * bench.cache_bytes


def test_nothing_is_spilled_between_the_barrier_and_the_links(bench: Bench) -> None:
    """When its files are linked, the store must hold exactly the state at the barrier."""
    bench.cache_bytes = 100_000
    backend = bench.open()
    table = values(backend)
    table.put((-1,), "before")
    backend.snapshots.freeze(1)
    drain(backend)
    for number in range(3_000):
        table.put((number,), "after")
    restored = values(bench.open([of_operator(backend.snapshots.write(1))]))
    assert dict(restored.scan()) == {(-1,): "before"}
    for number in range(3_000, 6_000):
        table.put((number,), "after")
    assert len(dict(table.scan())) == 6_001


def test_a_name_is_used_once_and_never_empty(bench: Bench) -> None:
    backend = bench.open()
    values(backend)
    with pytest.raises(InvalidJob, match="two states named 'value'"):
        values(backend)
    with pytest.raises(InvalidJob, match="empty name"):
        values(backend, "")
    with pytest.raises(InvalidJob, match="key width 0"):
        backend.table("x", msgspec.msgpack.encode, msgspec.msgpack.decode, 0)


def test_a_table_that_is_not_opened_again_is_kept_all_the_same(bench: Bench) -> None:
    backend = bench.open()
    values(backend, "a").put(("k",), 1)
    values(backend, "b").put(("k",), 2)
    second = bench.open([of_operator(checkpoint(backend, 1))])
    values(second, "b").put(("k",), 3)
    third = bench.open([of_operator(checkpoint(second, 2))])
    assert (values(third, "a").get(("k",)), values(third, "b").get(("k",))) == (1, 3)
