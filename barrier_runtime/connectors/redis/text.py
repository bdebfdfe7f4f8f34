"""Rows as the text that Redis stores. Rows with different keys have different Redis keys.

The key of a single column is the plain value; null is `\\N`, so text that begins with a backslash gets another
backslash. In a key of several columns, joined by colons, a backslash escapes backslashes and colons.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.json_values import json_values
from barrier_runtime.connectors.sink_bases.sql.columns import below_microseconds
from barrier_runtime.data.rows import each_row, rows_of, values_of
from barrier_runtime.state.errors import InvalidJob

_NULL = b"\\N"


def check_key(name: str, kind: pa.DataType) -> str | None:
    """Reason why a column of this type cannot be a key, or None."""
    if pa.types.is_union(kind):
        return f"column {name!r} has values of several types ({kind}), whose texts may be equal: cast it to one type"
    return None


def keys_of(rows: pa.RecordBatch, names: Sequence[str]) -> list[bytes]:
    columns = [_named_texts(name, rows.column(name)) for name in names]
    if len(columns) == 1:
        return [_alone(text) for text in columns[0]]
    return [b":".join(map(_beside_others, texts)) for texts in zip(*columns, strict=True)]


def exact_rows(rows: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Rows whose times keep all digits and all years."""
    if not any(_has_nanoseconds(field.type) for field in rows.schema):
        with contextlib.suppress(InvalidJob):  # a year that Python's times lack raises before the first row
            return each_row(rows)
    names = rows.schema.names
    columns = [_exact_values(column) for column in rows.columns]
    return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))


def _exact_values(column: pa.Array) -> list[Any]:
    if _has_nanoseconds(column.type):
        if pa.types.is_nested(column.type) or pc.any(below_microseconds(column)).as_py():
            return json_values(column)
        column = _whole_microseconds(column)
    try:
        return values_of(column)
    except InvalidJob:
        return json_values(column)


def text_of(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, bytes) else json_of(value).strip(b'"')


def json_of(value: Any) -> bytes:
    """NaN and infinities become text."""
    return msgspec.json.encode(_finite(value))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value


def _named_texts(name: str, column: pa.Array) -> list[bytes | None]:
    try:
        return _texts(column)
    except InvalidJob as error:
        raise InvalidJob(f"key column {name!r}: {error}") from error


def _texts(column: pa.Array) -> list[bytes | None]:
    if _has_nanoseconds(column.type) and pa.types.is_nested(column.type):
        return [None if value is None else json_of(value) for value in json_values(column)]
    rest: list[int | None] = []
    if _has_nanoseconds(column.type):
        numbers = column.view(pa.int64())
        rest = [None if number is None else number % 1000 for number in numbers.to_pylist()]
        column = _whole_microseconds(column)
    rows = rows_of(pa.RecordBatch.from_arrays([column], ["value"]))
    texts = [None if row["value"] is None else text_of(row["value"]) for row in rows]
    return (
        [text + b"+%dns" % ns if text and ns else text for text, ns in zip(texts, rest, strict=True)] if rest else texts
    )


def _has_nanoseconds(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_nanoseconds(kind.field(number).type) for number in range(kind.num_fields))
    return getattr(kind, "unit", "") == "ns"


def _whole_microseconds(column: pa.Array) -> pa.Array:
    kind = column.type
    whole = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.duration("us")
    if pa.types.is_time(kind):
        whole = pa.time64("us")
    numbers = column.view(pa.int64())
    rest = pa.array([None if number is None else number % 1000 for number in numbers.to_pylist()], pa.int64())
    return pc.divide(pc.subtract(numbers, rest), 1000).view(whole)


def _alone(text: bytes | None) -> bytes:
    if text is None:
        return _NULL
    return b"\\" + text if text.startswith(b"\\") else text


def _beside_others(text: bytes | None) -> bytes:
    return _NULL if text is None else text.replace(b"\\", b"\\\\").replace(b":", b"\\:")
