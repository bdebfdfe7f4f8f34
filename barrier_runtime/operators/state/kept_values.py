"""Whether a value of state is the same once it was written and read again.

A reader takes more than its type keeps: it makes a float of a large whole number, leaves out keys and fields that the
type lacks, and reads a set from a list with an element twice. A running job would keep the value in memory, and a
restored one would go on with another.
"""

import dataclasses
import datetime
import decimal
from collections.abc import Sequence, Set
from typing import Any

import msgspec

from barrier_runtime.operators.state import models

_GROUPS = (list, tuple, set, frozenset)


def is_kept(value: Any, read: Any) -> bool:
    """Whether `read` is `value`. A list may be read for a tuple or a set of the same elements, and a
    class for a dict of its fields; NaN is kept."""
    if type(value) is type(read) and not isinstance(value, decimal.Decimal) and value == read:
        return True
    if isinstance(value, datetime.datetime) and isinstance(read, datetime.datetime):
        return _moment(value) == _moment(read)  # times of different zones are unequal in an hour that comes twice
    if isinstance(value, decimal.Decimal):
        return isinstance(read, decimal.Decimal) and value.as_tuple() == read.as_tuple()
    if isinstance(value, dict):
        if isinstance(read, dict):
            return _is_kept_dict(value, read)
        given = _fields(read)  # a row of a table for a class: fields that it lacks have their defaults
        if given is None:
            return False
        given = {**_tag(read), **given}
        return all(key in given and is_kept(each, given[key]) for key, each in value.items())
    if isinstance(value, _GROUPS):
        return isinstance(read, _GROUPS) and _is_kept_group(value, read)
    fields = _fields(value)
    if fields is not None:
        return type(value) is type(read) and _is_kept_dict(fields, _fields(read) or {})
    return bool(value == read or (value != value and read != read))


def _is_kept_dict(value: dict[Any, Any], read: dict[Any, Any]) -> bool:
    return len(value) == len(read) and all(key in read and is_kept(each, read[key]) for key, each in value.items())


def _is_kept_group(value: Any, read: Any) -> bool:
    if len(value) != len(read):
        return False
    if isinstance(value, Set) or isinstance(read, Set):
        elements = list(read)
        return all(each in elements or any(is_kept(each, other) for other in elements) for each in value)
    assert isinstance(value, Sequence)
    return all(map(is_kept, value, read))


def _moment(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is None else value.astimezone(datetime.timezone.utc)


def _tag(value: Any) -> dict[str, Any]:
    """The field that tells classes of a union apart, with its value; empty for a class without a tag."""
    config = value.__struct_config__ if isinstance(value, msgspec.Struct) else None
    return {} if config is None or config.tag_field is None else {config.tag_field: config.tag}


def _fields(value: Any) -> dict[str, Any] | None:
    """Of a dataclass, a Struct or a model, which need not compare their fields."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {stored: getattr(value, name) for stored, name in names}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if models.is_model(type(value)):
        return models.as_fields(value)
    return None
