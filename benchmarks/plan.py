"""The runs and their order. Pure.

Engines take turns: within a round all engines do a cell (workload, rate, …) before the next cell begins, and each round
begins with a different engine, so that changes of the machine affect all engines alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import msgspec

from benchmarks.engines import ENGINES
from benchmarks.spec import Measure, RunSpec, Source
from benchmarks.workloads import ROWWISE, workload

ROWS = 64_000_000  # of a bounded input, at most
_ONLY = {"python-count": ("ours", "pyflink"), "wide-state": ("ours",)}
_ROWWISE = 8  # times fewer rows if a Python function sees each row
_WIDE = 4  # times fewer of Nexmark's


@dataclass(frozen=True)
class Wanted:
    """The choices of the command line."""

    engines: Sequence[str]
    workloads: Sequence[str] = ("keyed-count",)
    measures: Sequence[Measure] = ("latency", "visible", "throughput")
    rates: Sequence[float] = (1_000, 10_000, 50_000, 100_000)
    visible_rates: Sequence[float] = (1_000, 10_000)
    keys: Sequence[int] = (10_000, 1_000_000)
    source: Source = "generator"
    rounds: int = 3
    seconds: float = 40.0
    warm_up_s: float = 15.0
    interval_ms: int = 1_000
    visible_interval_ms: int = 100
    rows: int = ROWS
    parallelism: int = 2
    folder: str = "build/bench/run"
    nexmark: Sequence[str] = field(default=())


def runs(wanted: Wanted) -> Iterator[RunSpec]:
    """None without engines."""
    for number in range(wanted.rounds if wanted.engines else 0):
        turn = number % len(wanted.engines)
        engines = [*wanted.engines[turn:], *wanted.engines[:turn]]
        for cell in _cells(wanted):
            for engine in engines:
                if can(engine, cell):
                    yield _with(cell, engine, number)


def can(engine: str, cell: RunSpec) -> bool:
    """Whether the engine has this workload and this source."""
    known = ENGINES[engine]
    if known.workloads is not None and cell.workload not in known.workloads:
        return False
    if known.latency_only and (cell.measure, cell.source) != ("latency", "generator"):
        return False
    if engine not in _ONLY.get(cell.workload, (engine,)):
        return False
    if engine == "pyflink" and cell.measure == "visible":
        return False
    if engine == "pyflink" and cell.measure == "throughput":
        return cell.workload == "python-count"  # PyFlink's keyed count is this workload
    if engine.startswith("spark") and not workload(cell.workload).spark_streams:
        return False
    if engine.startswith("flink") and not workload(cell.workload).flink:
        return False
    if engine == "spark-continuous":
        return cell.measure == "visible"
    if engine == "spark-real-time":
        return cell.source == "kafka" and cell.measure != "throughput"
    return True


def estimated_s(specs: Sequence[RunSpec]) -> float:
    """Duration of the runs, with the engines' start and end."""
    return sum(40.0 if spec.rows else 15 + spec.warm_up_s + spec.seconds + 4 for spec in specs)


def _cells(wanted: Wanted) -> Iterator[RunSpec]:
    common = {"engine": "", "parallelism": wanted.parallelism, "warm_up_s": wanted.warm_up_s, "seconds": wanted.seconds}
    for name in wanted.workloads:
        keys = wanted.keys if name not in wanted.nexmark else wanted.keys[:1]
        bounded_only = name in wanted.nexmark
        if "latency" in wanted.measures and not bounded_only:
            for rate in wanted.rates:
                yield RunSpec(
                    workload=name,
                    measure="latency",
                    source=wanted.source,
                    sink="measure",
                    rate=rate,
                    keys=keys[0],
                    interval_ms=wanted.interval_ms,
                    **common,  # type: ignore[arg-type]
                )
        if "visible" in wanted.measures and not bounded_only:
            for rate in wanted.visible_rates:
                yield RunSpec(
                    workload=name,
                    measure="visible",
                    source="kafka",
                    sink="kafka",
                    rate=rate,
                    keys=keys[0],
                    interval_ms=wanted.visible_interval_ms,
                    **common,  # type: ignore[arg-type]
                )
        if "throughput" in wanted.measures:
            for number in keys:
                yield RunSpec(
                    workload=name,
                    measure="throughput",
                    source="parquet",
                    sink="discard",
                    rows=wanted.rows // (_ROWWISE if name in ROWWISE else _WIDE if bounded_only else 1),
                    keys=number,
                    interval_ms=wanted.interval_ms,
                    **common,  # type: ignore[arg-type]
                )


def _with(cell: RunSpec, engine: str, number: int) -> RunSpec:
    return msgspec.structs.replace(cell, engine=engine, round=number)
