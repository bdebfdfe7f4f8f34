"""Inverse of `columns_of_values`: values of a column, as the state stores them. Pure.

JSON is parsed, structs of classes that are stored in order become lists, and a field that is null although its type
has no null is omitted: the entry lacked the field. Writing checks whether the declared type can hold the result.
"""

import base64
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.value_types import FieldType, ValueType
from barrier_runtime.state_tables.columns_of_values import JSON_COLUMN, column_of, same, text_of

_json = msgspec.json.Decoder()
_JSON_KEYS = {"bool", "int", "float", "list", "tuple", "array", "choice"}  # types that are not text in stored values


def plain_of(kind: ValueType) -> Callable[[Any], Any]:
    """Converter for values of `column_of(kind)`, with maps as dicts. Raises `InvalidJob` for invalid JSON."""
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
        return partial(_of_class, kind, {field.name: _unless_none(plain_of(field.type)) for field in kind.fields})
    return same


def _unless_none(inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return same if inner is same else lambda value: None if value is None else inner(value)


def _of_class(kind: ValueType, inner: dict[str, Callable[[Any], Any]], given: Any) -> Any:
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
        value = _json.decode(given)
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
    found = _typed(_json.decode(key), kind)
    return tuple(found) if isinstance(found, list) else found
