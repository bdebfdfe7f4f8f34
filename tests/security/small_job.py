"""The job of these tests: a few thousand numbers, counted per key on RocksDB, written to files; run in this process."""

from pathlib import Path
from typing import Any

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.files.sink.sink import JsonlSink
from barrier_runtime.launch.outcome import JobResult
from barrier_runtime.operators.aggregation.functions import count
from tests.far_apart_keys import scatter

NAME = "counted"
ROWS = 2_000


def small_flow(out: str, rows: int = ROWS, keys: int = 40) -> Dataflow:
    flow = Dataflow(NAME)
    numbers = flow.rate("numbers", 40_000, rows, keys=keys)
    numbers.map_batches(scatter).key_by("key").aggregate("count", n=count()).sink("out", JsonlSink(out))
    return flow


def run_small_job(folder: Path, rows: int = ROWS, keys: int = 40, **options: Any) -> JobResult:
    """Runs a small job: checkpoints in `folder`/checkpoints, output in `folder`/out; a second call restores the end of
    the first.
    """
    given = {"checkpoints": str(folder / "checkpoints"), "checkpoint_interval": 0.03, **options}
    return small_flow(str(folder / "out"), rows, keys).run_local(**given)


def visible(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "out").glob("part-*")}
