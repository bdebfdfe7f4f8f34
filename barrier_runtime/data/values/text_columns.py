"""Texts of files as columns of a declared type: values are kept as written, or refused with the row.

Digits below the column's unit must be zeros; numbers that would become infinite or lose digits are refused.
"""

import re
from collections.abc import Collection
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.data.values.stored_times import NS, fits_unit
from barrier_runtime.state.texts import shortened

UNFIT = (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError)  # Arrow's errors for texts
_ZEROS = {"s": r"(:\d\d)\.0+([^0-9.]|$)", "ms": r"(\.\d{3})0+([^0-9]|$)", "us": r"(\.\d{6})0+([^0-9]|$)"}
_ZONE = re.compile(r"\d\d:\d\d.*(?:[zZ]|[+-]\d\d:?\d\d)$|\d\d:\d\d.*[+-]\d\d$")
_NO_ZONE = r":\d\d(\.\d+)?[+-]([3-9]\d|2[4-9]|\d\d:?[6-9])"  # Arrow accepts any numbers of hours and minutes
_NO_ZONE_IN_BYTES = re.compile(_NO_ZONE.encode())
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_FAR = re.compile(r"(-?\d{4,6}-\d\d-\d\d)(?:[T ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})(0*))?(Z|[+-]\d\d:?\d\d)?)?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d+")
_WHOLE_IN = {16: 2**11, 32: 2**24, 64: 2**53}  # bits: smaller whole numbers are exact
_NUMPY = {16: np.float16, 32: np.float32, 64: np.float64}
_CUT = 80


class LineError(ValueError):
    """`at`: a byte of the line, in the parsed bytes. `problem` ends with the remedy."""

    def __init__(self, at: int, problem: str) -> None:
        super().__init__(problem)
        self.at = at
        self.problem = problem


class TextMisfit(ValueError):
    """A text that its column does not keep. `row`: index in the column; `why` ends with the remedy."""

    def __init__(self, row: int, text: str, why: str) -> None:
        super().__init__(why)
        self.row = row
        self.text = text
        self.why = why


def column_of_texts(texts: pa.Array, kind: pa.DataType, nulls: Collection[str] = (), *, trims: bool = True) -> pa.Array:
    """Column of `kind`. Raises `TextMisfit`.

    `nulls`: texts that mean null, except in columns of text. `trims`: ignores blanks around numbers and times.

    >>> column_of_texts(pa.array(["12:00:00.5000000"]), pa.time32("ms")).to_pylist()
    [datetime.time(12, 0, 0, 500000)]
    """
    if is_text(kind):
        return texts if texts.type.equals(kind) else texts.cast(kind)
    if nulls:
        texts = pc.if_else(pc.is_in(texts, pa.array(list(nulls), texts.type)), pa.scalar(None, texts.type), texts)
    trimmed = pc.ascii_trim_whitespace(texts) if trims else texts
    try:
        column = _cast(trimmed, kind)
    except UNFIT as error:
        raise _misfit(trimmed, kind, error) from error
    if types.is_floating(kind):
        refuse_inexact(trimmed, column)
    return column


def is_text(kind: pa.DataType) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


@lru_cache(maxsize=256)
def is_read_from_text(kind: pa.DataType) -> bool:
    try:
        _cast(pa.array([], pa.string()), kind)
    except UNFIT:
        return False
    return True


def may_be_inexact(column: pa.Array) -> bool:
    """Returns True for numbers that are infinite, or so large that digits may be lost."""
    bits = column.type.bit_width
    numbers = np.frombuffer(column.buffers()[1], _NUMPY[bits])[column.offset : column.offset + len(column)]
    with np.errstate(invalid="ignore"):
        return bool((np.abs(numbers) >= _WHOLE_IN[bits]).any())


def refuse_inexact(texts: pa.Array, column: pa.Array) -> None:
    """Raises `TextMisfit` for a number that became infinite, or a whole number that lost digits."""
    if not len(column) or not may_be_inexact(column):
        return
    bits = column.type.bit_width
    numbers = column.to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(np.abs(numbers) >= _WHOLE_IN[bits]).tolist():
        text, number = texts[row].as_py(), _NUMPY[bits](numbers[row])
        if text is None:
            continue
        if np.isinf(number):
            if not text.lstrip("+-").lower().startswith("inf"):
                remedy = "declare the column as float64" if bits < 64 else "correct the file, or schema="
                raise TextMisfit(row, text, f"{_shown(text)} would become infinite as {column.type}: {remedy}")
        elif _WHOLE.fullmatch(text) and int(text) != int(number) and Decimal(text) != Decimal(str(number)):
            remedy = "declare the column as decimal(38, 0)"
            raise TextMisfit(row, text, f"{_shown(text)} would lose digits as {column.type}: {remedy}")


def may_have_no_zone(data: bytes) -> bool:
    """Returns True for an invalid offset, such as +25:00."""
    return _NO_ZONE_IN_BYTES.search(data) is not None


def _cast(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    if types.is_timestamp(kind) and kind.tz is not None and pc.any(pc.match_substring_regex(texts, _NO_ZONE)).as_py():
        raise ValueError("an offset that is no zone")
    if types.is_timestamp(kind) or types.is_date(kind):
        try:
            return _without_zeros(texts, getattr(kind, "unit", "")).cast(kind)
        except UNFIT:
            return _far_times(texts, kind)
    if types.is_time(kind):
        day = pc.binary_join_element_wise(pa.scalar("1970-01-01T", texts.type), texts, pa.scalar("", texts.type))
        return _without_zeros(day, kind.unit).cast(pa.timestamp(kind.unit)).cast(kind)
    if types.is_duration(kind):
        return texts.cast(pa.int64()).view(kind)
    if types.is_null(kind):
        return texts.cast(pa.int64()).cast(kind)
    column = texts.cast(kind)
    if types.is_signed_integer(kind) and has_wrapped(texts, column):
        raise ValueError("a hexadecimal number beyond the largest of its column")
    return column


def has_wrapped(texts: pa.Array, column: pa.Array) -> bool:
    """Returns True if Arrow read a hexadecimal number, such as `0xFF` of 8 bits, as negative."""
    negative = pc.less(column, 0)
    return bool(pc.any(negative).as_py() and pc.any(pc.and_(negative, pc.starts_with(texts, "0"))).as_py())


def _far_times(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times that Arrow does not read: years beyond 9999, and the earliest that nanoseconds reach."""
    numbers: list[int | None] = []
    for text in texts.to_pylist():
        found = None if text is None else _FAR.fullmatch(text)
        if text is None:
            numbers.append(None)
        elif found is None or not _fits_form(found, kind):
            raise ValueError(text)
        else:
            numbers.append(_number_of(found, kind))
    width = pa.int32() if types.is_date32(kind) else pa.int64()
    return pa.array(numbers, width).view(kind)


def _fits_form(found: re.Match[str], kind: pa.DataType) -> bool:
    if types.is_date(kind):
        return found[2] is None
    return (found[5] is None) == (kind.tz is None)


def _number_of(found: re.Match[str], kind: pa.DataType) -> int:
    nanoseconds = int(np.datetime64(found[1], "D").astype(np.int64)) * 86_400 * NS["s"]
    if found[2] is not None:
        hours, minutes, seconds = map(int, found[2].split(":"))
        if hours > 23 or minutes > 59 or seconds > 59:
            raise ValueError(found[0])
        nanoseconds += ((hours * 60 + minutes) * 60 + seconds) * NS["s"] + int((found[3] or "0").ljust(9, "0"))
    if found[5] not in (None, "Z"):
        sign, hours, minutes = found[5][0], int(found[5][1:3]), int(found[5][-2:])
        nanoseconds -= (hours * 60 + minutes) * 60 * NS["s"] * (-1 if sign == "-" else 1)
    number, why, _ = fits_unit(nanoseconds, kind)
    if why:
        raise ValueError(why)
    return number


def _without_zeros(texts: pa.Array, unit: str) -> pa.Array:
    if unit not in _ZEROS or not pc.any(pc.match_substring_regex(texts, _ZEROS[unit])).as_py():
        return texts
    return pc.replace_substring_regex(texts, _ZEROS[unit], r"\1\2")


def _misfit(texts: pa.Array, kind: pa.DataType, error: Exception) -> TextMisfit:
    for row in range(len(texts)):
        try:
            _cast(texts.slice(row, 1), kind)
        except UNFIT:
            text = texts[row].as_py()
            return TextMisfit(row, text, why_not(text, kind))
    return TextMisfit(0, "", str(error))


def why_not(text: str, kind: pa.DataType) -> str:
    shown = _shown(text)
    if types.is_timestamp(kind):
        has_zone = _ZONE.search(text) is not None
        if has_zone and re.search(_NO_ZONE, text):
            return f"{shown} has no zone such as +01:30: correct the file"
        if kind.tz is None and has_zone:
            return (
                f"{shown} has a zone, and the column is declared without: declare it as "
                f'"timestamp[{kind.unit}, tz=UTC]" in schema=, or correct the file'
            )
        if kind.tz is not None and not has_zone and _reads(text, pa.timestamp(kind.unit)):
            return (
                f'{shown} has no zone, and the column is declared with one: declare it without, as "timestamp[us]" in '
                "schema=, or correct the file"
            )
    if types.is_timestamp(kind) or types.is_time(kind):
        for unit in ("ms", "us", "ns"):
            finer = pa.timestamp(unit, kind.tz) if types.is_timestamp(kind) else _time(unit)
            if unit != kind.unit and _reads(text, finer):
                return (
                    f"{shown} has more digits of a second than {kind}: declare the column as "
                    f'"{finer}" in schema=, or correct the file'
                )
        if types.is_timestamp(kind) and kind.unit == "ns" and _reads(text, pa.timestamp("us", kind.tz)):
            return (
                f"{shown} is outside of the years 1677 to 2262, which nanoseconds reach: declare the column as "
                f'"{pa.timestamp("us", kind.tz)}" in schema=, or correct the file'
            )
    if types.is_decimal(kind):
        return (
            f"{shown} is no number, or has more digits than {kind}: declare more digits in schema=, or correct the file"
        )
    return f"{shown} is not kept as {kind}: correct the file, or schema="


def _time(unit: str) -> pa.DataType:
    return pa.time32(unit) if unit == "ms" else pa.time64(unit)


def is_kept(texts: Collection[str], kind: pa.DataType) -> bool:
    try:
        _cast(pa.array(list(texts), pa.string()), kind)
    except UNFIT:
        return False
    return True


def _reads(text: str, kind: pa.DataType) -> bool:
    return is_kept((text,), kind)


def type_of_times(texts: Collection[str]) -> pa.DataType | None:
    """Type of dates or timestamps that all have the same form; None if the forms differ."""
    if all(map(_DATE.fullmatch, texts)):
        return pa.date32() if is_kept(texts, pa.date32()) else None
    found = [each for each in map(_MOMENT.fullmatch, texts) if each is not None]
    zones = {each[2] is not None for each in found}
    if len(found) < len(texts) or len(zones) > 1:
        return None
    digits = max(len(each[1] or "") for each in found)
    kind = pa.timestamp("s" if not digits else "us" if digits <= 6 else "ns", "UTC" if True in zones else None)
    return kind if is_kept(texts, kind) else None


def not_utf8_at(data: bytes) -> int | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    return None


def _shown(text: Any) -> str:
    return repr(shortened(text, _CUT))
