"""Reads times, dates and decimals from text, and writes decimals as text, as in Spark.

A pickled expression has only these functions' names, so names and meanings never change.
"""

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.sql.arguments import MOST_DIGITS, Argument, Made, Unfit

_TIME, _DAY, _DECIMAL, _PLAIN = (
    f"barrier_runtime.{name}" for name in ("time_of_text", "day_of_text", "decimal_of_text", "plain_text")
)
_MICROSECONDS = pa.timestamp("us")
_UTC = pa.timestamp("us", "UTC")
_PER_UNIT = {"s": 1_000_000, "ms": 1_000}  # microseconds
_REMEDY = "write '2026-01-31', '2026-01-31 12:00:00' or '2026-01-31T12:00:00+02:00'"
WIDE = pa.decimal256(2 * MOST_DIGITS, MOST_DIGITS)  # holds every decimal
_HALF = pa.decimal128(MOST_DIGITS, MOST_DIGITS // 2)
_IN_HALF = 1e18  # with one digit to spare for rounding
_TRIED = 16
_DIGITS = Context(prec=2 * MOST_DIGITS)
_WRITTEN_PLAINLY = range(7)  # digits after the point for which Arrow writes no exponent


def time_of_text(text: Made) -> Made:
    """Reads times without a zone as UTC."""
    return _call(_TIME, pc.utf8_trim(text, " "))


def day_of_text(text: Made) -> Made:
    """Keeps dates as written, whatever their zone."""
    return _call(_DAY, pc.utf8_trim(text, " "))


def decimal_of_text(text: Made, scale: int) -> Made:
    return _call(f"{_DECIMAL}.{scale}", pc.utf8_trim(text, " "))


def text_of(argument: Argument) -> Made:
    """Decimals have all their digits: `0.00000012`."""
    if pa.types.is_string(argument.type):
        return argument.made
    text = argument.made.cast(pa.string())
    if pa.types.is_decimal(argument.type) and argument.type.scale not in _WRITTEN_PLAINLY:
        return _call(_PLAIN, text)
    return text


def time_constant(text: str, kind: pa.DataType) -> pa.Scalar:
    """Returns microseconds if the unit of `kind` is too coarse."""
    try:
        trimmed = pa.array([text.strip()])
        if pa.types.is_date(kind):
            return _days(None, trimmed).cast(kind)[0]
        time = _times(None, trimmed).cast(pa.timestamp("us", kind.tz))
    except pa.ArrowInvalid as error:
        raise Unfit(f"{text!r} is not a time: {_REMEDY}") from error
    if time.view(pa.int64())[0].as_py() % _PER_UNIT.get(kind.unit, 1):
        return time[0]
    try:
        return time.cast(kind)[0]
    except pa.ArrowInvalid as error:
        raise Unfit(f"{text!r} is beyond {kind}: CAST the time beside it AS TIMESTAMP") from error


def _call(name: str, column: Made) -> Made:
    return pc.Expression._call(name, [column])


def _cast(text: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Returns None if a value does not fit. Tries a few values first."""
    try:
        text.slice(0, _TRIED).cast(kind)
        return text.cast(kind)
    except pa.ArrowInvalid:
        return None


def _times(context: Any, text: Any) -> pa.Array:
    for kind in (_MICROSECONDS, _UTC):
        if (read := _cast(text, kind)) is not None:
            return read.cast(_MICROSECONDS)
    text = pc.replace_substring_regex(text, r"(:\d\d\.\d{6})\d+", r"\1")
    text = pc.replace_substring_regex(text, r"^(.*:.*?) ?(?:Z|UTC|GMT)$", r"\1Z")
    text = pc.replace_substring_regex(text, r"^(.*:.*?) ([+-]\d\d(?::?\d\d)?)$", r"\1\2")
    zoned = pc.match_substring_regex(text, r"[T ]\d\d.*(?:Z|[+-]\d\d(?::?\d\d)?)$")
    nothing = pa.scalar(None, pa.string())
    try:
        utc = pc.if_else(zoned, text, nothing).cast(_UTC).cast(_MICROSECONDS)
        return pc.coalesce(utc, pc.if_else(zoned, nothing, text).cast(_MICROSECONDS))
    except pa.ArrowInvalid as error:
        raise _no_time(error) from error


def _days(context: Any, text: Any) -> pa.Array:
    """Text after a date is ignored, unless the whole is a time."""
    if (read := _cast(text, _MICROSECONDS)) is not None:
        return read.cast(pa.date32())
    try:
        return pc.replace_substring_regex(text, r"^(\d{4}-\d\d-\d\d)[T ].*$", r"\1").cast(pa.date32())
    except pa.ArrowInvalid as error:
        raise _no_time(error) from error


def _no_time(error: pa.ArrowInvalid) -> pa.ArrowInvalid:
    return pa.ArrowInvalid(f"{str(error).partition(': expected')[0].rstrip('.')}: {_REMEDY}")


def _decimals(scale: int, context: Any, text: Any) -> pa.Array:
    """Finds large values as doubles, and rounds long values first: Arrow misreads too many digits."""
    kind = pa.decimal128(MOST_DIGITS, scale)
    try:
        largest = pc.max(pc.abs(text.cast(pa.float64()))).as_py() or 0.0
    except pa.ArrowInvalid as error:
        raise pa.ArrowInvalid(str(error).replace("double", str(kind))) from error
    if largest > 1.5 * 10.0 ** (MOST_DIGITS - scale):
        raise pa.ArrowInvalid(f"{largest:g} has more digits than {kind}")
    if (pc.max(pc.binary_length(text)).as_py() or 0) > MOST_DIGITS:
        long = pc.greater(pc.binary_length(text), MOST_DIGITS).fill_null(False)
        rounded = pa.array([_rounded(each, scale) for each in text.filter(long).to_pylist()], pa.string())
        text = pc.replace_with_mask(text, long, rounded)
    if (made := _cast(text, kind)) is not None:
        return made
    if largest < _IN_HALF and scale < _HALF.scale:
        made = _cast(text, _HALF)
    if made is None:
        made = text.cast(WIDE)
    return pc.round(made, ndigits=scale, round_mode="half_towards_infinity").cast(kind)


def _rounded(text: str, scale: int) -> str:
    try:
        return f"{Decimal(text).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _DIGITS):f}"
    except InvalidOperation as error:
        raise pa.ArrowInvalid(f"{text!r} is not a decimal of {MOST_DIGITS} digits") from error


def _plain(context: Any, text: Any) -> pa.Array:
    """Few numbers have an exponent, and most of those are 0."""
    found = pc.match_substring(text, "E").fill_null(False)
    if not pc.any(found).as_py():
        return text
    with_exponent = text.filter(found).dictionary_encode()
    plain = pa.array([f"{Decimal(each):f}" for each in with_exponent.dictionary.to_pylist()], pa.string())
    return pc.replace_with_mask(text, found, plain.take(with_exponent.indices))


def _register() -> None:
    kinds: dict[str, tuple[Callable[..., pa.Array], pa.DataType]] = {
        _TIME: (_times, _MICROSECONDS),
        _DAY: (_days, pa.date32()),
        _PLAIN: (_plain, pa.string()),
    }
    for scale in range(MOST_DIGITS + 1):
        kinds[f"{_DECIMAL}.{scale}"] = partial(_decimals, scale), pa.decimal128(MOST_DIGITS, scale)
    for name, (function, result) in kinds.items():
        about = {"summary": name, "description": "see barrier_runtime/data/sql/texts.py"}
        pc.register_scalar_function(function, name, about, {"text": pa.string()}, result)


_register()
