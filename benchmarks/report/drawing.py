"""Colours, sizes and words of all pictures. An engine has the same colour in all pictures."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.engines import ENGINES

COLOURS = {engine: known.colour for engine, known in ENGINES.items()}
GREENS = ("#9fd3bd", "#3f9e7c", "#0b4f3a")
"""For pictures of this runtime alone: by size of state, small to large."""
SIZE = (8.0, 4.4)
GREY = "#555555"


def nexmark(workload: str) -> bool:
    return workload.startswith("q") and workload[1:].isdigit()


def headed(axes: Axes, title: str, detail: str) -> None:
    """The title in bold, and the measurement below it, with up to two lines."""
    lines = detail.count("\n") + 1
    axes.set_title(title, loc="left", fontweight="bold", pad=8 + 13 * lines)
    text = axes.annotate(
        detail, (0, 1), (0, 5), "axes fraction", textcoords="offset points", va="bottom", color=GREY, fontsize=9
    )
    text.set_in_layout(False)  # the title has made room for the text


def legend_below(axes: Axes) -> None:
    """Places the legend below all curves. Ours, drawn last, comes first."""
    handles, labels = axes.get_legend_handles_labels()
    axes.figure.legend(
        handles[::-1], labels[::-1], frameon=False, loc="outside lower center", ncols=min(4, len(labels)), fontsize=9
    )


def milliseconds(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: in_ms(value)))


def in_ms(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value / 1000:.3g} s"


def short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def words(workload: str) -> str:
    return workload.replace("-", " ")
