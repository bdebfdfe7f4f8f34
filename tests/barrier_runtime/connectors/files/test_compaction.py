"""Compaction of small committed files: readers of the log see each row once, whichever process dies at any time."""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sink_harness import Crash, CrashingStore, Subtask, numbers_in, numbers_of

from barrier_runtime import Dataflow, JsonlSink, ParquetSink, committed_files
from barrier_runtime.connectors.files.sink.commit_log import CommittedFile, read_commit_log
from barrier_runtime.connectors.files.sink.commit_record import CommitRecord, decode_commit_record, live_files
from barrier_runtime.connectors.files.sink.compaction import Compacted, Compaction, compact_files
from barrier_runtime.connectors.files.sink.sink import CsvSink as Csv
from barrier_runtime.connectors.files.sink.sink import JsonlSink as Jsonl
from barrier_runtime.connectors.files.sink.sink import ParquetSink as Parquet
from barrier_runtime.data.elements import Batch
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectInfo, ObjectStore, PutOutcome

KEEP_MS = 1_000


def seen(store: ObjectStore) -> list[int]:
    """Returns the rows seen by a reader of the log that reads each file by name."""
    names = [file.name for file in live_files(read_commit_log(store, "job", "out"))]
    return [number for name in names for number in numbers_of(name, store.get(name))]


def target(make_sink: Callable[[], Any], count: int = 5) -> tuple[MemoryStore, Subtask]:
    store = MemoryStore()
    subtask = Subtask(make_sink, store)
    for number in range(count):
        written(subtask, number + 1, number)
    return store, subtask


def written(subtask: Subtask, checkpoint: int, number: int) -> Any:
    rows = pa.record_batch({"n": pa.array([number], pa.int64()), "half": [number % 2]})
    subtask.operator.process(Batch(rows, 0), lambda batch: None)
    snapshot = subtask.barrier(checkpoint)()
    subtask.complete(checkpoint)
    return snapshot


def run(store: ObjectStore, now_ms: int, target_bytes: int = 1 << 20) -> Compacted:
    return Compaction(store, "job", "out", target_bytes, KEEP_MS, lambda: now_ms).run()


@pytest.mark.parametrize("sink", [Parquet, Jsonl, Csv])
@pytest.mark.parametrize("columns", [(), ("half",)])
def test_small_files_become_one_per_folder_in_the_order_of_their_rows(sink: Any, columns: tuple[str, ...]) -> None:
    store, _ = target(lambda: sink("memory://target", partition_by=columns), 6)
    before, files = seen(store), 2 if columns else 1
    assert run(store, 0) == Compacted(merged=6, made=files)
    assert seen(store) == (before if not columns else [0, 2, 4, 1, 3, 5])
    assert len(numbers_in(store)) == 6, "the folder is as it was"
    assert run(store, KEEP_MS - 1) == Compacted(waiting=files)
    assert run(store, KEEP_MS) == Compacted(shown=files)
    names = [file.name for file in live_files(read_commit_log(store, "job", "out"))]
    assert [name.rpartition("/")[0] for name in names] == (["half=0", "half=1"] if columns else [""])
    assert sorted(numbers_in(store)) == sorted(before)
    assert run(store, 2 * KEEP_MS) == Compacted()
    assert list(store.list("_compacted/")) == []
    assert sorted(seen(store)) == sorted(before)


@pytest.mark.slow
def test_a_run_that_dies_at_any_write_is_noticed_by_no_reader_of_the_log() -> None:
    """Later runs also die at any write. A reader that lists the folder never sees a row twice, and finally sees all
    rows once.
    """
    for first, second in itertools.product(range(40), (0, 1, 2, 3, 5, 8, None)):
        store, _ = target(lambda: Jsonl("memory://target"), 3)
        crashed = False
        for crash_at, now_ms in (
            (first, 0),
            (second, KEEP_MS),
            (first, 2 * KEEP_MS),
            (None, 3 * KEEP_MS),
            (None, 10**9),
        ):
            try:
                run(CrashingStore(store, crash_at), now_ms)
            except Crash:
                crashed = True
            assert seen(store) == [0, 1, 2], (first, second, now_ms)
            listed = numbers_in(store)
            assert len(listed) == len(set(listed)), (first, second, now_ms)
        for now_ms in (2 * 10**9, 3 * 10**9, 4 * 10**9):
            run(store, now_ms)
        assert seen(store) == [0, 1, 2] == numbers_in(store), (first, second)
        assert list(store.list("_compacted/")) == [], (first, second)
        if not crashed:
            break


def test_the_job_goes_on_while_its_files_are_compacted_and_is_restored_behind_it() -> None:
    store, subtask = target(lambda: Jsonl("memory://target"), 3)
    run(store, 0)
    snapshot = written(subtask, 4, 3)
    run(store, KEEP_MS)
    assert seen(store) == sorted(numbers_in(store)) == [0, 1, 2, 3]
    run(store, 2 * KEEP_MS)
    run(store, 3 * KEEP_MS)  # the last file is compacted, too: the restored job commits that file again
    after = Subtask(lambda: Jsonl("memory://target"), store, 2, (snapshot,))
    after.settle()
    written(after, 5, 4)
    assert seen(store) == [0, 1, 2, 3, 4]
    assert sorted(numbers_in(store)) == [0, 1, 2, 3, 4]


def test_of_two_runs_at_once_one_gives_way() -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 4)
    other: list[Compacted] = []

    class Meanwhile(CrashingStore):
        def put_file(self, key: str, path: Path) -> None:
            super().put_file(key, path)
            if not other:
                other.append(run(store, 0))

    assert run(Meanwhile(store), 0) == Compacted()
    assert other == [Compacted(merged=4, made=1)]
    assert seen(store) == [0, 1, 2, 3]
    assert len(list(store.list("_compacted/"))) == 1


def hidden(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("_compacted/")]


def swept(store: ObjectStore, hours: int = 25) -> None:
    """A run, perhaps with a clock ahead, that finds files left over and nothing to merge."""
    run(store, time.time_ns() // 1_000_000 + hours * 3_600_000, target_bytes=1)


@pytest.mark.parametrize("stalls", ["before the record", "beyond the day of left-over files"])
def test_a_large_file_that_another_run_took_for_left_over_costs_no_row(stalls: str) -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 4)
    clock = [0]

    class Stalled(CrashingStore):
        def put_if_absent(self, key: str, data: bytes) -> PutOutcome:
            if stalls == "before the record":
                swept(store)
            return super().put_if_absent(key, data)

        def put_file(self, key: str, path: Path) -> None:
            super().put_file(key, path)
            if stalls != "before the record":
                clock[0] += 13 * 3_600_000

    found = Compaction(Stalled(store), "job", "out", 1 << 20, KEEP_MS, lambda: clock[0]).run()
    assert found.made == (1 if stalls == "before the record" else 0)
    assert len(hidden(store)) == found.made
    assert bool(found.skipped) == (found.made == 0)
    swept(store)
    assert seen(store) == [0, 1, 2, 3]
    for now_ms in (10**9, 2 * 10**9, 3 * 10**9):
        run(store, now_ms)
        assert seen(store) == [0, 1, 2, 3]
    assert sorted(numbers_in(store)) == [0, 1, 2, 3]


def test_a_large_file_is_not_left_over_if_a_newer_record_names_it() -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 4)

    class Stalled(CrashingStore):
        """Another run makes a large file between the log and the listing of this run."""

        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            if prefix.startswith("_compacted/") and not hidden(store):
                run(store, 0)
            return super().list(prefix)

    swept(Stalled(store))
    assert seen(store) == [0, 1, 2, 3]
    assert len(hidden(store)) == 1


@pytest.mark.parametrize("lost", ["gone", "damaged"])
def test_small_files_stay_until_the_large_file_can_replace_them(lost: str) -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 4)
    run(store, 0)
    (large,) = hidden(store)
    data = store.get(large)
    store.delete([large])
    if lost == "damaged":
        store.put(large, data[:-2])
    for _ in range(2):
        with pytest.raises(
            Corrupt, match=r"_compacted/.* 4 small files that it replaces, .* left as they are: restore"
        ):
            run(store, KEEP_MS)
        assert numbers_in(store) == [0, 1, 2, 3]
    store.put(large, data)
    assert run(store, KEEP_MS).shown == 1
    assert seen(store) == numbers_in(store) == [0, 1, 2, 3]


def test_files_that_readers_have_listed_stay_for_as_long_as_they_are_kept() -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 3)
    listed = [file.name for file in live_files(read_commit_log(store, "job", "out"))]
    run(store, 0)
    run(store, KEEP_MS - 1)
    assert [number for name in listed for number in numbers_of(name, store.get(name))] == [0, 1, 2]
    listed = [file.name for file in live_files(read_commit_log(store, "job", "out"))]
    run(store, KEEP_MS)
    run(store, 2 * KEEP_MS - 1)
    assert [number for name in listed for number in numbers_of(name, store.get(name))] == [0, 1, 2]


@pytest.mark.slow
def test_a_row_is_rewritten_a_few_times_however_often_compaction_runs() -> None:
    store, subtask = target(lambda: Jsonl("memory://target"), 1)
    made = 0
    for number in range(1, 65):
        written(subtask, number + 1, number)
        for _ in range(3):
            made += run(store, number * 10 * KEEP_MS).merged
    assert made < 64 * 8
    assert seen(store) == list(range(65))


def test_large_files_and_other_columns_are_left_apart() -> None:
    store, subtask = target(lambda: Parquet("memory://target"), 2)
    subtask.operator.process(Batch(pa.record_batch({"n": pa.array([2], pa.int64())}), 0), lambda batch: None)
    subtask.barrier(3)()
    subtask.complete(3)
    written(subtask, 4, 3)
    assert run(store, 0, target_bytes=1_000) == Compacted()
    assert run(store, 0) == Compacted(merged=2, made=1)
    assert seen(store) == [0, 1, 2, 3]


def test_small_files_around_a_large_one_stay_in_the_order_of_their_rows() -> None:
    store, subtask = target(lambda: Jsonl("memory://target"), 2)
    rows = pa.record_batch({"n": pa.array(range(100, 300), pa.int64()), "half": [0] * 200})
    subtask.operator.process(Batch(rows, 0), lambda batch: None)
    subtask.barrier(3)()
    subtask.complete(3)
    for number in (2, 3):
        written(subtask, number + 2, number)
    before = seen(store)
    assert before == [0, 1, *range(100, 300), 2, 3]
    assert run(store, 0, target_bytes=2_000) == Compacted(merged=4, made=2)
    assert seen(store) == before


def test_a_csv_header_of_several_lines_is_in_the_large_file_once() -> None:
    store = MemoryStore()
    subtask = Subtask(lambda: Csv("memory://target"), store)
    for number in range(2):
        rows = pa.record_batch({"n": pa.array([number], pa.int64()), 'a\n"b"': ["x\ny"]})
        subtask.operator.process(Batch(rows, 0), lambda batch: None)
        subtask.barrier(number + 1)()
        subtask.complete(number + 1)
    assert run(store, 0) == Compacted(merged=2, made=1)
    (file,) = live_files(read_commit_log(store, "job", "out"))
    assert store.get(file.name) == b'"n","a\n""b"""\n0,"x\ny"\n1,"x\ny"\n'


def test_damaged_and_missing_files_are_not_compacted() -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 3)
    name = live_files(read_commit_log(store, "job", "out"))[1].name
    store.damage(name, b'{"n":7}\n')
    with pytest.raises(Corrupt, match="is not what was committed"):
        run(store, 0)
    store.delete([name])
    assert run(store, 0).made == 0
    store, _ = target(lambda: Parquet("memory://target"), 3)
    store.delete([live_files(read_commit_log(store, "job", "out"))[1].name])
    assert run(store, 0).made == 0


def test_records_without_compaction_are_written_as_older_releases_read_them() -> None:
    store, _ = target(lambda: Jsonl("memory://target"), 2)
    keys = sorted(info.key for info in store.list("_commits/job/out/"))
    data = store.get(keys[0])
    assert b'"version":1' in data
    assert b"replaces" not in data
    run(store, 0)
    assert decode_commit_record(store.get(f"_commits/job/out/{3:020d}.json"), "", "job", "out").replaces


def test_a_log_of_compactions_of_compactions_is_read_in_order() -> None:
    def record(*files: str, replaces: tuple[str, ...] = ()) -> CommitRecord:
        named = tuple(CommittedFile(name, "", 1) for name in files)
        return CommitRecord(2, "job", "out", 1, 1, 1, 1, named, replaces=replaces)

    records = [
        record("a", "b"),
        record("c"),
        record("ab", replaces=("a", "b")),
        record("d"),
        record("abc", replaces=("ab", "c")),
        record("e"),
    ]
    assert [file.name for file in live_files(records)] == ["abc", "d", "e"]


@pytest.mark.slow
def test_a_folder_of_a_job_is_compacted_by_its_url(tmp_path: Path) -> None:
    def parts() -> list[str]:  # a staging folder may vanish meanwhile, which `rglob` does not allow
        return [name for _, _, names in os.walk(tmp_path / "out") for name in names if name.startswith("part-")]

    def numbers(index: int, of: int) -> Iterator[dict[str, int]]:
        """Three parts; each waits until files of the part before are visible."""
        seen = 0
        for value in range(600):
            while value in (200, 400) and (files := len(parts())) <= seen:
                time.sleep(0.01)
            seen = files if value in (200, 400) else seen
            yield {"value": value, "key": value % 2}

    flow = Dataflow("many")
    rows = flow.from_iterator("numbers", numbers, schema={"value": int, "key": int}, splits=1)
    rows.sink("lines", JsonlSink(str(tmp_path / "out")))
    rows.sink("table", ParquetSink(str(tmp_path / "out"), partition_by="key"))
    flow.run_local(parallelism=1, checkpoint_interval=0.02)
    before = len(committed_files(str(tmp_path / "out")))
    done = compact_files(str(tmp_path / "out"), keep_s=0)
    assert set(done) == {("many", "lines"), ("many", "table")}
    compact_files(str(tmp_path / "out"), keep_s=0)
    compact_files(str(tmp_path / "out"), keep_s=0)
    assert len(committed_files(str(tmp_path / "out"))) == 3 < before
    with pytest.raises(InvalidJob, match="has no commit log of job other"):
        compact_files(str(tmp_path / "out"), "other")
    with pytest.raises(InvalidJob, match="give bytes, above 0"):
        compact_files(str(tmp_path / "out"), target_bytes=0)
