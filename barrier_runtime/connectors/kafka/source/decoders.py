"""Decodes keys and values of Kafka records."""

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.kafka.source.debezium import Absent, Debezium, DebeziumRows, debezium_schema
from barrier_runtime.connectors.kafka.source.debezium_values import UNAVAILABLE, Placeholder
from barrier_runtime.connectors.kafka.source.deserialisers import Deserialised
from barrier_runtime.connectors.source_bases.payloads import (
    Decoder,
    JsonPayloads,
    PackedRecords,
    PlainPayloads,
    arrays_with_nulls,
    columns_of,
    json_row,
)
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.texts import counted

Getter: TypeAlias = Callable[[Sequence[Any]], list[Any]]


def getter_of(message: Any, name: str, kind: pa.DataType) -> Getter:
    """Returns a function equal to `field_of` for many messages; `message`: their descriptor."""
    field = message.fields_by_name.get(name)
    nested = pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    get = attrgetter(name)
    if field is not None and _is_moment(field) and field.has_presence and not (nested or pa.types.is_struct(kind)):
        return lambda messages: [_moment(get(each)) if each.HasField(name) else None for each in messages]
    if field is None or field.message_type is not None or nested:
        get_one = _one_getter(message, name, kind)
        return lambda messages: list(map(get_one, messages))
    if field.enum_type is not None and pa.types.is_string(kind):
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        if field.has_presence:
            return lambda messages: [
                names.get(number) or str(number) if number is not None else None
                for number in [get(each) if each.HasField(name) else None for each in messages]
            ]
        return lambda messages: [names.get(number) or str(number) for number in map(get, messages)]
    if field.has_presence:
        return lambda messages: [get(each) if each.HasField(name) else None for each in messages]
    return lambda messages: list(map(get, messages))


def _one_getter(message: Any, name: str, kind: pa.DataType) -> Callable[[Any], Any]:
    """Returns `field_of` for messages of the descriptor `message`; descriptors are read once, at every level."""
    field = message.fields_by_name.get(name)
    if field is None or pa.types.is_map(kind):
        return lambda value: field_of(value, name, kind)
    get = attrgetter(name)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        plain = _plain_getter(field, kind.value_type)
        return (lambda value: list(get(value))) if plain is None else partial(_each_plain, plain, get)
    plain = _plain_getter(field, kind)
    read = get if plain is None else partial(_then_plain, plain, get)
    return (lambda value: read(value) if value.HasField(name) else None) if field.has_presence else read


def _each_plain(plain: Callable[[Any], Any], get: Callable[[Any], Any], value: Any) -> list[Any]:
    return list(map(plain, get(value)))


def _then_plain(plain: Callable[[Any], Any], get: Callable[[Any], Any], value: Any) -> Any:
    return plain(get(value))


def _plain_getter(field: Any, kind: pa.DataType) -> Callable[[Any], Any] | None:
    """Returns `_plain` for a field; None: the value itself."""
    if field.enum_type is not None and pa.types.is_string(kind):
        return lambda value: _plain(value, field, kind)
    if field.message_type is None:
        return None
    if pa.types.is_struct(kind):
        parts = [(part.name, _one_getter(field.message_type, part.name, part.type)) for part in kind]
        return lambda value: {name: get(value) for name, get in parts}
    return lambda value: _plain(value, field, kind)


def field_of(message: Any, name: str, kind: pa.DataType) -> Any:
    field = message.DESCRIPTOR.fields_by_name.get(name)
    if field is None:
        raise ValueError(f"{message.DESCRIPTOR.full_name} has no field {name!r}")
    if field.has_presence and not message.HasField(name):
        return None
    value = getattr(message, name)
    if pa.types.is_map(kind):
        return [(key, _plain(value[key], field.message_type.fields_by_name["value"], kind.item_type)) for key in value]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, field, kind.value_type) for item in value]
    return _plain(value, field, kind)


def _plain(value: Any, field: Any, kind: pa.DataType) -> Any:
    if field.enum_type is not None and pa.types.is_string(kind):
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    if field.message_type is None:
        return value
    if pa.types.is_struct(kind):
        return {part.name: field_of(value, part.name, part.type) for part in kind}
    if _is_moment(field):
        return _moment(value)
    if field.message_type.full_name.endswith("Value") and field.message_type.file.package == "google.protobuf":
        return value.value
    raise ValueError(f"field {field.name!r} is a {field.message_type.full_name}, its column is {kind}")


def _is_moment(field: Any) -> bool:
    return field.message_type is not None and field.message_type.full_name == "google.protobuf.Timestamp"


def _moment(value: Any) -> Any:
    if value.nanos % 1_000:
        return np.datetime64(value.ToNanoseconds(), "ns")
    return value.ToDatetime(tzinfo=datetime.timezone.utc)


Deserialiser: TypeAlias = Callable[..., Any]  # (data, SerializationContext) -> dict, Protobuf message or plain value
FormatName: TypeAlias = Literal["bytes", "string", "json"] | Callable[[], Deserialiser]

_CUT = 300


@dataclass(frozen=True)
class PayloadFormat:
    """Form of a key or value (`part`); travels to the slot, which makes the decoder.
    `table`: columns of Debezium's table.
    """

    part: str
    format_name: FormatName
    schema: pa.Schema
    debezium: Debezium | None = None
    table: pa.Schema | None = None
    absent: Absent = "fail"
    placeholder: str = UNAVAILABLE


def format_of(
    part: str,
    format_name: Any,
    schema: pa.Schema | None,
    where: str,
    debezium: Debezium | None = None,
    absent: Absent = "fail",
    placeholder: str = UNAVAILABLE,
) -> PayloadFormat:
    if debezium is not None:
        needed = [] if format_name == "json" or callable(format_name) else ['value="json" or a deserialiser']
        if schema is None:
            needed.append("schema= with the columns of the table")
        if schema is None or needed:
            raise InvalidJob(f"{where}: debezium={debezium!r} needs {' and '.join(needed)}")
        _check_placeholder(placeholder, where)
        rows = debezium_schema(debezium, schema, absent, where)
        return PayloadFormat(part, format_name, rows, debezium, schema, absent, placeholder)
    if placeholder != UNAVAILABLE:
        raise InvalidJob(f"{where}: unavailable_value_placeholder={placeholder!r} goes with debezium=: leave it out")
    if absent != "fail":
        raise InvalidJob(
            f"{where}: absent={absent!r} goes with debezium=: leave it out, absent columns of JSON are null"
        )
    schema_option = "schema=" if part == "value" else "key_schema="
    if format_name in ("bytes", "string"):
        if schema is not None:
            raise InvalidJob(f'{where}: {schema_option} goes with {part}="json" or a deserialiser, not {format_name!r}')
        return PayloadFormat(
            part, format_name, pa.schema([(part, pa.binary() if format_name == "bytes" else pa.string())])
        )
    if format_name != "json" and not callable(format_name):
        raise InvalidJob(
            f'{where}: {part}={format_name!r}: use "bytes", "string", "json" or a function that makes a deserialiser'
        )
    if schema is None:
        raise InvalidJob(f"{where}: {part}= is decoded, so its columns must be known: pass {schema_option}")
    if format_name == "json":
        json_row(schema, f"{where}, {schema_option}")
    return PayloadFormat(part, format_name, schema)


def _check_placeholder(placeholder: str, where: str) -> None:
    try:
        Placeholder(placeholder)
    except ValueError as error:
        raise InvalidJob(
            f"{where}: unavailable_value_placeholder={placeholder!r} is not read ({error}): give the connector's "
            "unavailable.value.placeholder, a text or hex: and hexadecimal digits"
        ) from error
    if placeholder in ("", "hex:"):
        raise InvalidJob(
            f"{where}: unavailable_value_placeholder={placeholder!r} cannot be told from an empty text: set another "
            "unavailable.value.placeholder of the connector, and give it here"
        )


def make_decoder(format: PayloadFormat, where: str) -> Decoder:
    if format.debezium is not None:
        assert format.table is not None
        deserialised = _deserialised(format, where) if callable(format.format_name) else None
        return DebeziumRows(
            *(format.debezium, format.table, format.absent, format.placeholder, deserialised),
            f"{where}, {format.part}",
        )
    if format.format_name == "bytes" or format.format_name == "string":
        return PlainPayloads(format.schema)
    if format.format_name == "json":
        return JsonPayloads(format.schema, f"{where}, {format.part}")
    return _Client(format, where)


def raise_outage(error: Exception) -> None:
    """Raises `Unavailable` or `InvalidJob` for errors of a schema registry, which no record has caused."""
    if isinstance(error, (InvalidJob, Unavailable)):
        raise error
    status = getattr(error, "http_status_code", None)
    if status in (401, 403):
        raise InvalidJob(
            f"the schema registry refuses access ({status}): correct the credentials in the deserialiser"
        ) from error
    client = sys.modules.get("httpx")
    outage = isinstance(error, OSError) or (client is not None and isinstance(error, client.HTTPError))
    if outage or status == 429 or (isinstance(status, int) and status >= 500):
        raise Unavailable(f"a deserialiser cannot reach what it needs: {error}"[:_CUT]) from error


class _Client(Decoder):
    """A mapping gives columns by keys, a Protobuf message by fields; any other value is the only column."""

    def __init__(self, format: PayloadFormat, where: str) -> None:
        self.schema = format.schema
        self._names = format.schema.names
        self._deserialised = _deserialised(format, where)
        self._packed = PackedRecords(format.schema)
        self._message: Any = None
        self._getters: list[Getter] = []

    def arrays(self, payloads: Sequence[bytes | None], messages: Sequence[Any]) -> list[pa.Array]:
        present = [payload for payload in payloads if payload is not None]
        if len(present) < len(payloads):
            return arrays_with_nulls(self, payloads, messages)
        if self._deserialised.are_dicts:
            packed = self._packed.tried(lambda: self._deserialised.values(present, messages))
            if packed is not None:
                return packed
        values = list(self._deserialised.values(present, messages))
        if set(map(type, values)) == {dict}:
            return columns_of([[value.get(name) for value in values] for name in self._names], self.schema)
        messages_of = {getattr(value, "DESCRIPTOR", None) for value in values}
        if len(messages_of) == 1 and None not in messages_of and not isinstance(values[0], Mapping):
            return columns_of([get(values) for get in self._getters_of(messages_of.pop())], self.schema)
        return self.columns(list(map(self._row, values)))

    def rows(self, payloads: Sequence[bytes | None], messages: Sequence[Any]) -> list[Any]:
        value_of = self._deserialised.value_of
        return [
            self._row(value_of(payload, message) if payload is not None else None)
            for payload, message in zip(payloads, messages, strict=True)
        ]

    def columns(self, rows: Sequence[Any]) -> list[pa.Array]:
        nothing = (None,) * len(self.schema)
        full = [row or nothing for row in rows]
        return columns_of([[row[number] for row in full] for number in range(len(self.schema))], self.schema)

    def _row(self, value: Any) -> tuple[Any, ...] | None:
        if value is None:
            return None
        if isinstance(value, Mapping):
            return tuple(value.get(name) for name in self._names)
        if hasattr(value, "DESCRIPTOR"):
            return tuple(field_of(value, field.name, field.type) for field in self.schema)
        if len(self.schema) != 1:
            raise ValueError(
                f"the deserialiser gave {type(value).__name__}, the schema has {counted(len(self.schema), 'column')}"
            )
        return (value,)

    def _getters_of(self, message: Any) -> list[Getter]:
        if self._message is not message:
            self._getters = [getter_of(message, field.name, field.type) for field in self.schema]
            self._message = message
        return self._getters


def _deserialised(format: PayloadFormat, where: str) -> Deserialised:
    from confluent_kafka.serialization import MessageField, SerializationContext

    assert callable(format.format_name)
    try:
        deserialise = format.format_name()
    except Exception as error:
        raise_outage(error)
        raise InvalidJob(f"{where}: {format.part}= cannot make its deserialiser: {error}") from error
    if not callable(deserialise):
        raise InvalidJob(
            f"{where}: {format.part}= gave {type(deserialise).__name__}: pass a function that makes a "
            "deserialiser, such as AvroDeserializer(registry)"
        )
    field = MessageField.KEY if format.part == "key" else MessageField.VALUE
    return Deserialised(deserialise, SerializationContext, field)
