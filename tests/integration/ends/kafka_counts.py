"""A topic of numbers, counted per key, into a folder: the job of test_kafka_to_files."""

import datetime
from typing import Any

from barrier_runtime import Dataflow, JsonlSink, count

NAME, SINK = "kafka-counts", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.read_kafka(
        "numbers",
        settings["bootstrap"],
        settings["topic"],
        group="counters",
        key=None,
        value="json",
        schema={"value": int, "key": int},
        metadata=(),
        discover=datetime.timedelta(seconds=1),
    )
    numbers.key_by("key").aggregate("count", n=count()).sink(SINK, JsonlSink(settings["folder"]))
    return flow
