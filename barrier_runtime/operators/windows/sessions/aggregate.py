"""Entries per session, keyed by (keys, first time), with the last time and the accumulators.

A session is over when the watermark reaches last time + gap. (Flink fires a millisecond earlier.) A row behind the
watermark joins an open session that the row touches; otherwise the row is late if a session of this row alone would be
over.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import group_rows, order_of_ints
from barrier_runtime.operators.aggregation.accumulators import add_to_groups
from barrier_runtime.operators.aggregation.batch_values import BatchValues
from barrier_runtime.operators.aggregation.partial_schema import is_partial
from barrier_runtime.operators.aggregation.partials import (
    add_any_order,
    may_be_in_any_order,
    merge_at_once,
    merge_entries,
    merge_partial_rows,
)
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.assigners import Session
from barrier_runtime.operators.windows.entries import Ints, WindowEntries
from barrier_runtime.operators.windows.firing import SPAN, ByStart
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.sessions.assignment import (
    LATE,
    AssignedSessions,
    Spans,
    assign_sessions,
    runs_of,
)
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import IntKeys, Key, TupleKeys, tuple_keys

_NONE = -1
_NEVER = -(2**63)
_PART = 16_384
_NO_ROWS: Ints = np.empty(0, np.int64)


class OpenSessions:
    """Open sessions of each key, and their ends. In memory, rebuilt from the table at a restore; identified by row id.

    A key's sessions are linked from the newest back. A session's *due time* is the end when last examined, in steps of
    a part of the gap. When due, a session that grew gets a new due time.
    """

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


LAST = "last"  # state column: time of the last row, ms
_STEPS, _STEPS_BY_WALL_CLOCK = 16, 1_024


class Sessions(WindowEntries):
    def __init__(self, operator: WindowOperator, beside: Sequence[pa.Field] = SPAN) -> None:
        super().__init__(operator, beside)
        assert isinstance(operator.window, Session)
        self._gap_ms = operator.window.gap_ms
        steps = _STEPS_BY_WALL_CLOCK if operator.clock.is_wall_clock else _STEPS
        self._open = OpenSessions(len(operator.key_columns), self._gap_ms, steps)

    @property
    def next_ms(self) -> int | None:
        return self._open.next_ms

    def _restored(self) -> None:
        self._any_order = may_be_in_any_order(self.plan)
        row_ids = self.table.load_all()
        if not len(row_ids):
            return
        ints = self.table.int_keys_of(row_ids)
        if ints is not None:
            starts, numbers = ints[-1], self._open.numbers_of_ints(list(ints[:-1]))
        else:
            keys = self.table.keys_of(row_ids)
            starts = np.array([key[-1] for key in keys], np.int64)
            numbers = self._open.numbers_of([key[:-1] for key in keys])
        its_keys = distinct_ints(numbers)
        order = order_of_ints([numbers, starts])
        row_ids = row_ids[order]
        known = Spans(numbers[order], starts[order], self.table.columns[LAST][row_ids])
        self._open.replace(its_keys, np.full(len(its_keys), -1, np.int64), row_ids[:0], row_ids, known)

    def _more_state(self) -> Mapping[str, tuple[str, Any]]:
        return {LAST: ("int64", 0)}

    def process(self, batch: Batch, emit: Emit) -> None:
        times_ms = self.operator.times_of(batch)
        if times_ms is None:
            return
        self.operator.arrive(emit)
        added = self._add(batch, times_ms, emit)
        while added < len(batch):
            # A session that this row would touch is emitted first.
            batch, times_ms = batch.slice(added), times_ms[added:]
            if batch.reached is not None and not self.operator.first_goes(batch, 0, int(batch.reached[0]), emit):
                return
            added = self._add(batch, times_ms, emit)
            if not added:
                raise ProtocolViolation(f"{self.where}: a session is open, though event time of its key has passed it")

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        self.operator.watermark_ms = watermark_ms
        over: list[Ints] = []
        for row_ids in self._open.over(watermark_ms, self.table.columns[LAST]):
            if over:
                yield
            over.append(row_ids)
        if over:
            yield from self._fire_all(np.concatenate(over), emit)

    def reach_floors(self, emit: Emit) -> Iterator[None]:
        row_ids = self.table.load_all()
        over = self.table.columns[LAST][row_ids] + self._gap_ms <= self._floors_of(row_ids)
        self._open.end(row_ids[over])
        yield from self._fire_all(row_ids[over], emit)

    def _fire_all(self, row_ids: Ints, emit: Emit) -> Iterator[None]:
        for part in self.parts(row_ids, self.table.columns[LAST]):
            if part is not None:
                self.fire(part, emit)
            yield

    def _add(self, batch: Batch, times_ms: Ints, emit: Emit) -> int:
        numbers = self._key_numbers(batch.rows)
        runs = runs_of(numbers, times_ms, self._gap_ms)
        keys, earliest_ms = runs.earliest()
        opened, rest = self._open.reached(keys, earliest_ms, self.table.columns[LAST])
        known = self._open.spans(opened, self.table.columns[LAST])

        def assigned(any_order: bool) -> AssignedSessions:
            return assign_sessions(runs, numbers, times_ms, self._gone_by(batch), known, self._gap_ms, any_order)

        done = assigned(self._any_order)
        if done.end < len(batch):
            self._open.unused(keys)
            return self._add(batch.slice(0, done.end), times_ms[: done.end], emit) if done.end else 0
        values = self._values(batch, done)
        if self._any_order and not add_any_order(self.plan, self.table.columns, opened, values):
            done = assigned(any_order=False)
            values = self._values(batch, done)
        if done.rows is not None:
            self.operator.give_late(batch, np.bincount(done.rows, minlength=len(batch)) == 0, emit)
        row_ids = self._entries(done, opened)
        if len(done.of_row):
            self._aggregate(values, done, row_ids)
        self._keep(keys, rest, done, opened, row_ids)
        return len(batch)

    def _values(self, batch: Batch, done: AssignedSessions) -> BatchValues:
        """Returns the values of the rows that are not late, and limits `done` to these."""
        late = done.of_row == LATE
        rows = batch.rows
        if late.any():
            done.rows = np.flatnonzero(~late)
            rows = rows.take(pa.array(done.rows))
            done.of_row = done.of_row[done.rows]
            done.levels = None if done.levels is None else done.levels[done.rows]
        return BatchValues(rows, self.where)

    def _gone_by(self, batch: Batch) -> int | Ints:
        """Sessions that end by this time (per row) are gone."""
        watermarks = self.operator.row_watermarks(batch)
        return self.operator.watermark_ms if watermarks is None else watermarks

    def _key_numbers(self, rows: pa.RecordBatch) -> Ints:
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is not None:
            return self._open.numbers_of_ints(ints)
        groups = group_rows(keys)
        return self._open.numbers_of(groups.keys)[groups.of_row]

    def _entries(self, done: AssignedSessions, opened: Ints) -> Ints:
        first = len(opened)
        if first == len(done.sessions):
            return opened
        return np.concatenate([opened, self._placed(done.sessions.keys[first:], done.sessions.first_ms[first:])])

    def _placed(self, numbers: Ints, first_ms: Ints) -> Ints:
        fields = self._open.key_fields(numbers)
        if fields is not None:
            return self.table.new_row_ids_int64(*fields, first_ms)
        keys = self._open.key_tuples(numbers)
        return self.table.row_ids([(*key, start) for key, start in zip(keys, first_ms.tolist(), strict=True)])

    def _aggregate(self, values: BatchValues, done: AssignedSessions, row_ids: Ints) -> None:
        of_row, levels, columns = row_ids[done.of_row], done.levels, self.table.columns
        into, merged = row_ids[done.merges[:, 1]], row_ids[done.merges[:, 2]]
        if levels is None:
            if len(merged):
                self.bounds.forget_all()
                if not merge_at_once(self.plan, columns, into, columns, merged):
                    raise ProtocolViolation(f"{self.where}: the order of rows is lost, though it matters")
            self._add_rows(values, of_row)
            return
        for level in range(int(max(levels.max(), done.merges[-1, 0])) + 1):
            pairs = done.merges[:, 0] == level
            if pairs.any():
                merge_entries(self.plan, columns, into[pairs], merged[pairs], self.bounds, self.left)
            its = np.flatnonzero(levels == level)
            if len(its):
                self._add_rows(values.take(its), of_row[its])

    def _add_rows(self, values: BatchValues, of_row: Ints) -> None:
        if is_partial(values.rows.schema):
            merge_partial_rows(self.plan, self.table.columns, of_row, values.rows, self.left, self.bounds)
            return
        add_to_groups(self.plan, self.table.columns, of_row, values, self.bounds, self.left)

    def _keep(self, keys: Ints, rest: Ints, done: AssignedSessions, opened: Ints, row_ids: Ints) -> Ints:
        sessions, stay = done.sessions, ~done.merged
        columns = self.table.columns
        first_ms = self._open.spans(opened, columns[LAST]).first_ms
        changed = np.ones(len(sessions), np.bool_)
        changed[: len(opened)] = columns[LAST][opened] != sessions.last_ms[: len(opened)]
        changed[done.of_row] = True
        moved = np.flatnonzero((sessions.first_ms[: len(opened)] < first_ms) & stay[: len(opened)])
        gone = row_ids[done.merged]
        row_ids = row_ids.copy()
        columns[LAST][row_ids] = sessions.last_ms
        if len(moved):
            before = row_ids[moved]
            now = self._placed(sessions.keys[moved], sessions.first_ms[moved])
            for column in self.table.columns.values():
                column[now] = column[before]
            row_ids[moved] = now
            gone = np.concatenate([gone, before])
        self.table.mark_dirty(row_ids[changed & stay])
        if len(gone):
            self.table.remove(gone)
        by_time = done.by_time
        if by_time is None:
            by_time = np.flatnonzero(stay)
            by_time = by_time[order_of_ints([sessions.keys[by_time], sessions.first_ms[by_time]])]
        left = Spans(sessions.keys[by_time], sessions.first_ms[by_time], sessions.last_ms[by_time])
        self._open.replace(keys, rest, gone, row_ids[by_time], left)
        return row_ids

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        fields = self.fields_of(row_ids)
        accumulators = self.accumulators(row_ids)
        ends = accumulators[LAST] + self._gap_ms
        results = self.results(row_ids, fields, ends, accumulators)
        self.table.remove(row_ids)
        self.send(results, ends - 1, emit)
