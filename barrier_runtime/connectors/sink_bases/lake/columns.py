"""Conversion of columns to the types of a Delta or Iceberg table."""

import contextlib

import pyarrow as pa
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


def is_decimal_of_tables(kind: pa.DataType) -> bool:
    return bool(types.is_decimal128(kind)) and 0 <= kind.scale <= kind.precision
