"""Joins with a changing table: the right stream holds upserts and deletes by key of the table.

The *versioned* join sees the table as of the row's event time: an as-of join in which a version may delete the key.

The *newest* join sees the table as of the row's arrival: a left row is emitted at once. A change kills the held row of
the key, and is held unless the change is a delete. A replay may give other rows.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.joins.as_of import AsOfJoinOperator, AsOfKind, with_versions
from barrier_runtime.operators.joins.base import Bools, Ints, JoinColumns, JoinOperator, Side
from barrier_runtime.operators.joins.join_buffer import rows_at_once
from barrier_runtime.operators.joins.stored_runs import RowRun, pairs

_LEFT, _RIGHT = 0, 1


class VersionedTableJoinOperator(AsOfJoinOperator):
    """`deleted`: column that is true in deletes; None: no deletes.
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
    """The sides have no event time."""

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
