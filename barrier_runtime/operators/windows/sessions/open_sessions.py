"""Open sessions of each key, and their ends.
In memory, rebuilt from the table at a restore; identified by row id.

A key's sessions are linked from the newest back. A session's *due time* is the end when last examined, in steps of a
part of the gap. When due, a session that grew gets a new due time.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.grouping import order_of_ints
from barrier_runtime.operators.windows.by_start import ByStart
from barrier_runtime.operators.windows.sessions.assignment import Spans
from barrier_runtime.state.keys.row_index import IntKeys, Key, TupleKeys, tuple_keys

Ints: TypeAlias = npt.NDArray[np.int64]

_NONE = -1
_NEVER = -(2**63)
_PART = 16_384
_NO_ROWS: Ints = np.empty(0, np.int64)


class OpenSessions:
    def __init__(self, key_fields: int, gap_ms: int, steps: int = 16) -> None:
        """`steps`: due times per gap."""
        self._gap_ms = gap_ms
        self._step_ms = max(1, gap_ms // steps)
        self._keys: IntKeys | TupleKeys = IntKeys(key_fields)
        self._newest = np.full(1_024, _NONE, np.int64)
        self._key = np.empty(0, np.int64)
        self._first_ms = np.empty(0, np.int64)
        self._older = np.empty(0, np.int64)
        self._newer = np.empty(0, np.int64)
        self._due = np.empty(0, np.int64)
        self._by_due = ByStart()
        self._looked_ms = _NEVER  # time up to which sessions were last examined
        self._soonest_ms = 0  # earliest end of sessions of that step that grew

    def __len__(self) -> int:
        return len(self._keys)

    def numbers_of_ints(self, fields: list[Ints]) -> Ints:
        if isinstance(self._keys, TupleKeys):
            return self.numbers_of(list(zip(*(field.tolist() for field in fields), strict=True)))
        return self._placed(np.array(fields, np.int64))

    def numbers_of(self, keys: list[Key]) -> Ints:
        self._keys = tuple_keys(self._keys)
        return self._placed(keys)

    def key_fields(self, numbers: Ints) -> list[Ints] | None:
        """Keys of `numbers`, an array per field; None: use `key_tuples`."""
        return list(self._keys.key_batch(numbers)) if isinstance(self._keys, IntKeys) else None

    def key_tuples(self, numbers: Ints) -> list[Key]:
        return self._keys.tuples(numbers)

    def _placed(self, key_batch: Any) -> Ints:
        numbers, made = self._keys.place(key_batch)
        if len(made):
            self._newest = _extended(self._newest, self._keys.numbers.limit)
            self._newest[made] = _NONE
        return numbers

    def unused(self, numbers: Ints) -> None:
        """Releases `numbers` (distinct), which gained no session."""
        self._forget_keys(numbers)

    def reached(self, keys: Ints, earliest_ms: Ints, last_ms: Ints) -> tuple[Ints, Ints]:
        """Returns sessions of `keys` that may touch times from `earliest_ms` on.
        Also returns each key's newest other session. `keys` are distinct. `last_ms`: by session."""
        found: list[Ints] = []
        rest = np.full(len(keys), _NONE, np.int64)
        at = np.arange(len(keys))
        session = self._newest[keys]
        while True:
            there = session >= 0
            at, session = at[there], session[there]
            if not len(at):
                break
            touches = last_ms[session] + self._gap_ms >= earliest_ms[at]
            rest[at[~touches]] = session[~touches]
            at, session = at[touches], session[touches]
            found.append(session)
            session = self._older[session]
        return (np.concatenate(found) if found else _NO_ROWS), rest

    def spans(self, row_ids: Ints, last_ms: Ints) -> Spans:
        return Spans(self._key[row_ids], self._first_ms[row_ids], last_ms[row_ids])

    def replace(self, keys: Ints, rest: Ints, gone: Ints, row_ids: Ints, sessions: Spans) -> None:
        """Makes `row_ids` the sessions of `keys`, by key and time, after their older sessions `rest`.
        `gone`: row ids that are no longer sessions, or have another start."""
        capacity = 1 + max((int(ids.max()) for ids in (row_ids, gone) if len(ids)), default=-1)
        if capacity > len(self._key):
            self._key, self._first_ms = _extended(self._key, capacity), _extended(self._first_ms, capacity)
            self._older, self._newer = _extended(self._older, capacity), _extended(self._newer, capacity)
            self._due = _extended(self._due, capacity, _NEVER)
        self._due[gone] = _NEVER
        self._key[row_ids], self._first_ms[row_ids] = sessions.keys, sessions.first_ms
        self._newest[keys] = rest
        first = np.diff(sessions.keys, prepend=-1) != 0
        last = np.roll(first, -1)
        older, newer = np.empty_like(row_ids), np.empty_like(row_ids)
        older[1:], newer[:-1] = row_ids[:-1], row_ids[1:]
        older[first], newer[last] = self._newest[sessions.keys[first]], _NONE
        self._older[row_ids], self._newer[row_ids] = older, newer
        behind = first & (older >= 0)
        self._newer[older[behind]] = row_ids[behind]
        self._newest[sessions.keys[last]] = row_ids[last]
        self._forget_keys(keys)
        begun = self._due[row_ids] == _NEVER
        self._look_again(row_ids[begun], sessions.last_ms[begun])

    def over(self, watermark_ms: int, last_ms: Ints) -> Iterator[Ints]:
        """Closes the sessions that end by `watermark_ms`, and yields their row ids in parts.
        Of a key the older session comes first."""
        limit = watermark_ms // self._step_ms
        going_on: list[Ints] = []
        for row_ids, dues in self._due_by(limit):
            row_ids = _distinct(row_ids[self._due[row_ids] == dues])
            self._due[row_ids] = _NEVER
            ends = last_ms[row_ids] <= watermark_ms - self._gap_ms
            going_on.append(row_ids[~ends])
            over = row_ids[ends]
            if len(over):
                self._unlink(over)
                yield over
        self._looked_ms, soonest_ms = watermark_ms, (limit + 1) * self._step_ms
        for row_ids in going_on:  # possibly in the last step again
            self._look_again(row_ids, last_ms[row_ids])
            if len(row_ids):
                soonest_ms = min(soonest_ms, int(last_ms[row_ids].min()) + self._gap_ms)
        self._soonest_ms = soonest_ms

    def _due_by(self, limit: int) -> Iterator[tuple[Ints, Ints]]:
        parts: list[Ints] = []
        dues: list[int] = []
        count = 0
        for due, its in self._by_due.take_each(limit + 1):
            for first in range(0, len(its), _PART):
                parts.append(its[first : first + _PART])
                dues.append(due)
                count += len(parts[-1])
                if count >= _PART:
                    yield np.concatenate(parts), np.repeat(dues, [len(part) for part in parts])
                    parts, dues, count = [], [], 0
        if parts:
            yield np.concatenate(parts), np.repeat(dues, [len(part) for part in parts])

    @property
    def next_ms(self) -> int | None:
        """Watermark before which no session is over, except sessions begun by a row behind it; None: none."""
        first = self._by_due.first
        if first is None:
            return None
        first_ms = first * self._step_ms
        return first_ms if first_ms > self._looked_ms else self._soonest_ms

    def end(self, row_ids: Ints) -> None:
        if len(row_ids):
            self._due[row_ids] = _NEVER
            self._unlink(row_ids)

    def _unlink(self, over: Ints) -> None:
        newer, keys = self._newer[over], self._key[over]
        self._newest[keys[newer < 0]] = _NONE
        self._older[newer[newer >= 0]] = _NONE
        self._forget_keys(_distinct(keys))

    def _look_again(self, row_ids: Ints, last_ms: Ints) -> None:
        if not len(row_ids):
            return
        dues = last_ms // self._step_ms + self._gap_ms // self._step_ms
        self._due[row_ids] = dues
        self._by_due.note(row_ids, dues)

    def _forget_keys(self, keys: Ints) -> None:
        gone = keys[self._newest[keys] < 0]
        if len(gone):
            self._keys.remove(gone)


def _distinct(numbers: Ints) -> Ints:
    ordered = numbers[order_of_ints([numbers])]
    distinct: Ints = ordered[np.diff(ordered, prepend=-1) != 0]
    return distinct


def _extended(array: Ints, needed: int, initial: int = 0) -> Ints:
    if needed <= len(array):
        return array
    extended = np.full(max(needed, 2 * len(array), 1_024), initial, np.int64)
    extended[: len(array)] = array
    return extended
