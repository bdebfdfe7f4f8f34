"""Frames of a data connection: every element survives the round trip; invalid bytes close the connection."""

import pickle
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import Barrier, Batch, CancelBarrier, EndOfInput, Idle, Watermark
from barrier_runtime.runtime.network.frames import (
    FRAME_VERSION,
    HEADER_SIZE,
    MAX_PAYLOAD,
    FrameError,
    FrameReader,
    FrameWriter,
    RowTooLarge,
    UnknownFrames,
)
from tests.drawn import examples

VERSION_AT = 25  # in frames of every version


def rows(*values):
    return pa.record_batch({"k": pa.array(values, pa.int64()), "s": pa.array([f"v{v}" for v in values])})


def wire(writer, *elements):
    return b"".join(bytes(chunk) for element in elements for chunk in writer.encode(element))


ELEMENTS = [
    Batch(rows(1, 2, 3), 17),
    Watermark(-5),
    Idle(),
    Barrier(9, 4, 1_700_000_000_000),
    CancelBarrier(9, 4),
    Batch(rows(4), 18),
    EndOfInput(),
]


@examples(60)
@given(st.integers(1, 400))
def test_elements_survive_the_wire_however_the_bytes_are_cut(step):
    data = wire(FrameWriter(), *ELEMENTS)
    reader = FrameReader()
    received = []
    for start in range(0, len(data), step):
        received += [element for element, _ in reader.feed(data[start : start + step])]
    assert received == ELEMENTS


@examples(60)
@given(st.integers(1, 400))
def test_the_sizes_of_elements_are_all_bytes_that_came(step):
    """Otherwise a sender waits forever for credit: with a schema larger than the window, and rows that do not fill a
    quarter.
    """
    few = Batch(rows(1, 2, 3), 17, np.array([1, 2, 3]))
    assert few.as_few is not None
    data = wire(FrameWriter(), few, *ELEMENTS)
    reader = FrameReader()
    sizes = [size for start in range(0, len(data), step) for _, size in reader.feed(data[start : start + step])]
    assert sum(sizes) == len(data)


def test_a_large_frame_that_arrives_in_pieces_is_copied_once():
    batch = Batch(pa.record_batch({"n": np.arange(1 << 18)}), 17)
    data = wire(FrameWriter(), batch)
    pieces = [data[start : start + 65_536] for start in range(0, len(data), 65_536)]
    reader = FrameReader()
    tracemalloc.start()
    try:
        received = [element for piece in pieces for element, _ in reader.feed(piece)]
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert received == [batch]
    assert most < 1.2 * len(data)


@pytest.mark.slow
def test_a_large_batch_is_cut_into_frames_and_keeps_its_order():
    values = pa.array(range(5_000_000), pa.int64())
    data = wire(FrameWriter(), Batch(pa.record_batch({"v": values}), 3))
    parts = [element.rows for element, _ in FrameReader().feed(data)]
    assert len(parts) > 1
    assert pa.Table.from_batches(parts).column(0).combine_chunks().equals(values)


@pytest.mark.slow
def test_a_batch_whose_large_rows_stand_together_is_cut_until_every_frame_fits():
    """12 rows of 8 MiB and 20,000 rows of 1 byte: the mean size does not locate the large rows."""
    large = [b"x" * 8 * 1024 * 1024] * 12
    batch = pa.record_batch({"v": pa.array([*[b"a"] * 10_000, *large, *[b"b"] * 10_000])})
    elements = FrameReader().feed(wire(FrameWriter(), Batch(batch, 3)))
    assert all(size <= MAX_PAYLOAD + HEADER_SIZE for _, size in elements)
    assert len(elements) < 64, "small rows still travel together"
    arrived = pa.Table.from_batches([element.rows for element, _ in elements]).column(0).combine_chunks()
    assert arrived.equals(batch.column(0))


@pytest.mark.slow
def test_a_row_that_no_frame_can_hold_is_refused_with_its_size_and_the_remedy():
    row = pa.record_batch({"v": pa.array([b"x" * (MAX_PAYLOAD + 1)])})
    with pytest.raises(RowTooLarge, match=r"a row of 67,1.* bytes is over the 67,108,864 .*: split it"):
        FrameWriter().encode(Batch(row, 0))


def test_a_schema_that_changes_is_refused_and_names_both():
    writer = FrameWriter()
    writer.encode(Batch(rows(1), 0))
    with pytest.raises(FrameError, match=r"k: int64.*x: double.*schema="):
        writer.encode(Batch(pa.record_batch({"x": pa.array([1.0])}), 0))


def test_a_flipped_bit_anywhere_after_the_length_is_noticed():
    """B3"""
    data = wire(FrameWriter(), Watermark(12345))
    for position in range(4, VERSION_AT + 1):  # the rest of the header is reserved
        flipped = bytearray(data)
        flipped[position] ^= 1
        with pytest.raises(FrameError):
            FrameReader().feed(bytes(flipped) + data)
    flipped = bytearray(data)
    flipped[-1] ^= 1
    with pytest.raises(FrameError, match="checksum"):
        FrameReader().feed(bytes(flipped))


def test_frames_of_a_later_release_are_refused_with_the_remedy():
    """B6: whatever the rest of the frame contains."""
    data = bytearray(wire(FrameWriter(), Watermark(12345)))
    data[VERSION_AT] = FRAME_VERSION + 1
    with pytest.raises(
        UnknownFrames, match=rf"has version {FRAME_VERSION + 1}, this release reads .*: a newer release"
    ):
        FrameReader().feed(bytes(data))


def test_frames_of_before_there_were_versions_are_read():
    """The bytes are a watermark written by release f69d69f."""
    older = bytes.fromhex("000000080300000000000000000000000000000000ebd3e032000000000000000000003039")
    assert [element for element, _ in FrameReader().feed(older)] == [Watermark(12345)]


def test_a_length_over_the_cap_is_refused_from_the_header_alone():
    """B3: before any allocation."""
    header = bytearray(wire(FrameWriter(), Watermark(1))[:HEADER_SIZE])
    header[0:4] = (MAX_PAYLOAD + 1).to_bytes(4, "big")
    with pytest.raises(FrameError, match="cap"):
        FrameReader().feed(bytes(header))


def test_a_gap_and_a_repetition_in_the_sequence_are_refused():
    """B3"""
    writer = FrameWriter()
    first, second, third = (wire(writer, Watermark(n)) for n in (1, 2, 3))
    reader = FrameReader()
    reader.feed(first)
    with pytest.raises(FrameError, match="2 came where 1"):
        reader.feed(third)
    reader = FrameReader()
    reader.feed(first)
    reader.feed(second)
    with pytest.raises(FrameError, match="1 came where 2"):
        reader.feed(second)


def test_rows_before_their_schema_and_unknown_kinds_are_refused():
    writer = FrameWriter()
    chunks = writer.encode(Batch(rows(1), 0))
    only_rows = b"".join(bytes(chunk) for chunk in chunks[1:])  # without the first chunk, the schema
    with pytest.raises(FrameError):
        FrameReader().feed(only_rows)


def test_a_pickle_is_refused_undecoded():
    """B4"""
    with pytest.raises(FrameError):
        FrameReader().feed(pickle.dumps({"rows": list(range(100))}))
