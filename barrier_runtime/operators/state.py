"""State of a keyed function, as its author sees it: declared once as a class attribute, bound to the key of the row
at hand.

Values are written as MessagePack by msgspec, typed: added fields with defaults, removed fields and widened types are
read back after a change of the program. Nothing is pickled unless `codec="pickle"` says so.
"""

import copy
import dataclasses
import datetime
import enum
import numbers
import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, NoReturn, Protocol, TypeVar, cast

import msgspec

from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.values.watched_table import WatchedTable

T = TypeVar("T")

CodecName = Literal["msgpack", "pickle"]

_SCALARS = (bool, int, float, str, bytes)
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # of MessagePack
_BUILDING = threading.Lock()  # msgspec describes a type at its first use; another thread must not see half of it
_UNCHANGEABLE = (
    type(None),
    numbers.Number,  # of numpy, too
    str,
    bytes,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    enum.Enum,
    uuid.UUID,
)


class CurrentKey:
    """The state key of the row (or timer) being processed. One per operator, set before every call."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: tuple[Any, ...] = ()


class KeyTable(Protocol):
    """What of a state table is used here."""

    def get(self, key: tuple[Any, ...]) -> Any: ...
    def put(self, key: tuple[Any, ...], value: Any) -> None: ...
    def delete(self, key: tuple[Any, ...]) -> None: ...


class States:
    """`ctx.state`: the handles by name."""

    def __setattr__(self, name: str, value: object) -> None:
        handle = vars(self).get(name)
        if isinstance(handle, ValueState):
            raise handle.assigned(value)
        raise InvalidJob(f"ctx.state.{name} is not a declared state: add {name!r} to state= of process()")


class ValueState(Generic[T]):
    """One value per key.

    >>> class Totals:
    ...     total = ValueState(int, default=0)
    ...     def process(self, key, row, ctx):
    ...         self.total.value += row["amount"]
    ...         yield {"key": key, "total": self.total.value}

    `kind` is any type msgspec knows: int, float, str, bytes, bool, datetime, list[...], dict[...], a dataclass, a
    `msgspec.Struct`. A value changed in place is kept only after `update(value)` (`check_state` looks for
    such changes). `value` is `default` (None unless given) where nothing was stored; use `default_factory=` for lists,
    dicts and other objects that can be changed.
    """

    __slots__ = (
        "_codec",
        "_current",
        "_default",
        "_factory",
        "_get",
        "_kind",
        "_name",
        "_put",
        "_remove",
        "_said",
        "_scalar",
    )

    def __init__(
        self,
        kind: type[T],
        default: T | None = None,
        *,
        default_factory: Callable[[], T] | None = None,
        codec: CodecName = "msgpack",
    ) -> None:
        if not _is_unchangeable(default):
            raise InvalidJob(
                f"ValueState default {_short(default)} would be shared by all keys: use default_factory=, which makes "
                f"one for each key, such as default_factory={type(default).__name__}; or a frozen class"
            )
        if codec not in ("msgpack", "pickle"):
            raise InvalidJob(f"ValueState codec {codec!r} is unknown: use 'msgpack' or 'pickle'")
        if codec == "msgpack":
            with _BUILDING:  # here at the latest it describes the type
                unknown = _unknown_part(kind)
            if unknown is not None:
                raise InvalidJob(
                    f"ValueState({kind!r}): msgspec cannot write {unknown}: "
                    'use a dataclass or msgspec.Struct, or codec="pickle"'
                )
        self._kind = kind
        self._default = default
        self._factory = default_factory
        self._codec = codec
        self._scalar = kind if kind in _SCALARS and codec == "msgpack" else None
        self._name = ""
        self._said = ""  # as the user's program calls it
        self._current = CurrentKey()
        self._get: Callable[[tuple[Any, ...]], Any] = _unbound
        self._put: Callable[[tuple[Any, ...], Any], None] = _unbound
        self._remove: Callable[[tuple[Any, ...]], None] = _unbound

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._said = f"self.{name}"

    def __set__(self, instance: Any, value: "ValueState[T]") -> None:
        """`self.n = 5` would replace the handle: all keys would share the 5, and no checkpoint would have it."""
        if not isinstance(value, ValueState):
            raise self.assigned(value)
        vars(instance)[self._name] = value

    def assigned(self, value: object) -> InvalidJob:
        return InvalidJob(
            f"{_short(value)} is assigned to {self._said}, which is a ValueState: write {self._said}.value = … or "
            f"{self._said}.update(…)"
        )

    # ------------------------------------------------------------ for the user's function

    @property
    def value(self) -> T:
        """The value of the current key."""
        found: T | None = self._get(self._current.key)
        return found if found is not None else self._of_nothing()

    @value.setter
    def value(self, value: T) -> None:
        if type(value) is self._scalar:
            self._put(self._current.key, value)
        else:
            self.update(value)

    def update(self, value: T) -> None:
        """Store `value` for the current key. None clears it."""
        if value is None:
            self.clear()
            return
        if self._scalar is not None and type(value) is not self._scalar:
            value = self._as_scalar(value)
        self._check_scalar(value)
        self._put(self._current.key, value)

    def clear(self) -> None:
        """Forget the current key's value."""
        self._remove(self._current.key)

    def _of_nothing(self) -> T:
        return self._factory() if self._factory is not None else cast(T, self._default)

    # ------------------------------------------------------------ for the operator

    @property
    def immutable(self) -> bool:
        """A value that cannot be changed in place needs no defensive encoding when it is read during a snapshot."""
        return self._scalar is not None

    @property
    def comparable(self) -> bool:
        """A value that was not changed is written as the same bytes again."""
        return self._codec == "msgpack"

    def bind(self, name: str, table: KeyTable, current: CurrentKey, holder: str = "self") -> "ValueState[T]":
        """A handle that works on `table` at the key of `current`. `holder`: whose attribute it is."""
        bound = copy.copy(self)
        bound._name = name
        bound._said = f"{holder}.{name}"
        bound._current = current
        bound._get = table.get
        bound._put = table.put
        bound._remove = table.delete
        if isinstance(table, WatchedTable):
            bound._put = partial(_put_watched, table)
            if self._factory is not None:
                make = self._factory
                bound._factory = lambda: table.lend(current.key, make())
        bound.__class__ = _CHECKED.get(self._scalar, ValueState)
        return bound

    def encoder(self, where: str) -> Callable[[Any], bytes]:
        """Value to bytes. What could not be read back is refused now, not at the next restore."""
        if self._codec == "pickle":
            import pickle  # asked for by name

            return pickle.dumps
        encode = msgspec.msgpack.Encoder().encode
        if self._scalar is not None:
            return encode
        decode = self._decoder().decode

        def checked(value: Any) -> bytes:
            try:
                data = encode(value)
                decode(data)
            except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidJob(
                    f"{where}: the value {_short(value)} does not fit its declared type {self._kind!r} ({error}): "
                    "store what ValueState declares, or correct the declaration"
                ) from error
            return data

        return checked

    def decoder(self, where: str) -> Callable[[bytes], Any]:
        if self._codec == "pickle":
            import pickle  # asked for by name

            return pickle.loads
        decode = self._decoder().decode

        def checked(data: bytes) -> Any:
            try:
                return decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidJob(
                    f"{where}: the stored value cannot be read as {self._kind!r} ({error}): keep the old type readable "
                    "(defaults for added fields, wider types) or use a new state name"
                ) from error

        return checked

    def _decoder(self) -> msgspec.msgpack.Decoder[T]:
        with _BUILDING:
            return msgspec.msgpack.Decoder(self._kind)

    def _check_scalar(self, value: Any) -> None:
        """Raise `InvalidJob` for a value of the right type that cannot be written."""

    def _as_scalar(self, value: Any) -> T:
        kind: Any = self._scalar
        if kind is float and isinstance(value, int):
            return cast(T, float(value))
        if isinstance(value, kind) and not isinstance(value, bool):
            return cast(T, kind(value))  # a subclass, such as an IntEnum
        if hasattr(value, "item") and type(value.item()) is kind:
            return cast(T, value.item())  # a numpy scalar
        raise InvalidJob(
            f"state {self._name!r} is declared {kind.__name__}, but {_short(value)} "
            f"({type(value).__name__}) is stored: convert it, or correct the declaration"
        )


class _IntState(ValueState[int]):
    """What a bound handle becomes for whole numbers: one that is too large is refused here, not by the next checkpoint.
    `value` is written again, since it is on every row's way."""

    __slots__ = ()

    @property
    def value(self) -> int:
        found: int | None = self._get(self._current.key)
        return found if found is not None else self._of_nothing()

    @value.setter
    def value(self, value: int) -> None:
        if type(value) is int and value <= _INT_MAX:  # one too low is told of by the next checkpoint: a comparison less
            self._put(self._current.key, value)
        else:
            self.update(value)

    def update(self, value: int) -> None:
        if type(value) is int and _INT_MIN <= value <= _INT_MAX:
            self._put(self._current.key, value)
        else:
            super().update(value)

    def _check_scalar(self, value: int) -> None:
        if not _INT_MIN <= value <= _INT_MAX:
            raise InvalidJob(
                f"state {self._name!r} cannot hold a number of {value.bit_length()} bits: whole numbers of state have "
                "64; declare float, or keep it as text"
            )


class _TextState(ValueState[str]):
    """The same for text that has no UTF-8."""

    __slots__ = ()

    @property
    def value(self) -> str:
        found: str | None = self._get(self._current.key)
        return found if found is not None else self._of_nothing()

    @value.setter
    def value(self, value: str) -> None:
        if type(value) is str and value.isascii():
            self._put(self._current.key, value)
        else:
            self.update(value)

    def update(self, value: str) -> None:
        if type(value) is str and value.isascii():
            self._put(self._current.key, value)
        else:
            super().update(value)

    def _check_scalar(self, value: str) -> None:
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidJob(
                f"state {self._name!r} cannot hold the text {_short(value)}, which has halves of characters ({error}): "
                "replace them first, or keep bytes"
            ) from error


_CHECKED: dict[Any, type[ValueState[Any]]] = {int: _IntState, str: _TextState}


def _refusal(operation: str) -> Callable[..., NoReturn]:
    def refuse(self: ValueState[Any], *_: object) -> NoReturn:
        raise InvalidJob(
            f"{self._said} is a ValueState, not its value ({operation}): the value is {self._said}.value; store a new "
            f"or changed one with {self._said}.value = … or {self._said}.update(…)"
        )

    return refuse


# What would work on a handle without a word (its truth is always true), or end in a message that tells no way out.
for _operation in (
    *("__bool__", "__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__delitem__"),
    *("append", "extend", "add", "pop", "get", "items", "keys", "values"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__int__", "__float__", "__neg__"),
    *(
        f"__{side}{sign}__"
        for sign in ("add", "sub", "mul", "truediv", "floordiv", "mod", "or")
        for side in ("", "r", "i")
    ),
):
    setattr(ValueState, _operation, _refusal(_operation))


def _put_watched(table: WatchedTable, key: tuple[Any, ...], value: Any) -> None:
    if not _is_unchangeable(value):
        table.own(key, value)
    table.put(key, value)


def _is_unchangeable(value: Any) -> bool:
    if isinstance(value, _UNCHANGEABLE):
        return True
    if isinstance(value, tuple | frozenset):
        return all(map(_is_unchangeable, value))
    if dataclasses.is_dataclass(value) and getattr(value, "__dataclass_params__").frozen:  # noqa: B009 - no public way
        return all(_is_unchangeable(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, msgspec.Struct) and value.__struct_config__.frozen:
        return all(_is_unchangeable(getattr(value, name)) for name in value.__struct_fields__)
    return False


def _unknown_part(kind: Any) -> str | None:
    """What in `kind` msgspec has no encoding for; None when there is nothing."""
    try:
        todo: list[Any] = [msgspec.inspect.type_info(kind)]
    except TypeError as error:
        return str(error)
    seen: set[int] = set()
    while todo:
        part = todo.pop()
        if isinstance(part, tuple):
            todo.extend(part)
        elif isinstance(part, msgspec.inspect.CustomType):
            return repr(part.cls)
        elif isinstance(part, msgspec.inspect.Type | msgspec.inspect.Field) and id(part) not in seen:
            seen.add(id(part))
            todo.extend(getattr(part, name) for name in part.__struct_fields__)
    return None


def _unbound(*_: Any) -> Any:
    raise InvalidJob("a ValueState is used outside a keyed function: use it only in process() or on_timer()")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else text[:199] + "…"
