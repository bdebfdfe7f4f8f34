"""Columns of bytes next to columns of numbers, against dicts: segments, entries, eviction, removal."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from backend_bench import Bench, checkpoint, of_operator

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.segment import Segment, chunks, decode, encode, merged, within
from barrier_runtime.state.columns.wide_columns import cells_of
from barrier_runtime.state.errors import Corrupt, InvalidJob

COLUMNS: dict[str, tuple[str, Any]] = {"n": ("i8", 0), "name": ("O", b""), "x": ("f8", 0.0), "more": ("O", b"")}
Rows = dict[tuple[object, ...], tuple[int, bytes, float, bytes]]


def table_of(backend: KeyedBackend, evictable: bool = False) -> ColumnTable:
    return backend.column_table("wide", COLUMNS, 1, evictable)


def put(table: ColumnTable, rows: Rows) -> None:
    row_ids = table.row_ids(list(rows))
    for row_id, values in zip(row_ids.tolist(), rows.values(), strict=True):
        for name, value in zip(COLUMNS, values, strict=True):
            table.columns[name][row_id] = value
    table.mark_dirty(row_ids)


def content(table: ColumnTable) -> Rows:
    row_ids = table.load_all()
    columns = [table.columns[name][row_ids].tolist() for name in COLUMNS]
    return dict(zip(table.keys_of(row_ids), zip(*columns, strict=True), strict=True))


def some(rng: random.Random, keys: range, as_text: bool) -> Rows:
    def cell() -> bytes:
        return rng.choice([b"", b"\0", b"x\0", bytes(rng.randrange(256) for _ in range(rng.randrange(40)))])

    chosen = sorted(rng.sample(keys, min(len(keys), 50)))
    return {(f"k{key}" if as_text else key,): (rng.randrange(99), cell(), rng.random(), cell()) for key in chosen}


@pytest.mark.parametrize("as_text", [False, True])
@pytest.mark.parametrize("entries", [False, True])
def test_cells_come_back_as_they_were_at_the_freeze(bench: Bench, as_text: bool, entries: bool) -> None:
    rng, expected = random.Random(4), {}
    backend = bench.open()
    for number in range(1, 7):
        table = table_of(backend)
        assert content(table) == expected
        rows = some(rng, range(150), as_text)
        put(table, rows)
        expected |= rows
        gone = rng.sample(sorted(expected, key=str), 9)
        table.remove(table.row_ids(gone))
        for key in gone:
            del expected[key]
        if entries and number == 3:
            table._leave_segments()
        backend.snapshots.freeze(number)
        put(table, dict.fromkeys(list(expected)[:20], (-1, b"later than the barrier", 0.0, b"")))
        while not backend.snapshots.drain(17):
            pass
        backend = bench.open([of_operator(backend.snapshots.write(number))])
    assert content(table_of(backend)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("as_text", [False, True])
def test_an_evictable_table_counts_the_bytes_of_its_cells_and_forgets_none(bench: Bench, as_text: bool) -> None:
    bench.cache_bytes = 3_000_000
    backend = bench.open()
    table, expected = table_of(backend, evictable=True), {}
    for number in range(2_000):
        key = (f"k{number}" if as_text else number,)
        put(table, {key: (number, bytes([number % 256]) * 4_000, 0.5, b"")})
        expected[key] = (number, bytes([number % 256]) * 4_000, 0.5, b"")
    assert table.entries < 1_300
    assert table.memory_bytes() < 8_000_000
    restored = bench.open([of_operator(checkpoint(backend, 1))])
    assert content(table_of(restored)) == expected
    again = table_of(bench.open([of_operator(checkpoint(restored, 2))]), evictable=True)
    wanted = list(expected)[700:800]
    row_ids = again.row_ids(wanted)
    assert again.columns["name"][row_ids].tolist() == [expected[key][1] for key in wanted]


def test_rows_that_are_gone_take_no_memory(bench: Bench) -> None:
    table = table_of(bench.open())
    empty = table.memory_bytes()
    put(table, {(number,): (1, b"x" * 10_000, 0.0, b"y") for number in range(50)})
    put(table, {(0,): (1, b"", 0.0, b"")})
    row_ids = table.row_ids([(number,) for number in range(50)])
    table.mark_dirty(np.concatenate([row_ids, row_ids]))
    assert 490_000 < table.memory_bytes() - empty < 510_000
    table.remove(row_ids)
    assert table.memory_bytes() == empty
    assert set(table.columns["name"][row_ids].tolist()) == {b""}


def segment(rows: dict[int, bytes], removed: list[int], *, base: bool = False) -> Segment:
    cells = np.empty(len(rows), np.object_)
    cells[:] = list(rows.values())
    keys = np.array([list(rows)], np.int64)
    return Segment("s", 1, base, keys, {"cell": cells}, np.array([removed], np.int64).reshape(1, -1))


def rows_of(found: Segment) -> dict[int, bytes]:
    return dict(zip(found.keys[0].tolist(), found.columns["cell"].tolist(), strict=True))


def test_segments_with_cells_are_merged_cut_and_read_back() -> None:
    rng, expected, parts = random.Random(2), {}, []
    for at in range(5):
        rows = {rng.randrange(80): rng.randbytes(rng.randrange(30)) for _ in range(40)}
        gone = [key for key in expected if key not in rows and rng.random() < 0.2]
        parts.append(segment(rows, gone, base=at == 0))
        expected = {key: value for key, value in {**expected, **rows}.items() if key not in gone}
    one = decode(b"".join(encode(merged(parts, 128, base=True), 1)), "here")
    assert rows_of(one) == expected
    cut = [within(one, 0, 60, 128), within(one, 61, 127, 128)]
    assert {**rows_of(cut[0]), **rows_of(cut[1])} == expected
    assert all(rows_of(part) for part in cut)
    assert {key: value for part in chunks(one, 7) for key, value in rows_of(part).items()} == expected
    assert rows_of(decode(b"".join(encode(segment({}, [3]), 0)), "here")) == {}
    lacking = Segment("s", 1, True, np.array([[500]]), {}, np.empty((1, 0), np.int64))
    assert rows_of(merged([lacking, segment({1: b"x"}, [])], 128, base=True)) == {500: b"", 1: b"x"}


def test_a_segment_whose_cells_do_not_fit_its_lengths_is_refused() -> None:
    keys = np.array([[1, 2]], np.int64)
    lying = Segment("s", 1, True, keys, {"cell": np.array([b"ab", b"c"], np.object_)}, keys[:, :0])
    data = encode(lying, 0)
    wrong = [data[0], data[1], pa.compress(b"\x02\x09" + bytes(6), codec="lz4_raw", asbytes=True), *data[3:]]
    with pytest.raises(Corrupt):
        decode(b"".join(wrong), "here")


def test_an_entry_that_ends_within_a_cell_or_goes_on_behind_is_refused() -> None:
    good = b"\x02\0\0\0ab\0\0\0\0"
    assert cells_of(b"row" + good, 3, 2) == [b"ab", b""]
    for bad in (good[:-1], good + b"x", b"", b"\xff\0\0\0ab\0\0\0\0"):
        with pytest.raises(ValueError, match="bytes"):
            cells_of(b"row" + bad, 3, 2)


def test_entries_of_other_columns_are_refused_with_the_remedy(bench: Bench) -> None:
    backend = bench.open()
    table = table_of(backend)
    put(table, {(1,): (1, b"abc", 0.0, b"")})
    table._leave_segments()
    snapshot = of_operator(checkpoint(backend, 1))
    for columns in ({"n": ("i8", 0), "name": ("O", b"")}, {"n": ("i8", 0), "x": ("f8", 0.0)}):
        with pytest.raises(InvalidJob, match="written with other columns than it has now"):
            bench.open([snapshot]).column_table("wide", columns, 1).load_all()
