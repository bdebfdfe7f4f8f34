"""Translates users' schemas and durations; fits batches to a schema."""

import contextlib
import datetime
import decimal
import difflib
import enum
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from barrier_runtime.data.values.casts import kept_cast
from barrier_runtime.data.values.class_fields import fields_of_class
from barrier_runtime.data.values.doors import UNFIT
from barrier_runtime.state.errors import InvalidJob

_PYTHON_TYPES: dict[Any, pa.DataType] = {
    bool: pa.bool_(),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bytes: pa.binary(),
    datetime.datetime: pa.timestamp("us", "UTC"),
    datetime.date: pa.date32(),
    datetime.time: pa.time64("us"),
    datetime.timedelta: pa.duration("us"),
    decimal.Decimal: pa.decimal128(38, 18),
}
_SQL_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("boolean", "bool"), pa.bool_()),
    **dict.fromkeys(("tinyint", "byte"), pa.int8()),
    **dict.fromkeys(("smallint", "short"), pa.int16()),
    **dict.fromkeys(("int", "integer"), pa.int32()),
    **dict.fromkeys(("bigint", "long"), pa.int64()),
    **dict.fromkeys(("real", "float"), pa.float32()),
    **dict.fromkeys(("double", "double precision"), pa.float64()),
    **dict.fromkeys(("string", "text", "varchar"), pa.string()),
    **dict.fromkeys(("binary", "bytea"), pa.binary()),
    "date": pa.date32(),
    **dict.fromkeys(("timestamp", "timestamptz", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(("decimal", "numeric"), pa.decimal128(10, 0)),
}
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us|ns)(?:, *(?:tz=)?([^\]]+))?\]")
_DECIMAL = re.compile(r"(decimal|numeric|decimal128|decimal256) *\( *(\d+) *(?:, *(-?\d+) *)?\)")
_VARCHAR = re.compile(r"(?:var)?char *\( *\d+ *\)")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")
_NESTED = re.compile(r"(list|large_list|array|struct|map) *<(.*)>", re.DOTALL)
_LIKE = "such as 'int64', 'timestamp[ms, tz=UTC]', 'decimal(10, 2)' or 'list<string>'"
_MOST_DIGITS = 38
_DEEPEST = 30  # levels of classes in classes
_ALIKE: tuple[Callable[[pa.DataType], bool], ...] = (  # types of equal Python values
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date32,
    pa.types.is_time,
    pa.types.is_duration,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind),
    pa.types.is_list,
    pa.types.is_map,
)


def declared_type(kind: Any, column: str, where: str) -> pa.DataType:
    """Arrow type of a user's `kind`. Raises `InvalidJob`.

    >>> declared_type("timestamp[ms, tz=UTC]", "at", "source 'in'")
    TimestampType(timestamp[ms, tz=UTC])
    >>> declared_type(list[int], "ids", "source 'in'")
    ListType(list<item: int64>)
    """
    if isinstance(kind, pa.DataType):
        return kind
    if isinstance(kind, str):
        named = _named(kind.strip())
        if named is None:
            raise InvalidJob(
                f"{where}: column {column!r} has the unknown type name {kind!r}: use an Arrow or SQL name {_LIKE}"
            )
        return named
    python = _python_type(kind, column, where)
    if python is None:
        raise InvalidJob(
            f"{where}: column {column!r} has type {kind!r}, which is not an Arrow type: use pa.int64() and such, or a "
            f"name {_LIKE}"
        )
    return python


def ddl_columns(text: str, where: str) -> list[tuple[str, str]]:
    """Names and types of a text such as `"id BIGINT, at TIMESTAMP NOT NULL"`."""
    columns = []
    for part in _parts(text):
        name, _, kind = part.partition(" ")
        kind = re.sub(r"\s+not\s+null$", "", kind.strip(), flags=re.IGNORECASE)
        if not name or not kind:
            raise InvalidJob(f'{where}: schema= has {part!r}: write a name and a type, as in "id BIGINT, at TIMESTAMP"')
        columns.append((name.strip('`"'), kind))
    return columns


def _named(name: str) -> pa.DataType | None:
    low = name.lower()
    if nested := _NESTED.fullmatch(name) or _NESTED.fullmatch(low):
        return _nested(nested[1], nested[2])
    if stamp := _TIMESTAMP.fullmatch(name):
        return pa.timestamp(stamp[1], stamp[2])
    if digits := _DECIMAL.fullmatch(low):
        precision, scale = int(digits[2]), int(digits[3] or 0)
        make = pa.decimal256 if digits[1] == "decimal256" else pa.decimal128
        return make(precision, scale) if 1 <= precision <= (76 if make is pa.decimal256 else _MOST_DIGITS) else None
    if fixed := _FIXED.fullmatch(low):
        return pa.binary(int(fixed[1]))
    if _VARCHAR.fullmatch(low):
        return pa.string()
    if name == low:  # Arrow's names are in small letters: its float is not SQL's
        try:
            return pa.type_for_alias(name)
        except ValueError:
            pass
    return _SQL_TYPES.get(low)


def _nested(kind: str, inner: str) -> pa.DataType | None:
    kind = kind.lower()
    parts = _parts(inner)
    if kind in ("list", "large_list", "array"):
        element = _named(_after_name(inner)) if len(parts) == 1 else None
        make = pa.large_list if kind == "large_list" else pa.list_
        return None if element is None else make(element)
    if kind == "map":
        key, value = (_named(_after_name(part)) for part in parts) if len(parts) == 2 else (None, None)
        return None if key is None or value is None else pa.map_(key, value)
    fields = []
    for part in parts:
        name, colon, said = part.partition(":")
        if not colon:
            name, _, said = part.partition(" ")
        member = _named(_nullable(said))
        if member is None:
            return None
        fields.append((name.strip(), member))
    return pa.struct(fields) if fields else None


def _after_name(text: str) -> str:
    """Type of a list's element, from `int64` or from Arrow's `item: int64`."""
    named = re.match(r"\s*\w+\s*:\s*(?=\S)", text)
    return _nullable(text[named.end() :] if named else text)


def _nullable(text: str) -> str:
    return re.sub(r"\s+not\s+null$", "", text.strip(), flags=re.IGNORECASE)


def _parts(text: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and depth == 0:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [part for part in (*parts, text[begin:].strip()) if part]


def _python_type(kind: Any, column: str, where: str) -> pa.DataType | None:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _annotated(arguments, column, where)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in arguments if each is not type(None)]
        return declared_type(rest[0], column, where) if len(rest) == 1 else None
    if origin in (list, set, frozenset) and len(arguments) == 1:
        return pa.list_(declared_type(arguments[0], column, where))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return pa.list_(declared_type(arguments[0], column, where))
    if origin is dict and len(arguments) == 2:
        return pa.map_(declared_type(arguments[0], column, where), declared_type(arguments[1], column, where))
    if not isinstance(kind, type):
        return None
    if issubclass(kind, enum.Enum):
        return _of_enum(kind, column, where)
    known = _PYTHON_TYPES.get(kind)
    if known is None and column.count(".") > _DEEPEST:
        raise InvalidJob(f"{where}: field {column[:60]!r}… contains a class that contains itself: give it another type")
    if known is None and (fields := fields_of_class(kind)):
        return pa.struct([(name, declared_type(hint, f"{column}.{name}", where)) for name, hint in fields.items()])
    return known


def _annotated(arguments: Sequence[Any], column: str, where: str) -> pa.DataType:
    """Type in `Annotated[int, "int32"]`: same kind, other width."""
    plain = declared_type(arguments[0], column, where)
    kinds = [each for each in arguments[1:] if isinstance(each, pa.DataType | str)]
    if not kinds:
        return plain
    exact = declared_type(kinds[0], column, where)
    if not any(alike(plain) and alike(exact) for alike in _ALIKE):
        raise InvalidJob(
            f"{where}: field {column!r} is {arguments[0]!r} annotated with {exact}: values of {exact} have another "
            "Python type, so correct one of them"
        )
    return exact


def _of_enum(kind: type[enum.Enum], column: str, where: str) -> pa.DataType:
    for value, stored in ((str, pa.string()), (int, pa.int64())):
        if all(isinstance(each.value, value) and not isinstance(each.value, bool) for each in kind):
            return stored
    raise InvalidJob(
        f"{where}: field {column!r} is the enum {kind.__name__}, whose values are neither all text nor all int: "
        "give the enum values of one of these types"
    )


SchemaLike: TypeAlias = pa.Schema | Mapping[str, Any] | str | type

if TYPE_CHECKING:
    import typing_extensions

    class ArrowSchema(Protocol):
        """`pa.Schema`, which has no type hints."""

        def __arrow_c_schema__(self) -> object: ...

    Rows = typing_extensions.TypeVar("Rows", default=dict[str, Any])
    SchemaOf: TypeAlias = type[Rows] | Mapping[str, Any] | str | ArrowSchema
else:
    Rows = TypeVar("Rows")

    class SchemaOf:
        """`SchemaLike` for which type checkers know the class of the rows: `SchemaOf[Order]`."""

        def __class_getitem__(cls, rows: Any) -> Any:
            return SchemaLike


def as_schema(schema: SchemaLike, where: str, parameter: str = "schema") -> pa.Schema:
    """Arrow schema of a user's schema.

    Accepts a `pa.Schema`; a mapping of column name to type; a class with annotated fields (dataclass, pydantic model,
    TypedDict, `msgspec.Struct`); or a text as in SQL, `"id BIGINT, at TIMESTAMP"`. A type is an Arrow type, a name as
    Arrow prints it or as in SQL, or a Python type.

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
        of_class = f"{where}, class {schema.__name__}"
        fields = pa.schema([(name, declared_type(kind, name, of_class)) for name, kind in hints.items()])
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


Duration: TypeAlias = datetime.timedelta | float
"""A `timedelta`, or a number of seconds."""


def as_duration(given: Duration, what: str) -> datetime.timedelta:
    """A `timedelta` of a user's duration. Raises `InvalidJob`.

    >>> as_duration(1.5, "the size of a window")
    datetime.timedelta(seconds=1, microseconds=500000)
    """
    if isinstance(given, datetime.timedelta):
        return given
    if isinstance(given, Real) and not isinstance(given, bool):
        with contextlib.suppress(OverflowError, ValueError):
            duration = datetime.timedelta(seconds=float(given))
            if duration or given == 0:
                return duration
    raise InvalidJob(f"{what} is {given!r}: pass a datetime.timedelta, or a number of seconds")


def milliseconds(given: Duration, what: str) -> int:
    """Converts to a whole number of milliseconds, not negative. Raises `InvalidJob`."""
    duration = as_duration(given, what)
    whole, rest = divmod(duration, datetime.timedelta(milliseconds=1))
    if rest or whole < 0:
        raise InvalidJob(
            f"{what} is {duration.total_seconds():g} s: use a duration of whole milliseconds, not negative"
        )
    return whole


def require_columns(schema: pa.Schema | None, columns: tuple[str, ...], where: str) -> None:
    """Accepts an unknown schema (None), which is checked at the first batch."""
    if schema is None:
        return
    for column in columns:
        if column not in schema.names:
            raise no_column(column, schema.names, where)


def check_free(names: Iterable[str], taken: Sequence[str], where: str) -> None:
    for name in names:
        if name in taken:
            raise InvalidJob(f"{where}: the output column {name!r} exists already: choose another name")


def column_names(given: Any, what: str) -> tuple[str, ...]:
    """Accepts a name or several names. Raises `InvalidJob`."""
    names = (given,) if isinstance(given, str) else given
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise InvalidJob(f"{what}={given!r}: give the name of a column, or a list of names")
    return tuple(names)


def key_columns(given: Any, what: str) -> tuple[str, ...]:
    """Accepts what `column_names` accepts, without empty names. Raises `InvalidJob`."""
    names = column_names(given, what)
    if not all(names):
        raise InvalidJob(f"{what}={given!r} has an empty name: give the names of columns")
    return names


def no_column(column: object, there: Sequence[str], where: str, what: str = "") -> InvalidJob:
    names = ", ".join(there)
    return InvalidJob(f"{where}: there is no column {column!r}{what}{meant(column, there)}: use one of {names}")


def meant(name: object, there: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), there, 1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


_UNITS = ("s", "ms", "us", "ns")


def widest(one: pa.Schema, other: pa.Schema) -> pa.Schema | None:
    """Schema for the values of both: of each column the finer unit or the wider number.
    None for other differences."""
    if one.names != other.names:
        return None
    kinds = [_wider(first.type, second.type) for first, second in zip(one, other, strict=True)]
    return None if None in kinds else pa.schema(list(zip(one.names, kinds, strict=True)))


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    types = pa.types
    if one == other:
        return one
    if types.is_timestamp(one) and types.is_timestamp(other) and one.tz == other.tz:
        return max(one, other, key=lambda kind: _UNITS.index(kind.unit))
    if types.is_duration(one) and types.is_duration(other):
        return max(one, other, key=lambda kind: _UNITS.index(kind.unit))
    if {one, other} <= {pa.int8(), pa.int16(), pa.int32(), pa.float64()}:  # a double holds 53 bits
        return max(one, other, key=lambda kind: kind.bit_width)
    for alike in (types.is_signed_integer, types.is_unsigned_integer, types.is_floating):
        if alike(one) and alike(other):
            return max(one, other, key=lambda kind: kind.bit_width)
    return None


def no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def fit(batch: pa.RecordBatch, schema: pa.Schema, where: str) -> pa.RecordBatch:
    """Casts a batch to the columns and types of `schema`, keeping every value."""
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
