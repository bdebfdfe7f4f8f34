"""Converts dictionary columns and views of text, also nested ones, to columns of their values.

A dictionary would cost a message on every connection, and be another type. Arrow cannot take rows out of views (from
Polars and Parquet files): a step that takes some rows converts views.
"""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as types

from barrier_runtime.data.elements import Batch
from barrier_runtime.state.errors import InvalidJob

_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Returns the same object if there are no dictionaries and views."""
    return _decoded_schema(schema, dictionaries=True)


def without_views(schema: pa.Schema) -> pa.Schema:
    """Returns the same object if there are no views."""
    return _decoded_schema(schema, dictionaries=False)


class PlainRows:
    def __init__(self, target_of: Callable[[pa.Schema], pa.Schema] = plain_schema) -> None:
        self._target_of = target_of
        self._seen: pa.Schema | None = None
        self._target: pa.Schema | None = None

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = rows.schema
        if schema is not self._seen:
            if self._seen is None or not schema.equals(self._seen):
                target = self._target_of(schema)
                self._target = None if target is schema else target
            self._seen = schema
        if self._target is None:
            return rows
        arrays = [_decoded(column, field) for column, field in zip(rows.columns, self._target, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def batch(self, batch: Batch) -> Batch:
        if batch.few is not None:
            return batch
        rows = self(batch.rows)
        return batch if rows is batch.rows else batch.having(rows)


def _decoded_schema(schema: pa.Schema, dictionaries: bool) -> pa.Schema:
    if not any(_is_coded(field.type, dictionaries) for field in schema):
        return schema
    return pa.schema([_plain_field(field, dictionaries) for field in schema], schema.metadata)


def _is_coded(kind: pa.DataType, dictionaries: bool) -> bool:
    here = kind in _VIEWS or (dictionaries and types.is_dictionary(kind))
    return here or any(_is_coded(field.type, dictionaries) for field in _inside(kind))


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)] if types.is_nested(kind) else []


def _plain_field(field: pa.Field, dictionaries: bool) -> pa.Field:
    return field.with_type(_plain_type(field.type, dictionaries))


def _plain_type(kind: pa.DataType, dictionaries: bool) -> pa.DataType:
    if dictionaries and types.is_dictionary(kind):
        return _plain_type(kind.value_type, dictionaries)
    if kind in _VIEWS:
        return _VIEWS[kind]
    plain = [_plain_field(field, dictionaries) for field in _inside(kind)]
    if types.is_struct(kind):
        return pa.struct(plain)
    if types.is_map(kind):
        return pa.map_(*plain, keys_sorted=kind.keys_sorted)
    if types.is_fixed_size_list(kind):
        return pa.list_(plain[0], kind.list_size)
    if types.is_large_list(kind):
        return pa.large_list(plain[0])
    return pa.list_(plain[0]) if types.is_list(kind) else kind


def _decoded(column: pa.Array, wanted: pa.Field) -> pa.Array:
    while types.is_dictionary(column.type) and not types.is_dictionary(wanted.type):
        column = column.dictionary_decode()
    try:
        return column if column.type.equals(wanted.type) else column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidJob(
            f"column {wanted.name!r} is {column.type} and cannot be read as {wanted.type} ({error}): give the values "
            "themselves instead of dictionaries inside other types"
        ) from error
