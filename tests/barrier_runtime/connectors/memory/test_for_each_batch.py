"""`for_each_batch` in local runs and certified: every decided row reaches the function's target once, in order."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from barrier_runtime import BatchCheckpoint, BatchFunctionFailed, Dataflow, InvalidJob
from barrier_runtime.connectors.memory import batch_function
from barrier_runtime.connectors.memory.batch_function import (
    BatchCaller,
    BatchFunctionSink,
    BatchQueue,
    arrow_table,
    parquet,
)
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.write_ahead import DecidedBatch
from barrier_runtime.state.errors import Corrupt, UserCodeError
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.testing import certify


class Target:
    """SQLite target that stores the number of an application's last batch together with the rows."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        with self.connected() as db:
            db.execute("create table if not exists rows (id integer, number integer)")
            db.execute("create table if not exists taken (application text primary key, number integer)")

    def connected(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path)

    def take(self, rows: pa.Table, checkpoint: BatchCheckpoint) -> None:
        with self.connected() as db:
            found = db.execute("select number from taken where application = ?", (checkpoint.application,)).fetchone()
            if found is not None and found[0] >= checkpoint.number:
                return
            db.executemany("insert into rows values (?, ?)", [(id, checkpoint.number) for id in rows["id"].to_pylist()])
            db.execute("insert or replace into taken values (?, ?)", (checkpoint.application, checkpoint.number))

    def rows(self) -> list[dict[str, int]]:
        with self.connected() as db:
            return [{"id": id, "number": number} for id, number in db.execute("select * from rows order by rowid")]

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]


class CalledAtOnce(BatchFunctionSink):
    """Sink that calls the program's function where the sink would wait for the caller."""

    def __init__(self, target: Target) -> None:
        super().__init__("take")
        self.target = target

    def wait_until_done(self, batch: DecidedBatch) -> None:
        caller = BatchCaller(self._queue, self.target.take, 1, arrow_table)
        try:
            caller.turn()
        except BatchFunctionFailed as error:
            raise Corrupt(str(error)) from error


@pytest.mark.slow
def test_a_function_that_keeps_the_number_is_certified(tmp_path: Path) -> None:
    target = Target(tmp_path / "target.db")
    certificate = certify(
        lambda: CalledAtOnce(target), target.rows, scenarios=20, inside=10, seeds=range(2), ordered=True
    )
    assert certificate.guarantee == "exactly once"


def numbers(flow: Dataflow, count: int) -> Any:
    return flow.from_iterator(
        "numbers", lambda split, splits: ({"id": n} for n in range(split, count, splits)), schema={"id": int}, splits=2
    )


def test_a_local_job_ends_when_its_last_batch_was_taken(tmp_path: Path) -> None:
    target = Target(tmp_path / "target.db")
    flow = Dataflow("batches")
    numbers(flow, 1000).for_each_batch(target.take)
    flow.run_local(parallelism=2)
    assert sorted(target.ids()) == list(range(1000))
    taken = [row["number"] for row in target.rows()]
    assert taken == sorted(taken)


def test_a_function_that_exits_ends_the_job(tmp_path: Path) -> None:
    flow = Dataflow("batches")
    numbers(flow, 100).for_each_batch(lambda rows, checkpoint: sys.exit("enough"))
    with pytest.raises(UserCodeError, match="a function raised SystemExit: enough"):
        flow.run_local(checkpoints=str(tmp_path / "checkpoints"))


def test_a_call_that_raises_is_repeated_with_the_same_rows_and_number(tmp_path: Path) -> None:
    calls: list[tuple[int, str, list[int]]] = []

    def take(rows: pa.Table, checkpoint: BatchCheckpoint) -> None:
        calls.append((checkpoint.number, checkpoint.token, rows["id"].to_pylist()))
        if len(calls) < 4:
            raise OSError("the target is away")

    flow = Dataflow("batches")
    numbers(flow, 10).for_each_batch(take)
    flow.run_local(checkpoints=str(tmp_path / "checkpoints"))
    assert len(calls) == 4
    assert all(call == calls[0] for call in calls)
    left = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file() and "write-ahead" in str(path)]
    assert [path.parent.parent.parent.name for path in left] == ["delivered"]


@pytest.mark.slow
def test_function_that_always_raises_stops_the_job_and_next_run_retries_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_function, "_REPORT_AFTER_S", 1.0)  # a commit that waits while the job stops is awaited
    target = Target(tmp_path / "target.db")
    numbers_seen = []

    def broken(rows: pa.Table, checkpoint: BatchCheckpoint) -> None:
        numbers_seen.append(checkpoint.number)
        raise ValueError("no such table: rows_of_the_day")

    def run(function: Any) -> None:
        flow = Dataflow("batches")
        numbers(flow, 100).for_each_batch(function, name="out", attempts=2)
        flow.run_local(checkpoints=str(tmp_path / "checkpoints"))

    with pytest.raises(BatchFunctionFailed) as caught:
        run(broken)
    said = ["for_each_batch 'out' of job 'batches'", "broken() raised ValueError", "no such table: rows_of_the_day"]
    for text in [*said, "attempt 2 of 2", "start the job again"]:
        assert text in str(caught.value)
    run(target.take)
    assert sorted(target.ids()) == list(range(100))
    assert {row["number"] for row in target.rows()} == set(numbers_seen)


def test_what_is_no_function_and_no_number_of_attempts_is_refused() -> None:
    stream = numbers(Dataflow("batches"), 1)
    with pytest.raises(InvalidJob, match="for_each_batch: function=7: give a function"):
        stream.for_each_batch(7, name="out")
    with pytest.raises(InvalidJob, match="attempts is 0: give 1 or more"):
        stream.for_each_batch(print, attempts=0)


def test_columns_that_parquet_cannot_hold_are_refused_with_the_first_row() -> None:
    sink = opened(MemoryStore())
    rows = pa.RecordBatch.from_arrays([pa.array([None, None], pa.month_day_nano_interval())], names=["n"])
    with pytest.raises(InvalidJob, match="Parquet cannot hold these columns"):
        sink.write(sink.begin_transaction(), rows)


def test_spark_gets_times_before_1970_rounded_down() -> None:
    times = pa.record_batch({"at": pa.array([-1, -999, None, -1_001, 1_001], pa.timestamp("ns"))})
    found = pq.read_table(pa.BufferReader(parquet([times]))).column("at")
    assert found.cast(pa.int64()).to_pylist() == [-1, -1, None, -2, 1]


def opened(store: MemoryStore, token: int = 1, lineage: str = "lineage") -> BatchFunctionSink:
    sink = BatchFunctionSink("take")
    sink.open(SinkContext("job", "out", token, 0, 1, lambda url: store, store, lineage))
    return sink


def staged(sink: BatchFunctionSink, checkpoint: int, ids: list[int]) -> bytes:
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"id": ids}))
    committable = sink.pre_commit(transaction, checkpoint)
    assert committable is not None
    return committable


def asked(store: MemoryStore, sink: BatchFunctionSink, committables: list[bytes]) -> BatchQueue:
    """Returns the queue of a generation that died while waiting for the function."""
    sink.close()
    with pytest.raises(Exception, match="has not returned for checkpoint"):
        sink.commit_globally(9, committables)
    return BatchQueue(store, "job", "out")


def test_a_generation_that_died_while_it_waited_is_asked_for_again_and_not_repeated(store: MemoryStore) -> None:
    sink = opened(store)
    one, two = staged(sink, 1, [1]), staged(sink, 2, [2])
    queue = asked(store, sink, [one, two])
    seen: list[int] = []
    caller = BatchCaller(queue, lambda rows, _: seen.extend(rows["id"].to_pylist()), 1, arrow_table)
    assert caller.turn()
    successor = opened(store, token=2)
    successor.recover([one, two])
    successor.close()
    with pytest.raises(Exception, match="checkpoint 2"):
        successor.commit_globally(2, [one, two])
    assert caller.turn()
    successor.commit_globally(2, [one, two])
    assert seen == [1, 2]
    assert not caller.turn()


def test_rows_that_no_checkpoint_lists_are_swept_and_those_that_wait_are_kept(store: MemoryStore) -> None:
    sink = opened(store)
    listed = staged(sink, 1, [1])
    staged(sink, 2, [2])
    opened(store, token=2).recover([listed])
    assert len(list(store.list("job/write-ahead/out/staged/"))) == 1


def test_a_start_from_nothing_forgets_what_the_earlier_one_asked_for(store: MemoryStore) -> None:
    sink = opened(store)
    queue = asked(store, sink, [staged(sink, 1, [1])])
    assert [batch.lineage for batch in queue.asked()] == ["lineage"]
    opened(store, token=2, lineage="another")
    assert queue.asked() == []


def test_damaged_rows_are_named_and_the_function_never_sees_them(store: MemoryStore) -> None:
    sink = opened(store)
    queue = asked(store, sink, [staged(sink, 1, [1])])
    [found] = store.list("job/write-ahead/out/staged/")
    store.put(found.key, b"PAR1 something else")
    with pytest.raises(BatchFunctionFailed, match="decided rows are damaged"):
        BatchCaller(queue, lambda rows, _: pytest.fail("called"), 1, arrow_table).turn()
