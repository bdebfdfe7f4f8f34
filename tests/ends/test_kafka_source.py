"""The Kafka source on a real broker: every committed record once, in order, from any start position."""

import datetime
import json
import random
import time
from collections import Counter

import msgspec
import pytest

from barrier_runtime.connectors.kafka.source.position import SPLIT, KafkaPosition, begin
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import Split
from barrier_runtime.state.errors import InvalidJob
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic, all_rows, fetching_threads, reading, rows_from, source_of
from tests.waiting import until


def values(rows: list[dict]) -> list[str]:
    return [row["value"].decode() for row in rows]


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_a_position_leads_to_the_very_next_record_wherever_a_batch_was_cut(kafka: KafkaServer) -> None:
    """U12: records read after the position was taken are read again, no others."""
    topic = Topic(kafka)
    topic.write(numbers(0, 500))
    source = source_of(kafka, topic.name, until="latest")
    (split,) = source.splits(1)
    read, position = [], None
    for count in (1, 7, 100, 392):
        with reading(source, split, position) as reader:
            read += values(rows_from(reader, count))
            position = reader.position()
            assert reader.finished == (len(read) == 500)
    assert read == numbers(0, 500)
    with reading(source, split, position) as reader:
        assert reader.finished


def test_a_reader_knows_how_many_records_are_still_to_be_read(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(numbers(0, 500))
    (split,) = source_of(kafka, topic.name, until="latest").splits(1)
    bounded = source_of(kafka, topic.name, until="latest").reader(split)
    assert bounded.backlog() == 500, "known without a request"
    bounded.close()
    endless = source_of(kafka, topic.name)
    assert endless.reader(endless.splits(1)[0]).backlog() is None, "nothing has been fetched"
    with reading(endless, endless.splits(1)[0]) as reader:
        until(lambda: reader.backlog() == 500, "the broker's end is known")
        rows_from(reader, 100)
        assert reader.backlog() == 400
        topic.write(numbers(500, 550))
        until(lambda: reader.backlog() == 450, "the new end is known")
        rows_from(reader, 450)
        assert reader.backlog() == 0


def test_rows_carry_key_value_and_what_the_broker_says_of_them(kafka: KafkaServer) -> None:
    topic = Topic(kafka, partitions=2)
    topic.write([b"a"], 1, key=b"k", headers=[("trace", b"\x01"), ("trace", None)], timestamp=1_700_000_000_123)
    topic.write([None], 1, timestamp=1_700_000_000_456)
    wanted = ("topic", "partition", "offset", "timestamp", "headers")
    rows = all_rows(source_of(kafka, topic.name, until="latest", metadata=wanted, key="string"))
    at = datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=datetime.timezone.utc)
    place = {"topic": topic.name, "partition": 1}
    headers = [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": None}]
    assert rows == [
        {"key": "k", "value": b"a", **place, "offset": 0, "timestamp": at, "headers": headers},
        {
            "key": None,
            "value": None,
            **place,
            "offset": 1,
            "timestamp": at.replace(microsecond=456_000),
            "headers": [],
        },
    ]


def test_transactions_that_were_given_up_are_not_read_and_do_not_stop_the_reader(kafka: KafkaServer) -> None:
    """The last aborted transaction leaves offsets without records at the end: the position goes beyond these offsets,
    and the split ends.
    """
    topic = Topic(kafka)
    topic.write_transactions((numbers(0, 5), True), (["no"] * 5, False), (numbers(5, 10), True), (["no"] * 5, False))
    source = source_of(kafka, topic.name, until="latest")
    (split,) = source.splits(1)
    with reading(source, split) as reader:
        assert values(rows_from(reader)) == numbers(0, 10)
        assert msgspec.json.decode(reader.position(), type=KafkaPosition).offset == 24  # 20 records, 4 markers

    endless = source_of(kafka, topic.name)
    with reading(endless, endless.splits(1)[0]) as reader:
        assert values(rows_from(reader, 10)) == numbers(0, 10)

        def beyond() -> bool:
            assert reader.poll(100, time.time_ns()) is None
            return msgspec.json.decode(reader.position(), type=KafkaPosition).offset == 24

        until(beyond, "the position is behind the transaction that was given up")
        topic.write(["more"])
        assert values(rows_from(reader, 1)) == ["more"]


def test_each_start_begins_where_it_says(kafka: KafkaServer) -> None:
    topic = Topic(kafka, partitions=2)
    early, late = (datetime.datetime(2024, 1, day, tzinfo=datetime.timezone.utc) for day in (1, 2))
    topic.write(numbers(0, 3), 0, timestamp=int(early.timestamp() * 1000))
    topic.write(numbers(3, 6), 0, timestamp=int(late.timestamp() * 1000))
    topic.write(numbers(6, 9), 1, timestamp=int(early.timestamp() * 1000))
    topic.commit("group-in-use", 4, 0)

    def read(**options: object) -> list[str]:
        return values(all_rows(source_of(kafka, topic.name, until="latest", **options)))

    assert read(start="earliest") == numbers(0, 9)
    assert read(start="latest") == []
    assert read(start="group", group="group-in-use") == numbers(4, 9)
    assert read(start="group", group="group-never-used") == numbers(0, 9)
    assert read(start=late) == numbers(3, 6)
    assert read(start=early) == numbers(0, 9)
    assert read(start=late + datetime.timedelta(days=1)) == []


def test_latest_is_looked_up_once_and_kept_over_restarts(kafka: KafkaServer) -> None:
    """The first snapshot holds the position, although no record had arrived: later starts do not look again."""
    topic = Topic(kafka)
    topic.write(["before"])
    source = source_of(kafka, topic.name, start="latest")
    with reading(source, source.splits(1)[0]) as reader:
        position = reader.position()
    topic.write(["meanwhile"])
    restarted = source_of(kafka, topic.name, start="latest")
    with reading(restarted, restarted.splits(1)[0], position) as reader:
        assert values(rows_from(reader, 1)) == ["meanwhile"]


def test_offsets_are_committed_to_the_group_when_their_checkpoint_is_decided(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(numbers(0, 10))
    source = source_of(kafka, topic.name, group="watched-group")
    with reading(source, source.splits(1)[0]) as reader:
        rows_from(reader, 4)
        reader.snapshotted(1)
        rows_from(reader, 3)
        reader.snapshotted(2)
        assert topic.committed("watched-group") < 0
        reader.completed(1)
        until(lambda: topic.committed("watched-group") == 4, "the offset of checkpoint 1 is committed")
        rows_from(reader, 3)
        reader.snapshotted(3)
        reader.completed(2)
        until(lambda: topic.committed("watched-group") == 7, "the offset of checkpoint 2 is committed")
        reader.completed(3)
        reader.completed(3)
    until(lambda: topic.committed("watched-group") == 10, "the last one is committed though the reader is closed")


def test_new_partitions_and_topics_are_found_and_begin_with_their_earliest_record(kafka: KafkaServer) -> None:
    topic = Topic(kafka, name="found-orders-a")
    source = source_of(kafka, pattern="found-orders-.*", start="latest", discover=datetime.timedelta(milliseconds=50))
    known = {split.id for split in source.splits(1)}
    assert known == {"found-orders-a-0"}
    names = NameSet()
    for id in known:
        names.add(id)
    discovery = source.discovery(names)
    assert discovery is not None
    found: list = []

    def more(count: int) -> bool:
        found.extend(discovery.found())
        return len(found) >= count

    try:
        topic.grow(2)
        topic.write(["in a new partition"], 1)
        until(lambda: more(1), "the partition is found")
        other = Topic(kafka, name="found-orders-b")
        Topic(kafka, name="not-found-orders-c")
        other.write(["in a new topic"])
        until(lambda: more(2), "the topic is found")
    finally:
        discovery.close()
    assert [split.id for split in found] == ["found-orders-a-1", "found-orders-b-0"]
    for split, text in zip(found, ("in a new partition", "in a new topic"), strict=True):
        with reading(source, split) as reader:
            assert values(rows_from(reader, 1)) == [text]


def test_readers_of_one_source_share_a_consumer_and_leave_no_thread(kafka: KafkaServer) -> None:
    until(lambda: not fetching_threads(), "the consumers of earlier tests are closed")
    topic = Topic(kafka, partitions=4)
    for partition in range(4):
        topic.write(numbers(0, 10), partition)
    source = source_of(kafka, topic.name)
    splits = source.splits(1)
    readers = [source.reader(split) for split in splits]
    for reader in readers:
        reader.prepare()
    assert [values(rows_from(reader, 10)) for reader in readers] == [numbers(0, 10)] * 4
    assert len(fetching_threads()) == 1
    again = source.reader(splits[0])  # as in a new generation, before the old generation is closed
    again.prepare()
    assert values(rows_from(again, 10)) == numbers(0, 10)
    assert len(fetching_threads()) == 2
    for reader in [*readers, again]:
        reader.close()
    until(lambda: not fetching_threads(), "the consumers are closed")


def test_a_slow_reader_holds_back_its_partition_only_and_misses_nothing(
    kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small bounds, so that the partition is paused and resumed over and over."""
    topic = Topic(kafka, partitions=2)
    rows = 20_000
    for partition in range(2):
        topic.write((f"{number:0100}" for number in range(rows)), partition)
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.source._HELD_BYTES", 200_000)
    source = source_of(kafka, topic.name, until="latest", config={"queued.max.messages.kbytes": 64})
    slow, quick = (source.reader(split) for split in source.splits(1))
    try:
        slow.prepare()
        quick.prepare()
        first = values(rows_from(slow, 10))
        assert values(rows_from(quick)) == [f"{number:0100}" for number in range(rows)]
        queue = slow._queue
        assert queue is not None
        until(lambda: queue.held_bytes > 0, "the slow partition is fetched, too")
        assert queue.held_bytes < 1_000_000
        assert first + values(rows_from(slow, max_rows=333)) == [f"{number:0100}" for number in range(rows)]
    finally:
        slow.close()
        quick.close()


@pytest.mark.parametrize("seed", range(3))
def test_wherever_readers_are_stopped_the_committed_records_come_once_and_in_order(
    kafka: KafkaServer, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U12: random transactions, some of them given up; random stops; some positions lost, as without a checkpoint."""
    draw = random.Random(seed)
    topic = Topic(kafka)
    transactions = [([""] * draw.randint(1, 300), draw.random() < 0.7) for _ in range(15)]
    numbered = iter(range(10**6))
    transactions = [([str(next(numbered)) for _ in part], committed) for part, committed in transactions]
    topic.write_transactions(*transactions)
    expected = [value for part, committed in transactions if committed for value in part]
    monkeypatch.setattr("barrier_runtime.connectors.kafka.source.source._HELD_BYTES", 2_000)
    source = source_of(kafka, topic.name, until="latest", config={"queued.max.messages.kbytes": 1})
    read: list[str] = []
    position = None
    while len(read) < len(expected):
        with reading(source, source.splits(1)[0], position) as reader:
            count = min(draw.randint(1, 400), len(expected) - len(read))
            rows = values(rows_from(reader, count, max_rows=draw.randint(1, 100)))
            if draw.random() < 0.8:
                read, position = read + rows, reader.position()
    assert read == expected


def test_reading_goes_on_when_the_broker_comes_back(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(numbers(0, 10))
    source = source_of(kafka, topic.name)
    with reading(source, source.splits(1)[0]) as reader:
        assert values(rows_from(reader, 5)) == numbers(0, 5)
        queue = reader._queue
        assert queue is not None
        until(lambda: queue.next_offset == 10, "the other rows are fetched")
        kafka.kill()
        try:
            assert values(rows_from(reader, 5)) == numbers(5, 10)
            assert reader.poll(10, time.time_ns()) is None
        finally:
            kafka.start()
        topic.write(numbers(10, 20))
        assert values(rows_from(reader, 10)) == numbers(10, 20)


def test_json_becomes_typed_columns(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write([json.dumps({"shop": "a", "amount": 1.5, "more": [1]}), json.dumps({"shop": "b"}), None])
    rows = all_rows(
        source_of(
            kafka,
            topic.name,
            until="latest",
            value="json",
            schema={"shop": str, "amount": float},
            key=None,
            metadata={"offset": "at"},
        )
    )
    assert rows == [
        {"shop": "a", "amount": 1.5, "at": 0},
        {"shop": "b", "amount": None, "at": 1},
        {"shop": None, "amount": None, "at": 2},
    ]


@pytest.mark.parametrize("null_values", ["row", "skip"])
def test_records_without_value_move_the_position_whatever_becomes_of_them(kafka: KafkaServer, null_values: str) -> None:
    """Also where a batch has only nulls, at the end, and from each position in the middle."""
    topic = Topic(kafka)
    for values in ([None], ['{"n": 1}', None, None, '{"n": 4}'], [None] * 3, ['{"n": 8}'], [None, None]):
        topic.write(values)
    options = {"value": "json", "schema": {"n": int}, "key": None, "metadata": ("offset",), "null_values": null_values}
    source = source_of(kafka, topic.name, until="latest", **options)
    (split,) = source.splits(1)
    rows = [{"n": offset if offset in (1, 4, 8) else None, "offset": offset} for offset in range(11)]
    wanted = [row for row in rows if null_values == "row" or row["n"] is not None]
    counted: Counter[str] = Counter()
    with reading(source, split) as reader:
        reader.count_by(lambda metric, count: counted.update({metric.name: count}))
        assert rows_from(reader) == wanted
        assert offset_of(reader) == 11
    assert counted["null_values"] == 8
    for first in range(12):
        with reading(source, split, at(split, first)) as reader:
            assert rows_from(reader, max_rows=1) == [row for row in wanted if row["offset"] >= first]
            assert offset_of(reader) == 11
    endless = source_of(kafka, topic.name, **options)
    with reading(endless, endless.splits(1)[0]) as reader:
        assert rows_from(reader, len(wanted)) == wanted

        def beyond() -> bool:
            assert reader.poll(100, time.time_ns()) is None
            return offset_of(reader) == 11

        until(beyond, "the position is behind the skipped records at the end")


def offset_of(reader: KafkaReader) -> int:
    return msgspec.json.decode(reader.position(), type=KafkaPosition).offset


def at(split: Split, offset: int) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(begin(SPLIT.decode(split.payload)), offset=offset))


def test_a_record_without_value_is_bad_where_nothing_else_is_said(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(['{"n": 1}', None, '{"n": 3}'])
    options = {"value": "json", "schema": {"n": int}, "null_values": "bad"}
    source = source_of(kafka, topic.name, **options)
    with reading(source, source.splits(1)[0]) as reader:
        assert [row["n"] for row in rows_from(reader, 1)] == [1]
        with pytest.raises(InvalidJob, match=r'partition 0, offset 1: .* its value: null.*null_values="skip"'):
            rows_from(reader, 1)
    letters = source_of(kafka, topic.name, until="latest", bad_records="dead_letter", **options)
    assert [row["dead_letter_error"] is None for row in all_rows(letters)] == [True, False, True]


def test_a_record_that_cannot_be_decoded_stops_at_its_place_after_the_rows_before_it(kafka: KafkaServer) -> None:
    topic = Topic(kafka)
    topic.write(['{"n": 1}', '{"n": 2}', '{"n": "three"}', '{"n": 4}'])
    source = source_of(kafka, topic.name, value="json", schema={"n": int})
    with reading(source, source.splits(1)[0]) as reader:
        assert [row["n"] for row in rows_from(reader, 2)] == [1, 2]
        with pytest.raises(InvalidJob, match=rf"topic '{topic.name}', partition 0, offset 2: .*Expected `int"):
            rows_from(reader, 1)
