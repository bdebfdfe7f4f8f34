"""Values as PostgreSQL writes them, as Arrow columns.

Snapshot and log both come as text, through the same functions, so a row looks the same whichever way it came. Sessions
set `datestyle=ISO`, `timezone=UTC` and `bytea_output=hex`.

| PostgreSQL                                  | Arrow                     |
|---------------------------------------------|---------------------------|
| smallint, integer, bigint, oid              | int16, int32, int64       |
| real, double precision                      | float32, float64          |
| boolean                                     | bool                      |
| numeric(p, s) with p up to 38               | decimal128(p, s)          |
| date, time, timestamp, timestamptz          | date32, time64[us], timestamp[us], timestamp[us, UTC] |
| bytea                                       | binary                    |
| all others: text, numeric, uuid, json, enums, arrays, intervals, … | string, as PostgreSQL writes it |

A date or time that Arrow does not have ("infinity", years BC, 24:00) and NaN in numeric(p, s) are refused: the column
can be read as text instead.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.postgres.changes.pgoutput import UNCHANGED, Value
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
class ChangedColumn:
    """`key`: of the primary key, or of the index that identifies rows."""

    name: str
    type: pa.DataType
    key: bool


def arrow_type(base: str, typmod: int) -> pa.DataType:
    """`base`: internal name of the type (of a domain, of what is below it)."""
    if base == "numeric" and typmod >= 0:
        precision, scale = ((typmod - _NUMERIC_HEADER) >> 16) & 0xFFFF, (typmod - _NUMERIC_HEADER) & 0x7FF
        if precision <= _MOST_DIGITS and scale <= precision:  # 1024 and more: a scale below zero
            return pa.decimal128(precision, scale)
    return _TYPES.get(base, pa.string())


def as_column(values: Sequence[Value], column: ChangedColumn, where: str) -> pa.Array:
    """UNCHANGED becomes null. Raises `InvalidJob` for a value that the type does not have."""
    known = [None if value is UNCHANGED or value == UNCHANGED else value for value in values]
    return from_text(pa.array(known, pa.binary()).cast(pa.string()), column, where)


def from_text(texts: pa.Array, column: ChangedColumn, where: str) -> pa.Array:
    """`texts`: an array of strings."""
    kind = column.type
    if pa.types.is_string(kind):
        return texts
    if pa.types.is_boolean(kind):
        return pc.equal(texts, "t")
    if pa.types.is_binary(kind):
        return pa.array([None if text is None else bytes.fromhex(text[2:]) for text in texts.to_pylist()], kind)
    try:
        if pa.types.is_time(kind):
            return pa.array([None if text is None else _time_us(text) for text in texts.to_pylist()], kind)
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        value = re.search(r"'([^']*)'", str(error))
        shown = f"{value.group(1)!r}" if value else f"a value ({error})"
        raise InvalidJob(
            f"{where}: column {column.name!r} has {shown}, which the type {kind} does not have: read the column as "
            f"PostgreSQL writes it, with as_text=[{column.name!r}]"
        ) from error


def _time_us(text: str) -> int:
    """`10:00:00.5`, which Arrow does not read, in microseconds. Raises `pa.ArrowInvalid` for 24:00."""
    hours, minutes, seconds = text.split(":")
    whole, _, fraction = seconds.partition(".")
    if hours == "24":
        raise pa.ArrowInvalid(f"no time of a day: '{text}'")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + int(fraction.ljust(6, "0"))
