"""Rules that match columns of rows with columns of a SQL table: fit, conversion, refused values. Pure.

Key columns also refuse values that the target considers equal, such as -0.0 and 0.0.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import sleep
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.connectors.sink_bases.json_values import json_values
from barrier_runtime.data.rows import preview
from barrier_runtime.data.values.stored_times import rounded_down
from barrier_runtime.state.errors import InvalidJob


def negative_zeros(values: pa.Array) -> pa.Array:
    numbers = values.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return pa.array((numbers == 0) & np.signbit(numbers), pa.bool_())


def with_trailing_spaces(values: pa.Array) -> pa.Array:
    return pc.ends_with(values, " ")


def by_text(values: pa.Array, is_marked: Callable[[str], bool]) -> pa.Array:
    """Marks in chunks that release the GIL."""
    marks: list[bool | None] = []
    for start in range(0, len(values), _PYTHON_ROWS):
        marks += [None if text is None else is_marked(text) for text in values.slice(start, _PYTHON_ROWS).to_pylist()]
        sleep(0)
    return pa.array(marks, pa.bool_())


def with_repeated_keys(values: pa.Array) -> pa.Array:
    """Marks JSON texts with an object that has a key twice; other texts are unmarked."""
    return by_text(values, _repeats_a_key)


def _repeats_a_key(text: str) -> bool:
    if text.count(":") < 2:
        return False
    try:
        _once_each(text)
    except _Twice:
        return True
    except (ValueError, RecursionError):  # for the server, or another refusal
        pass
    return False


class _Twice(Exception):
    """An object has a key twice."""


def _object(pairs: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in pairs}) < len(pairs):
        raise _Twice


_once_each = json.JSONDecoder(object_pairs_hook=_object, parse_int=len, parse_float=len).decode


def below_microseconds(values: pa.Array) -> pa.Array:
    numbers = pc.fill_null(values.view(pa.int64()), 0).to_numpy()
    return pa.array(numbers % 1_000 != 0)


Convert: TypeAlias = Callable[[pa.Array], pa.Array]
Refusal: TypeAlias = tuple[Convert, str]
"""Function that marks refused values (true or null for each), and the reason: "is too long"."""

TIMED_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}  # fraction digits of a second
_PYTHON_ROWS = 256
_FAMILIES: Mapping[str, Callable[[pa.DataType], bool]] = {
    "bool": types.is_boolean,
    "integer": types.is_integer,
    "float": types.is_floating,
    "decimal": types.is_decimal,
    "text": lambda kind: types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view(),
    "bytes": lambda kind: types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind),
    "timestamp": types.is_timestamp,
    "date": types.is_date,
    "time": types.is_time,
    "duration": types.is_duration,
    "nested": types.is_nested,
}


@dataclass(frozen=True)
class TableColumn:
    name: str
    shown: str  # as people write it
    base: str  # as the database names it
    not_null: bool = False
    filled: bool = False  # by a default or an identity
    generated: bool = False  # refuses values


@dataclass(frozen=True)
class Fit:
    convert: Convert = lambda values: values
    refusals: tuple[Refusal, ...] = ()


Rule: TypeAlias = Callable[[pa.DataType, Any], Fit | None]


def _nothing(family: str, kind: pa.DataType, column: Any) -> Any:
    return ""


@dataclass(frozen=True)
class ColumnRules:
    """Rules by family of Arrow types. A rule returns None if not every value fits.

    `refused` and `refused_in_key` return why a column takes no values of the family, with the remedy. `hint` ends the
    message about an unfit type. `in_key` adds refusals for key columns.
    """

    rules: Mapping[str, Rule]
    refused: Callable[[str, pa.DataType, Any], str] = _nothing
    refused_in_key: Callable[[str, pa.DataType, Any], str] = _nothing
    hint: Callable[[str, pa.DataType, Any], str] = _nothing
    in_key: Callable[[str, pa.DataType, Any], Sequence[Refusal]] = lambda *_: ()

    def fit(self, kind: pa.DataType, column: Any) -> Fit | None:
        if types.is_null(kind):
            return Fit()
        rule = self.rules.get(family_of(kind))
        return None if rule is None else rule(kind, column)


@dataclass(frozen=True)
class Fitted:
    column: TableColumn
    fit: Fit


def family_of(kind: pa.DataType) -> str:
    return next((family for family, is_of in _FAMILIES.items() if is_of(kind)), "")


def fitted(
    schema: pa.Schema, columns: Sequence[TableColumn], rules: ColumnRules, table: str, where: str, key: Sequence[str]
) -> tuple[Fitted, ...]:
    """Matches `schema` with the columns of the table.

    Raises `InvalidJob` for a column that the table lacks or cannot hold, and for a required column that the rows lack.
    """
    for name in key:
        if name not in schema.names:
            raise InvalidJob(f"{where}: the rows have no key column {name!r}: select() it")
    _check_names(schema, columns, table, where)
    there = {column.name: column for column in columns}
    return tuple(
        Fitted(there[field.name], _fit(field, there[field.name], rules, field.name in key, table, where))
        for field in schema
    )


def _check_names(schema: pa.Schema, columns: Sequence[TableColumn], table: str, where: str) -> None:
    there = [column.name for column in columns]
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidJob(f"{where}: column {name!r} is in the rows twice: rename one of them with select()")
        if name not in there:
            raise InvalidJob(
                f"{where}: the rows have a column {name!r}, table {table} has not; it has {', '.join(there)}: "
                f"ALTER TABLE {table} ADD COLUMN, or select() other columns"
            )
    for column in columns:
        if column.not_null and not column.filled and not column.generated and column.name not in schema.names:
            raise InvalidJob(
                f"{where}: column {column.name!r} of table {table} is NOT NULL without a default, and the rows have "
                "no such column: select() it, or give the column a default"
            )


def _fit(field: pa.Field, column: TableColumn, rules: ColumnRules, is_key: bool, table: str, where: str) -> Fit:
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    of = (family_of(kind), kind, column)
    if column.generated:
        raise InvalidJob(
            f"{where}: column {field.name!r} of table {table} is generated by the server: leave it out with select()"
        )
    if reason := rules.refused(*of):
        raise InvalidJob(f"{where}: column {field.name!r} of table {table} {reason.format(table, field.name)}")
    found = rules.fit(kind, column)
    if found is None:
        raise InvalidJob(
            f"{where}: column {field.name!r} is {field.type}, in table {table} it is {column.shown}, which cannot hold "
            f"every such value{rules.hint(*of)}: cast it with select() or map_batches(), or change the column's type"
        )
    convert, refusals = found.convert, found.refusals
    if is_key and (reason := rules.refused_in_key(*of)):
        raise InvalidJob(f"{where}: key column {field.name!r} of table {table} {reason.format(table, field.name)}")
    if is_key:
        refusals = (*refusals, *rules.in_key(*of))
        if getattr(kind, "unit", "") == "ns":
            convert = _whole_microseconds(convert)
    if column.not_null or is_key:
        refusals = (*refusals, (pc.is_null, "is null"))
    if kind is not field.type:
        plain = convert

        def convert(values: pa.Array) -> pa.Array:
            return plain(values.cast(kind))

    return Fit(convert, refusals)


def _whole_microseconds(convert: Convert) -> Convert:
    def checked(values: pa.Array) -> pa.Array:
        if pc.any(below_microseconds(values)).as_py():
            raise pa.ArrowInvalid("a value of a key has digits below a microsecond, which are not stored")
        return convert(values)

    return checked


def checked(batch: pa.RecordBatch, fits: Sequence[Fitted], table: str, where: str) -> pa.RecordBatch:
    made = []
    for values, each in zip(batch.columns, fits, strict=True):
        column = each.column
        try:
            converted = each.fit.convert(values)
        except (pa.ArrowInvalid, InvalidJob) as error:
            raise InvalidJob(
                f"{where}: column {column.name!r} cannot be written to {table}: {error}. Filter or correct such rows "
                "before the sink"
            ) from error
        for refused, why in each.fit.refusals:
            row = pc.index(refused(converted), True).as_py()
            if row >= 0:
                raise InvalidJob(
                    f"{where}: column {column.name!r} of a row {why}, in table {table} it is {column.shown}"
                    f"{' NOT NULL' if column.not_null else ''}: filter or correct such rows, or change the column: "
                    f"{preview(batch, row)}"
                )
        made.append(converted)
    return pa.RecordBatch.from_arrays(made, names=batch.schema.names)


def casting(kind: pa.DataType) -> Convert:
    return lambda values: values if values.type == kind else values.cast(kind)


def in_microseconds(kind: pa.DataType) -> Convert:
    """Cuts off nanoseconds. Values out of range are an error."""

    def convert(values: pa.Array) -> pa.Array:
        if types.is_timestamp(values.type):
            return rounded_down(values, "us").cast(kind)
        return values.cast(kind, safe=getattr(values.type, "unit", "") != "ns")

    return convert


def by_value(
    values: pa.Array, spelled: Callable[[Any], str], python: Callable[[pa.Array], list[Any]] = pa.Array.to_pylist
) -> pa.Array:
    """Makes text in Python, in small chunks that release the GIL."""
    texts: list[str | None] = []
    for start in range(0, len(values), _PYTHON_ROWS):
        chunk = python(values.slice(start, _PYTHON_ROWS))
        texts += [None if each is None else spelled(each) for each in chunk]
        sleep(0)
    return pa.array(texts, pa.string())


def as_json(values: pa.Array) -> pa.Array:
    encode = msgspec.json.Encoder().encode
    return by_value(values, lambda each: encode(each).decode(), json_values)


def bits_of(kind: pa.DataType) -> int:
    return int(kind.bit_width) + (1 if types.is_unsigned_integer(kind) else 0)


def outside(least: Any, most: Any) -> Convert:
    return lambda values: pc.or_(
        pc.less(values, pa.scalar(least, values.type)), pc.greater(values, pa.scalar(most, values.type))
    )
