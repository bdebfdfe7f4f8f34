"""The runs of `real-time`: each engine and guarantee, Kafka to Kafka, in turn. Pure.

Exactly-once output is visible after a checkpoint, so these runs have a short checkpoint interval. Output of the other
guarantees does not wait for checkpoints: these runs have the usual interval.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.engines import ENGINES, REAL_TIME
from benchmarks.spec import Guarantee, RunSpec

EXACTLY_ONCE_MS, OTHERWISE_MS = 100, 1_000
DEFAULT_BATCH, SHORTEST_BATCH = "5 minutes", "5 seconds"  # of Spark's real-time mode
COLUMNS = ("ours", "spark-real-time", "spark-tuned", "spark-continuous", "flink", "kafka-streams")


@dataclass(frozen=True)
class RealTimeSizes:
    """Size of the table's runs. The defaults are 34 runs of a good minute."""

    rates: Sequence[float] = (10_000,)
    low_rates: Sequence[float] = (1_000,)
    low_workloads: Sequence[str] = ("rtm-b",)
    workloads: Sequence[str] = REAL_TIME
    rounds: int = 1
    seconds: float = 15.0
    warm_up_s: float = 30.0  # with less, Spark's real-time mode may show no row
    keys: int = 10_000
    parallelism: int = 2


def runs(sizes: RealTimeSizes, engines: Sequence[str]) -> Iterator[RunSpec]:
    kinds = [(engine, guarantee) for engine in engines for guarantee in ENGINES[engine].guarantees]
    for number in range(sizes.rounds if kinds else 0):
        turn = number % len(kinds)
        for workload, rate in _cells(sizes):
            for engine, guarantee in [*kinds[turn:], *kinds[:turn]]:
                if workload in (ENGINES[engine].workloads or REAL_TIME):
                    yield run_of(engine, guarantee, workload, rate, sizes, number)


def run_of(
    engine: str, guarantee: Guarantee, workload: str, rate: float, sizes: RealTimeSizes, number: int = 0
) -> RunSpec:
    return RunSpec(
        engine=engine,
        workload=workload,
        measure="visible",
        source="kafka",
        sink="kafka",
        guarantee=guarantee,
        rate=rate,
        keys=sizes.keys,
        parallelism=sizes.parallelism,
        interval_ms=EXACTLY_ONCE_MS if guarantee == "exactly_once" else OTHERWISE_MS,
        seconds=sizes.seconds,
        warm_up_s=sizes.warm_up_s,
        real_time_batch=DEFAULT_BATCH,
        round=number,
    )


def _cells(sizes: RealTimeSizes) -> Iterator[tuple[str, float]]:
    for workload in sizes.workloads:
        for rate in sizes.rates:
            yield workload, rate
    for workload in sizes.workloads:
        for rate in sizes.low_rates:
            if workload in sizes.low_workloads and rate not in sizes.rates:
                yield workload, rate
