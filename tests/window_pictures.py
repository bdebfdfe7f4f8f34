"""Writes docs/images/windows.svg and joins.svg: inputs of windows and joins, and outputs of the real operators.

python -m tests.window_pictures
"""

import datetime
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from barrier_runtime import CollectSink, Count, Dataflow, Session, Sliding, Tumbling, count, max_, min_

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "images"
SECOND = datetime.timedelta(seconds=1)
_LEFT, _STEP, _LAST = 130, 14, 46  # pixels before second 0, pixels of a second, the last second drawn
_INK, _IN, _RIGHT, _OUT, _FILL = "#444444", "#1f77b4", "#b45f06", "#2e7d32", "#d5e8d4"
ROWS = (2, 5, 7, 13, 15, 28, 31, 38)  # seconds of the rows of one key
LEFT_ROWS, RIGHT_ROWS = (4, 11, 22, 33), (2, 9, 13, 26, 31)

Draw = Iterable[str]


def windows() -> str:
    """Rows of the picture, one per kind of window."""
    drawn = [_axis("rows of one key", 30), *_dots(ROWS, 30, _IN)]
    top = 60
    for name, window in (
        ("Tumbling(10 s)", Tumbling(10 * SECOND)),
        ("Sliding(20 s, 10 s)", Sliding(20 * SECOND, 10 * SECOND)),
        ("Session(5 s)", Session(5 * SECOND)),
        ("Count(3)", Count(3)),
    ):
        bars = _windowed(window)
        ends: list[int] = []  # of each line of bars
        placed = []
        for start, end, rows in bars:
            line = next((number for number, last in enumerate(ends) if last <= start), len(ends))
            ends[line:] = [end, *ends[line + 1 :]]
            placed.append((line, start, end, rows))
        drawn.append(_text(8, top + 15, name))
        drawn += [_bar(start, end, top + 24 * line, str(rows)) for line, start, end, rows in placed]
        top += 24 * max(1, len(ends)) + 14
    return _svg(top, "Windows over the same rows; each bar is a result, with its number of rows", drawn)


def joins() -> str:
    drawn: list[str] = []
    top = 20
    for name, join in (
        ("between (-3 s, 3 s)", lambda a, b: a.join("j", b, between=(-3 * SECOND, 3 * SECOND), event_time="t")),
        ("Tumbling(10 s)", lambda a, b: a.window_join("j", b, Tumbling(10 * SECOND), event_time="t")),
        ("as-of", lambda a, b: a.asof_join("j", b, event_time="t", how="inner")),
    ):
        drawn += [_text(8, top + 30, name), _axis("left", top), _axis("right", top + 50)]
        for left, right in _joined(join):
            drawn.append(
                f'<line x1="{_x(left)}" y1="{top}" x2="{_x(right)}" y2="{top + 50}" stroke="{_OUT}" stroke-width="2"/>'
            )
        drawn += [*_dots(LEFT_ROWS, top, _IN), *_dots(RIGHT_ROWS, top + 50, _RIGHT)]
        top += 90
    return _svg(top, "Joins of the same two streams; each line is a result", drawn)


# ------------------------------------------------------------ outputs


def _read(flow: Dataflow, name: str, seconds: Iterable[int]) -> Any:
    rows = [{"k": 1, "t": second * 1_000} for second in seconds]
    return flow.from_iterator(
        name, lambda part, of: rows, schema={"k": int, "t": int}, splits=1, event_time="t"
    ).key_by("k")


def _windowed(window: Any) -> list[tuple[int, int, int]]:
    """(start, end, rows) of each result; a window by count spans from its first row to its last row."""
    flow, out = Dataflow("picture"), CollectSink()
    timed = {} if isinstance(window, Count) else {"event_time": "t"}
    results = _read(flow, "rows", ROWS).window("w", window, **timed).aggregate(n=count(), low=min_("t"), high=max_("t"))
    results.sink("out", out)
    flow.run_local(parallelism=1)
    found = []
    for row in out.rows():
        if "window_start" in row:
            span = [int(row[name].timestamp()) for name in ("window_start", "window_end")]
        else:
            span = [row["low"] // 1_000, row["high"] // 1_000]
        found.append((span[0], span[1], row["n"]))
    return sorted(found)


def _joined(join: Callable[[Any, Any], Any]) -> list[tuple[int, int]]:
    flow, out = Dataflow("picture"), CollectSink()
    join(_read(flow, "left", LEFT_ROWS), _read(flow, "right", RIGHT_ROWS)).sink("out", out)
    flow.run_local(parallelism=1)
    return sorted((row["t"] // 1_000, row["t_right"] // 1_000) for row in out.rows())


# ------------------------------------------------------------ layout


def _x(second: int) -> int:
    return _LEFT + _STEP * second


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" fill="{_INK}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis(name: str, y: int) -> str:
    return _text(_LEFT - 14, y + 4, name, "end") + (
        f'<line x1="{_x(0)}" y1="{y}" x2="{_x(_LAST)}" y2="{y}" stroke="{_INK}"/>'
    )


def _dots(seconds: Iterable[int], y: int, color: str) -> Draw:
    for second in seconds:
        yield f'<circle cx="{_x(second)}" cy="{y}" r="5" fill="{color}"/>'


def _bar(start: int, end: int, y: int, text: str) -> str:
    first, last = max(start, 0), min(end, _LAST)
    middle = (_x(first) + _x(last)) // 2
    return (
        f'<rect x="{_x(first)}" y="{y}" width="{max(8, _STEP * (last - first) - 2)}" height="20" rx="4" '
        f'fill="{_FILL}" stroke="{_OUT}"/>' + _text(middle, y + 15, text, "middle")
    )


def _svg(height: int, title: str, drawn: Iterable[str]) -> str:
    width = _x(_LAST) + 20
    body = "\n".join(drawn)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><title>{escape(title)}</title>\n<rect width="{width}" height="{height}" fill="white"/>\n'
        f"{body}\n</svg>\n"
    )


PICTURES = {"windows.svg": windows, "joins.svg": joins}


def main() -> None:
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw())


if __name__ == "__main__":
    main()
