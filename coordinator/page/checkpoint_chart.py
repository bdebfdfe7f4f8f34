"""SVG charts of checkpoints, and the job's timeline. Pure.

A bar of the strip stacks the stages of the subtask that acknowledged last, because the worst durations of several
subtasks do not add up. The rest of the time until the last ack is `acks`.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from markupsafe import Markup, escape

from barrier_runtime.coordinator.page.figures import duration, duration_ticks, time_of_day, time_ticks
from barrier_runtime.coordinator.page.job_view import EVENT_KINDS, EventView
from barrier_runtime.coordinator.status.status import CheckpointStatus, JobStatus, SubtaskPhases
from barrier_runtime.state.texts import counted, shortened

# (class of the colour, name), in chronological order.
PHASES = (
    ("start", "start delay"),
    ("align", "alignment"),
    ("sync", "sync"),
    ("async", "async"),
    ("acks", "acks"),
    ("persist", "manifest"),
    ("decide", "log record"),
    ("commit", "commit"),
)
NAMES = dict(PHASES)
_WIDTH, _HEIGHT, _BASE, _LEFT = 1000, 208, 178, 56
_TOP = 18  # above the bars, for marks of events
_CLIPPED_AT = 8  # times the median: a slow checkpoint must not make others invisible
_CHARACTER = 6.5  # greatest mean width of a label's character
COMPLETE = "complete"


def phases_of(checkpoint: CheckpointStatus) -> list[tuple[str, float]]:
    """(class, milliseconds) without empty stages; a failed checkpoint has only `failed`."""
    if checkpoint.outcome != COMPLETE:
        return [("failed", max(1.0, checkpoint.duration_ms))]
    acks = checkpoint.ack_duration_ms
    if acks is None:  # known from the log alone
        return []
    found: list[tuple[str, float]] = []
    left = float(acks)
    if checkpoint.subtasks:
        slowest = checkpoint.subtasks[0]
        for name, took in _of_subtask(slowest):
            found.append((name, min(took, left)))
            left -= found[-1][1]
    found.append(("acks", left))
    found.append(("persist", float(checkpoint.persist_duration_ms or 0)))
    found.append(("decide", float(checkpoint.decide_duration_ms or 0)))
    found.append(("commit", float(checkpoint.commit_duration_ms or 0)))
    return [(name, took) for name, took in found if took > 0]


def _of_subtask(subtask: SubtaskPhases) -> Iterator[tuple[str, float]]:
    yield "start", subtask.start_delay_ms
    yield "align", subtask.alignment_ms
    yield "sync", subtask.sync_ms
    yield "async", subtask.async_ms


def tooltip(checkpoint: CheckpointStatus) -> str:
    return _tooltip(checkpoint, phases_of(checkpoint))


def _tooltip(checkpoint: CheckpointStatus, phases: Sequence[tuple[str, float]]) -> str:
    if checkpoint.outcome != COMPLETE:
        why = f": {checkpoint.reason[:120]}" if checkpoint.reason else ""
        return f"checkpoint {checkpoint.checkpoint} {checkpoint.outcome} after {duration(checkpoint.duration_ms)}{why}"
    parts = ", ".join(f"{NAMES[name]} {duration(took)}" for name, took in phases)
    return f"checkpoint {checkpoint.checkpoint}: {duration(checkpoint.duration_ms)}{f' ({parts})' if parts else ''}"


def strip(history: Sequence[CheckpointStatus], link: str, events: Sequence[EventView] = ()) -> Markup:
    """`link`: address without the checkpoint's number; empty: no links.

    `events`: marks above the first checkpoint triggered after each.
    """
    shown = history[-100:]
    phases = [phases_of(each) for each in shown]
    known = [total for total in (sum(took for _, took in each) for each in phases) if total > 0]
    if not known:
        return Markup("")
    top = min(max(known), _CLIPPED_AT * max(1.0, median(known)))
    step = (_WIDTH - _LEFT) / max(20, len(shown))
    out = [
        Markup('<svg class="chart strip" viewBox="0 0 {} {}" role="{}" aria-label="{}">').format(
            _WIDTH,
            _HEIGHT,
            "group" if link else "img",
            f"the last {len(shown)} checkpoints, their phases stacked; longest {duration(max(known))}",
        )
    ]
    at_end = Markup("")
    for tick in duration_ticks(top, 3):
        y = _BASE - tick / top * (_BASE - _TOP - 14)
        if tick > top:
            continue
        out.append(
            Markup(
                '<path class="grid" d="M{0} {2:.1f}H{1}"/><text class="axis" x="{3}" y="{4:.1f}" text-anchor="end">{5}'
                "</text>"
            ).format(_LEFT, _WIDTH, y, _LEFT - 6, y + 4, duration(tick) if tick else "0")
        )
        if tick:
            at_end += Markup('<text class="axis at-end" x="{}" y="{:.1f}" text-anchor="end">{}</text>').format(
                _WIDTH - 2, y - 4, duration(tick)
            )
    out += _bars(phases, step, top)
    out.append(at_end)
    for index, checkpoint in enumerate(shown):
        x = _LEFT + index * step
        title = escape(_tooltip(checkpoint, phases[index]))
        hit = f'<title>{title}</title><path class="hit" d="M{x:.1f} 0h{step:.1f}v{_BASE}h-{step:.1f}z"/>'
        number = checkpoint.checkpoint
        out.append(Markup(f'<a class="bar" href="{escape(link)}{number}">{hit}</a>' if link else f"<g>{hit}</g>"))
        if index == 0 or index == len(shown) - 1 or (checkpoint.checkpoint % 20 == 0 and 3 < index < len(shown) - 4):
            out.append(
                Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                    min(x + step / 2, _WIDTH - 2),
                    _BASE + 18,
                    "end" if index > 3 and index == len(shown) - 1 else "middle",
                    checkpoint.checkpoint,
                )
            )
    out += _marks(shown, events, step)
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _marks(shown: Sequence[CheckpointStatus], events: Sequence[EventView], step: float) -> Iterator[Markup]:
    triggered = [each.triggered_ms for each in shown]
    at: dict[int, int] = {}  # events drawn
    for event in reversed(events):  # oldest first
        index = bisect_left(triggered, event.at_ms)
        if index == 0 and event.at_ms < triggered[0]:
            continue  # before all displayed checkpoints
        row = at[index] = at.get(index, -1) + 1
        x = _LEFT + index * step
        yield Markup(
            '<g class="m-{0}"><title>{1}</title><path class="line" d="M{2:.1f} {3}V{4}"/>'
            '<path d="M{2:.1f} {5}l5 5l-5 5l-5 -5z"/></g>'
        ).format(event.kind, event.what, x, _TOP + 12 * row, _BASE, _TOP - 14 + 12 * row)


def _bars(phases: Sequence[Sequence[tuple[str, float]]], step: float, top: float) -> Iterator[Markup]:
    """Draws a path per stage: 800 rectangles would be most of the page."""
    paths: dict[str, list[str]] = {}
    for index, parts in enumerate(phases):
        x, y = _LEFT + (index + 0.1) * step, float(_BASE)
        total = sum(took for _, took in parts)
        scale = (_BASE - _TOP - 14) / max(total, top)  # clipped, in proportion
        for name, took in parts:
            height = max(took * scale, 0.4)
            y -= height
            paths.setdefault(name, []).append(f"M{x:.1f} {y:.1f}h{step * 0.8:.1f}v{height:.1f}h-{step * 0.8:.1f}z")
        if total > top:
            yield Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="middle">▲</text>').format(
                x + step * 0.4, _TOP + 11
            )
    for name, path in paths.items():
        yield Markup('<path class="p-{}" d="{}"/>').format(name, "".join(path))


def subtasks(checkpoint: CheckpointStatus, operators: dict[int, str]) -> Markup:
    """Draws a line per subtask, slowest first. `operators`: names by chain."""
    if not checkpoint.subtasks:
        return Markup("")
    names = [
        shortened(f"{each.chain}/{each.subtask} {operators.get(each.chain, '')}", 44) for each in checkpoint.subtasks
    ]
    left, width, row = 12 + round(_CHARACTER * max(map(len, names))), 1000, 20
    longest = max(1.0, *(float(each.ack_ms) for each in checkpoint.subtasks))
    scale = (width - left - 70) / longest
    height = row * len(checkpoint.subtasks) + 24
    out = [
        Markup('<svg class="chart subtasks" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            width, height, f"phases of {counted(len(checkpoint.subtasks), 'subtask')}, the slowest first"
        )
    ]
    for index, (each, name) in enumerate(zip(checkpoint.subtasks, names, strict=True)):
        y = index * row + 2
        parts = ", ".join(f"{NAMES[phase]} {duration(took)}" for phase, took in _of_subtask(each))
        out.append(
            Markup('<g><title>{}</title><text class="label" x="0" y="{}">{}</text>').format(
                f"{name}: {parts}, ack after {duration(each.ack_ms)}", y + 13, name
            )
        )
        x, end = float(left), left + each.ack_ms * scale
        for phase, took in _of_subtask(each):
            wide = max(0.0, min(took * scale, end - x))
            if wide > 0:
                out.append(
                    Markup('<rect class="p-{}" x="{:.1f}" y="{}" width="{:.1f}" height="14"/>').format(
                        phase, x, y + 2, wide
                    )
                )
            x += wide
        if end > x:
            out.append(
                Markup('<rect class="p-acks" x="{:.1f}" y="{}" width="{:.1f}" height="14"/>').format(x, y + 2, end - x)
            )
        out.append(
            Markup('<text class="axis" x="{:.1f}" y="{}">{}</text></g>').format(end + 5, y + 13, duration(each.ack_ms))
        )
    out.append(Markup('<text class="axis" x="{}" y="{}">trigger</text></svg>').format(left, height - 6))
    return Markup("").join(out)


_WIDE, _NARROW = 1000, 340
_NAMES, _RIGHT = 96, 12
_ROW, _BAR = 26, 16
_NARROWEST = 4.0
_REASON = 160  # the table below has all


def timeline(status: JobStatus, events: Sequence[EventView], now_ms: int) -> Markup:
    """Draws two widths, of which style sheets show the fitting."""
    return _drawn(status, events, now_ms, _WIDE) + _drawn(status, events, now_ms, _NARROW)


def _drawn(status: JobStatus, events: Sequence[EventView], now_ms: int, width: int) -> Markup:
    history = status.checkpoints.history
    times = [each.triggered_ms for each in history]
    times += [each.at_ms for each in events] + [each.at_ms for each in status.failures]
    times = [at for at in times if 0 < at <= now_ms]
    if not times:
        return Markup("")
    ends = [each.triggered_ms + each.duration_ms for each in history] + [_end(each) for each in events]
    first, last = min(times), now_ms if status.outcome is None else max(*times, *ends, *times)
    span = max(1_000, last - first)

    def x(at_ms: int) -> float:
        return _NAMES + (width - _NAMES - _RIGHT) * min(1.0, max(0.0, (at_ms - first) / span))

    rows: list[tuple[str, Markup]] = []
    if status.failures:
        rows.append(("failures", _failures(status, x)))
    for kind, name in EVENT_KINDS.items():
        of_kind = [each for each in events if each.kind == kind]
        if of_kind:
            rows.append((name, Markup("").join(_mark(each, x, last, width - _RIGHT) for each in reversed(of_kind))))
    if history:
        rows.append(("checkpoints", _checkpoints(history, x, width == _WIDE)))
    height = _ROW * len(rows) + 26
    counts = ", ".join(f"{name}" for name, _ in rows)
    out = [
        Markup('<svg class="chart timeline{}" viewBox="0 0 {} {}" role="img" aria-label="{}">').format(
            " narrow" if width == _NARROW else " broad",
            width,
            height,
            f"events since {time_of_day(first)} UTC, a row each for {counts}",
        )
    ]
    for index, (name, marks) in enumerate(rows):
        middle = index * _ROW + _ROW // 2
        out.append(
            Markup('<text class="axis" x="0" y="{}">{}</text><path class="grid" d="M{} {}H{}"/>').format(
                middle + 4, name, _NAMES, middle, width - _RIGHT
            )
        )
        out.append(Markup('<g transform="translate(0 {})">{}</g>').format(middle, marks))
    for at_ms, label in time_ticks(first, first + span, 8 if width == _WIDE else 3):
        at = x(at_ms)
        anchor = "start" if at < _NAMES + 28 else "end" if at > width - 40 else "middle"
        out.append(
            Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                at, height - 6, anchor, label
            )
        )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _end(event: EventView) -> int:
    return event.at_ms + (event.took_ms or 0)


def _mark(event: EventView, x: Callable[[int], float], last_ms: int, right: int) -> Markup:
    took = "" if event.took_ms is None else f", took {duration(event.took_ms)}"
    title = f"{time_of_day(event.at_ms)} {event.what}{took}{': ' if event.why else ''}{event.why[:_REASON]}"
    if event.took_ms is None and event.kind == "takeover":
        shape = Markup('<path d="M{:.1f} -9l7 9l-7 9l-7 -9z"/>').format(x(event.at_ms))
    else:  # open until now
        end = x(last_ms if event.took_ms is None else _end(event))
        begin = min(x(event.at_ms), right - _NARROWEST)
        wide = max(_NARROWEST, end - begin)
        shape = Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" rx="2"/>').format(
            begin, -_BAR // 2, wide, _BAR
        )
    return Markup('<g class="m-{}"><title>{}</title>{}</g>').format(event.kind, title, shape)


def _failures(status: JobStatus, x: Callable[[int], float]) -> Markup:
    return Markup("").join(
        Markup('<g class="m-failure"><title>{}</title><path d="M{:.1f} -8l8 15h-16z"/></g>').format(
            f"{time_of_day(each.at_ms)} slot {each.slot} {each.operator}: {each.error[:_REASON]}",
            x(each.at_ms),
        )
        for each in status.failures
    )


def _checkpoints(history: Sequence[CheckpointStatus], x: Callable[[int], float], titled: bool) -> Markup:
    done = "".join(f"M{x(each.triggered_ms):.1f} -6v12" for each in history if each.outcome == "complete")
    if not titled:
        lost = "".join(f"M{x(each.triggered_ms):.1f} -9v18" for each in history if each.outcome != "complete")
        return Markup('<path class="t-done" d="{}"/><path class="t-failed" d="{}"/>').format(done, lost)
    failed = (
        Markup('<path class="t-failed" d="M{:.1f} -9v18"><title>{}</title></path>').format(
            x(each.triggered_ms), f"{time_of_day(each.triggered_ms)} checkpoint {each.checkpoint} {each.outcome}"
        )
        for each in history
        if each.outcome != "complete"
    )
    return Markup('<path class="t-done" d="{}"/>').format(done) + Markup("").join(failed)
