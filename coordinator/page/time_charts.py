"""Charts over time as SVG: what happened to a job on one axis, latencies of the last hour, their distribution. Pure.

The axis of events begins with the oldest thing that is known of the job and ends now. Latencies are on a logarithmic
axis, because the slowest of a thousand rows is a hundred times the median.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import log10

from markupsafe import Markup

from barrier_runtime.coordinator.page.figures import duration, number, time_of_day
from barrier_runtime.coordinator.status.status import LATENCY_BOUNDS_MS, JobStatus, LatencyPoint, LatencyStatus

_WIDTH, _LEFT = 1000, 56
_LOWEST_MS = 0.1


def timeline(status: JobStatus, now_ms: int) -> Markup:
    """Checkpoints as ticks, and above them recoveries (as wide as they took), takeovers and failures."""
    history, recoveries = status.checkpoints.history, status.recoveries
    times = [each.triggered_ms for each in history] + [each.started_ms for each in recoveries]
    times += [each.at_ms for each in status.takeovers] + [each.at_ms for each in status.failures]
    times = [at for at in times if 0 < at <= now_ms]
    if not times:
        return Markup("")
    ended = [each.triggered_ms + each.duration_ms for each in history] + [each.running_ms or 0 for each in recoveries]
    first, last = min(times), now_ms if status.outcome is None else max(*times, *ended, *times)
    span = max(1_000, last - first)

    def x(at_ms: int) -> float:
        return 8 + (_WIDTH - 16) * min(1.0, max(0.0, (at_ms - first) / span))

    out = [
        Markup('<svg class="chart timeline" viewBox="0 0 {} 92" role="img" aria-label="{}">').format(
            _WIDTH,
            f"events since {time_of_day(first)} UTC: {len(recoveries)} generations, {len(status.takeovers)} takeovers, "
            f"{len(status.failures)} failures, {len(history)} checkpoints",
        )
    ]
    out.append(Markup('<line class="grid" x1="8" x2="{}" y1="62" y2="62"/>').format(_WIDTH - 8))
    done = "".join(f"M{x(each.triggered_ms):.1f} 56v12" for each in history if each.outcome == "complete")
    out.append(Markup('<path class="t-done" d="{}"/>').format(done))
    for each in history:
        if each.outcome != "complete":
            out.append(
                Markup('<path class="t-failed" d="M{:.1f} 53v18"><title>{}</title></path>').format(
                    x(each.triggered_ms),
                    f"{time_of_day(each.triggered_ms)} checkpoint {each.checkpoint} {each.outcome}",
                )
            )
    for index, recovery in enumerate(recoveries):
        begin, end = x(recovery.started_ms), x(recovery.running_ms or last)
        kind = "start" if index == 0 and status.generations <= len(recoveries) else "recovery"
        took = f", took {duration(recovery.duration_ms)}" if recovery.duration_ms is not None else ", not over"
        out.append(
            Markup('<g class="m-{}"><title>{}</title><rect x="{:.1f}" y="12" width="{:.1f}" height="36"/></g>').format(
                kind,
                f"{time_of_day(recovery.started_ms)} generation {recovery.token}{took}: {recovery.reason[:300]}",
                begin,
                max(3.0, end - begin),
            )
        )
    for takeover in status.takeovers:
        at = x(takeover.at_ms)
        out.append(
            Markup('<g class="m-takeover"><title>{}</title><path d="M{:.1f} 12l8 18l-8 18l-8 -18z"/></g>').format(
                f"{time_of_day(takeover.at_ms)} coordinator replaced: generation {takeover.token} goes on",
                at,
            )
        )
    for failure in status.failures:
        at = x(failure.at_ms)
        out.append(
            Markup('<g class="m-failure"><title>{}</title><path d="M{:.1f} 2l6 9h-12z"/></g>').format(
                f"{time_of_day(failure.at_ms)} slot {failure.slot} {failure.operator}: {failure.error[:300]}", at
            )
        )
    for savepoint in status.savepoints:
        out.append(
            Markup('<circle class="m-savepoint" cx="{:.1f}" cy="30" r="7"><title>{}</title></circle>').format(
                x(savepoint.asked_ms), f"{time_of_day(savepoint.asked_ms)} savepoint {savepoint.state}"
            )
        )
    for rescale in status.rescales:
        out.append(
            Markup('<circle class="m-savepoint" cx="{:.1f}" cy="30" r="7"><title>{}</title></circle>').format(
                x(rescale.asked_ms),
                f"{time_of_day(rescale.asked_ms)} rescale {rescale.before} -> {rescale.parallelism}: {rescale.state}",
            )
        )
    for part in range(5):
        anchor = ("start", "middle", "middle", "middle", "end")[part]
        out.append(
            Markup('<text class="axis" x="{:.1f}" y="86" text-anchor="{}">{}</text>').format(
                8 + (_WIDTH - 16) * part / 4, anchor, time_of_day(round(first + span * part / 4))
            )
        )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def latencies(points: Sequence[LatencyPoint], name: str) -> Markup:
    """Lines of p50, p99, p99.9 and max, a point per minute; minutes without rows are gaps."""
    known = [point for point in points if point.count > 0]
    if not known:
        return Markup("")
    first, last = points[0].at_ms, max(points[-1].at_ms, points[0].at_ms + 60_000)
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
