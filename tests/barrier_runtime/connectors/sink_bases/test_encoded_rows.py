"""Rows encoded on arrival: each row once, in order, through failures and delays."""

import contextlib
import threading
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sink_harness import SCHEMA, Subtask, numbers_in

from barrier_runtime import InvalidJob
from barrier_runtime.connectors.files.sink.sink import CsvSink, JsonlSink, TextSink
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.encoders import EncodedRows, EncodingBuffer
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.store.memory import MemoryStore
from tests.drawn import examples


class Encoder:
    def __init__(self) -> None:
        self.encoded: list[int] = []
        self.failures = 0

    def __call__(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        if self.failures:
            self.failures -= 1
            raise MemoryError("not now")
        self.encoded += [number for batch in batches for number in batch.column(0).to_pylist()]
        return encoders.jsonl(batches)


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(range(first, first + count))}, schema=SCHEMA)


def text_of(encoded: Sequence[EncodedRows]) -> bytes:
    return b"".join(each.data for each in encoded)


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["write", "few"]), st.integers(1, 5)),
        st.tuples(st.sampled_from(["early", "run", "run newest", "fail", "fill up", "stage"]), st.just(0)),
    ),
    max_size=30,
)


@examples(150)
@given(OPERATIONS)
def test_rows_are_encoded_once_and_staged_in_order_in_any_interleaving(operations: list[tuple[str, int]]) -> None:
    encode, written = Encoder(), 0
    buffer = EncodingBuffer[bytes](encode)
    works: list[Callable[[], None]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "_ROWS_AT_ONCE", 3)
        for what, count in operations:
            if what == "write":
                buffer.write(numbers(written, count))
                written += count
            elif what == "few":
                few = FewRows.of(numbers(written, count))
                assert few is not None
                buffer.write_few(few)
                written += count
            elif what == "early":
                work = buffer.encode_early()
                works += [work] if work is not None else []
            elif what.startswith("run") and works:
                run(works.pop(-1 if what == "run newest" else 0))
            elif what == "fail":
                encode.failures = 1
            elif what == "fill up":
                buffer.fill_up()
            elif what == "stage":
                run(lambda: buffer.stage(text_of))
    encode.failures = 0
    buffer.fill_up()
    staged = b"".join(buffer.stage(text_of))
    assert staged == (encoders.jsonl([numbers(0, written)]) if written else b"")
    assert sorted(encode.encoded) == list(range(written)), "each row is encoded once"
    for work in works:  # too late: the rows are already durable
        work()
    assert len(encode.encoded) == written


def run(work: Callable[[], object]) -> None:
    with contextlib.suppress(MemoryError):
        work()


def test_early_encoding_and_the_barrier_do_not_encode_the_same_rows_twice() -> None:
    encode = Encoder()
    for turn in range(30):
        buffer = EncodingBuffer[bytes](encode)
        buffer.write(numbers(turn * 1_000, 600))
        early = buffer.encode_early()
        assert early is not None
        buffer.write(numbers(turn * 1_000 + 600, 400))
        beside = threading.Thread(target=early)
        beside.start()
        buffer.fill_up()
        (staged,) = buffer.stage(text_of)
        beside.join()
        assert staged == encoders.jsonl([numbers(turn * 1_000, 1_000)])
    assert encode.encoded == list(range(30_000))


def test_few_rows_are_not_worth_another_thread() -> None:
    buffer = EncodingBuffer[bytes](Encoder())
    buffer.write(numbers(0, 100))
    assert buffer.encode_early() is None
    buffer.write(pa.RecordBatch.from_pydict({"n": [1] * 10, "t": ["x" * 30_000] * 10}))
    assert buffer.encode_early() is not None, "wide rows are"
    assert buffer.encode_early() is None, "the same rows once"


def test_text_that_is_much_larger_than_its_rows_fills_a_part() -> None:
    buffer = EncodingBuffer[bytes](lambda batches: bytes(10 << 20))
    buffer.write(numbers(0, 600))
    early = buffer.encode_early()
    assert early is not None
    assert buffer.bytes_in_current < 20_000
    early()
    assert buffer.bytes_in_current == 10 << 18


@pytest.mark.parametrize("kind", [JsonlSink, CsvSink])
def test_a_file_has_the_bytes_that_it_has_when_it_is_encoded_at_once(store: MemoryStore, kind: type[TextSink]) -> None:
    sink = kind("memory://target")
    subtask = Subtask(lambda: sink, store)
    for start in range(0, 3_000, 300):
        subtask.write(range(start, start + 300))
        subtask.snapshot_executor.run()
    subtask.barrier(1)()
    subtask.complete(1)
    (shown,) = [info.key for info in store.list("") if info.key.startswith("part-")]
    assert store.get(shown) == sink.encode([numbers(0, 3_000)])


def test_an_encoder_of_a_users_subclass_gets_all_rows_of_a_file() -> None:
    class Wrapped(JsonlSink):
        def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
            return b"begin\n" + super().encode(batches)

    sink = Wrapped("memory://target")
    transaction = sink.begin_transaction()
    transaction.write(numbers(0, 2_000))
    assert sink.encode_early(transaction) is None


def test_a_row_that_cannot_be_encoded_ends_the_job_with_the_next_rows(store: MemoryStore) -> None:
    subtask = Subtask(lambda: JsonlSink("memory://target"), store)
    pairs = pa.array([[("a", 1), ("a", 2)]] * 600, pa.map_(pa.string(), pa.int64()))
    batch = Batch(pa.record_batch({"m": pairs}), 0)
    subtask.operator.process(batch, lambda each: None)
    subtask.snapshot_executor.run()
    with pytest.raises(InvalidJob, match="column 'm': a map has the key 'a' twice"):
        subtask.operator.process(batch, lambda each: None)


def test_encoding_that_failed_early_is_made_up_for_at_the_barrier(store: MemoryStore) -> None:
    encode = Encoder()
    encode.failures = 1

    class Failing(JsonlSink):
        def encode_rows(self, batches: Sequence[pa.RecordBatch]) -> bytes:
            return encode(batches)

    subtask = Subtask(lambda: Failing("memory://target"), store)
    subtask.write(range(600))
    subtask.snapshot_executor.run()
    subtask.write(range(600, 700))
    subtask.barrier(1)()
    subtask.complete(1)
    assert numbers_in(store) == list(range(700))
