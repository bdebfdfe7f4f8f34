"""Interval join: rows of a key match if the right time is within bounds around the left time.

A pair is emitted when the second row arrives, an unmatched row when the watermark rules out further partners. The
window join is an interval join of window starts, which have to be equal. Design: docs/design/joins-and-lookups.md.
"""

import datetime
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.joins.base import Bools, Ints, JoinColumns, JoinOperator, Side, inner_name
from barrier_runtime.operators.joins.join_buffer import rows_at_once
from barrier_runtime.operators.joins.stored_runs import RowRun, pairs
from barrier_runtime.operators.windows.assigners import KnownWindows, WindowAssigner
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints

JoinKind: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
JOIN_KINDS = ("inner", "left", "right", "full", "semi", "anti")
_MS = datetime.timedelta(milliseconds=1)
_LEFT = 0


class MatchingJoin(JoinOperator):
    """`_lower`, `_upper`: bounds of right time less left time, both included."""

    _lower = 0
    _upper = 0

    def __init__(
        self, kind: str, name: str, how: JoinKind, left: Side, right: Side, columns: JoinColumns, definition: str,
        late: bool,
    ) -> None:  # fmt: skip
        super().__init__(kind, name, left, right, columns, definition, late)
        self._one_sided = how in ("semi", "anti")
        self._semi = how == "semi"
        self._misses = (how in ("left", "full", "anti"), how in ("right", "full"))

    def _keeps_unmatched(self, port: int) -> bool:
        return self._misses[port]

    def _match(self, rows: pa.RecordBatch, times: Ints, port: int, emit: Emit) -> None:
        null, whole, times = self._with_keys(rows, times, port)
        if null is not None and self._misses[port]:
            self._send(self._output(null, port), emit)
        if whole is None:
            return
        run = self._run(whole, times, port)
        if port == _LEFT:
            lowest, highest = run.times + self._lower, run.times + self._upper
        else:
            lowest, highest = run.times - self._upper, run.times - self._lower
        least, most = int(lowest.min()), int(highest.max())
        met = _Pairs(run)
        for other in self._buffers[1 - port].runs:
            if other.last < least or other.first > most:
                continue
            starts, ends = other.ranges(run.keys, lowest, highest)
            if not self._one_sided:
                self._pairs(met, other, starts, ends, port, emit)
            elif port == _LEFT:
                run.matched[run.at[ends > starts]] = True
            else:
                self._meet(other, starts, ends, emit)
        self._send_pairs(met, port, emit)
        for buffer in self._buffers:
            buffer.sweep()
        self._hold(run, port, emit)

    def _pairs(self, met: "_Pairs", other: RowRun, starts: Ints, ends: Ints, port: int, emit: Emit) -> None:
        run, most = met.run, rows_at_once(met.run.row_bytes, other.row_bytes)
        for own, its in pairs(starts, ends, most):
            if met.rows + len(own) > most:
                self._send_pairs(met, port, emit)
            met.add(own, other, its)
            if self._misses[port]:
                run.matched[run.at[own]] = True
            if self._misses[1 - port]:
                other.matched[other.at[its]] = True

    def _send_pairs(self, met: "_Pairs", port: int, emit: Emit) -> None:
        if met.rows:
            taken = met.take(in_order=self._by_row)
            left, right = taken if port == _LEFT else taken[::-1]
            self._send(self._columns.rows(left, right), emit)

    def _meet(self, left: RowRun, starts: Ints, ends: Ints, emit: Emit) -> None:
        for _, positions in pairs(starts, ends, rows_at_once(left.row_bytes)):
            found = distinct_ints(left.living(positions))
            if len(found):
                self._buffers[_LEFT].kill(left, found)
                if self._semi:
                    self._send(self._columns.rows(left.take(found), None), emit)

    def _hold(self, run: RowRun, port: int, emit: Emit) -> None:
        if self._one_sided and port == _LEFT and run.matched.any():
            found = np.flatnonzero(run.matched[run.at])
            if self._by_row:
                found = found[np.argsort(run.at[found])]
            if self._semi:
                self._send(self._columns.rows(run.take(found), None), emit)
            run.matched[:] = False
            self._buffers[_LEFT].kill(run, found)
        self._add(run, port)
        self._buffers[port].sweep()

    def advance(self, emit: Emit) -> None:
        for port, before in enumerate(self._done_before(self._watermark_ms)):
            buffer = self._buffers[port]
            if not self._misses[port]:
                buffer.drop_passed(before)
                continue
            removed = buffer.remove_passed(before)
            if removed is not None:
                rows, _, _, matched = removed
                if matched.any():
                    rows = rows.filter(pa.array(~matched))
                if len(rows):
                    self._send(self._output(rows, port), emit)

    def _done_before(self, watermark_ms: int) -> tuple[int, int]:
        """Returns per side the time before which rows can have no further partner."""
        raise NotImplementedError

    def _output(self, rows: pa.RecordBatch, port: int) -> pa.RecordBatch:
        return self._columns.rows(rows, None) if port == _LEFT else self._columns.rows(None, rows)


class _Pairs:
    """Pairs of rows of `run` with rows of the other side's runs.
    Pairs are collected over runs.
    """

    def __init__(self, run: RowRun) -> None:
        self.run = run
        self.rows = 0
        self._own: list[Ints] = []
        self._others: list[tuple[RowRun, Ints]] = []

    def add(self, own: Ints, other: RowRun, its: Ints) -> None:
        self.rows += len(own)
        self._own.append(own)
        self._others.append((other, its))

    def take(self, in_order: bool) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Returns the paired rows and empties the collection.
        `in_order`: by arrival of the rows of `run`, then by the other row's time, independent of runs.
        """
        taken = [other.take(its) for other, its in self._others]
        others = taken[0] if len(taken) == 1 else pa.concat_batches(taken)
        own = self._own[0] if len(self._own) == 1 else np.concatenate(self._own)
        if in_order and len(own) > 1:
            times = np.concatenate([other.times[its] for other, its in self._others])
            order = np.lexsort((times, self.run.at[own]))
            own, others = own[order], others.take(pa.array(order))
        self.rows, self._own, self._others = 0, [], []
        return self.run.take(own), others


class IntervalJoinOperator(MatchingJoin):
    def __init__(
        self,
        name: str,
        left: Side,
        right: Side,
        between: tuple[datetime.timedelta, datetime.timedelta],
        how: JoinKind = "inner",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> None:
        columns = JoinColumns(left, right, suffix, f"join {name!r}", how not in ("semi", "anti"))
        definition = interval_definition(left, right, between, how)
        super().__init__("join", name, how, left, right, columns, definition, late)
        self._lower, self._upper = self._clock.ceil(between[0]), self._clock.floor(between[1])
        self.output_delay_ms = output_delay_ms(between)

    def take(self, batch: Batch, emit: Emit, port: int) -> None:
        taken = self._in_time(batch, port, emit)
        if taken is not None:
            self._match(*taken, port, emit)

    def _done_before(self, watermark_ms: int) -> tuple[int, int]:
        first = self._clock.first_after(watermark_ms)
        if first == WATERMARK_MAX:
            return first, first
        return max(WATERMARK_MIN, first - self._upper), max(WATERMARK_MIN, first + self._lower)


def interval_definition(
    left: Side, right: Side, between: tuple[datetime.timedelta, datetime.timedelta], how: JoinKind
) -> str:
    return f"{how} join, {right.event_time} - {left.event_time} from {_signed(between[0])} to {_signed(between[1])}"


def _signed(span: datetime.timedelta) -> str:
    return f"-{-span}" if span < datetime.timedelta() else str(span)


def output_delay_ms(between: tuple[datetime.timedelta, datetime.timedelta]) -> int:
    """Returns how far event times of results may be behind the watermark."""
    longest = max(datetime.timedelta(), between[1], -between[0])
    return -(-longest // _MS)


_TIME = pa.timestamp("ms", "UTC")
ADDED = (pa.field("window_start", _TIME), pa.field("window_end", _TIME))
_NAMES = tuple(map(inner_name, ADDED))


def window_columns(left: Side, right: Side, how: JoinKind, suffix: tuple[str, str], where: str) -> JoinColumns:
    return JoinColumns(left, right, suffix, where, how not in ("semi", "anti"), ADDED)


def window_definition(left: Side, right: Side, window: WindowAssigner, how: JoinKind) -> str:
    return f"{how} join, {left.event_time} and {right.event_time} in {window.definition}"


class WindowJoinOperator(MatchingJoin):
    def __init__(
        self,
        name: str,
        left: Side,
        right: Side,
        window: KnownWindows,
        how: JoinKind = "inner",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> None:
        where = f"window_join {name!r}"
        columns = window_columns(left, right, how, suffix, where)
        definition = window_definition(left, right, window, how)
        super().__init__("window_join", name, how, left, right, columns, definition, late)
        self._window = window
        self.output_delay_ms = window.longest_ms - 1

    def take(self, batch: Batch, emit: Emit, port: int) -> None:
        batch = self._without_tombstones(batch, port)
        rows, times_ms = self._rows_of(batch, port)
        if not len(rows):
            return
        lowest, highest = int(times_ms.min()), int(times_ms.max())
        if not self._window.holds(lowest, highest):
            raise InvalidJob(
                f"{self.where}: the event times {lowest} to {highest} ms are in windows beyond 64 bits of "
                "milliseconds: filter or correct such rows before"
            )
        assigned, starts = self._window.assign(times_ms)
        of_row = np.arange(len(rows)) if assigned is None else assigned
        watermarks = self._watermarks(batch, port)
        open_ = starts >= self._window.first_open_starts(watermarks)[of_row]
        if not open_.all():
            of_row, starts = of_row[open_], starts[open_]
            late: Bools = np.ones(len(rows), np.bool_)
            late[of_row] = False
            if late.any():
                self._give_late(batch, late, port, emit)
        if len(of_row):
            if assigned is not None or len(of_row) < len(rows):
                rows = rows.take(pa.array(of_row))
            self._match(self._with_windows(rows, starts), starts, port, emit)

    def _with_windows(self, rows: pa.RecordBatch, starts: Ints) -> pa.RecordBatch:
        ends = self._window.ends(starts)
        bounds = [pa.array(starts).view(_TIME), pa.array(ends).view(_TIME)]
        return pa.RecordBatch.from_arrays([*bounds, *rows.columns], names=[*_NAMES, *rows.schema.names])

    def _without_added(self, schema: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in schema if field.name not in _NAMES])

    def _times_of(self, rows: pa.RecordBatch, side: int) -> Ints:
        starts: Ints = rows.column(_NAMES[0]).view(pa.int64()).to_numpy(zero_copy_only=False)
        return starts

    def _done_before(self, watermark_ms: int) -> tuple[int, int]:
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX, WATERMARK_MAX
        before = self._window.first_open_start(watermark_ms)
        return before, before
