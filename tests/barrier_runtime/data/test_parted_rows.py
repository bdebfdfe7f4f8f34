"""Parts of sorted rows arrive as the same rows cut by Arrow."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import PartedRows, RowsOfPart
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from tests.drawn import examples

PLAIN = (pa.int8(), pa.uint16(), pa.int32(), pa.float32(), pa.int64(), pa.uint64(), pa.float64(), pa.timestamp("us"))
OTHERS = (pa.bool_(), pa.string(), pa.large_binary(), pa.decimal128(25, 2), pa.list_(pa.int64()))


def column(kind: pa.DataType, count: int) -> pa.Array:
    if pa.types.is_list(kind):
        return pa.array([[at] for at in range(count)], kind)
    if pa.types.is_string(kind) or pa.types.is_large_binary(kind):
        return pa.array(["x" * (at % 5) for at in range(count)]).cast(kind)
    return pa.array([at % 100 for at in range(count)], pa.int64()).cast(kind)


@st.composite
def rows_and_cuts(draw: st.DrawFn) -> tuple[pa.RecordBatch, list[int]]:
    """Columns mostly without nulls, cut out of more rows."""
    kinds = draw(st.lists(st.sampled_from(PLAIN), min_size=1, max_size=4))
    if draw(st.integers(0, 3)) == 0:
        kinds.append(draw(st.sampled_from(OTHERS)))
    cuts = draw(st.lists(st.integers(1, 40), min_size=1, max_size=5))
    before, count = draw(st.integers(0, 3)), sum(cuts)
    columns = {f"c{at}": column(kind, before + count) for at, kind in enumerate(kinds)}
    if draw(st.integers(0, 3)) == 0:
        columns["nulls"] = pa.array([None, *range(before + count - 1)], pa.int64())
    return pa.RecordBatch.from_pydict(columns).slice(before, count), cuts


def frames(batch: Batch, writer: FrameWriter) -> bytes:
    return b"".join(bytes(chunk) for chunk in writer.encode(batch))


@examples(200)
@given(rows_and_cuts())
def test_part_arrives_as_the_rows_that_arrow_cuts(drawn: tuple[pa.RecordBatch, list[int]]) -> None:
    rows, cuts = drawn
    parted, at = PartedRows(rows), 0
    writer, reader = FrameWriter(), FrameReader()
    for count in cuts:
        cut, reached = rows.slice(at, count), np.arange(at, at + count)
        ((read, _),) = reader.feed(frames(Batch(RowsOfPart(parted, at, count), 3, reached), writer))
        assert isinstance(read, Batch)
        read.rows.validate(full=True)
        assert read == Batch(cut, 3, reached)
        at += count


@pytest.mark.parametrize("kind", PLAIN, ids=str)
def test_rows_of_numbers_and_times_need_no_call_of_arrow_for_a_part(kind: pa.DataType) -> None:
    assert PartedRows(pa.record_batch({"c": column(kind, 5)})).values


@pytest.mark.parametrize("kind", OTHERS, ids=str)
def test_rows_of_other_columns_are_cut_by_arrow(kind: pa.DataType) -> None:
    assert not PartedRows(pa.record_batch({"n": column(pa.int64(), 5), "c": column(kind, 5)})).values


def test_partitioning_gives_parts_that_are_not_cut_yet() -> None:
    parts = hash_partition(Batch(pa.record_batch({"n": np.arange(500)}), 1), ("n",), 3, 128)
    assert [part.part is not None for _, part in parts] == [True] * 3
    assert sorted(value for _, part in parts for value in part.column("n").to_pylist()) == list(range(500))
    assert all(part.slice(1).count == part.count - 1 and part.schema == part.rows.schema for _, part in parts)
