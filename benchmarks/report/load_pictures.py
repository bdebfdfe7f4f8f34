"""Pictures of the cost of latency: latency and cores by rate, and latency against cores by rate."""

from collections.abc import Callable, Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

from benchmarks.report.drawing import COLOURS, GREY, SIZE, legend_below, milliseconds, short, words
from benchmarks.report.summary import NAMES, Cell, Row, cells, cores_of
from benchmarks.spec import Results, RunResult

_MOST_RATES = 3  # side by side, the widest apart
_EDGE = 0.12  # share of the axis beyond the largest value


def latency_by_rate(results: Results) -> Canvas | None:
    """Latency and used cores by rate: median over rounds, with the spread; hollow: rate not held."""
    found = _same_but_rate(results)
    if len(found) < 2:
        return None
    canvas, three = plt.subplots(1, 3, figsize=SIZE)
    panels = (("median", _p50), ("99th percentile", _p99), ("cores", cores_of))
    for axes, (title, of) in zip(three, panels, strict=True):
        for engine in reversed(list(NAMES)):
            _by_rate(axes, engine, found, of)
        axes.set_xscale("log")
        axes.set_xlabel("events per second")
        axes.set_title(title, loc="left")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    three[1].sharey(three[0])
    for axes in three[:2]:
        axes.set_yscale("log")
        milliseconds(axes.yaxis)
    three[2].set_ylim(bottom=0)
    three[0].set_ylabel("processed latency")
    legend_below(three[0])
    base = next(iter(found))
    title = f"Processed latency by rate: {words(base.workload)}, {base.keys:,} keys (hollow: rate not held)"
    canvas.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return canvas


def latency_by_cores(results: Results) -> Canvas | None:
    """A panel per rate, cores to the right, latency up: a line per engine from the median to the 99th percentile.

    Lower and further left is better. None if no run has the cores."""
    found = {
        cell: drawn
        for cell, rows in _same_but_rate(results).items()
        if (drawn := [row for row in rows if row.figure(cores_of) is not None and row.figure(_p50) is not None])
    }
    if not found:
        return None
    chosen = _apart(sorted(found, key=lambda cell: cell.rate))
    canvas, panels = plt.subplots(1, len(chosen), figsize=SIZE, sharey=True, squeeze=False)
    for axes, cell in zip(panels[0], chosen, strict=True):
        for row in reversed(found[cell]):
            _against_cores(axes, row)
        axes.set_yscale("log")
        axes.set_xlim(0, axes.get_xlim()[1] * (1 + _EDGE))
        axes.set_xlabel("cores")
        axes.set_title(f"{cell.rate:,.0f} events/s", loc="left")
    milliseconds(panels[0][0].yaxis)
    panels[0][0].set_ylabel("processed latency")
    engines = [engine for engine in NAMES if any(row.engine == engine for cell in chosen for row in found[cell])]
    marks = [Line2D([], [], color=COLOURS[engine], marker="o", label=NAMES[engine]) for engine in engines]
    marks += [
        Line2D([], [], color=GREY, linestyle="", marker=mark, label=text)
        for mark, text in (("o", "median"), ("^", "99th percentile"))
    ]
    canvas.legend(handles=marks, frameon=False, loc="outside lower center", ncols=min(4, len(marks)), fontsize=9)
    base = chosen[0]
    title = f"Latency and the cores it took: {words(base.workload)}, {base.keys:,} keys (hollow: rate not held)"
    canvas.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return canvas


def _by_rate(
    axes: Axes, engine: str, found: Mapping[Cell, Sequence[Row]], of: Callable[[RunResult], float | None]
) -> None:
    points = [
        (cell.rate, figure, all(run.held for run in row.runs))
        for cell in sorted(found, key=lambda cell: cell.rate)
        for row in found[cell]
        if row.engine == engine and (figure := row.figure(of)) is not None
    ]
    if not points:
        return
    rates, figures, held = zip(*points, strict=True)
    colour = COLOURS[engine]
    axes.plot(rates, [f.median for f in figures], color=colour, label=NAMES[engine], linewidth=2)
    axes.fill_between(rates, [f.low for f in figures], [f.high for f in figures], color=colour, alpha=0.2)
    for rate, figure, ok in zip(rates, figures, held, strict=True):
        axes.plot(rate, figure.median, "o", color=colour, markerfacecolor=colour if ok else "white")


def _against_cores(axes: Axes, row: Row) -> None:
    cores, low, high = row.figure(cores_of), row.figure(_p50), row.figure(_p99)
    assert cores is not None
    assert low is not None
    assert high is not None
    colour = COLOURS[row.engine]
    face = colour if all(run.held for run in row.runs) else "white"
    axes.plot([cores.median] * 2, [low.median, high.median], color=colour, linewidth=2)
    axes.plot(cores.median, low.median, "o", color=colour, markerfacecolor=face)
    axes.plot(cores.median, high.median, "^", color=colour, markerfacecolor=face)


def _same_but_rate(results: Results) -> dict[Cell, list[Row]]:
    """Cells of processed latency that differ from the first cell only in the rate."""
    found = {cell: rows for cell, rows in cells(results).items() if cell.measure == "latency"}
    base = next(iter(found), None)
    return {cell: rows for cell, rows in found.items() if base is not None and _but_rate(cell) == _but_rate(base)}


def _apart(ordered: Sequence[Cell]) -> list[Cell]:
    """The lowest, the highest and the middle cell."""
    if len(ordered) <= _MOST_RATES:
        return list(ordered)
    last = len(ordered) - 1
    return [ordered[position * last // (_MOST_RATES - 1)] for position in range(_MOST_RATES)]


def _but_rate(cell: Cell) -> tuple[object, ...]:
    return (cell.workload, cell.source, cell.keys, cell.parallelism, cell.interval_ms)


def _p50(run: RunResult) -> float | None:
    return run.processed.p50 if run.processed is not None else None


def _p99(run: RunResult) -> float | None:
    return run.processed.p99 if run.processed is not None else None
