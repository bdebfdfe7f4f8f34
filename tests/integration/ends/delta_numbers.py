"""Counted numbers into a Delta table."""

from typing import Any

from barrier_runtime import Dataflow, DeltaSink, count

NAME, SINK = "delta-numbers", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], keys=settings["keys"], rows=settings["rows"])
    numbers.key_by("key").aggregate("count", n=count()).sink(SINK, DeltaSink(settings["url"]))
    return flow
