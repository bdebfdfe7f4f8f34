"""Functions known by Spark's name alone, however they are parsed, and functions of dates."""

import datetime
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import Argument, Made, Unfit
from barrier_runtime.data.sql.casts import cast
from barrier_runtime.data.sql.collections import COLLECTIONS
from barrier_runtime.data.sql.functions import date_format, extract, time_of
from barrier_runtime.data.sql.kernels import TIME_PARTS, call, kernel, value_kernel
from barrier_runtime.data.sql.numbers import NUMBERS
from barrier_runtime.data.sql.text_functions import TEXT_FUNCTIONS

# Functions of dates, and of moments as numbers since 1970.

_UTC = pa.timestamp("us", "UTC")
_SECONDS = "yyyy-MM-dd HH:mm:ss"
_DIGITS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_TRUNCATED = {
    **dict.fromkeys(("year", "yyyy", "yy"), "year"),
    **dict.fromkeys(("month", "mon", "mm"), "month"),
    **dict.fromkeys(("quarter", "week"), ""),
}


def _day(value: Argument) -> Made:
    return value.made if pa.types.is_date32(value.type) else cast(value, pa.date32())


def _days(value: Argument) -> Made:
    return _day(value).cast(pa.int32())


def _moment(value: Argument) -> Made:
    return time_of(value).cast(_UTC)


def _whole(value: Argument, what: str) -> Made:
    if not pa.types.is_integer(value.type):
        raise Unfit(f"{what} is a whole number, and this is {value.type}: CAST it")
    return value.made.cast(pa.int64())


def _time_at(per_second: int) -> Callable[[Argument], Made]:
    def made(number: Argument) -> Made:
        whole = _whole(number, "a moment since 1970")
        return pc.multiply_checked(whole, pc.scalar(pa.scalar(1_000_000 // per_second, pa.int64()))).cast(_UTC)

    return made


def _since_1970(unit: str, arrow: str) -> Callable[[Argument], Made]:
    def made(time: Argument) -> Made:
        moment = _moment(time)
        floored = moment if unit == "microsecond" else pc.floor_temporal(moment, unit=unit)
        return floored.cast(pa.timestamp(arrow, "UTC")).cast(pa.int64())

    return made


_seconds_of = _since_1970("second", "s")


def _unix_timestamp(time: Argument, pattern: Argument | None = None) -> Made:
    if not pa.types.is_string(time.type):
        return pc.divide(_moment(time).cast(pa.int64()), pc.scalar(1_000_000))  # towards zero, as in Spark
    wanted = _SECONDS if pattern is None else str(pattern.constant("the pattern"))
    return _seconds_of(Argument(_read(time, wanted), _UTC, False, None))


def _from_unixtime(seconds: Argument, pattern: Argument | None = None) -> Made:
    wanted = pattern or Argument(pc.scalar(_SECONDS), pa.string(), True, _SECONDS)
    return date_format(Argument(_time_at(1)(seconds), _UTC, False, None), wanted)


def _to_timestamp(text: Argument, pattern: Argument | None = None) -> Made:
    if pattern is None or not pa.types.is_string(text.type):
        return cast(text, pa.timestamp("us"))
    return _read(text, str(pattern.constant("the pattern"))).cast(pa.timestamp("us"))


def _to_date(text: Argument, pattern: Argument | None = None) -> Made:
    if pattern is None or not pa.types.is_string(text.type):
        return _day(text)
    return _read(text, str(pattern.constant("the pattern"))).cast(pa.date32())


def _read(text: Argument, pattern: str) -> Made:
    rest = pattern
    for part in TIME_PARTS:
        rest = rest.replace(part, "", 1)
    if rest == pattern or any(sign.isalpha() or sign in "'[]{}#" for sign in rest):
        raise Unfit(f"the pattern is {pattern!r}; one of {', '.join(TIME_PARTS)} and signs between them")
    written = Argument(pc.scalar(pattern), pa.string(), True, pattern)
    return call("time_by_pattern", _UTC, text, written)


def _time_by_pattern(text: str, pattern: str) -> datetime.datetime:
    form = pattern.replace("%", "%%")
    for part in TIME_PARTS:
        form = form.replace(part, _DIGITS[part], 1)
    try:
        if len(text) != len(pattern):
            raise ValueError
        found = datetime.datetime.strptime(text, form)
    except ValueError as error:
        raise pa.ArrowInvalid(f"{text!r} is not a time of the form {pattern!r}") from error
    known = found if "yyyy" in pattern else found.replace(year=1970)
    return known.replace(tzinfo=datetime.timezone.utc)


value_kernel("time_by_pattern", _time_by_pattern)


@kernel("add_months")
def _months_added(kind: pa.DataType, days: pa.Array, months: pa.Array) -> pa.Array:
    """Same day of another month, or the last day of a shorter month."""
    known = pc.and_(days.is_valid(), months.is_valid()).to_numpy(zero_copy_only=False)
    dates = days.cast(pa.int32()).fill_null(0).to_numpy(zero_copy_only=False).astype("datetime64[D]")
    begin = dates.astype("datetime64[M]")
    target = begin + months.fill_null(0).to_numpy(zero_copy_only=False)
    last = (target + 1).astype("datetime64[D]") - np.timedelta64(1, "D")
    moved = np.minimum(target.astype("datetime64[D]") + (dates - begin.astype("datetime64[D]")), last)
    return pa.array(moved.astype(np.int64).astype(np.int32), pa.int32(), mask=~known).cast(pa.date32())


def _add_months(day: Argument, months: Argument) -> Made:
    number = Argument(_whole(months, "the number of months"), pa.int64(), False, None)
    return call("add_months", pa.date32(), Argument(_day(day), pa.date32(), False, None), number)


def _last_day(day: Argument) -> Made:
    begin = Argument(pc.floor_temporal(_day(day), unit="month").cast(pa.date32()), pa.date32(), False, None)
    following = call("add_months", pa.date32(), begin, Argument(pc.scalar(1), pa.int64(), True, 1))
    return pc.subtract(following.cast(pa.int32()), pc.scalar(pa.scalar(1, pa.int32()))).cast(pa.date32())


def _trunc(day: Argument, unit: Argument) -> Made:
    name = str(unit.constant("the unit")).lower()
    if name not in _TRUNCATED:
        raise Unfit(f"the unit is {name}; one of year, quarter, month, week")
    return pc.floor_temporal(_day(day), unit=_TRUNCATED[name] or name).cast(pa.date32())


def _shifted(sign: int) -> Callable[[Argument, Argument], Made]:
    def made(day: Argument, count: Argument) -> Made:
        days = _whole(count, "the number of days").cast(pa.int32())
        change = pc.add_checked if sign > 0 else pc.subtract_checked
        return change(_days(day), days).cast(pa.date32())

    return made


# as in `named.NAMED`
CALENDAR: dict[str, tuple[int, int | None, Callable[..., Made]]] = {
    "add_months": (2, 2, _add_months),
    "date_add": (2, 2, _shifted(1)),
    "date_from_unix_date": (1, 1, lambda days: _whole(days, "a number of days").cast(pa.int32()).cast(pa.date32())),
    "date_part": (2, 2, extract),
    "date_sub": (2, 2, _shifted(-1)),
    "datediff": (2, 2, lambda end, start: pc.subtract(_days(end), _days(start))),
    "dayofweek": (1, 1, lambda day: pc.day_of_week(_day(day), count_from_zero=False, week_start=7)),
    "dayofyear": (1, 1, lambda day: pc.day_of_year(_day(day))),
    "from_unixtime": (1, 2, _from_unixtime),
    "last_day": (1, 1, _last_day),
    "timestamp_micros": (1, 1, _time_at(1_000_000)),
    "timestamp_millis": (1, 1, _time_at(1_000)),
    "timestamp_seconds": (1, 1, _time_at(1)),
    "to_date": (1, 2, _to_date),
    "to_timestamp": (1, 2, _to_timestamp),
    "to_unix_timestamp": (1, 2, _unix_timestamp),
    "trunc": (2, 2, _trunc),
    "unix_date": (1, 1, _days),
    "unix_micros": (1, 1, _since_1970("microsecond", "us")),
    "unix_millis": (1, 1, _since_1970("millisecond", "ms")),
    "unix_seconds": (1, 1, _seconds_of),
    "unix_timestamp": (1, 2, _unix_timestamp),
    "weekday": (1, 1, lambda day: pc.day_of_week(_day(day))),
    "weekofyear": (1, 1, lambda day: pc.iso_week(_day(day))),
}


# name -> least and greatest number of arguments, and the function that makes the expression
NAMED: dict[str, tuple[int, int | None, Callable[..., Made]]] = {**CALENDAR, **COLLECTIONS, **NUMBERS, **TEXT_FUNCTIONS}
OTHER_NAMES = {"char": "chr", "date_diff": "datediff", "datepart": "date_part"}
NEVER_FAIL = frozenset({"array_contains", "concat_ws", "from_json", "get", "get_json_object", "isnotnull", "isnull"})
NEVER_FAIL |= {"map_keys", "map_values", "md5", "nvl2", "regexp_extract", "sha1", "sha2", "size", "split", "to_json"}
