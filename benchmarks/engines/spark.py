"""Spark Structured Streaming: micro-batches ("spark", "spark-tuned"), real-time ("spark-real-time"), and the older
continuous processing ("spark-continuous").

"spark" has Spark's defaults, with the in-memory state store and 200 shuffle partitions. "spark-tuned" is tuned for
latency: RocksDB state store with changelog checkpointing, as many shuffle partitions as cores. Batches follow each
other at once. A Java `ForeachWriter` stamps each row in the executor when the row leaves the last operator.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.backlog_rows import ddl
from benchmarks.backlog_workloads import schema_of
from benchmarks.engines.child import leave_facts, spec_of_this_run
from benchmarks.engines.java_build import classes, connectors
from benchmarks.engines.words import say, stop_order
from benchmarks.real_time_workloads import NAMES_VIEW
from benchmarks.records import static_table
from benchmarks.spec import Checkpoint, Facts, RunSpec
from benchmarks.workloads import Workload, workload

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_JSON = "key BIGINT, value BIGINT, at BIGINT, emitted BIGINT"
_BATCH_FILES = 2  # of a million rows: input of a micro-batch of a bounded input
_LOOK_S = 0.02


def settings(spec: RunSpec) -> dict[str, str]:
    common = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1000",
    }
    if spec.sink in ("delta", "iceberg"):
        common |= {
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            "spark.databricks.delta.snapshotPartitions": str(spec.parallelism),  # 50 by default
            "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
            "spark.sql.catalog.lake.type": "hadoop",
            "spark.sql.catalog.lake.warehouse": spec.target,
        }
    if spec.engine == "spark":
        return common
    return {
        **common,
        "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.shuffle.partitions": str(spec.parallelism),
    }


def main() -> int:
    spec = spec_of_this_run()
    stop = stop_order()
    known = workload(spec.workload)
    spark = session(spec)
    say("began")
    if known.input == "records":
        names = spark.createDataFrame(static_table(), "id STRING, name STRING")
        names.createOrReplaceTempView(NAMES_VIEW)
    events(spark, spec).createOrReplaceTempView("events")
    query = start(spark, spec, known, spark.sql(known.sql))
    say("running")
    while query.isActive and not stop.is_set():
        time.sleep(_LOOK_S)
    finished = not query.isActive
    if finished:
        say("finished")
    progress = [dict(one.jsonValue if hasattr(one, "jsonValue") else one) for one in _progress(query)]
    trouble = query.exception()
    if not finished:
        query.stop()
        say("finished")
    if trouble is not None:
        print(trouble, file=sys.stderr)
        return 1
    leave_facts(
        spec, Facts(version=spark.version, settings=settings(spec), checkpoints=[_checkpoint(one) for one in progress])
    )
    spark.stop()
    return 0


def session(spec: RunSpec) -> Any:
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    path = [str(classes("spark"))]
    if spec.sink in ("delta", "iceberg"):
        path.extend(map(str, connectors("spark-tables")))
    elif "kafka" in (spec.source, spec.sink):
        path.extend(map(str, connectors("spark")))
    cores = (
        spec.parallelism * 2 if spec.engine == "spark-real-time" else spec.parallelism
    )  # all stages run at the same time there
    builder = SparkSession.builder.master(f"local[{cores}]").config(
        "spark.driver.extraClassPath", os.pathsep.join(path)
    )
    for name, value in settings(spec).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.driver.memory", "4g").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def events(spark: Any, spec: RunSpec) -> Any:
    """Rows of the view: the events, and `ts` with a watermark."""
    if spec.source == "generator":
        reader = spark.readStream.format("bench.spark.PacedSource")
        rows = reader.options(rate=spec.rate, keys=spec.keys, splits=spec.parallelism).load()
    elif spec.source == "parquet":
        schema = spark.read.parquet(spec.input).schema
        rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", _BATCH_FILES).parquet(spec.input)
    else:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", spec.bootstrap)
        raw = reader.option("subscribe", spec.topic_in).option("startingOffsets", "earliest").load()
        if workload(spec.workload).input == "backlog":
            return backlog(raw, spec)
        if workload(spec.workload).input == "records":
            return raw.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        rows = raw.selectExpr(f"from_json(CAST(value AS STRING), '{_JSON}') AS e").select("e.*")
    rows = rows.selectExpr("*", "timestamp_millis(at) AS ts")
    return rows.withWatermark("ts", "0 seconds") if workload(spec.workload).windowed else rows


def backlog(raw: Any, spec: RunSpec) -> Any:
    """Rows of the view for Kafka's records `raw` of a backlog."""
    schema = schema_of(spec.workload)
    if schema is None:
        return raw.select("value")
    return raw.selectExpr(f"from_json(CAST(value AS STRING), '{ddl(schema)}') AS e").select("e.*")


def start(spark: Any, spec: RunSpec, known: Workload, result: Any) -> Any:
    """Starts the query, and raises Spark's error if Spark refuses the query."""
    if spec.sink == "kafka" and known.input != "records":
        result = result.selectExpr("to_json(struct(emitted)) AS value")
    writer = result.writeStream.outputMode("update" if spec.engine == "spark-real-time" else known.mode)
    writer = writer.option("checkpointLocation", str(Path(spec.folder, "checkpoints").resolve()))
    if spec.engine == "spark-real-time":
        writer = writer.trigger(realTime=spec.real_time_batch)
    elif spec.engine == "spark-continuous":
        writer = writer.trigger(continuous=f"{spec.interval_ms} milliseconds")
    elif spec.rows:
        writer = writer.trigger(availableNow=True)
    if spec.sink == "kafka":
        writer = writer.format("kafka").option("kafka.bootstrap.servers", spec.bootstrap)
        return writer.option("topic", spec.topic_out).start()
    if spec.sink == "discard":
        return writer.format("noop").start()
    if spec.sink == "delta":
        return writer.format("delta").start(spec.target)
    if spec.sink == "iceberg":
        spark.sql("CREATE TABLE lake.db.rows (key BIGINT, value BIGINT, at BIGINT, emitted BIGINT) USING iceberg")
        return writer.toTable("lake.db.rows")
    stamp = spark._jvm.bench.spark.MeasuringWriter(spec.folder, result.columns.index("emitted"))
    writer._jwrite.foreach(stamp)
    return writer.start()


def _progress(query: Any) -> Any:
    return query.recentProgress


def _checkpoint(progress: dict[str, Any]) -> Checkpoint:
    """A micro-batch as a checkpoint, from the begin of the batch until the offsets are committed."""
    import datetime

    began = datetime.datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00"))
    phases = {name: float(value) for name, value in progress.get("durationMs", {}).items()}
    return Checkpoint(
        at_ns=int(began.timestamp() * 1e9), duration_ms=phases.pop("triggerExecution", 0.0), phases=phases
    )


if __name__ == "__main__":
    sys.exit(main())
