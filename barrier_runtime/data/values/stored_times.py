"""Arrow's stored numbers of times, from values and text, exact to the nanosecond.

Text is in the forms of RFC 3339 and ISO 8601: `2024-02-29T23:59:59.999Z` (without zone: UTC), `23:59:59.5`,
`2024-02-29`, `P1DT2H3.5S`. Digits below the column's unit must be zeros.
"""

import datetime
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

NS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}  # per unit
_DAY_NS = 86_400_000_000_000
_NUMPY_NS = {"W": 7 * _DAY_NS, "D": _DAY_NS, "h": 3_600 * NS["s"], "m": 60 * NS["s"], **NS}
_NUMPY_PARTS = {"ps": 10**3, "fs": 10**6, "as": 10**9}  # per nanosecond
_MICROSECOND = datetime.timedelta(microseconds=1)
_EPOCH = datetime.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=datetime.timezone.utc)
_from_iso = datetime.datetime.fromisoformat
_ZERO = datetime.timedelta(0)
_FIRST_DAY = datetime.date(1970, 1, 1).toordinal()

_DAYS_OF_CYCLE = 146_097  # 400 years
_DATE = r"(\d{4,6})-(\d\d)-(\d\d)"
_CLOCK = r"(\d\d):(\d\d):(\d\d)(?:\.(\d+))?"
_SHORT_CLOCK = r"(\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?"
_ZONE = r"([Zz]|[+-]\d\d(?::?\d\d)?)?"
_MOMENT_TEXT = re.compile(f"{_DATE}[Tt ]{_SHORT_CLOCK}{_ZONE}", re.ASCII)
_DATE_TEXT = re.compile(_DATE, re.ASCII)
_CLOCK_TEXT = re.compile(_CLOCK + _ZONE, re.ASCII)
_DURATION_TEXT = re.compile(r"([+-]?)P(?=[\dT])((?:\d+(?:\.\d+)?[WD])*)(?:T((?:\d+(?:\.\d+)?[HMS])+))?", re.ASCII)
_DURATION_PART = re.compile(r"(\d+)(?:\.(\d+))?([WDHMS])")
_DURATION_NS = {"W": 7 * _DAY_NS, "D": _DAY_NS, "H": 3_600 * NS["s"], "M": 60 * NS["s"], "S": NS["s"]}


class Stored(NamedTuple):
    """A kind of time.
    `nanoseconds(value, kind)`: the exact number, or None; an integer is in the column's unit.
    """

    python: type
    nanoseconds: Callable[[Any, pa.DataType], int | None]
    in_microseconds: Callable[[pa.DataType], pa.DataType | None]


class UnreadTime(ValueError):
    """A text that a column of times does not keep. `why` and `remedy` as in `RefusedValue`."""

    def __init__(self, text: str, why: str, remedy: str = "") -> None:
        super().__init__(f"{text!r} is not kept: {why}{': ' if remedy else ''}{remedy}")
        self.why = why
        self.remedy = remedy


def rounded_down(times: pa.Array, unit: str) -> pa.Array:
    """Timestamps in `unit`, rounded down: Arrow's cast rounds to 1970. Raises `pa.ArrowInvalid` beyond 64 bits."""
    kind, divide = pa.timestamp(unit, times.type.tz), NS[unit] // NS[times.type.unit]
    if divide <= 1:
        return times.cast(kind)
    numbers = times.view(pa.int64()).fill_null(0).to_numpy()
    return pa.array(numbers // divide, mask=times.is_null().to_numpy(zero_copy_only=False)).view(kind)


def is_time_kind(kind: pa.DataType) -> bool:
    return kind.id in STORED


def unit_ns(kind: pa.DataType) -> int:
    if pa.types.is_date(kind):
        return _DAY_NS if pa.types.is_date32(kind) else NS["ms"]
    return NS[kind.unit]


def fits_unit(nanoseconds: int, kind: pa.DataType) -> tuple[int, str, str]:
    """Stored number, or the reason and the remedy of a refusal."""
    is_date = pa.types.is_date(kind)
    number, rest = divmod(nanoseconds, unit_ns(kind))
    if is_date and nanoseconds % _DAY_NS:
        return 0, "its time of day would be cut", "give .date() of it, or declare the column as timestamp"
    if rest:
        unit = "ns" if nanoseconds % NS["us"] else "us" if nanoseconds % NS["ms"] else "ms"
        remedy = f"declare the column as {_with_unit(kind, unit)}, or round it"
        return 0, f"it has more digits than {kind.unit} has", remedy
    if pa.types.is_time(kind) and not 0 <= nanoseconds < _DAY_NS:
        return 0, "it is no time of a day", ""
    if not -(2 ** (kind.bit_width - 1)) <= number < 2 ** (kind.bit_width - 1):
        return 0, "it is out of range", "" if is_date else f"declare the column as {_with_unit(kind, 'us')}"
    return number, "", ""


def _with_unit(kind: pa.DataType, unit: str) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(unit, kind.tz)
    if pa.types.is_duration(kind):
        return pa.duration(unit)
    return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)


def stored_of_text(text: str, kind: pa.DataType) -> int:
    nanoseconds = _nanoseconds_of_text(text, kind)
    number, why, remedy = fits_unit(nanoseconds, kind)
    if why:
        raise UnreadTime(text, why, remedy)
    return number


def numbers_of_texts(texts: Sequence[str | None], kind: pa.DataType) -> list[int | None]:
    """As `stored_of_text`, for a few texts."""
    if not pa.types.is_timestamp(kind) or kind.unit != "us":
        return [None if text is None else stored_of_text(text, kind) for text in texts]
    numbers: list[int | None] = []
    for text in texts:
        quick = None if text is None else _quick_microseconds(text)
        numbers.append(stored_of_text(text, kind) if quick is None and text is not None else quick)
    return numbers


def times_of_texts(texts: Sequence[str | None], kind: pa.DataType) -> pa.Array:
    """`kind` is no date. Raises `UnreadTime`."""
    if pa.types.is_timestamp(kind):
        try:  # Arrow takes no digits below the unit, and each of these texts has a zone
            return pa.array(texts, pa.string()).cast(pa.timestamp(kind.unit, "UTC")).cast(kind)
        except pa.ArrowInvalid:
            pass
    width = pa.int32() if kind.bit_width == 32 else pa.int64()
    return pa.array(numbers_of_texts(texts, kind), width).view(kind)


def _quick_microseconds(text: str) -> int | None:
    """Microseconds of a time in UTC with at most six digits; None: needs the slower code."""
    if not 20 <= len(text) <= 27 or text[10] != "T" or text[-1] != "Z" or text[16] != ":" or text[11:13] > "23":
        return None
    if text[4] != "-" or text[7] != "-" or text[13] != ":" or text[19] not in "Z.":
        return None
    try:
        return (_from_iso(text[:-1]) - _EPOCH) // _MICROSECOND
    except ValueError:
        return None


def _nanoseconds_of_text(text: str, kind: pa.DataType) -> int:
    is_ = pa.types
    if is_.is_timestamp(kind):
        if (found := _MOMENT_TEXT.fullmatch(text)) is not None:
            return _days(text, *found.group(1, 2, 3)) * _DAY_NS + _clock(text, *found.group(4, 5, 6, 7, 8))
        raise UnreadTime(text, "it is no time as RFC 3339 has it, such as 2024-02-29T23:59:59.5Z")
    if is_.is_date(kind):
        if (found := _DATE_TEXT.fullmatch(text)) is not None:
            return _days(text, *found.group(1, 2, 3)) * _DAY_NS
        raise UnreadTime(text, "it is no date such as 2024-02-29")
    if is_.is_time(kind):
        if (found := _CLOCK_TEXT.fullmatch(text)) is not None:
            if (found[5] or "Z").strip("+-0:") not in ("", "Z", "z"):
                raise UnreadTime(text, "it has a zone, which a time of day does not keep", "give it in UTC")
            return _clock(text, *found.group(1, 2, 3, 4))
        raise UnreadTime(text, "it is no time of a day such as 23:59:59.5")
    return _duration_ns(text)


def _duration_ns(text: str) -> int:
    found = _DURATION_TEXT.fullmatch(text.upper())
    size = 0
    for whole, fraction, letter in _DURATION_PART.findall(text.upper() if found is not None else ""):
        part, rest = divmod(int(whole + fraction) * _DURATION_NS[letter], 10 ** len(fraction))
        if rest:
            raise UnreadTime(text, "it has parts of a nanosecond", "round it to nanoseconds")
        size += part
    if found is None or not (found[2] or found[3]):
        raise UnreadTime(text, "it is no duration as ISO 8601 has it, such as P1DT2H3M4.5S (W, D, H, M and S)")
    return -size if found[1] == "-" else size


def _days(text: str, year: str, month: str, day: str) -> int:
    cycles = max(0, (int(year) - 1) // 400)
    try:
        day_of_cycle = datetime.date(int(year) - 400 * cycles, int(month), int(day)).toordinal()
        return day_of_cycle + _DAYS_OF_CYCLE * cycles - _FIRST_DAY
    except ValueError as error:
        raise UnreadTime(text, f"it is no date, {error}") from None


def _clock(
    text: str,
    hour: str,
    minute: str | None,
    second: str | None,
    fraction: str | None,
    zone: str | None = None,
) -> int:
    minutes, seconds = int(minute or 0), int(second or 0)
    if int(hour) > 23 or minutes > 59 or seconds > 59:
        raise UnreadTime(text, "it is no time of a day: hours go to 23, minutes and seconds to 59")
    seconds += (int(hour) * 60 + minutes) * 60
    if zone not in (None, "Z", "z"):
        ahead_h, ahead_m = int(zone[1:3]), int(zone[3:].removeprefix(":") or 0)
        if ahead_h > 23 or ahead_m > 59:
            raise UnreadTime(text, "it has no zone such as +01:30")
        ahead = (ahead_h * 60 + ahead_m) * 60
        seconds -= ahead if zone[0] == "+" else -ahead
    return seconds * NS["s"] + _fraction_ns(text, fraction)


def _fraction_ns(text: str, digits: str | None) -> int:
    digits = (digits or "").rstrip("0")
    if len(digits) > 9:
        raise UnreadTime(text, "it has more than nine digits of a second", "round it to nanoseconds")
    return int(digits.ljust(9, "0"))


def _of_numpy(value: Any) -> int | None:
    if isinstance(value, np.datetime64) and np.datetime_data(value.dtype)[0] in ("Y", "M"):
        value = value.astype("datetime64[D]")
    unit, count = np.datetime_data(value.dtype)
    number = int(value.astype(np.int64)) * count
    if unit in _NUMPY_NS:
        return number * _NUMPY_NS[unit]
    whole, rest = divmod(number, _NUMPY_PARTS[unit]) if unit in _NUMPY_PARTS else (0, 1)
    return None if rest else whole


def _number(value: Any, kind: pa.DataType) -> int | None:
    is_number = isinstance(value, int | np.integer) and not isinstance(value, bool | np.timedelta64)
    return int(value) * unit_ns(kind) if is_number else None


def _moment(value: Any, kind: pa.DataType) -> int | None:
    if isinstance(value, datetime.datetime):
        since = value - (_EPOCH if value.utcoffset() is None else _EPOCH_UTC)
        return since // _MICROSECOND * 1_000 + getattr(value, "nanosecond", 0)
    return _of_numpy(value) if isinstance(value, np.datetime64) else _number(value, kind)


def _date(value: Any, kind: pa.DataType) -> int | None:
    if isinstance(value, datetime.datetime):
        if value.utcoffset() not in (None, _ZERO):
            return None
        return _moment(value, kind)
    if isinstance(value, datetime.date):
        return (value.toordinal() - _FIRST_DAY) * _DAY_NS
    return _of_numpy(value) if isinstance(value, np.datetime64) else _number(value, kind)


def _time_of_day(value: Any, kind: pa.DataType) -> int | None:
    if isinstance(value, datetime.time):
        if value.tzinfo is not None and value.utcoffset() != _ZERO:
            return None
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * NS["s"] + value.microsecond * 1_000
    return _number(value, kind)


def _duration(value: Any, kind: pa.DataType) -> int | None:
    if isinstance(value, datetime.timedelta):
        rest = getattr(value, "nanoseconds", 0)
        return value // _MICROSECOND * 1_000 + rest
    return _of_numpy(value) if isinstance(value, np.timedelta64) else _number(value, kind)


def _wide_timestamp(kind: pa.DataType) -> pa.DataType | None:
    return pa.timestamp("us", kind.tz) if kind.unit in ("s", "ms") else None


def _wide_duration(kind: pa.DataType) -> pa.DataType | None:
    return pa.duration("us") if kind.unit in ("s", "ms") else None


STORED: dict[int, Stored] = {
    pa.timestamp("us").id: Stored(datetime.datetime, _moment, _wide_timestamp),
    pa.date32().id: Stored(datetime.date, _date, lambda kind: None),
    pa.date64().id: Stored(datetime.date, _date, lambda kind: None),
    pa.time32("s").id: Stored(datetime.time, _time_of_day, lambda kind: pa.time64("us")),
    pa.time64("us").id: Stored(datetime.time, _time_of_day, lambda kind: None),
    pa.duration("us").id: Stored(datetime.timedelta, _duration, _wide_duration),
}
