"""Conversion of rows to the Parquet files of a Delta table, and their log entries."""

import datetime
import decimal
import math
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.folder_names import say_empty
from barrier_runtime.connectors.sink_bases.lake.columns import kept_as, refuse_nulls
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.paths import FILE_NAME_BYTES

_STATISTICS_COLUMNS = 32
_LONGEST_TEXT = 32  # characters; a longer bound is omitted


def partitions(
    batches: Sequence[pa.RecordBatch],
    stored: pa.Schema,
    partition_by: Sequence[str],
    required: Sequence[pa.Field],
    where: str,
) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yields (partition values, rows without these columns) for each partition; rows keep their order."""
    rows = stored_rows(batches, stored, where)
    check_required(rows, required, partition_by, where)
    if not partition_by:
        yield {}, rows
        return
    keys = rows.select(list(partition_by)).append_column("", pa.array(range(rows.num_rows), pa.int64()))
    groups = keys.group_by(list(partition_by), use_threads=False).aggregate([("", "list")])
    try:
        found = groups.to_pylist()
    except (OverflowError, ValueError) as error:
        raise InvalidJob(
            f"{where}: a value of the partition columns {', '.join(partition_by)} is out of range ({error}): filter it"
        ) from error
    for group in found:
        values = {name: partition_value(group[name]) for name in partition_by}
        for name in partition_by:
            if group[name] == "":
                say_empty(name, where)
        yield values, rows.take(pa.array(group["_list"], pa.int64())).drop_columns(list(partition_by))


def stored_rows(batches: Sequence[pa.RecordBatch], stored: pa.Schema, where: str) -> pa.Table:
    rows = pa.Table.from_batches(batches).combine_chunks()
    columns = [kept_as(column, field, where) for column, field in zip(rows.columns, stored, strict=True)]
    return pa.Table.from_arrays(columns, schema=stored)


def check_required(rows: pa.Table, required: Sequence[pa.Field], partition_by: Sequence[str], where: str) -> None:
    for field in required:
        if field.name not in rows.schema.names:
            continue
        column = rows.column(field.name)
        refuse_nulls(column, field, where)
        if field.name in partition_by and pa.types.is_string(column.type) and pc.any(pc.equal(column, "")).as_py():
            raise InvalidJob(
                f"{where}: partition column {field.name!r} has empty text, which Delta Lake stores as null, and the "
                "table does not allow nulls there: fill or filter such rows"
            )


def check_written_by_library(column: pa.ChunkedArray, name: str, where: str) -> None:
    """Raises `InvalidJob` for a partition value that makes too long a folder name.

    delta-rs writes the files only after the decision, and encodes letters outside ASCII.
    """
    for value in pc.unique(column).to_pylist() if pa.types.is_string(column.type) else ():
        length = len(quote(f"{name}={value or ''}", safe="="))
        if length > FILE_NAME_BYTES:
            raise InvalidJob(
                f"{where}: partition column {name!r} has the value {value[:60]!r}…, whose folder has a name of "
                f"{length} bytes, and {FILE_NAME_BYTES} are allowed: shorten it, or partition by another column"
            )
        if value == "":
            say_empty(name, where)


def partition_value(value: Any) -> str | None:
    """Text for the log. Empty text becomes null: the format has no empty text."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime.date) else str(value)


def statistics(rows: pa.Table) -> str:
    nulls: dict[str, int] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    for field in list(rows.schema)[:_STATISTICS_COLUMNS]:
        if pa.types.is_nested(field.type):
            continue
        column = rows.column(field.name)
        nulls[field.name] = column.null_count
        bounds = _bounds(field.type, column)
        if bounds is not None:
            least[field.name], greatest[field.name] = bounds
    return msgspec.json.encode(
        {"numRecords": rows.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    ).decode()


def _bounds(kind: pa.DataType, column: pa.ChunkedArray) -> tuple[Any, Any] | None:
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or column.null_count == len(column):
        return None
    if pa.types.is_floating(kind) and pc.any(pc.is_nan(column)).as_py():
        return None  # readers order NaN differently
    try:
        ends = pc.min_max(column).as_py()
    except (OverflowError, ValueError):  # a time outside Python's range
        return None
    bounds = _plain(ends["min"]), _plain(ends["max"])
    return None if None in bounds else bounds


def _plain(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, decimal.Decimal):
        return None
    if isinstance(value, str) and len(value) > _LONGEST_TEXT:
        return None
    return value
