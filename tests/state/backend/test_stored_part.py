"""Reads of one state of few key groups from parts of RocksDB's files: equal entries, few bytes."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from barrier_runtime.state.backend import stored_part
from barrier_runtime.state.backend.stored_part import KeyGroups, StoredPart
from barrier_runtime.state.kv import rocksdb, rocksdb_files
from barrier_runtime.state.kv.key_ranges import RANGES_FILE, KeyRanges
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.side_by_side import Database, SideBySide
from barrier_runtime.state.snapshots.plan import LocalFile, SnapshotPlan
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from barrier_runtime.state.snapshots.transfer import local_files, upload
from barrier_runtime.state.store.memory import MemoryStore

NO_WHOLE_FILTERS = 1 << 40
GROUPS, STATES = 128, {"one": 1, "two": 2, "three": 3}


class CountedStore(MemoryStore):
    read = 0

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        data = super().get(key, offset, size)
        self.read += len(data)
        return data

    def get_file(self, key: str, path: Path) -> None:
        super().get_file(key, path)
        self.read += path.stat().st_size


def stored(kv: RocksDbKv | SideBySide, store: MemoryStore, folder: Path, *, packed: bool = False) -> KeyedSnapshot:
    kv.flush()
    kv.checkpoint(folder)
    kv.close()
    files: Sequence[LocalFile] = local_files(folder)
    names = (f"object-{number}" for number in range(1_000))
    plan = SnapshotPlan(
        reused=(), alone=() if packed else tuple(files), packed=tuple(files) if packed else (), inline=()
    )
    done = upload(store, plan, folder, lambda: next(names), lambda: None, 1)
    return KeyedSnapshot("rocksdb", GROUPS, 0, GROUPS - 1, STATES, done.files, done.new_bytes, done.new_bytes)


def entries(keyed: KeyedSnapshot, store: MemoryStore, folder: Path, only: KeyGroups) -> list[tuple[bytes, bytes]]:
    with StoredPart(keyed, store, folder, only) as opened:
        return list(opened.entries(only.state, only.first, only.last))


def all_of(keyed: KeyedSnapshot, store: MemoryStore, folder: Path, only: KeyGroups) -> list[tuple[bytes, bytes]]:
    with StoredPart(keyed, store, folder) as opened:
        return list(opened.entries(only.state, only.first, only.last))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "in_parts"), [(0, False), (1, True), (2, True)])
def test_any_key_groups_give_what_the_whole_files_give(
    seed: int, in_parts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several sorted runs, with entries overwritten, deleted one by one, and deleted by group.

    `in_parts`: indexes of all files but the first have two levels."""
    monkeypatch.setattr(stored_part, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(stored_part, "_TAIL_BYTES", (60, 1_000, 8_000)[seed])
    monkeypatch.setattr(rocksdb, "_WHOLE_FILTERS", NO_WHOLE_FILTERS if in_parts else 1)
    rng = random.Random(seed)
    kv = RocksDbKv(tmp_path / "db", SlotMemory(16 << 20))
    for _ in range(4):
        keys = [
            Shard.prefix(rng.randrange(GROUPS), rng.randint(1, 3)) + rng.randbytes(1) * rng.randint(1, 300)
            for _ in range(2_000)
        ]
        kv.write([(key, rng.randbytes(60) if rng.random() < 0.7 else None) for key in keys])
        first = rng.randrange(GROUPS - 3)
        kv.delete_range(Shard.prefix(first, 0), Shard.prefix(first + rng.randint(0, 3), 0))
        kv.flush()
    store = MemoryStore()
    keyed = stored(kv, store, tmp_path / "checkpoint", packed=seed == 1)
    found = 0
    for number in range(6):
        first = rng.randrange(GROUPS)
        only = KeyGroups(f"{rng.choice(list(STATES))}", first, first + rng.choice((0, 0, 5)), columns=False)
        its = entries(keyed, store, tmp_path / f"part-{number}", only)
        assert its == all_of(keyed, store, tmp_path / f"whole-{number}", only)
        found += len(its)
    assert found > 50


@pytest.fixture(scope="module", params=["in parts", "whole"])
def large(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[KeyedSnapshot, CountedStore]:
    """Three sorted runs of some megabytes; indexes of all but the first may have two levels."""
    rng, folder, store = random.Random(1), tmp_path_factory.mktemp("large"), CountedStore()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rocksdb, "_WHOLE_FILTERS", NO_WHOLE_FILTERS if request.param == "in parts" else 1)
        kv = RocksDbKv(folder / "db", SlotMemory(16 << 20))
    for run in range(3):
        keys = [Shard.prefix(group, run + 1) + bytes([n]) for group in range(GROUPS) for n in range(100)]
        kv.write([(key, rng.randbytes(200)) for key in keys])
        kv.flush()
    return stored(kv, store, folder / "checkpoint"), store


@pytest.mark.slow
def test_one_key_group_costs_a_small_part_of_the_bytes(
    large: tuple[KeyedSnapshot, CountedStore], tmp_path: Path
) -> None:
    keyed, store = large
    store.read = 0
    assert len(entries(keyed, store, tmp_path / "part", KeyGroups("two", 77, 77, columns=False))) == 100
    assert 0 < store.read < keyed.full_bytes * 0.05


def test_one_key_is_found_among_those_that_begin_like_it(
    large: tuple[KeyedSnapshot, CountedStore], tmp_path: Path
) -> None:
    keyed, store = large
    store.read = 0
    found = entries(keyed, store, tmp_path / "part", KeyGroups("two", 77, 77, columns=False, key=bytes([40])))
    assert [key for key, _ in found] == [Shard.prefix(77, 2) + bytes([40])]
    assert 0 < store.read < keyed.full_bytes * 0.04
    assert entries(keyed, store, tmp_path / "none", KeyGroups("two", 77, 77, columns=False, key=b"\xf0")) == []


@pytest.mark.slow
def test_a_key_that_was_deleted_with_many_behind_it_costs_a_second_look(tmp_path: Path) -> None:
    """The search for the first key after the group continues in blocks that were not fetched."""
    kv = RocksDbKv(tmp_path / "db", SlotMemory(16 << 20))
    keys = [Shard.prefix(group, 1) + bytes([n]) for group in range(GROUPS) for n in range(50)]
    rng = random.Random(2)
    kv.write([(key, rng.randbytes(300)) for key in keys])
    kv.flush()
    kv.write([(key, None) for key in keys if key[1] > 30])
    store = CountedStore()
    keyed = stored(kv, store, tmp_path / "checkpoint")
    store.read = 0
    found = entries(keyed, store, tmp_path / "part", KeyGroups("one", 30, 30, columns=False))
    assert [key for key, _ in found] == [key for key in keys if key[1] == 30]
    assert store.read > keyed.full_bytes


# RocksDB does not compress a part of 4 kB: the part would hardly become smaller.
@pytest.mark.parametrize(
    ("large", "what"),
    [("in parts", "footer"), ("in parts", "version"), ("whole", "compression")],
    indirect=["large"],
    scope="module",
)
def test_files_of_a_layout_that_is_not_known_are_fetched_whole(
    what: str, large: tuple[KeyedSnapshot, CountedStore], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    constants = {"footer": ("_MAGIC", 1), "version": ("_VERSIONS", range(9, 10)), "compression": ("_LZ4", 99)}
    keyed, store = large
    store.read = 0
    monkeypatch.setattr(rocksdb_files, *constants[what])
    assert len(entries(keyed, store, tmp_path / "part", KeyGroups("two", 77, 77, columns=False))) == 100
    assert store.read >= keyed.full_bytes


@pytest.mark.slow
@pytest.mark.parametrize("moved", [0, 3_300])
def test_of_several_databases_only_the_blocks_are_fetched_that_have_the_key_group(moved: int, tmp_path: Path) -> None:
    """Two databases side by side; nothing, or all entries up to half of a key group, has moved into the first.

    Each group is read from the database that holds it, and moved entries are not found at their old place."""
    rng, memory = random.Random(3), SlotMemory(16 << 20)
    stores = [RocksDbKv(tmp_path / "db", memory), RocksDbKv(tmp_path / "beside", memory)]
    middle = Shard.prefix(GROUPS // 2, 0)
    wanted: dict[bytes, bytes] = {}
    for group in range(GROUPS):
        some = {Shard.prefix(group, 1) + bytes([n]): rng.randbytes(300) for n in range(100)}
        stores[group >= GROUPS // 2].write(list(some.items()))
        wanted |= some
    ranges = KeyRanges().given(middle, Shard.prefix(GROUPS, 0), 1)
    both = SideBySide(stores[0], [Database(1, stores[1], tmp_path / "beside")], ranges)
    for _ in range(moved // 100):
        assert both.move(100)
    if moved:
        both.move(50)
    store = CountedStore()
    keyed = stored(both, store, tmp_path / "checkpoint")
    assert {RANGES_FILE} < {ref.name for ref in keyed.files}
    most = 0
    for group in (0, 63, 64, 97, 98):
        store.read = 0
        found = entries(keyed, store, tmp_path / "part", KeyGroups("one", group, group, columns=False))
        most = max(most, store.read)
        assert found == [entry for entry in wanted.items() if entry[0][:2] == Shard.prefix(group, 1)[:2]]
    assert most < keyed.full_bytes * 0.2
