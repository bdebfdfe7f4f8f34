"""What a call of a user's function has changed in tables of state, put back before the call is repeated.

    table.get    of a value that can be changed in place    its encoding is kept, at the first time in a call
    table.put    of any key                                 what it had is kept, if nothing is yet
    put_back     all that was kept is stored again; a value that can be changed in place is another object then

A table that takes part is made with an `Undo` (`made`). Other tables pay nothing. What a call has come upon
is held in memory until the next one begins.
"""

from typing import Any, Protocol, TypeVar, cast

from barrier_runtime.state.values.entry_table import EntryTable, WatchedEntryTable
from barrier_runtime.state.values.table import Key, StateTable
from barrier_runtime.state.values.watched_table import WatchedTable

T = TypeVar("T", bound=StateTable)


class Undoable(Protocol):
    def begin(self) -> None:
        """A call begins."""

    def put_back(self) -> None:
        """It has failed: all is as it was when it began."""


class Undo:
    """Of one operator."""

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
        self.found: dict[Key, Any] = {}  # by the call at hand; of values that can be changed in place the encoding

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
        if len(key) == self.key_width + 2:  # else it is how many entries there are
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
    """A table of class `kind`. With `undo` the table takes part in undoing."""
    if undo is None:
        return kind(*arguments)
    table = _UNDOABLE[kind](*arguments)
    assert isinstance(table, _UndoableTable)
    undo.add(table)
    return cast(T, table)
