"""A topic of numbers, counted per key, into a folder and into another topic: the job of test_kafka_under_kills."""

from typing import Any

from barrier_runtime import Dataflow, JsonlSink, count
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from tests.integration.ends.kafka_feed import read_numbers

NAME, FILES = "kafka-counts", "files"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = read_numbers(flow, settings["bootstrap"], settings["source"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(FILES, JsonlSink(settings["folder"]))
    counted.sink("topic", KafkaSink(settings["bootstrap"], settings["target"], key="key"))
    return flow
