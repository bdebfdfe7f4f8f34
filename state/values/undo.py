"""Undoes the changes of a user's function to state tables before the call is repeated.

Only tables made with an `Undo` (`made`) take part: in a call, the first read of a mutable value keeps its encoding, and
the first put of a key keeps the previous value, unless already kept. `put_back` stores all kept values again; a mutable
value is then another object.
"""

from typing import Any, Protocol, TypeVar, cast

from barrier_runtime.state.values.entry_table import EntryTable, WatchedEntryTable
from barrier_runtime.state.values.table import Key, StateTable
from barrier_runtime.state.values.watched_table import WatchedTable

T = TypeVar("T", bound=StateTable)


class Undoable(Protocol):
    def begin(self) -> None:
        """Begins a call."""

    def put_back(self) -> None:
        """Restores everything to the beginning of the failed call."""


class Undo:
    def __init__(self) -> None:
        self._parts: list[Undoable] = []

    def add(self, part: Undoable) -> None:
        self._parts.append(part)

    def begin(self) -> None:
        for part in self._parts:
            part.begin()

    def put_back(self) -> None:
        for part in self._parts:
            part.put_back()


class _UndoableTable(StateTable):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.found: dict[Key, Any] = {}  # of the current call; mutable values are encoded

    def begin(self) -> None:
        if self.found:
            self.found = {}

    def put_back(self) -> None:
        found, self.found = self.found, {}
        for key, before in found.items():
            self._store_again(key, before if self._immutable or before is None else self._decode(before))

    def get(self, key: Key) -> Any:
        value = super().get(key)
        if not self._immutable and key not in self.found:
            self._keep(key, value)
        return value

    def put(self, key: Key, value: Any) -> None:
        if key not in self.found:
            self._keep(key, StateTable.get(self, key))
        super().put(key, value)

    def _keep(self, key: Key, value: Any) -> None:
        self.found[key] = value if self._immutable else self._encode_all([(key, value)])[0]

    def _store_again(self, key: Key, value: Any) -> None:
        super().put(key, value)


class _UndoableEntries(_UndoableTable, EntryTable):
    def put_counted(self, key: Key, entry: Any, value: Any) -> None:
        whole = (*key, False, entry)
        if whole not in self.found:
            self._keep(whole, StateTable.get(self, whole))
        super().put_counted(key, entry, value)

    def _store_again(self, key: Key, value: Any) -> None:
        if len(key) == self.key_width + 2:  # an entry; a shorter key holds the number of entries
            self._index(key[: self.key_width], key[-1])
        super()._store_again(key, value)


class _UndoableWatched(_UndoableTable, WatchedTable):
    pass


class _UndoableWatchedEntries(_UndoableEntries, WatchedEntryTable):
    pass


_UNDOABLE: dict[type[StateTable], type[StateTable]] = {
    StateTable: _UndoableTable,
    EntryTable: _UndoableEntries,
    WatchedTable: _UndoableWatched,
    WatchedEntryTable: _UndoableWatchedEntries,
}


def made(kind: type[T], arguments: tuple[Any, ...], undo: Undo | None) -> T:
    if undo is None:
        return kind(*arguments)
    table = _UNDOABLE[kind](*arguments)
    assert isinstance(table, _UndoableTable)
    undo.add(table)
    return cast(T, table)
