"""What all pictures share: colours, sizes, words. An engine has the same colour everywhere."""

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

COLOURS = {
    "ours": "#0b6e4f",
    "spark": "#f2b880",
    "spark-tuned": "#e07a1f",
    "spark-real-time": "#b5371f",
    "flink": "#3a6ea5",
    "flink-sql": "#8fb3d9",
    "pyflink": "#8e6bbf",
}
GREENS = ("#9fd3bd", "#3f9e7c", "#0b4f3a")
"""Of pictures of this runtime alone: by size of state, small to large."""
SIZE = (8.0, 4.4)
GREY = "#555555"


def nexmark(workload: str) -> bool:
    return workload.startswith("q") and workload[1:].isdigit()


def headed(axes: Axes, title: str, detail: str) -> None:
    """What is shown in bold, and under it what was measured, which may have two lines."""
    lines = detail.count("\n") + 1
    axes.set_title(title, loc="left", fontweight="bold", pad=8 + 13 * lines)
    text = axes.annotate(
        detail, (0, 1), (0, 5), "axes fraction", textcoords="offset points", va="bottom", color=GREY, fontsize=9
    )
    text.set_in_layout(False)  # the title has made room for it


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
