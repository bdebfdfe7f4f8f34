"""What happened to a job, on one axis of time, as SVG: a row per kind of event, below them the checkpoints. Pure.

The axis begins with the oldest thing that is known of the job and ends now (with the run, if it has ended). An event is
as wide as it took; what took no time is a diamond. Only rows that have something are drawn. It is drawn twice: for a
narrow screen all of it fits, because what has happened must not be out of view.
"""

from collections.abc import Callable, Sequence

from markupsafe import Markup

from barrier_runtime.coordinator.page.figures import duration, time_of_day
from barrier_runtime.coordinator.page.job_view import KINDS, EventView
from barrier_runtime.coordinator.status.status import CheckpointStatus, JobStatus

_WIDE, _NARROW = 1000, 340
_LEFT, _RIGHT = 96, 12
_ROW, _BAR = 26, 16
_NARROWEST = 4.0
_TOLD = 160  # characters of a reason: the table below has it whole


def timeline(status: JobStatus, events: Sequence[EventView], now_ms: int) -> Markup:
    """Empty if nothing is known. Style sheets show one of the two."""
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
        return _LEFT + (width - _LEFT - _RIGHT) * min(1.0, max(0.0, (at_ms - first) / span))

    rows: list[tuple[str, Markup]] = []
    if status.failures:
        rows.append(("failures", _failures(status, x)))
    for kind, name in KINDS.items():
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
                middle + 4, name, _LEFT, middle, width - _RIGHT
            )
        )
        out.append(Markup('<g transform="translate(0 {})">{}</g>').format(middle, marks))
    parts = 4 if width == _WIDE else 1
    for part in range(parts + 1):
        anchor = "start" if part == 0 else "end" if part == parts else "middle"
        at = _LEFT + (width - _LEFT - _RIGHT) * part / parts
        out.append(
            Markup('<text class="axis" x="{:.1f}" y="{}" text-anchor="{}">{}</text>').format(
                at, height - 6, anchor, time_of_day(round(first + span * part / parts))
            )
        )
    out.append(Markup("</svg>"))
    return Markup("").join(out)


def _end(event: EventView) -> int:
    return event.at_ms + (event.took_ms or 0)


def _mark(event: EventView, x: Callable[[int], float], last_ms: int, right: int) -> Markup:
    took = "" if event.took_ms is None else f", took {duration(event.took_ms)}"
    told = f"{time_of_day(event.at_ms)} {event.what}{took}{': ' if event.why else ''}{event.why[:_TOLD]}"
    if event.took_ms is None and event.kind == "takeover":
        shape = Markup('<path d="M{:.1f} -9l7 9l-7 9l-7 -9z"/>').format(x(event.at_ms))
    else:  # what has not ended goes on until now
        end = x(last_ms if event.took_ms is None else _end(event))
        begin = min(x(event.at_ms), right - _NARROWEST)
        wide = max(_NARROWEST, end - begin)
        shape = Markup('<rect x="{:.1f}" y="{}" width="{:.1f}" height="{}" rx="2"/>').format(
            begin, -_BAR // 2, wide, _BAR
        )
    return Markup('<g class="m-{}"><title>{}</title>{}</g>').format(event.kind, told, shape)


def _failures(status: JobStatus, x: Callable[[int], float]) -> Markup:
    return Markup("").join(
        Markup('<g class="m-failure"><title>{}</title><path d="M{:.1f} -8l8 15h-16z"/></g>').format(
            f"{time_of_day(each.at_ms)} slot {each.slot} {each.operator}: {each.error[:_TOLD]}", x(each.at_ms)
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
