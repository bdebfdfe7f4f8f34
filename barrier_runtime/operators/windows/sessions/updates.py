"""Sessions with several results: before they are over (`Every`), and for late rows (allowed lateness).

A session that is over is emitted and, for the allowed lateness, *kept*. A late row that extends the session beyond the
watermark opens the session again.

Readers of results identify a session by key and start. If a row gives a session an earlier start, or joins two
sessions, a result *retracts* results under a start that no longer exists, before all other results of the row. Results
under the new start begin with update 0.

A row that emits or retracts a result is *taken exactly*, together with adjacent rows of other keys: event time first
advances to the time reached at the row, and results are emitted in the order of rows. All other rows are added many at
a time.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.operators.aggregation.batch_values import RunningOrder
from barrier_runtime.operators.aggregation.partials import refuse_partial_rows
from barrier_runtime.operators.aggregation.state_columns import ROWS
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.entries import Ints
from barrier_runtime.operators.windows.firing import FIRINGS, ByStart, told_of_windows
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.rules.early import Changed, WallTurns, first_multiple
from barrier_runtime.operators.windows.sessions.aggregate import LAST, Sessions
from barrier_runtime.operators.windows.sessions.assignment import LATE, AssignedSessions, assign_sessions, runs_of
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.keys.distinct_ints import distinct_ints

_TOLD = "told"  # number of rows in the last result
_TOLD_LAST = "told_last"  # time of the last row in the last result, ms
_OVER = "over"  # 1: emitted when over, without rows since

_FEW = 256  # rows examined together after a row that was taken exactly
_STEPS = 16  # of ends per gap


class ToldSessions(Sessions):
    def __init__(self, operator: WindowOperator) -> None:
        trigger = operator.trigger
        super().__init__(operator, told_of_windows(updates=True, early=trigger is not None, retracted=True))
        self._rows = None if trigger is None else trigger.rows
        self._interval_ms = None if trigger is None else trigger.interval_ms
        self._by_event_time = trigger is not None and trigger.by_event_time
        self._step_ms = max(1, self._gap_ms // _STEPS)
        self._changed = Changed()
        self._turns: WallTurns | None = None
        if trigger is not None and trigger.by_wall_clock and self._interval_ms is not None:
            self._turns = WallTurns(operator.context, self._interval_ms, self._changed)
        self._waits = np.zeros(0, np.bool_)  # by row id: waits for its end
        self._ends = ByStart()  # ends of waiting sessions, in steps, as of their addition
        self._retracted: list[tuple[Ints, pa.RecordBatch]] = []  # (numbers of the keys, results)
        self._taken: tuple[AssignedSessions, Ints] | None = None  # the rows added last, and row ids

    def _more_state(self) -> Mapping[str, tuple[str, Any]]:
        return dict.fromkeys((LAST, FIRINGS, _TOLD, _TOLD_LAST, _OVER), ("int64", 0))

    def _restored(self) -> None:
        super()._restored()
        row_ids = self.table.load_all()
        open_ids = row_ids[self.table.columns[_OVER][row_ids] == 0]
        self._wait_for_end(open_ids)
        if self._interval_ms is not None:
            self._mark(open_ids[self._since(open_ids) > 0])

    def _mark(self, row_ids: Ints) -> None:
        self._changed.mark(row_ids, len(self.table.columns[ROWS]))

    def process(self, batch: Batch, emit: Emit) -> None:
        refuse_partial_rows(batch.schema, self.where)
        self._process_in_cuts(batch, emit, self._early_before, self._process)

    def _early_before(self, batch: Batch) -> tuple[int, int] | None:
        if not self._by_event_time:
            return None
        assert self._interval_ms is not None
        return first_multiple(batch, self.operator.watermark_ms, self._interval_ms)

    def _process(self, batch: Batch, emit: Emit) -> None:
        times_ms = self.operator.times_of(batch)
        if times_ms is None:
            return
        first, looked = 0, len(batch)
        while first < len(batch):
            part = batch.slice(first, looked)
            plain = self._plain_rows(part, times_ms[first : first + looked])
            if plain:
                self._add_all(part.slice(0, plain), times_ms[first : first + plain], emit)
                first += plain
            if plain == len(part):
                looked *= 2
                continue
            if batch.reached is not None and not self.operator.first_goes(
                batch, first, int(batch.reached[first]), emit
            ):
                return
            exact = batch.slice(first, self._apart(batch.slice(first, _FEW)))
            self._take_exactly(exact, times_ms[first : first + len(exact)], emit)
            first, looked = first + len(exact), _FEW

    def _plain_rows(self, batch: Batch, times_ms: Ints) -> int:
        """Counts the rows before the first that may emit or retract a result, or be late."""
        columns = self.table.columns
        numbers = self._key_numbers(batch.rows)
        runs = runs_of(numbers, times_ms, self._gap_ms)
        keys, earliest_ms = runs.earliest()
        opened, _ = self._open.reached(keys, earliest_ms, columns[LAST])
        known = self._open.spans(opened, columns[LAST])
        done = assign_sessions(runs, numbers, times_ms, super()._gone_by(batch), known, self._gap_ms, any_order=True)
        self._open.unused(keys)
        end = done.end
        late = np.flatnonzero(done.of_row[:end] == LATE)
        if len(late):
            end = int(late[0])
        loses_start = done.merged[: len(opened)] | (done.sessions.first_ms[: len(opened)] < known.first_ms)
        told = loses_start & (columns[FIRINGS][opened] > 0)
        if told.any():
            its = np.isin(numbers[:end], known.keys[told])
            end = int(np.argmax(its)) if its.any() else end
        if self._rows is not None and end:
            end = self._first_full(numbers[:end], done, opened, self._rows)
        return end

    def _first_full(self, numbers: Ints, done: AssignedSessions, opened: Ints, rows: int) -> int:
        """Counts the rows before the first that may be its session's `rows`-th since a result.
        If sessions merge: since the last results of the row's key."""
        since = self._since(opened)
        if len(done.merges):
            groups, before = numbers, np.zeros(max(int(numbers.max()), int(done.sessions.keys.max())) + 1, np.int64)
            np.add.at(before, done.sessions.keys[: len(opened)], since)
        else:
            groups, before = done.of_row[: len(numbers)], np.zeros(len(done.sessions), np.int64)
            before[: len(opened)] = since
        order = RunningOrder.of(groups)
        nth = np.arange(len(groups)) + np.repeat(before[order.row_ids] - order.starts, order.lengths) + 1
        full = order.order[nth >= rows]
        return int(full.min()) if len(full) else len(numbers)

    def _apart(self, batch: Batch) -> int:
        numbers = self._key_numbers(batch.rows)
        order = RunningOrder.of(numbers)
        seconds = order.order[(order.starts + 1)[order.lengths > 1]]
        count = int(seconds.min()) if len(seconds) else len(batch)
        self._open.unused(order.row_ids)
        reached = batch.reached
        if reached is not None and reached[count - 1] > max(int(reached[0]), self.operator.watermark_ms):
            count = int(np.argmax(reached > max(int(reached[0]), self.operator.watermark_ms)))
        return count

    def _take_exactly(self, batch: Batch, times_ms: Ints, emit: Emit) -> None:
        watermarks = np.broadcast_to(np.asarray(super()._gone_by(batch), np.int64), len(batch))
        self._retracted, self._taken = [], None
        self._add_all(batch, times_ms, emit)
        assert self._taken is not None
        done, sessions = self._taken
        if not len(done.of_row):
            return
        positions = np.arange(len(batch)) if done.rows is None else done.rows
        row_ids = sessions[done.of_row]
        over = self.table.columns[LAST][row_ids] + self._gap_ms <= watermarks[positions]
        tells = over if self._rows is None else over | (self._since(row_ids) >= self._rows)
        keys = done.sessions.keys[done.of_row]
        by_key = np.argsort(keys)
        told_at = [positions[by_key[np.searchsorted(keys[by_key], numbers)]] for numbers, _ in self._retracted]
        results = [retracted for _, retracted in self._retracted]
        self._retracted = []
        if tells.any():
            told_at.append(positions[tells])
            results.append(self._results_now(row_ids[tells], ~over[tells]))
            self._went_out(row_ids[tells])
            self._told_over(row_ids[over])
        if results:
            at = np.concatenate(told_at)
            order = np.argsort(at, kind="stable")
            rows = pa.concat_batches(results).take(pa.array(order))
            self.send(rows, watermarks[at[order]], emit)

    def _add_all(self, batch: Batch, times_ms: Ints, emit: Emit) -> None:
        if self._add(batch, times_ms, emit) < len(batch):
            raise ProtocolViolation(f"{self.where}: a session is there, though event time of its key has passed it")

    def _gone_by(self, batch: Batch) -> int | Ints:
        watermarks = super()._gone_by(batch)
        if isinstance(watermarks, int):
            return self._kept_from(watermarks)
        return np.maximum(watermarks, WATERMARK_MIN + self._lateness_ms) - self._lateness_ms

    def _kept_from(self, watermark_ms: int) -> int:
        """Sessions that end by this time are gone."""
        if watermark_ms == WATERMARK_MAX:
            return WATERMARK_MAX
        return max(watermark_ms, WATERMARK_MIN + self._lateness_ms) - self._lateness_ms

    def _keep(self, keys: Ints, rest: Ints, done: AssignedSessions, opened: Ints, row_ids: Ints) -> Ints:
        columns, known = self.table.columns, len(opened)
        before = self._open.spans(opened, columns[LAST])
        merged = done.merged[:known]
        moved = (done.sessions.first_ms[:known] < before.first_ms) & ~merged
        told = (merged | moved) & (columns[FIRINGS][opened] > 0)
        if told.any():
            self._retracted.append((before.keys[told], self._retractions(opened[told])))
        for column in (FIRINGS, _TOLD):
            columns[column][opened[moved]] = 0
        self._forget_changes(opened[merged | moved])
        self._waits[opened[merged | moved]] = False
        with_rows = distinct_ints(done.of_row)
        columns[_OVER][row_ids[with_rows]] = 0
        now = super()._keep(keys, rest, done, opened, row_ids)
        self._taken = done, now
        # without sessions that became part of another
        changed = now[with_rows[~done.merged[with_rows]]]
        self._wait_for_end(changed)
        if self._interval_ms is not None and len(changed):
            self._mark(changed)
            if self._turns is not None:
                self._turns.marked()
        return now

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        if self._by_event_time and self._changed.is_used:
            assert self._interval_ms is not None
            due_ms = (self.operator.watermark_ms // self._interval_ms + 1) * self._interval_ms
            if due_ms <= watermark_ms and self._changed:
                # all results before event time advances: see `EveryTime.before`
                yield from self._tell_over(due_ms, emit)  # sessions over by then emit no early results
                for row_ids in self.parts(self._changed.row_ids(), self.table.columns[LAST]):
                    if row_ids is not None:
                        self._tell(row_ids, due_ms - 1, emit)
                    yield
        self.operator.watermark_ms = watermark_ms
        yield from self._tell_over(watermark_ms, emit)
        for row_ids in self._open.over(self._kept_from(watermark_ms), self.table.columns[LAST]):
            self._remove(row_ids)
            yield

    def _tell_over(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        row_ids = self._ends.take(watermark_ms // self._step_ms + 1)
        if row_ids is None:
            return
        row_ids = distinct_ints(row_ids)
        row_ids = row_ids[self._waits[row_ids]]
        over = self.table.columns[LAST][row_ids] <= watermark_ms - self._gap_ms
        self._note_ends(row_ids[~over])
        yield from self._fire_all(row_ids[over], emit)

    def reach_floors(self, emit: Emit) -> Iterator[None]:
        row_ids = self.table.load_all()
        floors = self._floors_of(row_ids)
        ends = self.table.columns[LAST][row_ids] + self._gap_ms
        waits = self._waits[row_ids] & (ends <= floors)
        gone = row_ids[ends <= np.maximum(floors, WATERMARK_MIN + self._lateness_ms) - self._lateness_ms]
        yield from self._fire_all(row_ids[waits], emit)
        self._open.end(gone)
        if len(gone):
            self._remove(gone)

    def _remove(self, row_ids: Ints) -> None:
        self._waits[row_ids] = False
        self._forget_changes(row_ids)
        self.table.remove(row_ids)

    def _wait_for_end(self, row_ids: Ints) -> None:
        missing = len(self.table.columns[ROWS]) - len(self._waits)
        if missing > 0:
            self._waits = np.concatenate([self._waits, np.zeros(missing, np.bool_)])
        fresh = row_ids[~self._waits[row_ids]]
        self._waits[fresh] = True
        self._note_ends(fresh)

    def _note_ends(self, row_ids: Ints) -> None:
        self._ends.note(row_ids, (self.table.columns[LAST][row_ids] + self._gap_ms) // self._step_ms)

    def _since(self, row_ids: Ints) -> Ints:
        columns = self.table.columns
        since: Ints = columns[ROWS][row_ids] - columns[_TOLD][row_ids]
        return since

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        results = self._results_now(row_ids, np.zeros(len(row_ids), np.bool_))
        ends = self.table.columns[LAST][row_ids] + self._gap_ms
        self._went_out(row_ids)
        self._told_over(row_ids)
        self.send(results, ends - 1, emit)

    def _forget_changes(self, row_ids: Ints) -> None:
        self._changed.forget(row_ids, len(self.table.columns[ROWS]))

    def tell_early(self, emit: Emit) -> bool:
        def tell(row_ids: Ints, emit_ns: int) -> None:
            self._tell(self.ordered(row_ids), self.operator.watermark_ms, emit, emit_ns)

        return self._turns is not None and self._turns.turn(tell)

    def _tell(self, row_ids: Ints, reached_ms: int, emit: Emit, emit_ns: int | None = None) -> None:
        results = self._results_now(row_ids, np.ones(len(row_ids), np.bool_))
        self._went_out(row_ids)
        self.send(results, np.full(len(row_ids), reached_ms), emit, emit_ns)

    def _results_now(self, row_ids: Ints, early: npt.NDArray[np.bool_]) -> pa.RecordBatch:
        columns = self.table.columns
        accumulators, ends = self.accumulators(row_ids), columns[LAST][row_ids] + self._gap_ms
        return self.results(row_ids, self.fields_of(row_ids), ends, accumulators, columns[FIRINGS][row_ids], early)

    def _retractions(self, row_ids: Ints) -> pa.RecordBatch:
        """Retracts the last results, with aggregates of no rows."""
        columns, nothing = self.table.columns, self.initial(len(row_ids))
        ends = columns[_TOLD_LAST][row_ids] + self._gap_ms
        updates = columns[FIRINGS][row_ids]
        return self.results(row_ids, self.fields_of(row_ids), ends, nothing, updates, retracted=True)

    def _went_out(self, row_ids: Ints) -> None:
        columns = self.table.columns
        columns[FIRINGS][row_ids] += 1
        columns[_TOLD][row_ids] = columns[ROWS][row_ids]
        columns[_TOLD_LAST][row_ids] = columns[LAST][row_ids]
        self.table.mark_dirty(row_ids)
        self._forget_changes(row_ids)

    def _told_over(self, row_ids: Ints) -> None:
        self.table.columns[_OVER][row_ids] = 1
        self._waits[row_ids] = False
