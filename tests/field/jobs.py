"""Small jobs for the inputs of tests/field: rows in, rows out."""

import datetime
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from barrier_runtime import CollectSink, Dataflow
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.launch.outcome import JobFailed
from barrier_runtime.state.errors import InvalidJob

REFUSED = (InvalidJob, JobFailed)  # when the flow is built, at the start, or by a running job that ends at once
Rows = list[dict[str, Any]]


def stream_of(flow: Dataflow, name: str, rows: Sequence[Any], schema: Any, **options: Any) -> Stream:
    return flow.from_iterator(name, lambda part, of: rows, schema=schema, splits=1, **options)


def ran(rows: Sequence[Any], schema: Any, step: Callable[[Stream], Stream], **options: Any) -> Rows:
    """The rows that `step` makes of `rows`, by a whole local job."""
    flow, out = Dataflow("field"), CollectSink()
    step(stream_of(flow, "in", rows, schema, **options)).sink("out", out)
    flow.run_local(parallelism=1)
    return list(out.rows())


def read_file(kind: str, path: Path | str, **options: Any) -> Rows:
    """All rows of the files of `path`; `kind` is "csv", "jsonl", "parquet" or "text"."""
    flow, out = Dataflow("field"), CollectSink()
    getattr(flow, f"read_{kind}")("in", str(path), **options).sink("out", out)
    flow.run_local(parallelism=1)
    return list(out.rows())


def utc(*parts: int) -> datetime.datetime:
    """A time in UTC, of the parts that `datetime` takes."""
    return datetime.datetime(*parts, tzinfo=datetime.timezone.utc)  # type: ignore[misc,arg-type]
