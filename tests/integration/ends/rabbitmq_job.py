"""Messages of a queue, each once, into a folder: the job that is killed."""

import datetime
from typing import Any

from barrier_runtime import Dataflow, JsonlSink

NAME, SINK = "rabbitmq-numbers", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    messages = flow.read_rabbitmq(
        "messages",
        settings["url"],
        settings["queue"],
        value="json",
        schema={"value": int},
        deduplicate=datetime.timedelta(days=1),  # 86,400 messages, as their times are: each is a second later
        event_time="timestamp",
        idle_timeout=datetime.timedelta(seconds=1),
    )
    messages.select(["value", "redelivered"]).sink(SINK, JsonlSink(settings["folder"]))
    return flow
