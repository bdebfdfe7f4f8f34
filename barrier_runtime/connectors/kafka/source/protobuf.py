"""Fields of Protobuf messages as values of columns."""

import datetime
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

Getter: TypeAlias = Callable[[Sequence[Any]], list[Any]]


def getter_of(message: Any, name: str, kind: pa.DataType) -> Getter:
    """Returns a function equal to `field_of` for many messages; `message`: their descriptor."""
    field = message.fields_by_name.get(name)
    nested = pa.types.is_map(kind) or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    get = attrgetter(name)
    if field is not None and _is_moment(field) and field.has_presence and not (nested or pa.types.is_struct(kind)):
        return lambda messages: [_moment(get(each)) if each.HasField(name) else None for each in messages]
    if field is None or field.message_type is not None or nested:
        return lambda messages: [field_of(each, name, kind) for each in messages]
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
