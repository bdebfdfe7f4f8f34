"""Entries per *slice* of sliding windows, so that a row is added once, not once per window.

A slice is as long as the slide. An entry is (keys, start of the slice); the window with this start is the slice's last.
When a window is over, the slices are added up by key, oldest first, so float sums do not drift.

A row counts in those windows of the slice that are not over, and is late if all are over. Event time advances before a
row that is behind the watermark of its own batch.

`_fired_ms` records by key group, also in snapshots, which windows were emitted. No barrier divides a part of a window
(up to `FEW` keys, or whole key groups) from this mark.

Results of aggregates outside of `_ADDED_UP` do not follow, bit for bit, from those of slices: their entries are windows
(`Windows`), as in state that began so. State in slices that gets such an aggregate becomes windows at the restore.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.grouping import order_of_ints, stable_order
from barrier_runtime.data.keys import sort_rows
from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.partials import merge_at_once, merge_columns
from barrier_runtime.operators.base import Capture, Emit
from barrier_runtime.operators.keyed.progress import Floor
from barrier_runtime.operators.windows import firing
from barrier_runtime.operators.windows.aggregate import Windows
from barrier_runtime.operators.windows.assigners import Sliding
from barrier_runtime.operators.windows.entries import Ints
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.key_groups import key_groups_of
from barrier_runtime.state.keys.row_index import IntKeys, Key, TupleKeys, tuple_keys
from barrier_runtime.state.snapshots.snapshot import value_format
from barrier_runtime.state.versioned import VersionedDecoder


class WindowKeys:
    """A number belongs to a key as long as one of its entries is held."""

    def __init__(self, width: int, groups_of: Callable[[Sequence[Any]], Ints]) -> None:
        """`width`: fields of a key. `groups_of`: returns each key's group, given a sequence per field."""
        self._keys: IntKeys | TupleKeys = IntKeys(width)
        self._groups_of = groups_of
        self.groups: Ints = np.zeros(0, np.int64)
        self._held: Ints = np.zeros(0, np.int64)

    @property
    def limit(self) -> int:
        return len(self.groups)

    def of_ints(self, keys: Ints) -> Ints:
        if isinstance(self._keys, TupleKeys):
            return self.of_tuples(list(zip(*keys.tolist(), strict=True)))
        numbers, made = self._keys.place(keys)
        self._made(made)
        return numbers

    def of_tuples(self, keys: Sequence[Key]) -> Ints:
        self._keys = tuple_keys(self._keys)
        numbers, made = self._keys.place(keys)
        self._made(made)
        return numbers

    def hold(self, numbers: Ints) -> None:
        self._held[numbers] += 1

    def release(self, numbers: Ints) -> None:
        self._held[numbers] -= 1
        gone = numbers[self._held[numbers] == 0]
        if len(gone):
            self._keys.remove(gone)

    def fields(self, numbers: Ints) -> list[Any]:
        if isinstance(self._keys, IntKeys):
            return list(self._keys.key_batch(numbers))
        return list(zip(*self._keys.key_batch(numbers), strict=True))

    def key(self, number: int) -> Key:
        return self._keys.tuples(np.array([number]))[0]

    @property
    def are_ints(self) -> bool:
        return isinstance(self._keys, IntKeys)

    def _made(self, numbers: Ints) -> None:
        if not len(numbers):
            return
        missing = self._keys.numbers.limit - len(self.groups)
        if missing > 0:
            more = np.zeros(max(missing, len(self.groups)), np.int64)
            self.groups, self._held = np.concatenate((self.groups, more)), np.concatenate((self._held, more))
        self.groups[numbers] = self._groups_of(self.fields(numbers))
        self._held[numbers] = 0


SLICES = "slices"  # snapshot value; without it entries are windows
_NONE: Ints = np.zeros(0, np.int64)
_ADDED_UP = frozenset(["count", "sum", "mean", "min", "max", "any", "all"])


class _Slices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fired: tuple[Floor, ...]  # event time up to which windows were emitted
    version: int = 1


_SLICES = VersionedDecoder(value_format("{}: its slices in its snapshot"), msgspec.msgpack.Decoder(_Slices))


def add_up(aggregates: Mapping[str, AnyAggregate]) -> bool:
    """Returns whether all results of a window follow from those of slices."""
    return all(isinstance(each, Aggregate) and each.kind in _ADDED_UP for each in aggregates.values())


def sliding_entries(operator: WindowOperator) -> Windows:
    were_slices = any(SLICES in each.values for each in operator.context.restored)
    if not add_up(operator.content.aggregates):
        return FormerSlices(operator) if were_slices else Windows(operator)
    restored = operator.context.restored
    in_slices = were_slices if restored else not operator.made_of_tables
    return Slices(operator) if in_slices else Windows(operator)


def _fired(operator: WindowOperator) -> Ints:
    context, backend = operator.context, operator.backend
    fired_ms = np.full(context.max_parallelism, WATERMARK_MIN, np.int64)
    for each in context.restored:
        if SLICES in each.values:
            for floor in _SLICES.decode(each.values[SLICES], f"operator {operator.name!r}").fired:
                if not (context.reopened and floor.watermark_ms == WATERMARK_MAX):  # else see `restored_progress`
                    part = fired_ms[floor.first : floor.last + 1]
                    np.maximum(part, floor.watermark_ms, out=part)
    return fired_ms[backend.key_group_first : backend.key_group_last + 1]


class FormerSlices(Windows):
    window: Sliding

    def __init__(self, operator: WindowOperator) -> None:
        super().__init__(operator)
        self._fired_ms = _fired(operator)
        self._before = frozenset[str]()

    def bind(self, columns: pa.Schema) -> None:
        self._before = self.operator.known_columns
        super().bind(columns)

    def _restored(self) -> None:
        table = self.table
        composites = tuple(each for each in self.plan.composites if self._before.issuperset(each.storage()))
        plan = dataclasses.replace(self.plan, composites=composites)
        row_ids = table.load_all()
        keys = table.keys_of(row_ids)
        slices = np.array([key[-1] for key in keys], np.int64)
        columns = {name: column[row_ids] for name, column in table.columns.items()}
        fired_ms = self._fired_ms[groups_of(self, list(zip(*keys, strict=True))[:-1])] if keys else _NONE
        table.remove(row_ids)
        in_order = np.argsort(slices, kind="stable")
        for back_ms in range(0, self.window.size_ms, self.window.slide_ms):
            its = in_order[slices[in_order] - back_ms + self.window.size_ms - 1 > fired_ms[in_order]]
            for start in distinct_ints(slices[its]).tolist():
                of_slice = its[slices[its] == start]
                for some in np.split(of_slice, range(firing.FEW, len(of_slice), firing.FEW)):
                    into = table.row_ids([(*keys[at][:-1], start - back_ms) for at in some.tolist()])
                    self.note(self.due, table.made)
                    merge_columns(plan, table.columns, into, columns, some, self.left)
                    table.mark_dirty(into)
        if not table.is_whole:
            self.due.forget_row_ids()


def groups_of(entries: Windows, fields: Sequence[Any]) -> Ints:
    operator = entries.operator
    columns = [entries.codec.column(i, values) for i, values in enumerate(fields)]
    return key_groups_of(columns, operator.context.max_parallelism).astype(np.int64) - operator.backend.key_group_first


class Slices(Windows):
    window: Sliding
    in_slices = True

    def __init__(self, operator: WindowOperator) -> None:
        super().__init__(operator)
        self._fired_ms = _fired(operator)
        self._keys = self._new_keys()
        self._numbers: dict[int, Ints] = {}  # by slice: numbers of its first entries, in the order of `due`
        self._sums: dict[str, npt.NDArray[Any]] = {}  # accumulators by number; initial except while a window is emitted

    def captured(self, capture: Capture) -> None:
        self._catch_up()
        first, fired_ms = self.operator.backend.key_group_first, self._fired_ms
        begins = np.flatnonzero(np.diff(fired_ms, prepend=fired_ms[:1] ^ 1)).tolist()
        ends = [*begins[1:], len(fired_ms)]
        floors = [Floor(first + i, first + j - 1, int(fired_ms[i])) for i, j in zip(begins, ends, strict=True)]
        capture.values[SLICES] = msgspec.msgpack.encode(_Slices(tuple(floors)))

    @property
    def _per_row(self) -> int:
        return 1

    def take(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        times_ms = self.operator.times_of(batch)
        if times_ms is None:
            return None
        self._catch_up()
        slices = self.window.slices(times_ms)
        watermarks = self.operator.row_watermarks(batch)
        if watermarks is None:
            first_open: int | Ints = self.window.first_open_start(self.operator.watermark_ms)
            if int(self.window.slices(np.array([self.operator.lowest_ms]))[0]) >= first_open:
                self.add(batch.rows, slices, batch, None, emit)
                return None
        else:
            first_open = self.window.first_open_starts(watermarks)
        cut = self._first_over(batch, slices)
        if cut is None:
            rows, slices, kept = self._without_late(batch, None, slices, slices < first_open, emit)
            self.add(rows, slices, batch, kept, emit)
        return cut

    def _first_over(self, batch: Batch, slices: Ints) -> tuple[int, int] | None:
        """Returns the first row at which an unemitted window of that row is over, and event time there."""
        reached = batch.reached
        if reached is None or reached[-1] <= self.operator.watermark_ms:
            return None
        reached = np.maximum(reached, self.operator.watermark_ms)
        first_open = self.window.first_open_starts(reached)
        waiting = self.window.first_from(int(self.window.first_open_starts(np.array([self.operator.watermark_ms]))[0]))
        firsts = slices - (self.window.size_ms - self.window.slide_ms)
        over = (np.maximum(firsts, waiting) < first_open) & (slices >= first_open)
        row = int(np.argmax(over))
        return (row, int(reached[row])) if over[row] else None

    def row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        row_ids = super().row_ids(rows, starts)
        if self._numbers and not self.due.has_row_ids:
            self._keys, self._numbers = self._new_keys(), {}
        return row_ids

    def _catch_up(self) -> None:
        if self.operator.going_to_ms is None:
            np.maximum(self._fired_ms, self.operator.watermark_ms, out=self._fired_ms)

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        self.operator.watermark_ms = watermark_ms
        yield from self._fire_to(np.full_like(self._fired_ms, watermark_ms), emit)

    def reach_floors(self, emit: Emit) -> Iterator[None]:
        floors, backend = self.operator.floors, self.operator.backend
        assert floors is not None
        yield from self._fire_to(floors.by_group[backend.key_group_first : backend.key_group_last + 1], emit)

    def _fire_to(self, to_ms: Ints, emit: Emit) -> Iterator[None]:
        """`to_ms`: event time by key group."""
        yield from self._remove_over()
        while (found := self._next_window(to_ms)) is not None:
            yield from self._fire_window(*found, emit)
            yield from self._remove_over()
        np.maximum(self._fired_ms, to_ms, out=self._fired_ms)
        yield from self._remove_over()

    def _next_window(self, to_ms: Ints) -> tuple[int, npt.NDArray[np.bool_]] | None:
        while (behind := self._fired_ms < to_ms).any():
            first_open = self.window.first_open_start(int(self._fired_ms[behind].min()))
            start = self.window.first_from(first_open)
            slices = [each for each in self.due.starts if each >= start]
            if not slices:
                return None
            start = max(start, min(slices) - self.window.size_ms + self.window.slide_ms)
            last_ms = self.window.last_ms(start)
            are_there = behind & (to_ms < last_ms)
            if not are_there.any():
                return start, behind & (self._fired_ms < last_ms)
            self._fired_ms[are_there] = to_ms[are_there]
        return None

    def _fire_window(self, start: int, groups: npt.NDArray[np.bool_], emit: Emit) -> Iterator[None]:
        if not self.due.has_row_ids:
            self._keys = self._new_keys()
        yield from self._add_up(start, None if groups.all() else groups)
        present = np.flatnonzero(self._sums["rows"]) if self._sums else _NONE
        for numbers, of_groups in self._parts_of(present, groups):
            if len(numbers):
                self._fire_numbers(numbers, start, emit)
            self._fired_ms[of_groups] = self.window.last_ms(start)
            yield

    def _add_up(self, start: int, groups: npt.NDArray[np.bool_] | None) -> Iterator[None]:
        """Adds small slices together, to save calls."""
        waiting: list[tuple[Ints, Ints]] = []
        entries = 0
        for slice_start in range(start, start + self.window.size_ms, self.window.slide_ms):
            for row_ids, numbers in self._entries(slice_start) if slice_start in self.due.starts else ():
                if groups is not None:
                    chosen = groups[self._keys.groups[numbers]]
                    row_ids, numbers = row_ids[chosen], numbers[chosen]
                waiting.append((row_ids, numbers))
                entries += len(numbers)
                # row ids of evictable entries are valid only now
                if entries >= firing.PART or not self.due.has_row_ids:
                    self._merge(waiting)
                    waiting, entries = [], 0
                    yield
        self._merge(waiting)

    def _merge(self, slices: list[tuple[Ints, Ints]]) -> None:
        self._grow_sums()
        columns = self.table.columns
        if len(slices) > 1:
            row_ids, numbers = (np.concatenate(each) for each in zip(*slices, strict=True))
            if merge_at_once(self.plan, self._sums, numbers, columns, row_ids):
                return
        for row_ids, numbers in slices:
            merge_columns(self.plan, self._sums, numbers, columns, row_ids, self._left_of_number)

    def _entries(self, slice_start: int) -> Iterator[tuple[Ints, Ints]]:
        if self.due.has_row_ids:
            row_ids = self.due.row_ids_of(slice_start)
            numbers = self._numbers.get(slice_start, _NONE)
            for first in range(len(numbers), len(row_ids), firing.FEW):
                fresh = self._numbers_of(row_ids[first : first + firing.FEW])
                self._keys.hold(fresh)
                numbers = self._numbers[slice_start] = np.concatenate((numbers, fresh))
            for first in range(0, len(row_ids), firing.FEW):
                yield row_ids[first : first + firing.FEW], numbers[first : first + firing.FEW]
            return
        seen = np.zeros(0, np.bool_)  # by number: evicted entries are yielded again
        for of_part in self.table.entries_of(slice_start):
            if not len(of_part):
                continue
            for row_ids in np.split(of_part, range(firing.FEW, len(of_part), firing.FEW)):
                numbers = self._numbers_of(row_ids)
                if len(seen) < self._keys.limit:
                    seen = np.concatenate((seen, np.zeros(self._keys.limit - len(seen), np.bool_)))
                unseen = ~seen[numbers]
                seen[numbers] = True
                yield row_ids[unseen], numbers[unseen]

    def _parts_of(self, numbers: Ints, groups: npt.NDArray[np.bool_]) -> Iterator[tuple[Ints, Ints]]:
        """Yields ordered parts of these keys, and the key groups complete after each."""
        its_groups = np.flatnonzero(groups)
        if groups.all() and len(numbers) <= firing.FEW:  # otherwise a barrier may come between key groups
            yield self._in_order(numbers), its_groups
            return
        of_number = self._keys.groups[numbers]
        numbers = numbers[stable_order(of_number)]
        ends = np.cumsum(np.bincount(of_number, minlength=len(groups)))[its_groups].tolist()
        first = first_group = 0
        for at, end in enumerate(ends):
            if end - first >= firing.PART or at + 1 == len(ends):
                yield self._in_order(numbers[first:end]), its_groups[first_group : at + 1]
                first, first_group = end, at + 1

    def _in_order(self, numbers: Ints) -> Ints:
        if not len(numbers):
            return numbers
        fields = self._keys.fields(numbers)
        if self._keys.are_ints:
            by_ints: Ints = numbers[order_of_ints(fields)]
            return by_ints
        by_keys: Ints = numbers[sort_rows([self.codec.column(i, values) for i, values in enumerate(fields)])]
        return by_keys

    def _fire_numbers(self, numbers: Ints, start: int, emit: Emit) -> None:
        sums = {name: column[numbers] for name, column in self._sums.items()}
        for name, (_, initial) in self.plan.storage().items():
            self._sums[name][numbers] = initial
        fields = [*self._keys.fields(numbers), np.full(len(numbers), start)]
        ends = np.full(len(numbers), start + self.window.size_ms)
        self.send(self.results(numbers, fields, ends, sums, of_id=self._left_of_number), ends - 2, emit)

    def _remove_over(self) -> Iterator[None]:
        before = self.window.first_open_start(int(self._fired_ms.min()))
        if not self.due.has_row_ids:
            for start in self.due.take_starts(before):
                for row_ids in self.table.entries_of(start):
                    for some in np.split(row_ids, range(firing.FEW, len(row_ids), firing.FEW)):
                        self.remove(some)
                        yield
                self.table.none_of(start)
            return
        for start in [each for each in self._numbers if each < before]:
            self._keys.release(self._numbers.pop(start))
        over = self.due.take(before)
        for some in () if over is None else np.split(over, range(firing.FEW, len(over), firing.FEW)):
            self.remove(some)
            yield

    def _new_keys(self) -> WindowKeys:
        return WindowKeys(len(self.operator.key_columns), partial(groups_of, self))

    def _numbers_of(self, row_ids: Ints) -> Ints:
        ints = self.table.int_keys_of(row_ids)
        if ints is not None:
            return self._keys.of_ints(ints[:-1])
        return self._keys.of_tuples([key[:-1] for key in self.table.keys_of(row_ids)])

    def _grow_sums(self) -> None:
        missing = self._keys.limit - (len(self._sums["rows"]) if self._sums else 0)
        if missing <= 0:
            return
        columns = self.table.columns
        for name, (_, initial) in self.plan.storage().items():
            more = np.full(missing, initial, columns[name].dtype)
            self._sums[name] = np.concatenate((self._sums[name], more)) if name in self._sums else more

    def _left_of_number(self, column: str, number: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self.plan.left(self.where, column, self._keys.key(number), aggregate)
