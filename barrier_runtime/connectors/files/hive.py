"""Hive's way to keep rows in folders, `day=2026-01-01/country=DE/…`: the values of some columns stand in the path.

Both directions are here: rows to folders for sinks, a file's path to values for sources. Names are escaped as Spark and
Hive do it. A column that stands in the path is not in the file.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.errors import InvalidJob

NULL = "__HIVE_DEFAULT_PARTITION__"  # of a null, and of empty text, which Spark cannot tell from it either
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
_PART = re.compile(r"([^/=]+)=([^/]*)")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17}|0[0-9])")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def escaped(text: str) -> str:
    """As one segment of a path."""
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


# ---------------------------------------------------------------- rows to folders


def check_partitions(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    """Raise `InvalidJob` unless rows of this schema can be kept in folders by these columns."""
    for name in columns:
        if name not in schema.names:
            raise InvalidJob(
                f"{where}: partition_by names the column {name!r}; the rows have {', '.join(schema.names)}: use these"
            )
        kind = schema.field(name).type
        plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
        if not (plain or pa.types.is_boolean(kind) or pa.types.is_date(kind)):
            raise InvalidJob(
                f"{where}: partition_by column {name!r} is {kind}: use text, integers, booleans or dates, such as "
                f"select(…, day=pc.cast(pc.field({name!r}), 'date32'))"
            )
    if len(columns) == len(schema.names):
        raise InvalidJob(f"{where}: partition_by names every column, so files would have none: leave one out")


def by_folder(rows: pa.Table, columns: Sequence[str]) -> dict[str, pa.Table]:
    """Folder (`""`, or with a slash at the end) to its rows in their order, without `columns`."""
    if not columns or not rows.num_rows:
        return {"": rows} if rows.num_rows else {}
    codes = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        column = rows.column(name).combine_chunks()
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            column = pc.fill_null(column, "")  # they have one folder
        each = column.dictionary_encode(null_encoding="encode")
        codes *= len(each.dictionary)
        codes += each.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64, copy=False)  # small again: no overflow
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    rest = rows.drop_columns(list(columns))
    if len(firsts) == 1:
        return {_folder(rows, 0, columns): rest}
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    together = rest.take(pa.array(order))
    found: dict[str, pa.Table] = {}
    start = 0
    for first, end in zip(firsts.tolist(), ends.tolist(), strict=True):
        found[_folder(rows, first, columns)] = together.slice(start, end - start)
        start = end
    return found


def _folder(rows: pa.Table, row: int, columns: Sequence[str]) -> str:
    return "".join(f"{escaped(name)}={_text(rows.column(name)[row].as_py())}/" for name in columns)


def _text(value: Any) -> str:
    if value is None or value == "":
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    return escaped(value.isoformat() if isinstance(value, datetime.date) else str(value))


# ---------------------------------------------------------------- folders to values


def folders_of(path: str) -> str:
    """The folders directly above a file that name columns, `day=2026-01-01/country=DE`; empty where there are none."""
    found: list[str] = []
    for segment in reversed(path.split("/")[:-1]):
        if not _PART.fullmatch(segment):
            break
        found.insert(0, segment)
    return "/".join(found)


def values_of(folders: str) -> dict[str, str | None]:
    """The columns that they name, in order, with their texts; None is null."""
    found: dict[str, str | None] = {}
    for segment in folders.split("/") if folders else ():
        name, _, text = segment.partition("=")
        found[unquote(name)] = None if text == NULL else unquote(text)
    return found


def guess_columns(folders: Iterable[str], where: str) -> pa.Schema:
    """The columns that the folders of all files name. Raises `InvalidJob` where some have others."""
    texts: dict[str, set[str]] = {}
    first: str | None = None
    for each in folders:
        values = values_of(each)
        if first is not None and tuple(values) != tuple(values_of(first)):
            raise InvalidJob(
                f"{where}: some of its files are in folders as {first or 'of no column'}, others as "
                f"{each or 'of no column'}: read them as two sources, or name the columns to read in schema="
            )
        first = each if first is None else first
        for name, text in values.items():
            known = texts.setdefault(name, set())
            if text is not None:
                known.add(text)
    return pa.schema([(name, _guess(found)) for name, found in texts.items()])


def _guess(texts: set[str]) -> pa.DataType:
    """Whole numbers, also of two digits as `month=01`, dates, or text."""
    if texts and all(_INTEGER.fullmatch(text) for text in texts):
        return pa.int64()
    if texts and all(_DATE.fullmatch(text) for text in texts):
        return pa.date32()
    return pa.string()


def with_values(
    rows: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None], where: str
) -> pa.RecordBatch:
    """`rows` with the columns of `schema` that `values` has, in the order of `schema`. Raises `InvalidJob` for a value
    that is not of its column's type."""
    columns = [
        _repeated(values[field.name], field, rows.num_rows, where)
        if field.name in values
        else rows.column(rows.schema.get_field_index(field.name))
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else rows


def _repeated(text: str | None, field: pa.Field, count: int, where: str) -> pa.Array:
    if text is None:
        return pa.nulls(count, field.type)
    try:
        value = pc.cast(pa.scalar(text), field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidJob(
            f"{where}: its folder says {field.name}={text}, which is no {field.type}: give that column another type "
            "in schema="
        ) from error
    return pa.repeat(value, count)
