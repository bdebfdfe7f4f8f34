"""Debezium's events in columns, thousands at a time; values equal those of `DebeziumRows.rows`.
An unusual or bad event raises: `decoded` halves the records until a few are left, which `rows` decodes.
"""

import decimal
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from typing import Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.kafka.source.debezium_values import (
    DAYS,
    INFINITE,
    ConnectType,
    Convert,
    number_unit,
    scale_of,
    unscaled_number,
    wrongly_told,
)
from barrier_runtime.data.values.stored_times import is_time_kind, times_of_texts, unit_ns

ConvertMany: TypeAlias = Callable[[Sequence[Any]], Any]

_SCHEMA_BEGIN = re.compile(rb'\s*\{\s*"schema"\s*:\s*')
_PAYLOAD_NAME = re.compile(rb'\s*,\s*"payload"\s*:\s*')
_ESCAPED = re.compile(r'[\x00-\x1f"\\]')
_NUMBER = r"^[+-]?\d+(\.\d*)?([eE][+-]?\d{1,4})?$"
_NONE = type(None)
_INTS, _TEXTS = frozenset({int, _NONE}), frozenset({str, _NONE})
_DECIMALS = frozenset({decimal.Decimal, int, _NONE})
_DAY_NS = 86_400_000_000_000
_MOST_DIGITS = 18


class UnusualEvent(ValueError):
    """An event that `DebeziumRows.rows` decodes or refuses."""


class _Source(msgspec.Struct, gc=False):
    ts_us: Any = None
    ts_ms: Any = None
    lsn: Any = None
    txId: Any = None


msgspec.json.Decoder(_Source)  # describes the type before threads make their decoders


@dataclass(frozen=True)
class Events:
    """Events by field. `cells(rows, number)`: values of a column; None for a row that is None."""

    ops: list[Any]
    befores: list[Any]
    afters: list[Any]
    sent_ms: list[Any]
    ts_us: list[Any]
    ts_ms: list[Any]
    lsn: list[Any]
    xid: list[Any]
    cells: Callable[[Sequence[Any], int], list[Any]]


class JsonEvents:
    """`all_there`: each `after` must have all columns."""

    def __init__(self, names: Sequence[str], all_there: bool) -> None:
        self._readable = not any(map(_ESCAPED.search, names))  # msgspec refuses such names
        fields = [f"c{number}" for number in range(len(names))]
        if not self._readable:
            names = fields
        renamed = dict(zip(fields, names, strict=True))
        optional = [(field, Any, None) for field in fields]
        before = msgspec.defstruct("Before", optional, rename=renamed, gc=False)
        needed = [(field, Any) for field in fields] if all_there else optional
        after = msgspec.defstruct("After", needed, rename=renamed, gc=False)
        event = msgspec.defstruct(
            "Event",
            [
                ("op", str | None, None),
                ("before", before | None, None),
                ("after", after | None, None),
                ("source", _Source | None, None),
                ("ts_ms", int | None, None),
                ("payload", None, None),  # an event within an event is unusual
            ],
            gc=False,
        )
        self._decode = msgspec.json.Decoder(event, float_hook=decimal.Decimal).decode
        self._nothing = before()
        self._gets = [attrgetter(field) for field in fields]

    def events(self, payloads: Sequence[bytes]) -> Events:
        if not self._readable:
            raise UnusualEvent("a name of a column is escaped in JSON")
        joined = b"\n".join(payloads)
        if not joined.isascii():
            joined.decode()  # msgspec does not check the bytes of skipped fields
        events: list[Any] = list(map(self._decode, payloads))
        no_source = _Source()
        sources = [no_source if event.source is None else event.source for event in events]
        return Events(
            [event.op for event in events],
            [event.before for event in events],
            [event.after for event in events],
            [event.ts_ms for event in events],
            [source.ts_us for source in sources],
            [source.ts_ms for source in sources],
            [source.lsn for source in sources],
            [source.txId for source in sources],
            self._cells,
        )

    def _cells(self, rows: Sequence[Any], number: int) -> list[Any]:
        nothing = self._nothing
        return list(map(self._gets[number], [nothing if row is None else row for row in rows]))


def mapped_events(values: Sequence[Any], names: Sequence[str], all_there: bool) -> Events:
    if not all(isinstance(value, Mapping) for value in values):
        raise UnusualEvent("no mapping")
    sources = [value.get("source") or {} for value in values]
    afters = [value.get("after") for value in values]
    if all_there:
        wanted = frozenset(names)
        if not all(row is None or wanted <= row.keys() for row in afters):
            raise UnusualEvent("a column is absent")
    return Events(
        [value.get("op") for value in values],
        [value.get("before") for value in values],
        afters,
        [value.get("ts_ms") for value in values],
        [source.get("ts_us") for source in sources],
        [source.get("ts_ms") for source in sources],
        [source.get("lsn") for source in sources],
        [source.get("txId") for source in sources],
        lambda rows, number: [None if row is None else row.get(names[number]) for row in rows],
    )


class Envelopes:
    """Cuts events out of Connect's envelopes, which begin with the same bytes.
    `schema_of(payload)`: bytes of an envelope's schema.
    """

    def __init__(self, schema_of: Callable[[bytes], bytes]) -> None:
        self._schema_of = schema_of
        self._begin, self._schema = b"", b""

    def runs(self, payloads: Sequence[bytes]) -> Iterator[tuple[bytes | None, Sequence[bytes]]]:
        at = 0
        while at < len(payloads):
            if self._begin and payloads[at].startswith(self._begin):
                begin = self._begin
                run = list(itertools.takewhile(methodcaller("startswith", begin), payloads[at:]))
                if not all(payload.endswith(b"}") for payload in run):
                    raise UnusualEvent("an envelope does not end with its payload")
                yield self._schema, [payload[len(begin) : -1] for payload in run]
            elif _SCHEMA_BEGIN.match(payloads[at]) is not None:
                self._open(payloads[at])
                continue
            else:
                run = list(itertools.takewhile(lambda payload: _SCHEMA_BEGIN.match(payload) is None, payloads[at:]))
                yield None, run
            at += len(run)

    def _open(self, payload: bytes) -> None:
        begin = _SCHEMA_BEGIN.match(payload)
        schema = self._schema_of(payload)
        if begin is not None and schema and payload.startswith(schema, begin.end()):
            name = _PAYLOAD_NAME.match(payload, begin.end() + len(schema))
            if name is not None:
                self._begin, self._schema = payload[: name.end()], schema
                return
        raise UnusualEvent("an envelope of another form")


def changed_at(events: Events) -> pa.Array:
    if not _INTS.issuperset(map(type, itertools.chain(events.ts_us, events.ts_ms, events.sent_ms))):
        raise UnusualEvent("a time is no whole number")
    times = zip(events.ts_us, events.ts_ms, events.sent_ms, strict=True)
    numbers = [us or 1000 * (ms or sent_ms or 0) or None for us, ms, sent_ms in times]
    array = pa.array(numbers, pa.int64())
    known = [number for number in numbers if number is not None]
    if known and (min(known) < _FIRST_US or max(known) > _LAST_US):
        raise UnusualEvent("a time is out of range")
    return array.view(pa.timestamp("us", "UTC"))


_FIRST_US, _LAST_US = (
    int(np.datetime64(day, "us").astype(np.int64)) for day in ("0001-01-01", "9999-12-31T23:59:59.999999")
)


def column_converter(
    kind: pa.DataType, told: ConnectType | None, convert: Convert | None, *, of_json: bool
) -> ConvertMany | None:
    if convert is None:
        return None

    def one_by_one(values: Sequence[Any]) -> list[Any]:
        return [None if value is None else convert(value) for value in values]

    if wrongly_told(kind, told):
        return one_by_one
    if is_time_kind(kind):
        return _times(kind, told, one_by_one)
    if pa.types.is_decimal(kind):
        return _decimals(kind, told, one_by_one)
    if pa.types.is_floating(kind) and of_json:
        return _floats(one_by_one)
    return one_by_one


def _times(kind: pa.DataType, told: ConnectType | None, one_by_one: ConvertMany) -> ConvertMany:
    factor, rest = divmod(number_unit(kind, told), unit_ns(kind))
    counts = rest == 0 and not pa.types.is_date64(kind)
    width = pa.int32() if kind.bit_width == 32 else pa.int64()

    def convert(values: Sequence[Any]) -> Any:
        kinds = set(map(type, values))
        if kinds <= _TEXTS and pa.types.is_timestamp(kind):
            return times_of_texts(values, kind)
        if not (counts and kinds <= _INTS):
            return one_by_one(values)
        numbers = values if factor == 1 else [None if value is None else value * factor for value in values]
        if pa.types.is_time(kind):
            day = _DAY_NS // unit_ns(kind)
            if not all(number is None or 0 <= number < day for number in numbers):
                raise UnusualEvent("no time of a day")
        array = pa.array(numbers, width)
        if pa.types.is_date(kind) and any(day is not None and day not in DAYS for day in _least_and_most(array)):
            raise UnusualEvent("no date of these years")
        if pa.types.is_timestamp(kind) and not INFINITE.isdisjoint(values):
            raise UnusualEvent("infinity")
        return array.view(kind)

    return convert


def _least_and_most(numbers: pa.Array) -> list[int | None]:
    return list(pa.compute.min_max(numbers).as_py().values())


def _floats(one_by_one: ConvertMany) -> ConvertMany:
    def convert(values: Sequence[Any]) -> Any:
        if not _DECIMALS.issuperset(map(type, values)):
            return one_by_one(values)
        floats = [float(value) if type(value) is decimal.Decimal else value for value in values]
        if math.inf in floats or -math.inf in floats:
            raise UnusualEvent("larger than a float can be")
        return floats

    return convert


def _decimals(kind: pa.DataType, told: ConnectType | None, one_by_one: ConvertMany) -> ConvertMany:
    scale = scale_of(told)
    narrow = pa.types.is_decimal128(kind) and kind.precision <= _MOST_DIGITS

    def convert(values: Sequence[Any]) -> Any:
        kinds = set(map(type, values))
        if kinds <= _DECIMALS:
            return values
        if not (kinds <= _TEXTS and narrow):
            return one_by_one(values)
        if scale is None:
            texts = pa.array(values, pa.string())
            if pa.compute.any(pa.compute.invert(pa.compute.match_substring_regex(texts, _NUMBER))).as_py():
                raise UnusualEvent("no decimal")
            return texts.cast(kind)
        if scale != kind.scale:
            return one_by_one(values)
        return _scaled([None if value is None else unscaled_number(value) for value in values], kind)

    return convert


def _scaled(numbers: Sequence[int | None], kind: pa.DataType) -> pa.Array:
    column = pa.array(numbers, pa.int64())
    low = column.fill_null(0).to_numpy()
    if len(low) and max(int(low.max()), -int(low.min())) >= 10**kind.precision:
        raise UnusualEvent("more digits than the column has")
    words = np.empty((len(low), 2), np.int64)
    words[:, 0], words[:, 1] = low, low >> 63
    valid = column.is_valid()
    bits = valid.buffers()[1] if column.null_count else None
    return pa.Array.from_buffers(kind, len(low), [bits, pa.py_buffer(words)], column.null_count)
