"""A topic of numbers, counted per key, into a folder, another topic, two PostgreSQL tables and one of SQLite: the job
of test_topic_under_kills."""

from typing import Any

from barrier_runtime import Dataflow, JsonlSink, SqliteSink, count
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from barrier_runtime.connectors.postgres.sink import PostgresSink
from tests.integration.ends.kafka_feed import read_numbers
from tests.integration.ends.postgres_counts import NEWEST, TABLE

NAME, FILES = "topic-counts", "files"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = read_numbers(flow, settings["bootstrap"], settings["source"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(FILES, JsonlSink(settings["folder"]))
    counted.sink("topic", KafkaSink(settings["bootstrap"], settings["target"], key="key"))
    rows = counted.select(["value", "key", "n"])
    rows.sink("out", PostgresSink(settings["postgres"], TABLE))
    rows.sink("newest", PostgresSink(settings["postgres"], NEWEST, mode="upsert", key=["key"]))
    rows.sink("sqlite", SqliteSink(settings["sqlite"], TABLE))
    return flow
