"""Types of columns determined by a function's first rows."""

from typing import Any

import pyarrow as pa

from barrier_runtime.data.values.doors import UNFIT
from barrier_runtime.data.values.into_columns import keeps

_WIDEST_DECIMAL = 38


def settled_type(values: list[Any], known: pa.DataType | None) -> pa.DataType:
    """Type for `values` and later rows.

    `known`, the input's type, settles digits of decimals, and columns of nulls or empty lists.
    """
    try:
        guessed = pa.array(values).type
    except UNFIT:
        if known is None or not keeps(values, known):
            raise
        return known
    settled = _settled(guessed, known)
    if settled.equals(guessed) or keeps(values, settled):
        return settled
    return _settled(guessed, None)


def _settled(guessed: pa.DataType, known: pa.DataType | None) -> pa.DataType:
    types = pa.types
    if types.is_null(guessed):
        return guessed if known is None else known
    if types.is_decimal(guessed):
        if known is not None and types.is_decimal(known):
            return known
        return pa.decimal128(_WIDEST_DECIMAL, guessed.scale) if guessed.precision <= _WIDEST_DECIMAL else guessed
    if types.is_integer(guessed) and known is not None and types.is_uint64(known):
        return known  # otherwise the first value of 2^63 or more would not fit
    if types.is_list(guessed):
        element = known.value_type if known is not None and types.is_list(known) else None
        return pa.list_(_settled(guessed.value_type, element))
    if types.is_struct(guessed):
        fields = {field.name: field.type for field in known} if known is not None and types.is_struct(known) else {}
        return pa.struct([(field.name, _settled(field.type, fields.get(field.name))) for field in guessed])
    return guessed
