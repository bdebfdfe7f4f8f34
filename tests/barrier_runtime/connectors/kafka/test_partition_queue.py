"""Output of a partition queue: small chunks joined, in order, and never more rows than requested."""

from dataclasses import replace

import pyarrow as pa
import pytest

from barrier_runtime.connectors.kafka.source.partition_queue import Fetched, PartitionQueue, no_wake
from barrier_runtime.connectors.kafka.source.position import KafkaPosition
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows


def queue(wake=no_wake):
    where = "source 's', topic 'topic', partition 0"
    return PartitionQueue("topic", 0, KafkaPosition(10, None, None, None), where, wake)


def woken_queue():
    wakes = []
    return queue(lambda: wakes.append(True)), wakes


def chunk(first, rows, value="x", epoch=None, lists=False):
    batch = pa.record_batch({"n": list(range(first, first + rows)), "text": [value] * rows})
    rows_or_lists = FewRows.of(batch) if lists else batch
    return Fetched(rows_or_lists, list(range(first, first + rows)), first + rows, epoch, at_ns=first, size=batch.nbytes)


def numbers(fetched):
    return Batch(fetched.rows, 0).column("n").to_pylist()


def taken(source, max_rows):
    return [(numbers(f), f.next_offset) for f in iter(lambda: source.take(max_rows), None)]


def test_small_pieces_are_taken_together():
    source = queue()
    for first in (10, 13, 14):
        source.put(chunk(first, {10: 3, 13: 1, 14: 6}[first], epoch=first))
    together = source.take(100)
    assert numbers(together) == list(range(10, 20))
    assert (together.next_offset, together.epoch, together.at_ns) == (20, 14, 10)  # the oldest has waited longest
    assert source.reached == 20
    assert source.held_bytes == 0
    assert source.take(100) is None


@pytest.mark.parametrize("lists", [(), (10, 13, 20, 30), (13, 30)], ids=["Arrow", "lists", "both"])
@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 7, 100])
def test_never_more_than_is_asked_for_and_every_row_once(max_rows, lists):
    source, put = queue(), []
    for first, rows in ((10, 3), (13, 1), (20, 5), (30, 2)):  # offsets may have gaps
        source.put(chunk(first, rows, lists=first in lists))
        put += range(first, first + rows)
    found = taken(source, max_rows)
    assert [n for rows, _ in found for n in rows] == put
    assert all(len(rows) <= max_rows for rows, _ in found)
    assert [after for _, after in found] == [*(rows[-1] + 1 for rows, _ in found)]
    assert source.reached == 32
    assert source.held_bytes == 0


def test_lists_taken_together_stay_lists_until_they_are_many():
    source = queue()
    for first in (10, 60, 110):
        source.put(chunk(first, 50, lists=True))
    assert isinstance(source.take(100).rows, FewRows)
    for first in (160, 210):
        source.put(chunk(first, 50, lists=True))
    many = source.take(1_000)
    assert isinstance(many.rows, pa.RecordBatch)
    assert numbers(many) == list(range(110, 260))
    assert source.held_bytes == 0


def test_emptied_queue_holds_zero_bytes_whatever_its_columns_weigh_together():
    """Joining chunks packs the bits of booleans and nulls anew. A difference that grows per chunk would make the empty
    queue look full, and fetching would stop.
    """
    source = queue()
    schema = pa.schema([("yes", pa.bool_()), ("text", pa.string()), ("tags", pa.list_(pa.string()))])
    for number in range(1_000):
        row = {"yes": [number % 2 == 0], "text": [None if number % 3 else "x"], "tags": [["a"] * (number % 4)]}
        rows = pa.RecordBatch.from_pydict(row, schema=schema)
        source.put(Fetched(rows, [10 + number], 11 + number, None, 0, rows.nbytes))
    batches = list(iter(lambda: source.take(7), None))
    assert sum(batch.rows.num_rows for batch in batches) == 1_000
    assert source.held_bytes == 0


def test_large_pieces_stay_what_they_are():
    source = queue()
    for first in (10, 11, 12):
        source.put(chunk(first, 1, value="x" * 2_200_000))
    assert [len(rows) for rows, _ in taken(source, 1_000)] == [1, 1, 1]


def test_what_was_given_up_between_rows_moves_the_position_only():
    source = queue()
    source.put(chunk(10, 2))
    source.put(Fetched(None, (), 17, None, 0))
    together = source.take(100)
    assert (numbers(together), together.next_offset) == ([10, 11], 17)
    source.put(Fetched(None, (), 18, None, 0))
    source.put(Fetched(None, (), 19, None, 0))
    nothing = source.take(100)
    assert (nothing.rows, nothing.next_offset) == (None, 19)


def test_rows_come_before_the_trouble_behind_them():
    source = queue()
    source.put(chunk(10, 2))
    source.put(chunk(12, 1))
    source.fail(ValueError("bad record"))
    assert source.take(100).rows.num_rows == 3
    with pytest.raises(ValueError, match="bad record"):
        source.take(100)


def test_gathered_rows_reach_the_loop_together_when_they_are_flushed():
    source, wakes = woken_queue()
    for first in (10, 13, 20):
        source.gather(chunk(first, 3, epoch=first))
    assert not source.waiting
    assert source.take(100) is None
    assert (source.next_offset, source.epoch) == (23, 20)
    assert source.held_bytes > 0
    source.flush()
    source.flush()
    assert wakes == [True]
    assert taken(source, 100) == [([10, 11, 12, 13, 14, 15, 20, 21, 22], 23)]
    assert source.held_bytes == 0


def test_rows_gathered_before_the_trouble_come_first():
    source = queue()
    source.gather(chunk(10, 2))
    source.gather(chunk(12, 1))
    source.fail(ValueError("bad record"))
    assert numbers(source.take(100)) == [10, 11, 12]
    with pytest.raises(ValueError, match="bad record"):
        source.take(100)


def test_gathered_rows_wait_only_until_they_are_many_or_large_or_old():
    now_ns = 10
    for gathered, waits in (
        ([], False),
        ([chunk(10, 3)], True),
        ([chunk(10, 20_000)], True),
        ([chunk(10, 20_000), chunk(20_010, 20_000)], False),
        ([chunk(10, 1, value="x" * 8_000_000)], False),
        ([chunk(10 + number, 1) for number in range(511)], True),
        ([chunk(10 + number, 1) for number in range(512)], False),
    ):
        source = queue()
        for each in gathered:
            source.gather(each)
        assert source.gathers(now_ns) == waits
        assert not source.gathers(now_ns + 100_000_000)


@pytest.mark.parametrize("lists", [(), (10, 13, 20, 30), (13, 30)], ids=["Arrow", "lists", "both"])
@pytest.mark.parametrize("max_rows", [1, 2, 3, 4, 7, 100])
def test_gathered_rows_taken_in_parts_have_a_position_after_each_part(max_rows, lists):
    source, put = queue(), []
    for first, rows in ((10, 3), (13, 1), (20, 5), (30, 2)):
        source.gather(chunk(first, rows, lists=first in lists))
        put += range(first, first + rows)
    source.gather(Fetched(None, (), 40, None, 0))
    source.flush()
    found = taken(source, max_rows)
    assert [n for rows, _ in found for n in rows] == put
    assert [after for _, after in found] == [*(rows[-1] + 1 for rows, _ in found[:-1]), 40]
    assert source.held_bytes == 0


@pytest.mark.parametrize("max_rows", [1, 2, 100])
def test_skipped_nulls_of_gathered_rows_are_counted_once_however_the_rows_are_taken(max_rows):
    source = queue()
    source.gather(replace(chunk(10, 3), nulls=2))
    source.gather(Fetched(None, (), 20, None, 0, nulls=7))
    source.gather(replace(chunk(20, 2), nulls=1))
    source.flush()
    assert sum(found.nulls for found in iter(lambda: source.take(max_rows), None)) == 10
    assert source.reached == 22
