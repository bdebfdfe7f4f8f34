"""All pictures: drawn in the same style, written as PNG files."""

from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.figure import Figure as Canvas

from benchmarks.report.growth import growth_by_cores
from benchmarks.report.job_pictures import checkpoint_cost, checkpoint_size, recovery
from benchmarks.report.latency_pictures import latency_cdf, latency_over_time, visible_cdf
from benchmarks.report.load_pictures import latency_by_cores, latency_by_rate
from benchmarks.report.rate_pictures import highest_rate, throughput
from benchmarks.spec import Results

_DPI = 200

Draw = Callable[[Results], Canvas | None]


def draw_all(results: Results, folder: Path) -> list[str]:
    """Names of the pictures written to `folder`/<name>.png.

    A picture of an earlier report without data now is removed."""
    pictures: dict[str, Draw] = {
        "latency-over-time": latency_over_time,
        "latency-cdf": latency_cdf,
        "visible-cdf": visible_cdf,
        "latency-by-rate": latency_by_rate,
        "latency-by-cores": latency_by_cores,
        "growth": growth_by_cores,
        "throughput": throughput,
        "highest-rate": highest_rate,
        "recovery": recovery,
        "checkpoint-cost": checkpoint_cost,
        "checkpoint-size": checkpoint_size,
    }
    written = []
    with plt.rc_context(
        {
            "font.size": 10,
            "axes.titlesize": 12,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#e6e6e6",
            "axes.axisbelow": True,
            "figure.constrained_layout.use": True,
        }
    ):
        for name, draw in pictures.items():
            canvas = draw(results)
            file = folder / f"{name}.png"
            file.unlink(missing_ok=True)
            if canvas is not None:
                canvas.savefig(file, dpi=_DPI)
                plt.close(canvas)
                written.append(name)
    return written
