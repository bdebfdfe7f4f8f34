"""Rules that match Arrow types with MySQL column types (docs/mysql.md), and checks of rows.

Rows are checked without the server. Only conversions that keep every value are accepted; nanoseconds are cut to
microseconds.
"""

import datetime
import decimal
import json
import re
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.connectors.sink_bases.sql.columns import (
    TIMED_DIGITS,
    ColumnRules,
    Fit,
    Refusal,
    TableColumn,
    as_json,
    bits_of,
    by_text,
    casting,
    in_microseconds,
    negative_zeros,
    outside,
    with_repeated_keys,
    with_trailing_spaces,
)

_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_INTEGER_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BINARY = {"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_TIMES = {  # least and greatest value
    "datetime": (datetime.datetime(1000, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)),
    "timestamp": (datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(2038, 1, 19, 3, 14, 7)),
    "date": (datetime.date(1000, 1, 1), datetime.date(9999, 12, 31)),
}


@dataclass(frozen=True)
class MySQLColumn(TableColumn):
    unsigned: bool = False
    counted: bool = False  # auto_increment
    characters: int | None = None
    octets: int | None = None
    precision: int = 0
    scale: int = 0
    second_digits: int = 0
    charset: str | None = None
    collation: str | None = None

    @property
    def rounds(self) -> bool:
        """Returns whether the type is float(m, d) or double(m, d), which keep d digits."""
        return self.base in ("float", "double") and "," in self.shown

    @property
    def is_text(self) -> bool:
        return self.base in _TEXT

    @property
    def tells_texts_apart(self) -> bool:
        """Returns whether different texts, apart from trailing spaces, are different keys."""
        return not self.is_text or str(self.collation).endswith("_bin") or self.collation == "binary"

    @property
    def pads(self) -> bool:
        """Returns whether comparisons ignore trailing spaces."""
        return self.is_text and not str(self.collation).endswith(("_nopad_bin", "_0900_bin"))


def _bool(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    return Fit(casting(pa.int8())) if column.base in _INTEGER_BITS else None


def _integer(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    if column.unsigned and not types.is_unsigned_integer(kind):
        return None
    if column.base == "decimal":
        return Fit() if _INTEGER_DIGITS[kind.bit_width] <= column.precision - column.scale else None
    bits = kind.bit_width if column.unsigned else bits_of(kind)
    return Fit() if bits <= _INTEGER_BITS.get(column.base, 0) else None


def _float(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    holds = column.base == "double" or (column.base == "float" and kind != pa.float64())
    return Fit(casting(pa.float64()), _NUMBERS) if holds and not (column.rounds or column.unsigned) else None


def _decimal(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    room = kind.scale <= column.scale and kind.precision - kind.scale <= column.precision - column.scale
    return Fit() if column.base == "decimal" and room and not column.unsigned else None


def _text(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    if column.base == "json":
        parsed = _PARSED if column.shown == "json" else ()  # MariaDB keeps the text
        return Fit(casting(pa.string()), ((_is_no_json, "is not JSON"), *parsed))
    spaces = ((with_trailing_spaces, "ends with a space, which char removes"),) if column.base == "char" else ()
    return Fit(casting(pa.string()), (_no_longer_than(column), *spaces)) if column.is_text else None


def _bytes(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    if column.base == "binary" and types.is_fixed_size_binary(kind):
        return Fit(casting(pa.binary())) if kind.byte_width == column.octets else None
    return Fit(casting(pa.binary()), (_no_longer_than(column),)) if column.base in _BINARY else None


def _date(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    return Fit(casting(pa.date32()), (_out_of_range("date"),)) if column.base == "date" else None


def _timestamp(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    base = "datetime" if kind.tz is None else "timestamp"
    if column.base != base or TIMED_DIGITS[kind.unit] > column.second_digits:
        return None

    def convert(values: pa.Array) -> pa.Array:
        """Converts to UTC, the time zone of the session."""
        if kind.tz is not None:
            values = values.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.timestamp(kind.unit))
        return in_microseconds(pa.timestamp("us"))(values)

    return Fit(convert, (_out_of_range(base),))


def _time(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    fits = column.base == "time" and TIMED_DIGITS[kind.unit] <= column.second_digits
    return Fit(in_microseconds(pa.time64("us"))) if fits else None


def _nested(kind: pa.DataType, column: MySQLColumn) -> Fit | None:
    return Fit(as_json, (_no_longer_than(column),)) if column.is_text or column.base == "json" else None


_NUMBERS: tuple[Refusal, ...] = (
    (lambda values: pc.invert(pc.is_finite(values)), "is not a number that MySQL has (NaN or infinity)"),
    (negative_zeros, "is -0.0, which MySQL stores as 0.0 (x + 0.0 in a select() makes it so)"),
)


def _is_no_json(values: pa.Array) -> pa.Array:
    bad = []
    for text in values.to_pylist():
        try:
            bad.append(text is not None and msgspec.json.decode(text) is ...)
        except (msgspec.DecodeError, RecursionError):
            bad.append(True)
    return pa.array(bad, pa.bool_())


def _is_deep(values: pa.Array) -> pa.Array:
    return by_text(values, lambda text: text.count("[") + text.count("{") > _DEEPEST and _depth(text) > _DEEPEST)


def _depth(text: str) -> int:
    depth = deepest = 0
    for mark in re.sub(r'"(?:[^"\\]|\\.)*"', "", text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(mark, 0)
        deepest = max(deepest, depth)
    return deepest


def _loses_digits(values: pa.Array) -> pa.Array:
    return by_text(values, lambda text: _LONG_NUMBER.search(text) is not None and any(map(_is_inexact, _numbers(text))))


def _numbers(text: str) -> list[str]:
    found: list[str] = []
    json.loads(text, parse_int=found.append, parse_float=found.append)
    return found


def _is_inexact(number: str) -> bool:
    if number.lstrip("-").isdigit() and -(2**63) <= int(number) < 2**64:
        return False
    return decimal.Decimal(number) != decimal.Decimal(repr(float(number)))


_DEEPEST = 100
_LONG_NUMBER = re.compile(r"\d[\d.]{15}|\d[eE]")  # shorter numbers are floats with the same digits
_PARSED: tuple[Refusal, ...] = (
    (_is_deep, f"has more than {_DEEPEST} levels"),
    (with_repeated_keys, "has an object with a key twice, of which MySQL keeps one"),
    (_loses_digits, "has a number of more digits than MySQL keeps in JSON"),
)


def _no_longer_than(column: MySQLColumn) -> Refusal:
    def bad(values: pa.Array) -> pa.Array:
        if column.octets is None:
            return pa.nulls(len(values), pa.bool_())
        too_long = pc.greater(pc.binary_length(values), column.octets)
        if column.characters is not None and pa.types.is_string(values.type):
            too_long = pc.or_(too_long, pc.greater(pc.utf8_length(values), column.characters))
        return too_long

    return bad, "is too long"


def _out_of_range(base: str) -> Refusal:
    least, most = _TIMES[base]
    return outside(least, most), f"is before {least} or after {most}"


def _refused(family: str, kind: pa.DataType, column: MySQLColumn) -> str:
    if column.is_text and column.charset != "utf8mb4" and not types.is_null(kind):
        return (
            f"has the character set {column.charset}, which lacks characters: ALTER TABLE {{0}} CONVERT TO CHARACTER "
            "SET utf8mb4"
        )
    return ""


def _hint(family: str, kind: pa.DataType, column: MySQLColumn) -> str:
    if family == "timestamp" and column.base in ("datetime", "timestamp"):
        return "; times with a zone go into timestamp, those without into datetime"
    return ""


def _in_key(family: str, kind: pa.DataType, column: MySQLColumn) -> tuple[Refusal, ...]:
    return ((with_trailing_spaces, "ends with a space, which does not count"),) if column.pads else ()


MYSQL_COLUMNS = ColumnRules(
    {
        "bool": _bool,
        "integer": _integer,
        "float": _float,
        "decimal": _decimal,
        "text": _text,
        "bytes": _bytes,
        "timestamp": _timestamp,
        "date": _date,
        "time": _time,
        "nested": _nested,
    },
    refused=_refused,
    hint=_hint,
    in_key=_in_key,
)
