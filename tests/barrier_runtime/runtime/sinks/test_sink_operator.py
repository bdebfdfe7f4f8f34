"""The sink operator: threads of the calls, reports, and the two small sinks of local runs."""

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from sink_harness import SCHEMA, Job, Subtask, numbers_in

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.memory.callable import CallableSink
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.coordinator.status.latency import merged
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.runtime.sinks.pending_set import PENDING_VALUE, PendingEntry, encode_pending
from barrier_runtime.state.errors import Corrupt, InvalidJob, ProtocolViolation, UserCodeError
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import Fault, MemoryStore


def jsonl() -> JsonlSink:
    return JsonlSink("memory://target")


def test_rows_are_processed_at_once_and_visible_when_committed() -> None:
    subtask = Subtask(jsonl, MemoryStore())
    subtask.write([1], emit_ns=1_000)
    subtask.write([2, 3], emit_ns=50_000_000)
    latencies = subtask.metrics.latencies
    assert list(latencies) == ["processed"]
    subtask.barrier(1)()
    assert list(latencies) == ["processed"]
    subtask.complete(1)
    for name in ("processed", "visible"):
        told = merged([{name: latencies[name].encoded()}])[name]
        assert (told.count, told.p50, told.max) == (3, pytest.approx(50, rel=0.01), pytest.approx(100, rel=0.01)), name
    assert subtask.reports.committed_checkpoints == [1]


def test_a_commit_that_hangs_delays_neither_barriers_nor_pre_commits(store: MemoryStore) -> None:
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    subtask.barrier(1)()
    subtask.operator.on_complete(1)  # the commit stays in the executor
    for checkpoint in (2, 3):
        subtask.write([checkpoint])
        snapshot = subtask.barrier(checkpoint)()
        assert b'"checkpoint":%d' % checkpoint in snapshot.values["pending"]
        subtask.operator.on_complete(checkpoint)
    assert numbers_in(store) == []
    subtask.executor.run()
    assert numbers_in(store) == [1, 2, 3]
    assert subtask.reports.committed_checkpoints == [1, 3], "those that waited are committed as one"


def test_a_decision_that_overtakes_the_end_of_the_pre_commit_is_carried_out_later(store: MemoryStore) -> None:
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    finish = subtask.barrier(1)
    subtask.complete(1)
    assert numbers_in(store) == []
    subtask.pass_time()
    assert numbers_in(store) == [], "still not durable"
    finish()
    subtask.pass_time()
    assert numbers_in(store) == [1]


def test_a_barrier_closes_the_transaction_before_its_pre_commit_has_run(store: MemoryStore) -> None:
    """U12: a row after the barrier belongs to the next checkpoint, whenever the blocking part runs."""
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    finish = subtask.barrier(1)
    subtask.write([2])
    finish()
    subtask.complete(1)
    assert numbers_in(store) == [1]
    subtask.barrier(2)()
    subtask.complete(2)
    assert numbers_in(store) == [1, 2]


def test_a_recovered_commit_is_reported_with_the_first_element(store: MemoryStore) -> None:
    first = Subtask(jsonl, store)
    first.write([1])
    decided = first.barrier(4)()
    second = Subtask(jsonl, store, token=2, restored=(decided,))
    assert numbers_in(store) == [1]
    assert second.reports.committed_checkpoints == []
    second.operator.on_watermark(0, lambda batch: None)
    assert second.reports.committed_checkpoints == [4]


def test_rows_that_come_faster_than_they_are_staged_make_the_stream_wait(store: MemoryStore) -> None:
    subtask = Subtask(lambda: JsonlSink("memory://target", max_bytes_in_memory=1), store)
    subtask.write([1])
    assert subtask.operator.has_room, "one is on its way"
    subtask.write([2])
    assert not subtask.operator.has_room
    subtask.barrier(1)()
    assert subtask.operator.has_room
    assert subtask.woken == 2
    subtask.complete(1)
    assert numbers_in(store) == [1, 2]


def test_staging_that_fails_makes_room_too_and_loses_nothing(store: MemoryStore) -> None:
    subtask = Subtask(lambda: JsonlSink("memory://target", max_bytes_in_memory=1), store)
    store.inject(Fault.FAIL_BEFORE, "put")
    subtask.write([1])
    subtask.write([2])
    subtask.snapshot_executor.run()
    assert subtask.operator.has_room
    assert subtask.metrics.counts["early_staging_failed"] == 1
    subtask.barrier(1)()
    subtask.complete(1)
    assert numbers_in(store) == [1, 2]


def test_a_commit_that_hangs_does_not_hold_staging_up() -> None:
    subtask = Subtask(lambda: JsonlSink("memory://target", max_bytes_in_memory=1), MemoryStore())
    subtask.write([1])
    subtask.barrier(1)()
    subtask.operator.on_complete(1)  # the commit stays in the executor
    subtask.write([2])
    subtask.write([3])
    assert not subtask.operator.has_room
    subtask.snapshot_executor.run()
    assert subtask.operator.has_room


def test_nothing_is_tried_any_more_after_close(store: MemoryStore) -> None:
    subtask = Subtask(jsonl, store)
    subtask.write([1])
    subtask.barrier(1)()
    store.inject(Fault.FAIL_BEFORE, "publish")
    subtask.complete(1)
    subtask.operator.close()
    subtask.operator.close()
    subtask.pass_time()
    assert numbers_in(store) == []


def test_a_damaged_snapshot_value_stops_the_restore_and_says_whose_it_is() -> None:
    """B4"""
    broken = OperatorSnapshot("out", 0, 1, {"pending": pickle.dumps([1])})
    with pytest.raises(Corrupt, match=r"job 'job', sink 'out', subtask 0, state of subtask 0: .*not readable"):
        Subtask(jsonl, MemoryStore(), token=2, restored=(broken,))


# ---------------------------------------------------------------- collect


def test_collected_rows_appear_when_they_are_committed_and_in_order() -> None:
    sink = CollectSink()
    subtask = Subtask(lambda: copy.copy(sink), MemoryStore())
    subtask.write([1, 2])
    subtask.barrier(1)()
    assert sink.rows() == []
    subtask.write([3])
    subtask.complete(1)
    assert sink.rows() == [{"n": 1}, {"n": 2}]


def test_collected_rows_survive_generations_exactly_once() -> None:
    sink = CollectSink()
    job = Job(lambda: copy.deepcopy(sink), rows=6)
    job.run(MemoryStore())
    job.run(MemoryStore())  # restores the last checkpoint and commits again
    assert [row["n"] for row in sink.rows()] == list(range(6))


def test_collecting_what_was_aborted_is_a_hard_error() -> None:
    """T6"""
    sink = CollectSink()
    transaction = sink.begin_transaction()
    sink.write(transaction, pa.RecordBatch.from_pydict({"n": [1]}, schema=SCHEMA))
    committable = sink.pre_commit(transaction, 1)
    assert committable is not None
    sink.abort(committable)
    sink.abort(committable)
    with pytest.raises(ProtocolViolation, match="after it was aborted"):
        sink.commit(committable)


def test_new_collecting_sink_gets_rows_that_an_earlier_sink_decided_but_never_showed() -> None:
    """T4: once, whichever sink shows the rows, and however often they are committed."""
    earlier, later = CollectSink(), CollectSink()
    committables = []
    for number in (1, 2):
        transaction = earlier.begin_transaction()
        earlier.write(transaction, pa.RecordBatch.from_pydict({"n": [number]}, schema=SCHEMA))
        committables.append(earlier.pre_commit(transaction, number))
    earlier.commit(committables[0])
    for committable in committables * 2:
        later.commit(committable)
    assert (earlier.rows(), later.rows()) == ([{"n": 1}], [{"n": 2}])


def test_what_another_process_collected_has_gone_with_it() -> None:
    """T4: also for the format of an older release, which did not name the owner."""
    sink = CollectSink()
    for committable in (b'{"version":1,"number":1}', b'{"version":2,"number":1,"ledger":"of another process"}'):
        sink.commit(committable)
        sink.abort(committable)
    assert sink.rows() == []


def test_a_collecting_sink_cannot_be_sent_to_another_process() -> None:
    with pytest.raises(InvalidJob, match="run_local"):
        pickle.dumps(CollectSink())


# ---------------------------------------------------------------- a user's function


def test_a_function_sees_every_batch_at_once_and_nothing_is_pending() -> None:
    seen: list[int] = []
    subtask = Subtask(lambda: CallableSink(lambda rows: seen.extend(rows.column("n").to_pylist())), MemoryStore())
    subtask.write([1, 2])
    assert seen == [1, 2]
    subtask.barrier(1)()
    subtask.complete(1)
    assert subtask.reports.committed_checkpoints == [1]
    assert CallableSink.guarantee == "at_least_once"


def test_a_function_that_raises_is_shown_with_its_traceback_and_the_record() -> None:
    def fussy(rows: pa.RecordBatch) -> None:
        raise KeyError("no such column")

    subtask = Subtask(lambda: CallableSink(fussy), MemoryStore())
    with pytest.raises(UserCodeError) as caught:
        subtask.write([7, 8])
    assert str(caught.value).startswith("Traceback")
    assert "in fussy" in str(caught.value)
    assert "batch: 2 rows of n\n  its first record: {'n': 7}" in str(caught.value)


def test_recovery_commits_the_oldest_checkpoint_first_whichever_subtask_wrote_it() -> None:
    """C14: after rescaling, a subtask finishes transactions of several subtasks. A target that keeps a single mark,
    such as Kafka, would take an older transaction after a newer one for done, or move the mark backwards.
    """
    order: list[bytes] = []

    class Recording(JsonlSink):
        def recover(self, decided: Sequence[bytes]) -> None:
            order.extend(decided)

    entries = {
        0: [PendingEntry(3, 0, b"3 of 0"), PendingEntry(9, 0, b"9 of 0")],
        1: [PendingEntry(4, 1, b"4 of 1"), PendingEntry(9, 1, b"9 of 1")],
        2: [PendingEntry(2, 2, b"2 of 2"), PendingEntry(10, 2, b"10 of 2")],
    }
    restored = tuple(
        OperatorSnapshot("out", subtask, 3, {PENDING_VALUE: encode_pending(10, listed)})
        for subtask, listed in reversed(entries.items())
    )
    Subtask(lambda: Recording("memory://target"), MemoryStore(), token=2, restored=restored)
    assert order == [b"2 of 2", b"3 of 0", b"4 of 1", b"9 of 0", b"9 of 1", b"10 of 2"]
    order.clear()
    Subtask(lambda: Recording("memory://target"), MemoryStore(), token=2, restored=restored, parallelism=2)
    assert order == [b"2 of 2", b"3 of 0", b"9 of 0", b"10 of 2"], "another subtask's are not its own"


# ---------------------------------------------------------------- small batches as lists


class Kept(JsonlSink):
    """Overrides `write` of a class with `write_few`; `write` must see every row."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.seen: list[int] = []

    def write(self, transaction: Any, rows: pa.RecordBatch) -> None:
        self.seen += rows.column("n").to_pylist()
        super().write(transaction, rows)


class Both(Kept):
    def write_few(self, transaction: Any, rows: FewRows) -> None:
        self.seen += [-number for number in rows.columns[0]]
        super().write_few(transaction, rows)


def few(*numbers: int) -> Batch:
    rows = FewRows.of(pa.RecordBatch.from_pydict({"n": list(numbers)}, schema=SCHEMA))
    assert rows is not None
    return Batch(rows, 0)


@pytest.mark.parametrize(
    ("kind", "seen"),
    [(JsonlSink, None), (Kept, [1, 2, 3, 4]), (Both, [-1, -2, 3, -4])],
    ids=["neither", "write", "both"],
)
def test_lists_go_to_write_few_unless_a_class_below_has_a_write_of_its_own(
    store: MemoryStore, kind: type[JsonlSink], seen: list[int] | None
) -> None:
    sink = kind("memory://target")
    subtask = Subtask(lambda: sink, store)
    subtask.operator.process(few(1, 2), lambda batch: None)
    subtask.write([3])
    subtask.barrier(1)()
    subtask.operator.process(few(4), lambda batch: None)
    subtask.complete(1)
    assert numbers_in(store) == [1, 2, 3]
    subtask.barrier(2)()
    subtask.complete(2)
    assert numbers_in(store) == [1, 2, 3, 4]
    assert getattr(sink, "seen", None) == seen


def test_columns_that_a_sink_cannot_take_are_refused_as_lists_too(store: MemoryStore) -> None:
    class Refusing(JsonlSink):
        def check_columns(self, schema: pa.Schema, where: str) -> None:
            raise InvalidJob(f"no columns {schema.names}")

    subtask = Subtask(lambda: Refusing("memory://target"), store)
    with pytest.raises(InvalidJob, match="no columns"):
        subtask.operator.process(few(1), lambda batch: None)
