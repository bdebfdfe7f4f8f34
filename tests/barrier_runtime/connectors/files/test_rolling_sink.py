"""File sink with files that grow over checkpoints, in folders by columns: crashes at every write, and rescaling."""

import hashlib
import itertools
import time
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from sink_harness import (
    Crash,
    CrashingStore,
    Job,
    Subtask,
    numbers_in,
    numbers_in_commit_log,
    staged_in,
    visible_in,
)

from barrier_runtime import CollectSink, Dataflow, JsonlSink, ParquetSink, committed_files
from barrier_runtime.connectors.files.sink.sink import CsvSink as Csv
from barrier_runtime.connectors.files.sink.sink import JsonlSink as Jsonl
from barrier_runtime.connectors.files.sink.sink import ParquetSink as Parquet
from barrier_runtime.connectors.memory.callable import CallableSink
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.data.elements import Batch
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.open import open_store

THREE_ROWS = 3 * 8


def rolling(**options: Any) -> Callable[[], Jsonl]:
    return lambda: Jsonl("memory://target", **{"roll_bytes": THREE_ROWS, "roll_age": timedelta(days=1), **options})


def written(subtask: Subtask, rows: pa.Table) -> None:
    for batch in rows.to_batches():
        subtask.operator.process(Batch(batch, 0), lambda batch: None)


def checkpointed(subtask: Subtask, checkpoint: int, *numbers: int) -> OperatorSnapshot:
    subtask.write(numbers)
    snapshot = subtask.barrier(checkpoint)()
    subtask.complete(checkpoint)
    return snapshot


# ---------------------------------------------------------------- rolling


def test_a_file_spans_checkpoints_and_is_seen_with_the_one_that_rolls_it(store: MemoryStore) -> None:
    subtask = Subtask(rolling(), store)
    checkpointed(subtask, 1, 1)
    checkpointed(subtask, 2, 2)
    assert numbers_in(store) == numbers_in_commit_log(store) == [] == staged_in(store)
    checkpointed(subtask, 3, 3)
    assert numbers_in(store) == numbers_in_commit_log(store) == [1, 2, 3]
    assert len(visible_in(store)) == 1


def test_an_idle_sink_shows_a_file_when_it_is_old_enough(store: MemoryStore) -> None:
    now = [0]
    subtask = Subtask(rolling(roll_age=timedelta(minutes=5)), store, wall_ms=lambda: now[0])
    checkpointed(subtask, 1, 1)
    now[0] = 299_999
    checkpointed(subtask, 2)
    assert numbers_in(store) == []
    now[0] = 300_000
    checkpointed(subtask, 3)
    assert numbers_in_commit_log(store) == [1]


@pytest.mark.parametrize("late_commits", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("roll_bytes", [THREE_ROWS, 1 << 30])
def test_a_crash_at_any_write_loses_and_doubles_nothing(late_commits: bool, roll_bytes: int) -> None:
    """Files of three rows, or all rows in a file: the restored snapshot contains the rows of the file open at the
    crash.
    """
    for crash_at in itertools.count():
        store, crashed = MemoryStore(), False
        job = Job(rolling(roll_bytes=roll_bytes), rows=7, late_commits=late_commits, ends=True)
        try:
            job.run(CrashingStore(store, crash_at))
        except Crash:
            crashed = True
            seen = numbers_in(store)
            assert seen == list(range(len(seen))), f"crash at {crash_at}"
            job.run(store)
        assert numbers_in(store) == numbers_in_commit_log(store) == list(range(7)), f"crash at {crash_at}"
        assert staged_in(store) == [], f"crash at {crash_at}"
        if not crashed:
            break
    assert crash_at >= 6


def test_a_checkpoint_that_is_given_up_leaves_its_rows_open_once(store: MemoryStore) -> None:
    subtask = Subtask(rolling(), store)
    subtask.write([1, 2])
    subtask.barrier(1)()
    subtask.operator.on_abort(1)
    subtask.write([3])
    snapshot = subtask.barrier(2)()  # rolls the rows of both checkpoints
    restored = Subtask(rolling(), store, token=2, restored=(snapshot,))
    restored.settle()
    assert numbers_in(store) == [1, 2, 3]
    checkpointed(restored, 3, 4, 5, 6)
    assert numbers_in(store) == [1, 2, 3, 4, 5, 6]


def test_a_store_that_fails_while_a_file_is_rolled_only_delays(store: MemoryStore) -> None:
    subtask = Subtask(rolling(), store)
    checkpointed(subtask, 1, 1, 2)
    store.inject(Fault.APPLY_THEN_FAIL, "put", times=2)
    subtask.write([3])
    finish = subtask.barrier(2)
    for _ in range(2):
        with pytest.raises(Unavailable):
            finish()
    finish()
    subtask.complete(2)
    assert numbers_in(store) == numbers_in_commit_log(store) == [1, 2, 3]


def test_rows_that_outgrow_memory_are_shown_behind_those_of_the_open_file(store: MemoryStore) -> None:
    subtask = Subtask(rolling(roll_bytes=1 << 30, max_bytes_in_memory=1 << 30), store)
    subtask.operator._sink.max_bytes_in_memory = 4_096
    checkpointed(subtask, 1, 1)
    for number in range(2, 10):
        subtask.write([number])
    checkpointed(subtask, 2, 10)
    names = numbers_in_commit_log(store)
    assert names == list(range(1, 11))
    assert len(visible_in(store)) >= 3


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (4, 3), (2, 2)])
def test_open_files_go_on_at_another_parallelism(before: int, after: int, store: MemoryStore) -> None:
    snapshots = []
    for index in range(before):
        subtask = Subtask(rolling(), store, subtask=index, parallelism=before)
        snapshots.append(checkpointed(subtask, 1, 2 * index, 2 * index + 1))
    assert numbers_in(store) == []
    for index in range(after):
        subtask = Subtask(rolling(), store, token=2, restored=tuple(snapshots), subtask=index, parallelism=after)
        subtask.operator.on_end(lambda batch: None)
        checkpointed(subtask, 2)
    assert sorted(numbers_in(store)) == list(range(2 * before))


@pytest.mark.parametrize("make_sink", [rolling(), lambda: Jsonl("memory://target")])
def test_rows_that_came_before_a_rescale_are_shown_before_newer_ones(make_sink: Any, store: MemoryStore) -> None:
    """Newer rows may have the same keys and be in another subtask, which must not show the newer rows first."""
    snapshot = checkpointed(Subtask(rolling(), store), 1, 1)
    older = Subtask(make_sink, store, 2, (snapshot,), 0, 2)
    checkpointed(older, 2, 2, 3, 4)
    assert numbers_in(store) == [1]
    checkpointed(older, 3)
    assert numbers_in(store) == [1, 2, 3, 4]


def test_without_rolling_what_was_open_is_shown_with_the_next_checkpoint(store: MemoryStore) -> None:
    snapshot = checkpointed(Subtask(rolling(), store), 1, 1)
    checkpointed(Subtask(lambda: Jsonl("memory://target"), store, 2, (snapshot,)), 2)
    assert numbers_in_commit_log(store) == [1]


def test_a_sink_that_keeps_no_rows_is_refused_where_some_are_open(store: MemoryStore) -> None:
    snapshot = checkpointed(Subtask(rolling(), store), 1, 1)
    with pytest.raises(InvalidJob, match="has rows of files that this sink had not finished"):
        Subtask(lambda: CallableSink(print), store, 2, (snapshot,))


def test_useless_settings_are_refused() -> None:
    with pytest.raises(InvalidJob, match="give bytes, above 0"):
        Jsonl("out", roll_bytes=0)
    with pytest.raises(InvalidJob, match="pass a datetime"):
        Jsonl("out", roll_age="60")  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="names a column twice"):
        Jsonl("out", partition_by=["day", "day"])


# ---------------------------------------------------------------- folders


ORDERS = pa.table(
    {
        "n": pa.array(range(6), pa.int64()),
        "day": pa.array([date(2026, 1, 1), date(2026, 1, 2), date(2026, 1, 1), None, date(2026, 1, 2), None]),
        "shop": ["Köln", "a/b=c", "Köln", "", None, "%"],
    }
)


@pytest.mark.parametrize("sink", [Parquet, Jsonl, Csv])
def test_rows_lie_in_folders_by_their_columns(sink: Any, store: MemoryStore) -> None:
    subtask = Subtask(lambda: sink("memory://target", partition_by=["day", "shop"]), store)
    written(subtask, ORDERS)
    subtask.barrier(1)()
    subtask.complete(1)
    folders = {key.rpartition("/")[0] for key in visible_in(store)}
    null = "__HIVE_DEFAULT_PARTITION__"
    assert folders == {
        "day=2026-01-01/shop=Köln",
        "day=2026-01-02/shop=a%2Fb%3Dc",
        f"day={null}/shop={null}",
        f"day=2026-01-02/shop={null}",
        f"day={null}/shop=%25",
    }
    assert sorted(numbers_in(store)) == sorted(numbers_in_commit_log(store)) == list(range(6))


@pytest.mark.slow
def test_files_in_folders_are_read_as_what_they_were(tmp_path: Path) -> None:
    flow = Dataflow("write")
    rows = flow.from_iterator("in", lambda i, n: iter(ORDERS.to_pylist()), schema=ORDERS.schema, splits=1)
    rows.sink("out", ParquetSink(str(tmp_path / "out"), partition_by=["day", "shop"], roll_bytes=1 << 20))
    flow.run_local(parallelism=2, checkpoint_interval=0.05)
    expected = [{**row, "shop": row["shop"] or None} for row in ORDERS.to_pylist()]
    found = pyarrow.dataset.dataset(str(tmp_path / "out"), partitioning="hive").to_table().to_pylist()
    assert sorted(row["n"] for row in found) == list(range(6))
    by_path = [pq.read_table(path, partitioning=None).num_rows for path in committed_files(str(tmp_path / "out"))]
    assert sum(by_path) == 6
    back, out = Dataflow("read"), CollectSink()
    back.read_parquet("in", str(tmp_path / "out")).sink("out", out)
    back.run_local()
    assert sorted(out.rows(), key=lambda row: row["n"]) == expected


def test_columns_that_cannot_be_folders_are_refused(store: MemoryStore) -> None:
    for columns, text in (
        (["x"], "names the column 'x'; the rows have n, at"),
        (["at"], "partition_by column 'at' is timestamp"),
        (["n", "at"], "use text, integers"),
    ):
        subtask = Subtask(lambda columns=columns: Jsonl("memory://target", partition_by=columns), store)  # type: ignore[misc]
        with pytest.raises(InvalidJob, match=text):
            written(subtask, pa.table({"n": [1], "at": pa.array([1], pa.timestamp("ms"))}))
    subtask = Subtask(lambda: Jsonl("memory://target", partition_by=["n"]), store)
    with pytest.raises(InvalidJob, match="names every column"):
        written(subtask, pa.table({"n": [1]}))


def test_a_partitioned_sink_is_made_again_of_its_settings_and_shows_what_was_decided(store: MemoryStore) -> None:
    """`barrier-runtime transactions` does so, without the program."""
    sink = Jsonl("memory://target", partition_by="n")
    sink.open(SinkContext("job", "out", 1, 0, 1, lambda url: store, store, "lineage"))
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.record_batch({"n": [1, 2], "x": [3, 4]}))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    other = Jsonl(**sink.settings())
    other.open(SinkContext("job", "out", 2, 0, 1, lambda url: store, store, "lineage"))
    other.recover([committable])
    assert {key.split("/")[0] for key in visible_in(store)} == {"n=1", "n=2"}


@pytest.mark.slow
def test_jsonl_rolls_in_a_whole_job(tmp_path: Path) -> None:
    flow = Dataflow("rolls")
    rows = flow.rate("numbers", 2_000, 1_000, keys=3)
    rows.sink("out", JsonlSink(str(tmp_path / "out"), partition_by=["key"], roll_bytes=4_000))
    flow.run_local(parallelism=2, checkpoint_interval=0.02)
    files = committed_files(str(tmp_path / "out"))
    lines = sum(len(Path(file.removeprefix("file://")).read_text().splitlines()) for file in files)
    assert lines == 1_000
    assert len(files) < 60


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_a_job_that_failed_goes_on_with_its_open_files_at_another_parallelism(tmp_path: Path) -> None:
    """Parts are objects of the checkpoints by then: more than 4 kB of rows are open."""
    failing = [True]
    store = open_store(str(tmp_path / "checkpoints"))

    def stored() -> bool:
        objects = store.list("")  # a listing of the folder would meet files being deleted
        return any("/data/" in found.key and found.size > 5_000 for found in objects)

    def numbers(split: int, splits: int) -> Iterator[dict[str, Any]]:
        for n in range(400):
            while n == 300 and failing[0]:
                if stored():
                    raise RuntimeError("the disk is full")
                time.sleep(0.01)
            yield {"n": n * splits + split, "text": hashlib.sha512(f"{split}-{n}".encode()).hexdigest()}

    def run(parallelism: int) -> None:
        flow = Dataflow("goes-on")
        rows = flow.from_iterator("in", numbers, schema={"n": int, "text": str}, splits=2)
        rows.sink("out", ParquetSink(str(tmp_path / "out"), roll_bytes=1 << 30))
        flow.run_local(
            parallelism=parallelism,
            checkpoints=str(tmp_path / "checkpoints"),
            checkpoint_interval=0.01,
            restart="none",
        )

    with pytest.raises(Exception, match="the disk is full"):
        run(2)
    assert not list((tmp_path / "out").glob("*.parquet"))
    failing[0] = False
    run(3)
    files = committed_files(str(tmp_path / "out"))
    found = [n for file in files for n in pq.read_table(file.removeprefix("file://"))["n"].to_pylist()]
    assert sorted(found) == list(range(800))
    assert len(files) <= 6
