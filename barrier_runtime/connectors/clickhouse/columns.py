"""Which columns of ClickHouse take which Arrow types without loss. Pure.

| Arrow                       | ClickHouse                                            |
|-----------------------------|-------------------------------------------------------|
| integers                    | Int8 … Int64, UInt8 … UInt64 that hold all its values |
| float, double               | Float64; float also Float32                           |
| string, binary              | String                                                |
| bool                        | UInt8, Bool                                           |
| date32                      | Date, Date32                                          |
| timestamp[s]                | DateTime, DateTime64                                  |
| timestamp[ms], [us]         | DateTime64 of at least as many digits                 |
| decimal(p, s)               | Decimal(p', s), p' at least p                         |
| list                        | Array of what takes its values                        |
"""

import re

import pyarrow as pa

_BITS = {"Int8": (8, True), "Int16": (16, True), "Int32": (32, True), "Int64": (64, True)}
_BITS |= {"UInt8": (8, False), "UInt16": (16, False), "UInt32": (32, False), "UInt64": (64, False)}
_DIGITS = {"s": 0, "ms": 3, "us": 6}
_WRAPPED = re.compile(r"(Nullable|LowCardinality)\((.*)\)")
_DATETIME64 = re.compile(r"DateTime64\((\d)[,)]")
_DECIMAL = re.compile(r"Decimal\((\d+), ?(\d+)\)")
_ARRAY = re.compile(r"Array\((.*)\)")


def takes(column: str, kind: pa.DataType) -> bool:
    """Whether a column of type `column` takes every value of Arrow's type `kind`, nulls apart."""
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


def plain(column: str) -> str:
    """The type below `Nullable` and `LowCardinality`."""
    while found := _WRAPPED.fullmatch(column):
        column = found[2]
    return column


def nullable(column: str) -> bool:
    return "Nullable(" in column.removeprefix("LowCardinality(")[:9]


def column_for(kind: pa.DataType) -> str:
    """A type of ClickHouse for a table that is to be made; "" for what it has no type for."""
    is_ = pa.types
    if is_.is_list(kind) or is_.is_large_list(kind):
        inner = column_for(kind.value_type)
        return f"Array({inner})" if inner else ""
    if is_.is_decimal(kind):
        return f"Decimal({kind.precision}, {kind.scale})"
    if is_.is_timestamp(kind):
        return "DateTime" if kind.unit == "s" else f"DateTime64({_DIGITS.get(kind.unit, 6)})"
    names = [*_BITS, "Float64", "String", "Date"]
    return next((name for name in names if takes(name, kind)), "")
