"""Whole jobs over Kafka topics, without Spark: dead letters, event time, and restarts at other parallelisms."""

import datetime
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from barrier_runtime import Dataflow, JsonlSink, ParquetSink, Tumbling, count
from barrier_runtime.sinks.commit_log import committed_files
from examples.servers import KafkaServer
from tests.ends.kafka_world import Topic


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


def test_event_time_is_kept_per_partition(kafka: KafkaServer, tmp_path: Path) -> None:
    """One partition is an hour ahead of the other: nothing of the other is late for that."""
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
