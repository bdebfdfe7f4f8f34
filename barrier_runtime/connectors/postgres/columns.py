"""Rules that match Arrow types with PostgreSQL types, and rows as `COPY … (FORMAT csv)` reads them.

docs/postgres.md lists the types. Only conversions that keep every value are accepted; nanoseconds are cut to
microseconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from barrier_runtime.connectors.sink_bases.sql.columns import (
    TIMED_DIGITS,
    ColumnRules,
    Fit,
    Refusal,
    TableColumn,
    as_json,
    bits_of,
    by_value,
    casting,
    family_of,
    in_microseconds,
    negative_zeros,
    with_repeated_keys,
)

_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_HEADER = 4  # of a modifier
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_FIRST_DAY, _LAST_DAY = -719_162, 11_248_737  # 0001-01-01 and 32767-12-31: beyond, Arrow's CSV and PostgreSQL differ
_DAY_US = 86_400_000_000
_FULL_INTERVAL, _ALL_DIGITS = 0x7FFF, 0xFFFF  # of an interval without restrictions
_TEXTS = ("text", "varchar", "bpchar")
_NO_TEXT = {
    *("char", "name"),  # types that truncate long text
    *("int2", "int4", "int8", "float4", "float8", "numeric", "money", "bool", "bytea", "oid"),
    *("date", "time", "timetz", "timestamp", "timestamptz", "interval"),
}
_NO_ARRAY_OF = ("nested", "bytes", "")


@dataclass(frozen=True)
class Column(TableColumn):
    """Column. `base`: internal type name below any domain. `element`: type name of an array's elements."""

    element: str | None = None
    typmod: int = -1
    enum: bool = False
    infinities: bool = True  # from PostgreSQL 14 on


def encode_csv(rows: pa.RecordBatch) -> bytes:
    """Returns CSV, values quoted, nulls empty. Raises `pa.ArrowInvalid` for U+0000."""
    import pyarrow.csv

    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(rows, sink, pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid"))
    data: bytes = sink.getvalue().to_pybytes()
    if b"\0" in data:
        _refuse_null_characters(rows)
    return data


def _refuse_null_characters(rows: pa.RecordBatch) -> None:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for value in column.to_pylist():
            if isinstance(value, str) and "\0" in value:
                raise pa.ArrowInvalid(
                    f"column {name!r}: {value!r} has the character U+0000, an invalid byte sequence in PostgreSQL"
                )


def _integer(kind: pa.DataType, column: Column) -> Fit | None:
    if column.base == "numeric":
        return Fit() if _has_room(column.typmod, 0, 0) else None
    return Fit() if bits_of(kind) <= _INTEGER_BITS.get(column.base, 0) else None


def _float(kind: pa.DataType, column: Column) -> Fit | None:
    if column.base == "float8":
        return Fit(casting(pa.float64()))
    if column.base == "numeric" and column.typmod < 0 and column.infinities:
        plain = casting(pa.float64() if kind == pa.float64() else pa.float32())
        return Fit(plain, ((negative_zeros, "is -0.0, which is 0 as numeric"),))
    return Fit(casting(pa.float32())) if column.base == "float4" and kind != pa.float64() else None


def _decimal(kind: pa.DataType, column: Column) -> Fit | None:
    fits = column.base == "numeric" and _has_room(column.typmod, kind.precision, kind.scale)
    return Fit(casting(pa.string())) if fits else None


def _has_room(typmod: int, precision: int, scale: int) -> bool:
    if typmod < 0:
        return True
    digits = ((typmod - _HEADER) >> 16) & 0xFFFF
    after_point = (((typmod - _HEADER) & 0x7FF) ^ 1024) - 1024
    if not precision:  # an integer; the server refuses integers that are too large
        return after_point >= 0
    return scale <= after_point and precision - scale <= digits - after_point


def _text(kind: pa.DataType, column: Column) -> Fit | None:
    if column.base in _NO_TEXT or column.element is not None:
        return None
    convert = casting(pa.string() if kind == pa.string_view() else kind)
    if column.base == "jsonb":
        return Fit(convert, ((with_repeated_keys, "has an object with a key twice, of which jsonb keeps one"),))
    if column.base not in ("varchar", "bpchar") or column.typmod < _HEADER:
        return Fit(convert)
    most = column.typmod - _HEADER
    if column.base == "varchar":
        cut: Refusal = (
            lambda values: pc.and_(pc.ends_with(values, " "), pc.greater(pc.utf8_length(values), most)),
            f"is longer than {column.shown}, which cuts spaces at the end",
        )
        return Fit(convert, (cut,))
    filled: Refusal = (
        lambda values: pc.not_equal(pc.utf8_length(values), most),
        f"has not exactly {most} characters, and {column.shown} adds or cuts spaces: make the column varchar({most})",
    )
    return Fit(convert, (filled,))


def _bytes(kind: pa.DataType, column: Column) -> Fit | None:
    return Fit(lambda values: by_value(values, lambda each: "\\x" + each.hex())) if column.base == "bytea" else None


def _date(kind: pa.DataType, column: Column) -> Fit | None:
    in_days = casting(pa.date32())
    return Fit(in_days, (_out_of_range(pa.int32(), _FIRST_DAY, _LAST_DAY),)) if column.base == "date" else None


def _timestamp(kind: pa.DataType, column: Column) -> Fit | None:
    if column.base != ("timestamp" if kind.tz is None else "timestamptz") or not _keeps_digits(kind, column):
        return None
    moments = in_microseconds(pa.timestamp("us", None if kind.tz is None else "UTC"))
    return Fit(moments, (_out_of_range(pa.int64(), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1),))


def _out_of_range(stored: pa.DataType, least: int, most: int) -> Refusal:
    def bad(values: pa.Array) -> pa.Array:
        return pc.or_(pc.less(values.view(stored), least), pc.greater(values.view(stored), most))

    return bad, "is a time before the year 1 or after 32767"


def _time(kind: pa.DataType, column: Column) -> Fit | None:
    fits = column.base == "time" and _keeps_digits(kind, column)
    return Fit(in_microseconds(pa.time64("us"))) if fits else None


def _duration(kind: pa.DataType, column: Column) -> Fit | None:
    return Fit(_as_interval) if column.base == "interval" and _keeps_digits(kind, column) else None


def _as_interval(values: pa.Array) -> pa.Array:
    microseconds = in_microseconds(pa.duration("us"))(values).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(microseconds, "microseconds", " ")


def _keeps_digits(kind: pa.DataType, column: Column) -> bool:
    if column.typmod < 0:
        return True
    digits = TIMED_DIGITS[kind.unit]
    if column.base == "interval":
        fields, kept = column.typmod >> 16 & _FULL_INTERVAL, column.typmod & _ALL_DIGITS
        return fields == _FULL_INTERVAL and (kept == _ALL_DIGITS or kept >= digits)
    return column.typmod >= digits


def _nested(kind: pa.DataType, column: Column) -> Fit | None:
    if column.base in ("json", "jsonb"):
        return Fit(as_json)
    if column.element is None or not (types.is_list(kind) or types.is_large_list(kind)):
        return None
    element = kind.value_type.value_type if types.is_dictionary(kind.value_type) else kind.value_type
    inner = POSTGRES_COLUMNS.fit(element, replace(column, base=column.element, element=None))
    if inner is None or family_of(element) in _NO_ARRAY_OF:
        return None
    return Fit(lambda values: _as_array_literals(values, element, inner))


def _as_array_literals(values: pa.Array, element: pa.DataType, inner: Fit) -> pa.Array:
    """Returns `{"1",NULL,"a \\"quoted\\" one"}`: quoted elements never read as null."""
    elements = inner.convert(values.flatten().cast(element))
    for refused, why in inner.refusals:
        if (at := pc.index(refused(elements), True).as_py()) >= 0:
            raise pa.ArrowInvalid(f"{elements[at].as_py()!r} {why}")
    texts = elements.cast(pa.string())
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    lists = pa.LargeListArray.from_arrays(offsets, texts, mask=values.is_null())
    return by_value(lists, lambda elements: "{" + ",".join(map(_element, elements)) + "}")


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _no_key(family: str, kind: pa.DataType, column: Column) -> str:
    if family == "text" and not (column.base in _TEXTS or column.base == "uuid" or column.enum):
        return (
            f"is {column.shown}, of which different texts may be one value: ALTER TABLE {{0}} ALTER COLUMN {{1}} "
            "TYPE text"
        )
    return ""


def _in_key(family: str, kind: pa.DataType, column: Column) -> Sequence[Refusal]:
    if family == "float":
        return ((negative_zeros, "is -0.0, which is the key 0.0 to the server"),)
    if family == "text" and column.base == "uuid":
        return (
            (
                lambda values: pc.invert(pc.match_substring_regex(values, _UUID)),
                "is another spelling of a uuid than the server's, in small letters with hyphens, in a key",
            ),
        )
    return ()


POSTGRES_COLUMNS = ColumnRules(
    {
        "bool": lambda kind, column: Fit() if column.base == "bool" else None,
        "integer": _integer,
        "float": _float,
        "decimal": _decimal,
        "text": _text,
        "bytes": _bytes,
        "timestamp": _timestamp,
        "date": _date,
        "time": _time,
        "duration": _duration,
        "nested": _nested,
    },
    refused_in_key=_no_key,
    in_key=_in_key,
)
