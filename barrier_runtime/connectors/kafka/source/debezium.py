"""Debezium's change events as rows with the columns of changes read from PostgreSQL.

Events are JSON, with or without Kafka Connect's schema, or come from a deserialiser. The event's schema, or else the
type of the column, gives values their meaning (docs/changes.md). An omitted large value is null and listed in
`unchanged`.
"""

import datetime
import decimal
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.kafka.source.debezium_columns import (
    ConvertMany,
    Envelopes,
    Events,
    JsonEvents,
    UnusualEvent,
    changed_at,
    column_converter,
    mapped_events,
)
from barrier_runtime.connectors.kafka.source.debezium_values import (
    ConnectType,
    Convert,
    Placeholder,
    converter,
)
from barrier_runtime.connectors.kafka.source.deserialisers import Deserialised
from barrier_runtime.connectors.source_bases.payloads import Decoder, arrays_with_nulls, columns_of
from barrier_runtime.data.schemas import meant
from barrier_runtime.data.values.into_columns import column_of_records
from barrier_runtime.state.errors import InvalidJob

Debezium: TypeAlias = Literal["changes", "upsert"]
Absent: TypeAlias = Literal["fail", "null"]

_TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
_LOG_COLUMNS = [("op", pa.string()), ("changed_at", _TIME), ("lsn", pa.int64()), ("xid", pa.int64())]


class _Event(msgspec.Struct, gc=False):
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    op: str | None = None
    ts_ms: int | None = None
    schema: msgspec.Raw = msgspec.Raw()
    payload: "_Event | None" = None


class _BeyondDecimals:
    """A number whose exponent no `Decimal` has; refused only in a declared column."""

    def __init__(self, text: str) -> None:
        self.text = text


def _fraction(text: str) -> decimal.Decimal | _BeyondDecimals:
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:
        return _BeyondDecimals(text)


_EVENT = msgspec.json.Decoder(_Event, float_hook=_fraction)
_SCHEMA = msgspec.json.Decoder(ConnectType)
_Columns: TypeAlias = Sequence[tuple[str, Convert | None, ConvertMany | None]]
_OPS = frozenset("rcudt")
_TODAY = {unit: range(10**power, 5 * 10**power) for unit, power in (("ms", 12), ("us", 15), ("ns", 18))}
log = logging.getLogger("barrier_runtime.kafka")


def debezium_schema(form: Debezium, columns: pa.Schema, absent: Absent, where: str) -> pa.Schema:
    if form not in ("changes", "upsert"):
        raise InvalidJob(f"{where}: debezium={form!r}: use 'changes' or 'upsert'")
    if absent not in ("fail", "null"):
        raise InvalidJob(
            f"{where}: absent={absent!r}: use 'fail', or 'null' for columns that some events of the topic do not have"
        )
    nullable = [field.with_nullable(True) for field in columns]
    if form == "changes":
        row = pa.struct(nullable)
        return pa.schema([*_LOG_COLUMNS, ("before", row), ("after", row), ("unchanged", pa.list_(pa.string()))])
    for name in ("deleted", "changed_at"):
        if name in columns.names:
            raise InvalidJob(
                f"{where}: schema= has a column {name!r}, which rows of debezium='upsert' need for themselves: use "
                "'changes', and select() what you need of before and after"
            )
    return pa.schema([*nullable, ("deleted", pa.bool_()), ("changed_at", _TIME)])


class DebeziumRows(Decoder):
    """Decoder of events; a tombstone is a row of nulls.
    `deserialised`: returns events as mappings; None: events are JSON. `absent`: treatment of a column that `after`
    lacks. `placeholder`: the connector's text for an omitted large value.
    """

    def __init__(
        self,
        form: Debezium,
        columns: pa.Schema,
        absent: Absent,
        placeholder: str,
        deserialised: Deserialised | None,
        where: str,
    ) -> None:
        self.schema = debezium_schema(form, columns, absent, where)
        self._form = form
        self._absent = absent
        self._columns = columns
        self._deserialised = deserialised
        self._names = frozenset(columns.names)
        self._json = JsonEvents(columns.names, absent == "fail")
        self._envelopes = Envelopes(lambda payload: bytes(_EVENT.decode(payload).schema))
        self._placeholder = Placeholder(placeholder)
        self._plain = self._columns_told({})
        self._doubted = {at: field for at, field in enumerate(columns) if pa.types.is_timestamp(field.type)}
        self._where = where
        self._told: dict[bytes, tuple[_Columns, Sequence[str]]] = {}  # by the schema's bytes

    def arrays(self, payloads: Sequence[bytes | None], messages: Sequence[Any]) -> list[pa.Array]:
        present = [payload for payload in payloads if payload is not None]
        if len(present) < len(payloads):
            return arrays_with_nulls(self, payloads, messages)
        parts = [self._arrays(events, columns) for events, columns in self._events(present, messages)]
        if len(parts) == 1:
            return parts[0]
        return [pa.concat_arrays(each) for each in zip(*parts, strict=True)] if parts else self.columns([])

    def rows(self, payloads: Sequence[bytes | None], messages: Sequence[Any]) -> list[Any]:
        return [
            None if payload is None else self._row(payload, message)
            for payload, message in zip(payloads, messages, strict=True)
        ]

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        nothing = (None,) * len(self.schema)
        full = [nothing if row is None else row for row in rows]
        return columns_of([[row[number] for row in full] for number in range(len(self.schema))], self.schema)

    def _events(self, payloads: Sequence[bytes], messages: Sequence[Any]) -> Iterator[tuple[Events, _Columns]]:
        if self._deserialised is not None:
            values = list(self._deserialised.values(payloads, messages))
            yield mapped_events(values, self._columns.names, self._absent == "fail"), self._plain
            return
        for schema, run in self._envelopes.runs(payloads):
            yield self._json.events(run), self._plain if schema is None else self._columns_of(schema)[0]

    def _arrays(self, events: Events, columns: _Columns) -> list[pa.Array]:
        """As `rows` and `columns`. Raises for an unusual or bad event."""
        if not _OPS.issuperset(events.ops):
            raise UnusualEvent("another op")
        if columns is self._plain and self._doubted:
            self._warn_of_units(events)
        at = changed_at(events)
        if self._form == "changes":
            unchanged: list[list[str]] = [[] for _ in events.ops]
            before = self._structs(events.befores, events, columns, None)
            after = self._structs(events.afters, events, columns, unchanged)
            lsn, xid = columns_of([events.lsn, list(map(_whole, events.xid))], pa.schema(_LOG_COLUMNS[2:]))
            return [pa.array(events.ops, pa.string()), at, lsn, xid, before, after, _texts(unchanged)]
        deleted = [op == "d" for op in events.ops]
        rows = zip(deleted, events.befores, events.afters, strict=True)
        now = [before if gone else after for gone, before, after in rows]
        if "t" in events.ops or None in now:
            raise UnusualEvent("no upsert")
        rows = zip(deleted, events.befores, events.afters, strict=True)
        others = [after if gone else before for gone, before, after in rows]
        unchanged_now: list[list[str]] = [[] for _ in now]
        unchanged_others: list[list[str]] = [[] for _ in now]
        for _ in self._values_of(others, events, columns, unchanged_others):
            pass  # a value without meaning makes the record bad, wherever it is
        arrays = self._columns_of_rows(now, events, columns, unchanged_now)
        of_after = [
            others if gone else names
            for gone, names, others in zip(deleted, unchanged_now, unchanged_others, strict=True)
        ]
        if any(of_after) or _no_key(arrays, deleted):
            raise UnusualEvent("no upsert")
        return [*arrays, pa.array(deleted, pa.bool_()), at]

    def _warn_of_units(self, events: Events) -> None:
        """Numbers without Connect's schema count in the column's unit; warns if they look like times in another."""
        for at, field in list(self._doubted.items()):
            numbers = [value for value in events.cells(events.afters, at) if type(value) is int]
            for unit, range_ in _TODAY.items():
                found = next((number for number in numbers if number in range_), None)
                if found is not None and unit != field.type.unit:
                    log.warning(
                        "%s: the time %d in column %r is taken as %s, and looks like %s: if the connector writes that "
                        "unit, declare the column as timestamp[%s] in schema=",
                        *(self._where, found, field.name, field.type.unit, unit, unit),
                    )
            if numbers:
                del self._doubted[at]

    def _structs(
        self, rows: Sequence[Any], events: Events, columns: _Columns, unchanged: list[list[str]] | None
    ) -> pa.Array:
        mask = pa.array([row is None for row in rows], pa.bool_()) if None in rows else None
        arrays = self._columns_of_rows(rows, events, columns, unchanged)
        return pa.StructArray.from_arrays(arrays, fields=list(self.schema.field("after").type), mask=mask)

    def _columns_of_rows(
        self, rows: Sequence[Any], events: Events, columns: _Columns, unchanged: list[list[str]] | None
    ) -> list[pa.Array]:
        return [
            values if isinstance(values, pa.Array) else column_of_records(values, field.type, field.name)
            for values, field in zip(self._values_of(rows, events, columns, unchanged), self._columns, strict=True)
        ]

    def _values_of(
        self, rows: Sequence[Any], events: Events, columns: _Columns, unchanged: list[list[str]] | None
    ) -> Iterator[Any]:
        for number, (name, _, convert) in enumerate(columns):
            values = events.cells(rows, number)
            marks = self._placeholder.marks(values)
            if marks is not None:
                values = [None if mark else value for mark, value in zip(marks, values, strict=True)]
                for names, mark in zip(unchanged or (), marks, strict=False):
                    if mark:
                        names.append(name)
            yield values if convert is None else convert(values)

    def _row(self, payload: bytes, message: Any) -> tuple[Any, ...]:
        event, columns, fields = self._event(payload, message)
        if event.op not in ("r", "c", "u", "d", "t"):
            raise ValueError(f"its op is {event.op!r}: not a change of a row as Debezium tells it")
        if event.after is not None and self._absent == "fail" and not self._names <= event.after.keys():
            self._check_columns([*event.after, *fields])
        unchanged: list[str] = []
        before = self._values(event.before, columns, [])
        after = self._values(event.after, columns, unchanged)
        source = event.source or {}
        at = _changed_at(source, event.ts_ms)
        if self._form == "changes":
            return (event.op, at, source.get("lsn"), _whole(source.get("txId")), before, after, unchanged)
        now = before if event.op == "d" else after
        if event.op == "t":
            raise ValueError(
                "no upsert can say op 't' (the table was truncated): use debezium='changes', or set the connector's "
                "skipped.operations=t"
            )
        if now is None or (event.op == "d" and not self._names & (event.before or {}).keys()):
            raise ValueError(
                f"no upsert can say op {event.op!r} without the row's key: use debezium='changes', or give the table a "
                "primary key or REPLICA IDENTITY FULL"
            )
        if unchanged:
            raise ValueError(
                f"the large value of {', '.join(unchanged)} did not change and is not in the event: give the table "
                "REPLICA IDENTITY FULL, or use debezium='changes'"
            )
        return (*(now.get(name) for name in self._columns.names), event.op == "d", at)

    def _check_columns(self, there: Sequence[str]) -> None:
        """Raises `ValueError` for a column that `after` lacks; `before` may be only a key."""
        for name in self._columns.names:
            if name not in there:
                names = list(dict.fromkeys(there))
                others = [each for each in names if each not in self._names]
                raise ValueError(
                    f"it has no column {name!r} of schema={meant(name, others)}. Correct schema=, or pass "
                    "absent='null' if the table got or lost the column in the course of the topic. It has "
                    f"{', '.join(names)}"
                )

    def _event(self, payload: bytes, message: Any) -> tuple[_Event, _Columns, Sequence[str]]:
        if self._deserialised is not None:
            told = self._deserialised.value_of(payload, message)
            if not isinstance(told, Mapping):
                raise ValueError(f"the deserialiser gave {type(told).__name__}, not an event of Debezium")
            get = told.get
            return _Event(get("before"), get("after"), get("source"), get("op"), get("ts_ms")), self._plain, ()
        event = _EVENT.decode(payload)
        if event.payload is None:
            return event, self._plain, ()
        return event.payload, *self._columns_of(bytes(event.schema))

    def _columns_of(self, schema: bytes) -> tuple[_Columns, Sequence[str]]:
        found = self._told.get(schema)
        if found is None:
            parts = (_SCHEMA.decode(schema).fields if schema and schema != b"null" else None) or []
            rows = [part.fields for part in parts if part.field in ("after", "before") and part.fields]
            types = {each.field: each for each in (rows[0] if rows else []) if each.field is not None}
            found = (self._columns_told(types), tuple(types))
            if len(self._told) > 100:
                self._told.clear()
            self._told[schema] = found
        return found

    def _columns_told(self, types: Mapping[str, ConnectType]) -> _Columns:
        of_json, told = self._deserialised is None, []
        for each in self._columns:
            type_told = types.get(each.name)
            convert = converter(each.type, type_told, of_json=of_json)
            told.append((each.name, convert, column_converter(each.type, type_told, convert, of_json=of_json)))
        return told

    def _values(self, row: Mapping[str, Any] | None, columns: _Columns, unchanged: list[str]) -> dict[str, Any] | None:
        if row is None:
            return None
        values: dict[str, Any] = {}
        for name, convert, _ in columns:
            value = row.get(name)
            if type(value) is _BeyondDecimals:
                raise ValueError(f"column {name!r}: {value.text[:40]} is larger than any number that a column can have")
            if value is not None and self._placeholder.stands_for(value):
                unchanged.append(name)
                value = None
            elif value is not None and convert is not None:
                try:
                    value = convert(value)
                except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                    raise ValueError(f"column {name!r}: {error}") from error
            values[name] = value
        return values


def _changed_at(source: Mapping[str, Any], sent_ms: int | None) -> datetime.datetime | None:
    time_us, time_ms = source.get("ts_us"), source.get("ts_ms") or sent_ms
    for name, time in (("ts_us", time_us), ("ts_ms", time_ms)):
        if time is not None and (isinstance(time, bool) or not isinstance(time, int)):
            raise ValueError(f"its time {name} is {time!r}, not a whole number: correct the transform that writes it")
    if not time_us and not time_ms:
        return None
    return _EPOCH + datetime.timedelta(microseconds=time_us or 1000 * (time_ms or 0))


def _no_key(arrays: Sequence[pa.Array], deleted: Sequence[bool]) -> bool:
    if True not in deleted:
        return False
    rows = pa.array([row for row, gone in enumerate(deleted) if gone], pa.int64())
    absent = [array.take(rows).is_null().to_numpy(zero_copy_only=False) for array in arrays]
    return bool(np.logical_and.reduce(absent).any())


def _texts(lists: Sequence[Sequence[str]]) -> pa.Array:
    if any(lists):
        return pa.array(lists, pa.list_(pa.string()))
    return pa.ListArray.from_arrays(pa.array(np.zeros(len(lists) + 1, np.int32)), pa.array([], pa.string()))


def _whole(number: Any) -> int | None:
    return number if isinstance(number, int) else None
