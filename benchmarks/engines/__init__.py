"""One module per engine, run as a process of its own: `python -m benchmarks.engines.<name> <spec.json>`.

What an engine's process does is the same for all (see `child`): read the `RunSpec`, say when it began, runs and has
finished, run the workload until its input or standard input ends, leave stamps and `facts.json` in the spec's folder.
"""

from collections.abc import Mapping

MODULES: Mapping[str, str] = {
    "ours": "benchmarks.engines.ours",
    "spark": "benchmarks.engines.spark",
    "spark-tuned": "benchmarks.engines.spark",
    "spark-real-time": "benchmarks.engines.spark",
    "flink": "benchmarks.engines.flink",
    "flink-sql": "benchmarks.engines.flink",
    "pyflink": "benchmarks.engines.flink",
}
"""Engine -> module. `flink` is Java's DataStream for the keyed count, and SQL for everything else."""
