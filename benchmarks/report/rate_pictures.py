"""Pictures of bounded throughput and the highest rate held: bars from zero, a panel per workload."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from benchmarks.report.drawing import COLOURS, GREY, SIZE, nexmark, short, words
from benchmarks.report.summary import NAMES, Cell, Figure, cells, figure
from benchmarks.spec import Results

_MOST_PANELS = 3  # in a row
_PANEL_HEIGHT = 2.4
_LEAST_WIDTH = 4.8

Bars = dict[str, dict[str, Figure]]  # panel -> engine -> rows per second


def throughput(results: Results) -> Canvas | None:
    bars: Bars = {}
    for cell, rows in cells(results).items():
        if cell.measure == "throughput":
            found = {row.engine: row.figure(lambda run: run.rows_per_s_steady) for row in rows}
            bars[_panel(cell)] = {engine: rate for engine, rate in found.items() if rate is not None}
    return _panels(
        bars, "Rows per second, as fast as it goes", "from Parquet, start of the query not counted; more is better"
    )


def highest_rate(results: Results) -> Canvas | None:
    rates: dict[str, dict[str, list[float]]] = {}
    for held in results.rates:
        panel = f"{words(held.workload)}\n{short(held.keys)} keys"
        rates.setdefault(panel, {}).setdefault(held.engine, []).append(held.rate)
    bars = {
        panel: {engine: found for engine, values in engines.items() if (found := figure(values)) is not None}
        for panel, engines in rates.items()
    }
    return _panels(bars, "Highest rate held, rows per second", "events on schedule, no growing backlog; more is better")


def _panel(cell: Cell) -> str:
    return cell.workload if nexmark(cell.workload) else f"{words(cell.workload)}\n{short(cell.keys)} keys"


def _panels(bars: Bars, title: str, detail: str) -> Canvas | None:
    """Draws the panels; each has a separate scale from zero."""
    bars = {panel: engines for panel, engines in bars.items() if engines}
    if not bars:
        return None
    engines = [engine for engine in NAMES if any(engine in found for found in bars.values())]
    columns = min(_MOST_PANELS, len(bars))
    lines = -(-len(bars) // columns)
    size = (max(_LEAST_WIDTH, SIZE[0] / _MOST_PANELS * columns), 1.1 + _PANEL_HEIGHT * lines)
    canvas, grid = plt.subplots(lines, columns, figsize=size, squeeze=False)
    for axes, panel in zip(grid.flat, [*bars, *[""] * (lines * columns - len(bars))], strict=True):
        if panel:
            _bars(axes, panel, bars[panel])
        else:
            axes.set_axis_off()
    canvas.suptitle(f"{title}\n", x=0.01, ha="left", fontweight="bold", fontsize=12)  # its second line: the detail
    canvas.text(0.01, 1 - 0.38 / canvas.get_figheight(), detail, color=GREY, fontsize=9, va="center")
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[engine]) for engine in engines]
    names = [NAMES[engine] for engine in engines]
    abreast = 4 if columns == _MOST_PANELS else 2
    canvas.legend(handles, names, loc="outside lower center", ncols=abreast, frameon=False, fontsize=9)
    return canvas


def _bars(axes: Axes, panel: str, found: dict[str, Figure]) -> None:
    engines = [engine for engine in NAMES if engine in found]
    for at, engine in enumerate(engines):
        rate = found[engine]
        axes.bar(at, rate.median, 0.8, color=COLOURS[engine])
        if rate.high > rate.low:
            axes.vlines(at, rate.low, rate.high, color="#333333", linewidth=1)
        axes.annotate(
            short(rate.median),
            (at, rate.high),
            (0, 2),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=8,
        )
    axes.set_xticks([])
    axes.set_xlim(-0.7, max(2, len(engines) - 1) + 0.7)
    axes.set_ylim(0, max(rate.high for rate in found.values()) * 1.12)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.tick_params(axis="y", labelsize=8, length=0)
    axes.grid(axis="x", visible=False)
    axes.set_title(panel, loc="left", fontsize=10)
