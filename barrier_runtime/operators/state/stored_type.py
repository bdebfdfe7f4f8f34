"""Declared type of a state's values: accepted values, and conversion to bytes and back.

A changed program can still read values after fields with defaults were added, fields removed, or types widened.

`is_kept` detects values that a restored job would read differently, such as dropped fields.
"""

import dataclasses
import datetime
import decimal
import enum
import math
import numbers
import uuid
from collections.abc import Callable, Sequence, Set
from typing import Any, Literal

import msgspec
import numpy as np

from barrier_runtime.operators.state.described_types import (
    BUILDING,
    PICKLED,
    Renamed,
    annotations,
    as_fields,
    check_renamed,
    decoder_of,
    exact_floats,
    fields_of,
    is_model,
    value_type,
)
from barrier_runtime.operators.state.migration import Migrate, check_migrate, migrating_decoder, version_encoder
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.value_types import ValueType, to_floats
from barrier_runtime.state.texts import shortened
from barrier_runtime.state.values.table import MadeNew

_GROUPS = (list, tuple, set, frozenset)


def is_kept(value: Any, read: Any) -> bool:
    """Returns whether `read` equals `value` for the user.
    A list may stand for a tuple or set of the same elements, a class for a dict of its fields; NaN equals NaN."""
    if type(value) is type(read) and not isinstance(value, decimal.Decimal) and value == read:
        return True
    if isinstance(value, datetime.datetime) and isinstance(read, datetime.datetime):
        # `datetime` compares wrongly around clock changes
        return _moment(value) == _moment(read)
    if isinstance(value, decimal.Decimal):
        return isinstance(read, decimal.Decimal) and value.as_tuple() == read.as_tuple()
    if isinstance(value, dict):
        if isinstance(read, dict):
            return _is_kept_dict(value, read)
        given = _fields(read)  # a class read for a row of a table: missing fields have defaults
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
    config = value.__struct_config__ if isinstance(value, msgspec.Struct) else None
    return {} if config is None or config.tag_field is None else {config.tag_field: config.tag}


def _fields(value: Any) -> dict[str, Any] | None:
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        return {stored: getattr(value, name) for stored, name in names}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if is_model(type(value)):
        return as_fields(value)
    return None


CodecName = Literal["msgpack", "pickle"]

_SCALARS = (bool, int, float, str, bytes)
_TIMELESS = frozenset({type(None), *_SCALARS})
INT_MIN, INT_MAX = -(2**63), 2**64 - 1  # of MessagePack
_UNCHANGEABLE = (
    type(None),
    numbers.Number,
    str,
    bytes,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    enum.Enum,
    uuid.UUID,
)


class StoredType:
    """Type that msgspec knows, or a pydantic model; with codec "pickle" any type."""

    __slots__ = (
        *("_as_read", "_codec", "_fields", "_kind", "_migrate", "_renamed", "_says", "_type"),
        *("holds_times", "is_time", "scalar"),
    )

    def __init__(
        self,
        kind: Any,
        codec: CodecName,
        says: str,
        renamed: Renamed | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        """Raises `InvalidJob` for a type that cannot be stored. `says`: the declaring class, for messages."""
        if kind is None or kind is type(None):
            raise InvalidJob(f"{says}({kind!r}) could hold nothing: declare the type of its values, as in {says}(int)")
        if isinstance(kind, str):
            raise InvalidJob(f"{says}({kind!r}): pass the type itself and not its name, as in {says}({kind})")
        if codec not in ("msgpack", "pickle"):
            raise InvalidJob(f"{says} codec {codec!r} is unknown: use 'msgpack' or 'pickle'")
        if codec == "msgpack":
            with BUILDING:
                unknown = _unknown_part(kind)
            if unknown is not None:
                raise InvalidJob(
                    f"{says}({kind!r}): msgspec cannot write {unknown}: "
                    'use a dataclass or msgspec.Struct, or codec="pickle"'
                )
        self._kind = kind
        self._codec = codec
        self._says = says
        self._fields = fields_of(kind) if codec == "msgpack" else ()
        self._renamed = check_renamed(renamed, self._fields, says)
        self._migrate = check_migrate(migrate, says)
        if self._migrate and codec == "pickle":
            raise InvalidJob(f"{says} migrate= with codec='pickle': only values of declared types can be migrated")
        self._type = PICKLED if codec == "pickle" else value_type(kind)
        self.is_time = kind is datetime.datetime and codec == "msgpack"
        self.holds_times = not self.is_time and _may_hold_times(self._type)
        self._as_read: Callable[[bytes], Any] | None = None
        self.scalar: Any = kind if kind in _SCALARS and codec == "msgpack" else None

    @property
    def immutable(self) -> bool:
        """Values cannot change in place: reads during a snapshot then encode nothing."""
        return self.scalar is not None

    @property
    def comparable(self) -> bool:
        """An unchanged value is always written as the same bytes."""
        return self._codec == "msgpack"

    def accepted(self, name: str, value: Any) -> Any:
        """Returns `value` in the form in which state `name` stores it.

        Numbers of numpy become plain, whole numbers of a float state become floats, times with a zone become UTC (in a
        copy, if inside a value). Raises `InvalidJob` for a scalar of another type.
        """
        scalar = self.scalar
        if scalar is None:
            if self.holds_times and _has_other_zones(value):
                return self._read_again(value)
            return in_utc(value) if self.is_time else value
        if type(value) is not scalar:
            value = self.as_scalar(name, value)
        if scalar is int:
            check_int(name, value)
        elif scalar is str and not value.isascii():
            check_text(name, value)
        return value

    def _read_again(self, value: Any) -> Any:
        """Returns `value` as after a restore; unchanged if it cannot be written, since writing refuses it."""
        if self._as_read is None:
            self._as_read = decoder_of(self._kind).decode
        try:
            read = self._as_read(msgspec.msgpack.encode(value, enc_hook=as_fields))
            return read if is_kept(value, read) else value
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
            return value

    def as_scalar(self, name: str, value: Any) -> Any:
        return as_scalar(self.scalar, value, lambda: f"state {name!r} is declared {self.scalar.__name__}", "is stored")

    def encoder(self, where: str, ordered: bool = False) -> Callable[[Any], bytes]:
        """Returns value -> bytes, which refuses values that could not be read back.
        `ordered`: equal values give equal bytes in every process."""
        if self._codec == "pickle":
            import pickle

            return pickle.dumps
        encode = msgspec.msgpack.Encoder(enc_hook=as_fields, order="deterministic" if ordered else None).encode
        version = len(self._migrate)
        if self.scalar is not None:
            return version_encoder(encode, version)
        decode = decoder_of(self._kind).decode

        def checked(value: Any) -> bytes:
            try:
                data = encode(value)
                read = decode(data)
                # another spelling of the same number or id is accepted
                if not is_kept(value, read) and encode(read) != data:
                    raise ValueError(f"a restored job would read {short(read)}")
            except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidJob(
                    f"{where}: the value {short(value)} does not fit its declared type {self._kind!r} ({error}): "
                    f"store what {self._says} declares, or correct the declaration"
                ) from error
            return data

        return version_encoder(checked, version)

    def declared(self, what: StateDescription) -> StateDescription:
        return msgspec.structs.replace(
            what, fields=self._fields, renamed=self._renamed, type=self._type, versions=tuple({} for _ in self._migrate)
        )

    def decoder(self, where: str, what: StateDescription, made_new: MadeNew | None = None) -> Callable[[bytes], Any]:
        """Returns bytes -> value. `what`: description of the state in later snapshots."""
        if self._codec == "pickle":
            import pickle

            return pickle.loads
        renamed = (*what.versions, what.renamed)
        plain: Callable[[bytes], Any] = decoder_of(self._kind).decode
        if any(to_floats(each, self._type, what.renamed, earlier=True) for each in what.earlier):
            plain = exact_floats(plain)
        decode = migrating_decoder(plain, renamed, self._migrate, where, made_new or MadeNew())

        def checked(data: bytes) -> Any:
            try:
                return decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidJob(
                    f"{where}: the stored value cannot be read as {self._kind!r} ({error}): keep the old type readable "
                    "(defaults for added fields, wider types) or use a new state name"
                ) from error

        return checked


def in_utc(value: Any) -> Any:
    """Returns a datetime as it will be read, in UTC."""
    if isinstance(value, datetime.datetime) and value.tzinfo not in (None, datetime.timezone.utc):
        return value.astimezone(datetime.timezone.utc)
    return value


def _may_hold_times(kind: ValueType) -> bool:
    parts = (*kind.of, *(field.type for field in kind.fields))
    return kind.kind in ("datetime", "any") or any(map(_may_hold_times, parts))


def _has_other_zones(value: Any) -> bool:
    if isinstance(value, datetime.datetime):
        return in_utc(value) is not value
    if isinstance(value, dict):
        parts: Any = (*value, *value.values())
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif dataclasses.is_dataclass(value):
        parts = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif is_model(type(value)):
        parts = list(vars(value).values())
    else:
        return False
    return not _TIMELESS.issuperset(map(type, parts)) and any(map(_has_other_zones, parts))


def as_scalar(kind: Any, value: Any, declared: Callable[[], str], given: str) -> Any:
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value, declared)
    if isinstance(value, kind) and not isinstance(value, bool):
        return kind(value)
    if isinstance(value, np.generic) and type(value.item()) is kind and value.dtype.kind not in "mM":
        return value.item()
    raise InvalidJob(
        f"{declared()}, but {short(value)} ({type(value).__name__}) {given}: convert it, or correct the declaration"
    )


def _as_float(value: int, declared: Callable[[], str]) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if number != value:
        raise InvalidJob(
            f"{declared()}, which does not hold all digits of {short(value)}: declare int, or give float(…)"
        )
    return number


def check_int(name: str, value: int) -> None:
    if not INT_MIN <= value <= INT_MAX:
        raise InvalidJob(
            f"state {name!r} cannot hold a number of {value.bit_length()} bits: whole numbers of state have "
            "64; declare float, or keep it as text"
        )


def check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidJob(
            f"state {name!r} cannot hold the text {short(value)}, which has halves of characters ({error}): "
            "replace them first, or keep bytes"
        ) from error


def is_unchangeable(value: Any) -> bool:
    if isinstance(value, _UNCHANGEABLE):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(is_unchangeable, value))
    if dataclasses.is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009 - no public way
        return all(is_unchangeable(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
        return all(is_unchangeable(getattr(value, name)) for name in value.__struct_fields__)
    return False


def short(value: Any) -> str:
    return shortened(repr(value))


def _unknown_part(kind: Any) -> str | None:
    try:
        return _unknown_of([msgspec.inspect.type_info(kind)])
    except TypeError as error:
        return str(error)


def _unknown_of(todo: list[Any]) -> str | None:
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo.extend(part)
        elif isinstance(part, msgspec.inspect.CustomType) and is_model(part.cls):
            if id(part.cls) not in seen:
                seen.add(id(part.cls))
                todo.extend(msgspec.inspect.type_info(each) for _, each, _ in annotations(part.cls))
        elif isinstance(part, msgspec.inspect.CustomType):
            return repr(part.cls)
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            todo.extend(getattr(part, name) for name in part.__struct_fields__)
    return None
