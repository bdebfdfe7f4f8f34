"""Registry of engines; each engine is a module that runs as a separate process.

The command is `python -m benchmarks.engines.<name> <spec.json>`. All engine processes do the same (see `child`): read
the `RunSpec`; report the begin, the running job and the end; run the workload until the input or standard input ends;
leave stamps and `facts.json` in the spec's folder. This module is pure and imports nothing of ours, because side
environments load it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

Guarantee = Literal["exactly_once", "at_least_once", "at_most_once"]
REAL_TIME = ("rtm-a", "rtm-b", "rtm-c")
BACKLOGS = ("backlog-bytes", "backlog-columns", "backlog-sums", "backlog-wide")
BACKLOGS_OF_FILES = ("backlog-columns", "backlog-sums")


@dataclass(frozen=True)
class Known:
    """A row of the registry. The report and the table's columns keep the order of the rows."""

    module: str  # the module to run
    title: str  # for people
    column: str | None  # heading in the table; None: no column
    colour: str  # in all pictures
    workloads: Sequence[str] | None = None  # workloads of this engine; None: all that are written in SQL
    guarantees: Sequence[Guarantee] = ("exactly_once",)  # of the real-time workloads
    latency_only: bool = False  # only processed latency, from the engine's own generator
    setup: str | None = None  # module with `missing()`: why the engine cannot run here, or None


ENGINES: Mapping[str, Known] = {
    "ours": Known(
        "benchmarks.engines.ours",
        "barrier-runtime",
        "ours",
        "#0b6e4f",
        guarantees=("exactly_once", "at_least_once", "at_most_once"),
    ),
    "ours-in-process": Known("benchmarks.engines.ours", "barrier-runtime, one process", None, "#5aa88a"),
    "spark": Known("benchmarks.engines.spark", "Spark micro-batch, defaults", None, "#f2b880"),
    "spark-batch": Known("benchmarks.engines.spark_batch", "Spark batch", None, "#8a4b12", workloads=BACKLOGS),
    "spark-tuned": Known(
        "benchmarks.engines.spark",
        "Spark micro-batch, tuned",
        "spark-tuned",
        "#e07a1f",
        guarantees=("at_least_once",),  # of Spark's Kafka sink, in every mode
    ),
    "spark-real-time": Known(
        "benchmarks.engines.spark", "Spark real-time mode", "real-time", "#b5371f", guarantees=("at_least_once",)
    ),
    "spark-continuous": Known(
        "benchmarks.engines.spark",
        "Spark continuous processing",
        None,
        "#7d4a3a",
        workloads=("rtm-a",),  # continuous processing has no shuffle
        guarantees=("at_least_once",),
    ),
    "flink": Known(
        "benchmarks.engines.flink",
        "Flink",
        "flink",
        "#3a6ea5",
        guarantees=("exactly_once", "at_least_once"),
        setup="benchmarks.flink_setup",
    ),
    "kafka-streams": Known(
        "benchmarks.engines.kafka_streams",
        "Kafka Streams",
        None,
        "#5c5c5c",
        workloads=REAL_TIME,
        setup="benchmarks.engines.kafka_streams",
    ),
    "flink-sql": Known(
        "benchmarks.engines.flink",
        "Flink SQL",
        "flink-sql",
        "#8fb3d9",
        workloads=("keyed-count", "interval-join"),  # in other workloads `flink` is SQL already
        setup="benchmarks.flink_setup",
    ),
    "pyflink": Known(
        "benchmarks.engines.flink",
        "PyFlink",
        "pyflink",
        "#8e6bbf",
        workloads=("keyed-count", "python-count"),
        setup="benchmarks.flink_setup",
    ),
    "jet": Known(
        "benchmarks.engines.jet",
        "Hazelcast Jet",
        "jet",
        "#c2a300",
        workloads=("keyed-count",),
        latency_only=True,
        setup="benchmarks.engines.jet",
    ),
    "bytewax": Known(
        "benchmarks.engines.bytewax",
        "Bytewax",
        "bytewax",
        "#d1589b",
        workloads=("keyed-count",),
        latency_only=True,
        setup="benchmarks.engines.bytewax",
    ),
    "duckdb": Known(
        "benchmarks.engines.tables",
        "DuckDB",
        None,
        "#b8a300",
        workloads=BACKLOGS_OF_FILES,
        setup="benchmarks.engines.tables",
    ),
    "polars": Known(
        "benchmarks.engines.tables",
        "Polars",
        None,
        "#2f6db5",
        workloads=BACKLOGS_OF_FILES,
        setup="benchmarks.engines.tables",
    ),
}
"""`flink` is Java's DataStream for the keyed count and the interval join, and SQL for everything else."""
