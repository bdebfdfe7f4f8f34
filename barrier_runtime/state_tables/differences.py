"""Entries that differ between two checkpoints of one job, or savepoints of one flow.

Both sides are read in key order, so memory does not grow with the state; of a state of columns, the rows of one subtask
of each side are held. Subtasks with the same files on both sides are not read.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from barrier_runtime.state.backend.stored_part import StoredPart
from barrier_runtime.state.columns.segment import Segment, as_binary
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_codec import decode_key, encode_key
from barrier_runtime.state.kv.shard import PREFIX_BYTES
from barrier_runtime.state.snapshots.snapshot import KEYS, ONE_VALUE, KeyedSnapshot, OperatorSnapshot, StateDescription
from barrier_runtime.state.snapshots.state_kinds import COLUMNS
from barrier_runtime.state.values.entry_table import is_number
from barrier_runtime.state_tables.arrow_columns import MASKED, column_of, decoded, masked, without_marks
from barrier_runtime.state_tables.stored_state import StoredState, states_of
from barrier_runtime.state_tables.wanted_keys import as_told, free_name, key_fields

_GROUP_BYTES = 2
_GROUPS = 1 << 8 * _GROUP_BYTES
_BESIDE = ("beside", "entry", "position", "at", "window_start", "namespace_1", "namespace_2")
Change: TypeAlias = Literal["inserted", "changed", "deleted"]


@dataclass(frozen=True)
class StateDifference:
    """Inserted, changed or deleted entry.

    `key`: by the names of its columns. `beside`: the rest of the entry's address (a map's entry, a list's position, a
    window). `before`, `after`: the value, or None; of columns, a dict. `over_ms`: event time at which an entry with a
    time to live expires; it may be deleted by then.
    """

    operator: str
    state: str
    change: Change
    key: dict[str, Any]
    beside: Any
    before: Any
    after: Any
    over_ms: int | None = None

    def redacted(self, names: Collection[str], more: Sequence[Collection[str]] = ()) -> "StateDifference":
        """Hides the values under `names`: columns of the state's table, this state, or `beside`, `before`, `after`.

        `more`: further names of each key column.
        """
        if not names:
            return self

        def hidden(value: Any, *called: str) -> Any:
            return MASKED if value is not None and not set(names).isdisjoint(called) else masked(value, names)

        also = dict(zip(self.key, more, strict=False))
        own = ("value", free_name("value", self.key), self.state)
        return replace(
            self,
            key={name: hidden(value, name, *also.get(name, ())) for name, value in self.key.items()},
            beside=hidden(self.beside, self.state, *_BESIDE),
            before=hidden(self.before, "before", *own),
            after=hidden(self.after, "after", *own),
        )


def diff(before: StoredState, after: StoredState, operator: str = "", state: str = "") -> Iterator[StateDifference]:
    """Yields the differences from `before` to `after`, by operator, state and key group.

    Raises `InvalidJob` if the sides have different numbers of key groups.
    """
    one, other = before.manifest, after.manifest
    if one.max_parallelism != other.max_parallelism:
        raise InvalidJob(
            f"{before!r} has {one.max_parallelism} key groups and {after!r} has {other.max_parallelism}: only "
            "checkpoints of one job, or what was forked from it, can be compared"
        )
    every = (*one.operators, *other.operators)
    for name in sorted({each.operator for each in every if each.keyed is not None}):
        if operator in ("", name):
            yield from _Operator(name, before, after).differences(state)


class _Operator:
    def __init__(self, name: str, before: StoredState, after: StoredState) -> None:
        self._name = name
        self._sides = (_Side(name, before), _Side(name, after))

    def differences(self, state: str) -> Iterator[StateDifference]:
        one, other = self._sides
        same = one.unchanged(other)
        for name in sorted({*one.described, *other.described}):
            if state in ("", name):
                told = [side.described[name] for side in (other, one) if name in side.described]
                what = next((each for each in told if each != ONE_VALUE), ONE_VALUE)
                yield from self._of_entries(name, what, same)
                yield from self._of_columns(name, same)

    def _of_entries(
        self, state: str, what: StateDescription, same: frozenset[tuple[int, int]]
    ) -> Iterator[StateDifference]:
        if what.row is COLUMNS and not any(side.has_entries(state) for side in self._sides):
            return
        timers = what.row.layout == "times"
        one, other = (side.entries(state, same, timers) for side in self._sides)
        for key, before, after in _side_by_side(one, other):
            if before == after:
                continue
            found = self._entry(state, what, key, before, after)
            if found is not None:
                yield found

    def _entry(
        self, state: str, what: StateDescription, key: bytes, before: bytes | None, after: bytes | None
    ) -> StateDifference | None:
        fields = decode_key(key, PREFIX_BYTES)
        own: tuple[Any, ...] = fields
        beside: Any = None
        if what.row.layout == "times":
            own, beside = fields[1:], fields[0]
        elif what.row.layout == "entries":
            if fields[-1] is True and is_number(after or before or b""):
                return None  # the number of entries
            own, beside = fields[:-2], fields[-1]
        values = (self._value(state, what, before), self._value(state, what, after))
        if before is not None and after is not None and values[0] == values[1]:
            return None  # only the time of writing differs
        found = self._difference(state, own, beside, *values, before is not None, after is not None)
        return replace(found, over_ms=_over_ms(what, after or before or b""))

    def _value(self, state: str, what: StateDescription, data: bytes | None) -> Any:
        if data is None or what.row.layout == "times":
            return None
        if what.row is COLUMNS:
            return data.hex()
        _, own = without_marks(data)
        value = decoded(own, what.type, f"{self._name}.{state}")
        return None if value is None else column_of(what.type).of(value)

    def _of_columns(self, state: str, same: frozenset[tuple[int, int]]) -> Iterator[StateDifference]:
        firsts = sorted({first for side in self._sides for first in side.firsts()})
        for groups in map(range, firsts, [*firsts[1:], _GROUPS]):
            one, other = (side.rows(state, same, groups) for side in self._sides)
            for key in sorted({*one, *other}):
                before, after = one.get(key), other.get(key)
                if before != after and repr(before) != repr(after):  # nan equals nan
                    fields = decode_key(key, _GROUP_BYTES)
                    yield self._difference(state, fields, None, before, after, before is not None, after is not None)

    def _difference(
        self, state: str, fields: tuple[Any, ...], beside: Any, before: Any, after: Any, was: bool, is_: bool
    ) -> StateDifference:
        names = self._sides[1].key or self._sides[0].key or [(f"key_{at}", None) for at in range(1, len(fields) + 1)]
        key = {name: as_told(value, kind) for (name, kind), value in zip(names, fields, strict=False)}
        more = fields[len(names) :]
        if more and beside is None:
            beside = more[0] if len(more) == 1 else more
        change: Change = "changed" if was and is_ else "deleted" if was else "inserted"
        return StateDifference(self._name, state, change, key, beside, before, after)


class _Side:
    def __init__(self, operator: str, stored: StoredState) -> None:
        self._stored = stored
        self._parts = sorted(
            (each for each in stored.manifest.operators if each.operator == operator and each.keyed is not None),
            key=lambda each: _keyed(each).key_group_first,
        )
        self.described = {name: what for each in self._parts for name, what in states_of(each).items()}
        told = next((each.values[KEYS].decode() for each in self._parts if KEYS in each.values), "")
        self.key = key_fields(told)
        self._decoded: tuple[str, tuple[int, int], _Rows] | None = None  # of the last call of `rows`

    def unchanged(self, other: "_Side") -> frozenset[tuple[int, int]]:
        def files(side: "_Side") -> dict[tuple[int, int], tuple[object, ...]]:
            return {
                _range(each): (_keyed(each).states, sorted((ref.name, ref.sha256) for ref in _keyed(each).files))
                for each in side._parts
            }

        mine, others = files(self), files(other)
        return frozenset(place for place, found in mine.items() if others.get(place) == found)

    def has_entries(self, state: str) -> bool:
        return next(self.entries(state, frozenset()), None) is not None

    def entries(
        self, state: str, without: frozenset[tuple[int, int]], timers: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yields (key, data) in key order, without the state id in keys.

        `timers`: keys are (time, *key); older releases' keys, (*key, time), are sorted here.
        """
        for part in self._read(without):
            keyed = _keyed(part)
            if state in keyed.states:
                with StoredPart(keyed, self._stored.store, self._stored.folder()) as opened:
                    found = (
                        (key[:_GROUP_BYTES] + bytes(PREFIX_BYTES - _GROUP_BYTES) + key[PREFIX_BYTES:], data)
                        for key, data in opened.entries(state)
                    )
                    by_key = timers and self.described[state] == ONE_VALUE
                    yield from sorted((_by_time(key), data) for key, data in found) if by_key else found

    def firsts(self) -> list[int]:
        return [_keyed(each).key_group_first for each in self._parts]

    def rows(self, state: str, without: frozenset[tuple[int, int]], groups: range) -> dict[bytes, dict[str, Any]]:
        """Rows of keys in `groups`, which lie in at most one subtask."""
        for part in self._read(without):
            first, last = place = _range(part)
            if first <= groups.start <= last:
                if self._decoded is None or self._decoded[:2] != (state, place):
                    self._decoded = None  # held no longer than needed
                    self._decoded = (state, place, self._rows_of(part, state))
                return self._decoded[2].within(groups)
        return {}

    def _rows_of(self, part: OperatorSnapshot, state: str) -> "_Rows":
        found: dict[bytes, dict[str, Any]] = {}
        if state in _keyed(part).states:
            with StoredPart(_keyed(part), self._stored.store, self._stored.folder()) as opened:
                for segment in opened.segments(state):
                    found.update(_rows(segment, self._stored.manifest.max_parallelism))
        return _Rows(found)

    def _read(self, without: frozenset[tuple[int, int]]) -> Sequence[OperatorSnapshot]:
        return [each for each in self._parts if _range(each) not in without]


class _Rows:
    """Rows of a subtask by key."""

    def __init__(self, rows: dict[bytes, dict[str, Any]]) -> None:
        self._rows, self._keys = rows, sorted(rows)

    def within(self, groups: range) -> dict[bytes, dict[str, Any]]:
        begin, end = (bisect_left(self._keys, group, key=_group) for group in (groups.start, groups.stop))
        return {key: self._rows[key] for key in self._keys[begin:end]}


def _keyed(part: OperatorSnapshot) -> KeyedSnapshot:
    assert part.keyed is not None
    return part.keyed


def _range(part: OperatorSnapshot) -> tuple[int, int]:
    return _keyed(part).key_group_first, _keyed(part).key_group_last


def _over_ms(what: StateDescription, data: bytes) -> int | None:
    ttl = what.ttl
    if ttl is None or ttl.clock != "event" or not ttl.ms:
        return None
    written_ms = without_marks(data)[0]
    begun_ms = ttl.since_ms if written_ms is None else written_ms
    return None if begun_ms is None else begun_ms + ttl.ms


def _by_time(key: bytes) -> bytes:
    *own, at_ms = decode_key(key, PREFIX_BYTES)
    return key[:PREFIX_BYTES] + encode_key((at_ms, *own))


def _group(key: bytes) -> int:
    return int.from_bytes(key[:_GROUP_BYTES], "big")


def _rows(segment: Segment, max_parallelism: int) -> Iterator[tuple[bytes, dict[str, Any]]]:
    keys = as_binary(segment.keys, segment.key_width, max_parallelism).to_pylist()
    columns = {name: column.tolist() for name, column in segment.columns.items()}
    for at, key in enumerate(keys):
        yield key, {name: values[at] for name, values in columns.items()}


def _side_by_side(
    one: Iterator[tuple[bytes, bytes]], other: Iterator[tuple[bytes, bytes]]
) -> Iterator[tuple[bytes, bytes | None, bytes | None]]:
    left, right = next(one, None), next(other, None)
    while left is not None or right is not None:
        if right is None or (left is not None and left[0] < right[0]):
            assert left is not None
            yield left[0], left[1], None
            left = next(one, None)
        elif left is None or right[0] < left[0]:
            yield right[0], None, right[1]
            right = next(other, None)
        else:
            yield left[0], left[1], right[1]
            left, right = next(one, None), next(other, None)
