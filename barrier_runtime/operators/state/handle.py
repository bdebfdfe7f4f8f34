"""Base of all kinds of state: a handle, bound to the current key (`CurrentKey`)."""

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, ClassVar, NoReturn, TypeVar

from barrier_runtime.operators.state.stored_type import StoredType, is_unchangeable, short
from barrier_runtime.operators.state.ttl import TTL, Timing, check_ttl, opened_expiry
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.continued_state import continued
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.values.entry_table import EntryTable, WatchedEntryTable
from barrier_runtime.state.values.expiry import Expiry
from barrier_runtime.state.values.table import MadeNew, StateTable
from barrier_runtime.state.values.timed_table import TimedEntries, TimedTable
from barrier_runtime.state.values.undo import Undo
from barrier_runtime.state.values.watched_table import WatchedTable

Self = TypeVar("Self", bound="KeyedState")
AnyTimed = TypeVar("AnyTimed", TimedTable, TimedEntries)
StateKey = tuple[Any, ...]


class CurrentKey:
    """Key of the current row or timer, set before every call."""

    __slots__ = ("key", "timing", "undo")

    def __init__(self) -> None:
        self.key: StateKey = ()
        self.timing: Timing | None = None  # if states may have a TTL
        self.undo: Undo | None = None  # if failed calls are repeated


class NoKey:
    """Refuses every use of keyed state or timers while there is no key."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    def _refused(self, *_: object) -> NoReturn:
        raise InvalidJob(self._refusal.format(_asked(sys._getframe(1))))

    __hash__ = _refused
    __eq__ = _refused
    __iter__ = _refused
    __len__ = _refused
    __getitem__ = _refused


def _asked(frame: FrameType | None) -> str:
    """Name of the state (or timers) whose method runs in `frame` or in a calling frame."""
    while frame is not None:
        said = getattr(frame.f_locals.get("self"), "_said", None)
        if said:
            return str(said)
        frame = frame.f_back
    return "state"


class KeyedState:
    """Base of the handles. `remedy`: the correct form in place of an assignment, with "{}" for the state."""

    __slots__ = ("_current", "_name", "_said", "_ttl")
    remedy: ClassVar[str]

    def __init__(self, ttl: TTL | None = None) -> None:
        self._ttl = check_ttl(ttl, type(self).__name__)
        self._name = ""
        self._said = ""
        self._current = CurrentKey()

    @property
    def ttl(self) -> TTL | None:
        """Time to live of the entries; None: unlimited."""
        return self._ttl

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self._said = f"self.{name}"

    def __set__(self, instance: Any, value: "KeyedState") -> None:
        """Refuses `self.n = 5`: all keys would share the 5, without a checkpoint."""
        if not isinstance(value, KeyedState):
            raise self.assigned(value)
        vars(instance)[self._name] = value

    def assigned(self, value: object) -> InvalidJob:
        """Error of `self.state = value`, with the remedy."""
        kind = next(each.__name__ for each in type(self).__mro__ if not each.__name__.startswith("_"))
        return InvalidJob(
            f"{short(value)} is assigned to {self._said}, which is {with_article(kind)}: "
            f"{self.remedy.format(self._said)}"
        )

    def declared(self) -> StateDescription:
        """Description of the state, without TTL."""
        raise NotImplementedError

    def open(
        self: Self, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> Self:
        """Returns a handle for the state `name` of `backend` at the key of `current`.
        `where`: for messages; `holder`: the object with the attribute."""
        raise NotImplementedError

    def _bound(self: Self, name: str, current: CurrentKey, holder: str, kind: type[Self] | None = None) -> Self:
        kind = type(self) if kind is None else kind
        bound = kind.__new__(kind)
        for each in type(self).__mro__:
            for attribute in vars(each).get("__slots__", ()):
                if hasattr(self, attribute):
                    setattr(bound, attribute, getattr(self, attribute))
        bound._name = name
        bound._said = f"{holder}.{name}"
        bound._current = current
        return bound


class States:
    def __setattr__(self, name: str, value: object) -> None:
        handle = vars(self).get(name)
        if isinstance(handle, KeyedState):
            if handle is value:  # the last step of `ctx.state.seen += …`
                return
            raise handle.assigned(value)
        raise InvalidJob(f"ctx.state.{name} is not a declared state: add {name!r} to state= of process()")


class Unbound:
    """Stand-in for the table, and methods, of an unopened handle."""

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # by copy and pickle
            raise AttributeError(name)
        raise self._outside()

    def __call__(self, *_: object) -> NoReturn:
        raise self._outside()

    def _outside(self) -> InvalidJob:
        return InvalidJob(
            f"{with_article(self._kind)} is used outside a keyed function: use it only in process(), on_timer() or "
            "on_wall_timer()"
        )


def with_article(kind: str) -> str:
    return f"an {kind}" if kind.startswith("A") else f"a {kind}"


def put_watched(table: WatchedTable | TimedTable, key: StateKey, value: Any) -> None:
    if not is_unchangeable(value):
        table.own(key, value)
    table.put(key, value)


def put_entry_watched(table: WatchedEntryTable | TimedEntries, key: StateKey, entry: Any, value: Any) -> None:
    own_entry(table, key, entry, value)
    table.put_entry(key, entry, value)


def own_entry(table: WatchedEntryTable | TimedEntries, key: StateKey, entry: Any, value: Any) -> None:
    if not is_unchangeable(value):
        table.own((*key, False, entry), value)


def entry_putter(table: EntryTable | TimedEntries) -> Callable[[StateKey, Any, Any], None]:
    if isinstance(table, WatchedEntryTable) or (isinstance(table, TimedEntries) and table.watched):
        return partial(put_entry_watched, table)
    return table.put_entry


def counted_putter(table: EntryTable | TimedEntries) -> Callable[[StateKey, Any, Any], None]:
    if isinstance(table, WatchedEntryTable):
        return partial(_put_counted_watched, table)
    return table.put_counted if isinstance(table, EntryTable) else entry_putter(table)


def _put_counted_watched(table: WatchedEntryTable, key: StateKey, entry: Any, value: Any) -> None:
    own_entry(table, key, entry, value)
    table.put_counted(key, entry, value)


def value_table(
    handle: KeyedState,
    of: StoredType,
    backend: KeyedBackend,
    name: str,
    where: str,
    key_width: int,
    current: CurrentKey,
) -> StateTable | TimedTable:
    made_new = MadeNew()
    expiry, what, encode, decode = _continued(handle, of, backend, name, where, current, made_new)
    table = backend.table(name, encode, decode, key_width, of.immutable, of.comparable, what, undo=current.undo)
    table.made_new = made_new
    return table if expiry is None else _registered(TimedTable(table, expiry), current)


def entries_table(
    handle: KeyedState,
    of: StoredType,
    backend: KeyedBackend,
    name: str,
    where: str,
    key_width: int,
    current: CurrentKey,
) -> EntryTable | TimedEntries:
    made_new = MadeNew()
    expiry, what, encode, decode = _continued(handle, of, backend, name, where, current, made_new)
    table = backend.entry_table(name, encode, decode, key_width, what, of.immutable, of.comparable, undo=current.undo)
    table.made_new = made_new
    return table if expiry is None else _registered(TimedEntries(table, expiry, what.row.numbered), current)


def _continued(
    handle: KeyedState,
    of: StoredType,
    backend: KeyedBackend,
    name: str,
    where: str,
    current: CurrentKey,
    made_new: MadeNew,
) -> tuple[Expiry | None, StateDescription, Callable[[Any], bytes], Callable[[bytes], Any]]:
    """Expiry (None: entries never expire), description for snapshots, encoder and decoder."""
    what = continued(handle.declared(), backend.restored(name), where)
    expiry, what = opened_expiry(handle.ttl, backend, name, what, current.timing)
    encode, decode = of.encoder(where), of.decoder(where, what, made_new)
    if expiry is not None:
        encode, decode = expiry.encoder(encode), expiry.decoder(decode)
    return expiry, what, encode, decode


def _registered(table: AnyTimed, current: CurrentKey) -> AnyTimed:
    if current.timing is not None:
        current.timing.tables.append(table)
    return table


REFUSED = (  # would silently work on a handle of one value, or fail without a remedy
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
    """Makes `operations` of the class raise. `why`: message, with "{state}" and "{operation}"."""
    for operation in operations:
        if operation not in vars(kind):
            setattr(kind, operation, _refusal(operation, why))


def _refusal(operation: str, why: str) -> Callable[..., NoReturn]:
    def refused(self: KeyedState, *_: object) -> NoReturn:
        raise InvalidJob(why.format(state=self._said, operation=operation))

    refused.__doc__ = f"Raises `InvalidJob`: {why.format(state='state', operation=operation)}."
    return refused
