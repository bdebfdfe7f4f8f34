"""Dictionary columns and views of text, also inside others, as columns of their values.

Rows of an edge have plain columns: a dictionary would cost a message of its own on every connection, cannot be sorted,
and is another type, so what one subtask hears from its own slot and from others must be the same. Views (`string_view`,
`binary_view`, which Polars gives and Parquet files keep) are of a type that Arrow takes no rows out of.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from barrier_runtime.state.errors import InvalidJob

_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


class PlainRows:
    """Batches of one stream, made plain. Decides once per schema; plain batches are handed through as they are."""

    def __init__(self) -> None:
        self._seen: pa.Schema | None = None
        self._target: pa.Schema | None = None  # None: what was seen is plain

    def __call__(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        schema = rows.schema
        if schema is not self._seen:
            if self._seen is None or not schema.equals(self._seen):
                target = plain_schema(schema)
                self._target = None if target is schema else target
            self._seen = schema
        if self._target is None:
            return rows
        arrays = [_decoded(column, field) for column, field in zip(rows.columns, self._target, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)


def taken(rows: pa.RecordBatch, positions: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Some of rows that came over no edge: what a source or a function gives may have views."""
    try:
        return rows.take(pa.array(positions))
    except pa.ArrowNotImplementedError:
        return PlainRows()(rows).take(pa.array(positions))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The same object when it is plain already."""
    if not any(_is_coded(field.type) for field in schema):
        return schema
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def _is_coded(kind: pa.DataType) -> bool:
    here = types.is_dictionary(kind) or kind in _VIEWS
    return here or any(_is_coded(field.type) for field in _inside(kind))


def _inside(kind: pa.DataType) -> list[pa.Field]:
    if types.is_map(kind):
        return [kind.key_field, kind.item_field]
    return [kind.field(number) for number in range(kind.num_fields)] if types.is_nested(kind) else []


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(_plain_type(field.type))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if kind in _VIEWS:
        return _VIEWS[kind]
    plain = [_plain_field(field) for field in _inside(kind)]
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
    while types.is_dictionary(column.type):
        column = column.dictionary_decode()
    try:
        return column if column.type.equals(wanted.type) else column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidJob(
            f"column {wanted.name!r} is {column.type} and cannot be read as {wanted.type} ({error}): give the values "
            "themselves instead of dictionaries inside other types"
        ) from error
