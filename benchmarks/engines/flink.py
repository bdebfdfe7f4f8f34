"""Flink in a MiniCluster of a single JVM ("flink", "flink-sql"), or PyFlink's DataStream ("pyflink").

"flink" is Java's DataStream for the workloads of `_DATA_STREAM`, and SQL for the others. RocksDB, incremental
checkpoints; buffers are flushed after 1 ms if latency is measured, otherwise after the default 100 ms. This process
starts the JVM or the Python of the side environment, passes on the order to stop, and reads the checkpoints from
Flink's log.
"""

import datetime
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks import nexmark
from benchmarks.backlog_rows import ddl
from benchmarks.backlog_workloads import schema_of
from benchmarks.engines import REAL_TIME
from benchmarks.engines.child import leave_facts, run_program, spec_of_this_run
from benchmarks.engines.java_build import FLINK_VERSION, HERE, classes, connectors, flink_home, flink_jars, spark_jars
from benchmarks.records import ID_DIGITS, NAMES
from benchmarks.spec import Checkpoint, Facts, RunSpec
from benchmarks.workloads import workload
from examples.servers.base import find_program

_OPENED = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.net",
    "java.nio",
    "java.text",
    "java.time",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "java.util.concurrent.locks",
)
_COMPLETED = re.compile(
    r"^(\S+ \S+) .*Completed checkpoint (\d+) for job \S+ \((\d+) bytes, checkpointDuration=(\d+) ms"
    r"(?:, finalizationTime=(\d+) ms)?"
)
LOG = "flink.log"
_DATA_STREAM = ("keyed-count", "interval-join", *REAL_TIME)
_RAW = "'key.format' = 'raw', 'key.fields' = 'key', 'value.format' = 'raw', 'value.fields-include' = 'EXCEPT_KEY'"

# Settings of Nexmark's own runner, and memory for the state of joins.
_NEXMARK = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
    "pipeline.object-reuse": "true",
    "taskmanager.memory.managed.size": "1g",
}


def settings(spec: RunSpec) -> dict[str, str]:
    """Flink's settings; Nexmark's queries and backlogs run tuned. A killed job continues from the last checkpoint."""
    tuned = _NEXMARK if workload(spec.workload).input in ("nexmark", "backlog") else {}
    if workload(spec.workload).input == "records":
        tuned = {
            "pipeline.object-reuse": "true",
            "execution.checkpointing.mode": spec.guarantee.upper(),
            **_last_checkpoint(Path(spec.folder, "checkpoints")),
        }
    return _settings(spec) | tuned


def _last_checkpoint(folder: Path) -> dict[str, str]:
    complete = sorted(folder.glob("*/chk-*/_metadata"), key=lambda file: file.stat().st_mtime)
    return {"execution.state-recovery.path": complete[-1].parent.resolve().as_uri()} if complete else {}


def _settings(spec: RunSpec) -> dict[str, str]:
    return {
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": f"{spec.interval_ms} ms",
        "execution.checkpointing.dir": Path(spec.folder, "checkpoints").resolve().as_uri(),
        "execution.buffer-timeout.interval": "100 ms" if spec.measure == "throughput" else "1 ms",
        "table.local-time-zone": "UTC",
        "taskmanager.numberOfTaskSlots": str(spec.parallelism),
        "taskmanager.memory.managed.size": "256m",
        "taskmanager.memory.network.max": "128m",
        "restart-strategy.type": "none",
        "rest.port": "0",
        "python.execution-mode": "thread",
    }


def main() -> int:
    spec = spec_of_this_run()
    Path(spec.folder, "log4j.properties").write_text(log4j(Path(spec.folder, LOG).resolve()))
    command = _pyflink(spec) if spec.engine == "pyflink" else _java(spec)
    code = run_program(command, _environment(spec))
    if code == 0:
        leave_facts(
            spec,
            Facts(version=FLINK_VERSION, settings=settings(spec), checkpoints=completed(Path(spec.folder, LOG))),
        )
    return code


def _java(spec: RunSpec) -> list[str]:
    return java_command(spec, settings(spec))


def java_command(
    spec: RunSpec, chosen: Mapping[str, str], target: str = "", jars: Sequence[Path] = (), sink: str = ""
) -> list[str]:
    """The JVM's command. `chosen`: Flink's settings. `jars`: additional jars.

    `sink`: a different sink than the spec's; "files" go to `target`."""
    known = workload(spec.workload)
    options = {
        "source": spec.source,
        "sink": sink or spec.sink,
        "target": target,
        "rate": repr(spec.rate),
        "keys": str(spec.keys),
        "parallelism": str(spec.parallelism),
        "folder": spec.folder,
        "program": spec.workload if spec.engine == "flink" and spec.workload in _DATA_STREAM else "sql",
        "names": str(NAMES),
        "id_digits": str(ID_DIGITS),
        "sql": known.flink,
        "source_ddl": _source_ddl(spec),
        "sink_ddl": _sink_ddl(spec),
        **{f"conf.{name}": value for name, value in chosen.items()},
    }
    tables = connectors("flink-tables") if spec.sink == "iceberg" else []
    path = [*jars, *tables, classes("flink"), *flink_jars(), *connectors("flink")]
    path.extend(spark_jars().glob("hadoop-client-*.jar"))
    return [
        find_program("java", "openjdk-17-jre-headless"),
        "-Xmx4g",
        *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED),
        f"-Dlog4j.configurationFile={spec.folder}/log4j.properties",
        "-cp",
        os.pathsep.join(map(str, path)),
        "bench.flink.FlinkJob",
        *(f"{name}={value}" for name, value in options.items()),
    ]


def _pyflink(spec: RunSpec) -> list[str]:
    plan = {
        **msgspec.to_builtins(spec),
        "conf": settings(spec),
        "source_ddl": _source_ddl(spec),
    }
    file = Path(spec.folder, "pyflink.json")
    file.write_bytes(msgspec.json.encode(plan))
    return [str(flink_home() / "bin/python"), str(HERE.with_name("pyflink_job.py")), str(file)]


def _environment(spec: RunSpec) -> dict[str, str]:
    if spec.engine != "pyflink":
        return dict(os.environ)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    path = os.pathsep.join(
        map(str, [classes("flink"), *connectors("flink"), *spark_jars().glob("hadoop-client-*.jar")])
    )
    site = next(flink_home().glob("lib/*/site-packages"))
    opened = " ".join(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)
    return {
        **kept,
        "HADOOP_CLASSPATH": path,
        "JDK_JAVA_OPTIONS": opened,
        "LOG4J_PROPERTIES": str(Path(spec.folder, "log4j.properties")),
        "FLINK_LOG_DIR": spec.folder,
        "PYTHONPATH": str(site),  # Flink's embedded interpreter does not know the side environment
    }


def _backlog_ddl(spec: RunSpec) -> str:
    schema = schema_of(spec.workload)
    columns, form = ("`value` BYTES", "raw") if schema is None else (ddl(schema), "json")
    return (
        f"CREATE TEMPORARY TABLE events ({columns}) WITH ('connector' = 'kafka', 'topic' = '{spec.topic_in}', "
        f"'properties.bootstrap.servers' = '{spec.bootstrap}', 'properties.group.id' = 'bench', "
        f"'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset', 'format' = '{form}')"
    )


def _source_ddl(spec: RunSpec) -> str:
    if workload(spec.workload).input == "backlog":
        return _backlog_ddl(spec)
    if workload(spec.workload).input == "records":
        return (
            f"CREATE TEMPORARY TABLE events (`key` STRING, `value` STRING) WITH ('connector' = 'kafka', "
            f"'topic' = '{spec.topic_in}', 'properties.bootstrap.servers' = '{spec.bootstrap}', "
            f"'properties.group.id' = 'bench', 'scan.startup.mode' = 'earliest-offset', {_RAW})"
        )
    columns = "`key` BIGINT, `value` BIGINT, `at` BIGINT, emitted BIGINT"
    if workload(spec.workload).input == "nexmark":
        columns = ", ".join(f"`{f.name}` {'STRING' if str(f.type) == 'string' else 'BIGINT'}" for f in nexmark.SCHEMA)
    time = "ts AS TO_TIMESTAMP_LTZ(`at`, 3), WATERMARK FOR ts AS ts"
    if spec.source == "kafka":
        connector = (
            f"'connector' = 'kafka', 'topic' = '{spec.topic_in}', 'properties.bootstrap.servers' = '{spec.bootstrap}', "
            "'properties.group.id' = 'bench', 'scan.startup.mode' = 'earliest-offset', 'format' = 'json'"
        )
    else:
        connector = (
            f"'connector' = 'filesystem', 'path' = '{Path(spec.input).resolve().as_uri()}', 'format' = 'parquet'"
        )
    return f"CREATE TEMPORARY TABLE events ({columns}, {time}) WITH ({connector})"


def _sink_ddl(spec: RunSpec) -> str:
    if spec.sink == "iceberg":
        return (
            "CREATE TEMPORARY TABLE results (`key` BIGINT, `value` BIGINT, `at` BIGINT, emitted BIGINT) WITH ("
            "'connector' = 'iceberg', 'catalog-name' = 'lake', 'catalog-type' = 'hadoop', 'catalog-database' = 'db', "
            f"'catalog-table' = 'rows', 'warehouse' = '{Path(spec.target).as_uri()}')"
        )
    if workload(spec.workload).input == "records":
        return (
            f"CREATE TEMPORARY TABLE results (`key` STRING, `value` STRING) WITH ('connector' = 'kafka', "
            f"'topic' = '{spec.topic_out}', 'properties.bootstrap.servers' = '{spec.bootstrap}', "
            f"'properties.transaction.timeout.ms' = '600000', {_RAW}, "
            f"'sink.delivery-guarantee' = '{spec.guarantee.replace('_', '-')}', "
            "'sink.transactional-id-prefix' = 'bench')"
        )
    return (
        f"CREATE TEMPORARY TABLE results (emitted BIGINT) WITH ('connector' = 'kafka', 'topic' = '{spec.topic_out}', "
        f"'properties.bootstrap.servers' = '{spec.bootstrap}', 'properties.transaction.timeout.ms' = '600000', "
        "'format' = 'json', 'sink.delivery-guarantee' = 'exactly-once', 'sink.transactional-id-prefix' = 'bench')"
    )


def log4j(log: Path) -> str:
    return f"""rootLogger.level = ERROR
rootLogger.appenderRef.file.ref = File
logger.checkpoints.name = org.apache.flink.runtime.checkpoint.CheckpointCoordinator
logger.checkpoints.level = INFO
appender.file.name = File
appender.file.type = File
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}}{{UTC}} %m%n%throwable
"""


def completed(log: Path) -> list[Checkpoint]:
    found = []
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        match = _COMPLETED.match(line)
        if match:
            ended = datetime.datetime.strptime(match[1], "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=datetime.timezone.utc)
            duration_ms = float(match[4])
            phases = {"finalisation": float(match[5])} if match[5] else {}
            began_ns = int((ended.timestamp() * 1000 - duration_ms) * 1e6)
            found.append(Checkpoint(at_ns=began_ns, duration_ms=duration_ms, phases=phases, bytes=int(match[3])))
    return found


if __name__ == "__main__":
    sys.exit(main())
