"""`ReducingState` and `AggregatingState`: added values are folded into a single value per key."""

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
    with_article,
)
from barrier_runtime.operators.state.migration import Migrate
from barrier_runtime.operators.state.stored_type import CodecName, StoredType, short
from barrier_runtime.operators.state.ttl import TTL
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import StateDescription
from barrier_runtime.state.snapshots.state_kinds import AGGREGATING, REDUCING
from barrier_runtime.state.values.timed_table import TimedTable
from barrier_runtime.state.values.watched_table import WatchedTable

T = TypeVar("T")
In = TypeVar("In", contravariant=True)
Acc = TypeVar("Acc")
Out = TypeVar("Out", covariant=True)
Folded = TypeVar("Folded", bound="_FoldedState")


class AggregateFunction(Protocol[In, Acc, Out]):
    """An accumulator may be changed in place, and is returned all the same."""

    def zero(self) -> Acc: ...
    def add(self, accumulator: Acc, value: In, /) -> Acc: ...
    def result(self, accumulator: Acc, /) -> Out: ...


class _FoldedState(KeyedState):
    __slots__ = ("_get", "_put", "_remove", "_type")
    remedy = "write {0}.clear() to begin anew, and {0}.add(…) for what comes"
    _what: StateDescription

    def __init__(
        self,
        kind: Any,
        codec: CodecName,
        says: str,
        ttl: TTL | None,
        renamed: Mapping[str, str | None] | None,
        migrate: Migrate | None,
    ) -> None:
        super().__init__(ttl)
        self._type = StoredType(kind, codec, says, renamed, migrate)
        unbound = Unbound(says)
        self._get: Callable[[StateKey], Any] = unbound
        self._put: Callable[[StateKey, Any], None] = unbound
        self._remove: Callable[[StateKey], None] = unbound

    def clear(self) -> None:
        """Forgets the values added to the current key."""
        self._remove(self._current.key)

    def declared(self) -> StateDescription:
        return self._type.declared(self._what)

    def open(
        self: Folded, backend: KeyedBackend, name: str, where: str, key_width: int, current: CurrentKey, holder: str
    ) -> Folded:
        bound = self._bound(name, current, holder)
        table = value_table(self, self._type, backend, name, where, key_width, current)
        bound._get = table.get
        bound._put = table.put
        if isinstance(table, WatchedTable) or (isinstance(table, TimedTable) and table.watched):
            bound._put = partial(put_watched, table)
        bound._remove = table.delete
        return bound

    def _store(self, value: Any, made_by: str) -> Any:
        if value is None:
            raise InvalidJob(
                f"{made_by} returned None, which state {self._name!r} cannot hold: return the new value, also when it "
                "is the old one, changed"
            )
        accepted = self._type.accepted(self._name, value)
        self._put(self._current.key, accepted)
        return accepted


@kinds_checked
class ReducingState(_FoldedState, Generic[T]):
    """One value per key, made from all added values by a function of two values.

    >>> class Peaks:
    ...     peak = ReducingState(float, max)
    ...     def process(self, key, row, ctx):
    ...         yield {"key": key, "peak": self.peak.add(row["v"])}

    `kind` is as in `ValueState`; `reduce(so far, added)` returns the new value. A `ttl` counts from the last addition.
    """

    __slots__ = ("_reduce",)
    _what = StateDescription(REDUCING.name)

    def __init__(
        self,
        kind: type[T],
        reduce: Callable[[T, T], T],
        *,
        codec: CodecName = "msgpack",
        ttl: TTL | None = None,
        renamed: Mapping[str, str | None] | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(kind, codec, "ReducingState", ttl, renamed, migrate)
        if not callable(reduce):
            raise InvalidJob(
                f"ReducingState reduces with {short(reduce)}, which is not a function: pass one of two values"
            )
        self._reduce = reduce

    def add(self, value: T) -> T:
        """Adds `value` and returns the new value of the current key."""
        if value is None:
            raise InvalidJob(f"None cannot be added to {self._said}: leave it out")
        found = self._get(self._current.key)
        if found is None:
            return cast(T, self._store(value, "add()"))
        new = self._reduce(found, cast(T, self._type.accepted(self._name, value)))
        return cast(T, self._store(new, getattr(self._reduce, "__qualname__", "its function")))

    @property
    def value(self) -> T | None:
        """Reduction of the values added to the current key; None before the first addition."""
        return cast("T | None", self._get(self._current.key))


@kinds_checked
class AggregatingState(_FoldedState, Generic[In, Acc, Out]):
    """An accumulator per key; added values, accumulator and result may differ in type.

    >>> class Mean:
    ...     def zero(self): return (0.0, 0)
    ...     def add(self, total, value): return (total[0] + value, total[1] + 1)
    ...     def result(self, total): return total[0] / total[1]
    >>> class Means:
    ...     mean = AggregatingState(Mean(), tuple[float, int])
    ...     def process(self, key, row, ctx):
    ...         self.mean.add(row["v"])
    ...         yield {"key": key, "mean": self.mean.value}

    `aggregate` has `zero()`, `add(accumulator, value)`, which returns the new accumulator, and `result(accumulator)`.
    `kind` is the type of the accumulator, as in `ValueState`. A `ttl` counts from the last addition.
    """

    __slots__ = ("_aggregate",)
    _what = StateDescription(AGGREGATING.name)

    def __init__(
        self,
        aggregate: AggregateFunction[In, Acc, Out],
        kind: type[Acc],
        *,
        codec: CodecName = "msgpack",
        ttl: TTL | None = None,
        renamed: Mapping[str, str | None] | None = None,
        migrate: Migrate | None = None,
    ) -> None:
        super().__init__(kind, codec, "AggregatingState", ttl, renamed, migrate)
        for method in ("zero", "add", "result"):
            if isinstance(aggregate, type) or not callable(getattr(aggregate, method, None)):
                raise InvalidJob(
                    f"AggregatingState of {short(aggregate)}: pass an object with zero(), add(accumulator, value) and "
                    "result(accumulator)"
                )
        self._aggregate = aggregate

    def add(self, value: In) -> None:
        """Adds `value` to the current key's accumulator."""
        found = self._get(self._current.key)
        new = self._aggregate.add(self._aggregate.zero() if found is None else found, value)
        self._store(new, f"{type(self._aggregate).__name__}.add()")

    @property
    def value(self) -> Out | None:
        """Result for the values added to the current key; None before the first addition."""
        found = self._get(self._current.key)
        return None if found is None else self._aggregate.result(found)


for _kind in (ReducingState, AggregatingState):
    refuse(
        _kind,
        REFUSED,
        f"{{state}} is {with_article(_kind.__name__)}, not its value ({{operation}}): the value is {{state}}.value, "
        "and {state}.add(…) adds to it",
    )
