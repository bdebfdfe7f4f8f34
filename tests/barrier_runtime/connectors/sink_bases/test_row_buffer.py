"""Buffers of rows: rows staged early, late or again are staged once and in order."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.connectors.sink_bases.row_buffer import InOrder, RowBuffer
from barrier_runtime.data.few_rows import FewRows
from tests.drawn import examples


class Target:
    def __init__(self) -> None:
        self.got: list[int] = []
        self.failures = 0

    def take(self, batches: list[pa.RecordBatch]) -> None:
        if self.failures:
            self.failures -= 1
            raise OSError("not now")
        self.got += [value for batch in batches for value in batch.column(0).to_pylist()]


def write(buffer: RowBuffer[None], *values: int) -> None:
    buffer.write(pa.RecordBatch.from_pydict({"n": list(values)}))


def test_a_newer_transaction_that_goes_out_early_takes_the_older_one_along() -> None:
    """The older transaction's pre-commit is late, or never happens because the checkpoint was aborted."""
    target, buffers = Target(), InOrder()
    older = buffers.begin()
    write(older, 1)
    newer = buffers.begin()
    write(newer, 2)
    newer.fill_up()
    buffers.stage(newer, target.take, closed=False)
    assert target.got == [1, 2]
    write(newer, 3)
    buffers.stage(older, target.take, closed=True)
    assert target.got == [1, 2]
    buffers.stage(newer, target.take, closed=True)
    assert target.got == [1, 2, 3]


def test_what_is_still_written_to_goes_out_only_as_far_as_it_is_full() -> None:
    target, buffers = Target(), InOrder()
    buffer = buffers.begin()
    write(buffer, 1)
    buffer.fill_up()
    write(buffer, 2)
    buffers.stage(buffer, target.take, closed=False)
    assert target.got == [1]


def test_what_failed_goes_out_first_when_it_is_tried_again() -> None:
    target, buffers = Target(), InOrder()
    older = buffers.begin()
    write(older, 1)
    newer = buffers.begin()
    write(newer, 2)
    target.failures = 1
    with pytest.raises(OSError, match="not now"):
        buffers.stage(older, target.take, closed=True)
    buffers.stage(newer, target.take, closed=True)
    buffers.stage(older, target.take, closed=True)
    assert target.got == [1, 2]


# ---------------------------------------------------------------- size of a buffer


def texts(rows: int, characters: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"t": ["x" * characters] * rows, "n": list(range(rows))})


def slices(whole: pa.RecordBatch, rows: int) -> list[pa.RecordBatch]:
    return [whole.slice(start, rows) for start in range(0, whole.num_rows, rows)]


@pytest.mark.parametrize(
    "batches",
    [
        [texts(1_000, 1), *[texts(1_000, 4_000)] * 62],  # the size of the first batch does not predict the others
        [texts(1_000, 4_000), *[texts(1_000, 1)] * 62],
        [texts(1, 100)] * 500,
        [texts(1, 1), texts(1, 1_000_000)] * 100,
        slices(texts(100_000, 10), 256),  # buffers are those of the whole
        slices(texts(2_000, 10), 1),
        [texts(0, 0)] * 10,
    ],
    ids=["small then large", "large then small", "rows of one", "in turns", "slices", "tiny slices", "empty"],
)
def test_rows_weigh_what_they_are_however_unequal_the_batches(batches: list[pa.RecordBatch]) -> None:
    """The size bounds memory: the bytes that a sink keeps before it stages a part early."""
    buffer = RowBuffer[None]()
    real = 0
    for batch in batches:
        buffer.write(batch)
        real += batch.nbytes
        assert buffer.bytes_in_current >= real
    unmerged_slices = 64 * (64 << 10)
    assert buffer.bytes_in_current <= 1.1 * real + 4_096 * len(batches) + unmerged_slices


def test_a_part_is_staged_early_before_it_is_much_larger_than_it_may_be() -> None:
    sink = JsonlSink("memory://target", max_bytes_in_memory=1 << 20)
    transaction, held, most = sink.begin_transaction(), 0, 0
    for batch in [texts(1_000, 1), *[texts(100, 4_000)] * 62]:
        transaction.write(batch)
        held += batch.nbytes
        most = max(most, held)
        if sink.stage_early(transaction) is not None:
            held = 0
    assert most < (1 << 20) + 2 * texts(100, 4_000).nbytes


@pytest.mark.slow
def test_large_batches_are_not_merged_beyond_what_offsets_can_count() -> None:
    """64 times 40 MiB of text: 32-bit offsets end at 2 GiB. (All batches share a buffer here.)"""
    buffer, large = RowBuffer[int](), texts(10, 4 << 20)
    for _ in range(130):
        buffer.write(large)
        write_small(buffer)
    buffer.fill_up()
    assert buffer.stage(lambda batches: sum(batch.num_rows for batch in batches)) == [130 * 11]


def test_small_batches_are_merged_in_lots() -> None:
    buffer = RowBuffer[int]()
    for _ in range(640):
        write_small(buffer)
    buffer.fill_up()
    assert buffer.stage(len) == [10]


def write_small(buffer: RowBuffer[int]) -> None:
    buffer.write(texts(1, 1))


# ---------------------------------------------------------------- rows as lists


def numbered(first: int, rows: int, text: str | None) -> pa.RecordBatch:
    numbers = list(range(first, first + rows))
    return pa.RecordBatch.from_pydict({"n": numbers} if text is None else {"n": numbers, "t": [text] * rows})


@examples(60)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["arrow", "lists", "part"]), st.integers(1, 64), st.sampled_from(["a", "\u00e9" * 999])
        ),
        max_size=40,
    )
)
def test_rows_as_lists_and_in_arrow_keep_their_order_and_weigh_what_they_are(steps: list[tuple[str, int, str]]) -> None:
    buffer, written, in_part = RowBuffer[list[int]](), 0, 0
    for kind, rows, text in steps:
        if kind == "part":
            buffer.fill_up()
            in_part = 0
            assert buffer.bytes_in_current == 0
            continue
        batch = numbered(written, rows, text)
        few = FewRows.of(batch)
        if kind == "lists" and few is not None:
            buffer.write_few(few)
        else:
            buffer.write(batch)
        written += rows
        in_part += batch.nbytes
        assert buffer.bytes_in_current >= in_part
    buffer.fill_up()
    parts = buffer.stage(lambda batches: [number for batch in batches for number in batch.column("n").to_pylist()])
    assert [number for part in parts for number in part] == list(range(written))
    assert all(parts), "no part without rows"


def test_lists_of_another_schema_are_not_joined_with_those_before() -> None:
    buffer = RowBuffer[list[list[str]]]()
    for batch in (numbered(0, 2, None), numbered(2, 2, "t"), numbered(4, 2, "t"), numbered(6, 1, None)):
        few = FewRows.of(batch)
        assert few is not None
        buffer.write_few(few)
    buffer.fill_up()
    assert buffer.stage(lambda batches: [batch.schema.names for batch in batches]) == [[["n"], ["n", "t"], ["n"]]]


def test_hundreds_of_rows_as_lists_are_one_batch() -> None:
    """Converting all rows together is the benefit of lists for a sink."""
    buffer = RowBuffer[int]()
    few = FewRows.of(numbered(0, 5, None))
    assert few is not None
    for _ in range(1_000):
        buffer.write_few(few)
    buffer.fill_up()
    assert buffer.stage(len)[0] <= 11
