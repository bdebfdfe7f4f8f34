"""One pair of the matrix: `python -m tests.spark_matrix_job SPARK JAVA`, in an environment that has the pair."""

import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark

from barrier_runtime import Dataflow, ParquetSink, ValueState, committed_files
from barrier_runtime.state.errors import InvalidJob
from examples.flight_delays import build
from examples.flights_data import prepare
from examples.run_check import check
from examples.run_job import run_job

FLIGHTS, REPLAY_S = 40_000, 15.0  # the kills come in the middle, also on a busy machine
ROWS = 300
START = datetime(2026, 11, 29, 7, 30, tzinfo=timezone.utc)


class Newest:
    newest = ValueState(int, default=0)

    def process(self, shop: str, row: dict[str, Any], ctx: object) -> list[dict[str, Any]]:
        self.newest.value = max(self.newest.value, row["id"])  # slots read partitions in any order
        return [row]


def main(release: str, java: str) -> int:
    assert pyspark.__version__.startswith(f"{release}."), f"PySpark {pyspark.__version__} from {pyspark.__file__}"
    with tempfile.TemporaryDirectory() as folder:
        _step(f"main job with a killed slot and a killed coordinator, PySpark {pyspark.__version__}", _main_job, folder)
        spark = _session()
        try:
            version = spark.sparkContext._jvm.java.lang.System.getProperty("java.version")
            assert version.split(".")[0] == java, f"Java {version}"
            _step("from_spark", _from_spark, spark, folder)
            _step("for_each_batch", _for_each_batch, spark, folder)
            _step('format("barrier-state")', _barrier_state, spark, folder, release)
        finally:
            spark.stop()
    return 0


def _step(name: str, run: Callable[..., None], *given: Any) -> None:
    print(f"== {name}", flush=True)
    run(*given)


def _main_job(folder: str) -> None:
    shutil.rmtree("build/run", ignore_errors=True)
    Path("build/run").mkdir(parents=True)
    flights = prepare(Path("build/data"), rows=FLIGHTS)
    flow = build(flights, f"{folder}/output", rows_per_second=FLIGHTS / REPLAY_S)
    run_job(flow, FLIGHTS, f"{folder}/flights", REPLAY_S)
    verdict = check(flights, f"{folder}/output")
    assert verdict.good, verdict


def _session() -> Any:
    """A session of the user's, with ordinary settings."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[3,100]").config("spark.ui.enabled", "false")
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def _rows() -> list[tuple[int, str, datetime]]:
    return [(number, f"shop-{number % 7}", START) for number in range(ROWS)]


def _from_spark(spark: Any, folder: str) -> None:
    frame = spark.createDataFrame(_rows(), "id long, shop string, at timestamp")
    flow = Dataflow("shops")
    kept = flow.from_spark("rows", frame).key_by("shop").process("kept", Newest, schema=_schema())
    kept.sink("out", ParquetSink(f"{folder}/shops"))
    flow.run(spark=spark, parallelism=2, checkpoints=f"{folder}/checkpoints")
    found = [row for file in committed_files(f"{folder}/shops") for row in pq.read_table(file).to_pylist()]
    assert sorted((row["id"], row["shop"], row["at"]) for row in found) == _rows()


def _schema() -> dict[str, Any]:
    return {"id": int, "shop": str, "at": datetime}


def _for_each_batch(spark: Any, folder: str) -> None:
    seen: list[tuple[int, str, float]] = []

    def keep(frame: Any, checkpoint: Any) -> None:
        rows = frame.selectExpr("id", "shop", "unix_timestamp(at) as at").collect()
        seen.extend((row.id, row.shop, row.at) for row in rows)

    flow = Dataflow("batches")
    rows = flow.from_iterator(
        "rows",
        lambda index, of: ({"id": id, "shop": shop, "at": at} for id, shop, at in _rows()),
        schema=_schema(),
        splits=1,
    )
    rows.for_each_batch(keep)
    flow.run(spark=spark, parallelism=2, checkpoints=f"{folder}/checkpoints")
    assert sorted(seen) == [(id, shop, at.timestamp()) for id, shop, at in _rows()]


def _barrier_state(spark: Any, folder: str, release: str) -> None:
    if release == "3.5":
        try:
            import barrier_runtime.spark.state_source
        except InvalidJob as refused:
            print(refused, flush=True)
            return
        raise AssertionError(f"{barrier_runtime.spark.state_source} should be refused")
    from barrier_runtime.spark.state_source import BarrierStateSource

    spark.dataSource.register(BarrierStateSource)
    wanted = {"path": f"{folder}/checkpoints", "job": "shops", "state": "kept.newest"}
    found = spark.read.format("barrier-state").options(**wanted).load().collect()
    newest = {shop: id for id, shop, _ in _rows()}
    assert {row.shop: row.value for row in found} == newest


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
