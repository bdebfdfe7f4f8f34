"""A topic of numbers, counted per key, into a folder: the job of test_kafka_to_files."""

from typing import Any

from barrier_runtime import Dataflow, JsonlSink, count
from tests.integration.ends.kafka_feed import read_numbers

NAME, SINK = "kafka-counts", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = read_numbers(flow, settings["bootstrap"], settings["topic"])
    numbers.key_by("key").aggregate("count", n=count()).sink(SINK, JsonlSink(settings["folder"]))
    return flow
