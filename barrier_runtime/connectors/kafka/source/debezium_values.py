"""Converts values of Debezium's events by Connect's schema or by the type of the column. Pure.

A type in Connect's schema that contradicts the column (microseconds for a whole number) is refused although each value
would fit: an altered column looks the same.
"""

import base64
import binascii
import decimal
import hashlib
import math
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.data.values.stored_times import NS, fits_unit, is_time_kind, stored_of_text, unit_ns

Convert: TypeAlias = Callable[[Any], Any]

UNAVAILABLE = "__debezium_unavailable_value"
_DECIMAL = "org.apache.kafka.connect.data.Decimal"
_VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"
_TIMES = {  # by name in Connect's schema: kind of time, and unit of the number; None: text
    "io.debezium.time.Date": ("date", "days"),
    "io.debezium.time.IsoDate": ("date", None),
    "org.apache.kafka.connect.data.Date": ("date", "days"),
    "io.debezium.time.Time": ("time", "ms"),
    "io.debezium.time.MicroTime": ("time", "us"),
    "io.debezium.time.NanoTime": ("time", "ns"),
    "io.debezium.time.IsoTime": ("time", None),
    "io.debezium.time.ZonedTime": ("time", None),
    "org.apache.kafka.connect.data.Time": ("time", "ms"),
    "io.debezium.time.Timestamp": ("timestamp", "ms"),
    "io.debezium.time.MicroTimestamp": ("timestamp", "us"),
    "io.debezium.time.NanoTimestamp": ("timestamp", "ns"),
    "io.debezium.time.IsoTimestamp": ("timestamp", None),
    "io.debezium.time.ZonedTimestamp": ("timestamp", None),
    "org.apache.kafka.connect.data.Timestamp": ("timestamp", "ms"),
    "io.debezium.time.MicroDuration": ("duration", "us"),
    "io.debezium.time.NanoDuration": ("duration", "ns"),
    "io.debezium.time.Interval": ("duration", None),
}
_NS = {**NS, "days": 86_400_000_000_000}
DAYS = range(-719_162, 2_932_897)  # since 1970, of the years 1 to 9999
INFINITE = frozenset({9_223_372_036_825_200_000, -9_223_372_036_832_400_000})  # PostgreSQL's timestamps, in any unit
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?([eE][+-]?\d{1,4})?", re.ASCII)
_NO_NUMBERS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_ROOM = decimal.Context(prec=1_000)
# Debezium's placeholders (EWKB) for an omitted geometry or geography: points outside every map.
_NO_SHAPES = (
    "0101000020E6100000000000FC83D797C1000000FC83D797C1",
    "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
)


class ConnectType(msgspec.Struct):
    type: str | None = None
    field: str | None = None
    name: str | None = None
    parameters: dict[str, str] | None = None
    fields: "list[ConnectType] | None" = None
    items: "ConnectType | None" = None
    keys: "ConnectType | None" = None
    values: "ConnectType | None" = None


class Placeholder:
    """Detects `placeholder`, the connector's setting (also with `hex:`), in place of large values."""

    def __init__(self, placeholder: str) -> None:
        digits = placeholder.startswith("hex:")
        data = bytes.fromhex(placeholder[4:]) if digits else placeholder.encode()
        text = data.decode(errors="replace")
        texts = {text, data.hex(), data.hex().upper(), json_text(text), *_based(data)}
        texts.add(str(uuid.UUID(bytes=hashlib.md5(data, usedforsecurity=False).digest(), version=3)))
        shapes = [bytes.fromhex(shape) for shape in _NO_SHAPES]
        self._scalars = frozenset({*texts, data, *shapes, *(each for shape in shapes for each in _based(shape))})
        self._numbers = [each - 256 if each > 127 else each for each in data]  # in arrays: Java's signed bytes

    def stands_for(self, value: Any) -> bool:
        """True for the placeholder, and for arrays and maps that contain it at any level."""
        kind = type(value)
        if kind is str or kind is bytes:
            return value in self._scalars
        if kind is list:
            return value == self._numbers or any(map(self.stands_for, value))
        if kind is dict:
            return any(map(self.stands_for, value)) or any(map(self.stands_for, value.values()))
        return False

    def marks(self, values: Sequence[Any]) -> list[bool] | None:
        """Returns `stands_for` of each value; None: no value is a placeholder."""
        kinds = set(map(type, values))
        if kinds.isdisjoint((str, bytes, list, dict)):
            return None
        if kinds <= _HASHABLE and self._scalars.isdisjoint(values):
            return None
        marks = list(map(self.stands_for, values))
        return marks if True in marks else None


_HASHABLE = {str, bytes, int, float, bool, decimal.Decimal, type(None)}


def _based(data: bytes) -> tuple[str, str]:
    return base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()


def json_text(text: str) -> str:
    """Text of the placeholder as an `hstore` map (`hstore.handling.mode=json`)."""
    return msgspec.json.encode({text: text}).decode()


def converter(kind: pa.DataType, told: ConnectType | None, *, of_json: bool) -> Convert | None:
    """Returns a function that converts a non-null value, or raises `ValueError`; None without conversion.

    `told`: None without Connect's schema. `of_json`: fractions were read as `Decimal`.
    """
    is_ = pa.types
    wrong = wrongly_told(kind, told)
    if wrong:
        return _refusal(wrong)
    if is_time_kind(kind):
        return _time_converter(kind, told)
    if is_.is_decimal(kind) or (is_.is_integer(kind) and _is_decimal(told)):
        return _decimal_converter(told)
    if is_.is_floating(kind):
        return _float_of_json if of_json else _float
    if _is_bytes(kind):
        return _bytes
    if is_.is_list(kind) or is_.is_large_list(kind) or is_.is_fixed_size_list(kind):
        return _list_converter(converter(kind.value_type, told.items if told else None, of_json=of_json))
    if is_.is_map(kind):
        key, item = (
            converter(part, of, of_json=of_json)
            for part, of in (
                (kind.key_type, told.keys if told else None),
                (kind.item_type, told.values if told else None),
            )
        )
        return _map_converter(key, item)
    if is_.is_struct(kind):
        fields = {each.field: each for each in (told.fields or ())} if told else {}
        return _struct_converter(
            {part.name: converter(part.type, fields.get(part.name), of_json=of_json) for part in kind}
        )
    return None


def _is_decimal(told: ConnectType | None) -> bool:
    return told is not None and told.name in (_DECIMAL, _VARIABLE_DECIMAL)


def _is_bytes(kind: pa.DataType) -> bool:
    is_ = pa.types
    return bool(is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind))


def wrongly_told(kind: pa.DataType, told: ConnectType | None) -> str:
    """Explains why Connect's type does not fit the column, or ""."""
    if told is None:
        return ""
    shown = f"Connect's schema has the type {told.name or told.type}"
    time = _TIMES.get(told.name or "")
    if is_time_kind(kind):
        if time is not None:
            return "" if _is_of(kind, time[0]) else f"{shown}, which is a {time[0]}: declare it so in schema="
        if told.type == "string" and told.name is None:
            return ""
        return f"{shown}, which is no {kind}: declare its own type in schema="
    if time is not None and time[1] is not None:
        unit = "" if time[0] == "date" else f"[{time[1]}]"
        like = {"date": "date32", "time": "time32" if time[1] == "ms" else "time64"}.get(time[0], time[0])
        return f'{shown}, whose numbers mean a {time[0]}: declare it as "{like}{unit}" in schema='
    if _is_decimal(told) and not (pa.types.is_decimal(kind) or pa.types.is_integer(kind)):
        return f'{shown}: declare it as "decimal(p, s)" in schema=, or set decimal.handling.mode of the connector'
    if told.type == "bytes" and not (_is_bytes(kind) or _is_decimal(told)):
        return f"{shown}: declare it as bytes in schema="
    if told.type == "string" and _is_bytes(kind):
        return (
            f"{shown}, and does not tell base64 from hexadecimal digits: set binary.handling.mode=bytes of the "
            "connector, or declare it as str in schema="
        )
    return ""


def _is_of(kind: pa.DataType, time: str) -> bool:
    is_ = pa.types
    families = {"date": is_.is_date, "time": is_.is_time, "timestamp": is_.is_timestamp, "duration": is_.is_duration}
    return bool(families[time](kind))


def _refusal(wrong: str) -> Convert:
    def refuse(value: Any) -> NoReturn:
        raise ValueError(wrong)

    return refuse


def number_unit(kind: pa.DataType, told: ConnectType | None) -> int:
    unit = _TIMES[told.name][1] if told is not None and told.name in _TIMES else None
    return _NS[unit] if unit else unit_ns(kind)


def _time_converter(kind: pa.DataType, told: ConnectType | None) -> Convert:
    name = told.name if told is not None else None
    ns = number_unit(kind, told)
    per_day = _NS["days"] // unit_ns(kind) if pa.types.is_date(kind) else 0

    def dated(number: int, value: Any) -> int:
        if per_day and number // per_day not in DAYS:
            raise ValueError(f"{value!r} is no date of the years 1 to 9999: correct the row in the table")
        return number

    def convert(value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"{value!r} for a column of {kind}")
        if isinstance(value, int):
            if value in INFINITE and pa.types.is_timestamp(kind):
                raise ValueError(f"{value!r} means infinity, which {kind} does not have: correct the row in the table")
            number, why, remedy = fits_unit(value * ns, kind)
            if why:
                shown = f"{value!r} ({name})" if name else repr(value)
                raise ValueError(f"{shown} is not kept as {kind}, {why}{': ' if remedy else ''}{remedy}")
            return dated(number, value)
        if isinstance(value, str):
            return dated(stored_of_text(_plain_text(value, kind), kind), value)
        return value

    return convert


def _plain_text(text: str, kind: pa.DataType) -> str:
    """Removes Debezium's additions: the zone of dates, zero years and months of intervals."""
    if pa.types.is_date(kind):
        return text.removesuffix("Z")
    return "P" + text[5:] if pa.types.is_duration(kind) and text.startswith("P0Y0M") else text


def scale_of(told: ConnectType | None) -> int | None:
    """Digits after the point of decimals written as bytes of a whole number; None: written otherwise."""
    return int((told.parameters or {}).get("scale", "0")) if told is not None and told.name == _DECIMAL else None


def _decimal_converter(told: ConnectType | None) -> Convert:
    scale = scale_of(told)

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return _unscaled(value["value"], int(value["scale"]))
        if scale is not None and isinstance(value, str | bytes):
            return _unscaled(value, scale)
        if isinstance(value, float):
            return decimal.Decimal(repr(value))
        if not isinstance(value, str):
            return value
        if _NUMBER.fullmatch(value) is None:
            raise ValueError(
                f"{value!r} is not a decimal: without Connect's schema in the events, let Debezium write decimals as "
                "text (decimal.handling.mode=string)"
            )
        return decimal.Decimal(value)

    return convert


def _unscaled(value: str | bytes, scale: int) -> decimal.Decimal:
    return decimal.Decimal(unscaled_number(value)).scaleb(-scale, _ROOM)


def unscaled_number(value: str | bytes) -> int:
    return int.from_bytes(_bytes(value), "big", signed=True)


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(
            f"{value!r} is not base64 ({error}): set binary.handling.mode=bytes or base64 of the connector"
        ) from None


def _float(value: Any) -> Any:
    return _NO_NUMBERS.get(value, value) if isinstance(value, str) else value


def _float_of_json(value: Any) -> Any:
    if not isinstance(value, decimal.Decimal):
        return _float(value)
    number = float(value)
    if math.isinf(number):
        raise ValueError(f"{value!r} is larger than a float can be")
    return number


def _each(convert: Convert | None, value: Any) -> Any:
    return value if value is None or convert is None else convert(value)


def _list_converter(inner: Convert | None) -> Convert | None:
    if inner is None:
        return None
    return lambda value: [_each(inner, each) for each in value] if isinstance(value, list) else value


def _map_converter(key: Convert | None, item: Convert | None) -> Convert | None:
    if key is None and item is None:
        return None

    def convert(value: Any) -> Any:
        if isinstance(value, Mapping):
            return [(_each(key, name), _each(item, each)) for name, each in value.items()]
        if isinstance(value, list):  # Connect writes maps with keys that are no texts as pairs
            return [(_each(key, name), _each(item, each)) for name, each in value]
        return value

    return convert


def _struct_converter(fields: Mapping[str, Convert | None]) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        return {name: _each(inner, value.get(name)) for name, inner in fields.items()}

    return convert
