"""Summary of the runs of a cell: median over the rounds, and spread from lowest to highest. Pure.

All engines are treated alike. Only failed rounds are left out; they are counted.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from benchmarks.engines import ENGINES
from benchmarks.spec import CheckpointCost, Results, RunResult

NAMES = {engine: known.title for engine, known in ENGINES.items()}
"""Engine -> name for people. The order of the report."""


@dataclass(frozen=True)
class Figure:
    """Median over the rounds and the spread."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Cell:
    """Settings that are the same in all rounds."""

    workload: str
    measure: str
    source: str
    rate: float
    keys: int
    parallelism: int
    interval_ms: int


@dataclass(frozen=True)
class Row:
    """An engine in a cell."""

    engine: str
    runs: Sequence[RunResult]  # that did not fail
    failed: int
    error: str

    def figure(self, of: Callable[[RunResult], float | None]) -> Figure | None:
        """Summary of a figure; None if no run has the figure."""
        return figure(of(run) for run in self.runs)


def figure(values: Iterable[float | None]) -> Figure | None:
    known = [value for value in values if value is not None]
    return Figure(statistics.median(known), min(known), max(known)) if known else None


def cores_of(run: RunResult) -> float | None:
    """Cores that the engine's processes kept busy while measured. Older files have only the seconds."""
    if run.cores is not None or run.cpu_s is None or run.rows or not run.seconds:
        return run.cores
    return run.cpu_s / run.seconds


def in_cores(value: float) -> str:
    return f"{value:.2f}"


def cells(results: Results) -> dict[Cell, list[Row]]:
    """Cells in the order they were first measured, engines in the order of `NAMES`."""
    grouped: dict[Cell, dict[str, list[RunResult]]] = {}
    for run in results.runs:
        cell = Cell(run.workload, run.measure, run.source, run.rate, run.keys, run.parallelism, run.interval_ms)
        grouped.setdefault(cell, {}).setdefault(run.engine, []).append(run)
    return {
        cell: [_row(engine, engines[engine]) for engine in [*NAMES] if engine in engines]
        for cell, engines in grouped.items()
    }


def share_kept(cost: CheckpointCost, grid: Sequence[CheckpointCost]) -> float | None:
    """Throughput divided by throughput without checkpoints in the same round; None if there is none."""
    same = (cost.keys, cost.parallelism, cost.round, 0)
    base = [one for one in grid if (one.keys, one.parallelism, one.round, one.interval_ms) == same]
    return cost.rows_per_s / base[0].rows_per_s if base else None


def shown(found: Figure | None, digits: int = 3) -> str:
    """`1.23 (1.1 to 1.4)`; without the spread if there is none; a dash for None."""
    if found is None:
        return "-"
    middle = number(found.median, digits)
    low, high = number(found.low, digits), number(found.high, digits)
    return middle if low == high else f"{middle} ({low} to {high})"


def number(value: float, digits: int = 3) -> str:
    """The value with `digits` significant digits and separated thousands."""
    if value == 0:
        return "0"
    whole = f"{float(f'{value:.{digits}g}'):,.6f}".rstrip("0").rstrip(".")
    return whole if abs(value) < 10**digits else f"{value:,.0f}"


def _row(engine: str, runs: Sequence[RunResult]) -> Row:
    good = [run for run in runs if run.error is None]
    errors = [run.error for run in runs if run.error is not None]
    return Row(engine, good, len(errors), errors[0] if errors else "")
