"""State of a keyed function, as its author sees it: declared once as a class attribute, bound to the key of the row
at hand.

Values are written as MessagePack by msgspec, typed: added fields with defaults, removed fields and widened types are
read back after a change of the program. Nothing is pickled unless `codec="pickle"` says so.
"""

import copy
import enum
from collections.abc import Callable
from typing import Any, Generic, Literal, Protocol, TypeVar, cast

import msgspec

from state.errors import InvalidJob

T = TypeVar("T")

CodecName = Literal["msgpack", "pickle"]

_MUTABLE = (list, dict, set, bytearray)
_SCALARS = (bool, int, float, str, bytes)


class _Unset(enum.Enum):
    UNSET = 0


_UNSET = _Unset.UNSET


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


class ValueState(Generic[T]):
    """One value per key.

    >>> class Totals:
    ...     total = ValueState(int, default=0)
    ...     def process(self, key, row, ctx):
    ...         self.total.value += row["amount"]
    ...         yield {"key": key, "total": self.total.value}

    `kind` is any type msgspec knows: int, float, str, bytes, bool, datetime, list[...], dict[...], a dataclass, a
    `msgspec.Struct`. A value changed in place is kept only after `update(value)`. `value` is `default` (None unless
    given) where nothing was stored; use `default_factory=` for lists and dicts.
    """

    __slots__ = ("_codec", "_current", "_default", "_factory", "_get", "_kind", "_name", "_put", "_remove", "_scalar")

    def __init__(
        self,
        kind: type[T],
        default: T | None = None,
        *,
        default_factory: Callable[[], T] | None = None,
        codec: CodecName = "msgpack",
    ) -> None:
        if isinstance(default, _MUTABLE):
            raise InvalidJob(
                f"ValueState default {default!r} would be shared by all keys: "
                f"use default_factory={type(default).__name__}"
            )
        if codec not in ("msgpack", "pickle"):
            raise InvalidJob(f"ValueState codec {codec!r} is unknown: use 'msgpack' or 'pickle'")
        if codec == "msgpack":
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
        self._current = CurrentKey()
        self._get: Callable[[tuple[Any, ...]], Any] = _unbound
        self._put: Callable[[tuple[Any, ...], Any], None] = _unbound
        self._remove: Callable[[tuple[Any, ...]], None] = _unbound

    # ------------------------------------------------------------ for the user's function

    @property
    def value(self) -> T:
        """The value of the current key."""
        found: T | None = self._get(self._current.key)
        if found is not None:
            return found
        return self._factory() if self._factory is not None else cast(T, self._default)

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
        self._put(self._current.key, value)

    def clear(self) -> None:
        """Forget the current key's value."""
        self._remove(self._current.key)

    # ------------------------------------------------------------ for the operator

    @property
    def immutable(self) -> bool:
        """A value that cannot be changed in place needs no defensive encoding when it is read during a snapshot."""
        return self._scalar is not None

    def bind(self, name: str, table: KeyTable, current: CurrentKey) -> "ValueState[T]":
        """A handle that works on `table` at the key of `current`."""
        bound = copy.copy(self)
        bound._name = name
        bound._current = current
        bound._get = table.get
        bound._put = table.put
        bound._remove = table.delete
        return bound

    def encoder(self, where: str) -> Callable[[Any], bytes]:
        """Value to bytes. What could not be read back is refused now, not at the next restore."""
        if self._codec == "pickle":
            import pickle  # asked for by name

            return pickle.dumps
        encode = msgspec.msgpack.Encoder().encode
        if self._scalar is not None:
            return encode
        decode = msgspec.msgpack.Decoder(self._kind).decode

        def checked(value: Any) -> bytes:
            try:
                data = encode(value)
                decode(data)
            except (msgspec.MsgspecError, TypeError, OverflowError) as error:
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
        decode = msgspec.msgpack.Decoder(self._kind).decode

        def checked(data: bytes) -> Any:
            try:
                return decode(data)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise InvalidJob(
                    f"{where}: the stored value cannot be read as {self._kind!r} ({error}): keep the old type readable "
                    "(defaults for added fields, wider types) or use a new state name"
                ) from error

        return checked

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
