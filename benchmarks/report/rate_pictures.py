"""Pictures of rates: bounded throughput and the highest rate held, as bars from zero."""

from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from benchmarks.report.drawing import COLOURS, SIZE, nexmark, short
from benchmarks.report.summary import NAMES, cells, figure
from benchmarks.spec import Results


def throughput(results: Results) -> Canvas | None:
    found = {
        f"{cell.workload}\n{short(cell.keys)} keys" if not nexmark(cell.workload) else cell.workload: rows
        for cell, rows in cells(results).items()
        if cell.measure == "throughput"
    }
    bars = {
        group: {row.engine: figure for row in rows if (figure := row.figure(lambda run: run.rows_per_s)) is not None}
        for group, rows in found.items()
    }
    return _bars(bars, "Bounded input from Parquet, rows per second (start of the query included)")


def highest_rate(results: Results) -> Canvas | None:

    rates: dict[str, dict[str, list[float]]] = {}
    for held in results.rates:
        rates.setdefault(f"{held.workload}\n{short(held.keys)} keys", {}).setdefault(held.engine, []).append(held.rate)
    bars = {
        group: {engine: found for engine, values in engines.items() if (found := figure(values)) is not None}
        for group, engines in rates.items()
    }
    return _bars(bars, "Highest rate held, rows per second")


def _bars(bars: dict[str, dict[str, Any]], title: str) -> Canvas | None:
    bars = {group: engines for group, engines in bars.items() if engines}
    if not bars:
        return None
    engines = [engine for engine in NAMES if any(engine in group for group in bars.values())]
    canvas, axes = plt.subplots(figsize=(max(SIZE[0], 1.9 * len(bars) + 2), SIZE[1]))
    width = 0.82 / max(3, len(engines))
    for place, engine in enumerate(engines):
        for number, group in enumerate(bars.values()):
            if engine not in group:
                continue
            found = group[engine]
            at = number + (place - (len(engines) - 1) / 2) * width
            axes.bar(
                at, found.median, width * 0.92, color=COLOURS[engine], label=NAMES[engine] if number == 0 else None
            )
            axes.vlines(at, found.low, found.high, color="#333333", linewidth=1)
            axes.annotate(
                short(found.median),
                (at, found.high),
                ha="center",
                va="bottom",
                fontsize=8,
                xytext=(0, 2),
                textcoords="offset points",
            )
    axes.set_xticks(range(len(bars)), list(bars))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    axes.grid(axis="x", visible=False)
    axes.set_xlim(-0.6, len(bars) - 0.4)
    axes.set_title(title, loc="left", pad=22)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[engine]) for engine in engines]
    axes.legend(
        handles,
        [NAMES[engine] for engine in engines],
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=len(engines),
        frameon=False,
        fontsize=9,
        borderpad=0,
    )
    return canvas
