"""This runtime: a flow on Spark ("ours"), or in this process alone ("ours-in-process").

State is in RocksDB, checkpoints go to a local folder.
"""

import sys
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa

from barrier_runtime import Dataflow, DeltaSink, IcebergSink, KafkaSink, TwoPhaseCommitSink
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.connectors.memory.callable import CallableSink
from barrier_runtime.coordinator.status.status import CheckpointStatus
from barrier_runtime.spark.session import make_session
from benchmarks import events
from benchmarks.backlog_workloads import schema_of
from benchmarks.engines.child import leave_facts, spec_of_this_run
from benchmarks.engines.words import say, stop_order
from benchmarks.measuring_sink import MeasuringSink
from benchmarks.paced_source import PacedSource
from benchmarks.spec import Checkpoint, Facts, RunSpec
from benchmarks.workloads import workload

_STARTING_LOOK_S = 0.02
_ENDLESS_LOOK_S = 1.0  # each look costs some milliseconds on the measured cores
_BOUNDED_LOOK_S = 0.1  # short, because the end must be seen soon
_END_S = 120.0


def main() -> int:
    spec = spec_of_this_run()
    stop = stop_order()
    in_process = spec.engine == "ours-in-process"
    spark = None if in_process else make_session("bench", f"local[{spec.parallelism}]", {})
    say("began")
    flow, result = workload(spec.workload).flow(partial(read, spec))
    if spec.sink == "kafka" and not _over_records(spec):
        result = result.select(["emitted"])
    result.sink("out", sink(spec))
    options: dict[str, Any] = {
        "parallelism": spec.parallelism,
        "checkpoints": spec.storage_url or str(Path(spec.folder, "checkpoints").resolve()),
        "checkpoint_interval": spec.interval_ms / 1000,
        "mode": spec.guarantee,
    }
    if spec.latency_target_ms is not None:
        options["latency_target"] = spec.latency_target_ms / 1000
    seen: dict[int, CheckpointStatus] = {}
    with flow.start_local(**options) if in_process else flow.start(spark=spark, **options) as handle:
        running = False
        while True:
            status = handle.status()
            seen.update({entry.checkpoint: entry for entry in status.checkpoints.history})
            if not running and status.phase in ("running", "finishing", "finished"):
                say("running")
                running = True
            if status.outcome is not None:
                say("finished")
                break
            if stop.is_set():
                handle.stop()
                break
            stop.wait(_STARTING_LOOK_S if not running else _BOUNDED_LOOK_S if spec.rows else _ENDLESS_LOOK_S)
        status = handle.wait(timeout=_END_S).status
    seen.update({entry.checkpoint: entry for entry in status.checkpoints.history})
    facts = Facts(
        version=version("barrier-runtime"),
        settings={"state": "rocksdb", "checkpoints": "incremental, local folder"},
        checkpoints=[_checkpoint(entry) for entry in seen.values() if entry.outcome == "complete"],
    )
    leave_facts(spec, facts)
    if spark is not None:
        spark.stop()
    return 0


def read(spec: RunSpec, flow: Dataflow) -> Stream:
    if workload(spec.workload).input == "backlog":
        return _read_backlog(spec, flow)
    if spec.source == "generator":
        return flow.source("events", PacedSource(spec.rate, spec.keys, spec.preload), event_time="at")
    if spec.source == "parquet":
        return flow.read_parquet("events", spec.input, event_time="at")
    if _over_records(spec):
        return flow.read_kafka(
            "events", spec.bootstrap, spec.topic_in, group="bench", key="string", value="string", metadata=()
        )
    rows: Stream = flow.read_kafka(
        "events",
        spec.bootstrap,
        spec.topic_in,
        group="bench",
        key=None,
        value="json",
        schema=events.SCHEMA,
        metadata=(),
        start="earliest",
        event_time="at",
    )
    return rows


def _read_backlog(spec: RunSpec, flow: Dataflow) -> Stream:
    schema = schema_of(spec.workload)
    if spec.source != "kafka":
        readers = {"jsonl": flow.read_jsonl, "csv": flow.read_csv, "parquet": flow.read_parquet}
        return readers[spec.source]("rows", spec.input, schema=schema)
    return flow.read_kafka(
        "rows",
        spec.bootstrap,
        spec.topic_in,
        group="bench",
        until="latest",
        key=None,
        value="bytes" if schema is None else "json",
        schema=schema,
        metadata=(),
    )


def sink(spec: RunSpec) -> TwoPhaseCommitSink:
    if spec.sink == "measure":
        return MeasuringSink(spec.folder, column="emitted")
    if spec.sink == "kafka" and _over_records(spec):
        return KafkaSink(spec.bootstrap, spec.topic_out, key="key", value="value", guarantee=spec.guarantee)
    if spec.sink == "kafka":
        return KafkaSink(spec.bootstrap, spec.topic_out)
    if spec.sink == "delta":
        return DeltaSink(spec.target, commit_every=0, compact=spec.compact)
    if spec.sink == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{spec.target}/catalog.db", "warehouse": f"file://{spec.target}"}
        return IcebergSink("db.rows", properties=catalog, commit_every=0, compact=spec.compact)
    return CallableSink(_discard)


def _over_records(spec: RunSpec) -> bool:
    return workload(spec.workload).input == "records"


def _discard(rows: pa.RecordBatch) -> None:
    """Does nothing: the row has left the last operator."""


def _checkpoint(entry: CheckpointStatus) -> Checkpoint:
    phases = {
        "start delay": entry.start_delay_ms,
        "alignment": entry.alignment_ms,
        "synchronous": entry.sync_ms,
        "asynchronous": entry.async_ms,
        "manifest": entry.persist_duration_ms,
        "decision": entry.decide_duration_ms,
        "commit": entry.commit_duration_ms,
    }
    return Checkpoint(
        at_ns=entry.triggered_ms * 1_000_000,
        duration_ms=entry.duration_ms,
        phases={name: float(value) for name, value in phases.items() if value is not None},
        bytes=entry.new_bytes,
        full_bytes=entry.full_bytes,
    )


if __name__ == "__main__":
    sys.exit(main())
