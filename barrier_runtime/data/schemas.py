"""How users spell schemas and durations, and what these mean: the one translation to Arrow types and milliseconds; and
batches made to fit a schema."""

import datetime
import decimal
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.state.errors import InvalidJob

SchemaLike: TypeAlias = pa.Schema | Mapping[str, Any]

_PYTHON_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    datetime.date: pa.date32(),
    datetime.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}


def as_schema(schema: SchemaLike, where: str) -> pa.Schema:
    """A `pa.Schema`, or a mapping of column name to Arrow type, Arrow type name or plain Python type.

    >>> as_schema({"value": int, "at": "timestamp[ms]"}, "source 'numbers'").names
    ['value', 'at']
    """
    if isinstance(schema, pa.Schema):
        fields = schema
    elif isinstance(schema, Mapping):
        fields = pa.schema([(name, _as_type(kind, name, where)) for name, kind in schema.items()])
    else:
        raise InvalidJob(
            f"{where}: schema= is {type(schema).__name__}: pass a pyarrow.Schema or a mapping such as "
            '{"value": int, "at": pa.timestamp("ms")}'
        )
    repeated = {name for name in fields.names if fields.names.count(name) > 1}
    if repeated:
        raise InvalidJob(f"{where}: column {sorted(repeated)[0]!r} is in the schema twice: rename one of them")
    if not fields.names:
        raise InvalidJob(f"{where}: the schema has no columns: name at least one")
    return fields


def _as_type(kind: Any, column: str, where: str) -> pa.DataType:
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, str):
        try:
            return pa.type_for_alias(kind)
        except ValueError as error:
            raise InvalidJob(
                f"{where}: column {column!r} has the unknown type name {kind!r}: use an Arrow name such as 'int64'"
            ) from error
    known = _PYTHON_TYPES.get(kind) if isinstance(kind, type) else None
    if known is None:
        raise InvalidJob(
            f"{where}: column {column!r} has type {kind!r}, which is not an Arrow type: use pa.int64() and such"
        )
    return known


def milliseconds(duration: datetime.timedelta, what: str) -> int:
    """A whole, not negative number of milliseconds."""
    if not isinstance(duration, datetime.timedelta):
        raise InvalidJob(f"{what} is {duration!r}: pass a datetime.timedelta")
    whole, rest = divmod(duration, datetime.timedelta(milliseconds=1))
    if rest or whole < 0:
        raise InvalidJob(f"{what} is {duration}: use a duration of whole milliseconds, not negative")
    return whole


def require_columns(schema: pa.Schema | None, columns: tuple[str, ...], where: str) -> None:
    """Every one of `columns` is in `schema` exactly once. An unknown schema (None) is checked at the first batch."""
    if schema is None:
        return
    for column in columns:
        if column not in schema.names:
            raise InvalidJob(f"{where}: there is no column {column!r}: use one of {', '.join(schema.names)}")


def described(schema: pa.Schema) -> str:
    """Names and types on one line, for messages."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def lines_parser(read: Callable[[bytes], pa.Table], schema: pa.Schema, where: str) -> Callable[[bytes], pa.RecordBatch]:
    """From whole lines to rows of `schema`. `read` gets what is not blank."""
    no_rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    def parse(data: bytes) -> pa.RecordBatch:
        if not data.strip():
            return no_rows
        table = read(data).combine_chunks()
        return fit(table.to_batches()[0], schema, where) if table.num_rows else no_rows

    return parse


def fit(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """`batch` with the columns and types of `schema`; widening only."""
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        if not column.type.equals(field.type):
            try:
                column = column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InvalidJob(
                    f"{where}: column {field.name!r} is {column.type}, wanted is {field.type}, and a value "
                    f"does not fit ({error}): correct schema= or the file"
                ) from error
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
