"""How users spell schemas and durations, and what these mean: the one translation to Arrow types and milliseconds; and
batches made to fit a schema."""

import datetime
import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.data.declared_types import ddl_columns, declared_type, fields_of_class
from barrier_runtime.data.values.casts import kept_cast
from barrier_runtime.data.values.doors import UNFIT
from barrier_runtime.state.errors import InvalidJob

SchemaLike: TypeAlias = pa.Schema | Mapping[str, Any] | str | type


def as_schema(schema: SchemaLike, where: str, parameter: str = "schema") -> pa.Schema:
    """A `pa.Schema`; a mapping of column name to type; a class with annotated fields (dataclass, pydantic model,
    TypedDict, `msgspec.Struct`); or a text as in SQL, `"id BIGINT, at TIMESTAMP"`. A type is one of Arrow's, its name
    as Arrow prints it or as SQL has it, or a Python type; `declared_type` has them.

    >>> as_schema({"value": int, "at": "timestamp[ms, tz=UTC]"}, "source 'numbers'").names
    ['value', 'at']
    """
    if isinstance(schema, pa.Schema):
        fields = schema
    elif isinstance(schema, Mapping):
        fields = pa.schema([(name, declared_type(kind, name, where)) for name, kind in schema.items()])
    elif isinstance(schema, str):
        fields = pa.schema([(name, declared_type(kind, name, where)) for name, kind in ddl_columns(schema, where)])
    elif isinstance(schema, type) and (hints := fields_of_class(schema)):
        fields = pa.schema([(name, declared_type(kind, name, where)) for name, kind in hints.items()])
    else:
        raise InvalidJob(
            f"{where}: {parameter}= is {type(schema).__name__}: pass a pyarrow.Schema, a mapping such as "
            '{"value": int, "at": pa.timestamp("ms")}, a text such as "value BIGINT, at TIMESTAMP", or a dataclass'
        )
    repeated = {name for name in fields.names if fields.names.count(name) > 1}
    if repeated:
        raise InvalidJob(f"{where}: column {sorted(repeated)[0]!r} is in the schema twice: rename one of them")
    if not fields.names:
        raise InvalidJob(f"{where}: the schema has no columns: name at least one")
    return fields


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
            raise no_column(column, schema.names, where)


def check_free(names: Iterable[str], taken: Sequence[str], where: str) -> None:
    """`names`: of columns that are added to those that are there."""
    for name in names:
        if name in taken:
            raise InvalidJob(f"{where}: the output column {name!r} exists already: choose another name")


def column_names(given: Any, what: str) -> tuple[str, ...]:
    """Of columns, given as one name or several. Raises `InvalidJob`."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidJob(f"{what}={given!r}: give the name of a column, or a list of names")
    return tuple(names)


def no_column(column: object, there: Sequence[str], where: str, what: str = "") -> InvalidJob:
    """`what`: what the column was wanted for, behind a space or a comma."""
    names = ", ".join(there)
    return InvalidJob(f"{where}: there is no column {column!r}{what}{meant(column, there)}: use one of {names}")


def meant(name: object, there: Iterable[str]) -> str:
    """Which of the names that are there is nearest, in parentheses; nothing where none is near."""
    near = difflib.get_close_matches(str(name), there, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def described(schema: pa.Schema) -> str:
    """Names and types on one line, for messages."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def lines_parser(read: Callable[[bytes], pa.Table], schema: pa.Schema, where: str) -> Callable[[bytes], pa.RecordBatch]:
    """From whole lines to rows of `schema`. `read` gets what is not blank."""
    empty = no_rows(schema)

    def parse(data: bytes) -> pa.RecordBatch:
        if not data.strip():
            return empty
        table = read(data).combine_chunks()
        return fit(table.to_batches()[0], schema, where) if table.num_rows else empty

    return parse


def refuse_unreadable(schema: pa.Schema, kind: str, read: Callable[[pa.Schema], object], where: str) -> None:
    """`read`: reads a line without values as these columns; Arrow says then which types it cannot make of text. It is
    a function of a module, and asked once per type."""
    for field in schema:
        if not _reads(read, field.type):
            raise InvalidJob(
                f"{where}: column {field.name!r} is declared as {field.type}, which is not read from {kind}"
                ": declare another type, or read text and parse that in map()"
            )


@lru_cache(1_024)
def _reads(read: Callable[[pa.Schema], object], kind: pa.DataType) -> bool:
    try:
        read(pa.schema([("value", kind)]))
    except pa.ArrowNotImplementedError:
        return False
    return True


def fit(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """`batch` with the columns and types of `schema`, where each value is kept."""
    if batch.schema.equals(schema):
        return batch
    arrays = []
    for field in schema:
        column = batch.column(field.name)
        if not column.type.equals(field.type):
            try:
                column = kept_cast(column, field.type)
            except UNFIT as error:
                raise InvalidJob(
                    f"{where}: column {field.name!r} is {column.type}, wanted is {field.type}, and a value "
                    f"does not fit ({error}): correct schema= or the file"
                ) from error
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
