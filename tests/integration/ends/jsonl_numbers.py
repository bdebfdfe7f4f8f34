"""Counted numbers into a folder: the job with which the harness tests itself."""

from typing import Any

from barrier_runtime import Dataflow, JsonlSink, count

NAME, SINK = "jsonl-numbers", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], settings["rows"], keys=settings["keys"])
    numbers.key_by("key").aggregate("count", n=count()).sink(SINK, JsonlSink(settings["folder"]))
    return flow
