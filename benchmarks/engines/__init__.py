"""The registry of engines, a row each, and one module per engine, run as a process of its own:
`python -m benchmarks.engines.<name> <spec.json>`.

What an engine's process does is the same for all (see `child`): read the `RunSpec`, say when it began, runs and has
finished, run the workload until its input or standard input ends, leave stamps and `facts.json` in the spec's folder.
This module is pure and imports nothing of ours: side environments load it, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A row of the registry. The rows' order is that of the report and of the table's columns."""

    module: str  # what is run
    title: str  # for people
    column: str | None  # its head in the table; None: it has no column
    colour: str  # in every picture
    workloads: Sequence[str] | None = None  # what it can run; None: whatever is written in SQL
    latency_only: bool = False  # nothing but processed latency from its own generator
    setup: str | None = None  # module whose `missing()` says why the engine cannot run here, or None when it can


ENGINES: Mapping[str, Known] = {
    "ours": Known("benchmarks.engines.ours", "barrier-runtime", "ours", "#0b6e4f"),
    "spark": Known("benchmarks.engines.spark", "Spark micro-batch, defaults", None, "#f2b880"),
    "spark-tuned": Known("benchmarks.engines.spark", "Spark micro-batch, tuned", "spark-tuned", "#e07a1f"),
    "spark-real-time": Known("benchmarks.engines.spark", "Spark real-time mode", "real-time", "#b5371f"),
    "flink": Known("benchmarks.engines.flink", "Flink", "flink", "#3a6ea5", setup="benchmarks.flink_setup"),
    "flink-sql": Known(
        "benchmarks.engines.flink",
        "Flink SQL",
        "flink-sql",
        "#8fb3d9",
        workloads=("keyed-count", "interval-join"),  # elsewhere `flink` is SQL already
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
}
"""`flink` is Java's DataStream for the keyed count and the interval join, and SQL for everything else."""
