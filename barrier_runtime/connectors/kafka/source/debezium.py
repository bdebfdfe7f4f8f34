"""Debezium's change events as rows: the same columns as changes that are read from PostgreSQL itself.

An event says what became of one row: `op`, `before`, `after`, and in `source` where and when. It comes as JSON, with or
without the schema that Kafka Connect puts around it (`{"schema": …, "payload": …}`), or from a deserialiser (Avro).

What a value means is known by the schema that came with it; without one, by the type of the column:

| column          | with Connect's schema                           | without                                        |
|-----------------|-------------------------------------------------|------------------------------------------------|
| date            | days                                            | days                                           |
| time, timestamp | by its name (Time, MicroTime, Timestamp, …)     | numbers in the column's own unit; text ISO 8601 |
| decimal         | Decimal: unscaled number in base64              | text or number (decimal.handling.mode=string)  |
| binary          | base64                                          | base64                                         |
| all others      | as JSON has them                                | as JSON has them                               |

A column that `after` does not have is a mistake in `schema=`, or one that the table got or lost in the course of the
topic: `absent` says which of the two it is taken for.
"""

import base64
import datetime
import decimal
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.source_bases.payloads import columns_of
from barrier_runtime.data.schemas import meant
from barrier_runtime.state.errors import InvalidJob

Debezium: TypeAlias = Literal["changes", "upsert"]
Absent: TypeAlias = Literal["fail", "null"]

_TIME = pa.timestamp("us", "UTC")
_LOG_COLUMNS = [("op", pa.string()), ("changed_at", _TIME), ("lsn", pa.int64()), ("xid", pa.int64())]
_UNAVAILABLE = "__debezium_unavailable_value"
_UNAVAILABLE_BYTES = base64.b64encode(_UNAVAILABLE.encode()).decode()
_UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1000, "ns": 1}  # nanoseconds
_NAMED_UNITS = {
    "io.debezium.time.Timestamp": "ms",
    "io.debezium.time.MicroTimestamp": "us",
    "io.debezium.time.NanoTimestamp": "ns",
    "io.debezium.time.Time": "ms",
    "io.debezium.time.MicroTime": "us",
    "io.debezium.time.NanoTime": "ns",
    "org.apache.kafka.connect.data.Timestamp": "ms",
    "org.apache.kafka.connect.data.Time": "ms",
}
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_ROOM = decimal.Context(prec=100)


class _Event(msgspec.Struct, gc=False):
    """With Connect's schema the rest is in `payload`."""

    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    source: dict[str, Any] | None = None
    op: str | None = None
    ts_ms: int | None = None
    schema: msgspec.Raw = msgspec.Raw()
    payload: "_Event | None" = None


class _ConnectType(msgspec.Struct):
    type: str | None = None
    field: str | None = None
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: "list[_ConnectType] | None" = None


_EVENT = msgspec.json.Decoder(_Event)
_SCHEMA = msgspec.json.Decoder(_ConnectType)
_MOMENT = msgspec.json.Decoder(datetime.datetime)


def debezium_schema(form: Debezium, columns: pa.Schema, absent: Absent, where: str) -> pa.Schema:
    """Of the rows. `columns`: of the table. Raises `InvalidJob`."""
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
    """A decoder of values. `absent`: what becomes of a column that a row after its change does not have.
    `deserialise(payload, message)` gives an event as a mapping; None: it is JSON. A record without value (a tombstone,
    which follows a deletion) is a row of nulls."""

    def __init__(
        self,
        form: Debezium,
        columns: pa.Schema,
        absent: Absent,
        deserialise: Callable[[bytes, Any], Any] | None,
        where: str,
    ) -> None:
        self.schema = debezium_schema(form, columns, absent, where)
        self._form = form
        self._absent = absent
        self._columns = columns
        self._names = frozenset(columns.names)
        self._deserialise = deserialise
        self._types: dict[bytes, dict[str, _ConnectType]] = {}  # of a row's fields, by the schema as it came

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
        event, types = self._event(payload, message)
        if event.op not in ("r", "c", "u", "d", "t"):
            raise ValueError(f"its op is {event.op!r}: not a change of a row as Debezium tells it")
        if event.after is not None and self._absent == "fail" and not self._names <= event.after.keys():
            self._check_columns([*event.after, *types])
        unchanged: list[str] = []
        before = self._values(event.before, types, [])
        after = self._values(event.after, types, unchanged)
        source = event.source or {}
        at = datetime.datetime.fromtimestamp(0, datetime.timezone.utc) + datetime.timedelta(
            microseconds=source.get("ts_us") or 1000 * (source.get("ts_ms") or event.ts_ms or 0)
        )
        if self._form == "changes":
            return (event.op, at, source.get("lsn"), source.get("txId"), before, after, unchanged)
        now = before if event.op == "d" else after
        if now is None:
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
        """`there`: names of a row as it is after its change; before it, events may have the key alone."""
        for name in self._columns.names:
            if name not in there:
                names = list(dict.fromkeys(there))
                others = [each for each in names if each not in self._names]
                raise ValueError(
                    f"it has no column {name!r} of schema={meant(name, others)}. Correct schema=, or pass "
                    "absent='null' if the table got or lost the column in the course of the topic. It has "
                    f"{', '.join(names)}"
                )

    def _event(self, payload: bytes, message: Any) -> tuple[_Event, Mapping[str, _ConnectType]]:
        if self._deserialise is not None:
            told = self._deserialise(payload, message)
            if not isinstance(told, Mapping):
                raise ValueError(f"the deserialiser gave {type(told).__name__}, not an event of Debezium")
            get = told.get
            return _Event(get("before"), get("after"), get("source"), get("op"), get("ts_ms")), {}
        event = _EVENT.decode(payload)
        if event.payload is None:
            return event, {}
        return event.payload, self._types_of(bytes(event.schema))

    def _types_of(self, schema: bytes) -> Mapping[str, _ConnectType]:
        found = self._types.get(schema)
        if found is None:
            parts = (_SCHEMA.decode(schema).fields if schema and schema != b"null" else None) or []
            rows = [part.fields for part in parts if part.field in ("after", "before") and part.fields]
            found = {each.field: each for each in (rows[0] if rows else []) if each.field is not None}
            if len(self._types) > 100:  # a topic of many tables: nobody needs all of them at once
                self._types.clear()
            self._types[schema] = found
        return found

    def _values(
        self, row: Mapping[str, Any] | None, types: Mapping[str, _ConnectType], unchanged: list[str]
    ) -> dict[str, Any] | None:
        if row is None:
            return None
        values: dict[str, Any] = {}
        for field in self._columns:
            value = row.get(field.name)
            if value in (_UNAVAILABLE, _UNAVAILABLE_BYTES, _UNAVAILABLE.encode()):
                unchanged.append(field.name)
                value = None
            values[field.name] = None if value is None else converted(value, field.type, types.get(field.name))
        return values


def converted(value: Any, kind: pa.DataType, told: _ConnectType | None) -> Any:
    """What Arrow takes for `kind`. Raises `ValueError` for what does not fit."""
    is_ = pa.types
    name = told.name if told is not None else None
    if is_.is_decimal(kind):
        return _decimal(value, name, told)
    if is_.is_binary(kind) or is_.is_large_binary(kind):
        return base64.b64decode(value, validate=True) if isinstance(value, str) else value
    if is_.is_date(kind):
        return datetime.date(1970, 1, 1) + datetime.timedelta(days=value) if isinstance(value, int) else _iso(value)
    if is_.is_time(kind) or is_.is_timestamp(kind):
        return _moment(value, kind, name)
    if is_.is_boolean(kind) != isinstance(value, bool) and not isinstance(value, str):
        raise ValueError(f"{value!r} for a column of {kind}")
    return value


def _moment(value: Any, kind: pa.DataType, name: str | None) -> Any:
    if not isinstance(value, int):
        if pa.types.is_time(kind) and isinstance(value, str):
            return datetime.time.fromisoformat(value.replace("Z", "+00:00")).replace(tzinfo=None)
        return _iso(value)
    nanoseconds = value * _UNITS[_NAMED_UNITS.get(name or "", kind.unit)]
    units, rest = divmod(nanoseconds, _UNITS[kind.unit])
    if rest:
        raise ValueError(f"{value!r} ({name}) has more digits than the column's type {kind}")
    return units


def _iso(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if len(value) <= 10:
        return datetime.date.fromisoformat(value)
    return _MOMENT.decode(msgspec.json.encode(value))


def _decimal(value: Any, name: str | None, told: _ConnectType | None) -> decimal.Decimal:
    if name == _VARIABLE_DECIMAL or isinstance(value, Mapping):
        return _unscaled(value["value"], int(value["scale"]))
    if name == _DECIMAL and told is not None and isinstance(value, (str, bytes)):
        return _unscaled(value, int((told.parameters or {}).get("scale", "0")))
    try:
        return decimal.Decimal(str(value))
    except decimal.InvalidOperation:
        raise ValueError(
            f"{value!r} is not a decimal: without Connect's schema in the events, let Debezium write decimals as text "
            "(decimal.handling.mode=string)"
        ) from None


def _unscaled(value: str | bytes, scale: int) -> decimal.Decimal:
    data = base64.b64decode(value) if isinstance(value, str) else value
    return decimal.Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale, _ROOM)
