"""Sinks that write at once: rows leave before the barrier, in order, and a barrier waits for the target's answer.

The tests are the table of `runtime/sinks/at_once`: each drives writer, listener and pre-commit by hand.
"""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.sink import Acknowledgement
from barrier_runtime.connectors.sink_bases.upsert import DirectSink, UpsertSink
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.store.memory import MemoryStore
from tests.barrier_runtime.sink_harness import NOW_NS, Subtask


class Table(UpsertSink):
    """Notes each write of rows; `errors`: raised by the next writes."""

    def __init__(self, *, write_bytes: int = 256 << 10, pause_s: float = 0.0) -> None:
        super().__init__()
        self.write_bytes = write_bytes  # type: ignore[misc]
        self.pause_s = pause_s
        self.writes: list[list[int]] = []
        self.errors: list[Exception] = []

    def upsert(self, rows: pa.RecordBatch) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.writes.append(rows.column("n").to_pylist())

    @property
    def rows(self) -> list[int]:
        return [number for write in self.writes for number in write]


class Broker(DirectSink):
    """Target that answers later, as Kafka does: `answered` is the number of acknowledged rows."""

    guarantee = "at_least_once"

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.answered = 0
        self.answers = threading.Condition()

    def write_out(self, batches: Sequence[pa.RecordBatch]) -> None:
        self.rows += [number for batch in batches for number in batch.column("n").to_pylist()]

    def acknowledgement(self) -> Acknowledgement:
        wanted = len(self.rows)

        def wait() -> None:
            with self.answers:
                self.answers.wait_for(lambda: self.answered >= wanted)

        return wait

    def pre_commit(self, transaction: Any, checkpoint: int) -> None:
        super().pre_commit(transaction, checkpoint)
        self.acknowledgement()()

    def answer(self, rows: int) -> None:
        with self.answers:
            self.answered = rows
            self.answers.notify_all()


def subtask_of(sink: DirectSink) -> Subtask:
    return Subtask(lambda: sink, MemoryStore())


def in_thread(call: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=call)
    thread.start()
    return thread


# ---------------------------------------------------------------- before the barrier


def test_rows_are_written_without_a_barrier_and_their_latency_counts_then() -> None:
    subtask = subtask_of(table := Table())
    subtask.write([1], emit_ns=NOW_NS - 3_000_000)
    assert "visible" not in subtask.metrics.latencies
    subtask.writer.run()
    assert table.rows == [1]
    assert "visible" in subtask.metrics.latencies


def test_rows_that_come_during_a_write_leave_together_with_the_next() -> None:
    subtask = subtask_of(table := Table())
    for number in range(4):
        subtask.write([number])
    subtask.writer.run()
    assert table.writes == [[0], [1, 2, 3]]


def test_a_target_that_likes_large_writes_gets_the_rows_of_its_pause_together() -> None:
    subtask = subtask_of(table := Table(pause_s=0.5))
    subtask.write([1])
    subtask.writer.run()
    subtask.write([2])
    subtask.write([3])
    assert subtask.writer.run() == 0
    assert [seconds for seconds, _ in subtask.later] == [0.5]
    subtask.pass_time()
    subtask.writer.run()
    assert table.writes == [[1], [2, 3]]


def test_two_writes_under_way_leave_no_room_until_one_has_ended() -> None:
    subtask = subtask_of(table := Table(write_bytes=1))
    subtask.write([1])
    assert subtask.operator.has_room
    subtask.write([2])
    assert not subtask.operator.has_room
    subtask.writer.run()
    assert subtask.operator.has_room
    assert subtask.woken == 2
    assert table.rows == [1, 2]


# ---------------------------------------------------------------- at the barrier


def test_a_barrier_writes_the_rest_once_whether_the_writer_or_pre_commit_is_first() -> None:
    for writer_first in (True, False):
        subtask = subtask_of(table := Table())
        subtask.write([1])
        subtask.write([2])
        finish = subtask.barrier(1)
        if writer_first:
            subtask.writer.run()
        finish()
        assert table.rows == [1, 2]
        subtask.writer.run()
        assert table.rows == [1, 2]


def test_rows_after_a_barrier_leave_after_the_rows_before_it() -> None:
    """The pre-commit is late, or never comes because the checkpoint was aborted."""
    subtask = subtask_of(table := Table())
    subtask.write([1])
    subtask.write([2])
    finish = subtask.barrier(1)
    subtask.write([3])
    subtask.writer.run()
    assert table.rows == [1, 2, 3]
    finish()
    assert table.rows == [1, 2, 3]


def test_a_barrier_waits_for_the_rows_before_it_while_later_rows_leave() -> None:
    subtask = subtask_of(broker := Broker())
    subtask.write([1])
    subtask.write([2])
    finish = subtask.barrier(1)
    sealed = in_thread(finish)
    subtask.write([3])
    subtask.writer.run()
    assert broker.rows == [1, 2, 3], "the waiting barrier holds no row"
    assert sealed.is_alive()
    broker.answer(3)
    sealed.join()
    assert 1 in subtask.manifests


def test_rows_count_as_visible_when_the_target_has_answered() -> None:
    subtask = subtask_of(broker := Broker())
    subtask.write([1], emit_ns=NOW_NS - 3_000_000)
    subtask.writer.run()
    assert broker.rows == [1]
    assert "visible" not in subtask.metrics.latencies
    broker.answer(1)
    subtask.listener.run()
    assert "visible" in subtask.metrics.latencies


# ---------------------------------------------------------------- failures


def test_a_write_that_failed_is_repeated_before_later_rows_and_loses_nothing() -> None:
    subtask = subtask_of(table := Table(write_bytes=1))
    table.errors = [Unavailable("away"), Unavailable("away")]
    subtask.write([1])
    subtask.write([2])
    for attempt in (1, 2):
        subtask.writer.run()
        assert not subtask.operator.has_room, "rows wait in the channels while the target is away"
        assert subtask.metrics.counts["early_staging_failed"] == attempt
        subtask.pass_time()
    subtask.writer.run()
    assert table.rows == [1, 2]
    assert subtask.operator.has_room


def test_a_barrier_during_an_outage_is_declined_and_the_next_has_all_rows() -> None:
    subtask = subtask_of(table := Table())
    table.errors = [Unavailable("away"), Unavailable("away")]
    subtask.write([1])
    subtask.writer.run()
    with pytest.raises(Unavailable, match="away"):
        subtask.barrier(1)()
    subtask.write([2])
    subtask.barrier(2)()
    subtask.pass_time()
    subtask.writer.run()
    assert table.rows == [1, 2]


def test_a_refused_row_ends_the_job_at_the_next_rows_with_its_error() -> None:
    subtask = subtask_of(table := Table())
    table.errors = [InvalidJob("row 1 is too large")]
    subtask.write([1])
    subtask.writer.run()
    assert subtask.operator.has_room, "the next rows must get through to raise"
    with pytest.raises(InvalidJob, match="row 1 is too large"):
        subtask.write([2])


def test_a_refused_row_ends_the_job_at_the_barrier_if_no_row_follows() -> None:
    subtask = subtask_of(table := Table())
    table.errors = [InvalidJob("row 1 is too large")] * 2
    subtask.write([1])
    subtask.writer.run()
    with pytest.raises(InvalidJob, match="row 1 is too large"):
        subtask.barrier(1)()


def test_nothing_is_written_after_close() -> None:
    subtask = subtask_of(table := Table())
    table.errors = [Unavailable("away")]
    subtask.write([1])
    subtask.writer.run()
    subtask.operator.close()
    subtask.pass_time()
    assert subtask.writer.run() == 0
    assert table.rows == []


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_crash_doubles_the_rows_after_the_checkpoint_and_loses_none(written: int) -> None:
    """Three rows before the restored checkpoint, three after: `written` of these were visible at the crash."""
    table, decided = Table(), None
    first = Subtask(lambda: table, MemoryStore())
    first.write([0, 1, 2])
    decided = first.barrier(1)()
    first.complete(1)
    for number in range(3, 3 + written):
        first.write([number])
        first.writer.run()
    second = Subtask(lambda: table, MemoryStore(), token=2, restored=(decided,))
    second.write([3, 4, 5])
    second.barrier(2)()
    second.complete(2)
    assert set(range(6)) - set(table.rows) == set(), "lost"
    assert sorted(number for number in table.rows if table.rows.count(number) > 1) == sorted(
        2 * list(range(3, 3 + written))
    ), "doubled"
