"""SVG charts of the last hour: rate, watermark lag and latency. Pure."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from barrier_runtime.coordinator.page.figures import (
    REPLAYED_MS,
    count_ticks,
    duration,
    duration_ticks,
    lag,
    rate,
    short,
    time_ticks,
)
from barrier_runtime.coordinator.status.status import JobStatus, LatencyPoint
from barrier_runtime.coordinator.status.trend import HOUR_MS, STEP_MS, TrendPoint, downsampled

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BASE = 360, 132, 50, 10, 8, 110
_POINTS = 120
_SHORTEST_MS = 120_000  # of the time axis
_MINUTE_MS = 60_000

Known = tuple[int, float]  # time, figure


@dataclass(frozen=True)
class HourChart:
    """`now`: the newest figure. `chart`: empty while nothing is known."""

    title: str
    now: str
    chart: Markup
    legend: tuple[tuple[str, str], ...] = ()  # (class, name)


@dataclass(frozen=True)
class _Line:
    kind: str
    known: Sequence[Known]
    apart_ms: int  # points further apart are not joined


def hour_charts(status: JobStatus, trend: Sequence[TrendPoint], now_ms: int) -> list[HourChart]:
    """Draws rate, lag and latency, without lags of replayed data."""
    few = len(trend) <= _POINTS  # of a young job
    points = trend if few else downsampled(trend, _POINTS)
    apart_ms = 3 * (STEP_MS if few else HOUR_MS // _POINTS)
    rates = _known((each.at_ms, each.rows_per_s) for each in points)
    lags = _known((each.at_ms, each.lag_ms) for each in points if (each.lag_ms or 0) <= REPLAYED_MS)
    newest = trend[-1] if trend else TrendPoint(0)
    worst = _worst(status)
    p50, p99 = (_known((at, getattr(each, kind)) for at, each in worst.items()) for kind in ("p50", "p99"))
    return [
        HourChart("Rate", rate(newest.rows_per_s), _drawn("rate", [_Line("p50", rates, apart_ms)], now_ms, short)),
        HourChart("Watermark lag", lag(newest.lag_ms), _drawn("lag", [_Line("p99", lags, apart_ms)], now_ms, duration)),
        HourChart(
            "Latency, slowest sink",
            duration(p99[-1][1]) if p99 else duration(None),
            _drawn(
                "latency",
                [_Line("p50", p50, 5 * _MINUTE_MS // 2), _Line("p99", p99, 5 * _MINUTE_MS // 2)],
                now_ms,
                duration,
            ),
            (("p50", "p50"), ("p99", "p99")),
        ),
    ]


def _known(points: Iterable[tuple[int, float | None]]) -> list[Known]:
    return sorted((at_ms, figure) for at_ms, figure in points if figure is not None)


def _worst(status: JobStatus) -> dict[int, LatencyPoint]:
    """Slowest sink's point of each minute, for visible rows if known."""
    visible = [points for name, points in status.latency_hour.items() if name.endswith(":visible")]
    found: dict[int, LatencyPoint] = {}
    for points in visible or status.latency_hour.values():
        for each in points:
            if each.count and (each.at_ms not in found or each.p99 > found[each.at_ms].p99):
                found[each.at_ms] = each
    return found


def _drawn(name: str, lines: Sequence[_Line], now_ms: int, text: Callable[[float], str]) -> Markup:
    times = [at_ms for line in lines for at_ms, _ in line.known if now_ms - HOUR_MS <= at_ms <= now_ms]
    if not times:
        return Markup("")
    first = min(*times, now_ms - _SHORTEST_MS)
    highest = max(figure for line in lines for _, figure in line.known)
    ticks = (count_ticks if text is short else duration_ticks)(highest, 3)

    def x(at_ms: int) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (at_ms - first) / (now_ms - first)

    def y(figure: float) -> float:
        return _BASE - (_BASE - _TOP) * figure / ticks[-1]

    out = [
        Markup('<svg class="chart hour" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _WIDTH, _HEIGHT, f"{name} over the last hour, at most {text(highest)}"
        )
    ]
    for tick in ticks:
        out.append(
            Markup(
                '<path class="grid" d="M{} {:.1f}H{}"/><text class="axis" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(_LEFT, y(tick), _WIDTH - _RIGHT, _LEFT - 5, y(tick) + 4, _axis(tick, text) if tick else "0")
        )
    for at_ms, label in time_ticks(first, now_ms, 5):
        half = 3.5 * len(label)
        if _LEFT + 12 <= x(at_ms) <= _WIDTH - half:
            out.append(
                Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
                    x(at_ms), _HEIGHT - 5, label
                )
            )
    for line in lines:
        known = [(x(at_ms), y(figure), at_ms) for at_ms, figure in line.known if first <= at_ms <= now_ms]
        for part in _parts(known, line.apart_ms):
            path = "L".join(f"{at:.1f} {height:.1f}" for at, height, _ in part)
            out.append(
                Markup('<path class="a-{0}" d="M{1:.1f} {2}L{3}V{2}z"/>').format(line.kind, part[0][0], _BASE, path)
                + Markup('<path class="l-{}{}" d="M{}{}"/>').format(
                    line.kind, *((" point", path, "h0.1") if len(part) == 1 else ("", path, ""))
                )
            )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _axis(figure: float, text: Callable[[float], str]) -> str:
    if text is duration:
        for unit_ms, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
            if figure >= unit_ms:
                return f"{figure / unit_ms:.3g} {unit}"
    return text(figure)


def _parts(points: Sequence[tuple[float, float, int]], apart_ms: int) -> list[list[tuple[float, float, int]]]:
    parts: list[list[tuple[float, float, int]]] = []
    for point in points:
        if parts and point[2] - parts[-1][-1][2] <= apart_ms:
            parts[-1].append(point)
        else:
            parts.append([point])
    return parts
