"""`ListState`: a list per key, stored element by element (`state/values/entry_table`, by index)."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar, cast

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.operators.state.handle import (
    CurrentKey,
    KeyedState,
    StateKey,
    Unbound,
    entries_table,
    entry_putter,
    own_entry,
    refuse,
)
from barrier_runtime.operators.state.migration import Migrate
from barrier_runtime.operators.state.stored_type import CodecName, StoredType, short
from barrier_runtime.operators.state.ttl import TTL
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.state_kinds import LIST
from barrier_runtime.state.values.entry_table import EntryTable
from barrier_runtime.state.values.timed_table import TimedEntries

T = TypeVar("T")

_LIST = StateDescription(LIST.name)


@kinds_checked
class ListState(KeyedState, Generic[T]):
    """A list per key of any length: an append writes a single element.

    >>> class Alarm:
    ...     recent = ListState(float)
    ...     def process(self, key, row, ctx):
    ...         self.recent.append(row["v"])
    ...         if len(self.recent) == 100:
    ...             yield {"key": key, "mean": sum(self.recent) / 100}
    ...             self.recent.clear()

    `kind` is the type of the elements, as in `ValueState`. The cost of `append`, `extend`, `[index]`, `len` and truth
    does not depend on the length; `clear` and `update` write every element, and iteration reads every element.

    Single elements cannot be removed or changed: `update(list)` stores a new list, also after an element was changed in
    place. Iteration includes elements appended meanwhile. None is not an element. With a `ttl` each element has a
    separate time; `[index]` and `len` then visit all elements.
    """

    __slots__ = ("_put", "_table", "_type")
    remedy = "write {0}.update(…) to store another list, {0}.append(…) for one element, {0}.clear() for none"

    def __init__(
        self,
        kind: type[T],
        *,
        codec: CodecName = "msgpack",
        ttl: TTL | None = None,
        renamed: Mapping[str, str | None] | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(ttl)
        self._type = StoredType(kind, codec, "ListState", renamed, migrate)
        self._table = cast(EntryTable, Unbound("ListState"))
        self._put: Callable[[StateKey, Any, Any], None] = Unbound("ListState")

    def append(self, value: T) -> None:
        """Adds an element at the end, without reading stored elements."""
        accepted = self._accepted(value)
        key, table = self._current.key, self._table
        at = int(table.number(key))  # a plain int: keys are encoded by their class
        table.set_number(key, at + 1)
        self._put(key, at, accepted)

    def extend(self, values: Iterable[T]) -> None:
        """Adds elements at the end, all or none, without reading stored elements."""
        accepted = [self._accepted(value) for value in values]
        key, table = self._current.key, self._table
        before = int(table.number(key))
        if accepted:
            table.set_number(key, before + len(accepted))
        for at, value in enumerate(accepted, before):
            self._put(key, at, value)

    def update(self, values: Iterable[T]) -> None:
        """Stores `values` in place of all elements."""
        accepted = [self._accepted(value) for value in values]
        key, table = self._current.key, self._table
        before = table.number(key)
        if len(accepted) > before:
            table.set_number(key, len(accepted))
        for at, value in enumerate(accepted):
            self._put(key, at, value)
        for at in range(len(accepted), before):
            table.put_entry(key, at, None)
        if len(accepted) < before:
            table.set_number(key, len(accepted))

    def clear(self) -> None:
        """Forgets the current key's list."""
        self.update(())

    def __iter__(self) -> Iterator[T]:
        table, key = self._table, self._current.key
        table.number(key)  # raises now, if the state may not be used here
        return (value for _, value in table.walk(key))

    def __len__(self) -> int:
        return self._table.number(self._current.key)

    def __getitem__(self, index: int) -> T:
        """Returns the element at `index`; a negative index counts from the end. Raises IndexError."""
        if type(index) is not int:
            raise InvalidJob(
                f"{self._said}[{short(index)}]: one element has a whole number; for parts of it take list({self._said})"
            )
        key, table = self._current.key, self._table
        number = table.number(key)
        if not -number <= index < number:
            raise IndexError(f"{self._said}[{index}]: the list of this key has {number} elements")
        return cast(T, table.get_entry(key, index % number))

    def __iadd__(self, values: Iterable[T]) -> "ListState[T]":
        self.extend(values)
        return self

    def declared(self) -> StateDescription:
        return self._type.declared(_LIST)

    def open(
        self, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> "ListState[T]":
        table = entries_table(self, self._type, backend, name, where, key_width, current)
        bound = self._bound(name, current, holder, _TimedList if isinstance(table, TimedEntries) else None)
        bound._table = cast(EntryTable, table)
        bound._put = entry_putter(table)
        return bound

    def _accepted(self, value: T) -> T:
        if value is None:
            raise InvalidJob(f"None cannot be an element of {self._said}: leave it out, or store what stands for it")
        return cast(T, self._type.accepted(self._name, value))


class _TimedList(ListState[T]):
    """Elements with times; earlier ones may be gone."""

    __slots__ = ()

    @property
    def _entries(self) -> TimedEntries:
        return cast(TimedEntries, self._table)

    def append(self, value: T) -> None:
        self.extend((value,))

    def extend(self, values: Iterable[T]) -> None:
        accepted = [self._accepted(value) for value in values]
        key, entries = self._current.key, self._entries
        if entries.watched:
            for at, value in enumerate(accepted, entries.end(key)):
                own_entry(entries, key, at, value)
        entries.append(key, accepted)

    def update(self, values: Iterable[T]) -> None:
        accepted = [self._accepted(value) for value in values]
        self._entries.clear(self._current.key)
        self.extend(accepted)

    def __iter__(self) -> Iterator[T]:
        entries, key = self._entries, self._current.key
        entries.bound(key)
        return (value for _, value in entries.walk(key))

    def __len__(self) -> int:
        return sum(1 for _ in self._entries.walk(self._current.key, reads=False))

    def __bool__(self) -> bool:
        return any(True for _ in self._entries.walk(self._current.key, reads=False))

    def __getitem__(self, index: int) -> T:
        if type(index) is not int:
            return super().__getitem__(index)
        key, entries = self._current.key, self._entries
        at = [each for each, _ in entries.walk(key, reads=False)]
        if not -len(at) <= index < len(at):
            raise IndexError(f"{self._said}[{index}]: the list of this key has {len(at)} elements")
        return cast(T, entries.get_entry(key, at[index]))


refuse(
    ListState,
    (
        *("pop", "insert", "remove", "sort", "reverse", "__setitem__", "__delitem__"),
        *("add", "get", "items", "keys", "values", "__add__", "__radd__", "__mul__", "__rmul__", "__imul__"),
    ),
    "{state} is a ListState, which has no {operation}: it grows at its end; read it with list({state}), and store a "
    "changed list with {state}.update(…)",
)
