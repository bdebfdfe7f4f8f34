"""Figures for people: durations, sizes, counts, times of day. Pure; an unknown figure is an en dash."""

import datetime
import math

ABSENT = "\u2013"
_FAR_MS = 253_402_300_799_000  # the end of year 9999: no later time of day


def duration(ms: float | None) -> str:
    """Formats milliseconds: `0.4 ms`, `12 ms`, `1.4 s`, `3 min 20 s`, `2 h 5 min`, `3 d 2 h`."""
    if ms is None:
        return ABSENT
    if ms < 0:
        return f"-{duration(-ms)}"
    if ms < 10:
        return f"{ms:.1f} ms".replace(".0 ms", " ms")
    if ms < 999.5:
        return f"{ms:.0f} ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f} s".replace(".0 s", " s")
    seconds = round(ms / 1000)
    if seconds < 3600:
        return f"{seconds // 60} min" + (f" {seconds % 60} s" if seconds % 60 else "")
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


REPLAYED_MS = 30 * 86_400_000


def lag(ms: float | None) -> str:
    """Formats a lag; above 30 days, of replayed data, as a dash."""
    return ABSENT if ms is not None and ms > REPLAYED_MS else duration(ms)


def size(count: float | None) -> str:
    """Formats bytes with decimal prefixes: `812 B`, `4.2 kB`, `1.3 GB`."""
    if count is None:
        return ABSENT
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(count) < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" or count >= 99.5 else f"{count:.1f} {unit}"


def number(count: float | None) -> str:
    if count is None:
        return ABSENT
    return f"{count:.1f}" if 0 < abs(count) < 9.95 and count != int(count) else f"{count:,.0f}"


def rate(per_s: float | None) -> str:
    return ABSENT if per_s is None else f"{number(per_s)}/s"


def dollars(amount: float) -> str:
    """Formats dollars: `$4.32`; below a dollar with two significant digits: `$0.0041`."""
    if amount >= 0.995 or amount <= 0:
        return f"${amount:,.2f}"
    digits = 2
    while digits < 9 and amount < 10.0 ** (1 - digits):
        digits += 1
    return f"${amount:.{digits}f}"


def share(part: float | None) -> str:
    return ABSENT if part is None else f"{100 * part:.0f} %"


def _utc(ms: int | None) -> datetime.datetime | None:
    if ms is None or not 0 < ms < _FAR_MS:
        return None
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc)


def time_of_day(ms: int | None) -> str:
    """Time in UTC: `14:05:09`."""
    at = _utc(ms)
    return ABSENT if at is None else at.strftime("%H:%M:%S")


def day_and_time(ms: int | None) -> str:
    """Time in UTC: `2026-03-01 14:05:09`."""
    at = _utc(ms)
    return ABSENT if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def machine_time(ms: int | None) -> str:
    """For the attribute `datetime`."""
    at = _utc(ms)
    return "" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")


_DAY_MS = 86_400_000
_ROUND_MS = (
    *(base * 10**power for power in (0, 1, 2) for base in (1, 2, 5)),
    *(1_000 * seconds for seconds in (1, 2, 5, 10, 15, 30)),
    *(60_000 * minutes for minutes in (1, 2, 5, 10, 15, 30)),
    *(3_600_000 * hours for hours in (1, 2, 3, 6, 12)),
    *(_DAY_MS * days for days in (1, 2, 7, 14, 30, 90, 365)),
)


def duration_ticks(highest_ms: float, most: int = 4) -> list[float]:
    return _ticks(next((step for step in _ROUND_MS if step * most >= highest_ms), highest_ms / most), highest_ms)


def count_ticks(highest: float, most: int = 4) -> list[float]:
    """Round numbers (1, 2, 5 and their tenfolds) from 0 to the first that reaches `highest`."""
    steps = (base * 10.0**power for power in range(-3, 18) for base in (1, 2, 5))
    return _ticks(next((step for step in steps if step * most >= highest), highest / most), highest)


def _ticks(step: float, highest: float) -> list[float]:
    return [step * index for index in range(max(1, math.ceil(highest / step)) + 1)]


def time_ticks(first_ms: int, last_ms: int, most: int) -> list[tuple[int, str]]:
    span = max(1, last_ms - first_ms)
    step = next((each for each in _ROUND_MS if each >= 1_000 and span // each < most), span)
    first = -(-first_ms // step) * step
    pattern = "%H:%M:%S" if step < 60_000 else "%H:%M" if step < _DAY_MS else "%Y-%m-%d"
    times = ((at_ms, _utc(at_ms)) for at_ms in range(first, last_ms + 1, step))
    return [(at_ms, at.strftime(pattern)) for at_ms, at in times if at is not None]


def short(count: float) -> str:
    """Formats a number for an axis: `500`, `1.5k`, `20k`, `3M`."""
    for factor, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= factor:
            return f"{count / factor:.3g}{letter}"
    return f"{count:.3g}"
