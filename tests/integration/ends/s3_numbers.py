"""Counted numbers into a Delta table, and into Parquet files by multipart upload: the job of test_s3_under_kills."""

from typing import Any

from barrier_runtime import Dataflow, DeltaSink, ParquetSink, count

NAME, FILES = "s3-numbers", "files"


def build(settings: dict[str, Any]) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", settings["rate"], keys=settings["keys"], rows=settings["rows"])
    counted = numbers.key_by("key").aggregate("count", n=count())
    counted.sink("table", DeltaSink(settings["table"]))
    counted.sink(FILES, ParquetSink(settings["files"], staging="multipart"))
    return flow
