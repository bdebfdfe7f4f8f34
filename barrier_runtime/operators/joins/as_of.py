"""As-of joins: to each left row the newest right row (*version*) of the key that is not newer.

A left row waits until the watermark has passed the row's time. The watermark removes versions that no later row needs:
all passed versions of a key but the newest, and those beyond the tolerance.
"""

import datetime
from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.joins.base import Bools, Ints, JoinColumns, JoinOperator, Side
from barrier_runtime.operators.joins.join_buffer import JoinBuffer, rows_at_once
from barrier_runtime.operators.joins.stored_runs import RowRun, pairs
from barrier_runtime.state.keys.distinct_ints import distinct_ints

AsOfKind: TypeAlias = Literal["left", "inner"]
AS_OF_KINDS = ("left", "inner")
_LEFT, _RIGHT = 0, 1
_SUPERSEDED = 1
_PAIRS = 262_144


class AsOfJoinOperator(JoinOperator):
    def __init__(
        self,
        name: str,
        left: Side,
        right: Side,
        tolerance: datetime.timedelta | None = None,
        exact: bool = True,
        how: AsOfKind = "left",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> None:
        columns = JoinColumns(left, right, suffix, f"asof_join {name!r}")
        definition = as_of_definition(left, right, tolerance, exact, how)
        self._make("asof_join", name, (left, right), columns, definition, tolerance, exact, how == "left", late)

    def _make(
        self, kind: str, name: str, sides: tuple[Side, Side], columns: JoinColumns, definition: str,
        tolerance: datetime.timedelta | None, exact: bool, outer: bool, late: bool,
    ) -> None:  # fmt: skip
        super().__init__(kind, name, *sides, columns, definition, late)
        self._tolerance = None if tolerance is None else self._clock.floor(tolerance)
        self._exact = exact
        self._outer = outer

    def take(self, batch: Batch, emit: Emit, port: int) -> None:
        taken = self._in_time(batch, port, emit)
        if taken is None:
            return
        null, rows, times = self._with_keys(*taken, port)
        if null is not None and port == _LEFT and self._outer:
            self._send(self._columns.rows(null, None), emit)
        if rows is not None:
            self._add(self._run(rows, times, port), port)

    def _keeps_unmatched(self, port: int) -> bool:
        return port == _LEFT and self._outer

    def advance(self, emit: Emit) -> None:
        before = self._clock.first_after(self._watermark_ms)
        waiting, versions = self._buffers
        due = waiting.remove_passed(before)
        if due is not None:
            rows, keys, times, _ = due
            step = rows_at_once(versions.row_bytes, rows.nbytes / len(rows))
            for first in range(0, len(rows), step):
                part = slice(first, first + step)
                self._give(rows.slice(first, step), keys[part], times[part], emit)
        if before == WATERMARK_MAX:
            versions.drop_passed(before)
            return
        self._superseded(_remove_superseded(versions, before))
        if self._tolerance is not None:
            versions.drop_passed(max(WATERMARK_MIN, before - self._tolerance))

    def _give(self, rows: pa.RecordBatch, keys: Ints, times: Ints, emit: Emit) -> None:
        order = np.argsort(keys, kind="stable")
        of_run, position = self._found(keys[order], times[order])
        places = np.empty_like(order)
        places[order] = np.arange(len(order))
        runs = self._buffers[_RIGHT].runs
        joined, _ = with_versions(self._columns, rows, runs, of_run[places], position[places], self._outer)
        if joined is not None:
            self._send(joined, emit)

    def _superseded(self, newest: Sequence[tuple[RowRun, Ints]]) -> None:
        """Called with the newest versions (run, positions) of keys with passed older versions."""

    def _found(self, keys: Ints, times: Ints) -> tuple[Ints, Ints]:
        highest = times if self._exact else times - 1
        lowest = np.full(len(times), WATERMARK_MIN) if self._tolerance is None else times - self._tolerance
        of_run, position = np.full(len(keys), -1), np.zeros(len(keys), np.int64)
        newest = np.full(len(keys), WATERMARK_MIN)
        for number, run in enumerate(self._buffers[_RIGHT].runs):
            starts, ends = run.ranges(keys, lowest, highest)
            last = ends - 1
            found = np.flatnonzero(ends > starts)
            found = found[run.times[last[found]] >= newest[found]]  # of equal times the last arrival
            of_run[found], position[found], newest[found] = number, last[found], run.times[last[found]]
        return of_run, position


def with_versions(
    columns: JoinColumns, rows: pa.RecordBatch, runs: Sequence[RowRun], of_run: Ints, position: Ints, outer: bool
) -> tuple[pa.RecordBatch | None, Bools]:
    """Returns the rows in order, each with a version, and which rows are kept.
    The version is the row at `position` of the run with number `of_run` (-1: no version). Without `outer` only rows
    with a version are kept."""
    found = of_run >= 0
    kept = np.ones(len(rows), np.bool_) if outer else found
    if not found.any():
        return (columns.rows(rows, None) if outer else None), kept
    taken, rank, first = [], np.full(len(rows), -1), 0
    for number, run in enumerate(runs):
        mine = np.flatnonzero(of_run == number)
        if len(mine):
            taken.append(run.take(position[mine]))
            rank[mine] = np.arange(first, first + len(mine))
            first += len(mine)
    if not kept.all():
        rows, rank, found = rows.filter(pa.array(kept)), rank[kept], found[kept]
    versions = pa.concat_batches(taken).take(pa.array(rank, mask=~found))
    return columns.rows(rows, versions), kept


def _remove_superseded(versions: JoinBuffer, before: int) -> list[tuple[RowRun, Ints]]:
    """Removes all but the newest of each key's versions before time `before`.
    Returns the newest versions of keys with versions that passed since the last call."""
    passed = [distinct_ints(run.keys[positions]) for run, positions in versions.passed(before, _SUPERSEDED)]
    if not passed:
        return []
    keys = distinct_ints(np.concatenate(passed))
    lowest, highest = np.full(len(keys), WATERMARK_MIN), np.full(len(keys), before - 1)
    newest, newest_run = np.full(len(keys), WATERMARK_MIN), np.full(len(keys), -1)
    found: list[tuple[int, RowRun, Ints, Ints]] = []
    for number, run in enumerate(versions.runs):
        starts, ends = run.ranges(keys, lowest, highest)
        there = ends > starts
        last = np.where(there, ends - 1, 0)
        newer = there & (run.times[last] >= newest)
        newest[newer], newest_run[newer] = run.times[last[newer]], number
        found.append((number, run, starts, ends))
    for number, run, starts, ends in found:
        kept = ends - (newest_run == number)  # the last position is the newest
        for _, positions in pairs(starts, kept, _PAIRS):
            versions.kill(run, run.living(positions))
    return [(run, ends[newest_run == number] - 1) for number, run, _, ends in found]


def as_of_definition(left: Side, right: Side, tolerance: datetime.timedelta | None, exact: bool, how: AsOfKind) -> str:
    bound = "" if tolerance is None else f", within {tolerance}"
    kind = "at or before" if exact else "before"
    return f"{how} as-of join, {right.event_time} {kind} {left.event_time}{bound}"


class VersionedTableJoinOperator(AsOfJoinOperator):
    """The right stream is a changing table, seen as of the row's event time: a version may delete the key.

    `deleted`: column that is true in deletes; None: no deletes.
    Deletes passed by the watermark are not held.
    """

    def __init__(
        self,
        name: str,
        left: Side,
        right: Side,
        deleted: str | None = None,
        how: AsOfKind = "left",
        suffix: tuple[str, str] = ("", "_right"),
        late: bool = False,
    ) -> None:
        columns = table_columns(left, right, deleted, suffix, f"table_join {name!r}")
        definition = table_definition(left, right, deleted, how)
        self._deleted = deleted
        self._make("table_join", name, (left, right), columns, definition, None, True, how == "left", late)

    def _found(self, keys: Ints, times: Ints) -> tuple[Ints, Ints]:
        """Excludes deletes, and dead versions older than a delete that is no longer held."""
        of_run, position = super()._found(keys, times)
        for number, run in enumerate(self._buffers[_RIGHT].runs):
            mine = np.flatnonzero(of_run == number)
            if len(mine):
                at = run.at[position[mine]]
                gone = ~run.alive[at] | _removes(run.rows, at, self._deleted)
                of_run[mine[gone]] = -1
        return of_run, position

    def _superseded(self, newest: Sequence[tuple[RowRun, Ints]]) -> None:
        if self._deleted is None:
            return
        for run, positions in newest:
            over = positions[_removes(run.rows, run.at[positions], self._deleted)]
            if len(over):
                self._buffers[_RIGHT].kill(run, run.living(over))


class NewestTableJoinOperator(JoinOperator):
    """The right stream is a changing table, seen as of the row's arrival: a left row is emitted at once.

    The sides have no event time. A change kills the held row of the key, and is held unless the change is a delete. A
    replay may give other rows.
    """

    def __init__(
        self,
        name: str,
        left: Side,
        right: Side,
        deleted: str | None = None,
        how: AsOfKind = "left",
        suffix: tuple[str, str] = ("", "_right"),
    ) -> None:
        columns = table_columns(left, right, deleted, suffix, f"table_join {name!r}")
        definition = table_definition(left, right, deleted, how)
        super().__init__("table_join", name, left, right, columns, definition, False)
        self._deleted = deleted
        self._outer = how == "left"

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = self._columns_of(batch, port)
        if not len(rows):
            return
        if port == _RIGHT:
            _, whole, _ = self._with_keys(rows, np.zeros(len(rows), np.int64), port)
            if whole is not None:
                self._apply(whole)
            return
        step = rows_at_once(rows.nbytes / len(rows), self._buffers[_RIGHT].row_bytes)
        for first in range(0, len(rows), step):
            self._look_up(batch, rows.slice(first, step), first, emit)

    def _apply(self, changes: pa.RecordBatch) -> None:
        table = self._buffers[_RIGHT]
        run = self._run(changes, np.zeros(len(changes), np.int64), _RIGHT)
        last = np.ones(len(run), np.bool_)
        last[:-1] = run.keys[1:] != run.keys[:-1]  # rows of the same key are in order of arrival
        keys = run.keys[last]
        for held in table.runs:
            for _, positions in pairs(*_of_keys(held, keys), most=rows_at_once()):
                living = held.living(positions)
                if len(living):
                    table.kill(held, living)
        removed = ~last | _removes(changes, run.at, self._deleted)
        table.kill(run, np.flatnonzero(removed))  # before `_add`, which may merge the run
        self._add(run, _RIGHT)
        table.sweep()

    def _look_up(self, batch: Batch, rows: pa.RecordBatch, first: int, emit: Emit) -> None:
        runs = self._buffers[_RIGHT].runs
        of_run, position = np.full(len(rows), -1), np.zeros(len(rows), np.int64)
        _, whole, at = self._with_keys(rows, np.arange(len(rows)), _LEFT)
        if whole is not None and runs:
            codec = self._codecs[_LEFT]
            numbers = self._numbers.hold(codec, codec.arrays(whole))
            for number, run in enumerate(runs):
                for row, places in pairs(*_of_keys(run, numbers), most=rows_at_once()):
                    alive = run.alive[run.at[places]]
                    of_run[at[row[alive]]], position[at[row[alive]]] = number, places[alive]
            self._numbers.release(numbers)
        joined, kept = with_versions(self._columns, rows, runs, of_run, position, self._outer)
        if joined is not None:
            reached = None if batch.reached is None else batch.reached[first : first + len(rows)][kept]
            emit(Batch(joined, batch.emit_ns, reached))

    def advance(self, emit: Emit) -> None:
        """Does nothing: event time plays no part."""

    def _times_of(self, rows: pa.RecordBatch, side: int) -> Ints:
        return np.zeros(len(rows), np.int64)


def _of_keys(run: RowRun, keys: Ints) -> tuple[Ints, Ints]:
    never = np.zeros(len(keys), np.int64)
    return run.ranges(keys, never, never)


def _removes(rows: pa.RecordBatch, at: Ints, deleted: str | None) -> Bools:
    if deleted is None:
        return np.zeros(len(at), np.bool_)
    flags: Bools = pc.fill_null(rows.column(deleted).take(pa.array(at)), False).to_numpy(zero_copy_only=False)
    return flags


def table_columns(left: Side, right: Side, deleted: str | None, suffix: tuple[str, str], where: str) -> JoinColumns:
    """Leaves out `deleted`."""
    shown = pa.schema([field for field in right.schema if field.name != deleted])
    return JoinColumns(left, Side(right.keys, right.event_time, shown), suffix, where)


def table_definition(left: Side, right: Side, deleted: str | None, how: AsOfKind) -> str:
    when = f"{right.event_time} at or before {left.event_time}" if right.event_time else "the newest row"
    return f"{how} table join, {when}" + (f", deleted by {deleted}" if deleted is not None else "")
