"""`get_json_object`, `from_json`, `to_json`. Pure.

As in Spark, text that is no JSON, and an unfit value, gives null.
"""

import base64
import datetime
import json
import math
import re
from collections.abc import Callable
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from barrier_runtime.data.sql.arguments import Unfit
from barrier_runtime.data.sql.casts import type_named
from barrier_runtime.data.values.json_columns import is_list

_TOKENS = re.compile(r"`[^`]+`|\w+|[<>(),:]")


def type_of_schema(text: str) -> pa.DataType:
    """Reads Spark's form: `id INT, tags ARRAY<STRING>`, or a single type. Raises `Unfit`."""
    if _TOKENS.sub("", text).strip():
        raise _invalid(text)
    try:
        return _whole_number(text, _Reader.type)
    except _NoSchema:
        pass
    try:
        return _whole_number(text, _Reader.fields)
    except _NoSchema:
        raise _invalid(text) from None


class _NoSchema(Exception):
    pass


def _invalid(text: str) -> Unfit:
    return Unfit(f"the schema is {text!r}: write names and types, as in 'id BIGINT, tags ARRAY<STRING>'")


def _whole_number(text: str, read: Callable[["_Reader"], pa.DataType]) -> pa.DataType:
    reader = _Reader(_TOKENS.findall(text))
    kind = read(reader)
    reader.end()
    return kind


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens[::-1]

    def _next(self) -> str:
        if not self._tokens:
            raise _NoSchema
        return self._tokens.pop()

    def _take(self, token: str) -> bool:
        found = bool(self._tokens) and self._tokens[-1].upper() == token
        if found:
            self._tokens.pop()
        return found

    def _need(self, token: str) -> None:
        if not self._take(token):
            raise _NoSchema

    def end(self) -> None:
        if self._tokens:
            raise _NoSchema

    def fields(self) -> pa.DataType:
        found: list[tuple[str, pa.DataType]] = []
        while True:
            name = self._next()
            if name in "<>(),:":
                raise _NoSchema
            self._take(":")
            found.append((name.strip("`"), self.type()))
            if self._take("NOT"):
                self._need("NULL")
            if not self._take(","):
                break
        names = [name for name, _ in found]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Unfit(f"the schema has the field {twice[0]!r} twice")
        return pa.struct(found)

    def type(self) -> pa.DataType:
        name = self._next()
        if name.upper() not in ("ARRAY", "MAP", "STRUCT"):
            return self._plain(name)
        self._need("<")
        if name.upper() == "STRUCT":
            kind = self.fields()
        elif name.upper() == "ARRAY":
            kind = pa.list_(self.type())
        else:
            key = self.type()
            self._need(",")
            kind = pa.map_(key, self.type())
        self._need(">")
        return kind

    def _plain(self, name: str) -> pa.DataType:
        digits = ""
        if self._take("("):
            while not self._take(")"):
                digits += self._next()
        try:
            kind = exp.DataType.build(f"{name}({digits})" if digits else name, dialect="spark")
        except SqlglotError:
            raise _NoSchema from None
        if kind.this.name == "USERDEFINED":
            raise _NoSchema
        return type_named(kind)


_STEP = re.compile(r"\.([^.\[\]'\"*]+)|\['([^']+)'\]|\[(\d+)\]")
_UTC = datetime.timezone.utc
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_TIME = re.compile(r"(\d{4})-(\d\d?)-(\d\d?)(?:[T ](\d\d?):(\d\d?)(?::(\d\d?)(?:\.(\d{1,6}))?)?(Z|[+-]\d\d:?\d\d)?)?")
_DIGITS = Context(prec=76)
_NO_VALUE = object()
_UNREAD = (ValueError, RecursionError)  # of parts too deep inside each other
_PLAIN_DOUBLES = (1e-3, 1e7)  # between which Java writes no exponent


class _Number(str):
    pass


def parsed(text: str) -> Any:
    return json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


@lru_cache(256)
def path_of(path: str) -> tuple[str | int, ...]:
    """Names and positions of a path such as `$.items[0].price`."""
    steps: list[str | int] = []
    at = 1
    while path.startswith("$") and at < len(path) and (found := _STEP.match(path, at)):
        steps.append(int(found[3]) if found[3] is not None else found[1] or found[2])
        at = found.end()
    if not path.startswith("$") or at < len(path):
        raise Unfit(f"the path is {path!r}: write $, then .name, ['name'] or [0], as in '$.items[0].price'")
    return tuple(steps)


def at_path(text: str, path: str) -> str | None:
    """Returns a text itself, other values as JSON; null if the path has no value."""
    try:
        value = parsed(text)
        for step in path_of(path):
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and step < len(value) else None
            else:
                value = value.get(step) if isinstance(value, dict) else None
        return None if value is None else _known_text(value)
    except _UNREAD:
        return None


def _known_text(value: Any) -> str:
    """Raises `UnicodeEncodeError`, a `ValueError`, for half of a surrogate pair, which is no character."""
    text = value if type(value) is str else written(value)
    if not text.isascii():
        text.encode()
    return text


def _as_text(value: Any) -> Any:
    try:
        return _known_text(value)
    except UnicodeEncodeError:
        return _NO_VALUE


def written(value: Any) -> str:
    """Writes no spaces, and numbers with a fraction as Java writes doubles."""
    if isinstance(value, _Number):
        return str(value) if value.lstrip("-").isdigit() else java_double(float(value))
    if isinstance(value, dict):
        return "{" + ",".join(f"{_quoted(name)}:{written(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return _quoted(value)


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_as(kind: pa.DataType) -> Callable[[str], Any]:
    nothing = dict.fromkeys(field.name for field in kind.fields) if pa.types.is_struct(kind) else None
    one_of_many = pa.types.is_list(kind) and pa.types.is_struct(kind.value_type)

    def read(text: str) -> Any:
        if not text.strip():
            return None
        try:
            found = parsed(text)
            value = _value([found] if one_of_many and isinstance(found, dict) else found, kind)
        except _UNREAD:
            return nothing
        return nothing if value is None or value is _NO_VALUE else value

    return read


def _value(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if value is None:
        return None
    if types.is_struct(kind):
        if not isinstance(value, dict):
            return _NO_VALUE
        return {field.name: _or_null(_value(value.get(field.name), field.type)) for field in kind.fields}
    if types.is_list(kind):
        values = [_value(each, kind.value_type) for each in value] if isinstance(value, list) else [_NO_VALUE]
        return _NO_VALUE if any(each is _NO_VALUE for each in values) else values
    if types.is_map(kind):
        if not isinstance(value, dict):
            return _NO_VALUE
        pairs = [(_as_text(name), _value(each, kind.item_type)) for name, each in value.items()]
        return _NO_VALUE if any(_NO_VALUE in pair for pair in pairs) else pairs
    return _plain_value(value, kind)


def _or_null(value: Any) -> Any:
    return None if value is _NO_VALUE else value


def _plain_value(value: Any, kind: pa.DataType) -> Any:
    types = pa.types
    if types.is_string(kind):
        return _as_text(value)
    if types.is_boolean(kind):
        return value if isinstance(value, bool) else _NO_VALUE
    if isinstance(value, dict | list | bool):
        return _NO_VALUE
    if types.is_integer(kind):
        return _whole(value, kind.bit_width)
    if types.is_floating(kind):
        return _double(value)
    if types.is_decimal(kind):
        return _decimal(value, kind)
    if isinstance(value, _Number):
        return _seconds_since_1970(value) if types.is_timestamp(kind) and kind.tz else _NO_VALUE
    if types.is_timestamp(kind):
        return _time(value, kind)
    if types.is_date(kind):
        time = _time(value, pa.timestamp("us"))
        return time if time is _NO_VALUE else time.date()
    if types.is_binary(kind):
        return _bytes(value)
    return _NO_VALUE


def _whole(value: str, bits: int) -> Any:
    if not isinstance(value, _Number) or not value.lstrip("-").isdigit():
        return _NO_VALUE
    number = int(value)
    return number if -(1 << (bits - 1)) <= number < 1 << (bits - 1) else _NO_VALUE


def _double(value: str) -> Any:
    if isinstance(value, _Number) or value in ("NaN", "Infinity", "-Infinity", "+Infinity"):
        return float(value)
    return _NO_VALUE


def _decimal(value: str, kind: pa.DataType) -> Any:
    try:
        number = Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), "ROUND_HALF_UP", _DIGITS)
    except (InvalidOperation, ValueError):
        return _NO_VALUE
    return number if len(number.as_tuple().digits) <= kind.precision else _NO_VALUE


def _time(value: str, kind: pa.DataType) -> Any:
    found = _TIME.fullmatch(value)
    if found is None:
        return _NO_VALUE
    *numbers, fraction, zone = found.groups()
    zone = "+00:00" if zone in (None, "Z") else zone if ":" in zone else f"{zone[:3]}:{zone[3:]}"
    year, month, day, hour, minute, second = (int(each or 0) for each in numbers)
    written = f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction or '':0<6}{zone}"
    try:
        moment = datetime.datetime.fromisoformat(written).astimezone(_UTC)
    except ValueError:
        return _NO_VALUE
    return moment if kind.tz else moment.replace(tzinfo=None)


def _seconds_since_1970(value: str) -> Any:
    try:
        return _EPOCH + datetime.timedelta(seconds=int(value))
    except (OverflowError, ValueError):  # a year beyond 9999, or a fraction
        return _NO_VALUE


def _bytes(value: str) -> Any:
    try:
        return base64.b64decode(value, validate=True)
    except ValueError:
        return _NO_VALUE


def as_json(value: Any, kind: pa.DataType) -> str:
    """Leaves out null fields, as in Spark."""
    types = pa.types
    if value is None:
        return "null"
    if types.is_struct(kind):
        fields = [(field, value[field.name]) for field in kind.fields if value[field.name] is not None]
        return "{" + ",".join(f"{_quoted(field.name)}:{as_json(each, field.type)}" for field, each in fields) + "}"
    if types.is_map(kind):
        pairs = [(_key(name, kind.key_type), as_json(each, kind.item_type)) for name, each in value]
        return "{" + ",".join(f"{name}:{each}" for name, each in pairs) + "}"
    if is_list(kind):
        return "[" + ",".join(as_json(each, kind.value_type) for each in value) + "]"
    return _plain_json(value, kind)


def _key(value: Any, kind: pa.DataType) -> str:
    text = _plain_json(value, kind)
    return text if text.startswith('"') else f'"{text}"'


def _plain_json(value: Any, kind: pa.DataType) -> str:
    types = pa.types
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_string(kind):
        return _quoted(value)
    if types.is_floating(kind):
        value = float(str(np.float32(value))) if types.is_float32(kind) else value
        return java_double(value) if math.isfinite(value) else _quoted(java_double(value))
    if types.is_decimal(kind):
        return f"{value:f}"
    if types.is_timestamp(kind):
        moment = value if value.tzinfo else value.replace(tzinfo=_UTC)
        milliseconds = (moment - _EPOCH) // datetime.timedelta(milliseconds=1)
        shown = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
        return f'"{shown.replace(tzinfo=None).isoformat(timespec="milliseconds")}{"Z" if kind.tz else ""}"'
    if types.is_binary(kind):
        return f'"{base64.b64encode(value).decode()}"'
    return _quoted(str(value))


def java_double(value: float) -> str:
    """Writes a double as Java does: `2.0`, `1.0E20`."""
    if not math.isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or _PLAIN_DOUBLES[0] <= abs(value) < _PLAIN_DOUBLES[1]:
        return repr(value) if "e" not in repr(value) else f"{Decimal(repr(value)):f}"
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = map(str, digits)
    return f"{'-' if sign else ''}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"
