"""Dense tables with keys of several ints, such as (key, window start): snapshots, rescaling, writes."""

import numpy as np
import pytest
from backend_bench import Bench, checkpoint, drain, of_operator

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable


def windows(backend: KeyedBackend, key_width: int = 1, evictable: bool = False) -> ColumnTable:
    return backend.column_table("windows", {"count": ("i8", 0)}, key_width, evictable)


def count(table: ColumnTable, *fields: np.ndarray) -> None:
    row_ids = table.row_ids_int64(*fields)
    np.add.at(table.columns["count"], row_ids, 1)
    table.mark_dirty(row_ids)


def content(table: ColumnTable) -> dict[tuple[object, ...], int]:
    row_ids = table.load_all()
    return dict(zip(table.keys_of(row_ids), table.columns["count"][row_ids].tolist(), strict=True))


def some_rows(seed: int, rows: int = 5_000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.integers(-300, 300, rows), random.integers(0, 5, rows) * 10_000


def counted(*batches: tuple[np.ndarray, ...]) -> dict[tuple[object, ...], int]:
    expected: dict[tuple[object, ...], int] = {}
    for batch in batches:
        for key in zip(*(field.tolist() for field in batch), strict=True):
            expected[key] = expected.get(key, 0) + 1
    return expected


def test_rows_with_repeated_keys_of_several_fields_are_counted_and_restored(bench: Bench) -> None:
    backend = bench.open()
    table = windows(backend)
    count(table, *some_rows(1))
    assert content(table) == counted(some_rows(1))
    restored = windows(bench.open([of_operator(checkpoint(backend, 1))]))
    assert content(restored) == counted(some_rows(1))
    count(restored, *some_rows(2))
    assert content(restored) == counted(some_rows(1), some_rows(2))


def test_the_slots_made_by_a_call_are_known_and_no_others(bench: Bench) -> None:
    table = windows(bench.open())
    row_ids = table.row_ids_int64(np.array([1, 2, 1]), np.array([0, 0, 0]))
    assert sorted(table.made.tolist()) == sorted({*row_ids.tolist()})
    table.row_ids_int64(np.array([2, 1]), np.array([0, 0]))
    assert len(table.made) == 0
    again = table.row_ids_int64(np.array([2, 1]), np.array([10, 0]))
    assert table.made.tolist() == [again[0]]
    assert table.int_keys_of(table.made).tolist() == [[2], [10]]


@pytest.mark.parametrize("key_width", [1, 2])
def test_state_moves_with_its_key_groups_when_the_parallelism_changes(bench: Bench, key_width: int) -> None:
    """The namespace, the fields after `key_width`, does not affect an entry's key group."""
    backend = bench.open()
    count(windows(backend, key_width), *some_rows(3))
    whole = of_operator(checkpoint(backend, 1))
    parts = [content(windows(bench.open([whole], subtask, 2), key_width)) for subtask in range(2)]
    assert not set(parts[0]) & set(parts[1])
    assert all(parts)
    assert parts[0] | parts[1] == counted(some_rows(3))
    if key_width == 1:
        assert not {key[0] for key in parts[0]} & {key[0] for key in parts[1]}


def test_next_snapshot_lacks_removed_windows_and_has_returned_windows(bench: Bench) -> None:
    backend = bench.open()
    table = windows(backend)
    count(table, *some_rows(4))
    checkpoint(backend, 1)
    every = table.load_all()
    table.remove(every[table.int_keys_of(every)[1] < 30_000])
    again = (np.arange(5), np.full(5, 10_000))
    count(table, *again)
    expected = {key: n for key, n in counted(some_rows(4)).items() if key[1] >= 30_000} | counted(again)
    assert content(table) == expected
    backend.snapshots.completed(1)
    assert content(windows(bench.open([of_operator(checkpoint(backend, 2))]))) == expected


def test_an_entry_made_again_is_written_though_nobody_changed_it(bench: Bench) -> None:
    """The store still holds the removed entry."""
    backend = bench.open()
    table = windows(backend)
    count(table, np.array([7]), np.array([0]))
    checkpoint(backend, 1)
    table.remove(table.row_ids_int64(np.array([7]), np.array([0])))
    table.row_ids_int64(np.array([7]), np.array([0]))
    assert content(windows(bench.open([of_operator(checkpoint(backend, 2))]))) == {(7, 0): 0}


def test_non_int_key_changes_the_table_to_tuples_with_rows_frozen_and_removed(bench: Bench) -> None:
    backend = bench.open()
    table = windows(backend)
    count(table, *some_rows(5))
    checkpoint(backend, 1)
    gone = table.row_ids_int64(*(field[:1] for field in some_rows(5)))
    removed = table.keys_of(gone)[0]
    table.remove(gone)
    count(table, np.array([1]), np.array([99]))
    backend.snapshots.freeze(2)
    text = table.row_ids([("text", 0), (1, 99)])
    table.columns["count"][text] += 10
    table.mark_dirty(text)
    assert table.int_keys_of(text) is None
    drain(backend)
    second = backend.snapshots.write(2)
    before = {key: n for key, n in counted(some_rows(5)).items() if key != removed} | {(1, 99): 1}
    assert content(windows(bench.open([of_operator(second)]))) == before
    backend.snapshots.completed(2)
    count(table, np.array([1]), np.array([99]))
    after = before | {("text", 0): 10, (1, 99): 12}
    assert content(windows(bench.open([of_operator(checkpoint(backend, 3))]))) == after


def test_entries_are_written_in_the_order_of_their_keys_in_the_store(bench: Bench) -> None:
    bench.cache_bytes = 1
    table = windows(bench.open(), evictable=True)
    keys = np.random.default_rng(6).permutation(20_000)
    count(table, keys, keys * 0)
    count(table, keys[:2_000], keys[:2_000] * 0)  # evicts some entries
    table.freeze()
    written = []
    while table.frozen_entries:
        written += [key for key, _ in table.take(300)]
    assert written == sorted(written)
    assert len(written) > 2_000


@pytest.mark.slow
def test_an_evictable_table_forgets_nothing_of_keys_with_two_fields(bench: Bench) -> None:
    bench.cache_bytes = 1
    backend = bench.open()
    table = windows(backend, evictable=True)
    batches = [some_rows(seed, 1_500) for seed in range(20)]
    for number, batch in enumerate(batches, 1):
        count(table, *batch)
        if number % 7 == 0:
            checkpoint(backend, number)
            backend.snapshots.completed(number)
    assert table.entries < 3_000
    assert content(windows(bench.open([of_operator(checkpoint(backend, 100))]))) == counted(*batches)
