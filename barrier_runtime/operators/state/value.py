"""`ValueState`: a value per key, read and written for every row."""

import datetime
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.operators.state.handle import (
    REFUSED,
    CurrentKey,
    KeyedState,
    StateKey,
    Unbound,
    put_watched,
    refuse,
    value_table,
)
from barrier_runtime.operators.state.migration import Migrate
from barrier_runtime.operators.state.stored_type import (
    INT_MAX,
    INT_MIN,
    CodecName,
    StoredType,
    check_int,
    check_text,
    is_unchangeable,
    short,
)
from barrier_runtime.operators.state.ttl import TTL
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import ONE_VALUE, StateDescription
from barrier_runtime.state.values.timed_table import TimedTable
from barrier_runtime.state.values.watched_table import WatchedTable

T = TypeVar("T")


class KeyTable(Protocol):
    def get(self, key: tuple[Any, ...]) -> Any: ...
    def put(self, key: tuple[Any, ...], value: Any) -> None: ...
    def delete(self, key: tuple[Any, ...]) -> None: ...


@kinds_checked
class ValueState(KeyedState, Generic[T]):
    """One value per key.

    >>> class Totals:
    ...     total = ValueState(int, default=0)
    ...     def process(self, key, row, ctx):
    ...         self.total.value += row["amount"]
    ...         yield {"key": key, "total": self.total.value}

    `kind` is any type msgspec knows: int, float, str, bytes, bool, datetime, list[...], dict[...], a dataclass, a
    `msgspec.Struct`. A value changed in place is kept only after `update(value)` (`check_state` detects such changes).

    `value` is `default` (None unless given) if nothing is stored; use `default_factory=` for mutable objects. `ttl`:
    see `TTL`. `renamed`: fields of a class in earlier versions of the program, old name to new, or to None for a
    dropped field. `migrate`: a function of an old value that returns the new value, or a list of functions, one for
    each change of the type (docs/state.md).
    """

    __slots__ = ("_default", "_factory", "_get", "_put", "_remove", "_scalar", "_type")
    remedy = "write {0}.value = … or {0}.update(…)"

    def __init__(
        self,
        kind: type[T],
        default: T | None = None,
        *,
        default_factory: Callable[[], T] | None = None,
        codec: CodecName = "msgpack",
        ttl: TTL | None = None,
        renamed: Mapping[str, str | None] | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(ttl)
        if not is_unchangeable(default):
            raise InvalidJob(
                f"ValueState default {short(default)} would be shared by all keys: use default_factory=, which makes "
                f"one for each key, such as default_factory={type(default).__name__}; or a frozen class"
            )
        self._type = StoredType(kind, codec, "ValueState", renamed, migrate)
        self._default = default
        self._factory = default_factory
        self._scalar = self._type.scalar
        unbound = Unbound("ValueState")
        self._get: Callable[[StateKey], Any] = unbound
        self._put: Callable[[StateKey, Any], None] = unbound
        self._remove: Callable[[StateKey], None] = unbound

    @property
    def value(self) -> T:
        """Value of the current key."""
        found: T | None = self._get(self._current.key)
        return found if found is not None else self._of_nothing()

    @value.setter
    def value(self, value: T) -> None:
        if type(value) is self._scalar:
            self._put(self._current.key, value)
        else:
            self.update(value)

    def update(self, value: T) -> None:
        """Stores `value` for the current key. None clears the state."""
        if value is None:
            self.clear()
            return
        if self._scalar is not None and type(value) is not self._scalar:
            value = self._type.as_scalar(self._name, value)
        self._check_scalar(value)
        self._put(self._current.key, value)

    def clear(self) -> None:
        """Forgets the current key's value."""
        self._remove(self._current.key)

    def _of_nothing(self) -> T:
        return self._factory() if self._factory is not None else cast(T, self._default)

    def declared(self) -> StateDescription:
        return self._type.declared(ONE_VALUE)

    def open(
        self, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> "ValueState[T]":
        table = value_table(self, self._type, backend, name, where, key_width, current)
        return self.bind(name, table, current, holder)

    def bind(self, name: str, table: KeyTable, current: CurrentKey, holder: str = "self") -> "ValueState[T]":
        """Returns a handle that works on `table` at the key of `current`."""
        holds_times = self._type.is_time or self._type.holds_times
        kind = _CHECKED.get(datetime.datetime if holds_times else self._scalar)
        bound = self._bound(name, current, holder, kind)
        bound._get = table.get
        bound._put = table.put
        bound._remove = table.delete
        if isinstance(table, WatchedTable) or (isinstance(table, TimedTable) and table.watched):
            bound._put = partial(put_watched, table)
            if self._factory is not None:
                make = self._factory
                bound._factory = lambda: table.lend(current.key, make())
        return bound

    def decoder(self, where: str) -> Callable[[bytes], T]:
        """Returns bytes -> value."""
        return self._type.decoder(where, self.declared())

    def _check_scalar(self, value: Any) -> None:
        """Raises `InvalidJob` for a value of the right type that cannot be written."""


class _IntState(ValueState[int]):
    """Refuses too large a number at once, not at the next checkpoint."""

    __slots__ = ()

    @property
    def value(self) -> int:
        found: int | None = self._get(self._current.key)
        return found if found is not None else self._of_nothing()

    @value.setter
    def value(self, value: int) -> None:
        # the next checkpoint refuses a number that is too low
        if type(value) is int and value <= INT_MAX:
            self._put(self._current.key, value)
        else:
            self.update(value)

    def update(self, value: int) -> None:
        if type(value) is int and INT_MIN <= value <= INT_MAX:
            self._put(self._current.key, value)
        else:
            super().update(value)

    def _check_scalar(self, value: int) -> None:
        check_int(self._name, value)


class _TextState(ValueState[str]):
    """Refuses text without a UTF-8 form at once."""

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
        check_text(self._name, value)


class _TimeState(ValueState[Any]):
    """Times with a zone become UTC at once, as after a restore."""

    __slots__ = ()

    def update(self, value: Any) -> None:
        super().update(self._type.accepted(self._name, value))


_CHECKED: dict[Any, type[ValueState[Any]]] = {int: _IntState, str: _TextState, datetime.datetime: _TimeState}


refuse(
    ValueState,
    REFUSED,
    "{state} is a ValueState, not its value ({operation}): the value is {state}.value; store a new or changed one with "
    "{state}.value = … or {state}.update(…)",
)
