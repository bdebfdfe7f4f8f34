"""Whole jobs over Kafka topics, without Spark: dead letters, event time, and restarts at other parallelisms."""

import datetime
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition

from barrier_runtime import CollectSink, Dataflow, JsonlSink, KafkaBrokers, ParquetSink, Tumbling, count, min_
from barrier_runtime.api.dataflow import preview_of_restore
from barrier_runtime.connectors.files.sink.commit_log import committed_files
from barrier_runtime.connectors.kafka.source.fetcher import Fetcher, FetcherPool
from barrier_runtime.connectors.kafka.source.stall_detector import StallTimeouts
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic
from tests.waiting import until


def written(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def test_good_rows_and_dead_letters_go_their_own_ways(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = Topic(kafka, partitions=2)
    for partition in range(2):
        topic.write([json.dumps({"n": n}) if n % 10 else f"bad {n}" for n in range(100)], partition, key=b"k")
    flow = Dataflow("dead-letters")
    good, bad = flow.read_kafka(
        "src",
        kafka.bootstrap,
        topic.name,
        group="g",
        until="latest",
        value="json",
        schema={"n": int},
        bad_records="dead_letter",
        event_time="timestamp",
    )
    good.select(["n", "partition", "offset"]).sink("good", JsonlSink(str(tmp_path / "good")))
    bad.sink("bad", ParquetSink(str(tmp_path / "bad")))
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"))
    rows = written(tmp_path / "good")
    assert sorted((row["partition"], row["n"]) for row in rows) == [
        (p, n) for p in range(2) for n in range(100) if n % 10
    ]
    assert all(row["n"] == row["offset"] for row in rows)
    letters = pa.concat_tables(pq.read_table(url) for url in committed_files(str(tmp_path / "bad"), flow.name, "bad"))
    assert sorted(letters["value"].to_pylist()) == sorted(2 * [f"bad {n}".encode() for n in range(0, 100, 10)])
    assert set(letters["key"].to_pylist()) == {b"k"}
    assert all(error.startswith("its value: DecodeError") for error in letters["error"].to_pylist())


def test_rows_that_came_behind_a_checkpoint_are_told_before_a_start(kafka: KafkaServer, tmp_path: Path) -> None:
    """1.9: `explain --restore` prints how many rows are waiting."""
    topic, out = Topic(kafka, partitions=2), CollectSink()
    for partition in range(2):
        topic.write([json.dumps({"n": n}) for n in range(50)], partition)
    flow = Dataflow("behind")
    rows = flow.read_kafka("src", kafka.bootstrap, topic.name, group="g", value="json", schema={"n": int})
    rows.sink("out", out)
    handle = flow.start_local(checkpoints=str(tmp_path), checkpoint_interval=0.05)
    until(lambda: len(out.rows()) == 100, "all rows came")
    handle.stop()
    handle.wait()
    topic.write([json.dumps({"n": n}) for n in range(30)], 1)
    page, starts = preview_of_restore(flow, {"checkpoints": str(tmp_path), "restore": "latest"}, local=True)
    assert "source src: 100 rows read, splits that go on: 2, that ended: 0" in page
    assert ", to be read: at most 30 rows\n" in page
    assert starts


def test_debeziums_events_are_upserts_of_a_table(kafka: KafkaServer, tmp_path: Path) -> None:
    """With their tombstones, as Debezium writes them."""
    topic = Topic(kafka, partitions=1)
    source = {"ts_ms": 1_704_067_200_000}
    events: list[Any] = [
        {"op": "c", "before": None, "after": {"id": 1, "v": "a"}, "source": source},
        {"op": "c", "before": None, "after": {"id": 2, "v": "b"}, "source": source},
        {"op": "u", "before": None, "after": {"id": 1, "v": "c"}, "source": source},
        {"op": "d", "before": {"id": 2}, "after": None, "source": source},
        None,
    ]
    topic.write([None if each is None else json.dumps({"schema": None, "payload": each}) for each in events], key=b"k")
    flow, out = Dataflow("debezium"), CollectSink()
    options: dict[str, Any] = {"group": "g", "until": "latest", "key": None, "metadata": (), "debezium": "upsert"}
    rows = flow.read_kafka("src", kafka.bootstrap, topic.name, value="json", schema={"id": int, "v": str}, **options)
    rows.filter("deleted is not null").select(["id", "v", "deleted"]).sink("out", out)
    flow.run_local(parallelism=1, checkpoints=str(tmp_path / "checkpoints"))
    assert [tuple(row.values()) for row in out.rows()] == [
        (1, "a", False),
        (2, "b", False),
        (1, "c", False),
        (2, None, True),
    ]


def test_event_time_is_kept_per_partition(kafka: KafkaServer, tmp_path: Path) -> None:
    """A partition is an hour ahead of the other: this makes no row of the other partition late."""
    topic = Topic(kafka, partitions=2)
    begin = datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)
    for partition in range(2):
        for minute in range(120):
            at = begin + datetime.timedelta(minutes=minute + 60 * partition)
            topic.write([b"x"], partition, timestamp=int(at.timestamp() * 1000))
    flow = Dataflow("hours")
    records = flow.read_kafka("src", kafka.bootstrap, topic.name, group="g", until="latest", event_time="timestamp")
    hours = records.key_by("topic").window("hours", Tumbling(datetime.timedelta(hours=1)), event_time="timestamp")
    hours.aggregate(n=count()).select(["window_start", "n"]).sink("out", ParquetSink(str(tmp_path / "out")))
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"))
    found = pa.concat_tables(pq.read_table(url) for url in committed_files(str(tmp_path / "out"), flow.name, "out"))
    by_hour = {row["window_start"]: row["n"] for row in found.to_pylist()}
    assert by_hour == {begin + datetime.timedelta(hours=hour): n for hour, n in enumerate((60, 120, 60))}


def test_a_job_whose_client_goes_silent_goes_on_by_itself_and_writes_every_row_once(
    kafka: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of the topic: after the first record, however many arrived together."""
    topic = Topic(kafka, partitions=2)
    for partition in range(2):
        topic.write((f"{n:050}" for n in range(1_000)), partition)
    hand_out = Fetcher._hand_out
    silent: list[Any] = []  # the first client

    def hand_out_and_fall_silent(self: Fetcher, consumer: Any, converter: Any, messages: Sequence[Any]) -> None:
        if consumer in silent:
            return
        first = [] if silent else [message for message in messages if message.error() is None][:1]
        if first:
            silent.append(consumer)
            consumer.pause([TopicPartition(*partition) for partition in self._queues])
        hand_out(self, consumer, converter, first or messages)

    monkeypatch.setattr(Fetcher, "_hand_out", hand_out_and_fall_silent)
    timeouts = StallTimeouts(quiet=0.4, still=0.8, answer=1.0)
    monkeypatch.setattr(
        "barrier_runtime.connectors.kafka.source.source.FetcherPool", partial(FetcherPool, timeouts=timeouts)
    )
    flow = Dataflow("silence")
    records = flow.read_kafka("src", kafka.bootstrap, topic.name, group="g", until="latest")
    records.select(["value", "partition"]).sink("out", ParquetSink(str(tmp_path / "out")))
    result = flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"), checkpoint_interval=0.1)
    assert silent
    assert sum(slot.metrics.get("src.clients_replaced", 0) for slot in result.status.slots) >= 1
    assert result.status.generations == 1
    found = pa.concat_tables(pq.read_table(url) for url in committed_files(str(tmp_path / "out"), flow.name, "out"))
    assert sorted((row["partition"], int(row["value"])) for row in found.to_pylist()) == [
        (partition, n) for partition in range(2) for n in range(1_000)
    ]


def test_files_are_followed_by_the_topic_from_a_time_on(kafka: KafkaServer, tmp_path: Path) -> None:
    begin_ms = 1_700_000_000_000
    columns = {"n": int, "timestamp": datetime.datetime}
    times = [begin_ms + n * 1_000 for n in range(200)]
    rows = pa.table(
        {"n": range(150), "timestamp": pa.array([1_000 * ms for ms in times[:150]], pa.timestamp("us", "UTC"))}
    )
    pq.write_table(rows, tmp_path / "archive.parquet")
    topic = Topic(kafka, partitions=2)
    for n in range(100, 200):  # the topic has kept the second half
        topic.write([json.dumps({"n": n})], n % 2, timestamp=times[n])
    switch = datetime.datetime.fromtimestamp(times[150] / 1000, datetime.timezone.utc)
    flow, out, late = Dataflow("backfill"), CollectSink(), CollectSink()
    archive = flow.read_parquet("archive", str(tmp_path / "archive.parquet"), schema=columns, event_time="timestamp")
    orders = flow.read_kafka(
        "orders",
        KafkaBrokers(kafka.bootstrap, config={"client.id": "backfill"}),
        topic.name,
        group="g",
        start=switch,
        until="latest",
        value="json",
        schema={"n": int},
        event_time="timestamp",
    )
    both = archive.followed_by("archive-then-orders", orders.select(["n", "timestamp"]))
    windows = both.window_all("tens", Tumbling(10)).aggregate(late=True, n=count(), least=min_("n"))
    windows.main.select(["n", "least"]).sink("out", out)
    windows.late.sink("late", late)
    flow.run_local(parallelism=2, checkpoints=str(tmp_path / "checkpoints"))
    assert [(row["n"], row["least"]) for row in out.rows()] == [(10, n) for n in range(0, 200, 10)]
    assert late.rows() == []
