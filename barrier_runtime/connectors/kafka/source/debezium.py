"""Debezium's change events as rows with the columns of changes that are read from PostgreSQL directly.

Events are JSON, with or without Kafka Connect's schema (`{"schema": …, "payload": …}`), or come from a deserialiser
(Avro). The event's schema, or else the type of the column, gives values their meaning: docs/changes.md has the table.
An omitted large value is null and listed in `unchanged`: Debezium writes a placeholder, as the only element in arrays
and maps.

A column that `after` lacks is a mistake in `schema=`, or the table gained or lost the column during the topic's life;
`absent` decides which.
"""

import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.kafka.source.debezium_values import (
    ConnectType,
    Convert,
    Placeholder,
    converter,
)
from barrier_runtime.connectors.source_bases.payloads import columns_of
from barrier_runtime.data.schemas import meant
from barrier_runtime.state.errors import InvalidJob

Debezium: TypeAlias = Literal["changes", "upsert"]
Absent: TypeAlias = Literal["fail", "null"]

_TIME = pa.timestamp("us", "UTC")
_EPOCH = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
_LOG_COLUMNS = [("op", pa.string()), ("changed_at", _TIME), ("lsn", pa.int64()), ("xid", pa.int64())]


class _Event(msgspec.Struct, gc=False):
    """With Connect's schema, `payload` contains the other fields."""

    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    op: str | None = None
    ts_ms: int | None = None
    schema: msgspec.Raw = msgspec.Raw()
    payload: "_Event | None" = None


_EVENT = msgspec.json.Decoder(_Event, float_hook=decimal.Decimal)  # keeps all digits of fractions
_SCHEMA = msgspec.json.Decoder(ConnectType)
_Columns: TypeAlias = Sequence[tuple[str, Convert | None]]


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


class DebeziumRows:
    """Decoder of events.

    `absent`: treatment of a column that `after` lacks. `placeholder`: the connector's text for an omitted large value.
    `deserialise(payload, message)`: returns an event as a mapping; None: events are JSON. A tombstone is a row of
    nulls.
    """

    def __init__(
        self,
        form: Debezium,
        columns: pa.Schema,
        absent: Absent,
        placeholder: str,
        deserialise: Callable[[bytes, Any], Any] | None,
        where: str,
    ) -> None:
        self.schema = debezium_schema(form, columns, absent, where)
        self._form = form
        self._absent = absent
        self._columns = columns
        self._deserialise = deserialise
        self._names = frozenset(columns.names)
        self._placeholder = Placeholder(placeholder)
        self._plain = self._columns_told({})
        self._told: dict[bytes, tuple[_Columns, Sequence[str]]] = {}  # columns and fields, by the schema's bytes

    def rows(self, payloads: Sequence[bytes | None], messages: Sequence[Any]) -> list[Any]:
        return [
            None if payload is None else self._row(payload, message)
            for payload, message in zip(payloads, messages, strict=True)
        ]

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        nothing = (None,) * len(self.schema)
        full = [nothing if row is None else row for row in rows]
        return columns_of([[row[number] for row in full] for number in range(len(self.schema))], self.schema)

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
        """Raises `ValueError` for a column missing in `there`, those of `after`: `before` may be a key."""
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
        """Event, columns with converters for its schema, names of the schema's fields."""
        if self._deserialise is not None:
            told = self._deserialise(payload, message)
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
            if len(self._told) > 100:  # a topic of many tables: not all schemas are needed at once
                self._told.clear()
            self._told[schema] = found
        return found

    def _columns_told(self, types: Mapping[str, ConnectType]) -> _Columns:
        of_json = self._deserialise is None
        return [(each.name, converter(each.type, types.get(each.name), of_json=of_json)) for each in self._columns]

    def _values(self, row: Mapping[str, Any] | None, columns: _Columns, unchanged: list[str]) -> dict[str, Any] | None:
        if row is None:
            return None
        values: dict[str, Any] = {}
        for name, convert in columns:
            value = row.get(name)
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
    """Time of the change, else `sent_ms`, when the connector sent the event, else None."""
    time_us, time_ms = source.get("ts_us"), source.get("ts_ms") or sent_ms
    for name, time in (("ts_us", time_us), ("ts_ms", time_ms)):
        if time is not None and (isinstance(time, bool) or not isinstance(time, int)):
            raise ValueError(f"its time {name} is {time!r}, not a whole number: correct the transform that writes it")
    if not time_us and not time_ms:
        return None
    return _EPOCH + datetime.timedelta(microseconds=time_us or 1000 * (time_ms or 0))


def _whole(number: Any) -> int | None:
    return number if isinstance(number, int) else None
