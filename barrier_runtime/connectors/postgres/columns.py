"""Which Arrow type may go into which PostgreSQL type, and rows as `COPY … (FORMAT csv)` reads them.

CSV because Arrow writes it in C++ without the GIL (several million rows/s) and the server parses it as fast as its
binary format, which only Python could make here (0.5 million rows/s). Every value is quoted and a null is empty, so
nothing is mistaken for a null.

Only what changes no value is taken: no rounding, no narrowing, no guess about time zones; the user casts. With one
exception: of nanoseconds, which PostgreSQL does not have, whole microseconds are kept.

| Arrow                                     | PostgreSQL                                                           |
|-------------------------------------------|----------------------------------------------------------------------|
| int8 … int64, uint8 … uint32              | smallint, integer, bigint that holds it; numeric                     |
| uint64                                    | numeric                                                              |
| float16, float32 / float64                | real, double precision / double precision; numeric without (p, s)    |
|                                           | from PostgreSQL 14 on, which has infinities                          |
| bool                                      | boolean                                                              |
| decimal                                   | numeric with room for all of its digits                              |
| string                                    | text, varchar(n) of up to n characters, char(n) of exactly n, uuid,  |
|                                           | json, jsonb, enums, … (the server checks)                            |
| binary                                    | bytea                                                                |
| timestamp without / with time zone        | timestamp / timestamptz                                              |
| date / time / duration                    | date / time / interval                                               |
| list                                      | array of one of the plain types above; json, jsonb                   |
| struct, map                               | json, jsonb                                                          |

Refused by value: the character U+0000, which no text of PostgreSQL has; dates before the year 1 or after 32767; -0.0 in
numeric. In key columns: what the server would take for an equal key (-0.0, digits below a microsecond, other spellings
of a uuid), and texts in types of which several texts are one value (inet, jsonb, …).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.json_values import json_values
from barrier_runtime.connectors.sink_bases.key_values import below_microseconds, negative_zeros
from barrier_runtime.connectors.sink_bases.table_columns import check_names
from barrier_runtime.state.errors import InvalidJob

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_TIMED_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}
_PYTHON_ROWS = 256
_HEADER = 4  # of a modifier
_UUID = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
_FIRST_DAY, _LAST_DAY = -719_162, 11_248_737  # 0001-01-01 and 32767-12-31, which CSV is written for
_DAY_US = 86_400_000_000
_FULL_INTERVAL, _ALL_DIGITS = 0x7FFF, 0xFFFF  # of an interval's modifier
_TEXTS = ("text", "varchar", "bpchar")
_NO_TEXT = {
    *("char", "name"),  # which cut off what has no room
    *("int2", "int4", "int8", "float4", "float8", "numeric", "money", "bool", "bytea", "oid"),
    *("date", "time", "timetz", "timestamp", "timestamptz", "interval"),
}


@dataclass(frozen=True)
class Column:
    """A column of the target. `base`: internal name of the type below a domain; `element`: the same, of an array."""

    name: str
    shown: str  # as people write the type
    base: str
    element: str | None = None
    typmod: int = -1
    not_null: bool = False
    filled: bool = False  # by a default or an identity, when no value is given
    generated: bool = False  # refuses values
    enum: bool = False
    infinities: bool = True  # numeric has them: from PostgreSQL 14 on


def converters(
    schema: pa.Schema, columns: Sequence[Column], table: str, where: str, key: Sequence[str] = ()
) -> tuple[Convert, ...]:
    """One function per column of `schema` that makes what Arrow writes as CSV. Raises `InvalidJob` for the first
    column that the table lacks or cannot hold, and for a column of the table that needs a value and gets none."""
    check_names(schema, columns, table, where)
    there = {column.name: column for column in columns}
    return tuple(_converter(field, there[field.name], field.name in key, table, where) for field in schema)


def encode_csv(batches: Sequence[pa.RecordBatch], convert: Sequence[Convert]) -> bytes:
    """The rows in order. Raises `pa.ArrowInvalid` for a value that its converter cannot take."""
    import pyarrow.csv

    rows = pa.Table.from_batches(batches).combine_chunks()
    sink = pa.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for batch in rows.to_batches():
        values = [_changed(*each) for each in zip(batch.schema.names, convert, batch.columns, strict=True)]
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(values, names=batch.schema.names), sink, options)
    data: bytes = sink.getvalue().to_pybytes()
    if b"\0" in data:
        _refuse_null_characters(rows)
    return data


def _changed(name: str, change: Convert, column: pa.Array) -> pa.Array:
    try:
        return change(column)
    except (pa.ArrowInvalid, InvalidJob) as error:
        raise pa.ArrowInvalid(f"column {name!r}: {error}") from error


def _refuse_null_characters(rows: pa.Table) -> None:
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        for value in column.to_pylist():
            if isinstance(value, str | list) and "\0" in "".join(each for each in value if isinstance(each, str)):
                raise pa.ArrowInvalid(
                    f"column {name!r}: {value!r} has the character U+0000, an invalid byte sequence in PostgreSQL"
                )


def _converter(field: pa.Field, column: Column, is_key: bool, table: str, where: str) -> Convert:
    if column.generated:
        raise InvalidJob(
            f"{where}: column {field.name!r} of table {table} is generated by the server: leave it out with select()"
        )
    found = _conversion(field.type, column)
    if found is None:
        raise InvalidJob(
            f"{where}: column {field.name!r} is {field.type}, in table {table} it is {column.shown}, which cannot hold "
            "every such value: cast it with select() or map_batches(), or change the column's type"
        )
    if is_key:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if _is_text(kind) and not (column.base in _TEXTS or column.base == "uuid" or column.enum):
            raise InvalidJob(
                f"{where}: key column {field.name!r} of table {table} is {column.shown}, of which different texts may "
                f"be one value: ALTER TABLE {table} ALTER COLUMN {field.name} TYPE text"
            )
        return _for_key(found, kind, column)
    return found


def _for_key(convert: Convert, kind: pa.DataType, column: Column) -> Convert:
    """Refuses values of a key that the server takes for others."""
    if pa.types.is_floating(kind):
        return _refusing(convert, negative_zeros, "is the key 0.0 to the server")
    if getattr(kind, "unit", "") == "ns":
        return _refusing(convert, below_microseconds, "has digits below a microsecond, which are not stored, in a key")
    if _is_text(kind) and column.base == "uuid":
        return _refusing(
            convert,
            lambda values: pc.invert(pc.match_substring_regex(values, _UUID)),
            "is another spelling of a uuid than the server's, in small letters with hyphens, in a key",
        )
    return convert


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view())


def _conversion(kind: pa.DataType, column: Column) -> Convert | None:
    """None: does not fit."""
    base, types = column.base, pa.types
    if types.is_dictionary(kind):
        plain = _conversion(kind.value_type, column)
        return None if plain is None else lambda values: plain(values.cast(kind.value_type))
    if types.is_null(kind):
        return _as_it_is
    if base in ("json", "jsonb") and types.is_nested(kind):
        return _as_json
    if column.element is not None and (types.is_list(kind) or types.is_large_list(kind)):
        # The modifier of the array, numeric(p, s) or the like, is that of its elements.
        inner = _conversion(kind.value_type, replace(column, base=column.element, element=None))
        plain_elements = not (types.is_nested(kind.value_type) or types.is_binary(kind.value_type))
        return None if inner is None or not plain_elements else lambda values: _as_array_literals(values, inner)
    if column.element is not None:
        return None
    if types.is_temporal(kind):
        return _temporal(kind, column)
    if _is_text(kind):
        return None if base in _NO_TEXT else _text(_casting(pa.string() if kind == pa.string_view() else kind), column)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _as_hex if base == "bytea" else None
    return _number(kind, column)


def _text(convert: Convert, column: Column) -> Convert:
    """The server cuts spaces that varchar(n) has no room for, and fills char(n) up with spaces."""
    if column.base not in ("varchar", "bpchar") or column.typmod < _HEADER:
        return convert
    most = column.typmod - _HEADER
    if column.base == "varchar":
        return _refusing(
            convert,
            lambda values: pc.and_(pc.ends_with(values, " "), pc.greater(pc.utf8_length(values), most)),
            f"is longer than {column.shown}, which cuts spaces at the end",
        )
    return _refusing(
        convert,
        lambda values: pc.not_equal(pc.utf8_length(values), most),
        f"has not exactly {most} characters, and {column.shown} adds or cuts spaces: make the column varchar({most})",
    )


def _number(kind: pa.DataType, column: Column) -> Convert | None:
    base, types = column.base, pa.types
    if types.is_boolean(kind):
        return _as_it_is if base == "bool" else None
    if types.is_integer(kind):
        bits = kind.bit_width + (1 if types.is_unsigned_integer(kind) else 0)
        if base == "numeric":
            return _as_it_is if _has_room(column.typmod, 0, 0) else None
        return _as_it_is if bits <= _INTEGER_BITS.get(base, 0) else None
    if types.is_floating(kind):
        if base == "float8":
            return _casting(pa.float64())
        if base == "numeric" and column.typmod < 0 and column.infinities:
            plain = _casting(pa.float64() if kind == pa.float64() else pa.float32())
            return _refusing(plain, negative_zeros, "is 0 as numeric")
        return _casting(pa.float32()) if base == "float4" and kind != pa.float64() else None
    if types.is_decimal(kind) and base == "numeric":
        return _casting(pa.string()) if _has_room(column.typmod, kind.precision, kind.scale) else None
    return None


def _has_room(typmod: int, precision: int, scale: int) -> bool:
    """`numeric(p, s)` would round what has more than s digits after the point."""
    if typmod < 0:
        return True
    digits = ((typmod - _HEADER) >> 16) & 0xFFFF
    after_point = (((typmod - _HEADER) & 0x7FF) ^ 1024) - 1024
    if not precision:  # a whole number, which the server refuses where it is too large
        return after_point >= 0
    return scale <= after_point and precision - scale <= digits - after_point


def _temporal(kind: pa.DataType, column: Column) -> Convert | None:
    base, types = column.base, pa.types
    if types.is_date(kind):
        in_days = _casting(pa.date32())
        return _in_range(in_days, pa.int32(), _FIRST_DAY, _LAST_DAY) if base == "date" else None
    if not _keeps_digits(column, _TIMED_DIGITS[kind.unit]):
        return None
    if types.is_timestamp(kind):
        if base != ("timestamp" if kind.tz is None else "timestamptz"):
            return None
        moments = _in_microseconds(pa.timestamp("us", None if kind.tz is None else "UTC"))
        return _in_range(moments, pa.int64(), _FIRST_DAY * _DAY_US, (_LAST_DAY + 1) * _DAY_US - 1)
    if types.is_time(kind):
        return _in_microseconds(pa.time64("us")) if base == "time" else None
    return _as_interval if types.is_duration(kind) and base == "interval" else None


def _keeps_digits(column: Column, digits: int) -> bool:
    if column.typmod < 0:
        return True
    if column.base == "interval":
        fields, kept = column.typmod >> 16 & _FULL_INTERVAL, column.typmod & _ALL_DIGITS
        return fields == _FULL_INTERVAL and (kept == _ALL_DIGITS or kept >= digits)
    return column.typmod >= digits


# ------------------------------------------------------------ values


def _refusing(convert: Convert, bad: Convert, why: str) -> Convert:
    """`convert`, unless `bad` gives true for a value, which then raises `pa.ArrowInvalid`."""

    def checked(values: pa.Array) -> pa.Array:
        at = pc.index(bad(values), True).as_py()
        if at >= 0:
            raise pa.ArrowInvalid(f"{values[at].as_py()!r} {why}")
        return convert(values)

    return checked


def _in_range(convert: Convert, stored: pa.DataType, least: int, most: int) -> Convert:
    """Dates or timestamps that are written as CSV, and that PostgreSQL reads, with years from 1."""

    def checked(values: pa.Array) -> pa.Array:
        made = convert(values)
        numbers = made.view(stored)
        bad = pc.or_(pc.less(numbers, least), pc.greater(numbers, most))
        if (at := pc.index(bad, True).as_py()) >= 0:
            raise pa.ArrowInvalid(
                f"a time of {numbers[at].as_py()} {'days' if stored == pa.int32() else 'microseconds'} since 1970 is "
                "before the year 1 or after 32767"
            )
        return made

    return checked


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


def _casting(kind: pa.DataType) -> Convert:
    return lambda values: values if values.type == kind else values.cast(kind)


def _in_microseconds(kind: pa.DataType) -> Convert:
    """Nanoseconds are cut off; what is out of range is an error all the same."""
    return lambda values: values.cast(kind, safe=getattr(values.type, "unit", "") != "ns")


def _by_value(
    values: pa.Array, spelled: Callable[[Any], str], python: Callable[[pa.Array], list[Any]] = pa.Array.to_pylist
) -> pa.Array:
    """Text made by Python, in small chunks: holding the GIL for long delays every record that comes meanwhile."""
    texts: list[str | None] = []
    for start in range(0, len(values), _PYTHON_ROWS):
        chunk = python(values.slice(start, _PYTHON_ROWS))
        texts += [None if each is None else spelled(each) for each in chunk]
        sleep(0)
    return pa.array(texts, pa.string())


def _as_hex(values: pa.Array) -> pa.Array:
    return _by_value(values, lambda each: "\\x" + each.hex())


def _as_interval(values: pa.Array) -> pa.Array:
    microseconds = _in_microseconds(pa.duration("us"))(values).cast(pa.int64()).cast(pa.string())
    return pc.binary_join_element_wise(microseconds, "microseconds", " ")


def _as_json(values: pa.Array) -> pa.Array:
    encode = msgspec.json.Encoder().encode
    return _by_value(values, lambda each: encode(each).decode(), json_values)


def _as_array_literals(values: pa.Array, inner: Convert) -> pa.Array:
    """`{"1",NULL,"a \\"quoted\\" one"}`: every element quoted, so that none is mistaken for a null."""
    texts = inner(values.flatten()).cast(pa.string())
    lengths = pc.fill_null(pc.list_value_length(values), 0)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    lists = pa.LargeListArray.from_arrays(offsets, texts, mask=values.is_null())
    return _by_value(lists, lambda elements: "{" + ",".join(map(_element, elements)) + "}")


def _element(text: str | None) -> str:
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
