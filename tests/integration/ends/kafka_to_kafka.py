"""A topic of numbers, counted per key, into another topic: the job of test_kafka_to_kafka."""

from typing import Any

from barrier_runtime import Dataflow, count
from barrier_runtime.connectors.kafka.sink.sink import KafkaSink
from tests.integration.ends.kafka_feed import read_numbers

NAME, SINK = "kafka-to-kafka", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = read_numbers(flow, settings["bootstrap"], settings["source"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(SINK, KafkaSink(settings["bootstrap"], settings["target"], key="key"))
    return flow
