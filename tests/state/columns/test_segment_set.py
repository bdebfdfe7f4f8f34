"""Dense tables in segments: many checkpoints, merges, disk errors, eviction and rescaling."""

import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_bench import Bench, checkpoint, drain, of_operator, values

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.columns import segment_set
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.segment_set import SegmentLog
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.store import MemoryKv
from barrier_runtime.state.scratch import segment_number
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot


def dense(backend: KeyedBackend, name: str = "dense", evictable: bool = False) -> ColumnTable:
    return backend.column_table(name, {"count": ("i8", 0), "high": ("f8", -1.0)}, 1, evictable)


def count(table: ColumnTable, keys: np.ndarray) -> None:
    row_ids = table.row_ids_int64(keys)
    table.columns["count"][row_ids] += 1
    table.mark_dirty(row_ids)


def content(table: ColumnTable) -> dict[object, int]:
    row_ids = table.load_all()
    return {key[0]: n for key, n in zip(table.keys_of(row_ids), table.columns["count"][row_ids].tolist(), strict=True)}


def segments(snapshot: KeyedSnapshot) -> set[str]:
    return {ref.name for ref in snapshot.files if segment_number(ref.name) is not None}


@pytest.mark.slow
def test_many_small_checkpoints_are_few_files_and_restore_to_the_whole(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    expected: dict[object, int] = {}
    random = np.random.default_rng(1)
    for number in range(1, 120):
        keys = np.arange(3_000) if number == 1 else random.choice(3_000, 20, replace=False)
        count(table, keys)
        for key in keys.tolist():
            expected[key] = expected.get(key, 0) + 1
        if number % 7 == 0:
            gone = random.choice(3_000, 3, replace=False)
            table.remove(table.row_ids_int64(gone))
            for key in gone.tolist():
                expected.pop(key, None)
        snapshot = checkpoint(backend, number)
        backend.snapshots.completed(number)
        assert len(segments(snapshot)) <= 30
        if number % 40 == 0:
            bench.copies = LocalCopies() if number == 80 else bench.copies
            assert content(dense(bench.open([of_operator(snapshot)]))) == expected
    assert content(table) == expected


def test_unchanged_segments_are_not_uploaded_again(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, np.random.default_rng(2).integers(0, 2**60, 20_000))
    first = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    count(table, np.arange(10))
    second = checkpoint(backend, 2)
    assert segments(first) < segments(second)
    assert second.new_bytes < first.new_bytes / 5


def test_what_could_not_be_written_is_in_the_next_snapshot(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, np.arange(100))
    checkpoint(backend, 1)
    backend.snapshots.completed(1)
    count(table, np.arange(40))
    in_the_way = bench.directory / "incarnation-1" / "segments" / "segment-000002.rows"
    in_the_way.mkdir()
    backend.snapshots.freeze(2)
    drain(backend)
    with pytest.raises(Unavailable, match="free some space"):
        backend.snapshots.write(2)
    backend.snapshots.aborted(2)
    in_the_way.rmdir()
    count(table, np.arange(10))
    restored = dense(bench.open([of_operator(checkpoint(backend, 3))]))
    assert content(restored) == {key: 1 + (key < 40) + (key < 10) for key in range(100)}


def test_a_disk_that_is_full_is_left_as_it_was_and_memory_holds_the_rows_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, kind="memory")
    backend = bench.open()
    table = dense(backend)
    keys = np.random.default_rng(4).integers(0, 2**60, 20_000)
    before = backend.memory_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
        for number in range(1, 6):
            count(table, keys)
            with pytest.raises(Unavailable, match="free some space"):
                checkpoint(backend, number)
            backend.snapshots.aborted(number)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.rglob("segment-*")) == []
    assert backend.memory_bytes() - before < 3 * 20_000 * 70
    restored = dense(bench.open([of_operator(checkpoint(backend, 6))]))
    assert content(restored) == dict.fromkeys(keys.tolist(), 5)


def test_checkpoints_that_are_aborted_before_they_are_written_pile_up_no_copies(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, np.arange(20_000))
    checkpoint(backend, 1)
    backend.snapshots.completed(1)
    for changed in (20_000, 1_000):
        before = backend.memory_bytes()
        for number in range(changed + 2, changed + 32):
            count(table, np.arange(changed))
            backend.snapshots.freeze(number)
            drain(backend)
            backend.snapshots.aborted(number)
        assert backend.memory_bytes() - before < 2 * 20_000 * 24
    restored = dense(bench.open([of_operator(checkpoint(backend, 50_000))]))
    assert content(restored) == {key: 61 if key < 1_000 else 31 for key in range(20_000)}


@pytest.mark.slow
def test_rows_that_a_disk_changed_are_noticed_when_they_are_read(bench: Bench) -> None:
    backend = bench.open()
    count(dense(backend), np.arange(1_000))
    snapshot = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    (path,) = (bench.directory / "incarnation-1" / "checkpoint-1-1").glob("segment-*")
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        path.write_bytes(good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :])
        with pytest.raises(Corrupt, match="segment-000001"):
            content(dense(bench.open([of_operator(snapshot)])))
    path.write_bytes(good)
    assert content(dense(bench.open([of_operator(snapshot)]))) == dict.fromkeys(range(1_000), 1)


@pytest.mark.slow
def test_states_of_many_columns_come_back(bench: Bench) -> None:
    columns = {f"sum:a column with quite a long name, number {number}": ("f8", 0.5) for number in range(1_500)}
    backend = bench.open()
    table = backend.column_table("wide", columns, 1)
    table.mark_dirty(table.row_ids([(1,)]))
    restored = bench.open([of_operator(checkpoint(backend, 1))]).column_table("wide", columns, 1)
    assert restored.keys_of(restored.load_all()) == [(1,)]


def test_a_state_of_columns_is_not_taken_for_one_of_values(bench: Bench) -> None:
    backend = bench.open()
    count(dense(backend, "value"), np.arange(10))
    restored = bench.open([of_operator(checkpoint(backend, 1))])
    with pytest.raises(InvalidJob, match="written as columns: give the changed state a new name"):
        values(restored)


@pytest.mark.parametrize("changed", [5, 900])
@pytest.mark.parametrize("moment", [1, 10, 26])
def test_what_is_written_while_files_are_merged_counts_after_them(tmp_path: Path, changed: int, moment: int) -> None:
    """A delta or a new base is written at any step of a merge."""
    shard = Shard(MemoryKv(), "op", 0, 128, 0, 127)
    table = ColumnTable("dense", 0, shard, {"count": ("i8", 0), "high": ("f8", -1.0)}, 1, False, 1 << 20, (), False)
    log = SegmentLog(tmp_path / "segments", 128)

    def freeze(keys: np.ndarray) -> None:
        count(table, keys)
        table.freeze()
        log.write(table.take_segments())

    freeze(np.arange(1_000))
    for start in range(24):
        freeze(np.arange(start, start + 5))
    steps = 0

    def wanted() -> bool:
        nonlocal steps
        steps += 1
        if steps == moment:
            freeze(np.arange(changed))
        return True

    log.merge(wanted)
    assert steps >= moment
    for _ in range(2):
        again = SegmentLog(tmp_path / "segments", 128)
        columns = {"count": ("i8", 0), "high": ("f8", -1.0)}
        restored = ColumnTable("dense", 0, shard, columns, 1, False, 1 << 20, again.of("dense"), False)
        assert content(restored) == content(table)
        freeze(np.arange(3))
        log.merge(lambda: True)
    assert len(list((tmp_path / "segments").iterdir())) < 24


def test_a_merge_that_comes_while_a_segment_is_written_waits_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The segment being written has its number: a merge would get a later number, and restore older values."""
    shard = Shard(MemoryKv(), "op", 0, 128, 0, 127)
    specs = {"count": ("i8", 0), "high": ("f8", -1.0)}
    table = ColumnTable("dense", 0, shard, specs, 1, False, 1 << 20, (), False)
    log = SegmentLog(tmp_path / "segments", 128)

    def freeze(keys: np.ndarray) -> None:
        count(table, keys)
        table.freeze()
        log.write(table.take_segments())

    freeze(np.arange(1_000))
    for start in range(24):  # enough for a merge
        freeze(np.arange(start, start + 5))
    write = segment_set._written

    def written(*arguments: Any) -> list[segment_set.SegmentFile]:
        monkeypatch.undo()
        log.merge(lambda: True)
        return write(*arguments)

    monkeypatch.setattr(segment_set, "_written", written)
    freeze(np.arange(24))
    again = SegmentLog(tmp_path / "segments", 128)
    assert content(ColumnTable("dense", 0, shard, specs, 1, False, 1 << 20, again.of("dense"), False)) == content(table)
    log.merge(lambda: True)
    assert len(list((tmp_path / "segments").iterdir())) < 24


@pytest.mark.parametrize("moment", [1, 2, 15, 25])
def test_a_merge_that_nobody_wants_any_more_changes_nothing(bench: Bench, moment: int) -> None:
    log = SegmentLog(bench.directory / "segments", 128)
    backend = bench.open()
    table = dense(backend)
    for start in range(25):
        count(table, np.arange(start, start + (1_000 if not start else 5)))
        table.freeze()
        log.write(table.take_segments())
    before = sorted((bench.directory / "segments").iterdir())
    steps = iter(range(1_000))
    log.merge(lambda: next(steps) < moment)
    assert next(steps) > moment
    assert sorted((bench.directory / "segments").iterdir()) == before


def test_the_first_eviction_turns_everything_into_entries(bench: Bench) -> None:
    bench.cache_bytes = 1
    backend = bench.open()
    table = dense(backend, evictable=True)
    count(table, np.arange(800))
    small = checkpoint(backend, 1)
    backend.snapshots.completed(1)
    assert segments(small)
    table.remove(table.row_ids_int64(np.array([7])))
    count(table, np.arange(1_000, 2_500))
    count(table, np.arange(10, 20))
    large = checkpoint(backend, 2)
    backend.snapshots.completed(2)
    assert not segments(large)
    expected = {key: 1 + (10 <= key < 20) for key in [*range(800), *range(1_000, 2_500)] if key != 7}
    assert content(dense(bench.open([of_operator(large)]))) == expected
    assert content(dense(bench.open([of_operator(small)]))) == dict.fromkeys(range(800), 1)


@pytest.mark.slow
def test_one_part_in_segments_and_one_in_entries_become_one_table(bench: Bench) -> None:
    bench.cache_bytes = 1
    expected: dict[object, int] = {}
    parts = []
    for subtask, keys in enumerate((np.arange(300), np.arange(1_000, 6_000))):
        backend = bench.open(subtask=subtask, parallelism=2)
        table = dense(backend, evictable=True)
        groups = [key for key in keys.tolist() if _owner(key) == subtask]
        for start in range(0, len(groups), 500):
            count(table, np.array(groups[start : start + 500]))
        expected |= dict.fromkeys(groups, 1)
        parts.append(of_operator(checkpoint(backend, 1), subtask, 2))
    assert parts[0].keyed is not None
    assert parts[1].keyed is not None
    assert segments(parts[0].keyed)
    assert not segments(parts[1].keyed)
    whole = bench.open(parts)
    table = dense(whole, evictable=True)
    count(table, np.array([next(iter(expected))]))
    expected[next(iter(expected))] += 1
    again = checkpoint(whole, 2)
    assert content(dense(bench.open([of_operator(again)]))) == expected
    halves = [dense(bench.open([of_operator(again)], subtask, 2)) for subtask in range(2)]
    assert content(halves[0]) | content(halves[1]) == expected


def _owner(key: int) -> int:
    from barrier_runtime.state.keys.key_groups import key_group

    return key_group((key,), 128) * 2 // 128


def test_a_subtask_gets_the_rows_of_its_key_groups_and_no_others(bench: Bench) -> None:
    backend = bench.open()
    table = dense(backend)
    count(table, np.arange(2_000))
    checkpoint(backend, 1)
    count(table, np.arange(100))
    table.remove(table.row_ids_int64(np.array([50, 1_500])))
    parts = [of_operator(checkpoint(backend, 2))]
    expected = {key: 1 + (key < 100) for key in range(2_000) if key not in (50, 1_500)}
    for number, parallelism in enumerate((3, 2, 1), 3):
        opened = [bench.open(parts, subtask, parallelism) for subtask in range(parallelism)]
        found = [content(dense(each)) for each in opened]
        assert {key: n for each in found for key, n in each.items()} == expected
        assert sum(map(len, found)) == len(expected)
        parts = [of_operator(checkpoint(each, number), at, parallelism) for at, each in enumerate(opened)]


@pytest.mark.parametrize("through", [1, 3])
def test_a_state_that_the_job_does_not_use_any_more_is_kept(bench: Bench, through: int) -> None:
    backend = bench.open()
    count(dense(backend, "old"), np.arange(500))
    count(dense(backend, "new"), np.arange(5))
    restored = [of_operator(checkpoint(backend, 1))]
    without = []
    for subtask in range(through):
        part = bench.open(restored, subtask, through)
        count(dense(part, "new"), np.empty(0, np.int64))
        without.append(of_operator(checkpoint(part, 2), subtask, through))
    back = dense(bench.open(without), "old")
    assert content(back) == dict.fromkeys(range(500), 1)


def test_closing_leaves_no_segments_behind_but_those_of_snapshots(bench: Bench) -> None:
    backend = bench.open()
    count(dense(backend), np.arange(5))
    checkpoint(backend, 1)
    backend.close()
    left = [path.parent.name for path in Path(bench.directory).rglob("segment-*.rows")]
    assert left == ["checkpoint-1-1"]
