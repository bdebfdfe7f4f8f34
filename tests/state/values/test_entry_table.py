"""Many entries per key in one table: stored bytes, costs of changes, untouched neighbours."""

import itertools
import random

import msgspec
import pytest
from backend_bench import Bench, checkpoint, of_operator, values

from barrier_runtime import ListState
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, StateDescription
from barrier_runtime.state.values.entry_table import EntryTable

LIST, MAP = StateDescription("list"), StateDescription("map", "str")


def entries(backend: KeyedBackend, name: str = "many", what: StateDescription = LIST) -> EntryTable:
    return backend.entry_table(name, msgspec.msgpack.encode, msgspec.msgpack.decode, 1, what, immutable=True)


def put_all(table: EntryTable, key: str, count: int) -> None:
    table.set_number((key,), count)
    for entry in range(count):
        table.put_entry((key,), entry, entry)


def delete_all(table: EntryTable, key: str) -> None:
    for entry, _ in table.walk((key,), values=False):
        table.put_entry((key,), entry, None)
    table.set_number((key,), 0)


def test_entry_is_stored_after_the_users_key_and_the_entry_count_after_entries(bench: Bench) -> None:
    """The stored layout must never change."""
    backend = bench.open()
    table = entries(backend)
    table.set_number(("k",), 2)
    table.put_entry(("k",), 0, 5)
    table.put_entry(("k",), 7, "x")
    checkpoint(backend, 1)
    stored = [(key[4:], data) for key, data in table._shard.scan_state(table._state_id)]
    user_key, index = b"\x30k\0", b"\x14\x80\0\0\0\0\0\0"
    assert stored == [
        (user_key + b"\x0a" + index + b"\x00", b"\x05"),
        (user_key + b"\x0a" + index + b"\x07", b"\xa1x"),
        (user_key + b"\x0b", b"\xc1" + (2).to_bytes(8, "big")),
    ]


def test_an_element_at_the_index_of_one_that_went_is_not_that_one(bench: Bench) -> None:
    """A written element leaves the cache, also if an earlier read has put the element among the older ones."""
    bench.cache_bytes = 40_000  # a read element is among the older ones after 64 more reads
    backend = bench.open()
    table = entries(backend)
    put_all(table, "k", 1)
    put_all(table, "others", 100)
    checkpoint(backend, 1)
    assert table.get_entry(("k",), 0) == 0
    for entry in range(64):
        table.get_entry(("others",), entry)
    delete_all(table, "k")
    table.set_number(("k",), 1)
    table.put_entry(("k",), 0, "new")
    checkpoint(backend, 2)
    assert table.get_entry(("k",), 0) == "new"


@pytest.mark.slow
def test_a_hundred_appends_to_a_long_list_upload_about_their_own_bytes(rocksdb_bench: Bench) -> None:
    backend = rocksdb_bench.open()
    table = entries(backend)
    put_all(table, "k", 100_000)
    first = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    table.set_number(("k",), 100_100)
    for entry in range(100_000, 100_100):
        table.put_entry(("k",), entry, entry)
    backend.snapshots.freeze(2)
    assert table.frozen_entries == 101, "the elements, and their number"
    while not backend.snapshots.drain():
        pass
    second = backend.snapshots.write(2)
    assert second.new_bytes < 12_000, "with the database's own small files"
    assert first.new_bytes > 20 * second.new_bytes
    restored = entries(rocksdb_bench.open([of_operator(second)]))
    assert [entry for entry, _ in restored.walk(("k",))] == list(range(100_100))


@pytest.mark.slow
def test_a_change_of_a_million_entries_uploads_what_changed(rocksdb_bench: Bench) -> None:
    """A hundred appends of 1 kB upload at most three times their size, a change of a map entry at most 10 kB."""
    backend, many = rocksdb_bench.open(), 1_000_000
    items, by_key = entries(backend, "list"), entries(backend, "map", MAP)
    for table in (items, by_key):
        for first in range(0, many, many // 10):
            some = range(first, first + many // 10)
            table.load_entries([("k",)] * len(some), some, some)
        table.load_numbers({("k",): many})
    checkpoint(backend, 1)
    backend.snapshots.completed(1)
    items.set_number(("k",), many + 100)
    for entry in range(many, many + 100):
        items.put_entry(("k",), entry, random.Random(entry).randbytes(1_000))
    second = checkpoint(backend, 2)
    backend.snapshots.completed(2)
    assert 100 * 1_000 < second.new_bytes <= 3 * 100 * 1_000
    by_key.put_counted(("k",), many // 2, 7)
    third = checkpoint(backend, 3)
    assert third.new_bytes <= 10_000, "with the database's own small files"
    assert third.full_bytes > 100 * third.new_bytes
    restored = entries(rocksdb_bench.open([of_operator(third)]), "map", MAP)
    assert (restored.number(("k",)), restored.get_entry(("k",), many // 2)) == (many, 7)


@pytest.mark.slow
def test_a_walk_does_not_read_through_what_neighbours_have_deleted(rocksdb_bench: Bench) -> None:
    """Counts the entries that are read from the store, between two keys with many deleted entries each."""
    backend = rocksdb_bench.open(max_parallelism=1)
    table = entries(backend)
    for key, count in (("a", 20_000), ("b", 3), ("c", 20_000), ("d", 1)):
        put_all(table, key, count)
    checkpoint(backend, 1)
    for key in ("a", "c"):
        delete_all(table, key)
    checkpoint(backend, 2)
    table.set_number(("bb",), 1)
    table.put_entry(("bb",), 0, "not stored yet")
    scanned: list[bytes] = []
    scan = table._shard.kv.scan

    def counted(start: bytes, end: bytes):  # type: ignore[no-untyped-def]
        scanned.append(start)
        return scan(start, end)

    table._shard.kv.scan = counted  # type: ignore[method-assign]
    assert list(table.walk(("a",))) == []
    assert list(table.walk(("bb",))) == [(0, "not stored yet")]
    assert scanned == [], "keys without a stored entry are not looked for among the deleted ones"
    assert list(table.walk(("b",))) == [(0, 0), (1, 1), (2, 2)]
    assert len(scanned) == 1
    end = scanned[0][:-1] + b"\x0b"
    assert table._shard.kv.get(end) is not None, "the scan ends at an entry that is there"


def test_a_list_that_lost_its_first_elements_is_walked_from_where_there_are_some(rocksdb_bench: Bench) -> None:
    table = entries(backend := rocksdb_bench.open(max_parallelism=1))
    put_all(table, "a", 2_000)
    checkpoint(backend, 1)
    for at in range(1_990):
        table.put_entry(("a",), at, None)
    table.set_extent(("a",), 10, 1_990, 2_000)
    snapshot = checkpoint(backend, 2)
    backend.close()
    table = entries(rocksdb_bench.open([of_operator(snapshot)], max_parallelism=1))
    assert table.extent(("a",)) == (10, 1_990, 2_000)
    starts: list[bytes] = []
    scan = table._shard.kv.scan

    def noted(start: bytes, end: bytes):  # type: ignore[no-untyped-def]
        starts.append(start)
        return scan(start, end)

    table._shard.kv.scan = noted  # type: ignore[method-assign]
    assert [at for at, _ in table.walk(("a",), start=1_990)] == list(range(1_990, 2_000))
    assert starts == [table._kv_key(("a", False, 1_989)) + b"\0"]


def test_what_was_read_ahead_is_not_given_once_it_was_deleted_and_written(bench: Bench) -> None:
    backend = bench.open()
    table = entries(backend)
    put_all(table, "k", 50)
    checkpoint(backend, 1)
    walk = table.walk(("k",))
    assert [entry for entry, _ in itertools.islice(walk, 10)] == list(range(10))
    for entry in range(8, 40):
        table.put_entry(("k",), entry, None)
    table.put_entry(("k",), 45, "changed")
    table.set_number(("k",), 18)
    checkpoint(backend, 2)
    assert list(walk) == [(entry, "changed" if entry == 45 else entry) for entry in range(40, 50)]


def test_a_list_that_is_written_behind_while_it_grows_is_whole(bench: Bench) -> None:
    bench.cache_bytes = 1
    current = CurrentKey()
    items = ListState(int).open(bench.open(), "items", "here", 1, current, "self")
    current.key = ("k",)
    items.extend(range(700))
    assert list(items) == list(range(700))
    items.update(range(0, -900, -1))
    assert list(items) == list(range(0, -900, -1))


def test_state_of_another_kind_is_refused_with_operator_state_and_both_kinds(bench: Bench) -> None:
    backend = bench.open()
    entries(backend, "many", MAP)
    values(backend, "one")
    snapshots = [of_operator(checkpoint(backend, 1))]
    with pytest.raises(
        InvalidJob,
        match=r"state 'many' of counts was written as a MapState with keys of type str and is a ListState now: declare "
        "it as it was, or give the changed state a new name",
    ):
        entries(bench.open(snapshots), "many", LIST)
    with pytest.raises(InvalidJob, match="with keys of type str and is a MapState with keys of type int now"):
        entries(bench.open(snapshots), "many", StateDescription("map", "int"))
    with pytest.raises(InvalidJob, match=r"'many' of counts was .* is a ValueState now"):
        values(bench.open(snapshots), "many")
    with pytest.raises(InvalidJob, match="is a state of columns now"):
        bench.open(snapshots).column_table("many", {"n": ("i8", 0)}, 1)
    with pytest.raises(InvalidJob, match="'one' of counts was written as a ValueState and is a ListState now"):
        entries(bench.open(snapshots), "one", LIST)


@pytest.mark.slow
def test_kind_is_known_after_a_generation_without_the_state_and_after_rescaling(bench: Bench) -> None:
    backend = bench.open()
    put_all(entries(backend), "k", 3)
    second = bench.open([of_operator(checkpoint(backend, 1))])
    values(second, "other")
    halves = []
    for subtask in range(2):
        part = bench.open([of_operator(checkpoint(second, 2 + subtask))], subtask, 2)
        halves.append(of_operator(checkpoint(part, 1), subtask, 2))
    with pytest.raises(InvalidJob, match="was written as a ListState"):
        values(bench.open(halves), "many")
    assert list(entries(bench.open(halves)).walk(("k",))) == [(0, 0), (1, 1), (2, 2)]


def test_a_snapshot_of_values_alone_is_written_as_before_states_were_described(bench: Bench) -> None:
    backend = bench.open()
    values(backend).put(("k",), 1)
    written = msgspec.json.decode(msgspec.json.encode(checkpoint(backend, 1)))
    assert set(written) == {
        *("backend", "max_parallelism", "key_group_first", "key_group_last"),
        *("states", "files", "full_bytes", "new_bytes"),
    }
    assert msgspec.json.decode(msgspec.json.encode(written), type=KeyedSnapshot).described == {}


def test_a_number_of_entries_of_another_length_is_damage(bench: Bench) -> None:
    backend = bench.open()
    table = entries(backend)
    put_all(table, "k", 1)
    snapshot = checkpoint(backend, 1)
    restored = bench.open([of_operator(snapshot)])
    table = entries(restored)
    table._shard.write([(table._kv_key(("k", True)), b"\xc1\x00")])
    with pytest.raises(Corrupt, match="c100 is not a number of entries: restore from another checkpoint"):
        table.number(("k",))
