"""`MapState`: a map per key, stored entry by entry (`state/values/entry_table`)."""

import datetime
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.operators.state.handle import (
    CurrentKey,
    KeyedState,
    StateKey,
    Unbound,
    counted_putter,
    entries_table,
    refuse,
)
from barrier_runtime.operators.state.migration import Migrate
from barrier_runtime.operators.state.stored_type import CodecName, StoredType, as_scalar, check_text, short
from barrier_runtime.operators.state.ttl import TTL
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.state_kinds import MAP
from barrier_runtime.state.values.entry_table import EntryTable
from barrier_runtime.state.values.timed_table import TimedEntries

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1
_ABSENT: Any = object()


@kinds_checked
class MapState(KeyedState, Generic[K, V]):
    """A map per key of any size, read and written entry by entry.

    >>> class Visits:
    ...     seen = MapState(str, int)
    ...     def process(self, key, row, ctx):
    ...         self.seen[row["page"]] = self.seen.get(row["page"], 0) + 1
    ...         yield {"key": key, "pages": len(self.seen), "first": next(iter(self.seen))}

    `key` is int, str, bytes, bool, float, date or datetime; `kind` is the type of the values, as in `ValueState`. The
    cost of `[]`, `in`, `get`, `del`, `len` and truth does not depend on the size; `clear` writes every entry.

    `keys()`, `values()`, `items()` and iteration follow the order of the keys (texts by code point; times with a zone
    come back in UTC). An iteration sees changes ahead of the position, and no others. A value changed in place is kept
    only after `state[key] = value`. None is not a value. With a `ttl` each entry has a separate time; `len` then visits
    all entries.
    """

    __slots__ = ("_as_key", "_key", "_put", "_table", "_type")
    remedy = "write {0}[…] = … for an entry, {0}.update(…) for several, {0}.clear() for none"

    def __init__(
        self,
        key: type[K],
        kind: type[V],
        *,
        codec: CodecName = "msgpack",
        ttl: TTL | None = None,
        renamed: Mapping[str, str | None] | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(ttl)
        self._key: Any = key
        self._as_key = key_conversion(key, "MapState")
        self._type = StoredType(kind, codec, "MapState", renamed, migrate)
        self._table = cast(EntryTable, Unbound("MapState"))
        self._put: Callable[[StateKey, Any, Any], None] = Unbound("MapState")

    def __getitem__(self, key: K) -> V:
        found = self._table.get_entry(self._current.key, self._as_key(self._name, key))
        if found is None:
            raise KeyError(key)
        return cast(V, found)

    def __setitem__(self, key: K, value: V) -> None:
        if value is None:
            raise InvalidJob(f"None cannot be a value of {self._said}: remove the entry with del {self._said}[…]")
        entry, accepted = self._as_key(self._name, key), self._type.accepted(self._name, value)
        self._put(self._current.key, entry, accepted)

    def __delitem__(self, key: K) -> None:
        if not self._removed(key):
            raise KeyError(key)

    def __contains__(self, key: object) -> bool:
        return self._table.get_entry(self._current.key, self._as_key(self._name, key)) is not None

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Returns the value, or `default` if there is none."""
        found = self._table.get_entry(self._current.key, self._as_key(self._name, key))
        return found if found is not None else default

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = _ABSENT) -> Any:
        """Removes an entry and returns its value; if missing: returns `default`, or raises KeyError."""
        found = self.get(key, _ABSENT)
        if found is not _ABSENT:
            self._removed(key)
        elif default is _ABSENT:
            raise KeyError(key)
        else:
            found = default
        return found

    def setdefault(self, key: K, default: V) -> V:
        """Returns the value of `key`; stores `default` first if there is none."""
        found = self.get(key)
        if found is None:
            self[key] = found = default
        return found

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Stores these entries; other entries stay."""
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        for key, value in pairs:
            self[key] = value

    def clear(self) -> None:
        """Forgets the current key's map."""
        key, table = self._current.key, self._table
        for entry, _ in table.walk(key, values=False):
            table.put_entry(key, entry, None)
        table.set_number(key, 0)

    def keys(self) -> Iterator[K]:
        """Returns the keys in ascending order."""
        return (entry for entry, _ in self._walk(values=False))

    def values(self) -> Iterator[V]:
        """Returns the values in the order of their keys."""
        return (value for _, value in self._walk())

    def items(self) -> Iterator[tuple[K, V]]:
        """Returns the entries in the order of their keys."""
        return self._walk()

    def __iter__(self) -> Iterator[K]:
        return self.keys()

    def __len__(self) -> int:
        return self._table.number(self._current.key)

    def declared(self) -> StateDescription:
        return self._type.declared(StateDescription(MAP.name, self._key.__name__))

    def open(
        self, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> "MapState[K, V]":
        table = entries_table(self, self._type, backend, name, where, key_width, current)
        bound = self._bound(name, current, holder, _TimedMap if isinstance(table, TimedEntries) else None)
        bound._table = cast(EntryTable, table)
        bound._put = counted_putter(table)
        return bound

    def _walk(self, values: bool = True) -> Iterator[tuple[Any, Any]]:
        key, table = self._current.key, self._table
        table.number(key)  # raises now, if the state may not be used here
        return table.walk(key, values)

    def _removed(self, key: K) -> bool:
        entry, of, table = self._as_key(self._name, key), self._current.key, self._table
        if not table.has_entry(of, entry):
            return False
        table.put_entry(of, entry, None)
        table.set_number(of, table.number(of) - 1)
        return True


class _TimedMap(MapState[K, V]):
    """Entries with times, where stored entries may have expired."""

    __slots__ = ()

    @property
    def _entries(self) -> TimedEntries:
        return cast(TimedEntries, self._table)

    def __setitem__(self, key: K, value: V) -> None:
        if value is None:
            super().__setitem__(key, value)
        entry, accepted = self._as_key(self._name, key), self._type.accepted(self._name, value)
        self._put(self._current.key, entry, accepted)

    def clear(self) -> None:
        self._entries.clear(self._current.key)

    def __len__(self) -> int:
        return sum(1 for _ in self._entries.walk(self._current.key, reads=False))

    def __bool__(self) -> bool:
        return any(True for _ in self._entries.walk(self._current.key, reads=False))

    def _walk(self, values: bool = True) -> Iterator[tuple[Any, Any]]:
        key, entries = self._current.key, self._entries
        entries.bound(key)
        return entries.walk(key)

    def _removed(self, key: K) -> bool:
        return self._entries.pop(self._current.key, self._as_key(self._name, key))


def key_conversion(key: Any, says: str) -> Callable[[str, Any], Any]:
    """Returns (state name, user's key) -> stored key."""
    as_key = _AS_KEY.get(key) if isinstance(key, type) else None
    if isinstance(key, str):
        raise InvalidJob(f"{says}({key!r}, …): pass the type itself and not its name, as in {says}({key}, …)")
    if as_key is None:
        raise InvalidJob(
            f"{says} keys cannot be {short(key)}: use int, str, bytes, bool, float, date or datetime (and join "
            "several fields into a text)"
        )
    return as_key


def _int_key(name: str, key: Any) -> int:
    if type(key) is not int:
        key = _converted(int, name, key)
    if not _INT_MIN <= key <= _INT_MAX:
        raise InvalidJob(
            f"state {name!r} cannot have a key of {key.bit_length()} bits: whole numbers have 64; use str keys"
        )
    return cast(int, key)


def _str_key(name: str, key: Any) -> str:
    if type(key) is not str:
        key = _converted(str, name, key)
    if not key.isascii():
        check_text(name, key)
    return cast(str, key)


def _bytes_key(name: str, key: Any) -> bytes:
    return key if type(key) is bytes else cast(bytes, _converted(bytes, name, key))


def _bool_key(name: str, key: Any) -> bool:
    return key if type(key) is bool else cast(bool, _converted(bool, name, key))


def _float_key(name: str, key: Any) -> float:
    if type(key) is not float:
        key = _converted(float, name, key)
    if math.isnan(key):
        raise InvalidJob(f"state {name!r}: NaN cannot be a key, as it is not equal to itself: filter it before")
    return cast(float, key + 0.0)  # 0.0 and -0.0 are the same key


def _date_key(name: str, key: Any) -> datetime.date:
    return key if type(key) is datetime.date else cast(datetime.date, _converted(datetime.date, name, key))


def _datetime_key(name: str, key: Any) -> datetime.datetime:
    if not isinstance(key, datetime.datetime):
        key = _converted(datetime.datetime, name, key)
    if key.tzinfo is not None and key.tzinfo is not datetime.timezone.utc:
        key = key.astimezone(datetime.timezone.utc)
    return cast(datetime.datetime, key)


def _converted(kind: Any, name: str, key: Any) -> Any:
    declared = f"state {name!r} has keys of type {kind.__name__}"
    if kind in (datetime.date, datetime.datetime):  # a datetime is no form of a date, although a subclass
        raise InvalidJob(
            f"{declared}, but {short(key)} ({type(key).__name__}) is given: convert it, or correct the declaration"
        )
    return as_scalar(kind, key, lambda: declared, "is given")


_AS_KEY: dict[Any, Callable[[str, Any], Any]] = {
    int: _int_key,
    str: _str_key,
    bytes: _bytes_key,
    bool: _bool_key,
    float: _float_key,
    datetime.date: _date_key,
    datetime.datetime: _datetime_key,
}

refuse(
    MapState,
    (
        *("append", "extend", "add", "popitem", "copy", "__or__", "__ror__", "__ior__"),
        *("put", "remove", "contains", "entries", "get_value", "update_value", "contains_key", "remove_key"),
        *("__add__", "__radd__", "__iadd__", "__lt__", "__le__", "__gt__", "__ge__"),
    ),
    "{state} is a MapState, which has no {operation}: change it with {state}[…] = …, {state}.update(…) and del "
    "{state}[…]; take dict({state}.items()) for a dict of it",
)
