"""Pictures of latency over time and as a distribution. Ours is drawn last and strongest."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from benchmarks.report.drawing import COLOURS, SIZE, headed, in_ms, legend_below, milliseconds, nexmark, words
from benchmarks.report.summary import NAMES, Cell, Row, cells, cores_of, in_cores
from benchmarks.spec import Percentiles, Results, RunResult
from benchmarks.stamps import distribution

_QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)
_MARKED = (0.5, 0.99)
_TOO_NEAR = 3.0  # times another value: labels side by side would be unreadable
_LINE_POINTS = 11
_LABEL = (4, 60)  # points right of a dot, between which another dot would touch the label
_FAINT = 0.005  # the axis begins well below the latency of this share of rows


def latency_over_time(results: Results) -> Canvas | None:
    """The middle round of each engine: median and worst latency per 0.1 s; our checkpoints as lines."""
    cell, rows = _chosen(results, "latency")
    if cell is None:
        return None
    canvas, axes = plt.subplots(figsize=SIZE)
    for row in _drawn(rows):
        run = _middle(row, lambda run: run.processed.p99 if run.processed else None)
        colour, strong = COLOURS[row.engine], row.engine == "ours"
        at = [moment.at_s for moment in run.timeline]
        if strong:
            for number, time_s in enumerate(run.checkpoint_times_s):
                label = "checkpoint of barrier-runtime" if number == 0 else None
                axes.axvline(time_s, color=colour, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.7, label=label)
        axes.fill_between(
            at, [m.p50 for m in run.timeline], [m.max for m in run.timeline], color=colour, alpha=0.22, linewidth=0
        )
        axes.plot(at, [m.p50 for m in run.timeline], color=colour, linewidth=2.0 if strong else 1.3, label=_name(row))
    axes.set_yscale("log")
    milliseconds(axes.yaxis)
    axes.margins(x=0.01)
    axes.set_xlabel("seconds")
    axes.set_ylabel("processed latency (log scale)")
    headed(axes, "Latency over time", f"{_described(cell)}\nline: median of 0.1 s; band: up to its slowest row")
    legend_below(axes)
    return canvas


def latency_cdf(results: Results) -> Canvas | None:
    return _cdf(
        results, "latency", lambda run: run.processed, "Processed latency", "from when an event was due (log scale)"
    )


def visible_cdf(results: Results) -> Canvas | None:
    return _cdf(
        results,
        "visible",
        lambda run: run.visible,
        "Visible latency, Kafka to Kafka",
        "from when an event was due until a read-committed reader sees its row (log scale)",
    )


def _cdf(
    results: Results, measure: str, of: Callable[[RunResult], Percentiles | None], title: str, label: str
) -> Canvas | None:
    """Curves of all rounds, with the values at the median and at 99 %."""
    cell, rows = _chosen(results, measure)
    if cell is None:
        return None
    canvas, axes = plt.subplots(figsize=SIZE)
    curves = {}
    for row in _drawn(rows):
        found = [percentiles.histogram for run in row.runs if (percentiles := of(run)) is not None]
        values, shares = distribution(found)
        curves[row.engine] = (values, shares)
        axes.plot(
            values,
            _nines(np.minimum(shares, 0.999999)),
            color=COLOURS[row.engine],
            linewidth=2.6 if row.engine == "ours" else 1.8,
            label=_name(row) if all(run.held for run in row.runs) else f"{_name(row)} (rate not held)",
        )
    axes.set_xscale("log")
    milliseconds(axes.xaxis)
    axes.set_yticks(_nines(np.array(_QUANTILES)), [f"{share * 100:g}%" for share in _QUANTILES])
    axes.set_ylim(-0.5, _nines(np.array([0.99995]))[0])  # room for values below the medians
    mark(axes, curves)
    axes.set_xlabel(label)
    axes.set_ylabel("share of rows at or below")
    rounds = max(len(row.runs) for row in rows)
    headed(axes, title, _described(cell) + (f", all rows of {rounds} rounds" if rounds > 1 else ""))
    legend_below(axes)
    return canvas


def mark(axes: Axes, curves: Mapping[str, tuple[Any, Any]]) -> None:
    """Writes values of the leftmost curve to the left of the curve, and values of other curves to the right.

    Values that would meet go below one another; values that the next curve's dots would cover go below the line of
    dots."""
    low = min(values[np.searchsorted(shares, _FAINT)] for values, shares in curves.values())
    axes.set_xlim(low / 2.5, max(values[-1] for values, _ in curves.values()) * 2.5)
    for share in _MARKED:
        at = {engine: values[np.searchsorted(shares, share)] for engine, (values, shares) in curves.items()}
        height = _nines(np.array([share]))[0]
        level, before = 0, 0.0
        ordered = sorted(at, key=lambda engine: float(at[engine]))
        for position, engine in enumerate(ordered):
            value = float(at[engine])
            after = [float(at[other]) for other in ordered[position + 1 :]]
            covered = position > 0 and any(_LABEL[0] < _points_between(axes, value, dot) < _LABEL[1] for dot in after)
            level = level + 1 if position > 1 and value < before * _TOO_NEAR else int(covered)
            before = value
            axes.plot(value, height, "o", color=COLOURS[engine], markersize=5)
            axes.annotate(
                in_ms(value),
                (value, height),
                (-7 if position == 0 else 7, -_LINE_POINTS * level),
                textcoords="offset points",
                ha="right" if position == 0 else "left",
                va="center",
                color=COLOURS[engine],
                fontsize=9,
                fontweight="bold",
            )


def _points_between(axes: Axes, left: float, right: float) -> float:
    (from_x, _), (to_x, _) = axes.transData.transform([(left, 0.5), (right, 0.5)])
    return float(to_x - from_x) * 72 / axes.figure.get_dpi()


def _chosen(results: Results, measure: str) -> tuple[Cell | None, list[Row]]:
    """The cell that most engines have, at the highest rate. A rate not held is drawn and marked."""
    found = {
        cell: rows
        for cell, rows in cells(results).items()
        if cell.measure == measure and any(row.runs for row in rows) and not nexmark(cell.workload)
    }
    if not found:
        return None, []

    def worth(cell: Cell) -> tuple[bool, int, float]:
        return cell.workload == "keyed-count", sum(bool(row.runs) for row in found[cell]), cell.rate

    best = max(found, key=worth)
    return best, [row for row in found[best] if row.runs]


def _drawn(rows: Sequence[Row]) -> list[Row]:
    order = list(NAMES)
    return sorted(rows, key=lambda row: -order.index(row.engine))


def _middle(row: Row, of: Callable[[RunResult], float | None]) -> RunResult:
    ordered = sorted(row.runs, key=lambda run: of(run) or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def _described(cell: Cell) -> str:
    return (
        f"{words(cell.workload)}, {cell.keys:,} keys, {cell.rate:,.0f} events/s, parallelism {cell.parallelism}, "
        f"a checkpoint every {cell.interval_ms / 1000:g} s"
    )


def _name(row: Row) -> str:
    """The engine with the used cores, because latency alone is half of the result."""
    cores = row.figure(cores_of)
    return NAMES[row.engine] if cores is None else f"{NAMES[row.engine]}, {in_cores(cores.median)} cores"


def _nines(shares: Any) -> Any:
    """0, 0.9, 0.99, 0.999 evenly spaced."""
    return -np.log10(1 - shares)
