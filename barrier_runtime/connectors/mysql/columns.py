"""Which Arrow type may go into which column of MySQL, and the rows as they are staged: what the server will take.

Rows are checked here, before their checkpoint is decided, and not by the server: so checkpoints go on while it is away.
Only what changes no value is taken: no rounding, no narrowing, no guess about time zones; the user casts. With one
exception: of nanoseconds, which MySQL does not have, whole microseconds are kept.

| Arrow                            | MySQL and MariaDB                                                            |
|----------------------------------|------------------------------------------------------------------------------|
| int8 … int64, uint8 … uint64     | an integer, signed or unsigned, that holds it; decimal with room for it      |
| float16, float32 / float64       | float, double / double; no NaN, no infinity and no -0.0, which it lacks      |
| bool                             | tinyint(1) and every other integer                                           |
| decimal                          | decimal with room for all of its digits                                      |
| string                           | varchar, text of the character set utf8mb4, json; char, unless it ends with  |
|                                  | a space, which char removes                                                  |
| binary                           | varbinary, blob; binary(n) for a fixed size of n                             |
| timestamp without / with a zone  | datetime / timestamp, with as many digits of a second                        |
| date / time                      | date / time                                                                  |
| list, struct, map                | json, or text                                                                |

Unsigned columns take unsigned numbers and booleans; float(m, d) and double(m, d), which round, take nothing. Values of
key columns that the server would take for equal are refused: trailing spaces where the collation pads, and digits below
a microsecond.
"""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import sleep
from typing import TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.sink_bases.json_values import json_values
from barrier_runtime.connectors.sink_bases.key_values import (
    below_microseconds,
    negative_zeros,
    with_trailing_spaces,
)
from barrier_runtime.connectors.sink_bases.table_columns import check_names
from barrier_runtime.data.rows import preview
from barrier_runtime.state.errors import InvalidJob

Convert: TypeAlias = Callable[[pa.Array], pa.Array]
Check: TypeAlias = Callable[[pa.Array], "tuple[pa.Array, str] | None"]

_INTEGER_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_TEXT = {"char", "varchar", "tinytext", "text", "mediumtext", "longtext"}
_BINARY = {"varbinary", "tinyblob", "blob", "mediumblob", "longblob"}
_TIMED_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 6}
_MICROSECONDS = pa.timestamp("us")
_TIMES = {  # of a column type: what it can hold
    "datetime": (datetime.datetime(1000, 1, 1), datetime.datetime(9999, 12, 31, 23, 59, 59)),
    "timestamp": (datetime.datetime(1970, 1, 1, 0, 0, 1), datetime.datetime(2038, 1, 19, 3, 14, 7)),
    "date": (datetime.date(1000, 1, 1), datetime.date(9999, 12, 31)),
}
_PYTHON_ROWS = 256
_AROUND_A_VALUE = 8  # bytes of a statement: quotes, a comma, the name of its character set


@dataclass(frozen=True)
class TableColumn:
    """A column of the target, as `information_schema` has it."""

    name: str
    shown: str  # as people write the type
    base: str
    unsigned: bool = False
    not_null: bool = False
    filled: bool = False  # by a default or by counting, when no value is given
    counted: bool = False  # auto_increment
    generated: bool = False  # refuses values
    characters: int | None = None
    octets: int | None = None
    precision: int = 0
    scale: int = 0
    second_digits: int = 0
    charset: str | None = None
    collation: str | None = None

    @property
    def rounds(self) -> bool:
        """float(m, d) and double(m, d) keep d digits."""
        return self.base in ("float", "double") and "," in self.shown

    @property
    def is_text(self) -> bool:
        return self.base in _TEXT

    @property
    def tells_texts_apart(self) -> bool:
        """Whether different texts are different keys, but for trailing spaces."""
        return not self.is_text or str(self.collation).endswith("_bin") or self.collation == "binary"

    @property
    def pads(self) -> bool:
        """Whether trailing spaces do not count."""
        return self.is_text and not str(self.collation).endswith(("_nopad_bin", "_0900_bin"))


@dataclass(frozen=True)
class Fitted:
    """What becomes of one column of the rows."""

    column: TableColumn
    convert: Convert
    checks: tuple[Check, ...]


def fitted(
    schema: pa.Schema, columns: Sequence[TableColumn], table: str, where: str, key: Sequence[str] = ()
) -> tuple[Fitted, ...]:
    """Raises `InvalidJob` for the first column that the table lacks or cannot hold, and for a column of the table that
    needs a value and gets none."""
    check_names(schema, columns, table, where)
    there = {column.name: column for column in columns}
    return tuple(
        _for_key(_fitted(field, there[field.name], table, where), field.type)
        if field.name in key
        else _fitted(field, there[field.name], table, where)
        for field in schema
    )


def checked(batch: pa.RecordBatch, fits: Sequence[Fitted], packet: int, table: str, where: str) -> pa.RecordBatch:
    """The rows as they are staged. `packet`: bytes that a statement may have. Raises `InvalidJob` for the first row
    that the server would refuse by its types."""
    made = []
    size = pa.array([0] * batch.num_rows, pa.int64())
    for values, fit in zip(batch.columns, fits, strict=True):
        try:
            converted = fit.convert(values)
        except (pa.ArrowInvalid, InvalidJob) as error:
            raise InvalidJob(
                f"{where}: column {fit.column.name!r} cannot be written to {table}: {error}. Filter or correct such "
                "rows before the sink"
            ) from error
        for check in (*fit.checks, *((_no_nulls,) if fit.column.not_null else ())):
            found = check(converted)
            if found is not None and (row := pc.index(found[0], True).as_py()) >= 0:
                raise InvalidJob(
                    f"{where}: column {fit.column.name!r} of a row {found[1]}, in table {table} it is "
                    f"{fit.column.shown}{' NOT NULL' if fit.column.not_null else ''}: filter or correct such rows, or "
                    f"change the column: {preview(batch, row)}"
                )
        size = pc.add(size, _bytes_of(converted))
        made.append(converted)
    largest = pc.max(size).as_py() or 0
    if largest > packet // 2:  # each byte may need an escape
        row = pc.index(size, largest).as_py()
        raise InvalidJob(
            f"{where}: a row of {largest} bytes may not fit into one statement: raise max_allowed_packet of the server "
            f"({packet} bytes) above twice that, or make the row smaller: {preview(batch, row)}"
        )
    return pa.RecordBatch.from_arrays(made, names=batch.schema.names)


# ------------------------------------------------------------ types


def _fitted(field: pa.Field, column: TableColumn, table: str, where: str) -> Fitted:
    if column.generated:
        raise InvalidJob(
            f"{where}: column {field.name!r} of table {table} is generated by the server: leave it out with select()"
        )
    if column.base in _TEXT and column.charset != "utf8mb4" and not pa.types.is_null(field.type):
        raise InvalidJob(
            f"{where}: column {field.name!r} of table {table} has the character set {column.charset}, which lacks "
            f"characters: ALTER TABLE {table} CONVERT TO CHARACTER SET utf8mb4"
        )
    found = _conversion(field.type, column)
    if found is None:
        zone = ""
        if pa.types.is_timestamp(field.type) and column.base in ("datetime", "timestamp"):
            zone = "; times with a zone go into timestamp, those without into datetime"
        raise InvalidJob(
            f"{where}: column {field.name!r} is {field.type}, in table {table} it is {column.shown}, which cannot hold "
            f"every such value{zone}: cast it with select() or map_batches(), or change the column's type"
        )
    return Fitted(column, *found)


def _for_key(fit: Fitted, kind: pa.DataType) -> Fitted:
    """Refuses values of a key that the server takes for others."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    checks: tuple[Check, ...] = fit.checks
    convert = fit.convert
    if fit.column.pads:
        checks = (*checks, lambda values: (with_trailing_spaces(values), "ends with a space, which does not count"))
    if getattr(kind, "unit", "") == "ns":

        def convert(values: pa.Array) -> pa.Array:
            if pc.any(below_microseconds(values)).as_py():
                raise pa.ArrowInvalid("a key has digits below a microsecond, which are not stored")
            return fit.convert(values)

    return Fitted(fit.column, convert, checks)


def _conversion(kind: pa.DataType, column: TableColumn) -> tuple[Convert, tuple[Check, ...]] | None:
    """None: does not fit."""
    base, types = column.base, pa.types
    if types.is_dictionary(kind):
        plain = _conversion(kind.value_type, column)
        return plain and (lambda values: plain[0](values.cast(kind.value_type)), plain[1])
    if types.is_null(kind):
        return _as_it_is, ()
    if types.is_nested(kind):
        return (_as_json, (_no_longer_than(column),)) if base in _TEXT or base == "json" else None
    if types.is_string(kind) or types.is_large_string(kind) or kind == pa.string_view():
        if base == "json":
            return _casting(pa.string()), (_is_json,)
        checks = (_no_longer_than(column), *((_no_space_at_end,) if base == "char" else ()))
        return (_casting(pa.string()), checks) if base in _TEXT else None
    if types.is_fixed_size_binary(kind) and base == "binary":
        return (_casting(pa.binary()), ()) if kind.byte_width == column.octets else None
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return (_casting(pa.binary()), (_no_longer_than(column),)) if base in _BINARY else None
    if types.is_temporal(kind):
        return _temporal(kind, column)
    return _number(kind, column)


def _number(kind: pa.DataType, column: TableColumn) -> tuple[Convert, tuple[Check, ...]] | None:
    base, types = column.base, pa.types
    if types.is_boolean(kind):
        return (_casting(pa.int8()), ()) if base in _INTEGER_BITS else None
    if column.unsigned and not types.is_unsigned_integer(kind):
        return None
    if types.is_integer(kind):
        bits = kind.bit_width
        if base == "decimal":
            digits = {8: 3, 16: 5, 32: 10, 64: 20}[bits]
            return (_as_it_is, ()) if digits <= column.precision - column.scale else None
        if types.is_unsigned_integer(kind):
            holds = bits <= _INTEGER_BITS.get(base, 0) - (0 if column.unsigned else 1)
        else:
            holds = bits <= _INTEGER_BITS.get(base, 0)
        return (_as_it_is, ()) if holds else None
    if types.is_floating(kind):
        holds = not column.rounds and (base == "double" or (base == "float" and kind != pa.float64()))
        return (_casting(pa.float64()), (_finite, _no_negative_zero)) if holds else None
    if types.is_decimal(kind) and base == "decimal":
        room = kind.scale <= column.scale and kind.precision - kind.scale <= column.precision - column.scale
        return (_as_it_is, ()) if room else None
    return None


def _temporal(kind: pa.DataType, column: TableColumn) -> tuple[Convert, tuple[Check, ...]] | None:
    base, types = column.base, pa.types
    if types.is_date(kind):
        return (_casting(pa.date32()), (_in_range(base),)) if base == "date" else None
    if types.is_duration(kind) or _TIMED_DIGITS[kind.unit] > column.second_digits:
        return None
    if types.is_timestamp(kind):
        if base != ("datetime" if kind.tz is None else "timestamp"):
            return None
        return _in_microseconds(_MICROSECONDS), (_in_range(base),)
    return (_in_microseconds(pa.time64("us")), ()) if types.is_time(kind) and base == "time" else None


# ------------------------------------------------------------ values


def _as_it_is(values: pa.Array) -> pa.Array:
    return values


def _casting(kind: pa.DataType) -> Convert:
    return lambda values: values if values.type == kind else values.cast(kind)


def _in_microseconds(kind: pa.DataType) -> Convert:
    """Nanoseconds are cut off; a zone is taken away: what is stored is in UTC, as the session is."""

    def convert(values: pa.Array) -> pa.Array:
        safe = values.type.unit != "ns"
        if pa.types.is_timestamp(values.type) and values.type.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit, "UTC")).cast(pa.timestamp(values.type.unit))
        return values.cast(kind, safe=safe)

    return convert


def _as_json(values: pa.Array) -> pa.Array:
    """Text made by Python, in small chunks: holding the interpreter for long delays every record that comes
    meanwhile.
    """
    encode = msgspec.json.Encoder().encode
    texts: list[str | None] = []
    for start in range(0, len(values), _PYTHON_ROWS):
        chunk = json_values(values.slice(start, _PYTHON_ROWS))
        texts += [None if each is None else encode(each).decode() for each in chunk]
        sleep(0)
    return pa.array(texts, pa.string())


def _bytes_of(values: pa.Array) -> pa.Array:
    if pa.types.is_string(values.type) or pa.types.is_binary(values.type):
        lengths = pc.fill_null(pc.binary_length(values), 0).cast(pa.int64())
        return pc.add(lengths, _AROUND_A_VALUE)
    return pa.array([32] * len(values), pa.int64())


# ------------------------------------------------------------ what a value may be


def _no_nulls(values: pa.Array) -> tuple[pa.Array, str] | None:
    return (values.is_null(), "is null") if values.null_count else None


def _no_space_at_end(values: pa.Array) -> tuple[pa.Array, str] | None:
    return with_trailing_spaces(values), "ends with a space, which char removes"


def _finite(values: pa.Array) -> tuple[pa.Array, str] | None:
    return pc.invert(pc.is_finite(values)), "is not a number that MySQL has (NaN or infinity)"


def _no_negative_zero(values: pa.Array) -> tuple[pa.Array, str] | None:
    return negative_zeros(values), "is -0.0, which MySQL stores as 0.0 (x + 0.0 in a select() makes it so)"


def _is_json(values: pa.Array) -> tuple[pa.Array, str] | None:
    bad = []
    for text in values.to_pylist():
        try:
            bad.append(text is not None and msgspec.json.decode(text) is ...)
        except msgspec.DecodeError:
            bad.append(True)
    return pa.array(bad, pa.bool_()), "is not JSON"


def _no_longer_than(column: TableColumn) -> Check:
    def check(values: pa.Array) -> tuple[pa.Array, str] | None:
        if column.octets is None:
            return None
        too_long = pc.greater(pc.binary_length(values), column.octets)
        if column.characters is not None and pa.types.is_string(values.type):
            too_long = pc.or_(too_long, pc.greater(pc.utf8_length(values), column.characters))
        return too_long, "is too long"

    return check


def _in_range(base: str) -> Check:
    least, most = _TIMES[base]

    def check(values: pa.Array) -> tuple[pa.Array, str] | None:
        outside = pc.or_(
            pc.less(values, pa.scalar(least, values.type)), pc.greater(values, pa.scalar(most, values.type))
        )
        return outside, f"is before {least} or after {most}"

    return check
