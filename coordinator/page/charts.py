"""SVG charts of a job: the graph of operator chains, latencies, and the last hour. Pure.

A chain's layer is the longest path from a source; sorting a layer by inputs avoids most crossings. The axis of
latencies is logarithmic, because the slowest of a thousand rows takes a hundred times the median.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, floor, log10

from markupsafe import Markup

from barrier_runtime.coordinator.page.figures import (
    REPLAYED_MS,
    count_ticks,
    duration,
    duration_ticks,
    lag,
    rate,
    share,
    short,
    time_ticks,
)
from barrier_runtime.coordinator.status.status import (
    LATENCY_BOUNDS_MS,
    ChainStatus,
    JobStatus,
    LatencyPoint,
    LatencyStatus,
)
from barrier_runtime.coordinator.status.trend import HOUR_MS, STEP_MS, TrendPoint, downsampled
from barrier_runtime.state.texts import counted, shortened

_BOX_W, _GAP_Y, _LINE = 232, 22, 16
_GAPS = 84, 190  # between columns
_ROOM = 1_160  # of a wide window
_NAMES_SHOWN = 6
_WARM, _HOT = 0.5, 0.8  # busy or backpressured share


def layers(chains: Sequence[ChainStatus]) -> list[list[ChainStatus]]:
    """Chains by layer. Ignores unknown inputs, cuts cycles."""
    by_id = {chain.chain: chain for chain in chains}
    depth: dict[int, int] = {}
    for start in by_id:
        walk = [start]
        under_way: set[int] = set()
        while walk:
            at = walk[-1]
            open_inputs = [i for i in by_id[at].inputs if i in by_id and i not in depth and i not in under_way]
            if at in depth or not open_inputs:
                inputs = [depth[i] for i in by_id[at].inputs if i in depth and i != at]
                depth.setdefault(at, 1 + max(inputs, default=-1))
                walk.pop()
                continue
            under_way.add(at)
            walk.append(open_inputs[0])
    found: list[list[ChainStatus]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    place: dict[int, float] = {}
    for chain in chains:
        found[depth[chain.chain]].append(chain)
    for layer in found:
        layer.sort(key=lambda chain: _mean([place[i] for i in chain.inputs if i in place]))
        place.update({chain.chain: float(row) for row, chain in enumerate(layer)})
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def backlog_in_words(chain: ChainStatus) -> str:
    """Returns "1,200,000 rows, caught up in 2 min"."""
    rows = counted(chain.backlog or 0, "row")
    if not chain.backlog:
        return rows
    return rows if chain.caught_up_in_s is None else f"{rows}, caught up in {duration(chain.caught_up_in_s * 1000)}"


def _height(chain: ChainStatus, lag: Mapping[str, str], notes: Mapping[str, str]) -> int:
    return 14 + _LINE * (min(len(chain.operators), _NAMES_SHOWN + 1) + len(_figures(chain, lag, notes)))


def _figures(chain: ChainStatus, lag: Mapping[str, str], notes: Mapping[str, str]) -> list[str]:
    lines = [f"watermark behind by {lag[name]}" for name in chain.operators if name in lag]
    lines += [notes[name] for name in chain.operators if name in notes]
    if chain.backlog is not None:
        lines.insert(0, f"backlog {backlog_in_words(chain)}")
    if chain.busy is not None or chain.backpressured is not None:
        lines.insert(0, f"busy {share(chain.busy)} · blocked {share(chain.backpressured)}")
    if chain.rows_in_per_s is not None or chain.rows_out_per_s is not None:
        lines.insert(0, f"in {rate(chain.rows_in_per_s)} · out {rate(chain.rows_out_per_s)}")
    return lines


def edge_rates(chains: Sequence[ChainStatus]) -> dict[tuple[int, int], float | None]:
    """Rows per second by (sender, receiver); None: unknown."""
    known = {chain.chain for chain in chains}
    edges = {(i, chain.chain): None for chain in chains for i in chain.inputs if i in known and i != chain.chain}
    rates: dict[tuple[int, int], float | None] = dict(edges)
    for chain in chains:
        if len(chain.inputs) == 1 and (chain.inputs[0], chain.chain) in rates:
            rates[chain.inputs[0], chain.chain] = chain.rows_in_per_s
    for chain in chains:
        of_chain = [edge for edge in rates if edge[0] == chain.chain]
        unknown = [edge for edge in of_chain if rates[edge] is None]
        if len(unknown) == 1 and chain.rows_out_per_s is not None:
            rates[unknown[0]] = max(0.0, chain.rows_out_per_s - sum(rates[edge] or 0.0 for edge in of_chain))
    return rates


def graph(
    chains: Sequence[ChainStatus], lag: Mapping[str, str], notes: Mapping[str, str] | None = None, link: str = ""
) -> Markup:
    """`lag`: watermark lag as text, by source. `notes`: a line below the figures, by operator."""
    columns = layers(chains)
    if not columns:
        return Markup("")
    notes = notes or {}
    at: dict[int, tuple[int, int, int]] = {}  # chain -> x, y, height
    gap = min(_GAPS[1], max(_GAPS[0], (_ROOM - len(columns) * _BOX_W) // max(1, len(columns) - 1)))
    for column, layer in enumerate(columns):
        y = 4
        for chain in layer:
            at[chain.chain] = (4 + column * (_BOX_W + gap), y, _height(chain, lag, notes))
            y += _height(chain, lag, notes) + _GAP_Y
    width = 8 + len(columns) * (_BOX_W + gap) - gap
    height = max(y + tall for _, y, tall in at.values()) + 8
    out = [
        Markup(
            '<svg class="chart graph" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        ).format(width, height, width, height, f"the job's graph: {len(chains)} chains of operators")
    ]
    for (sender, receiver), per_s in edge_rates(chains).items():
        out.append(_edge(at[sender], at[receiver], per_s))
    for chain in chains:
        box = _box(chain, at[chain.chain], lag, notes)
        out.append(Markup('<a href="{}{}">{}</a>').format(link, chain.chain, box) if link else box)
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _edge(source: tuple[int, int, int], target: tuple[int, int, int], per_s: float | None) -> Markup:
    x1, y1 = source[0] + _BOX_W, source[1] + source[2] / 2
    x2, y2 = target[0], target[1] + target[2] / 2
    middle = (x1 + x2) / 2
    drawn = Markup(
        '<path class="edge" d="M{0} {1:.0f}C{2:.0f} {1:.0f} {2:.0f} {3:.0f} {4} {3:.0f}"/>'
        '<path class="tip" d="M{4} {3:.0f}l-7 -4v8z"/>'
    ).format(x1, y1, middle, y2, x2)
    if per_s is None:
        return drawn
    return drawn + Markup('<text class="figure rows" x="{:.0f}" y="{:.0f}" text-anchor="end">{}</text>').format(
        x2 - 10, y2 - 6, rate(per_s)
    )


def heat(chain: ChainStatus) -> str:
    """Class of a box; blocked hides busy."""
    if (chain.backpressured or 0) >= _WARM:
        return "blocked"
    if (chain.busy or 0) >= _HOT:
        return "hot"
    return "warm" if (chain.busy or 0) >= _WARM else "calm"


def _shade(chain: ChainStatus) -> tuple[str, float]:
    busy, blocked = chain.busy or 0.0, chain.backpressured or 0.0
    return ("s-blocked", blocked) if blocked > busy else ("s-busy", busy)


def _box(chain: ChainStatus, at: tuple[int, int, int], lag: Mapping[str, str], notes: Mapping[str, str]) -> Markup:
    x, y, tall = at
    out = [
        Markup(
            '<g class="box {0}" data-chain="{1}"><title>{2}</title><rect x="{3}" y="{4}" width="{5}" height="{6}" '
            'rx="6"/><rect class="shade {7}" fill-opacity="{8:.2f}" x="{3}" y="{4}" width="{5}" height="{6}" rx="6"/>'
        ).format(heat(chain), chain.chain, " → ".join(chain.operators), x, y, _BOX_W, tall, *_shade(chain))
    ]
    names = [*chain.operators[:_NAMES_SHOWN]]
    if len(chain.operators) > _NAMES_SHOWN:
        names.append(f"… and {len(chain.operators) - _NAMES_SHOWN} more")
    for row, name in enumerate(names):
        mark = "⇥ " if name in chain.sinks else "⇤ " if chain.is_source and row == 0 else ""
        text = f"{mark}{name}"
        out.append(
            Markup('<text class="name" x="{}" y="{}">{}</text>').format(
                x + 9, y + 18 + row * _LINE, shortened(text, 30)
            )
        )
    below = y + 18 + len(names) * _LINE
    for row, line in enumerate(_figures(chain, lag, notes)):
        out.append(
            Markup('<text class="figure" x="{}" y="{}">{}</text>').format(x + 9, below + row * (_LINE - 1), line)
        )
    out.append(Markup("</g>"))
    return Markup("").join(out)


_WIDTH, _LEFT = 480, 58
_LOWEST_MS = 0.1


def latencies(points: Sequence[LatencyPoint], name: str) -> Markup:
    """Draws a point per minute; minutes without rows are gaps."""
    known = sorted(
        (point for point in points if point.count > 0), key=lambda point: point.at_ms
    )  # sorted, because a clock may have been set back
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
    for grid in _logarithmic(low, high):
        out.append(
            Markup(
                '<path class="grid" d="M{0} {2:.1f}H{1}"/><text class="axis" x="{3}" y="{4:.1f}" text-anchor="end">{5}'
                "</text>"
            ).format(_LEFT, _WIDTH - 8, y(grid), _LEFT - 6, y(grid) + 4, _seconds(grid))
        )
    for kind in ("p50", "p99", "p999", "max"):
        path: list[str] = []
        before = 0
        for point in known:
            apart = not path or point.at_ms - before > 90_000
            path.append(f"{'M' if apart else 'L'}{x(point.at_ms):.1f} {y(getattr(point, kind)):.1f}")
            before = point.at_ms
        single = ("", "") if len(known) > 1 else (" point", "h0.1")
        out.append(Markup('<path class="l-{}{}" d="{}{}"/>').format(kind, single[0], "".join(path), single[1]))
    for at, label in time_ticks(first, last, 6):
        if x(at) <= _WIDTH - 20:
            out.append(
                Markup('<text class="axis" x="{:.1f}" y="170" text-anchor="middle">{}</text>').format(x(at), label)
            )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _logarithmic(low: float, high: float) -> list[float]:
    """Powers of ten between both; below two decades 1, 2, 5 and their tenfolds."""
    steps = (1, 2, 5) if high < 100 * low else (1,)
    found = (step * 10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1) for step in steps)
    return [each for each in found if low <= each <= high]


def _seconds(ms: float) -> str:
    return duration(ms) if ms < _MINUTE_MS else f"{ms / 1000:.0f} s"


def distribution(latency: LatencyStatus, name: str) -> Markup:
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
            _WIDTH, f"{name}: distribution of {counted(latency.count, 'row')}"
        )
    ]
    for index, (count, label) in enumerate(zip(counts, labels, strict=True)):
        tall = 100 * count / most if most else 0
        out.append(
            Markup('<g><title>{}</title><rect class="d" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
                f"{'more' if label == 'more' else f'up to {label}'}: {counted(count, 'row')}",
                index * step + 2,
                116 - tall,
                step - 4,
                max(tall, 0.5 if count else 0.0),
            )
        )
        out.append(Markup("</g>"))
        if index % 3 == 0:
            at, anchor = ((index + 0.5) * step + 5, "middle") if label != "more" else (_WIDTH, "end")
            out.append(
                Markup('<text class="axis" x="{:.1f}" y="134" text-anchor="{}">{}</text>').format(at, anchor, label)
            )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


# SVG charts of the last hour: rate, watermark lag and latency. Pure.

_TREND_WIDTH, _HEIGHT, _TREND_LEFT, _RIGHT, _TOP, _BASE = 360, 132, 50, 10, 8, 110
_POINTS = 120
_SHORTEST_MS = 120_000  # of the time axis
_MINUTE_MS = 60_000

Known = tuple[int, float]  # time, figure


@dataclass(frozen=True)
class HourChart:
    """`now`: the newest figure. `chart`: empty while nothing is known; `empty` says why."""

    title: str
    now: str
    chart: Markup
    legend: tuple[tuple[str, str], ...] = ()  # (class, name)
    empty: str = "No figures yet"


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
    no_lag = "Replayed data: no lag is shown" if (newest.lag_ms or 0) > REPLAYED_MS else HourChart.empty
    worst = _worst(status)
    p50, p99 = (_known((at, getattr(each, kind)) for at, each in worst.items()) for kind in ("p50", "p99"))
    return [
        HourChart("Rate", rate(newest.rows_per_s), _drawn("rate", [_Line("p50", rates, apart_ms)], now_ms, short)),
        HourChart(
            "Watermark lag",
            lag(newest.lag_ms),
            _drawn("lag", [_Line("p99", lags, apart_ms)], now_ms, duration),
            empty=no_lag,
        ),
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
        return _TREND_LEFT + (_TREND_WIDTH - _TREND_LEFT - _RIGHT) * (at_ms - first) / (now_ms - first)

    def y(figure: float) -> float:
        return _BASE - (_BASE - _TOP) * figure / ticks[-1]

    out = [
        Markup('<svg class="chart hour" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            _TREND_WIDTH, _HEIGHT, f"{name} over the last hour, at most {text(highest)}"
        )
    ]
    for tick in ticks:
        out.append(
            Markup(
                '<path class="grid" d="M{} {:.1f}H{}"/><text class="axis" x="{}" y="{:.1f}" text-anchor="end">{}</text>'
            ).format(
                _TREND_LEFT,
                y(tick),
                _TREND_WIDTH - _RIGHT,
                _TREND_LEFT - 5,
                y(tick) + 4,
                _axis(tick, text) if tick else "0",
            )
        )
    for at_ms, label in time_ticks(first, now_ms, 5):
        half = 3.5 * len(label)
        if _TREND_LEFT + 12 <= x(at_ms) <= _TREND_WIDTH - half:
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
