"""Runs of `backlog`: time of each engine to catch up with stored rows of Kafka and of files. Pure.

Each figure is from two runs, over a tenth of the rows and over all rows, as in `throughput`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from benchmarks.backlog_workloads import WIDE
from benchmarks.engines import BACKLOGS, BACKLOGS_OF_FILES
from benchmarks.spec import RunSpec, Source

STREAMS = ("ours", "ours-in-process", "spark-tuned", "spark-batch", "flink")  # read Kafka
TABLES = ("ours", "ours-in-process", "duckdb", "polars")  # read files
ENGINES_OF_BACKLOGS = tuple(dict.fromkeys((*STREAMS, *TABLES)))
FILES: Sequence[Source] = ("jsonl", "csv", "parquet")
_SMALLER = 10


@dataclass(frozen=True)
class BacklogSizes:
    """Size of the table's runs."""

    rows: int = 3_000_000
    wide_rows: int = 60_000
    sources: Sequence[Source] = ("kafka", *FILES)
    rounds: int = 1
    parallelism: int = 2
    workloads: Sequence[str] = ()  # empty: all


def runs(sizes: BacklogSizes, engines: Sequence[str]) -> Iterator[RunSpec]:
    """Yields the runs over all rows. Engines take turns; each round begins with another engine."""
    for number in range(sizes.rounds):
        turn = number % max(1, len(engines))
        for source, workload in _cells(sizes):
            able = STREAMS if source == "kafka" else TABLES
            for engine in [*engines[turn:], *engines[:turn]]:
                if engine in able:
                    yield _run(engine, source, workload, sizes, number)


def smaller(spec: RunSpec) -> RunSpec:
    """The run over a part of the rows."""
    return msgspec.structs.replace(spec, rows=max(1, spec.rows // _SMALLER))


def is_wide(workload: str) -> bool:
    return workload == WIDE.name


def _cells(sizes: BacklogSizes) -> Iterator[tuple[Source, str]]:
    for source in sizes.sources:
        for workload in BACKLOGS if source == "kafka" else BACKLOGS_OF_FILES:
            if not sizes.workloads or workload in sizes.workloads:
                yield source, workload


def _run(engine: str, source: Source, workload: str, sizes: BacklogSizes, number: int) -> RunSpec:
    return RunSpec(
        engine=engine,
        workload=workload,
        measure="throughput",
        source=source,
        sink="discard",
        rows=sizes.wide_rows if is_wide(workload) else sizes.rows,
        parallelism=1 if engine == "ours-in-process" else sizes.parallelism,
        round=number,
    )
