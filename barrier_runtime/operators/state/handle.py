"""What the kinds of state have in common: a handle, declared once as a class attribute and bound to the key of the row
at hand. Handles do not know keys; those of one operator share one `CurrentKey`.
"""

import copy
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, NoReturn, TypeVar

from barrier_runtime.operators.state.stored_type import is_unchangeable, short
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.values.entry_table import EntryTable, WatchedEntryTable
from barrier_runtime.state.values.watched_table import WatchedTable

Self = TypeVar("Self", bound="KeyedState")
StateKey = tuple[Any, ...]


class CurrentKey:
    """The state key of the row (or timer) being processed. One per operator, set before every call."""

    __slots__ = ("key",)

    def __init__(self) -> None:
        self.key: StateKey = ()


class KeyedState:
    """Base of the handles. `remedy`: what to write in place of an assignment, with "{}" for the state."""

    __slots__ = ("_current", "_name", "_said")
    remedy: ClassVar[str]

    def __init__(self) -> None:
        self._name = ""
        self._said = ""  # as the user's program calls it
        self._current = CurrentKey()

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._said = f"self.{name}"

    def __set__(self, instance: Any, value: "KeyedState") -> None:
        """`self.n = 5` would replace the handle: all keys would share the 5, and no checkpoint would have it."""
        if not isinstance(value, KeyedState):
            raise self.assigned(value)
        vars(instance)[self._name] = value

    def assigned(self, value: object) -> InvalidJob:
        kind = next(each.__name__ for each in type(self).__mro__ if not each.__name__.startswith("_"))
        return InvalidJob(
            f"{short(value)} is assigned to {self._said}, which is {with_article(kind)}: "
            f"{self.remedy.format(self._said)}"
        )

    def open(
        self: Self, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> Self:
        """A handle that works on the state `name` of `backend` at the key of `current`. `where`: for messages;
        `holder`: whose attribute it is."""
        raise NotImplementedError

    def _bound(self: Self, name: str, current: CurrentKey, holder: str) -> Self:
        bound = copy.copy(self)
        bound._name = name
        bound._said = f"{holder}.{name}"
        bound._current = current
        return bound


class States:
    """`ctx.state`: the handles by name."""

    def __setattr__(self, name: str, value: object) -> None:
        handle = vars(self).get(name)
        if isinstance(handle, KeyedState):
            if handle is value:  # what is left of `ctx.state.seen += …`
                return
            raise handle.assigned(value)
        raise InvalidJob(f"ctx.state.{name} is not a declared state: add {name!r} to state= of process()")


class Unbound:
    """The table of a handle that no operator has opened, and each method of it."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what copies and pickles look for
            raise AttributeError(name)
        raise self._outside()

    def __call__(self, *_: object) -> NoReturn:
        raise self._outside()

    def _outside(self) -> InvalidJob:
        return InvalidJob(
            f"{with_article(self._kind)} is used outside a keyed function: use it only in process() or on_timer()"
        )


def with_article(kind: str) -> str:
    return f"an {kind}" if kind.startswith("A") else f"a {kind}"


def put_watched(table: WatchedTable, key: StateKey, value: Any) -> None:
    """Into a table that notices objects which several keys share."""
    if not is_unchangeable(value):
        table.own(key, value)
    table.put(key, value)


def put_entry_watched(table: WatchedEntryTable, key: StateKey, entry: Any, value: Any) -> None:
    if not is_unchangeable(value):
        table.own((*key, False, entry), value)
    table.put_entry(key, entry, value)


def entry_putter(table: EntryTable) -> Callable[[StateKey, Any, Any], None]:
    """What stores an entry in `table`."""
    return partial(put_entry_watched, table) if isinstance(table, WatchedEntryTable) else table.put_entry


REFUSED = (  # what would work on a handle of one value without a word, or end in a message that tells no way out
    *("__bool__", "__len__", "__iter__", "__contains__", "__getitem__", "__setitem__", "__delitem__"),
    *("append", "extend", "add", "pop", "get", "items", "keys", "values"),
    *("__lt__", "__le__", "__gt__", "__ge__", "__int__", "__float__", "__neg__"),
    *(
        f"__{side}{sign}__"
        for sign in ("add", "sub", "mul", "truediv", "floordiv", "mod", "or")
        for side in ("", "r", "i")
    ),
)


def refuse(kind: type[KeyedState], operations: tuple[str, ...], why: str) -> None:
    """Make `operations` of the class raise. `why`: with "{state}" and "{operation}"."""
    for operation in operations:
        if operation not in vars(kind):
            setattr(kind, operation, _refusal(operation, why))


def _refusal(operation: str, why: str) -> Callable[..., NoReturn]:
    def refused(self: KeyedState, *_: object) -> NoReturn:
        raise InvalidJob(why.format(state=self._said, operation=operation))

    return refused
