"""SVG charts of a job: the graph of operator chains, and latencies. Pure.

**Graph**: a box per operator chain. A box's layer is the longest path from a source; the order by inputs in a layer
avoids most crossings. Time is linear in chains and edges.

**Latencies**: over the last hour, and their distribution, on a logarithmic axis, because the slowest of a thousand rows
is a hundred times the median.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import log10

from markupsafe import Markup

from barrier_runtime.coordinator.page.figures import duration, number, rate, share, time_of_day
from barrier_runtime.coordinator.status.status import LATENCY_BOUNDS_MS, ChainStatus, LatencyPoint, LatencyStatus

_BOX_W, _GAP_X, _GAP_Y, _LINE = 232, 56, 22, 16
_NAMES_SHOWN = 6
_WARM, _HOT = 0.5, 0.8  # busy or backpressured share


def layers(chains: Sequence[ChainStatus]) -> list[list[ChainStatus]]:
    """Returns chains by the longest path from a source. Ignores unknown inputs, cuts cycles."""
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
    """Returns "1,200,000 rows, caught up in 2 min", for a source with a known backlog."""
    rows = f"{chain.backlog or 0:,} rows"
    if not chain.backlog:
        return rows
    return rows if chain.caught_up_in_s is None else f"{rows}, caught up in {duration(chain.caught_up_in_s * 1000)}"


def _height(chain: ChainStatus, lag: Mapping[str, str]) -> int:
    return 14 + _LINE * (min(len(chain.operators), _NAMES_SHOWN + 1) + len(_figures(chain, lag)))


def _figures(chain: ChainStatus, lag: Mapping[str, str]) -> list[str]:
    """Returns the lines below the names, without unknown rates and shares."""
    lines = [f"watermark behind by {lag[name]}" for name in chain.operators if name in lag]
    if chain.backlog is not None:
        lines.insert(0, f"backlog {backlog_in_words(chain)}")
    if chain.busy is not None or chain.backpressured is not None:
        lines.insert(0, f"busy {share(chain.busy)} · blocked {share(chain.backpressured)}")
    if chain.rows_in_per_s is not None or chain.rows_out_per_s is not None:
        lines.insert(0, f"in {rate(chain.rows_in_per_s)} · out {rate(chain.rows_out_per_s)}")
    return lines


def graph(chains: Sequence[ChainStatus], lag: Mapping[str, str]) -> Markup:
    """Draws the graph. `lag`: watermark lag as text, by source."""
    columns = layers(chains)
    if not columns:
        return Markup("")
    at: dict[int, tuple[int, int, int]] = {}  # chain -> x, y, height
    for column, layer in enumerate(columns):
        y = 4
        for chain in layer:
            at[chain.chain] = (4 + column * (_BOX_W + _GAP_X), y, _height(chain, lag))
            y += _height(chain, lag) + _GAP_Y
    width = 8 + len(columns) * (_BOX_W + _GAP_X) - _GAP_X
    height = max(y + tall for _, y, tall in at.values()) + 8
    out = [
        Markup(
            '<svg class="chart graph" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">'
        ).format(width, height, width, height, f"the job's graph: {len(chains)} chains of operators")
    ]
    for chain in chains:
        for each in dict.fromkeys(chain.inputs):
            if each in at and each != chain.chain:
                out.append(_edge(at[each], at[chain.chain]))
    for chain in chains:
        out.append(_box(chain, at[chain.chain], lag))
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _edge(source: tuple[int, int, int], target: tuple[int, int, int]) -> Markup:
    x1, y1 = source[0] + _BOX_W, source[1] + source[2] / 2
    x2, y2 = target[0], target[1] + target[2] / 2
    middle = (x1 + x2) / 2
    return Markup(
        '<path class="edge" d="M{0} {1:.0f}C{2:.0f} {1:.0f} {2:.0f} {3:.0f} {4} {3:.0f}"/>'
        '<path class="tip" d="M{4} {3:.0f}l-7 -4v8z"/>'
    ).format(x1, y1, middle, y2, x2)


def heat(chain: ChainStatus) -> str:
    """Returns a box's class, from the shares of the last ten seconds; blocked hides busy."""
    if (chain.backpressured or 0) >= _WARM:
        return "blocked"
    if (chain.busy or 0) >= _HOT:
        return "hot"
    return "warm" if (chain.busy or 0) >= _WARM else "calm"


def _box(chain: ChainStatus, at: tuple[int, int, int], lag: Mapping[str, str]) -> Markup:
    x, y, tall = at
    out = [
        Markup(
            '<g class="box {}" data-chain="{}"><title>{}</title><rect x="{}" y="{}" width="{}" height="{}" rx="6"/>'
        ).format(heat(chain), chain.chain, " → ".join(chain.operators), x, y, _BOX_W, tall)
    ]
    names = [*chain.operators[:_NAMES_SHOWN]]
    if len(chain.operators) > _NAMES_SHOWN:
        names.append(f"… and {len(chain.operators) - _NAMES_SHOWN} more")
    for row, name in enumerate(names):
        mark = "⇥ " if name in chain.sinks else "⇤ " if chain.is_source and row == 0 else ""
        text = f"{mark}{name}"
        out.append(
            Markup('<text class="name" x="{}" y="{}">{}</text>').format(
                x + 9, y + 18 + row * _LINE, text if len(text) <= 30 else f"{text[:29]}…"
            )
        )
    below = y + 18 + len(names) * _LINE
    for row, line in enumerate(_figures(chain, lag)):
        out.append(
            Markup('<text class="figure" x="{}" y="{}">{}</text>').format(x + 9, below + row * (_LINE - 1), line)
        )
    out.append(Markup("</g>"))
    return Markup("").join(out)


_WIDTH, _LEFT = 1000, 56
_LOWEST_MS = 0.1


def latencies(points: Sequence[LatencyPoint], name: str) -> Markup:
    """Draws p50, p99, p99.9 and max, a point per minute; minutes without rows are gaps."""
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
    """Draws rows per range of latency, as bars above the range's upper end."""
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
