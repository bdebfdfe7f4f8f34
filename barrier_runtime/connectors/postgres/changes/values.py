"""Conversion of PostgreSQL's text values to Arrow columns (types: docs/changes.md).

Snapshot and log arrive as text and use the same functions, so equal rows look equal.
"""

import re
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.errors import InvalidJob

_TYPES = {
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "oid": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bool": pa.bool_(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "bytea": pa.binary(),
}
_MOST_DIGITS = 38
_NUMERIC_HEADER = 4


@dataclass(frozen=True)
class ServerType:
    """PostgreSQL type: internal name below any domain, and modifier."""

    base: str
    typmod: int = -1

    def __str__(self) -> str:
        if self.base == "numeric" and self.typmod >= _NUMERIC_HEADER:
            precision, scale = _numeric_digits(self.typmod)
            return f"numeric({precision},{scale})"
        if self.typmod >= _NUMERIC_HEADER and self.base in ("varchar", "bpchar"):
            return f"{self.base}({self.typmod - _NUMERIC_HEADER})"
        if self.base.startswith("_"):
            return f"{self.base[1:]}[]"
        return self.base if self.typmod < 0 else f"{self.base}({self.typmod})"


@dataclass(frozen=True)
class ChangedColumn:
    """Column when the flow was written. `key`: in the primary key, or the index that identifies rows."""

    name: str
    type: pa.DataType
    key: bool
    number: int = 0
    server_type: ServerType | None = None
    as_text: bool = False


def arrow_type(base: str, typmod: int) -> pa.DataType:
    if base == "numeric" and typmod >= 0:
        precision, scale = _numeric_digits(typmod)
        if precision <= _MOST_DIGITS and 0 <= scale <= precision:
            return pa.decimal128(precision, scale)
    return _TYPES.get(base, pa.string())


def _numeric_digits(typmod: int) -> tuple[int, int]:
    """Precision and scale, which may be negative."""
    return ((typmod - _NUMERIC_HEADER) >> 16) & 0xFFFF, (((typmod - _NUMERIC_HEADER) & 0x7FF) ^ 1024) - 1024


def as_column(texts: pa.Array, column: ChangedColumn, where: str) -> pa.Array:
    return from_text(texts.cast(pa.string()), column, where)


def as_stored(values: pa.Array, column: ChangedColumn, where: str) -> pa.Array:
    if values.type == column.type:
        return values
    both = (values.type, column.type)
    try:
        if all(map(pa.types.is_integer, both)) or all(map(pa.types.is_decimal, both)):
            return values.cast(column.type)
    except pa.ArrowInvalid:
        pass
    raise InvalidJob(
        f"{where}: column {column.name!r} is {column.type} now, and {values.type} in the snapshot that the job has not "
        "read to its end: give the column its type back, or start the job without state (restore='none')"
    )


def from_text(texts: pa.Array, column: ChangedColumn, where: str) -> pa.Array:
    kind = column.type
    if pa.types.is_string(kind):
        return texts
    try:
        if pa.types.is_boolean(kind):
            return _booleans(texts)
        if pa.types.is_binary(kind):
            return pa.array([None if text is None else _bytes(text) for text in texts.to_pylist()], kind)
        if pa.types.is_time(kind):
            return pa.array([None if text is None else _time_us(text) for text in texts.to_pylist()], kind)
        return texts.cast(kind)
    except (pa.ArrowInvalid, ValueError) as error:
        value = re.search(r"'([^']*)'", str(error))
        shown = f"{value.group(1)!r}" if value else f"a value ({error})"
        raise InvalidJob(
            f"{where}: column {column.name!r} has {shown}, which the type {kind} does not have: read the column as "
            f"PostgreSQL writes it, with as_text=[{column.name!r}], or start the program again if its type was altered"
        ) from error


def _booleans(texts: pa.Array) -> pa.Array:
    true = pc.equal(texts, "t")
    if pc.all(pc.or_(true, pc.equal(texts, "f"))).as_py() is False:
        other = next(text for text in texts.to_pylist() if text not in (None, "t", "f"))
        raise pa.ArrowInvalid(f"no boolean: '{other}'")
    return true


def _bytes(text: str) -> bytes:
    if not text.startswith("\\x"):
        raise pa.ArrowInvalid(f"no bytes in hexadecimal digits: '{text}'")
    return bytes.fromhex(text[2:])


def _time_us(text: str) -> int:
    """Microseconds of `10:00:00.5`, which Arrow cannot parse. Raises `pa.ArrowInvalid` for 24:00."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    if hours == "24":
        raise pa.ArrowInvalid(f"no time of a day: '{text}'")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))
