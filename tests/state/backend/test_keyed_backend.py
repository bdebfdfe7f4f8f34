"""Snapshots of a keyed backend: interleavings of capture, drain, write, complete, abort, restore and rescale."""

import pickle
import random
import threading
from pathlib import Path

import pytest
from backend_bench import Bench, checkpoint, drain, of_operator, values

from barrier_runtime.state.backend.backend_snapshots import SnapshotDropped
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation, Unavailable
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot
from barrier_runtime.state.store.local import LocalStore
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore


def keys_of(snapshot: KeyedSnapshot) -> set[str]:
    return {ref.key for ref in snapshot.files if ref.key is not None}


def ssts(snapshot: KeyedSnapshot) -> dict[str, FileRef]:
    return {ref.name: ref for ref in snapshot.files if ref.name.endswith(".sst")}


def fill(backend: KeyedBackend, count: int, size: int = 300) -> None:
    table = backend._tables.get("value") or values(backend)
    for number in range(count):
        table.put((number,), random.Random(number).randbytes(size))  # does not compress


def gone(bench: Bench) -> None:
    """Drops all local copies, as on a fresh slot."""
    bench.copies = LocalCopies()


# ---------------------------------------------------------------- snapshot and restore


def test_state_comes_back_from_the_object_store_and_from_local_copies(bench: Bench) -> None:
    backend = bench.open()
    fill(backend, 500)
    snapshot = checkpoint(backend, 1)
    gets = bench.store.calls.get("get", 0)  # type: ignore[attr-defined]
    local = values(bench.open([of_operator(snapshot)]))
    assert bench.store.calls.get("get", 0) == gets  # type: ignore[attr-defined]
    gone(bench)
    remote = values(bench.open([of_operator(snapshot)]))
    expected = dict(values_of(backend))
    assert len(expected) == 500
    assert dict(local.scan()) == dict(remote.scan()) == expected


@pytest.mark.slow
def test_state_comes_back_from_every_object_store(any_store: ObjectStore, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "slot", store=any_store)
    backend = bench.open()
    fill(backend, 2_000, 1_500)
    first = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    backend._tables["value"].delete((7,))
    second = checkpoint(backend, 2)
    assert second.new_bytes < first.new_bytes / 10
    gone(bench)
    restored = dict(values(bench.open([of_operator(second)])).scan())
    assert restored == dict(values_of(backend))
    assert len(restored) == 1_999


def test_a_folder_that_cannot_be_made_is_unavailable_not_a_crash(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    bench.directory = tmp_path / "file"
    with pytest.raises(Unavailable, match="could not be put on this machine's disk"):
        bench.open()


def values_of(backend: KeyedBackend):  # type: ignore[no-untyped-def]
    return backend._tables["value"].scan()


def test_restores_do_not_touch_what_they_restored_from(rocksdb_bench: Bench) -> None:
    """Opening a database rewrites its files: it must be a linked copy. Restore three times from one copy."""
    backend = rocksdb_bench.open()
    fill(backend, 500)
    snapshot = checkpoint(backend, 1)
    for number in range(3):
        again = rocksdb_bench.open([of_operator(snapshot)])
        assert len(dict(values(again).scan())) == 500
        again._tables["value"].put((number,), b"changed")
        checkpoint(again, 10 + number)
        again.close()
    gone(rocksdb_bench)
    assert dict(values(rocksdb_bench.open([of_operator(snapshot)])).scan())[(0,)] == random.Random(0).randbytes(300)


def test_an_empty_state_snapshots_and_restores(bench: Bench) -> None:
    backend = bench.open()
    snapshot = checkpoint(backend, 1)
    assert dict(values(bench.open([of_operator(snapshot)])).scan()) == {}


@pytest.mark.slow
def test_files_above_the_parts_of_a_transfer_are_byte_identical_after_a_restore(
    rocksdb_bench: Bench, tmp_path: Path
) -> None:
    """S12"""
    rocksdb_bench.store = LocalStore(tmp_path / "objects")
    rocksdb_bench.memory = SlotMemory(64 << 20)  # enough for a single flush
    random_bytes = random.Random(1)
    backend = rocksdb_bench.open()
    table = values(backend)
    expected = {(number,): random_bytes.randbytes(100_000) for number in range(120)}
    for key, value in expected.items():
        table.put(key, value)
    snapshot = checkpoint(backend, 1)
    assert max(ref.size for ref in snapshot.files) > 8 << 20
    gone(rocksdb_bench)
    assert dict(values(rocksdb_bench.open([of_operator(snapshot)])).scan()) == expected


def test_tiny_state_travels_inside_the_manifest_and_puts_nothing(rocksdb_bench: Bench) -> None:
    backend = rocksdb_bench.open()
    values(backend).put(("a",), 1)
    snapshot = checkpoint(backend, 1)
    assert keys_of(snapshot) == set()
    assert rocksdb_bench.store.keys() == ()  # type: ignore[attr-defined]
    gone(rocksdb_bench)
    assert values(rocksdb_bench.open([of_operator(snapshot)])).get(("a",)) == 1


# ---------------------------------------------------------------- uploaded and reused files


def test_only_what_a_completed_checkpoint_holds_is_reused(rocksdb_bench: Bench) -> None:
    """S3: the second checkpoint of three was aborted; the third reuses the first's file and uploads the rest again"""
    backend = rocksdb_bench.open()
    fill(backend, 500)
    first = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    values_two = backend._tables["value"]
    values_two.put((1_000,), random.Random(1_000).randbytes(30_000))
    second = checkpoint(backend, 2)
    backend.snapshots.aborted(2)
    third = checkpoint(backend, 3)
    [old] = ssts(first)
    assert ssts(second)[old] == ssts(third)[old] == ssts(first)[old]
    [new] = set(ssts(second)) - {old}
    assert ssts(second)[new].sha256 == ssts(third)[new].sha256
    assert ssts(second)[new].key != ssts(third)[new].key
    assert third.new_bytes < third.full_bytes
    gone(rocksdb_bench)
    assert len(dict(values(rocksdb_bench.open([of_operator(first)])).scan())) == 500
    assert len(dict(values(rocksdb_bench.open([of_operator(third)])).scan())) == 501


def test_two_checkpoints_in_flight_have_a_copy_each_of_the_file_they_share(rocksdb_bench: Bench) -> None:
    """S4"""
    backend = rocksdb_bench.open()
    fill(backend, 500)
    first = checkpoint(backend, 1)
    second = checkpoint(backend, 2)
    assert set(ssts(first)) == set(ssts(second))
    assert keys_of(first).isdisjoint(keys_of(second))
    rocksdb_bench.store.delete(keys_of(first))
    gone(rocksdb_bench)
    assert len(dict(values(rocksdb_bench.open([of_operator(second)])).scan())) == 500


def test_the_same_local_file_name_after_a_restore_is_uploaded_again(rocksdb_bench: Bench) -> None:
    """S6, S7: roll back to checkpoint 1 and write something else; file numbers repeat with other bytes"""
    noise = {name: random.Random(name).randbytes(30_000) for name in "ab"}
    backend = rocksdb_bench.open()
    fill(backend, 500)
    first = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    backend._tables["value"].put((1_000,), noise["a"])
    second = checkpoint(backend, 2)
    backend.snapshots.completed(2)
    backend.close()
    again = rocksdb_bench.open([of_operator(first)])
    values(again).put((1_000,), noise["b"])
    other = checkpoint(again, 3)
    assert keys_of(other) & keys_of(second) == keys_of(first) & keys_of(second)
    gone(rocksdb_bench)
    assert values(rocksdb_bench.open([of_operator(second)])).get((1_000,)) == noise["a"]
    assert values(rocksdb_bench.open([of_operator(other)])).get((1_000,)) == noise["b"]


@pytest.mark.slow
def test_a_file_that_compaction_made_is_never_taken_for_an_older_one(rocksdb_bench: Bench) -> None:
    """S8: many flushes and compactions; every completed snapshot restores to exactly its content"""
    backend = rocksdb_bench.open()
    table = values(backend)
    snapshots, expected = [], []
    for number in range(1, 13):
        for key in range(0, 400, number):
            table.put((key,), bytes([number]) * 200)
        snapshots.append(checkpoint(backend, number))
        backend.snapshots.completed(number)
        expected.append(dict(table.scan()))
    gone(rocksdb_bench)
    for number in (0, 5, 11):
        assert dict(values(rocksdb_bench.open([of_operator(snapshots[number])])).scan()) == expected[number]


def test_the_configuration_of_the_binding_is_never_uploaded(rocksdb_bench: Bench) -> None:
    """J4"""
    backend = rocksdb_bench.open()
    fill(backend, 500)
    snapshot = checkpoint(backend, 1)
    assert all("json" not in ref.name for ref in snapshot.files)
    for key in rocksdb_bench.store.keys():  # noqa: SIM118  # type: ignore[attr-defined]
        assert b"raw_mode" not in rocksdb_bench.store.get(key)


def test_a_store_that_fails_makes_the_snapshot_fail_and_the_next_one_is_whole(bench: Bench) -> None:
    backend = bench.open()
    fill(backend, 500)
    bench.store.inject(Fault.FAIL_BEFORE, "put")  # type: ignore[attr-defined]
    with pytest.raises(Unavailable):
        checkpoint(backend, 1)
    backend.snapshots.aborted(1)
    snapshot = checkpoint(backend, 2)
    gone(bench)
    assert len(dict(values(bench.open([of_operator(snapshot)])).scan())) == 500


# ---------------------------------------------------------------- damaged snapshots


@pytest.mark.parametrize("fault", [Fault.FLIPPED_BYTE, Fault.TRUNCATED_READ])
def test_a_damaged_snapshot_is_named_with_both_hashes_and_nothing_is_opened(bench: Bench, fault: Fault) -> None:
    """O4, O8, J2"""
    backend = bench.open()
    fill(backend, 500)
    snapshot = checkpoint(backend, 1)
    gone(bench)
    bench.store.inject(fault, times=None)  # type: ignore[attr-defined]
    with pytest.raises(Corrupt, match=r"job/data/1/slot/file-\d+ is not what was written: expected .* found "):
        bench.open([of_operator(snapshot)])
    bench.store.heal()  # type: ignore[attr-defined]
    assert len(dict(values(bench.open([of_operator(snapshot)])).scan())) == 500


def test_a_pickle_where_state_is_expected_is_refused_undecoded(bench: Bench) -> None:
    """B4"""

    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return (pytest.fail, ("the pickle was loaded",))

    backend = bench.open()
    fill(backend, 500)
    snapshot = checkpoint(backend, 1)
    gone(bench)
    for key in bench.store.keys():  # noqa: SIM118  # type: ignore[attr-defined]
        bench.store.damage(key, pickle.dumps(Bomb()))  # type: ignore[attr-defined]
    with pytest.raises(Corrupt):
        bench.open([of_operator(snapshot)])


# ---------------------------------------------------------------- overlapping barriers


def test_a_barrier_before_the_last_one_was_drained_finishes_that_first(bench: Bench) -> None:
    backend = bench.open()
    table = values(backend)
    table.put(("a",), "one")
    backend.snapshots.freeze(1)
    table.put(("a",), "two")
    backend.snapshots.freeze(2)
    table.put(("a",), "three")
    drain(backend)
    second = backend.snapshots.write(2)
    first = backend.snapshots.write(1)
    assert values(bench.open([of_operator(first)])).get(("a",)) == "one"
    assert values(bench.open([of_operator(second)])).get(("a",)) == "two"
    assert table.get(("a",)) == "three"


@pytest.mark.parametrize("changed", [10, 500, 2_000])
def test_leftovers_of_an_aborted_checkpoint_are_part_of_the_next(bench: Bench, changed: int) -> None:
    backend = bench.open()
    table = values(backend)
    for number in range(1_000):
        table.put((number,), "one")
    backend.snapshots.freeze(1)
    backend.snapshots.drain(100)
    table.get((5,))  # moves to the encoded entries
    backend.snapshots.aborted(1)
    for number in range(changed):
        table.put((number,), "two")
    backend.snapshots.freeze(2)
    drain(backend)
    with pytest.raises(SnapshotDropped):
        backend.snapshots.write(1)
    restored = dict(values(bench.open([of_operator(backend.snapshots.write(2))])).scan())
    assert restored == {(number,): "two" if number < changed else "one" for number in range(max(1_000, changed))}


def test_a_snapshot_nobody_wants_any_more_is_dropped_with_a_named_outcome(bench: Bench) -> None:
    backend = bench.open()
    fill(backend, 10)
    backend.snapshots.freeze(1)
    drain(backend)
    backend.snapshots.aborted(1)
    with pytest.raises(SnapshotDropped, match="decline"):
        backend.snapshots.write(1)
    with pytest.raises(SnapshotDropped, match="never frozen"):
        backend.snapshots.write(2)
    backend.snapshots.freeze(3)
    backend.snapshots.completed(4)  # a newer checkpoint subsumed checkpoint 3
    drain(backend)
    with pytest.raises(SnapshotDropped):
        backend.snapshots.write(3)
    backend.snapshots.freeze(5)
    drain(backend)
    backend.close()
    with pytest.raises(SnapshotDropped):
        backend.snapshots.write(5)


def test_an_abort_during_the_upload_stops_it(bench: Bench) -> None:
    class Aborting(MemoryStore):
        def put(self, key: str, data: bytes) -> None:
            super().put(key, data)
            backend.snapshots.aborted(1)

    bench.store = Aborting()
    backend = bench.open()
    fill(backend, 500)
    with pytest.raises(SnapshotDropped):
        checkpoint(backend, 1)
    bench.store = MemoryStore()
    assert bench.copies.checkpoints("counts", 0) == ()


def test_writing_before_draining_or_freezing_twice_are_broken_laws(bench: Bench) -> None:
    backend = bench.open()
    fill(backend, 10)
    backend.snapshots.freeze(1)
    with pytest.raises(ProtocolViolation, match="before it is drained"):
        backend.snapshots.write(1)
    with pytest.raises(ProtocolViolation, match="frozen twice"):
        backend.snapshots.freeze(1)
    backend.snapshots.completed(7)
    with pytest.raises(ProtocolViolation, match="too late"):
        backend.snapshots.freeze(7)


def test_while_a_worker_links_the_loop_reads_freezes_and_waits_with_writing(bench: Bench) -> None:
    """While the worker is held in the link stage, the loop can do everything except write to the store."""
    backend = bench.open()
    table = values(backend)
    table.put(("a",), "one")
    backend.snapshots.freeze(1)
    drain(backend)
    entered, leave = threading.Event(), threading.Event()
    kv = backend._shard.kv
    link = kv.checkpoint

    def slow_link(directory: Path) -> None:
        entered.set()
        assert leave.wait(60)
        link(directory)

    kv.checkpoint = slow_link  # type: ignore[method-assign]
    found: list[KeyedSnapshot] = []
    worker = threading.Thread(target=lambda: found.append(backend.snapshots.write(1)))
    worker.start()
    assert entered.wait(60)
    assert backend.snapshots.linking
    assert table.get(("a",)) == "one"
    table.put(("a",), "two")
    backend.snapshots.freeze(2)
    assert backend.snapshots.drain() is False
    leave.set()
    worker.join(60)
    assert not backend.snapshots.linking
    drain(backend)
    second = backend.snapshots.write(2)
    assert values(bench.open([of_operator(found[0])])).get(("a",)) == "one"
    assert values(bench.open([of_operator(second)])).get(("a",)) == "two"


def test_snapshots_on_a_thread_hold_exactly_the_state_at_their_barrier(bench: Bench) -> None:
    bench.cache_bytes = 200_000
    backend = bench.open()
    table = values(backend)
    expected: dict[int, dict[tuple[int], int]] = {}
    snapshots: dict[int, KeyedSnapshot] = {}
    current: dict[tuple[int], int] = {}
    worker: threading.Thread | None = None
    step = 0
    for number in range(1, 9):
        for _ in range(700):
            step += 1
            key = (step * 7919 % 1_500,)
            table.put(key, step)
            current[key] = step
        if worker is not None:
            worker.join()
            backend.snapshots.completed(number - 1)
        backend.snapshots.freeze(number)
        expected[number] = dict(current)
        drained = False
        while not drained:
            drained = backend.snapshots.drain(64)
            step += 1
            table.put((step % 1_500,), -step)
            current[(step % 1_500,)] = -step

        def write(number: int = number) -> None:
            snapshots[number] = backend.snapshots.write(number)

        worker = threading.Thread(target=write)
        worker.start()
    assert worker is not None
    worker.join()
    gone(bench)
    for number in (1, 4, 8):
        assert dict(values(bench.open([of_operator(snapshots[number])])).scan()) == expected[number]


# ---------------------------------------------------------------- local copies


def test_the_copy_of_the_last_completed_checkpoint_stays_until_it_is_subsumed(bench: Bench) -> None:
    backend = bench.open()
    fill(backend, 10)
    for number in (1, 2):
        checkpoint(backend, number)
        backend.snapshots.completed(number)
    assert bench.copies.checkpoints("counts", 0) == (2,)
    checkpoint(backend, 3)
    assert bench.copies.checkpoints("counts", 0) == (2, 3)
    backend.snapshots.aborted(3)
    assert bench.copies.checkpoints("counts", 0) == (2,)
    backend.close()
    assert bench.copies.checkpoints("counts", 0) == (2,)


def test_keeping_only_one_checkpoint_deletes_the_folders_of_the_others(rocksdb_bench: Bench) -> None:
    backend = rocksdb_bench.open()
    fill(backend, 10)
    snapshots = {number: checkpoint(backend, number) for number in (1, 2, 3)}
    backend.close()
    rocksdb_bench.copies.keep_only(2)
    assert len(list(rocksdb_bench.directory.glob("*/checkpoint-*"))) == 3, "it is marked, and deleted off the loop"
    rocksdb_bench.copies.delete_unwanted()
    folders = [path.name for path in rocksdb_bench.directory.glob("*/checkpoint-*")]
    assert [name.split("-")[1] for name in folders] == ["2"]
    assert rocksdb_bench.copies.find("counts", 0, snapshots[2].files) is not None
    assert rocksdb_bench.copies.find("counts", 1, snapshots[2].files) is None
    rocksdb_bench.copies.drop_all()
    assert list(rocksdb_bench.directory.glob("*/checkpoint-*")) == []


def test_a_local_copy_that_lost_a_file_is_not_used(rocksdb_bench: Bench) -> None:
    backend = rocksdb_bench.open()
    fill(backend, 500)
    snapshot = checkpoint(backend, 1)
    copy = rocksdb_bench.copies.find("counts", 0, snapshot.files)
    assert copy is not None
    (copy.directory / "CURRENT").unlink()
    assert len(dict(values(rocksdb_bench.open([of_operator(snapshot)])).scan())) == 500


def test_closing_leaves_no_database_behind(rocksdb_bench: Bench) -> None:
    """J7"""
    backend = rocksdb_bench.open()
    fill(backend, 10)
    database = rocksdb_bench.directory / "incarnation-1" / "db"
    assert database.stat().st_mode & 0o777 == 0o700
    backend.close()
    backend.close()
    assert not database.exists()


# ---------------------------------------------------------------- rescaling


@pytest.mark.parametrize("sizes", [(1, 2, 3), (3, 2, 1), (2, 5, 3), (1, 10, 1)])
def test_counters_continue_over_every_rescaling(bench: Bench, sizes: tuple[int, ...]) -> None:
    """R1, R2: ten key groups, one hundred keys; each key counts on, exists once, and is with its group's owner"""
    from barrier_runtime.state.keys.key_groups import key_group

    restored = []
    for generation, parallelism in enumerate(sizes, 1):
        backends = [bench.open(restored, subtask, parallelism, 10) for subtask in range(parallelism)]
        tables = [values(backend) for backend in backends]
        found = [dict(table.scan()) for table in tables]
        assert sum(map(len, found)) == (100 if generation > 1 else 0)
        for number in range(100):
            [owner] = [
                subtask
                for subtask, backend in enumerate(backends)
                if backend.key_group_first <= key_group((number,), 10) <= backend.key_group_last
            ]
            count = (tables[owner].get((number,)) or 0) + 1
            assert count == generation
            tables[owner].put((number,), count)
        restored = [
            of_operator(checkpoint(backend, generation), subtask, parallelism)
            for subtask, backend in enumerate(backends)
        ]
        for backend in backends:
            backend.close()
        gone(bench)


def test_states_made_in_another_order_by_each_subtask_merge_by_name(bench: Bench) -> None:
    first, second = bench.open([], 0, 2, 10), bench.open([], 1, 2, 10)
    for backend, names in ((first, ["a", "b"]), (second, ["b", "a"])):
        for name in names:
            table = values(backend, name)
            for number in range(50):
                from barrier_runtime.state.keys.key_groups import key_group

                if backend.key_group_first <= key_group((number,), 10) <= backend.key_group_last:
                    table.put((number,), f"{name}{number}")
    restored = [of_operator(checkpoint(first, 1), 0, 2), of_operator(checkpoint(second, 1), 1, 2)]
    merged = bench.open(restored, 0, 1, 10)
    for name in ("b", "a"):
        assert dict(values(merged, name).scan()) == {(number,): f"{name}{number}" for number in range(50)}


def test_state_moves_between_the_kinds_of_backend(tmp_path: Path, store: MemoryStore) -> None:
    rocks, memory = Bench(tmp_path / "r", "rocksdb", store), Bench(tmp_path / "m", "memory", store)
    memory.token = 2
    backend = rocks.open()
    fill(backend, 200)
    moved = memory.open([of_operator(checkpoint(backend, 1))])
    assert len(dict(values(moved).scan())) == 200
    back = rocks.open([of_operator(checkpoint(moved, 2))])
    assert len(dict(values(back).scan())) == 200


@pytest.mark.slow
def test_another_max_parallelism_is_refused_with_both_numbers(bench: Bench) -> None:
    """R5"""
    snapshot = checkpoint(bench.open(max_parallelism=128), 1)
    with pytest.raises(InvalidJob, match=r"128.*256"):
        bench.open([of_operator(snapshot)], max_parallelism=256)


def test_what_an_operator_may_not_be_given_is_refused(bench: Bench) -> None:
    bench.kind = "sqlite"  # type: ignore[assignment]
    with pytest.raises(InvalidJob, match="no state backend 'sqlite'"):
        bench.open()
