"""Pictures of latency: over time, as a distribution, by rate. Ours is drawn last and strongest."""

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from benchmarks.report.drawing import COLOURS, SIZE, legend, milliseconds, nexmark
from benchmarks.report.summary import NAMES, Cell, Row, cells
from benchmarks.spec import Percentiles, Results, RunResult
from benchmarks.stamps import distribution

_QUANTILES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def latency_over_time(results: Results) -> Canvas | None:
    """The middle round of each engine: median and worst latency of every tenth of a second, checkpoints as ticks."""
    cell, rows = _chosen(results, "latency")
    if cell is None:
        return None
    canvas, axes = plt.subplots(figsize=SIZE)
    for place, row in enumerate(_drawn(rows)):
        run = _middle(row, lambda run: run.processed.p99 if run.processed else None)
        colour, strong = COLOURS[row.engine], row.engine == "ours"
        at = [moment.at_s for moment in run.timeline]
        axes.fill_between(
            at, [m.p50 for m in run.timeline], [m.max for m in run.timeline], color=colour, alpha=0.25, linewidth=0
        )
        axes.plot(at, [m.p50 for m in run.timeline], color=colour, linewidth=1.8 if strong else 1.1, label=_name(row))
        bottom = 0.015 + 0.022 * place
        for time_s in run.checkpoint_times_s:
            axes.axvline(time_s, bottom, bottom + 0.018, color=colour, linewidth=1.2)
    axes.set_yscale("log")
    milliseconds(axes.yaxis)
    axes.set_xlabel("seconds   (ticks below: checkpoints, or the beginning of a micro-batch)")
    axes.set_ylabel("processed latency")
    axes.set_title(
        f"Latency over time: {_described(cell)}\nline: median of 0.1 s, band: up to its worst row", loc="left"
    )
    legend(axes)
    return canvas


def latency_cdf(results: Results) -> Canvas | None:
    return _cdf(results, "latency", lambda run: run.processed, "processed latency")


def visible_cdf(results: Results) -> Canvas | None:
    return _cdf(results, "visible", lambda run: run.visible, "latency until a read-committed reader sees the row")


def _cdf(results: Results, measure: str, of: Callable[[RunResult], Percentiles | None], label: str) -> Canvas | None:
    cell, rows = _chosen(results, measure)
    if cell is None:
        return None
    canvas, axes = plt.subplots(figsize=SIZE)
    for row in _drawn(rows):
        found = [percentiles.histogram for run in row.runs if (percentiles := of(run)) is not None]
        values, shares = distribution(found)
        axes.plot(
            values,
            _nines(np.minimum(shares, 0.999999)),
            color=COLOURS[row.engine],
            linewidth=2.4 if row.engine == "ours" else 1.5,
            label=_name(row),
        )
    axes.set_xscale("log")
    milliseconds(axes.xaxis)
    axes.set_yticks(_nines(np.array(_QUANTILES)), [f"{share * 100:g}%" for share in _QUANTILES])
    axes.set_ylim(0, _nines(np.array([0.99995]))[0])
    axes.set_xlabel(label)
    axes.set_ylabel("share of rows at or below")
    rounds = max(len(row.runs) for row in rows)
    axes.set_title(f"{_described(cell)}\nall rows of {rounds} round{'s' * (rounds > 1)}", loc="left")
    legend(axes)
    return canvas


def latency_by_rate(results: Results) -> Canvas | None:
    """Median over rounds, with the spread; a hollow mark where the rate was not held."""
    found = {cell: rows for cell, rows in cells(results).items() if cell.measure == "latency"}
    base = next(iter(found), None)
    same = [cell for cell in found if base is not None and _but_rate(cell) == _but_rate(base)]
    if base is None or len(same) < 2:
        return None
    canvas, both = plt.subplots(1, 2, figsize=(SIZE[0] + 1.5, SIZE[1]), sharey=True)
    for axes, (title, of) in zip(
        both, {"median": lambda p: p.p50, "99th percentile": lambda p: p.p99}.items(), strict=True
    ):
        for engine in reversed(list(NAMES)):
            points = [
                (cell.rate, figure, all(run.held for run in row.runs))
                for cell in sorted(same, key=lambda cell: cell.rate)
                for row in found[cell]
                if row.engine == engine
                and (figure := row.figure(lambda run, of=of: of(run.processed) if run.processed else None)) is not None
            ]
            if not points:
                continue
            rates, figures, held = zip(*points, strict=True)
            colour = COLOURS[engine]
            axes.plot(rates, [f.median for f in figures], color=colour, label=NAMES[engine], linewidth=2)
            axes.fill_between(rates, [f.low for f in figures], [f.high for f in figures], color=colour, alpha=0.2)
            for rate, figure, ok in zip(rates, figures, held, strict=True):
                axes.plot(rate, figure.median, "o", color=colour, markerfacecolor=colour if ok else "white")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("rows per second")
        axes.set_title(title, loc="left")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    milliseconds(both[0].yaxis)
    both[0].set_ylabel("processed latency")
    legend(both[1])
    canvas.suptitle(f"{base.workload}, {base.keys:,} keys (hollow: rate not held)", x=0.01, ha="left")
    return canvas


def _chosen(results: Results, measure: str) -> tuple[Cell | None, list[Row]]:
    """The cell that most engines have, at the highest rate that all of them held; ours is always drawn last."""
    found = {
        cell: rows
        for cell, rows in cells(results).items()
        if cell.measure == measure and any(row.runs for row in rows) and not nexmark(cell.workload)
    }
    if not found:
        return None, []

    def worth(cell: Cell) -> tuple[bool, int, int, float]:
        rows = found[cell]
        held = sum(all(run.held for run in row.runs) for row in rows if row.runs)
        return cell.workload == "keyed-count", held, len(rows), cell.rate

    best = max(found, key=worth)
    return best, [row for row in found[best] if row.runs]


def _drawn(rows: Sequence[Row]) -> list[Row]:
    order = list(NAMES)
    return sorted(rows, key=lambda row: -order.index(row.engine))


def _middle(row: Row, of: Callable[[RunResult], float | None]) -> RunResult:
    ordered = sorted(row.runs, key=lambda run: of(run) or 0.0)
    return ordered[(len(ordered) - 1) // 2]


def _but_rate(cell: Cell) -> tuple[object, ...]:
    return (cell.workload, cell.source, cell.keys, cell.parallelism, cell.interval_ms)


def _described(cell: Cell) -> str:
    return (
        f"{cell.workload}, {cell.keys:,} keys, {cell.rate:,.0f} rows/s, parallelism {cell.parallelism}, "
        f"checkpoints every {cell.interval_ms / 1000:g} s"
    )


def _name(row: Row) -> str:
    return NAMES[row.engine]


def _nines(shares: Any) -> Any:
    """0, 0.9, 0.99, 0.999 evenly spaced."""
    return -np.log10(1 - shares)
