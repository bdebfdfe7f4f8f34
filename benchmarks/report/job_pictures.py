"""Pictures of this runtime alone: recovery, and what checkpoints cost."""

import statistics

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.report.drawing import SIZE, short
from benchmarks.spec import Results

_VICTIMS = {"slot": "#0b6e4f", "executor": "#e07a1f", "coordinator": "#3a6ea5"}


def recovery(results: Results) -> Canvas | None:
    """Rows out per tenth of a second around the kill: the median over the kills, and the spread."""
    victims = [victim for victim in _VICTIMS if any(found.victim == victim for found in results.recoveries)]
    if not victims:
        return None
    canvas, all_axes = plt.subplots(
        len(victims), 1, figsize=(SIZE[0], 1.2 + 1.9 * len(victims)), sharex=True, squeeze=False
    )
    for axes, victim in zip(all_axes[:, 0], victims, strict=True):
        kills = [found for found in results.recoveries if found.victim == victim]
        steps = sorted({round(at, 1) for kill in kills for at, _ in kill.timeline})
        steps = [round(number / 10, 1) for number in range(round(steps[0] * 10), round(steps[-1] * 10) + 1)]
        rows = np.array(
            [[{round(at, 1): n for at, n in kill.timeline}.get(step, 0) for step in steps] for kill in kills]
        )
        rate = rows * 10
        colour = _VICTIMS[victim]
        axes.fill_between(steps, rate.min(axis=0), rate.max(axis=0), step="post", color=colour, alpha=0.25, linewidth=0)
        axes.step(steps, np.median(rate, axis=0), where="post", color=colour, linewidth=1.6)
        axes.axvline(0, color="#333333", linewidth=1)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        first = statistics.median(kill.first_due_ms for kill in kills)
        back = [kill.caught_up_ms for kill in kills if kill.caught_up_ms is not None]
        checkpoint = [kill.next_checkpoint_ms for kill in kills if kill.next_checkpoint_ms is not None]
        text = f"{victim}: first new output after {first:,.0f} ms"
        if back:
            text += f", caught up after {statistics.median(back):,.0f} ms"
        if checkpoint:
            text += f", next checkpoint after {statistics.median(checkpoint):,.0f} ms"
        axes.set_title(f"{text} (median of {len(kills)})", loc="left")
        axes.set_ylabel("rows/s out")
    all_axes[-1, 0].set_xlabel("seconds from SIGKILL")
    return canvas


def checkpoint_cost(results: Results) -> Canvas | None:
    """Throughput at each interval as a share of that without checkpoints, in the same round."""
    grouped: dict[tuple[int, int], dict[int, list[float]]] = {}
    for cost in results.grid:
        base = [
            other.rows_per_s
            for other in results.grid
            if (other.keys, other.parallelism, other.round) == (cost.keys, cost.parallelism, cost.round)
            and other.interval_ms == 0
        ]
        if base and cost.interval_ms:
            share = cost.rows_per_s / base[0] * 100
            grouped.setdefault((cost.keys, cost.parallelism), {}).setdefault(cost.interval_ms, []).append(share)
    if not grouped:
        return None
    canvas, axes = plt.subplots(figsize=SIZE)
    for (keys, parallelism), shares in grouped.items():
        intervals = sorted(shares)
        middle = [statistics.median(shares[interval]) for interval in intervals]
        line = axes.plot(intervals, middle, "o-", label=f"{short(keys)} keys, parallelism {parallelism}")[0]
        axes.vlines(
            intervals, [min(shares[i]) for i in intervals], [max(shares[i]) for i in intervals], color=line.get_color()
        )
    axes.axhline(100, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g} s"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted({interval for shares in grouped.values() for interval in shares}))
    axes.set_xlabel("checkpoint interval")
    axes.set_ylabel("% of the throughput without checkpoints")
    axes.set_title("Keyed count from Parquet at full speed: what checkpoints cost", loc="left")
    axes.legend(frameon=False)
    return canvas


def checkpoint_size(results: Results) -> Canvas | None:
    found = [size for size in results.sizes if size.checkpoints is not None and size.checkpoints.bytes]
    if not found:
        return None
    canvas, (left, right) = plt.subplots(1, 2, figsize=(SIZE[0] + 1.5, SIZE[1]))
    for keys in sorted({size.keys for size in found}):
        sizes = [size for size in found if size.keys == keys and size.storage == "file"]
        changes = sorted({size.changed for size in sizes})
        grouped = [[s.checkpoints for s in sizes if s.changed == change and s.checkpoints] for change in changes]
        label = f"{short(keys)} keys, {short(keys * 100)}B"
        left.plot(
            changes, [statistics.median((c.bytes or 0) / 1e6 for c in group) for group in grouped], "o-", label=label
        )
        right.plot(changes, [statistics.median(c.p50_ms for c in group) for group in grouped], "o-", label=label)
    for axes, title in ((left, "MB uploaded per checkpoint"), (right, "duration of a checkpoint, ms")):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("keys changed per second")
        axes.set_title(title, loc="left")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    left.legend(frameon=False)
    return canvas
