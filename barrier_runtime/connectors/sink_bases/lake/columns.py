"""Conversion of columns to the types of a Delta or Iceberg table."""

import contextlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.state.errors import InvalidJob


def kept_as(column: pa.Array | pa.ChunkedArray, field: pa.Field, where: str) -> pa.Array | pa.ChunkedArray:
    try:
        with contextlib.suppress(pa.ArrowInvalid):
            return _cast(column, field.type)
        return _cast(_copied(column, 0, len(column)), field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        row = _first_wrong(column, field.type)
        value = str(column[row])
        raise InvalidJob(
            f"{where}: column {field.name!r} is {column.type}, the table has {field.type}, and the value {value[:100]} "
            f"of row {row} of the checkpoint does not fit ({error}): {_remedy(column.type)}"
        ) from error


def _cast(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType) and not isinstance(kind, pa.BaseExtensionType):
        return column.cast(column.type.storage_type).cast(kind)
    return column.cast(kind)


def _first_wrong(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> int:
    first, behind = 0, len(column)  # the row is in [first, behind)
    while behind - first > 1:
        middle = (first + behind) // 2
        try:
            _cast(_copied(column, first, middle), kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            behind = middle
        else:
            first = middle
    return first


def _copied(column: pa.Array | pa.ChunkedArray, first: int, behind: int) -> pa.Array | pa.ChunkedArray:
    """Copies rows: a cast of a slice of lists would also examine values of other rows."""
    return column.take(pa.array(range(first, behind), pa.int64()))


def _remedy(kind: pa.DataType) -> str:
    if "[ns" in str(kind):
        return "round it to microseconds before, as with floor_temporal(…, unit='microsecond') of pyarrow.compute"
    return "filter it, or write to a table with another type"


def required(fields: Iterable[pa.Field]) -> tuple[pa.Field, ...]:
    """Fields that allow no null, or hold fields, elements or values that allow none."""
    return tuple(field for field in fields if _demands(field))


def _demands(field: pa.Field) -> bool:
    kind = field.type
    if not field.nullable or not types.is_nested(kind):
        return not field.nullable
    if types.is_struct(kind):
        return any(_demands(kind.field(at)) for at in range(kind.num_fields))
    return _demands(kind.item_field if types.is_map(kind) else kind.value_field)


def refuse_nulls(column: pa.Array | pa.ChunkedArray, field: pa.Field, where: str) -> None:
    """Raises `InvalidJob` for a null that `field` of the table allows at no depth. Types of `field` are ignored."""
    for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
        found = _null_in(chunk, field, field.name, np.arange(len(chunk)))
        if found is not None:
            row, place = found
            raise InvalidJob(
                f"{where}: column {field.name!r} has nulls, which the table does not allow: fill or filter them. The "
                f"first is {place} of row {row}: {str(chunk[row])[:100]}"
            )


def _null_in(array: pa.Array, field: pa.Field, place: str, rows: npt.NDArray[np.int64]) -> tuple[int, str] | None:
    """Row and place of the first null that `field` forbids. `rows`: the row of each value."""
    if not field.nullable and array.null_count:
        return int(rows[pc.index(array.is_null(), True).as_py()]), place
    kind = field.type
    if types.is_map(array.type):
        both = [("key", array.type.key_type), ("value", array.type.item_type)]
        array = array.cast(pa.list_(pa.struct(both)))
    if types.is_map(kind):
        kind = pa.list_(pa.struct([pa.field("key", kind.key_type), kind.item_field.with_name("value")]))
    if types.is_struct(array.type):
        valid = array.is_valid()
        rows = rows[valid.to_numpy(zero_copy_only=False)]
        for at in range(kind.num_fields):
            inner = kind.field(at)
            if _demands(inner) and (
                found := _null_in(array.field(at).filter(valid), inner, f"{place}.{inner.name}", rows)
            ):
                return found
    elif types.is_nested(array.type) and _demands(kind.value_field):
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        return _null_in(array.flatten(), kind.value_field, f"{place}[]", np.repeat(rows, counts))
    return None


def is_decimal_of_tables(kind: pa.DataType) -> bool:
    return bool(types.is_decimal128(kind)) and 0 <= kind.scale <= kind.precision
