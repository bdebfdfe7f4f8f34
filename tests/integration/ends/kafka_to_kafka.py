"""A topic of numbers, counted per key, into another topic: the job of test_kafka_to_kafka."""

import datetime
from typing import Any

from barrier_runtime import Dataflow, count
from barrier_runtime.sinks.kafka import KafkaSink

NAME, SINK = "kafka-to-kafka", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.read_kafka(
        "numbers",
        settings["bootstrap"],
        settings["source"],
        group="counters",
        key=None,
        value="json",
        schema={"value": int, "key": int},
        metadata=(),
        discover=datetime.timedelta(seconds=1),
    )
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(SINK, KafkaSink(settings["bootstrap"], settings["target"], key="key"))
    return flow
