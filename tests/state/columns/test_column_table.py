"""Column tables against dicts: row ids, snapshots, removal, eviction."""

import numpy as np
import pyarrow as pa
import pytest
from backend_bench import Bench, checkpoint, drain, of_operator

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import InvalidJob, ProtocolViolation

COLUMNS = {"count": ("i8", 0), "total": ("f8", 0.0), "highest": ("i4", -1)}


def dense(backend: KeyedBackend, key_width: int = 1, evictable: bool = False) -> ColumnTable:
    return backend.column_table("dense", COLUMNS, key_width, evictable)


def count(table: ColumnTable, keys: list[tuple[object, ...]]) -> None:
    row_ids = table.row_ids(keys)
    table.columns["count"][row_ids] += 1
    table.columns["total"][row_ids] += 0.5
    table.mark_dirty(row_ids)


def content(table: ColumnTable) -> dict[tuple[object, ...], tuple[int, float, int]]:
    row_ids = table.load_all()
    columns = (table.columns[name][row_ids].tolist() for name in COLUMNS)
    return dict(zip(table.keys_of(row_ids), zip(*columns, strict=True), strict=True))


def test_new_keys_get_distinct_slots_with_the_initial_values(bench: Bench) -> None:
    table = dense(bench.open())
    row_ids = table.row_ids([("a",), ("b",), (None,)])
    assert len(set(row_ids.tolist())) == 3
    assert table.columns["highest"][row_ids].tolist() == [-1, -1, -1]
    assert table.row_ids([("b",), ("a",)]).tolist() == [row_ids[1], row_ids[0]]
    assert table.keys_of(row_ids) == [("a",), ("b",), (None,)]
    assert table.entries == 3


def test_integers_have_a_fast_path_that_takes_repeated_values(bench: Bench) -> None:
    table = dense(bench.open())
    row_ids = table.row_ids_int64(np.array([7, 8, 7, -3, 8]))
    assert row_ids[0] == row_ids[2]
    assert row_ids[1] == row_ids[4]
    assert table.entries == 3
    assert table.row_ids([(7,), (-3,)]).tolist() == [row_ids[0], row_ids[3]]
    assert table.keys_of(row_ids[:2]) == [(7,), (8,)]


def test_both_ways_of_asking_mix_whichever_comes_first(bench: Bench) -> None:
    table = dense(bench.open())
    first = table.row_ids([(1,), (2,)])
    assert table.row_ids_int64(np.array([2, 1, 2])).tolist() == [first[1], first[0], first[1]]
    text = table.row_ids([("x",), (1,)])
    assert text[1] == first[0]
    again = table.row_ids_int64(np.array([1, 3]))
    assert again[0] == first[0]
    assert set(table.keys_of(table.load_all())) == {("x",), (1,), (2,), (3,)}


@pytest.mark.parametrize("evictable", [False, True])
def test_columns_of_texts_find_the_rows_of_their_keys(bench: Bench, evictable: bool) -> None:
    backend = bench.open()
    table = dense(backend, evictable=evictable)
    table.limit_cache(200_000 if evictable else 1 << 30)
    drawn, expected = np.random.default_rng(5), dict[str | None, int]()
    for turn in range(120):
        spread = (30, 900, 5_000)[turn // 10 % 3]
        texts = [None if number == 3 else f"key-{number}" for number in drawn.integers(0, spread, 800).tolist()]
        row_ids = table.row_ids_of_texts(pa.array(texts, pa.string()))
        assert table.keys_of(row_ids) == [(text,) for text in texts]
        np.add.at(table.columns["count"], row_ids, 1)
        table.mark_dirty(row_ids)
        for text in texts:
            expected[text] = expected.get(text, 0) + 1
        if turn % 7 == 0:
            gone = list(dict.fromkeys(texts))[:5]
            table.remove(table.row_ids([(text,) for text in gone]))
            for text in gone:
                del expected[text]
        if turn % 25 == 0:
            checkpoint(backend, turn + 1)
    assert {key: count for (key,), (count, *_) in content(table).items()} == expected


def test_more_keys_than_the_first_capacity_grow_the_columns(bench: Bench) -> None:
    table = dense(bench.open())
    for start in range(0, 10_000, 2_500):
        count(table, [(number,) for number in range(start, start + 2_500)])
    assert content(table) == {(number,): (1, 0.5, -1) for number in range(10_000)}


@pytest.mark.parametrize("as_text", [False, True])
def test_a_restored_table_continues_as_if_nothing_had_happened(bench: Bench, as_text: bool) -> None:
    keys = [(f"key-{number}" if as_text else number,) for number in range(3_000)]
    backend = bench.open()
    table = dense(backend)
    count(table, keys)
    count(table, keys[:1_000])
    restored = dense(bench.open([of_operator(checkpoint(backend, 1))]))
    count(restored, keys[500:1_500])
    expected = {key: (1 + (number < 1_000) + (500 <= number < 1_500),) for number, key in enumerate(keys)}
    assert {key: row[:1] for key, row in content(restored).items()} == expected


def test_only_dirty_rows_are_written_and_later_changes_belong_to_the_next_snapshot(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, [("a",), ("b",)])
    backend.snapshots.freeze(1)
    assert table.frozen_entries == 2
    count(table, [("a",)])
    drain(backend)
    first = backend.snapshots.write(1)
    backend.snapshots.completed(1)
    backend.snapshots.freeze(2)
    assert table.frozen_entries == 1
    drain(backend)
    second = backend.snapshots.write(2)
    assert content(dense(bench.open([of_operator(first)])))[("a",)][0] == 1
    assert content(dense(bench.open([of_operator(second)])))[("a",)][0] == 2


def test_removed_rows_are_gone_from_the_next_snapshot_and_their_slots_are_used_again(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    keys = [(number, "window") for number in range(10)]
    count(table, keys)
    checkpoint(backend, 1)
    table.remove(table.row_ids(keys[:4]))
    assert table.entries == 6
    count(table, [(100, "window"), (0, "window")])
    restored = dense(bench.open([of_operator(checkpoint(backend, 2))]))
    assert sorted(content(restored)) == sorted([*keys[4:], (100, "window"), (0, "window")])
    assert content(restored)[(0, "window")][0] == 1


@pytest.mark.parametrize("as_text", [False, True])
def test_a_delta_says_which_rows_are_gone(bench: Bench, as_text: bool) -> None:
    """R3: few rows of many are removed, so the snapshot is a delta; a base would just omit the removed rows."""
    keys = [(f"key-{number}" if as_text else number,) for number in range(1_000)]
    backend = bench.open()
    table = dense(backend)
    count(table, keys)
    checkpoint(backend, 1)
    table.remove(table.row_ids(keys[:20]))
    backend.snapshots.freeze(2)
    assert [segment.base for segment in table._segments] == [False]
    drain(backend)
    second = backend.snapshots.write(2)
    backend.snapshots.completed(2)
    count(table, keys[10:15])  # added again, as new rows
    third = checkpoint(backend, 3)
    assert sorted(content(dense(bench.open([of_operator(second)])))) == sorted(keys[20:])
    restored = content(dense(bench.open([of_operator(third)])))
    assert sorted(restored) == sorted([*keys[10:15], *keys[20:]])
    assert {restored[key][0] for key in keys[10:15]} == {1}


def test_a_row_that_came_and_went_between_two_barriers_is_never_written(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, [("a",)])
    table.remove(table.row_ids([("a",)]))
    backend.snapshots.freeze(1)
    assert table.frozen_entries == 0


def test_a_row_removed_and_made_again_while_frozen_is_the_new_one(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, [("a",)])
    backend.snapshots.freeze(1)
    table.remove(table.row_ids([("a",)]))
    count(table, [("a",)])
    count(table, [("a",)])
    drain(backend)
    first = backend.snapshots.write(1)
    backend.snapshots.completed(1)
    second = checkpoint(backend, 2)
    assert content(dense(bench.open([of_operator(first)])))[("a",)][0] == 1
    assert content(dense(bench.open([of_operator(second)])))[("a",)][0] == 2


def test_integer_keys_may_become_mixed_while_some_are_frozen(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    row_ids = table.row_ids_int64(np.arange(5))
    table.columns["count"][row_ids] += 1
    table.mark_dirty(row_ids)
    table.remove(table.row_ids_int64(np.array([4])))
    backend.snapshots.freeze(1)
    count(table, [(None,)])
    drain(backend)
    restored = dense(bench.open([of_operator(backend.snapshots.write(1))]))
    assert {key: row[0] for key, row in content(restored).items()} == {(number,): 1 for number in range(4)}


@pytest.mark.slow
@pytest.mark.parametrize("as_text", [False, True])
def test_an_evictable_table_holds_a_bounded_part_and_forgets_nothing(bench: Bench, as_text: bool) -> None:
    bench.cache_bytes = 1
    backend = bench.open()
    table = dense(backend, evictable=True)
    expected: dict[tuple[object, ...], int] = {}
    random = np.random.default_rng(7)
    for step in range(60):
        numbers = np.unique(random.integers(0, 8_000, 400))
        keys: list[tuple[object, ...]] = [(f"k{number}" if as_text else int(number),) for number in numbers]
        row_ids = table.row_ids(keys) if as_text else table.row_ids_int64(numbers)
        table.columns["count"][row_ids] += 1
        table.mark_dirty(row_ids)
        for key in keys:
            expected[key] = expected.get(key, 0) + 1
        if step % 20 == 15:
            checkpoint(backend, step + 1)
            backend.snapshots.completed(step + 1)
    assert table.entries < 3_000
    restored = dense(bench.open([of_operator(checkpoint(backend, 100))]))
    assert {key: row[0] for key, row in content(restored).items()} == expected
    evictable = dense(bench.open([of_operator(checkpoint(backend, 101))]), evictable=True)
    wanted = list(expected)[:500]
    row_ids = evictable.row_ids(wanted)
    assert evictable.columns["count"][row_ids].tolist() == [expected[key] for key in wanted]


def test_changed_columns_are_refused_with_the_remedy(bench: Bench) -> None:
    backend = bench.open()
    count(dense(backend), [("a",)])
    restored = bench.open([of_operator(checkpoint(backend, 1))])
    with pytest.raises(InvalidJob, match=r"operator .*: keep what it computes .*new name to start without"):
        restored.column_table("dense", {"count": ("i8", 0)}, 1)
    with pytest.raises(InvalidJob, match="no columns"):
        restored.column_table("empty", {}, 1)


def test_a_foreign_key_is_noticed_when_it_is_written_whichever_way_it_came(bench: Bench) -> None:
    for ask in (
        lambda table: table.row_ids_int64(np.arange(50)),
        lambda table: table.row_ids([(n, "x") for n in range(50)]),
    ):
        backend = bench.open(subtask=0, parallelism=2)
        table = dense(backend)
        table.mark_dirty(ask(table))
        with pytest.raises(ProtocolViolation, match="belongs to key group"):
            checkpoint(backend, 1)


def test_a_removal_that_waits_to_be_written_is_not_read_back_from_the_store(bench: Bench) -> None:
    backend = bench.open()
    count(dense(backend), [("a",), ("b",)])
    again = bench.open([of_operator(checkpoint(backend, 1))])
    table = dense(again, evictable=True)
    table.remove(table.row_ids([("a",)]))
    again.snapshots.freeze(2)
    assert table.columns["count"][table.row_ids([("a",)])].tolist() == [0]
    assert table.columns["count"][table.row_ids([("b",)])].tolist() == [1]


def test_large_batches_find_the_same_slots_as_small_ones(bench: Bench) -> None:
    """The vectorised index against a dict: growth, repeats, removals, extreme values and collisions."""
    table = dense(bench.open())
    random = np.random.default_rng(3)
    expected: dict[int, int] = {}
    for step in range(40):
        wide = random.integers(-(2**63), 2**63 - 1, 300, endpoint=True)
        values = np.concatenate([random.integers(0, 3_000, 500), wide, [0, -1, 2**63 - 1, -(2**63)]])
        if step % 3 == 0:
            values = values[:100]
        row_ids = table.row_ids_int64(values)
        for value, row_id in zip(values.tolist(), row_ids.tolist(), strict=True):
            assert expected.setdefault(value, row_id) == row_id
        if step % 5 == 4:
            gone = np.unique(values)[:50]
            table.remove(table.row_ids_int64(gone))
            for value in gone.tolist():
                del expected[value]
    assert table.entries == len(expected)
    assert len(set(expected.values())) == len(expected)
    assert table.keys_of(table.row_ids_int64(np.array([5, 7]))) == [(5,), (7,)]


def by_last(backend: KeyedBackend) -> ColumnTable:
    return backend.column_table("windows", COLUMNS, 1, True, last_first=True)


@pytest.mark.parametrize("text", [False, True])
def test_entries_are_found_by_the_last_field_of_their_keys(
    bench: Bench, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ColumnTable, "_entry_limit", 50)
    table = by_last(bench.open())
    keys: list[tuple[object, ...]] = [(f"k{n}" if text else n, n % 7) for n in range(1_000)]
    for first in range(0, 1_000, 50):
        count(table, keys[first : first + 50])
    assert not table.is_whole
    assert table.lasts(0).tolist() == list(range(7))
    found = []
    for row_ids in table.entries_of(3):
        found += table.keys_of(row_ids)
        table.remove(row_ids)
    assert sorted(found) == sorted(key for key in keys if key[1] == 3)
    table.none_of(3)
    assert table.lasts(0).tolist() == [0, 1, 2, 4, 5, 6]
    assert not any(len(row_ids) for row_ids in table.entries_of(3))


@pytest.mark.parametrize("text", [False, True])
def test_entries_that_an_older_release_stored_by_key_are_found_by_the_last_field(
    bench: Bench, text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[object, ...]] = [(f"k{n}" if text else n, n % 3) for n in range(300)]
    backend = bench.open()
    with monkeypatch.context() as few:
        few.setattr(ColumnTable, "_entry_limit", 50)
        older = backend.column_table("windows", COLUMNS, 1, True)
        for first in range(0, 300, 50):
            count(older, keys[first : first + 50])
        assert not older.is_whole
    restored = bench.open([of_operator(checkpoint(backend, 1))])
    table = by_last(restored)
    assert table.lasts(0).tolist() == [0, 1, 2]
    assert sorted(key for row_ids in table.entries_of(1) for key in table.keys_of(row_ids)) == sorted(keys[1::3])
    again = by_last(bench.open([of_operator(checkpoint(restored, 2))]))  # migrated once only
    assert content(again) == dict.fromkeys(keys, (1, 0.5, -1))
    assert again.lasts(2).tolist() == [0, 1, 2]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_table_whose_windows_have_been_in_the_store_goes_back_to_segments(
    bench: Bench, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows open and close, with more entries than memory allows in between; some snapshots are restored."""
    random, limit = np.random.default_rng(seed), [10**9]
    monkeypatch.setattr(ColumnTable, "_entry_limit", property(lambda self: limit[0]))
    text = seed % 2 == 1
    backend = bench.open()
    table = by_last(backend)
    expected: dict[tuple[object, ...], int] = {}
    were_entries = are_segments = 0
    for step in range(36):
        limit[0] = 60 if 10 <= step < 16 else 10**9
        for _ in range(3):
            numbers = np.unique(random.integers(0, 200, 40)).tolist()
            last = step + int(random.integers(0, 3))
            keys: list[tuple[object, ...]] = [(f"k{n}" if text else n, last) for n in numbers]
            count(table, keys)
            for key in keys:
                expected[key] = expected.get(key, 0) + 1
        over = {key: number for key, number in expected.items() if key[1] == step}
        found = {}
        for row_ids in table.entries_of(step):
            found.update(zip(table.keys_of(row_ids), table.columns["count"][row_ids].tolist(), strict=True))
            table.remove(row_ids)
        table.none_of(step)
        assert found == over
        expected = {key: number for key, number in expected.items() if key not in over}
        if random.random() < 0.2:
            count(table, [("again" if text else 1_000, step)])  # as a late row of a kept window: its key sorts
            table.remove(table.row_ids([("again" if text else 1_000, step)]))  # before the removed keys
            table.none_of(step)
        snapshot = checkpoint(backend, step + 1)
        in_store = any(True for _ in backend._shard.scan_state(backend._states["windows"]))
        were_entries += in_store
        are_segments += not in_store and step > 16
        if random.random() < 0.25:
            backend = bench.open([of_operator(snapshot)])
            table = by_last(backend)
            table.lasts(step + 1)
    assert were_entries, "there were never too many"
    assert are_segments > 10, "it stayed with entries"
    left = by_last(bench.open([of_operator(checkpoint(backend, 100))]))
    assert {key: row[0] for key, row in content(left).items()} == expected
