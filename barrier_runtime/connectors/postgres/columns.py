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
| string                                    | text, varchar, char, uuid, json, jsonb, enums, … (the server checks) |
| binary                                    | bytea                                                                |
| timestamp without / with time zone        | timestamp / timestamptz                                              |
| date / time / duration                    | date / time / interval                                               |
| list                                      | array of one of the plain types above; json, jsonb                   |
| struct, map                               | json, jsonb                                                          |
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import sleep
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.state.errors import InvalidJob

Convert: TypeAlias = Callable[[pa.Array], pa.Array]

_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_TIMED_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}
_PYTHON_ROWS = 256
_NO_TEXT = {
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
    infinities: bool = True  # numeric has them: from PostgreSQL 14 on


def converters(schema: pa.Schema, columns: Sequence[Column], table: str, where: str) -> tuple[Convert, ...]:
    """One function per column of `schema` that makes what Arrow writes as CSV. Raises `InvalidJob` for the first
    column that the table lacks or cannot hold, and for a column of the table that needs a value and gets none."""
    there = {column.name: column for column in columns}
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidJob(f"{where}: column {name!r} is in the rows twice: rename one of them with select()")
        if name not in there:
            raise InvalidJob(
                f"{where}: the rows have a column {name!r}, table {table} has not; it has {', '.join(there)}: "
                f"ALTER TABLE {table} ADD COLUMN, or select() other columns"
            )
    for column in columns:
        if column.not_null and not column.filled and not column.generated and column.name not in schema.names:
            raise InvalidJob(
                f"{where}: column {column.name!r} of table {table} is NOT NULL without a default, and the rows have "
                "no such column: select() it, or give the column a default"
            )
    return tuple(_converter(field, there[field.name], table, where) for field in schema)


def encode_csv(batches: Sequence[pa.RecordBatch], convert: Sequence[Convert]) -> bytes:
    """The rows in order. Raises `pa.ArrowInvalid` for a value that its converter cannot take."""
    import pyarrow.csv

    rows = pa.Table.from_batches(batches).combine_chunks()
    sink = pa.BufferOutputStream()
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for batch in rows.to_batches():
        values = [change(column) for change, column in zip(convert, batch.columns, strict=True)]
        pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(values, names=batch.schema.names), sink, options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _converter(field: pa.Field, column: Column, table: str, where: str) -> Convert:
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
    return found


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
        # Elements have no numeric(p, s) or the like of their own to check here: the server rounds as it does for all.
        inner = _conversion(kind.value_type, replace(column, base=column.element, element=None))
        plain_elements = not (types.is_nested(kind.value_type) or types.is_binary(kind.value_type))
        return None if inner is None or not plain_elements else lambda values: _as_array_literals(values, inner)
    if column.element is not None:
        return None
    if types.is_temporal(kind):
        return _temporal(kind, column)
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        return None if base in _NO_TEXT else _casting(pa.string() if kind == pa.string_view() else kind)
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _as_hex if base == "bytea" else None
    return _number(kind, column)


def _number(kind: pa.DataType, column: Column) -> Convert | None:
    base, types = column.base, pa.types
    if types.is_boolean(kind):
        return _as_it_is if base == "bool" else None
    if types.is_integer(kind):
        bits = kind.bit_width + (1 if types.is_unsigned_integer(kind) else 0)
        return _as_it_is if base == "numeric" or bits <= _INTEGER_BITS.get(base, 0) else None
    if types.is_floating(kind):
        if base == "float8":
            return _casting(pa.float64())
        if base == "numeric" and column.typmod < 0 and column.infinities:
            return _casting(pa.float64() if kind == pa.float64() else pa.float32())
        return _casting(pa.float32()) if base == "float4" and kind != pa.float64() else None
    if types.is_decimal(kind) and base == "numeric":
        return _casting(pa.string()) if _has_room(column.typmod, kind.precision, kind.scale) else None
    return None


def _has_room(typmod: int, precision: int, scale: int) -> bool:
    """`numeric(p, s)` would round what has more than s digits after the point."""
    if typmod < 0:
        return True
    digits = ((typmod - 4) >> 16) & 0xFFFF
    after_point = (((typmod - 4) & 0x7FF) ^ 1024) - 1024
    return scale <= after_point and precision - scale <= digits - after_point


def _temporal(kind: pa.DataType, column: Column) -> Convert | None:
    base, types = column.base, pa.types
    if types.is_date(kind):
        return _casting(pa.date32()) if base == "date" else None
    exact = base == "interval" or column.typmod < 0 or _TIMED_DIGITS[kind.unit] <= column.typmod
    if not exact:
        return None
    if types.is_timestamp(kind):
        if base != ("timestamp" if kind.tz is None else "timestamptz"):
            return None
        return _in_microseconds(pa.timestamp("us", None if kind.tz is None else "UTC"))
    if types.is_time(kind):
        return _in_microseconds(pa.time64("us")) if base == "time" else None
    return _as_interval if types.is_duration(kind) and base == "interval" else None


# ------------------------------------------------------------ values


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


def _casting(kind: pa.DataType) -> Convert:
    return lambda values: values if values.type == kind else values.cast(kind)


def _in_microseconds(kind: pa.DataType) -> Convert:
    """Nanoseconds are cut off; what is out of range is an error all the same."""
    return lambda values: values.cast(kind, safe=getattr(values.type, "unit", "") != "ns")


def _by_value(values: pa.Array, spelled: Callable[[Any], str]) -> pa.Array:
    """Text made by Python, in small chunks: holding the GIL for long delays every record that comes meanwhile."""
    texts: list[str | None] = []
    for start in range(0, len(values), _PYTHON_ROWS):
        chunk = values.slice(start, _PYTHON_ROWS).to_pylist()
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
    plain: Callable[[Any], Any] = dict if pa.types.is_map(values.type) else lambda each: each
    return _by_value(values, lambda each: encode(plain(each)).decode())


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
