"""Counted numbers into Parquet files on S3, staged as multipart uploads."""

from typing import Any

from barrier_runtime import Dataflow, ParquetSink, count

NAME, SINK = "multipart-numbers", "out"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], keys=settings["keys"], rows=settings["rows"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink(SINK, ParquetSink(settings["url"], staging="multipart"))
    return flow
