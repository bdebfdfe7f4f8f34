"""Nexmark compared with Flink SQL in a single command: answers, rows per second and core-seconds.

Each query's answers are compared with a batch of Spark SQL. Then engines take turns with the same Parquet rows, exactly
once, with a checkpoint per second.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from benchmarks.answers import compared, spark_session
from benchmarks.progress import Progress
from benchmarks.session import Store, there
from benchmarks.spec import RunSpec
from benchmarks.throughput import throughput


@dataclass(frozen=True)
class NexmarkSizes:
    """Size of the comparison; 0 leaves answers or rates out."""

    answers: int = 1_000_000  # events
    rows: int = 16_000_000  # at most
    rounds: int = 3
    parallelism: int = 2


def beside(store: Store, asked: Sequence[str], queries: Sequence[str], sizes: NexmarkSizes, folder: Path) -> int:
    """Adds to the store's results; returns how many answers differ."""
    engines = there(store, asked)
    wrong = _answers(store, engines, queries, sizes, folder / "run") if sizes.answers else 0
    if sizes.rows:
        _rates(store, engines, queries, sizes, folder)
    return wrong


def _answers(store: Store, engines: Sequence[str], queries: Sequence[str], sizes: NexmarkSizes, folder: Path) -> int:
    wrong = 0
    with spark_session() as spark:
        for name in queries:
            for answer in compared(name, spark, folder, sizes.answers, sizes.parallelism, engines):
                store.results.answers.append(answer)
                wrong += not answer.same
            store.save()
    return wrong


def _rates(store: Store, engines: Sequence[str], queries: Sequence[str], sizes: NexmarkSizes, folder: Path) -> None:
    """Runs the throughput; every other round begins with the other engine."""
    with Progress(sizes.rounds * len(queries) * len(engines), "Nexmark") as progress:
        for number in range(sizes.rounds):
            for name in queries:
                for engine in engines if number % 2 == 0 else engines[::-1]:
                    spec = RunSpec(
                        engine=engine,
                        workload=name,
                        measure="throughput",
                        source="parquet",
                        sink="discard",
                        rows=sizes.rows,
                        parallelism=sizes.parallelism,
                        round=number,
                    )
                    progress.say(spec.name)
                    result = throughput(replace(spec, folder=str(folder / "run" / engine)), folder / "input")
                    if result.error is not None:
                        progress.note(f"failed: {spec.name}: {result.error.splitlines()[0]}")
                    store.results.runs.append(result)
                    store.save()
                    progress.step()
