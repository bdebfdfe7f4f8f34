"""Figures for people: durations, sizes, counts, times of day. Pure; an unknown figure is an en dash."""

import datetime

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
    """Formats a count: `1,234,567`; below ten with a decimal."""
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
    """Formats a share of 0 to 1."""
    return ABSENT if part is None else f"{100 * part:.0f} %"


def _utc(ms: int | None) -> datetime.datetime | None:
    if ms is None or not 0 < ms < _FAR_MS:
        return None
    return datetime.datetime.fromtimestamp(ms / 1000, datetime.timezone.utc)


def time_of_day(ms: int | None) -> str:
    """Formats a time in UTC: `14:05:09`."""
    at = _utc(ms)
    return ABSENT if at is None else at.strftime("%H:%M:%S")


def day_and_time(ms: int | None) -> str:
    """Formats a time in UTC: `2026-03-01 14:05:09`."""
    at = _utc(ms)
    return ABSENT if at is None else at.strftime("%Y-%m-%d %H:%M:%S")


def machine_time(ms: int | None) -> str:
    """Formats a time for the attribute `datetime`."""
    at = _utc(ms)
    return "" if at is None else at.strftime("%Y-%m-%dT%H:%M:%SZ")
