"""Registry of engines; each engine is a module that runs as a separate process.

The command is `python -m benchmarks.engines.<name> <spec.json>`. All engine processes do the same (see `child`): read
the `RunSpec`; report the begin, the running job and the end; run the workload until the input or standard input ends;
leave stamps and `facts.json` in the spec's folder. This module is pure and imports nothing of ours, because side
environments load it too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """A row of the registry. The report and the table's columns keep the order of the rows."""

    module: str  # the module to run
    title: str  # for people
    column: str | None  # heading in the table; None: no column
    colour: str  # in all pictures
    workloads: Sequence[str] | None = None  # workloads it can run; None: all that are written in SQL
    latency_only: bool = False  # only processed latency, from the engine's own generator
    setup: str | None = None  # module with `missing()`: why the engine cannot run here, or None


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
}
"""`flink` is Java's DataStream for the keyed count and the interval join, and SQL for everything else."""
