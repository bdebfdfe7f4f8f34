"""`BroadcastState`: a map that every subtask of a connected step holds whole."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast, overload

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.operators.state.broadcast_copy import BroadcastCopies, BroadcastCopy
from barrier_runtime.operators.state.handle import CurrentKey, KeyedState, Unbound, refuse
from barrier_runtime.operators.state.maps import key_conversion
from barrier_runtime.operators.state.migration import Migrate
from barrier_runtime.operators.state.stored_type import StoredType
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.continued_state import continued
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.state_kinds import BROADCAST

K = TypeVar("K")
V = TypeVar("V")
D = TypeVar("D")

_ABSENT: Any = object()


class ConnectedKey(CurrentKey):
    __slots__ = ("copies",)

    def __init__(self) -> None:
        super().__init__()
        self.copies: BroadcastCopies | None = None


@kinds_checked
class BroadcastState(KeyedState, Generic[K, V]):
    """A map of a step of `connect`, the same in every subtask and for all keys.

    >>> class Limited:
    ...     limits = BroadcastState(str, float)
    ...     def on_rules(self, row, ctx):
    ...         self.limits[row["shop"]] = row["max"]
    ...     def on_orders(self, key, row, ctx):
    ...         if row["amount"] <= self.limits.get(row["shop"], 100.0):
    ...             yield row

    Only handlers of broadcast inputs change the map. Iteration, `keys()`, `values()` and `items()` follow the order in
    which the keys were added.

    `key` is int, str, bytes, bool, float, date or datetime; `kind`, `renamed` and `migrate` are as in `ValueState`;
    there is no `ttl`. Reading returns a copy of a mutable value, so only `state[key] = value` changes the state. Dicts
    in values come back in the order of their keys. None is not a value. The map is held in memory; a checkpoint stores
    the whole changed map.
    """

    __slots__ = ("_access", "_as_key", "_copy", "_encode", "_key", "_type")
    remedy = "write {0}[…] = … for an entry, {0}.update(…) for several, {0}.clear() for none"

    def __init__(
        self,
        key: type[K],
        kind: type[V],
        *,
        renamed: Mapping[str, str | None] | None = None,
        migrate: Migrate | None = None,
        ttl: None = None,
    ) -> None:
        super().__init__(None)
        if ttl is not None:
            raise InvalidJob(
                f"BroadcastState(…, ttl={ttl!r}): it has no time to live, because subtasks are at different times when "
                "a broadcast row comes, and their copies would differ: remove entries in the handler of a broadcast "
                "input, or compare a time in the value with ctx.timestamp where it is read"
            )
        self._as_key = key_conversion(key, "BroadcastState")
        self._key: Any = key
        self._type = StoredType(kind, "msgpack", "BroadcastState", renamed, migrate)
        self._copy = cast(BroadcastCopy, Unbound("BroadcastState"))
        self._encode: Callable[[Any], bytes] = Unbound("BroadcastState")
        self._access: BroadcastCopies | None = None

    def __getitem__(self, key: K) -> V:
        found = self._copy.get(self._as_key(self._name, key))
        if found is None:
            raise KeyError(key)
        return cast(V, found)

    def __setitem__(self, key: K, value: V) -> None:
        self._check_changeable()
        if value is None:
            raise InvalidJob(f"None cannot be a value of {self._said}: remove the entry with del {self._said}[…]")
        data = self._encode(self._type.accepted(self._name, value))
        self._copy.put(self._as_key(self._name, key), data)

    def __delitem__(self, key: K) -> None:
        self._check_changeable()
        self._copy.remove(self._as_key(self._name, key))

    def __contains__(self, key: object) -> bool:
        return self._copy.has(self._as_key(self._name, key))

    @overload
    def get(self, key: K) -> V | None: ...
    @overload
    def get(self, key: K, default: D) -> V | D: ...
    def get(self, key: K, default: Any = None) -> Any:
        """Returns the value, or `default` if there is none."""
        found = self._copy.get(self._as_key(self._name, key))
        return found if found is not None else default

    @overload
    def pop(self, key: K) -> V: ...
    @overload
    def pop(self, key: K, default: D) -> V | D: ...
    def pop(self, key: K, default: Any = _ABSENT) -> Any:
        """Removes an entry and returns its value; if missing: returns `default`, or raises KeyError."""
        self._check_changeable()
        found = self.get(key, _ABSENT)
        if found is not _ABSENT:
            del self[key]
        elif default is _ABSENT:
            raise KeyError(key)
        else:
            found = default
        return found

    def setdefault(self, key: K, default: V) -> V:
        """Returns the value of `key`; stores `default` first if there is none."""
        self._check_changeable()
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, entries: Mapping[K, V] | Iterable[tuple[K, V]]) -> None:
        """Stores these entries; other entries stay."""
        self._check_changeable()
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        for key, value in pairs:
            self[key] = value

    def clear(self) -> None:
        """Removes all entries."""
        self._check_changeable()
        self._copy.clear()

    def keys(self) -> Iterator[K]:
        """Returns the keys in the order of addition."""
        return iter(self)

    def values(self) -> Iterator[V]:
        """Returns the values in the order of `keys()`."""
        return (value for _, value in self.items())

    def items(self) -> Iterator[tuple[K, V]]:
        """Returns the entries in the order of `keys()`."""
        return ((key, cast(V, self._copy.get(key))) for key in self)

    def __iter__(self) -> Iterator[K]:
        """Iterates over the current keys if the handler may change the state, without keys removed meanwhile."""
        keys = self._copy.keys()
        return filter(self._copy.has, list(keys)) if self._access is not None and self._access.changes else keys

    def __len__(self) -> int:
        return self._copy.size()

    def declared(self) -> StateDescription:
        return self._type.declared(StateDescription(BROADCAST.name, self._key.__name__))

    def open(
        self, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> "BroadcastState[K, V]":
        if not isinstance(current, ConnectedKey) or current.copies is None:
            raise misplaced(name, where)
        copies = current.copies
        what = continued(self.declared(), backend.restored(name), where)
        backend.described_beside(name, what)
        bound = self._bound(name, current, holder)
        bound._access = copies
        bound._copy = copies.open(name, self._key, self._type.decoder(where, what))
        bound._encode = self._type.encoder(where, ordered=True)
        return bound

    def _check_changeable(self) -> None:
        access = self._access
        if access is None:
            self._copy.size()
        elif not access.changes:
            raise InvalidJob(
                f"{self._said} is a BroadcastState, which only handlers of broadcast inputs may change, because every "
                "subtask must do the same to its copy: change it there, or keep what belongs to a key in a ValueState "
                "or MapState"
            )


def refuse_broadcast_state(states: Mapping[str, KeyedState], where: str) -> None:
    for name, state in states.items():
        if isinstance(state, BroadcastState):
            raise misplaced(name, where)


def misplaced(name: str, where: str) -> InvalidJob:
    return InvalidJob(
        f"{where}: state {name!r} is a BroadcastState, which only rows of a broadcast input can change: bring the "
        "streams together with connect(…, rules=rules.broadcast()), or use a MapState"
    )


refuse(
    BroadcastState,
    (
        *("append", "extend", "add", "put", "remove", "popitem", "copy", "__or__", "__ror__", "__ior__"),
        *("__add__", "__radd__", "__iadd__", "__lt__", "__le__", "__gt__", "__ge__"),
    ),
    "{state} is a BroadcastState, which has no {operation}: change it with {state}[…] = …, {state}.update(…) and del "
    "{state}[…]; take dict({state}.items()) for a dict of it",
)
