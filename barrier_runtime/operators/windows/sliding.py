"""Aggregates of sliding windows that keep one entry per *slice*, so that a row is added once and not once per window.

A slice is as long as the slide and begins where a window begins. An entry is (keys, start of the slice); the window of
that start is the last one that the slice belongs to. When a window is over, the slices in it are added up by key, the
oldest first, and what comes out is the window. So the result depends on the slices alone, not on what came out before:
nothing is ever subtracted, and sums of floats do not drift. A key without a row in any of the slices has no window.

    slice      while                             a row for it                       then
    open       none of its windows is over       counts in all of them              needed, when the first one is over
    needed     some of its windows are over,     counts in the others: what went    removed, when the last one is over,
               and have gone out                 out is not changed                 behind its results
    removed    all of its windows are over       is late                            —

A row that comes behind the watermark of its own batch counts in no window that is over by then: event time goes on to
there before such a row, wherever batches end.

Entries stay when a window goes out, so they do not say what has: `_fired_ms` does, for each key group, and is in
snapshots. A window goes out in parts; up to `FEW` keys are one part, in the order of keys, of more each part has whole
key groups. Each part and its mark are one step, so that a barrier comes before both or behind both, at any parallelism.

Where not all entries are in memory, the keys of one window are, while it goes out; its slices are read part by part.

Aggregates of which the parts of a window do not tell the whole, bit for bit in the order of rows (`first`, variances,
lists, sketches, users' own), have windows as entries, as `WindowAggregateOperator` keeps them; so does state that
began so, in an older release or as a table. State in slices that gets such an aggregate becomes windows at the restore.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.grouping import order_of_ints, stable_order
from barrier_runtime.data.keys import sort_rows
from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.aggregation.merging import merge_at_once, merge_columns
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.base import Capture, Emit, OperatorContext
from barrier_runtime.operators.keyed.progress import Floor, Progress
from barrier_runtime.operators.windows import firing
from barrier_runtime.operators.windows.aggregate import WindowAggregateOperator
from barrier_runtime.operators.windows.assigners import Sliding
from barrier_runtime.operators.windows.base import Ints
from barrier_runtime.operators.windows.by_start import ByStart
from barrier_runtime.operators.windows.window_keys import WindowKeys
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.key_groups import key_groups_of
from barrier_runtime.state.snapshots.snapshot import value_format
from barrier_runtime.state.versioned import VersionedDecoder

SLICES = "slices"  # name of the snapshot value; where there is none, entries are windows
_NONE: Ints = np.zeros(0, np.int64)
_ADDED_UP = frozenset(["count", "sum", "mean", "min", "max", "any", "all"])


class _Slices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`fired`: by key groups, event time up to which windows have gone out."""

    fired: tuple[Floor, ...]
    version: int = 1


_SLICES = VersionedDecoder(value_format("{}: its slices in its snapshot"), msgspec.msgpack.Decoder(_Slices))


def add_up(aggregates: Mapping[str, AnyAggregate]) -> bool:
    """Whether all of these are known of a window once they are known of each slice of it."""
    return all(isinstance(each, Aggregate) and each.kind in _ADDED_UP for each in aggregates.values())


class SlidingAggregateOperator(WindowAggregateOperator):
    """`Sliding` windows of event time, without early results and allowed lateness."""

    _window: Sliding

    # ---- what is stored

    def _restore_progress(self, context: OperatorContext) -> Progress:
        progress = super()._restore_progress(context)
        stored = [each.values[SLICES] for each in context.restored if SLICES in each.values]
        first, last = self.backend.key_group_first, self.backend.key_group_last
        fired_ms = np.full(context.max_parallelism, WATERMARK_MIN, np.int64)
        for data in stored:
            for floor in _SLICES.decode(data, f"operator {self.name!r}").fired:
                if not (context.reopened and floor.watermark_ms == WATERMARK_MAX):  # else see `restored_progress`
                    part = fired_ms[floor.first : floor.last + 1]
                    np.maximum(part, floor.watermark_ms, out=part)
        self._fired_ms: Ints = fired_ms[first : last + 1]
        were_slices, add_up_now = bool(stored), add_up(self._aggregates)
        self._in_slices = add_up_now and (were_slices if context.restored else not self.made_of_tables)
        self._become_windows = were_slices and not add_up_now
        self._keys = self._new_keys()
        self._numbers: dict[int, Ints] = {}  # by slice, of its first entries in the order of `_due`
        self._sums: dict[str, npt.NDArray[Any]] = {}  # accumulators by number; initial but while a window goes out
        return progress

    def snapshot(self, checkpoint: int) -> Capture:
        capture = super().snapshot(checkpoint)
        if self._in_slices:
            self._catch_up()
            first, fired_ms = self.backend.key_group_first, self._fired_ms
            begins = np.flatnonzero(np.diff(fired_ms, prepend=fired_ms[:1] ^ 1)).tolist()
            ends = [*begins[1:], len(fired_ms)]
            floors = [Floor(first + i, first + j - 1, int(fired_ms[i])) for i, j in zip(begins, ends, strict=True)]
            capture.values[SLICES] = msgspec.msgpack.encode(_Slices(tuple(floors)))
        return capture

    def bind(self, columns: pa.Schema) -> None:
        before = self._known_columns()
        super().bind(columns)
        if self._become_windows:
            self._make_windows(before)

    def _make_windows(self, before: frozenset[str]) -> None:
        """Entries are slices, and will be windows: each is added to those of its windows that have not gone out.
        `before`: columns that they have had."""
        self._become_windows = False
        table = self._table
        composites = tuple(each for each in self._plan.composites if before.issuperset(each.storage()))
        plan = dataclasses.replace(self._plan, composites=composites)
        row_ids = table.load_all()
        keys = table.keys_of(row_ids)
        slices = np.array([key[-1] for key in keys], np.int64)
        columns = {name: column[row_ids] for name, column in table.columns.items()}
        fired_ms = self._fired_ms[self._groups_of(list(zip(*keys, strict=True))[:-1])] if keys else _NONE
        table.remove(row_ids)
        self._due = ByStart()
        in_order = np.argsort(slices, kind="stable")
        for back_ms in range(0, self._window.size_ms, self._window.slide_ms):
            its = in_order[slices[in_order] - back_ms + self._window.size_ms - 1 > fired_ms[in_order]]
            for start in distinct_ints(slices[its]).tolist():
                of_slice = its[slices[its] == start]
                for some in np.split(of_slice, range(firing.FEW, len(of_slice), firing.FEW)):
                    into = table.row_ids([(*keys[at][:-1], start - back_ms) for at in some.tolist()])
                    self._note(self._due, table.made)
                    merge_columns(plan, table.columns, into, columns, some, self._left)
                    table.mark_dirty(into)
        if not table.is_whole:
            self._due.forget_row_ids()

    # ---- rows

    @property
    def _per_row(self) -> int:
        return 1 if self._in_slices else super()._per_row

    def _process(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        """There may be windows to emit before a row, see above: then it gives the number of the row and event time at
        it, and does nothing."""
        if not self._in_slices:
            return super()._process(batch, emit)
        times_ms = self._times_of(batch)
        if times_ms is None:
            return None
        self._catch_up()
        slices = self._window.slices(times_ms)
        watermarks = self._row_watermarks(batch)
        if watermarks is None:
            first_open: int | Ints = self._window.first_open_start(self._watermark_ms)
            if int(self._window.slices(np.array([self._lowest_ms]))[0]) >= first_open:
                self._add(batch.rows, slices, batch, None, emit)
                return None
        else:
            first_open = self._window.first_open_starts(watermarks)
        cut = self._first_over(batch, slices)
        if cut is None:
            rows, slices, kept = self._without_late(batch, None, slices, slices < first_open, emit)
            self._add(rows, slices, batch, kept, emit)
        return cut

    def _first_over(self, batch: Batch, slices: Ints) -> tuple[int, int] | None:
        """The first row that is not late, but comes behind the end of a window of it which has not gone out."""
        reached = batch.reached
        if reached is None or reached[-1] <= self._watermark_ms:
            return None
        reached = np.maximum(reached, self._watermark_ms)
        first_open = self._window.first_open_starts(reached)
        waiting = self._window.first_from(int(self._window.first_open_starts(np.array([self._watermark_ms]))[0]))
        firsts = slices - (self._window.size_ms - self._window.slide_ms)
        over = (np.maximum(firsts, waiting) < first_open) & (slices >= first_open)
        row = int(np.argmax(over))
        return (row, int(reached[row])) if over[row] else None

    def _row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints:
        row_ids = super()._row_ids(rows, starts)
        if self._numbers and not self._due.has_row_ids:  # since this call
            self._keys, self._numbers = self._new_keys(), {}
        return row_ids

    def _catch_up(self) -> None:
        """Before the first row event time goes on without anything that could go out."""
        if self._going_to_ms is None:
            np.maximum(self._fired_ms, self._watermark_ms, out=self._fired_ms)

    # ---- windows that are over

    def _reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if not self._in_slices:
            yield from super()._reach(watermark_ms, emit)
            return
        self._watermark_ms = watermark_ms
        yield from self._fire_to(np.full_like(self._fired_ms, watermark_ms), emit)

    def _reach_floors(self, emit: Emit) -> Iterator[None]:
        if not self._in_slices:
            yield from super()._reach_floors(emit)
            return
        assert self._floors is not None
        first, last = self.backend.key_group_first, self.backend.key_group_last
        yield from self._fire_to(self._floors.by_group[first : last + 1], emit)

    def _fire_to(self, to_ms: Ints, emit: Emit) -> Iterator[None]:
        """Windows that are over by then, by key group, and have not gone out."""
        yield from self._remove_over()  # of a restore: what had not been removed yet
        while (found := self._next_window(to_ms)) is not None:
            yield from self._fire_window(*found, emit)
            yield from self._remove_over()
        np.maximum(self._fired_ms, to_ms, out=self._fired_ms)
        yield from self._remove_over()

    def _next_window(self, to_ms: Ints) -> tuple[int, npt.NDArray[np.bool_]] | None:
        """The start of the next window to go out, and for which key groups."""
        while (behind := self._fired_ms < to_ms).any():
            first_open = self._window.first_open_start(int(self._fired_ms[behind].min()))
            start = self._window.first_from(first_open)
            slices = [each for each in self._due.starts if each >= start]
            if not slices:
                return None
            start = max(start, min(slices) - self._window.size_ms + self._window.slide_ms)
            last_ms = self._window.last_ms(start)
            are_there = behind & (to_ms < last_ms)
            if not are_there.any():
                return start, behind & (self._fired_ms < last_ms)
            self._fired_ms[are_there] = to_ms[are_there]
        return None

    def _fire_window(self, start: int, groups: npt.NDArray[np.bool_], emit: Emit) -> Iterator[None]:
        """`groups`: key groups, for which it goes out."""
        if not self._due.has_row_ids:
            self._keys = self._new_keys()
        yield from self._add_up(start, None if groups.all() else groups)
        present = np.flatnonzero(self._sums["rows"]) if self._sums else _NONE
        for numbers, of_groups in self._parts_of(present, groups):
            if len(numbers):
                self._fire_numbers(numbers, start, emit)
            self._fired_ms[of_groups] = self._window.last_ms(start)
            yield

    def _add_up(self, start: int, groups: npt.NDArray[np.bool_] | None) -> Iterator[None]:
        """Into `_sums`, what the slices of a window have; small ones together, as most of what they take is calls."""
        waiting: list[tuple[Ints, Ints]] = []
        entries = 0
        for slice_start in range(start, start + self._window.size_ms, self._window.slide_ms):
            for row_ids, numbers in self._entries(slice_start) if slice_start in self._due.starts else ():
                if groups is not None:
                    chosen = groups[self._keys.groups[numbers]]
                    row_ids, numbers = row_ids[chosen], numbers[chosen]
                waiting.append((row_ids, numbers))
                entries += len(numbers)
                if entries >= firing.PART or not self._due.has_row_ids:  # else row ids are good for now alone
                    self._merge(waiting)
                    waiting, entries = [], 0
                    yield
        self._merge(waiting)

    def _merge(self, slices: list[tuple[Ints, Ints]]) -> None:
        """Row ids and numbers of entries of some slices, the oldest first."""
        self._grow_sums()
        columns = self._table.columns
        if len(slices) > 1:
            row_ids, numbers = (np.concatenate(each) for each in zip(*slices, strict=True))
            if merge_at_once(self._plan, self._sums, numbers, columns, row_ids):
                return
        for row_ids, numbers in slices:
            merge_columns(self._plan, self._sums, numbers, columns, row_ids, self._left_of_number)

    def _entries(self, slice_start: int) -> Iterator[tuple[Ints, Ints]]:
        """Row ids and numbers of the entries of a slice, each once, in parts."""
        if self._due.has_row_ids:
            row_ids = self._due.row_ids_of(slice_start)
            numbers = self._numbers.get(slice_start, _NONE)
            for first in range(len(numbers), len(row_ids), firing.FEW):
                fresh = self._numbers_of(row_ids[first : first + firing.FEW])
                self._keys.hold(fresh)
                numbers = self._numbers[slice_start] = np.concatenate((numbers, fresh))
            for first in range(0, len(row_ids), firing.FEW):
                yield row_ids[first : first + firing.FEW], numbers[first : first + firing.FEW]
            return
        seen = np.zeros(0, np.bool_)  # by number: an entry that leaves memory meanwhile is given again
        for of_part in self._table.entries_of(slice_start):
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
        """Parts of these keys, in order, and the key groups that are done with them."""
        its_groups = np.flatnonzero(groups)
        if groups.all() and len(numbers) <= firing.FEW:  # else some of it may have gone out before a restore, by groups
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
        for name, (_, initial) in self._plan.storage().items():
            self._sums[name][numbers] = initial
        fields = [*self._keys.fields(numbers), np.full(len(numbers), start)]
        ends = np.full(len(numbers), start + self._window.size_ms)
        self._send(self._results(numbers, fields, ends, sums, of_id=self._left_of_number), ends - 2, emit)

    def _remove_over(self) -> Iterator[None]:
        """Slices of which the last window has gone out, for all key groups."""
        before = self._window.first_open_start(int(self._fired_ms.min()))
        if not self._due.has_row_ids:
            for start in self._due.take_starts(before):
                for row_ids in self._table.entries_of(start):
                    for some in np.split(row_ids, range(firing.FEW, len(row_ids), firing.FEW)):
                        self._remove(some)
                        yield
                self._table.none_of(start)
            return
        for start in [each for each in self._numbers if each < before]:
            self._keys.release(self._numbers.pop(start))
        over = self._due.take(before)
        for some in () if over is None else np.split(over, range(firing.FEW, len(over), firing.FEW)):
            self._remove(some)
            yield

    # ---- keys by number

    def _new_keys(self) -> WindowKeys:
        return WindowKeys(len(self._key_columns), self._groups_of)

    def _groups_of(self, fields: Sequence[Any]) -> Ints:
        """The key group of each of these keys, counted from the first one of this subtask on."""
        columns = [self.codec.column(i, values) for i, values in enumerate(fields)]
        return key_groups_of(columns, self.context.max_parallelism).astype(np.int64) - self.backend.key_group_first

    def _numbers_of(self, row_ids: Ints) -> Ints:
        ints = self._table.int_keys_of(row_ids)
        if ints is not None:
            return self._keys.of_ints(ints[:-1])
        return self._keys.of_tuples([key[:-1] for key in self._table.keys_of(row_ids)])

    def _grow_sums(self) -> None:
        missing = self._keys.limit - (len(self._sums["rows"]) if self._sums else 0)
        if missing <= 0:
            return
        columns = self._table.columns
        for name, (_, initial) in self._plan.storage().items():
            more = np.full(missing, initial, columns[name].dtype)
            self._sums[name] = np.concatenate((self._sums[name], more)) if name in self._sums else more

    def _left_of_number(self, column: str, number: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self._plan.left(self.where, column, self._keys.key(number), aggregate)
