"""The first checkpoint after a restore references restored files that the incarnation still has unchanged."""

import random

import numpy as np
import pytest
from backend_bench import Bench, checkpoint, of_operator, values

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.backend.restore import RestoreSite, restore
from barrier_runtime.state.keys.key_groups import key_group
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import is_immutable, plan_restore
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, OperatorSnapshot

MAX = 128
LARGE = 400


def places(snapshot: KeyedSnapshot) -> dict[str, FileRef]:
    return {ref.name: ref for ref in snapshot.files if is_immutable(ref.name)}


def taken(backend: KeyedBackend, number: int, subtask: int = 0, parallelism: int = 1) -> OperatorSnapshot:
    snapshot = of_operator(checkpoint(backend, number), subtask, parallelism)
    backend.snapshots.completed(number)
    return snapshot


def keyed_of(snapshot: OperatorSnapshot) -> KeyedSnapshot:
    assert snapshot.keyed is not None
    return snapshot.keyed


def large(backend: KeyedBackend, owns: int | None = None, parallelism: int = 1) -> None:
    table = values(backend)
    for key in range(LARGE):
        group = key_group((key,), MAX)
        if owns is None or backend.key_group_first <= group <= backend.key_group_last:
            table.put((key,), random.Random(key).randbytes(300))


def content(bench: Bench, snapshot: OperatorSnapshot) -> dict[int, bytes]:
    """Returns the entries that a fresh slot restores from the store."""
    bench.copies = LocalCopies()
    backend = bench.open([snapshot], snapshot.subtask, snapshot.parallelism)
    found = {key[0]: value for key, value in values(backend).scan()}
    backend.close()
    return found


@pytest.mark.parametrize("fresh", [True, False], ids=["from the store", "from local copies"])
def test_it_uploads_what_is_new_alone_and_restores(rocksdb_bench: Bench, fresh: bool) -> None:
    backend = rocksdb_bench.open()
    large(backend)
    first = taken(backend, 1)
    backend.close()
    if fresh:
        rocksdb_bench.copies = LocalCopies()
    again = rocksdb_bench.open([first])
    table = values(again)
    table.put((LARGE,), b"new")
    given_up = keyed_of(of_operator(checkpoint(again, 2)))
    again.snapshots.aborted(2)
    table.put((LARGE,), b"newer")
    second = taken(again, 3)
    again.close()
    restored = places(keyed_of(first))
    for snapshot in (given_up, keyed_of(second)):
        found = places(snapshot)
        assert restored.items() <= found.items(), "the same objects, by name"
        assert snapshot.new_bytes < snapshot.full_bytes / 10
    only_given_up = {ref.key for ref in given_up.files} - {ref.key for ref in keyed_of(first).files} - {None}
    rocksdb_bench.store.delete([key for key in only_given_up if key is not None])
    assert content(rocksdb_bench, second)[LARGE] == b"newer"
    assert len(content(rocksdb_bench, second)) == LARGE + 1
    assert len(content(rocksdb_bench, first)) == LARGE


@pytest.mark.slow
def test_names_that_come_again_for_other_bytes_are_uploaded(rocksdb_bench: Bench) -> None:
    """Restores checkpoint 1 while files of 2 and 3 exist, then restores the checkpoints of this branch."""
    backend = rocksdb_bench.open()
    large(backend)
    first = taken(backend, 1)
    table = backend._tables["value"]
    for number in (2, 3):
        table.put((LARGE,), bytes([number]) * 2_000)
        later = taken(backend, number)
    backend.close()
    branch = first
    for number in (4, 5, 6):
        again = rocksdb_bench.open([branch])
        values(again).put((LARGE,), bytes([number]) * 2_000)
        branch = taken(again, number)
        again.close()
        known = places(keyed_of(later))
        same = [ref for name, ref in places(keyed_of(branch)).items() if ref.key and ref.key == known[name].key]
        assert same, "the large file is that of all"
        assert all(known[ref.name] == ref for ref in same)
        assert content(rocksdb_bench, branch)[LARGE] == bytes([number]) * 2_000
    assert content(rocksdb_bench, later)[LARGE] == bytes([3]) * 2_000


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(2, 4, 2, 1, 3), (1, 2, 4, 3, 5), (3, 2, 5, 1)])
def test_at_another_parallelism_it_names_files_of_the_snapshot_that_was_opened(
    rocksdb_bench: Bench, sizes: tuple[int, ...]
) -> None:
    """Each checkpoint restores from the store alone, with all changes and deletions since the checkpoint before."""
    bench, number, restored = rocksdb_bench, 0, []
    expected: dict[int, bytes] = {}
    for parallelism in sizes:
        backends = [bench.open(restored, subtask, parallelism) for subtask in range(parallelism)]
        before = {ref.key for snapshot in restored for ref in keyed_of(snapshot).files if ref.key is not None}
        snapshots = []
        number += 1
        for subtask, backend in enumerate(backends):
            table = values(backend)
            for key in range(LARGE):
                if not backend.key_group_first <= key_group((key,), MAX) <= backend.key_group_last:
                    continue
                if number == 1 or (key + number) % 7 == 0:
                    expected[key] = random.Random(key * 100 + number).randbytes(300)
                    table.put((key,), expected[key])
                elif (key + number) % 11 == 0 and key in expected:
                    del expected[key]
                    table.delete((key,))
            snapshots.append(taken(backend, number, subtask, parallelism))
            backend.close()
        if parallelism == 2 * len(restored):
            assert all({ref.key for ref in keyed_of(each).files} & before for each in snapshots), (
                "each names its half's"
            )
        found: dict[int, bytes] = {}
        for snapshot in snapshots:
            own = content(bench, snapshot)
            assert not own.keys() & found.keys(), "no key has two owners"
            found |= own
        assert found == expected
        restored = snapshots


@pytest.mark.slow
def test_segments_that_are_written_anew_are_no_stored_ones(rocksdb_bench: Bench) -> None:
    """At parallelism 3 the middle subtask opens the third of 4 databases; its segments are new, with old names."""
    groups = {group: key for key in reversed(range(20_000)) if (group := key_group((key,), MAX)) < MAX}
    snapshots = []
    for subtask in range(4):
        backend = rocksdb_bench.open([], subtask, 4)
        table = values(backend)
        own = [groups[group] for group in range(backend.key_group_first, backend.key_group_last + 1)]
        for key in own:
            table.put((key,), random.Random(key).randbytes(2_000))
        fill(backend, own)
        snapshots.append(taken(backend, 1, subtask, 4))
        backend.close()
    plan = plan_restore("counts", 1, 3, MAX, snapshots)
    directory = rocksdb_bench.directory / "opened"
    directory.mkdir()
    opened = restore(
        "rocksdb", plan, RestoreSite("counts", rocksdb_bench.store, LocalCopies(), directory, SlotMemory(1 << 24))
    )
    opened.kv.close()
    assert [ref.name for ref in opened.reusable] == [
        name for name in places(keyed_of(snapshots[2])) if name.endswith(".sst")
    ]
    assert (directory / "segments" / "segment-000001.rows").exists()

    backend = rocksdb_bench.open(snapshots, 1, 3)
    found = rows(backend)
    second = taken(backend, 2, 1, 3)
    backend.close()
    rocksdb_bench.copies = LocalCopies()
    assert rows(rocksdb_bench.open([second], 1, 3)) == found == {groups[g]: groups[g] for g in range(43, 86)}


def test_files_of_a_fresh_database_are_uploaded_whatever_their_names_and_sizes(rocksdb_bench: Bench) -> None:
    """A quarter of the range stays, so all entries are copied; then one entry changes."""
    keys = [key for key in range(2_000) if key_group((key,), MAX) < MAX // 4]
    noise = {key: random.Random(key).randbytes(100) for key in keys}
    backend = rocksdb_bench.open()
    table = values(backend)
    for key in keys:
        table.put((key,), noise[key])
    first = taken(backend, 1)
    backend.close()
    again = rocksdb_bench.open([first], 0, 4)
    noise[keys[0]] = random.Random("other").randbytes(100)
    values(again).put((keys[0],), noise[keys[0]])
    second = taken(again, 2, 0, 4)
    again.close()
    old, new = places(keyed_of(first)), places(keyed_of(second))
    assert {name: ref.size for name, ref in old.items()} == {name: ref.size for name, ref in new.items()}
    assert content(rocksdb_bench, second) == noise


def fill(backend: KeyedBackend, keys: list[int]) -> None:
    table = backend.column_table("sums", {"n": ("i8", 0)}, 1)
    if keys:
        ids = table.row_ids_int64(np.array(sorted(keys), np.int64))
        table.columns["n"][ids] = sorted(keys)
        table.mark_dirty(ids)


def rows(backend: KeyedBackend) -> dict[int, int]:
    table = backend.column_table("sums", {"n": ("i8", 0)}, 1)
    ids = table.load_all()
    return {key[0]: n for key, n in zip(table.keys_of(ids), table.columns["n"][ids].tolist(), strict=True)}
