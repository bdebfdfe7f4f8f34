"""Values of state as Arrow columns, and back (`plain_of`), by the type in the snapshot.

A missing field is null in the struct. Values without a column type, and those of older releases, are JSON. Values of an
earlier version (`migrate=`) have only the fields that still exist.
"""

import base64
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from barrier_runtime.data.values.into_columns import column_of as to_column
from barrier_runtime.operators.state.migration import without_version
from barrier_runtime.state.errors import UNREADABLE, Corrupt, InvalidJob
from barrier_runtime.state.snapshots.value_types import FieldType, ValueType
from barrier_runtime.state.values.expiry import without_time

_PLAIN: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int": pa.int64(),
    "float": pa.float64(),
    "str": pa.string(),
    "bytes": pa.binary(),
    "packed int": pa.int64(),
}
PACKED_INT = ValueType("packed int")  # eight bytes, big endian
_packed_int = struct.Struct(">q")
_TEXT = {"datetime", "time", "date", "timedelta", "uuid", "decimal"}
_LIST = b"\xdd"  # MessagePack's list with a length of four bytes
_decode = msgspec.msgpack.Decoder().decode
_json = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True)
class ValueColumn:
    """Column for values of a type. `of(value)` converts a decoded value for Arrow."""

    type: pa.DataType
    of: Callable[[Any], Any]

    def array(self, values: list[Any]) -> pa.Array:
        return to_column(values if self.of is same else [self.of(value) for value in values], self.type)


def same(value: Any) -> Any:
    return value


def text_of(value: Any) -> str:
    return value if isinstance(value, str) else value.isoformat() if hasattr(value, "isoformat") else str(value)


def _as_json(value: Any) -> str:
    try:
        return _json.encode(value).decode()
    except TypeError:
        return _json.encode(_with_text_keys(value)).decode()


def _with_text_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {_key_text(key): _with_text_keys(each) for key, each in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list) else value


def _key_text(key: Any) -> str:
    return key if isinstance(key, str) else _json.encode(key).decode().strip('"')


JSON_COLUMN = ValueColumn(pa.string(), _as_json)
_PICKLED = ValueColumn(pa.binary(), same)


def column_of(kind: ValueType | None) -> ValueColumn:
    if kind is None:
        return JSON_COLUMN
    if kind.kind in _PLAIN:
        return ValueColumn(_PLAIN[kind.kind], float if kind.kind == "float" else same)
    if kind.kind in _TEXT:
        return ValueColumn(pa.string(), text_of)
    if kind.kind == "pickle":
        return _PICKLED
    if kind.kind == "union":
        return _of_union(kind)
    if kind.kind == "choice" and kind.values:
        types = {type(value) for value in kind.values if value is not None}
        return ValueColumn(pa.int64(), same) if types == {int} else ValueColumn(pa.string(), text_of)
    if kind.kind in ("list", "tuple") and kind.of and all(each == kind.of[0] for each in kind.of):
        item = column_of(kind.of[0])
        return ValueColumn(pa.list_(item.type), lambda value: [None if one is None else item.of(one) for one in value])
    if kind.kind == "dict" and len(kind.of) == 2 and kind.of[0].kind in ("str", "int"):
        key, inner = column_of(kind.of[0]), column_of(kind.of[1])
        number = kind.of[0].kind == "int"
        return ValueColumn(
            pa.map_(key.type, inner.type),
            lambda value: [(int(k) if number else k, None if v is None else inner.of(v)) for k, v in value.items()],
        )
    if kind.kind in ("class", "array") and kind.fields:
        return _of_class(kind)
    return JSON_COLUMN


def _of_union(kind: ValueType) -> ValueColumn:
    some = [each for each in kind.of if each.kind != "none"]
    if len(some) != 1:
        return JSON_COLUMN
    inner = column_of(some[0])
    return ValueColumn(inner.type, lambda value: None if value is None else inner.of(value))


def _of_class(kind: ValueType) -> ValueColumn:
    fields = [(field.name, column_of(field.type)) for field in kind.fields]
    names = [name for name, _ in fields]

    def made(value: Any) -> dict[str, Any]:
        if isinstance(value, list):  # of fields in order, after the tag, if any
            value = dict(zip(names, value[bool(kind.tag) :], strict=False))
        return {name: None if value.get(name) is None else column.of(value[name]) for name, column in fields}

    return ValueColumn(pa.struct([pa.field(name, column.type) for name, column in fields]), made)


def without_marks(data: bytes) -> tuple[int | None, bytes]:
    """Write time (ms; None: not stored) and the value alone."""
    written_ms, data = without_time(data)
    return written_ms, without_version(data)


def decoded(data: bytes, kind: ValueType | None, where: str) -> Any:
    """Decodes a stored value to plain Python; a pickled value stays bytes."""
    if kind is not None and kind.kind == "pickle":
        return data
    if kind == PACKED_INT and len(data) == _packed_int.size:
        return _packed_int.unpack(data)[0]
    try:
        return _decode(data)
    except UNREADABLE as error:
        raise Corrupt(
            f"{where}: a value is not readable ({error}): it is of a codec that this release does not know"
        ) from error


def decoded_all(data: Sequence[bytes], kind: ValueType | None, where: str) -> list[Any]:
    """Decodes many values, with or without marks (`without_marks`).

    Concatenated values are decoded faster, as a list; values with marks fail there, because no MessagePack value begins
    with a mark.
    """
    if kind is not None and (kind.kind == "pickle" or kind == PACKED_INT):
        return [decoded(without_marks(each)[1], kind, where) for each in data]
    try:
        return _as_list(data)
    except UNREADABLE:
        own = [without_marks(each)[1] for each in data]
    try:
        return _as_list(own)
    except UNREADABLE:
        return [decoded(each, kind, where) for each in own]  # raises with the fault


def _as_list(values: Sequence[bytes]) -> list[Any]:
    return _decode(_LIST + len(values).to_bytes(4, "big") + b"".join(values))  # type: ignore[no-any-return]


_json_values = msgspec.json.Decoder()
_JSON_KEYS = {"bool", "int", "float", "list", "tuple", "array", "choice"}  # types of keys that are encoded JSON


def plain_of(kind: ValueType) -> Callable[[Any], Any]:
    """Converter for values of `column_of(kind)`. Raises `InvalidJob` for invalid JSON.

    Structs of classes that are stored in order become lists. A null field is omitted if its type has no null.
    """
    if column_of(kind) is JSON_COLUMN:
        return partial(_of_json, kind)
    if kind.kind == "union":
        (inner,) = [each for each in kind.of if each.kind != "none"]
        return _unless_none(plain_of(inner))
    if kind.kind == "choice":
        texts = {text_of(value): value for value in kind.values}
        return lambda value: texts.get(value, value)
    if kind.kind in ("list", "tuple"):
        item = _unless_none(plain_of(kind.of[0]))
        return same if item is same else lambda value: value if value is None else [item(each) for each in value]
    if kind.kind == "dict":
        each = _unless_none(plain_of(kind.of[1]))
        return same if each is same else lambda value: {key: each(inner) for key, inner in value.items()}
    if kind.kind in ("class", "array"):
        return partial(_plain_of_class, kind, {field.name: _unless_none(plain_of(field.type)) for field in kind.fields})
    return same


def _unless_none(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return same if inner is same else lambda value: None if value is None else inner(value)


def _plain_of_class(kind: ValueType, inner: dict[str, Callable[[Any], Any]], given: Any) -> Any:
    if not isinstance(given, dict):
        return given
    made = {name: inner.get(name, same)(value) for name, value in given.items()}
    lacking = [field.name for field in kind.fields if made.get(field.name) is None and not _has_null(field)]
    if kind.kind == "class":
        return {name: value for name, value in made.items() if name not in lacking}
    names = [field.name for field in kind.fields]
    while names and names[-1] in lacking:
        names.pop()
    return [*([kind.tag] if kind.tag else []), *[made.get(name) for name in names]]


def _has_null(field: FieldType) -> bool:
    kinds = [field.type, *field.type.of] if field.type.kind == "union" else [field.type]
    return any(each.kind in ("none", "any") or None in each.values for each in kinds)


def _of_json(kind: ValueType, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        value = _json_values.decode(given)
    except msgspec.DecodeError as error:
        raise InvalidJob(
            f'{given!r} is no JSON, as which values of {kind} are given ({error}): write "x" for text x'
        ) from error
    return _typed(value, kind)


def _typed(value: Any, kind: ValueType) -> Any:
    """Restores types that JSON lacks: bytes, and keys other than text."""
    if kind.kind == "bytes" and isinstance(value, str):
        return base64.b64decode(value)
    if kind.kind == "list" and isinstance(value, list) and kind.of:
        return [_typed(each, kind.of[0]) for each in value]
    if kind.kind == "tuple" and isinstance(value, list) and len(value) == len(kind.of):
        return [_typed(each, of) for each, of in zip(value, kind.of, strict=True)]
    if kind.kind == "dict" and isinstance(value, dict) and len(kind.of) == 2:
        return {_key(key, kind.of[0]): _typed(each, kind.of[1]) for key, each in value.items()}
    if kind.kind == "class" and isinstance(value, dict):
        types = {field.name: field.type for field in kind.fields}
        return {name: _typed(each, types[name]) if name in types else each for name, each in value.items()}
    if kind.kind == "union":
        some = [each for each in kind.of if each.kind != "none"]
        return _typed(value, some[0]) if len(some) == 1 else value
    return value


def _key(key: str, kind: ValueType) -> Any:
    if kind.kind == "bytes":
        return base64.b64decode(key)
    if kind.kind not in _JSON_KEYS or (kind.kind == "choice" and key in kind.values):
        return key
    found = _typed(_json_values.decode(key), kind)
    return tuple(found) if isinstance(found, list) else found


MASKED = "***"


def masked(value: Any, columns: Collection[str]) -> Any:
    """Copy of `value` (plain data) with values under the names `columns` hidden at every depth."""
    if not columns:
        return value
    if isinstance(value, Mapping):
        return {
            name: MASKED if name in columns and inner is not None else masked(inner, columns)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(each, columns) for each in value]
    return value
