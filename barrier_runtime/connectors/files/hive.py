"""Folders as in Hive, `day=2026-01-01/country=DE/…`: the path has the values of some columns.

Names are escaped as in Spark and Hive. Empty text shares the folder of null, because Spark refuses empty names.
"""

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.folder_names import NULL, folder_name, say_empty
from barrier_runtime.data.values.text_columns import UNFIT, TextMisfit, column_of_texts
from barrier_runtime.state.errors import InvalidJob

_PART = re.compile(r"([^/=]+)=([^/]*)")
_INTEGER = re.compile(r"0|-?[1-9][0-9]{0,17}")
_TWO_DIGITS = re.compile(r"[0-9]{2}")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DAYS = datetime.date.min.toordinal() - 719_163, datetime.date.max.toordinal() - 719_163


def check_partitions(schema: pa.Schema, columns: Sequence[str], where: str) -> None:
    for name in columns:
        if name not in schema.names:
            raise InvalidJob(
                f"{where}: partition_by names the column {name!r}; the rows have {', '.join(schema.names)}: use these"
            )
        kind = schema.field(name).type
        plain = pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)
        if not name or name.startswith("."):
            raise InvalidJob(
                f"{where}: partition_by column {name!r} has folders that readers pass over: rename it with select()"
            )
        if not (plain or pa.types.is_boolean(kind) or pa.types.is_date(kind)):
            raise InvalidJob(
                f"{where}: partition_by column {name!r} is {kind}: use text, integers, booleans or dates, such as "
                f"select(…, day=pc.cast(pc.field({name!r}), 'date32'))"
            )
    if len(columns) == len(schema.names):
        raise InvalidJob(f"{where}: partition_by names every column, so files would have none: leave one out")


def by_folder(rows: pa.Table, columns: Sequence[str], where: str = "rows") -> dict[str, pa.Table]:
    """Rows by folder (`""`, or ending in a slash), without `columns`.
    Raises `InvalidJob` for a date without text.
    """
    if not columns or not rows.num_rows:
        return {"": rows} if rows.num_rows else {}
    codes = np.zeros(rows.num_rows, np.int64)
    names: list[tuple[np.ndarray, list[str]]] = []
    for name in columns:
        each = _encoded(rows.column(name).combine_chunks(), name, where)
        indices = each.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        names.append((indices, [folder_name(name, text) for text in _texts(each.dictionary, name, where)]))
        codes *= len(each.dictionary)
        codes += indices
        codes = np.unique(codes, return_inverse=True)[1].astype(np.int64, copy=False)
    _, firsts, inverse = np.unique(codes, return_index=True, return_inverse=True)
    folders = ["".join(f"{texts[indices[row]]}/" for indices, texts in names) for row in firsts.tolist()]
    rest = rows.drop_columns(list(columns))
    if len(folders) == 1:
        return {folders[0]: rest}
    order = np.argsort(inverse, kind="stable")
    ends = np.cumsum(np.bincount(inverse))
    together = rest.take(pa.array(order))
    found: dict[str, pa.Table] = {}
    start = 0
    for folder, end in zip(folders, ends.tolist(), strict=True):
        if folder in found:
            raise AssertionError(f"two values of {', '.join(columns)} have the folder {folder}")
        found[folder] = together.slice(start, end - start)
        start = end
    return found


def _encoded(column: pa.Array, name: str, where: str) -> pa.DictionaryArray:
    encoded = column.dictionary_encode(null_encoding="encode")
    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if not is_text or encoded.dictionary.index("").as_py() < 0:
        return encoded
    say_empty(name, where)
    filled = pc.if_else(pc.equal(column, ""), pa.scalar(None, column.type), column)
    return filled.dictionary_encode(null_encoding="encode")


def _texts(values: pa.Array, column: str, where: str) -> list[str | None]:
    kind = values.type
    if pa.types.is_date(kind):
        days = values.cast(pa.date32())
        number = days.cast(pa.int32())
        outside = pc.or_(pc.less(number, _DAYS[0]), pc.greater(number, _DAYS[1]))
        if pc.any(outside).as_py() or not days.cast(kind).equals(values):
            raise InvalidJob(
                f"{where}: partition_by column {column!r} has a date with a time of day, or beyond the years 1 to "
                "9999, which names no folder: filter it, or use a column of text"
            )
        values = days
    return list(values.cast(pa.string()).to_pylist())


def folders_of(path: str) -> str:
    found: list[str] = []
    for segment in reversed(path.split("/")[:-1]):
        if not _PART.fullmatch(segment):
            break
        found.insert(0, segment)
    return "/".join(found)


def values_of(folders: str) -> dict[str, str | None]:
    """Texts of the columns that folders name; None is null."""
    found: dict[str, str | None] = {}
    for segment in folders.split("/") if folders else ():
        encoded, _, text = segment.partition("=")
        name = _decoded(encoded)
        if name in found:
            raise InvalidJob(f"the folders {folders!r} name the column {name!r} twice: rename one of them")
        found[name] = None if text == NULL else _decoded(text)
    return found


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError as error:
        raise InvalidJob(f"the folder name {text!r} is percent-encoded, but not as UTF-8: rename the folder") from error


def guess_columns(folders: Iterable[str], where: str) -> pa.Schema:
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
    for pattern in (_INTEGER, _TWO_DIGITS):
        if texts and all(pattern.fullmatch(text) for text in texts):
            return pa.int64()
    if texts and all(map(_is_date, texts)):
        return pa.date32()
    return pa.string()


def _is_date(text: str) -> bool:
    if not _DATE.fullmatch(text):
        return False
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        return False
    return True


def check_guessed(values: Mapping[str, str | None], schema: pa.Schema, where: str) -> None:
    for name, text in values.items():
        kind = schema.field(name).type if name in schema.names else pa.string()
        if text is not None and not pa.types.is_string(kind) and _guess({text}) != kind:
            raise InvalidJob(
                f"{where}: its folder says {name}={text}, and {kind} was guessed of the folders before: give that "
                "column a type in types= or schema="
            )


def with_values(
    rows: pa.RecordBatch, schema: pa.Schema, values: Mapping[str, str | None], where: str
) -> pa.RecordBatch:
    """`rows` with all columns of `schema`; columns in `values` repeat a text.
    Raises `InvalidJob` for a misfit.
    """
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
        value = column_of_texts(pa.array([text]), field.type, trims=False)[0]
    except UNFIT as error:
        raise InvalidJob(
            f"{where}: its folder says {field.name}={text}, which is no {field.type}{_why(error)}: give that column "
            "another type in schema="
        ) from error
    return pa.repeat(value, count)


def _why(error: Exception) -> str:
    return f" ({error.why})" if isinstance(error, TextMisfit) else ""
