"""Growth of latency and cores with rate, keys and parallelism: a picture and Markdown tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from benchmarks.report.drawing import COLOURS, GREY, SIZE, headed, milliseconds, short, words
from benchmarks.report.summary import NAMES, Cell, Row, cells, cores_of
from benchmarks.report.target_table import latency_and_cores
from benchmarks.spec import Results, RunResult

_TITLES = {"rate": "events/s", "keys": "keys", "parallelism": "subtasks"}  # field of a cell -> for people
_QUANTILES: Sequence[tuple[str, str, Literal["-", ":"], str]] = (
    ("p50", "o", "-", "median"),
    ("p99", "^", ":", "99th percentile"),
)
"""Field, mark and line of each latency, for people."""
_BELOW: Mapping[str, Any] = {"textcoords": "offset points", "ha": "center", "va": "top", "fontsize": 8}
_EDGE = 0.12  # share of the axis beyond the drawing


@dataclass(frozen=True)
class Curve:
    """Cells in which a single size grows, from small to large, and everything else is the same."""

    grows: str  # field of its cells
    cells: Mapping[Cell, Sequence[Row]]

    @property
    def same(self) -> str:
        """The sizes that do not grow, for people."""
        base = next(iter(self.cells))
        parts = {
            "rate": f"{base.rate:,.0f} events/s",
            "keys": f"{base.keys:,} keys",
            "parallelism": f"parallelism {base.parallelism}",
        }
        return ", ".join(text for name, text in parts.items() if name != self.grows)


def curves(results: Results) -> list[Curve]:
    """Curves of `growth`: for each of rate, keys and parallelism the largest set of cells that differ only in this
    size.

    A size with a single value is no curve."""
    found = cells(Results(runs=results.growth))
    drawn = []
    for grows in _TITLES:
        groups: dict[tuple[object, ...], list[Cell]] = {}
        for cell in found:
            others = (cell.workload, cell.source, cell.interval_ms, *(getattr(cell, n) for n in _TITLES if n != grows))
            groups.setdefault(others, []).append(cell)
        longest = max(groups.values(), key=len, default=[])
        if len(longest) > 1:
            ordered = sorted(longest, key=lambda cell: getattr(cell, grows))
            drawn.append(Curve(grows, {cell: found[cell] for cell in ordered}))
    return drawn


def growth_by_cores(results: Results) -> Canvas | None:
    """A panel per curve, with cores to the right and latency up; None without a curve.

    A line joins the values; the smallest and the largest value are written below the line."""
    drawn = [curve for curve in curves(results) if any(_known(row) for rows in curve.cells.values() for row in rows)]
    if not drawn:
        return None
    canvas, panels = plt.subplots(1, len(drawn), figsize=SIZE, sharey=True, squeeze=False)
    for axes, curve in zip(panels[0], drawn, strict=True):
        for engine in reversed(list(NAMES)):
            _line(axes, engine, curve)
        axes.set_yscale("log")
        axes.margins(y=_EDGE)
        axes.set_xlim(0, axes.get_xlim()[1] * (1 + _EDGE))
        axes.set_xlabel("cores")
        headed(axes, f"More {_TITLES[curve.grows]}", curve.same)
    milliseconds(panels[0][0].yaxis)
    panels[0][0].set_ylabel("processed latency")
    there = {row.engine for curve in drawn for rows in curve.cells.values() for row in rows if _known(row)}
    marks = [Line2D([], [], color=COLOURS[name], label=NAMES[name], linewidth=2) for name in NAMES if name in there]
    marks += [Line2D([], [], color=GREY, linestyle=line, marker=mark, label=text) for _, mark, line, text in _QUANTILES]
    canvas.legend(handles=marks, frameon=False, loc="outside lower center", ncols=min(4, len(marks)), fontsize=9)
    workload = words(next(iter(drawn[0].cells)).workload)
    title = f"Growth: latency of the {workload} and the cores it took (hollow: rate not held)"
    canvas.suptitle(title, x=0.01, ha="left", fontweight="bold")
    return canvas


def growth_markdown(results: Results) -> str:
    """A table per curve: a row per value, a column per engine; empty without a curve."""
    return "\n".join(_table(curve) for curve in curves(results))


def _line(axes: Axes, engine: str, curve: Curve) -> None:
    points = [
        (getattr(cell, curve.grows), row)
        for cell, rows in curve.cells.items()
        for row in rows
        if row.engine == engine and _known(row)
    ]
    colour = COLOURS[engine]
    for name, mark, line, _ in _QUANTILES:
        at = [(_median(row, "cores"), _median(row, name)) for _, row in points]
        axes.plot([x for x, _ in at], [y for _, y in at], color=colour, linestyle=line, linewidth=2)
        for (value, row), (x, y) in zip(points, at, strict=True):
            held = all(run.held for run in row.runs)
            axes.plot(x, y, mark, color=colour, markerfacecolor=colour if held else "white")
            if name == "p50" and value in (points[0][0], points[-1][0]):
                axes.annotate(short(value), (x, y), (0, -5), **_BELOW, color=colour)


def _table(curve: Curve) -> str:
    engines = [name for name in NAMES if any(row.engine == name for rows in curve.cells.values() for row in rows)]
    head = [_TITLES[curve.grows], *(NAMES[engine] for engine in engines)]
    lines = [head, ["---"] * len(head)]
    for cell, rows in curve.cells.items():
        found = {row.engine: row for row in rows}
        value = getattr(cell, curve.grows)
        lines.append([f"{value:,.0f}", *(_told(found.get(engine)) for engine in engines)])
    base = next(iter(curve.cells))
    what = f"{words(base.workload)}, {curve.same}, checkpoints every {base.interval_ms:,} ms"
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{what}: processed p50 / p99, ms; cores, by {_TITLES[curve.grows]}:\n\n{table}\n"


def _told(row: Row | None) -> str:
    """Text as in the table of latency targets; a row whose runs all failed says so."""
    if row is not None and row.failed and not row.runs:
        return "failed"
    return latency_and_cores([] if row is None else row.runs)


def _known(row: Row) -> bool:
    return row.figure(cores_of) is not None and row.figure(lambda run: _percentile(run, "p50")) is not None


def _median(row: Row, name: str) -> float:
    found = row.figure(cores_of if name == "cores" else lambda run: _percentile(run, name))
    assert found is not None
    return found.median


def _percentile(run: RunResult, name: str) -> float | None:
    return getattr(run.processed, name, None)
