"""Window of a channel: follows the reader's speed, within bounds, and keeps rows in order."""

from functools import partial

import pyarrow as pa
import pytest

from barrier_runtime.data.elements import Barrier, Batch
from barrier_runtime.runtime.network.channels import InputChannel
from barrier_runtime.runtime.network.flow_control import (
    CHUNK_NS,
    DRAIN_S,
    MAX_WINDOW_BYTES,
    MIN_CHUNK_BYTES,
    MIN_WINDOW_BYTES,
    Chunk,
    SourceChunk,
    Window,
)


def adapted(window, rate, seconds, waiting=True):
    """`rate`: bytes taken per second; a look every 200 ms."""
    taken = window._taken
    for _ in range(int(seconds / 0.2)):
        taken += int(rate * 0.2)
        window.adapt(taken, waiting, 0.2)
    return window.bytes


def test_a_reader_that_cannot_keep_up_gets_what_it_takes_in_half_a_second():
    assert abs(adapted(Window(), 1_000_000, 10) - 1_000_000 * DRAIN_S) < 1_000


def test_a_reader_that_keeps_up_has_the_largest_window():
    window = Window()
    adapted(window, 1_000, 10)
    assert adapted(window, 1_000, 10, waiting=False) == MAX_WINDOW_BYTES


def test_the_window_stays_within_its_bounds_and_changes_by_a_factor_of_two_at_most():
    window = Window()
    first = window.bytes
    assert adapted(window, 0, 0.2) == first // 2
    assert adapted(window, 0, 100) == MIN_WINDOW_BYTES
    assert adapted(window, 1e12, 0.2) == 2 * MIN_WINDOW_BYTES
    assert adapted(window, 1e12, 100) == MAX_WINDOW_BYTES


def test_a_blocked_channel_says_nothing_about_its_reader():
    channel = InputChannel(0, 0, lambda: None)
    channel.push(Barrier(1, 1), 10)
    channel.blocked = True
    before = channel.window.bytes
    for _ in range(50):
        channel.adapt(0.2)
    assert channel.window.bytes == before


def test_room_is_announced_after_a_quarter_of_the_window_and_when_the_window_grows():
    told = []
    channel = InputChannel(0, 0, lambda: None, 1_000)
    channel.when_credit(lambda: told.append(channel.credit))
    for _ in range(10):
        channel.push(Barrier(1, 1), 100)
    for _ in range(5):
        channel.pop()
    assert told == [300]
    channel.adapt(0.2)
    channel.window.bytes = 400
    channel.adapt(0.2)
    assert len(told) == 2


def test_writer_stopped_by_a_smaller_window_hears_of_room_before_the_queue_is_empty():
    told = []
    channel = InputChannel(0, 0, lambda: None)
    channel.when_credit(lambda: told.append(channel.bytes))
    for _ in range(10):
        channel.push(Barrier(1, 1), 10_000)
    while channel.window.bytes > MIN_WINDOW_BYTES:
        channel.adapt(0.2)
    assert channel.credit == 0
    for _ in range(10):
        channel.pop()
    assert told
    assert min(told) < MIN_WINDOW_BYTES


def never_starved():
    return 0


def full_of_rows(rows=100_000):
    channel = InputChannel(0, 0, lambda: None)
    batch = pa.record_batch({"v": pa.array(range(rows), pa.int64())})
    channel.push(Batch(batch, 7), batch.nbytes)
    return channel, batch


def test_slow_reader_gets_large_batches_in_short_chunks_and_loses_nothing():
    channel, rows = full_of_rows()
    channel.push(Barrier(1, 1), 10)
    chunks = []
    while isinstance(element := channel.pop(), Batch):
        chunks.append(element)
        channel.chunk.worked(element.rows.num_rows * 100_000, never_starved)  # 0.1 ms per row
    assert element == Barrier(1, 1)
    assert channel.bytes == 0
    assert pa.Table.from_batches([chunk.rows for chunk in chunks]).combine_chunks().to_batches()[0] == rows
    assert {chunk.emit_ns for chunk in chunks} == {7}
    assert max(chunk.rows.num_rows for chunk in chunks[1:]) <= CHUNK_NS / 100_000


def test_a_fast_reader_soon_gets_whole_batches():
    channel, rows = full_of_rows()
    taken = 0
    while taken < rows.num_rows:
        taken += channel.pop().rows.num_rows
        channel.chunk.worked(100_000, never_starved)
    assert channel.chunk.bytes > rows.nbytes


def test_one_slow_moment_is_made_up_for_and_control_elements_say_nothing():
    chunk = Chunk()
    chunk.taken(1_000)
    chunk.worked(10**12, never_starved)
    assert chunk.bytes == MIN_CHUNK_BYTES
    for _ in range(4):
        chunk.taken(chunk.bytes)
        chunk.worked(1_000, never_starved)
    assert chunk.bytes == MIN_CHUNK_BYTES * 4**4
    chunk.taken(0)
    chunk.worked(10**12, never_starved)
    assert chunk.bytes == MIN_CHUNK_BYTES * 4**4


def test_small_batches_raise_the_limit_of_rows_by_a_small_factor():
    chunk = SourceChunk()
    for _ in range(50):
        rows = min(chunk.rows(never_starved), 1_000)
        chunk.worked_rows(rows, 1_000, never_starved)
    assert 1_000 < chunk.rows(never_starved) <= 4_000


@pytest.mark.slow
def test_what_a_thread_waits_for_a_processor_makes_no_chunk_smaller():
    """On a busy machine every chunk takes long, however small."""
    channel, _ = full_of_rows(1_000_000)
    sizes = []
    while len(sizes) < 50:
        waited_ns = 50_000_000 * len(sizes)
        channel.chunk.begin(partial(int, waited_ns))
        sizes.append(len(channel.pop()))
        took_ns = sizes[-1] * 10_000  # of work
        channel.chunk.worked(took_ns + 50_000_000, partial(int, waited_ns + 50_000_000))
    assert min(sizes[5:]) >= 0.9 * CHUNK_NS / 10_000


def test_what_is_left_of_a_batch_that_was_taken_in_part_is_in_flight():
    """U1"""
    channel, _ = full_of_rows()
    taken = channel.pop()
    channel.push(Barrier(1, 1, 0, 0), 10)
    (left,) = channel.record(1)
    assert 0 < taken.rows.num_rows < 100_000
    assert taken.rows.num_rows + left.rows.num_rows == 100_000
    assert left.rows.column(0)[0].as_py() == taken.rows.num_rows
