"""Casts columns to other types if every value is kept."""

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.values.doors import UNFIT, RefusedValue
from barrier_runtime.data.values.into_columns import column_of


def kept_cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Casts `column` to `kind`. Raises `ValueError` for a value that would change.

    Arrow's own cast changes values. Floats may become narrower, as declared, and times without a zone are UTC.

    >>> kept_cast(pa.array([1, None]), pa.float64()).to_pylist()
    [1.0, None]
    """
    if column.type.equals(kind):
        return column
    made = column.cast(kind)
    if pa.types.is_floating(kind) and pa.types.is_floating(column.type):
        lost = pc.and_(pc.is_inf(made), pc.invert(pc.is_inf(column)))
    elif pa.types.is_null(column.type) or _is_text(column.type) != _is_text(kind):
        return made  # Arrow reads text exactly, or not at all
    else:
        lost = _changed(column, made)
    row = lost.index(True).as_py()
    if row >= 0:
        raise RefusedValue(column[row].as_py(), kind, "it would change")
    return made


def column_of_any(values: Any, kind: pa.DataType, column: str = "") -> pa.Array:
    """Accepts Arrow's or numpy's arrays, or Python values. Raises `ValueError`."""
    if isinstance(values, np.ndarray) and values.dtype != object:
        values = pa.array(values)
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks()
    return kept_cast(values, kind) if isinstance(values, pa.Array) else column_of(list(values), kind, column)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _changed(column: pa.Array, made: pa.Array) -> pa.Array:
    try:
        back = made.cast(column.type)
    except UNFIT:
        return pa.array([True] * len(column), pa.bool_())
    if back.equals(column):
        return pa.array([False] * len(column), pa.bool_())
    pairs = zip(map(repr, back.to_pylist()), map(repr, column.to_pylist()), strict=True)  # `repr` compares NaN, too
    return pa.array([one != other for one, other in pairs], pa.bool_())
