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
SIZE = (9.0, 4.6)


def nexmark(workload: str) -> bool:
    return workload.startswith("q") and workload[1:].isdigit()


def milliseconds(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} ms" if value < 1000 else f"{value / 1000:g} s"))


def legend(axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], frameon=False, loc="best")


def short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
