"""The job of these tests: a few thousand numbers, counted per key on RocksDB, written to files; run in this process."""

from pathlib import Path
from typing import Any

import pyarrow as pa

from barrier_runtime.aggregates import count
from barrier_runtime.dataflow import Dataflow
from barrier_runtime.job_result import JobResult
from barrier_runtime.sinks.files import JsonlSink

NAME = "counted"
ROWS = 2_000


def small_flow(out: str, rows: int = ROWS, keys: int = 40) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", 40_000, rows, keys=keys)
    scattered = numbers.map_batches(scatter, schema=pa.schema([("key", pa.int64())]))
    scattered.key_by("key").aggregate("count", n=count()).sink("out", JsonlSink(out))
    return flow


def scatter(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Keys that lie far apart: state of neighbours would hardly take any room."""
    return pa.RecordBatch.from_arrays([pa.array(rows["key"].to_numpy() * 0x9E3779B97F4A7)], ["key"])


def run_small_job(folder: Path, rows: int = ROWS, keys: int = 40, **options: Any) -> JobResult:
    """Checkpoints go to `folder`/checkpoints, output to `folder`/out; a second call restores the first one's end."""
    given = {"checkpoints": str(folder / "checkpoints"), "checkpoint_interval": 0.03, **options}
    return small_flow(str(folder / "out"), rows, keys).run_local(**given)


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").glob("part-*")}
