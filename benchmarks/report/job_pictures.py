"""Pictures of this runtime alone: recovery and the cost of checkpoints."""

import statistics
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, NullLocator

from benchmarks.report.drawing import COLOURS, GREENS, GREY, SIZE, headed, in_ms, short
from benchmarks.report.summary import share_kept
from benchmarks.spec import Results

_VICTIMS = ("slot", "executor", "coordinator")
_DASHES = {1: "--", 2: "-"}


def recovery(results: Results) -> Canvas | None:
    """Rows out per tenth of a second around the kill: the median over the kills, and the spread."""
    victims = [victim for victim in _VICTIMS if any(found.victim == victim for found in results.recoveries)]
    if not victims:
        return None
    canvas, all_axes = plt.subplots(
        len(victims), 1, figsize=(SIZE[0], 0.9 + 2.3 * len(victims)), sharex=True, squeeze=False
    )
    for axes, victim in zip(all_axes[:, 0], victims, strict=True):
        kills = [found for found in results.recoveries if found.victim == victim]
        steps = sorted({round(at, 1) for kill in kills for at, _ in kill.timeline})
        steps = [round(number / 10, 1) for number in range(round(steps[0] * 10), round(steps[-1] * 10) + 1)]
        rows = np.array(
            [[{round(at, 1): n for at, n in kill.timeline}.get(step, 0) for step in steps] for kill in kills]
        )
        rate = rows * 10
        colour = COLOURS["ours"]
        axes.fill_between(steps, rate.min(axis=0), rate.max(axis=0), step="post", color=colour, alpha=0.2, linewidth=0)
        axes.step(steps, np.median(rate, axis=0), where="post", color=colour, linewidth=1.6)
        first = statistics.median(kill.first_due_ms for kill in kills)
        axes.axvline(0, color="#b5371f", linewidth=1.2)
        axes.axvline(first / 1000, color=GREY, linewidth=1, linestyle="--")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        back = [kill.caught_up_ms for kill in kills if kill.caught_up_ms is not None]
        checkpoint = [kill.next_checkpoint_ms for kill in kills if kill.next_checkpoint_ms is not None]
        text = f"first new output after {in_ms(first)} (dashed)"
        if back:
            text += f", caught up after {in_ms(statistics.median(back))}"
        if checkpoint:
            text += f", next checkpoint after {in_ms(statistics.median(checkpoint))}"
        kind = f"SIGKILL of {'an' if victim == 'executor' else 'a'} {victim} under {kills[0].rate:,.0f} events/s"
        headed(axes, f"{kind} (median and spread of {len(kills)})", text)
        axes.set_ylabel("rows/s out")
    all_axes[-1, 0].set_xlabel("seconds from SIGKILL")
    return canvas


def checkpoint_cost(results: Results) -> Canvas | None:
    """Throughput at each interval as a share of throughput without checkpoints in the same round."""
    grouped: dict[tuple[int, int], dict[int, list[float]]] = {}
    for cost in results.grid:
        share = share_kept(cost, results.grid)
        if share is not None and cost.interval_ms:
            shares = grouped.setdefault((cost.keys, cost.parallelism), {})
            shares.setdefault(cost.interval_ms, []).append(share * 100)
    if not grouped:
        return None
    colours = _by_size([keys for keys, _ in grouped])
    canvas, axes = plt.subplots(figsize=SIZE)
    for (keys, parallelism), shares in grouped.items():
        intervals = sorted(shares)
        middle = [statistics.median(shares[interval]) for interval in intervals]
        label = f"{short(keys)} keys, parallelism {parallelism}"
        axes.plot(intervals, middle, "o", linestyle=_DASHES.get(parallelism, ":"), label=label, color=colours[keys])
        axes.vlines(
            intervals, [min(shares[i]) for i in intervals], [max(shares[i]) for i in intervals], color=colours[keys]
        )
    axes.axhline(100, color="#333333", linewidth=1)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1000:g} s"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(sorted({interval for shares in grouped.values() for interval in shares}))
    axes.set_xlabel("checkpoint interval")
    axes.set_ylabel("% of the rate without checkpoints")
    headed(axes, "What checkpoints cost", "keyed count from Parquet as fast as it goes, steady rate, RocksDB")
    axes.legend(frameon=False, fontsize=9)
    return canvas


def checkpoint_size(results: Results) -> Canvas | None:
    found = [size for size in results.sizes if size.checkpoints is not None and size.storage == "file"]
    if len({(size.keys, size.changed) for size in found}) < 2:
        return None  # a single point needs no picture: the table has it
    colours = _by_size([size.keys for size in found])
    canvas, (left, right) = plt.subplots(1, 2, figsize=SIZE)
    for keys, colour in colours.items():
        sizes = [size for size in found if size.keys == keys]
        changes = sorted({size.changed for size in sizes})
        grouped = [[s for s in sizes if s.changed == change] for change in changes]
        label = f"{short(keys)} keys, {short(keys * 100)}B"
        uploads = [[s.uploaded_by_changed for s in group if s.uploaded_by_changed is not None] for group in grouped]
        shown = [(change, statistics.median(upload)) for change, upload in zip(changes, uploads, strict=True) if upload]
        left.plot([change for change, _ in shown], [ratio for _, ratio in shown], "o-", label=label, color=colour)
        times = [statistics.median(s.checkpoints.p50_ms for s in group if s.checkpoints) for group in grouped]
        right.plot(changes, times, "o-", color=colour)
    for axes, title in ((left, "Bytes uploaded / bytes changed"), (right, "Duration of a checkpoint, ms")):
        axes.set_xscale("log")
        axes.set_xlabel("keys of 100 B changed per second")
        axes.set_title(title, loc="left", fontweight="bold")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    left.legend(frameon=False, fontsize=9)
    return canvas


def _by_size(keys: Sequence[int]) -> dict[int, str]:
    """A green per size of state, in order."""
    return {size: GREENS[min(place, len(GREENS) - 1)] for place, size in enumerate(sorted(set(keys)))}
