"""Charts of latencies as SVG: over the last hour, and their distribution. Pure.

Latencies are on a logarithmic axis, because the slowest of a thousand rows is a hundred times the median.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log10

from markupsafe import Markup

from barrier_runtime.coordinator.page.figures import duration, number, time_of_day
from barrier_runtime.coordinator.status.status import LATENCY_BOUNDS_MS, LatencyPoint, LatencyStatus

_WIDTH, _LEFT = 1000, 56
_LOWEST_MS = 0.1


def latencies(points: Sequence[LatencyPoint], name: str) -> Markup:
    """Lines of p50, p99, p99.9 and max, a point per minute; minutes without rows are gaps."""
    known = sorted(
        (point for point in points if point.count > 0), key=lambda point: point.at_ms
    )  # a clock was set back
    if not known:
        return Markup("")
    first, last = known[0].at_ms, max(known[-1].at_ms, known[0].at_ms + 60_000)
    low = max(_LOWEST_MS, min(point.p50 for point in known) / 1.5)
    high = max(low * 10, *(point.max * 1.2 for point in known))

    def x(at_ms: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - 8) * (at_ms - first) / (last - first)

    def y(ms: float) -> float:
        return 150 - 138 * (log10(max(low, ms)) - log10(low)) / (log10(high) - log10(low))

    newest = known[-1]
    out = [
        Markup('<svg class="chart lines" viewBox="0 0 {} 176" role="img" aria-label="{}">').format(
            _WIDTH,
            f"{name} over the last hour: p50 {duration(newest.p50)}, p99 {duration(newest.p99)} in the last minute",
        )
    ]
    grid = 10.0 ** round(log10(low))
    while grid <= high:
        if grid >= low:
            out.append(
                Markup('<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>').format(
                    _LEFT, _WIDTH - 8, y(grid), y(grid)
                )
            )
            out.append(
                Markup('<text class="axis" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                    _LEFT - 6, y(grid) + 4, duration(grid)
                )
            )
        grid *= 10
    for kind in ("p50", "p99", "p999", "max"):
        path: list[str] = []
        before = 0
        for point in known:
            apart = not path or point.at_ms - before > 90_000
            path.append(f"{'M' if apart else 'L'}{x(point.at_ms):.1f} {y(getattr(point, kind)):.1f}")
            before = point.at_ms
        joined = "".join(path)
        out.append(Markup('<path class="l-{}" d="{}"/>').format(kind, f"{joined}h0.1" if len(known) == 1 else joined))
    for part in range(3):
        at = round(first + (last - first) * part / 2)
        out.append(
            Markup('<text class="axis" x="{:.1f}" y="170" text-anchor="{}">{}</text>').format(
                x(at), ("start", "middle", "end")[part], time_of_day(at)
            )
        )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def distribution(latency: LatencyStatus, name: str) -> Markup:
    """Rows per range of latency, as bars; the text below names the upper end of each range."""
    if not any(latency.buckets):
        return Markup("")
    up_to = (0, *latency.buckets)
    counts = [max(0, after - before) for before, after in pairwise(up_to)]
    counts.append(max(0, latency.count - latency.buckets[-1]))
    labels = [duration(bound) for bound in LATENCY_BOUNDS_MS[: len(latency.buckets)]] + ["more"]
    most = max(counts)
    step = _WIDTH / len(counts)
    out = [
        Markup('<svg class="chart bars" viewBox="0 0 {} 140" role="img" aria-label="{}">').format(
            _WIDTH, f"{name}: distribution of {number(latency.count)} rows"
        )
    ]
    for index, (count, label) in enumerate(zip(counts, labels, strict=True)):
        tall = 100 * count / most if most else 0
        out.append(
            Markup('<g><title>{}</title><rect class="d" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                f"up to {label}: {number(count)} rows" if label != "more" else f"more: {number(count)} rows",
                index * step + 3,
                116 - tall,
                step - 6,
                max(tall, 0.5 if count else 0.0),
            )
        )
        out.append(
            Markup('<text class="axis" x="{:.1f}" y="134" text-anchor="middle">{}</text></g>').format(
                (index + 0.5) * step, label
            )
        )
    out.append(Markup("</svg>"))
    return Markup("").join(out)
