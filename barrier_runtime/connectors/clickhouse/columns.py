"""Columns of ClickHouse that hold Arrow types without loss. Pure.

| Arrow                       | ClickHouse                                            |
|-----------------------------|-------------------------------------------------------|
| integers                    | Int8 … Int64, UInt8 … UInt64 that hold all values     |
| float, double               | Float64; float also Float32                           |
| string, binary              | String                                                |
| bool                        | UInt8, Bool                                           |
| date32                      | Date, Date32                                          |
| timestamp[s]                | DateTime, DateTime64                                  |
| timestamp[ms], [us]         | DateTime64 of at least as many digits                 |
| decimal(p, s)               | Decimal(p', s), p' at least p                         |
| list                        | Array of a type for the values                        |

Refused values: dates and times beyond the column's range, which the server would wrap; nulls in an array whose elements
are not `Nullable`; in key columns -0.0, which is the key 0.0.
"""

import datetime
import re

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.sql.columns import negative_zeros

_BITS = {"Int8": (8, True), "Int16": (16, True), "Int32": (32, True), "Int64": (64, True)}
_BITS |= {"UInt8": (8, False), "UInt16": (16, False), "UInt32": (32, False), "UInt64": (64, False)}
_DIGITS = {"s": 0, "ms": 3, "us": 6}
_WRAPPED = re.compile(r"(Nullable|LowCardinality)\((.*)\)")
_DATETIME64 = re.compile(r"DateTime64\((\d)[,)]")
_DECIMAL = re.compile(r"Decimal\((\d+), ?(\d+)\)")
_MOST_DIGITS = 76
_ARRAY = re.compile(r"Array\((.*)\)")
_YEAR_1900, _YEAR_2299 = datetime.datetime(1900, 1, 1), datetime.datetime(2299, 12, 31, 23, 59, 59)
_RANGES = {
    "Date": (datetime.datetime(1970, 1, 1), datetime.datetime(2149, 6, 6)),
    "Date32": (_YEAR_1900, datetime.datetime(2299, 12, 31)),
    "DateTime": (datetime.datetime(1970, 1, 1), datetime.datetime(2106, 2, 7, 6, 28, 15)),
    "DateTime64": (_YEAR_1900, _YEAR_2299),
}


def takes(column: str, kind: pa.DataType) -> bool:
    """True if the column holds every value of Arrow's `kind`, ignoring nulls."""
    column = plain(column)
    is_ = pa.types
    if is_.is_integer(kind):
        bits, signed = _BITS.get(column, (0, False))
        if is_.is_signed_integer(kind):
            return bool(signed and bits >= kind.bit_width)
        return bool(bits >= kind.bit_width + signed)
    if is_.is_boolean(kind):
        return column in ("UInt8", "Bool")
    if is_.is_floating(kind):
        return column == "Float64" or (column == "Float32" and not is_.is_float64(kind))
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_binary(kind) or is_.is_large_binary(kind):
        return column == "String"
    if is_.is_date32(kind):
        return column in ("Date", "Date32")
    if is_.is_timestamp(kind):
        found = _DATETIME64.match(column)
        digits = int(found[1]) if found else 0
        return column.startswith("DateTime") and digits >= _DIGITS.get(kind.unit, 10)
    if is_.is_decimal(kind):
        found = _DECIMAL.fullmatch(column)
        return found is not None and int(found[1]) >= kind.precision and int(found[2]) == kind.scale
    if is_.is_list(kind) or is_.is_large_list(kind):
        found = _ARRAY.fullmatch(column)
        return found is not None and takes(found[1], kind.value_type)
    return False


def unkept(column: str, values: pa.Array, *, is_key: bool) -> str:
    found = _ARRAY.fullmatch(plain(column))
    if found is not None:
        values = values.flatten()
        if values.null_count and not nullable(found[1]):
            return f"an array has a null: make it Array(Nullable({found[1]})), or fill nulls"
        return unkept(found[1], values, is_key=is_key)
    first_last = _RANGES.get(plain(column).partition("(")[0])
    if first_last is not None and len(values) > values.null_count:
        moments = values.cast(pa.timestamp("s")) if pa.types.is_date(values.type) else values
        if pa.types.is_timestamp(moments.type) and moments.type.tz is not None:
            moments = moments.cast(pa.timestamp(moments.type.unit, "UTC")).cast(pa.timestamp(moments.type.unit))
        first, last = (pa.scalar(each, moments.type) for each in first_last)
        bounds = pc.min_max(moments)
        if pc.less(bounds["min"], first).as_py() or pc.greater(bounds["max"], last).as_py():
            return f"a value is before {first_last[0]} or after {first_last[1]}, which {plain(column)} would wrap"
    if is_key and pa.types.is_floating(values.type) and pc.any(negative_zeros(values)).as_py():
        return "a key is -0.0, which is the key 0.0 to the server: add 0.0 to the column in a select()"
    return ""


def plain(column: str) -> str:
    while found := _WRAPPED.fullmatch(column):
        column = found[2]
    return column


def nullable(column: str) -> bool:
    return "Nullable(" in column.removeprefix("LowCardinality(")[:9]


def column_for(kind: pa.DataType) -> str:
    """Type of a column in a new table; "" if no type holds `kind`."""
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind):
        inner = column_for(kind.value_type)
        return f"Array({inner})" if inner else ""
    if is_.is_decimal(kind):
        fits = 0 <= kind.scale <= kind.precision <= _MOST_DIGITS
        return f"Decimal({kind.precision}, {kind.scale})" if fits else ""
    if is_.is_timestamp(kind):
        if kind.unit not in _DIGITS:
            return ""
        return "DateTime" if kind.unit == "s" else f"DateTime64({_DIGITS[kind.unit]})"
    names = [*_BITS, "Float64", "String", "Date"]
    return next((name for name in names if takes(name, kind)), "")
