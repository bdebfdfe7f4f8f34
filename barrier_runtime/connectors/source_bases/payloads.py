"""Payloads of logs (bytes, text, JSON) as Arrow columns, and the start of a source.

JSON is decoded payload by payload: a common parse could take one payload for two.
"""

import datetime
import decimal
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter, itemgetter
from typing import Annotated, Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.data.few_rows import values_as_stored
from barrier_runtime.data.values.into_columns import SPECIAL_FLOATS, UnkeptValue, column_of_json, column_of_records
from barrier_runtime.data.values.stored_times import is_time_kind, numbers_of_texts, times_of_texts
from barrier_runtime.state.errors import InvalidJob

_LEAST_NUMBERS = 16  # of a row; with fewer, column by column is as quick
_PACKABLE = frozenset({int, float, type(None)})
_INEXACT = 2.0**53  # a float of this size may have been a whole number with more digits


class Unpacked(Exception):
    """A number that only `column_of_json` keeps or refuses."""


class PackedColumns:
    """Decoded rows as columns, as `column_of` makes them.

    A row's numbers are packed before the next row is decoded: thousands of rows exceed the processor's cache.
    """

    def __init__(self, schema: pa.Schema, column_of: Callable[..., pa.Array] = column_of_json) -> None:
        self._schema = schema
        self._column_of = column_of
        codes = {at: _code(field.type) for at, field in enumerate(schema)}
        self._numbers = [at for at, code in codes.items() if code]
        self._others = [at for at, code in codes.items() if not code]
        self.useful = len(self._numbers) >= _LEAST_NUMBERS
        if self.useful:
            self._pack = struct.Struct("=" + "".join(codes.values())).pack
            self._numbers_of = itemgetter(*self._numbers)
        self._rest = 0  # batches until numbers are packed again
        self._next_rest = 1

    def tried(self, rows: Callable[[], Iterable[Any]]) -> list[pa.Array] | None:
        """`arrays` if packing is useful and possible; after a failure a while passes."""
        self._rest = max(0, self._rest - 1)
        if not self.useful or self._rest:
            return None
        try:
            columns = self.arrays(rows())
        except Unpacked:
            self._rest = self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
            return None
        self._next_rest = 1
        return columns

    def arrays(self, rows: Iterable[Sequence[Any]]) -> list[pa.Array]:
        """Raises `Unpacked`, or errors of `column_of_json`."""
        packed, others, nulls = bytearray(), [], []
        pack, numbers_of = self._pack, self._numbers_of
        width, kept = len(self._numbers), self._others
        for row in rows:
            values = numbers_of(row)
            try:
                packed += pack(*values)
            except (struct.error, OverflowError):
                begin = len(packed) // 8
                nulls += [begin + at for at, value in enumerate(values) if value is None]
                packed += self._without_nulls(values)
            others.append([row[at] for at in kept])
        matrix = np.frombuffer(packed, np.int64).reshape(-1, width)
        missing = np.zeros(matrix.size, bool)
        missing[nulls] = True
        return self._columns(np.ascontiguousarray(matrix.T), missing.reshape(-1, width).T if nulls else None, others)

    def _without_nulls(self, values: Sequence[Any]) -> bytes:
        try:
            return self._pack(*[0 if value is None else value for value in values])
        except (struct.error, OverflowError) as error:
            raise Unpacked from error

    def _columns(self, numbers: Any, missing: Any, others: list[list[Any]]) -> list[pa.Array]:
        fields = list(self._schema)
        columns: list[Any] = [None] * len(fields)
        for number, at in enumerate(self._numbers):
            columns[at] = _column(numbers[number], None if missing is None else missing[number], fields[at].type)
        for place, at in enumerate(self._others):
            field = fields[at]
            columns[at] = self._column_of([row[place] for row in others], field.type, field.name, field.nullable)
        return columns


class PackedRecords(PackedColumns):
    """Dicts of a deserialiser as columns, as `column_of_records` makes them."""

    def __init__(self, schema: pa.Schema) -> None:
        super().__init__(schema, column_of_records)
        names = schema.names
        self._values_of = itemgetter(*names) if len(names) > 1 else None
        self._needed = [at for at, number in enumerate(self._numbers) if not schema.field(number).nullable]

    def arrays(self, rows: Iterable[Any]) -> list[pa.Array]:
        return super().arrays(map(self._checked, rows))

    def _checked(self, row: Any) -> Sequence[Any]:
        assert self._values_of is not None
        try:
            values: Sequence[Any] = self._values_of(row)
        except (KeyError, TypeError) as error:
            raise Unpacked from error
        numbers = self._numbers_of(values)
        if not _PACKABLE.issuperset(map(type, numbers)) or any(numbers[at] is None for at in self._needed):
            raise Unpacked
        return values


def _code(kind: pa.DataType) -> str:
    if pa.types.is_float64(kind):
        return "d"
    if kind.equals(pa.uint64()):
        return "Q"
    return "q" if pa.types.is_integer(kind) else ""


def _column(numbers: Any, missing: Any, kind: pa.DataType) -> pa.Array:
    if pa.types.is_float64(kind):
        numbers = numbers.view(np.float64)
        if (np.abs(numbers) >= _INEXACT).any():
            raise Unpacked
    elif kind.equals(pa.uint64()):
        numbers = numbers.view(np.uint64)
    column = pa.array(numbers, mask=missing)
    if column.type.equals(kind):
        return column
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        raise Unpacked from error


def checked_start(start: Any, words: Sequence[str], where: str) -> Any:
    if isinstance(start, datetime.datetime):
        if start.tzinfo is None:
            raise InvalidJob(
                f"{where}: start={start} has no time zone: give one, as in start.replace(tzinfo=timezone.utc)"
            )
        return start
    if start in words:
        return start
    known = ", ".join(f'"{word}"' for word in words)
    raise InvalidJob(f"{where}: start={start!r}: use {known} or a datetime with a time zone")


def start_ms(start: datetime.datetime) -> int:
    """First millisecond since 1970 that is not before `start`."""
    return -((_EPOCH - start) // datetime.timedelta(milliseconds=1))


_EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
_CUT = 300
_FEW_TEXTS = 16  # Arrow parses times if there are more
_LONGEST_REST = 64
_FEW_PAYLOADS = 8  # are decoded singly if a payload among them is invalid


class Decoder(Protocol):
    schema: pa.Schema

    def arrays(self, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[pa.Array]:
        """Returns the columns of many payloads. Raises if a payload cannot be decoded, or only by `rows`."""
        return self.columns(self.rows(payloads, records))

    def rows(self, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[Any]:
        """Returns a row per payload; raises if a payload cannot be decoded. `records` contain the payloads."""
        ...

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        """Raises if a value does not fit the column. A row None becomes nulls."""
        ...


def _no_outage(error: Exception) -> None:
    """For decoders that depend on no outside system."""


def decoded(
    decoder: Decoder,
    payloads: Sequence[bytes | None],
    records: Sequence[Any],
    raise_outage: Callable[[Exception], None] = _no_outage,
) -> tuple[list[pa.Array], dict[int, str]]:
    """Returns the columns, and error messages of invalid payloads, whose columns are null, by index.

    `raise_outage` raises `Unavailable` or `InvalidJob` for an error that no record has caused.
    """
    try:
        return decoder.arrays(payloads, records), {}
    except Exception as error:
        raise_outage(error)
    if len(payloads) <= _FEW_PAYLOADS:
        return _singly(decoder, payloads, records, raise_outage)
    middle = len(payloads) // 2
    first, bad = decoded(decoder, payloads[:middle], records[:middle], raise_outage)
    rest, also_bad = decoded(decoder, payloads[middle:], records[middle:], raise_outage)
    bad.update({middle + index: reason for index, reason in also_bad.items()})
    return [pa.concat_arrays(parts) for parts in zip(first, rest, strict=True)], bad


def _singly(
    decoder: Decoder,
    payloads: Sequence[bytes | None],
    records: Sequence[Any],
    raise_outage: Callable[[Exception], None],
) -> tuple[list[pa.Array], dict[int, str]]:
    rows: list[Any] = []
    bad: dict[int, str] = {}
    for index, (payload, record) in enumerate(zip(payloads, records, strict=True)):
        row = None
        try:
            (row,) = decoder.rows([payload], [record])
            decoder.columns([row])
        except Exception as error:
            raise_outage(error)
            row, bad[index] = None, _reason(error)
        rows.append(row)
    return _nullable(decoder, rows, bad), bad


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, UnkeptValue) else f"{type(error).__name__}: {error}"[:_CUT]


def _nullable(decoder: Decoder, rows: list[Any], bad: dict[int, str]) -> list[pa.Array]:
    good = [index for index in range(len(rows)) if index not in bad]
    return _spread(decoder.columns([rows[index] for index in good]), good, len(rows))


def _spread(columns: Sequence[pa.Array], indices: Sequence[int], count: int) -> list[pa.Array]:
    places: list[int | None] = [None] * count
    for place, index in enumerate(indices):
        places[index] = place
    return [column.take(pa.array(places, pa.int64())) for column in columns]


def columns_of(columns: Sequence[Sequence[Any]], schema: pa.Schema) -> list[pa.Array]:
    return [
        column_of_records(values, field.type, field.name, field.nullable)
        for values, field in zip(columns, schema, strict=True)
    ]


def arrays_with_nulls(decoder: Decoder, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[pa.Array]:
    """Columns of `Decoder.arrays`; a payload None becomes nulls."""
    if any(not field.nullable for field in decoder.schema):
        return decoder.columns(decoder.rows(payloads, records))
    present = [index for index, payload in enumerate(payloads) if payload is not None]
    columns = decoder.arrays([payloads[index] for index in present], [records[index] for index in present])
    return _spread(columns, present, len(payloads))


class PlainPayloads(Decoder):
    """Payloads as bytes or UTF-8 text. `values`: per column, the values that Arrow accepts."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._text = pa.types.is_string(schema.field(0).type)

    def rows(self, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[Any]:
        return list(payloads)

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        column = pa.array(rows, pa.binary())
        return [column.cast(pa.string()) if self._text else column]

    def values(self, rows: Sequence[Any]) -> list[list[Any]]:
        return [[None if row is None else row.decode() for row in rows] if self._text else list(rows)]


_INTEGERS = {
    kind: Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]
    for kind, bits in ((pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64))
}


_Number = int | float | str  # large integers stay exact; NaN is a text
_SCALARS: tuple[tuple[Callable[[pa.DataType], bool], Any], ...] = (
    (pa.types.is_integer, Annotated[int, msgspec.Meta(ge=0)]),
    (pa.types.is_floating, _Number),
    (pa.types.is_boolean, bool),
    (lambda kind: kind in (pa.string(), pa.large_string(), pa.string_view()), str),
    (lambda kind: kind in (pa.binary(), pa.large_binary(), pa.binary_view()), bytes),
    (pa.types.is_fixed_size_binary, bytes),
    (pa.types.is_date, datetime.date),
    (lambda kind: is_time_kind(kind), str),  # text keeps all digits
    (pa.types.is_decimal, decimal.Decimal),
)


def _json_type(kind: pa.DataType, column: str, where: str) -> Any:
    is_ = pa.types
    if kind in _INTEGERS:
        return _INTEGERS[kind]
    for fits, found in _SCALARS:
        if fits(kind):
            return found
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return list[_json_type(kind.value_type, column, where) | None]  # type: ignore[misc]
    if is_.is_map(kind) and (is_.is_string(kind.key_type) or is_.is_integer(kind.key_type)):
        key = _json_type(kind.key_type, column, where)
        return dict[key, _json_type(kind.item_type, column, where) | None]  # type: ignore[misc,valid-type]
    if is_.is_struct(kind):
        from typing import TypedDict

        fields = {field.name: _json_type(field.type, column, where) | None for field in kind}
        return TypedDict("Nested", fields, total=False)  # type: ignore[operator]
    raise InvalidJob(f"{where}: column {column!r} has type {kind}, which JSON is not read as: choose another type")


def json_row(schema: pa.Schema, where: str) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for number, field in enumerate(schema):
        kind = _json_type(field.type, field.name, where)
        fields.append((f"c{number}", kind | None, None) if field.nullable else (f"c{number}", kind))
    names = {f"c{number}": field.name for number, field in enumerate(schema)}
    return msgspec.defstruct("Row", fields, rename=names, kw_only=True, gc=False)


class JsonPayloads(Decoder):
    """Payloads of a JSON object each. A payload None is a row of nulls.

    Fields beyond the schema are ignored, absent fields are null, the last of repeated fields wins. `values`: times are
    numbers.
    """

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self.schema = schema
        row = json_row(schema, where)
        self._decode = msgspec.json.Decoder(row).decode
        self._gets = [attrgetter(f"c{number}") for number in range(len(schema))]
        optional = not any(not field.nullable for field in schema)
        self._absent = row() if optional else None
        self._floats = [at for at, kind in enumerate(schema.types) if pa.types.is_floating(kind)]
        kinds = enumerate(schema.types)
        self._times = [(at, kind) for at, kind in kinds if is_time_kind(kind) and not pa.types.is_date(kind)]
        self._packed = PackedColumns(schema)

    def arrays(self, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[pa.Array]:
        packed = self._packed.tried(lambda: self._tuples(payloads))
        return super().arrays(payloads, records) if packed is None else packed

    def _tuples(self, payloads: Sequence[bytes | None]) -> Iterator[tuple[Any, ...]]:
        decode, absent = self._decode, self._absent
        rows = (decode(payload or b"") if payload is not None or absent is None else absent for payload in payloads)
        return map(msgspec.structs.astuple, rows)

    def rows(self, payloads: Sequence[bytes | None], records: Sequence[Any]) -> list[Any]:
        decode, absent = self._decode, self._absent
        if absent is None:
            return [decode(payload or b"") for payload in payloads]
        return [decode(payload) if payload is not None else absent for payload in payloads]

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        return [
            column_of_json(list(map(get, rows)), field.type, field.name, field.nullable)
            for get, field in zip(self._gets, self.schema, strict=True)
        ]

    def values(self, rows: Sequence[Any]) -> list[list[Any]]:
        columns = [list(map(get, rows)) for get in self._gets]
        for at in self._floats:
            if str in map(type, columns[at]):
                columns[at] = [SPECIAL_FLOATS.get(each, each) for each in columns[at]]
        for at, kind in self._times:
            if len(rows) > _FEW_TEXTS and pa.types.is_timestamp(kind):
                columns[at] = values_as_stored(times_of_texts(columns[at], kind), "i8")
            else:
                columns[at] = numbers_of_texts(columns[at], kind)
        return columns
