"""Parts of the Kafka source that need no broker: ownership, positions, queues, retention, options."""

import datetime
import pickle
import threading
import time
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import TopicPartition, Uuid

from barrier_runtime import Dataflow, KafkaSource
from barrier_runtime.connectors.kafka.source.client import LATEST, Cluster, KafkaClient, known_id
from barrier_runtime.connectors.kafka.source.fetcher import Fetcher
from barrier_runtime.connectors.kafka.source.partition_queue import Fetched, PartitionQueue
from barrier_runtime.connectors.kafka.source.position import KafkaPosition, KafkaSplit, owner, resumed, split_id
from barrier_runtime.connectors.kafka.source.stall_detector import StallTimeouts
from barrier_runtime.connectors.kafka.source.topic_checks import lost, outlook
from barrier_runtime.connectors.source_bases.payloads import start_ms
from barrier_runtime.runtime.sources.assignment import assign_discovered, check_none_lost
from barrier_runtime.runtime.sources.progress import SPLITS_VALUE, RestoredSource, SourceProgress, SplitProgress
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.threads import SLICE_NS
from tests.state.test_time_slice import attributes, needs_short_slices


def test_the_partitions_of_a_topic_are_dealt_out_evenly_and_always_alike() -> None:
    for parallelism in (1, 2, 3, 7):
        counts = [0] * parallelism
        for partition in range(4 * parallelism):
            counts[owner(split_id("orders-eu-1", partition), parallelism)] += 1
        assert counts == [4] * parallelism
    assert [owner("orders-0", 8), owner("orders-1", 8)] == [6, 7]  # snapshots rely on these owners
    assert len({owner(f"topic-{number}-0", 8) for number in range(100)}) == 8


def test_a_position_of_another_topic_of_the_same_name_is_refused() -> None:
    split = KafkaSplit("t", 0, 0, topic_id="new")
    assert resumed(split, KafkaPosition(5, topic_id="new"), "here").offset == 5
    assert resumed(KafkaSplit("t", 0, 0), KafkaPosition(5, topic_id="old"), "here").topic_id == "old"  # not known now
    with pytest.raises(InvalidJob, match="deleted and made again"):
        resumed(split, KafkaPosition(5, topic_id="old"), "here")


def test_position_without_topic_id_is_readable_and_adopts_the_current_topic_id() -> None:
    """From a snapshot of an older release, or of brokers that gave no ids."""
    older = msgspec.json.decode(b'{"offset": 5, "end": 9, "epoch": 2}', type=KafkaPosition)
    assert resumed(KafkaSplit("t", 0, 0, topic_id="now"), older, "here") == KafkaPosition(5, 9, "now", 2)
    assert resumed(KafkaSplit("t", 0, 0), older, "here") == older


def test_the_id_of_brokers_that_give_none_is_no_id() -> None:
    assert known_id(Uuid(0, 0)) == ""
    assert known_id(Uuid(1, 0)) != known_id(Uuid(2, 0)) != ""


def test_payloads_and_positions_survive_their_json() -> None:
    split = KafkaSplit("t", 2, 7, 9, "id")
    assert msgspec.json.decode(split.split().payload, type=KafkaSplit) == split
    assert split.split().id == "t-2"


# ---------------------------------------------------------------- queues


def rows(*offsets: int) -> Fetched:
    batch = pa.RecordBatch.from_pydict({"n": list(offsets)})
    return Fetched(batch, list(offsets), offsets[-1] + 1, 1, 0, batch.nbytes)


def feed_from(offset: int, end: int | None = None) -> PartitionQueue:
    return PartitionQueue("t", 0, KafkaPosition(offset, end), "source 'src', topic 't', partition 0")


def taken(queue: PartitionQueue, max_rows: int) -> tuple[list[int], int] | None:
    """Returns the offsets of the rows, and the position after them."""
    found = queue.take(max_rows)
    return None if found is None else (found.rows.column(0).to_pylist() if found.rows else [], found.next_offset)


def test_a_batch_that_is_taken_in_parts_has_a_position_after_each() -> None:
    """Offsets have gaps at markers and aborted transactions."""
    queue = feed_from(0)
    queue.put(rows(0, 1, 5, 9))
    queue.put(Fetched(None, (), 12, None, 0))
    assert [taken(queue, 3), taken(queue, 3), taken(queue, 3)] == [([0, 1, 5], 6), ([9], 12), None]
    assert queue.reached == queue.next_offset == 12


def test_what_is_held_is_counted_until_it_is_taken() -> None:
    queue = feed_from(0)
    batch = rows(*range(1000))
    queue.put(batch)
    assert queue.held_bytes == batch.rows.nbytes
    for _ in range(10):
        held = queue.held_bytes
        queue.take(100)
        assert queue.held_bytes < held
    assert queue.held_bytes == 0
    assert not queue.waiting


def test_trouble_is_met_after_the_rows_before_it_and_stays() -> None:
    queue = feed_from(0)
    queue.put(rows(0, 1))
    queue.fail(InvalidJob("first"))
    queue.fail(InvalidJob("second"))
    assert queue.over
    assert taken(queue, 10) == ([0, 1], 2)
    for _ in range(2):
        with pytest.raises(InvalidJob, match="first"):
            queue.take(10)


def test_a_feed_with_an_end_is_over_there() -> None:
    queue = feed_from(0, end=3)
    queue.put(rows(0, 1))
    assert not queue.over
    queue.put(Fetched(None, (), 3, None, 0))
    assert queue.over


# ---------------------------------------------------------------- retention


@pytest.mark.parametrize(
    ("position", "earliest", "before", "end", "expected"),
    [
        (9, 10, 10, 100, "lost"),
        (10, 10, 10, 100, "fine"),  # nothing is being deleted
        (10, 10, None, 100, "fine"),  # first poll
        (10, 10, 5, 100, "soon"),
        (18, 10, 5, 100, "soon"),
        (19, 10, 5, 100, "fine"),  # a tenth of the retained offsets lies between
        (100, 100, 5, 100, "fine"),  # all retained records are read
        (10, 10, 5, None, "fine"),  # the end is not known yet
    ],
)
def test_a_loss_is_near_when_deletion_moves_and_is_a_tenth_away(
    position: int, earliest: int, before: int | None, end: int | None, expected: str
) -> None:
    assert outlook(position, earliest, before, end) == expected


def test_a_loss_is_told_from_a_log_that_ends_too_early() -> None:
    queue = feed_from(40)
    assert "offset 40 is wanted, but the earliest that is retained is 60: 20 offsets" in str(lost(queue, 40, 60, 100))
    assert "offset 40 is wanted, but the partition ends at 7" in str(lost(queue, 40, 0, 7))
    made_again = str(lost(queue, 40, 0, 90))  # the partition ended below offset 40 at the request
    assert "it was not there, and now the partition ends at 90: the topic was made again" in made_again


# ---------------------------------------------------------------- options


def read(topics: Any = "t", servers: str = "localhost:9", **options: Any) -> Any:
    flow = Dataflow("reads")
    return flow, flow.read_kafka("src", servers, topics, **{"group": "g", **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"topics": None}, "either topics= or pattern="),
        ({"pattern": "a.*"}, "either topics= or pattern="),
        ({"topics": []}, "give the name of a topic"),
        ({"topics": None, "pattern": "a("}, "not a regular expression"),
        ({"topics": None, "pattern": ""}, "matches no topic"),
        ({"group": ""}, "group=''"),
        ({"servers": " "}, "bootstrap_servers=' '"),
        ({"servers": "user:secret@broker:9092"}, "must not carry credentials"),
        ({"start": "begin"}, "start='begin'"),
        ({"start": datetime.datetime(2024, 1, 1)}, "has no time zone"),
        ({"until": "now"}, "until='now'"),
        ({"discover": datetime.timedelta()}, "a period above 0"),
        ({"discover": "5"}, "pass a datetime.timedelta"),
        ({"event_time": "at"}, "there is no column 'at'"),
    ],
)
def test_mistakes_are_seen_before_anything_is_connected(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidJob, match=text) as refused:
        read(**options)
    assert "secret" not in str(refused.value)


def test_dead_letters_are_a_second_stream_with_the_record_and_the_reason() -> None:
    _, (good, bad) = read(value="json", schema={"n": int}, bad_records="dead_letter")
    assert good.schema.names == ["key", "n", "topic", "partition", "offset", "timestamp"]
    assert bad.schema.names == ["key", "value", "topic", "partition", "offset", "timestamp", "headers", "error"]


def test_the_source_travels_without_its_consumers_and_shows_no_secret() -> None:
    flow, _ = read(config={"sasl.password": "open-sesame", "sasl.username": "alice"})
    source = flow.plan.nodes[0].source
    again = pickle.loads(pickle.dumps(source))
    assert repr(again) == repr(source) == "Kafka topics t at localhost:9, from earliest, group g"
    assert again.schema == source.schema
    assert "sesame" not in repr(source._client)


@needs_short_slices
def test_reader_and_client_threads_get_short_slices_before_the_client_starts() -> None:
    seen: list[int] = []

    def settings() -> dict[str, Any]:
        """Settings that the reading thread requests and the client refuses."""
        started = threading.Thread(target=lambda: seen.append(attributes()[1]))
        started.start()
        started.join()
        seen.append(attributes()[1])
        return {"no.such.setting": 1}

    client = KafkaClient("source 'x'", "localhost:1", "group", settings)
    fetcher = Fetcher("source 'x'", client, lambda: pytest.fail("no client"), 1 << 20, StallTimeouts())
    deadline_s = time.monotonic() + 60
    while not fetcher.failed and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert seen == [SLICE_NS, SLICE_NS]


@pytest.mark.parametrize(
    ("chosen", "left_out"),
    [({"topics": "orders"}, "others"), ({"topics": ["others", "more"]}, "orders"), ({"pattern": "o.d.*"}, "others")],
)
def test_an_offset_in_a_topic_that_is_not_chosen_any_more_is_not_gone_on_with(
    chosen: dict[str, Any], left_out: str
) -> None:
    """The job would continue to read the old topic in addition to the new one."""
    splits = {f"{topic}-{number}": SplitProgress(3, 0, False) for topic in ("orders", "others") for number in (0, 1)}
    values = {SPLITS_VALUE: msgspec.json.encode(SourceProgress(splits, version=2))}
    restored = RestoredSource((OperatorSnapshot("in", 0, 1, values),), 0, 1, "source 'in'")
    source = KafkaSource("broker:9092", group="g", **chosen).named("in")
    said = f"source 'in': the checkpoint has an offset in topic '{left_out}', which is not among its topics"
    with pytest.raises(InvalidJob, match=said):
        check_none_lost(source, (), restored, "source 'in'")
    with pytest.raises(InvalidJob, match=said):
        assign_discovered(source, (), restored, 0, 1, "source 'in'")
    whole = KafkaSource("broker:9092", group="g", pattern="orders|others|new").named("in")
    assert [whole.not_chosen(id) for id in splits] == [""] * 4


class LogOfTimes:
    """Replacement for the client library's consumer: after request n a record of time 100 + n arrives."""

    def __init__(self) -> None:
        self.times = [90, 95]
        self.requests = 0

    def offsets_for_times(self, wanted: list[Any], timeout: float) -> list[TopicPartition]:
        (place,) = wanted
        last = len(self.times) if place.offset == LATEST else -1
        found = next((at for at, time in enumerate(self.times) if 0 <= place.offset <= time), last)
        self.requests += 1
        self.times.append(100 + self.requests)
        return [TopicPartition(place.topic, place.partition, found)]

    def close(self) -> None: ...


def test_a_record_that_arrives_while_the_start_is_looked_up_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogOfTimes()
    monkeypatch.setattr(KafkaClient, "consumer", lambda self, **callbacks: log)
    with Cluster(KafkaClient("source 'src'", "10.0.0.1:9092", "group", {})) as cluster:
        assert cluster.offsets([("t", 0)], 101) == {("t", 0): 2}, "of the record of time 101"
        assert cluster.offsets([("t", 0)], 96) == {("t", 0): 2}
        assert cluster.offsets([("t", 0)], 95) == {("t", 0): 1}


def test_a_start_between_two_milliseconds_is_the_later_millisecond() -> None:
    noon = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    noon_ms = 1_767_265_200_000
    micros = datetime.timedelta(microseconds=1)
    assert [start_ms(noon - micros), start_ms(noon), start_ms(noon + micros)] == [noon_ms, noon_ms, noon_ms + 1]
    assert start_ms(datetime.datetime(1969, 12, 31, 23, 59, 59, 999_500, datetime.timezone.utc)) == 0
