"""Users' triggers: rows, times and ends at which windows emit results or forget rows."""

import enum
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.rows import Row
from barrier_runtime.data.schemas import Duration, milliseconds
from barrier_runtime.operators.aggregation.accumulators import running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import ROWS
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.state.stored_type import as_scalar
from barrier_runtime.operators.user_code import user_error
from barrier_runtime.operators.windows.firing import FIRINGS
from barrier_runtime.operators.windows.rules.early import OVER, Changed, EveryRows, WallTurns, first_multiple
from barrier_runtime.operators.windows.rules.on_close import Bools, Ints, RuledWindows
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.operators.windows.whole.apply import ONE_KEY
from barrier_runtime.state.errors import InvalidJob


class TriggerResult(enum.Flag):
    """Action of a window: emit a result, forget the rows, both (`FIRE | PURGE`), or neither."""

    NOTHING = 0
    FIRE = enum.auto()
    PURGE = enum.auto()


@dataclass
class TriggerWindow:
    """Argument of a trigger's methods.
    `state`: numbers of this key and window, to be changed in place; checkpoints include them."""

    key: Any
    start_ms: int | None
    end_ms: int | None
    rows: int  # of the window since it last forgot its rows, the current row included
    state: dict[str, Any]


class OwnTrigger(WindowTrigger):
    """Base class of users' triggers, for `window(…, early=…)`. A subclass overrides some of the methods:

    - `on_row(row, window)`: called with each row (a dict) added to the window.
    - `on_time(time_ms, window)`: called at each multiple of `interval`, if the window got rows since the last call.
      `clock`: "event" (at multiples since 1970) or "processing" (the wall clock).
    - `on_close(window)`: called when the window is over. Without it the window emits its result.

    Each returns a `TriggerResult`; None is NOTHING, in `on_close` FIRE. A window that is over is then removed, or kept
    for late rows, which emit the window without a call.

    `state`: numbers per key and window, by name, with initial values. Methods must depend on their arguments and
    `window.state` alone. Checkpoints hold the name of the class.

    >>> class Large(OwnTrigger):
    ...     state = {"total": 0}
    ...
    ...     def on_row(self, row, window):
    ...         window.state["total"] += row["amount"]
    ...         if window.state["total"] >= 1_000:
    ...             window.state["total"] = 0
    ...             return TriggerResult.FIRE
    >>> str(Large())
    'by Large'
    """

    state: ClassVar[Mapping[str, int | float]] = {}
    interval: Duration | None = None
    clock: Literal["event", "processing"] = "event"

    def on_row(self, row: Row, window: TriggerWindow) -> TriggerResult | None:
        """Called after a row was added to the window."""
        return None

    def on_time(self, time_ms: int, window: TriggerWindow) -> TriggerResult | None:
        """Called at a multiple of `interval`, if the window got rows since the last call."""
        return None

    def on_close(self, window: TriggerWindow) -> TriggerResult | None:
        """Called when the window is over."""
        return TriggerResult.FIRE

    @property
    def interval_ms(self) -> int | None:
        if self.interval is None:
            return None
        interval_ms = milliseconds(self.interval, f"the interval of {type(self).__name__}")
        if not interval_ms:
            raise InvalidJob(f"the interval of {type(self).__name__} is 0: use at least one millisecond")
        return interval_ms

    @property
    def by_wall_clock(self) -> bool:  # type: ignore[override]
        if self.clock not in ("event", "processing"):
            raise InvalidJob(f"{type(self).__name__}: clock={self.clock!r}: use 'event' or 'processing'")
        return self.interval_ms is not None and self.clock == "processing"

    @property
    def by_event_time(self) -> bool:  # type: ignore[override]
        return self.interval_ms is not None and self.clock == "event"

    @property
    def not_of_sessions(self) -> str:
        return (
            "a session may become part of another one, which a trigger of your own cannot follow: use Every, or "
            "another window"
        )

    @property
    def definition(self) -> str:
        for name, initial in self.state.items():
            if isinstance(initial, bool) or not isinstance(initial, int | float):
                raise InvalidJob(
                    f"{type(self).__name__}: its state {name!r} begins with {initial!r}: use a number, as 0 or 0.0"
                )
        return f"trigger {type(self).__name__}"

    def __str__(self) -> str:
        return f"by {type(self).__name__}"

    def overrides(self, method: str) -> bool:
        """Returns whether the subclass overrides `method`."""
        return getattr(type(self), method) is not getattr(OwnTrigger, method)

    def rule(self, windows: Any) -> Any:

        return OwnRule(windows, self)


_WAITS = "waits"  # state column: 1 if rows came since the last call of `on_time`
_STATE = "trigger "  # prefix of the trigger's own columns


class OwnRule(EveryRows):
    """Calls the trigger for a batch's rows in order of arrival; then computes all results at once.

    Results are running aggregates of *parts* of windows, which end where a window forgets rows.
    """

    evictable = False

    def __init__(self, windows: RuledWindows, trigger: OwnTrigger) -> None:
        super().__init__(windows, 1, accumulate=True)
        self._trigger = trigger
        self._asks_rows = trigger.overrides("on_row")
        self._asks_close = trigger.overrides("on_close")
        self._interval_ms = trigger.interval_ms if trigger.by_event_time else None
        self._changed = Changed()
        self._turns: WallTurns | None = None
        if trigger.by_wall_clock and trigger.interval_ms is not None:
            self._turns = WallTurns(windows.operator.context, trigger.interval_ms, self._changed)
        self._asks_time = self._turns is not None or self._interval_ms is not None
        self.cuts_batches = windows.window.bounded or self._interval_ms is not None

    def columns(self) -> Mapping[str, tuple[str, Any]]:
        own = {_STATE + name: (type(initial).__name__ + "64", initial) for name, initial in self._trigger.state.items()}
        names = [FIRINGS, *([_WAITS] if self._asks_time else []), *([OVER] if self.is_kept else [])]
        return {**dict.fromkeys(names, ("int64", 0)), **own}

    def restored(self) -> None:
        if self._asks_time:
            row_ids = self.windows.table.load_all()
            self._mark(row_ids[self.windows.table.columns[_WAITS][row_ids] > 0])

    def cut(self, batch: Batch) -> tuple[int, int] | None:
        cuts = [super().cut(batch)] if self.windows.window.bounded else []
        if self._interval_ms is not None:
            cuts.append(first_multiple(batch, self.windows.operator.watermark_ms, self._interval_ms))
        return min((each for each in cuts if each is not None), default=None)

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> None:
        windows, count = self.windows, rows.num_rows
        if not count:
            return
        row_ids = windows.row_ids(rows, starts)
        windows.note(windows.due, windows.table.made)
        fires, purges = self._asked(rows, row_ids) if self._asks_rows else (np.zeros(count, np.bool_),) * 2
        order, columns = RunningOrder.of(row_ids), windows.table.columns
        fires_in_order, purges_in_order = fires[order.order], purges[order.order]
        begins = np.zeros(count, np.bool_)
        begins[1:] = purges_in_order[:-1]
        begins[order.starts] = True
        of_ordered = np.cumsum(begins) - 1
        entries = np.repeat(order.row_ids, order.lengths)[begins]
        parts, last_parts = windows.initial(len(entries)), of_ordered[order.starts + order.lengths - 1]
        for name, column in parts.items():
            column[of_ordered[order.starts]] = columns[name][order.row_ids]
        of_part = np.empty(count, np.int64)
        of_part[order.order] = of_ordered

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return windows.left(column, int(entries[row]), aggregate)

        after = running(windows.plan, parts, RunningOrder.of(of_part), BatchValues(rows, windows.where), left)
        windows.bounds.forget_all()
        ends_purged = purges_in_order[order.starts + order.lengths - 1]
        for name, initial in windows.initial(len(order.row_ids)).items():
            kept = parts[name][last_parts]
            kept[ends_purged] = initial[ends_purged]
            columns[name][order.row_ids] = kept
        fired_before = np.cumsum(fires_in_order) - fires_in_order
        numbers = np.empty(count, np.int64)
        numbers[order.order] = fired_before + np.repeat(
            columns[FIRINGS][order.row_ids] - fired_before[order.starts], order.lengths
        )
        columns[FIRINGS][order.row_ids] += np.add.reduceat(fires_in_order.astype(np.int64), order.starts)
        if self._asks_time:
            columns[_WAITS][order.row_ids] = 1
            self._mark(order.row_ids)
            if self._turns is not None:
                self._turns.marked()
        windows.table.mark_dirty(order.row_ids)
        fired = np.flatnonzero(fires)
        if len(fired):
            accumulators = {name: column[fired] for name, column in after.items()}
            its, ends = row_ids[fired], windows.window.ends(starts[fired])
            results = windows.results(its, windows.fields_of(its), ends, accumulators, numbers[fired], early=True)
            windows.send_for(results, batch, fired if of_row is None else of_row[fired], emit)

    def _asked(self, rows: pa.RecordBatch, row_ids: Ints) -> tuple[Bools, Bools]:
        fires, purges = np.zeros(len(row_ids), np.bool_), np.zeros(len(row_ids), np.bool_)
        asked: dict[int, TriggerWindow] = {}
        for at, (row, row_id) in enumerate(zip(rows.to_pylist(), row_ids.tolist(), strict=True)):
            window = asked.get(row_id)
            if window is None:
                window = asked[row_id] = self._window(row_id)
            window.rows += 1
            row.pop(ONE_KEY, None)
            fires[at], purges[at] = self._answer(self._trigger.on_row, "on_row", window, row)
            if purges[at]:
                window.rows = 0
        self._keep(asked)
        return fires, purges

    def fire_again(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints, emit: Emit) -> None:
        self.windows.fire_again(rows, starts, batch, of_row, emit)

    def before(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        interval_ms, operator = self._interval_ms, self.windows.operator
        if interval_ms is None or not self._changed:
            return
        due_ms = (operator.watermark_ms // interval_ms + 1) * interval_ms
        if operator.watermark_ms == WATERMARK_MIN:  # the first known watermark: all earlier multiples count as one
            due_ms = watermark_ms // interval_ms * interval_ms
        if due_ms > watermark_ms or (watermark_ms == WATERMARK_MAX and not self.windows.window.bounded):
            return
        # all calls before event time advances: see `EveryTime.before`
        yield from self.windows.fire_over(due_ms, emit)
        for part in self.windows.parts(self._changed.row_ids()):
            if part is not None:
                self._ask(part, due_ms, due_ms - 1, emit)
            yield
        operator.watermark_ms = due_ms

    def turn(self, emit: Emit) -> bool:
        windows = self.windows

        def ask(row_ids: Ints, now_ns: int) -> None:
            self._ask(windows.ordered(row_ids), now_ns // 1_000_000, windows.operator.watermark_ms, emit, now_ns)

        return self._turns is not None and self._turns.turn(ask)

    def _ask(self, row_ids: Ints, time_ms: int, reached_ms: int, emit: Emit, emit_ns: int | None = None) -> None:
        on_time = self._trigger.on_time
        fires, purges = self._answers(row_ids, lambda window: self._answer(on_time, "on_time", window, time_ms))
        windows, columns = self.windows, self.windows.table.columns
        fired = row_ids[fires & (columns[ROWS][row_ids] > 0)]
        results = None
        if len(fired):
            fields, accumulators = windows.fields_of(fired), windows.accumulators(fired)
            ends = windows.window.ends(np.array(fields[-1], np.int64))
            results = windows.results(fired, fields, ends, accumulators, columns[FIRINGS][fired], early=True)
            columns[FIRINGS][fired] += 1
        self._purge(row_ids[purges])
        columns[_WAITS][row_ids] = 0
        windows.table.mark_dirty(row_ids)
        self._forget(row_ids)
        if results is not None:
            windows.send(results, np.full(len(fired), reached_ms), emit, emit_ns)

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        windows, close = self.windows, self._trigger.on_close
        fires = windows.table.columns[ROWS][row_ids] > 0
        purges = np.zeros(len(row_ids), np.bool_)
        if self._asks_close:
            answers, purges = self._answers(
                row_ids, lambda window: self._answer(close, "on_close", window, default=TriggerResult.FIRE)
            )
            fires &= answers
        if fires.any():
            windows.fire(row_ids[fires], emit)
        silent = row_ids[~fires]
        if len(silent) and self.is_kept:
            windows.keep(silent)
        elif len(silent):
            windows.remove(silent)
        if self.is_kept:
            self._purge(row_ids[purges])
            windows.table.mark_dirty(row_ids)

    def went_out(self, row_ids: Ints) -> None:
        pass

    def keep_over(self, row_ids: Ints) -> None:
        super().keep_over(row_ids)
        if self._asks_time:
            self.windows.table.columns[_WAITS][row_ids] = 0
            self._forget(row_ids)

    def removed(self, row_ids: Ints) -> None:
        self._forget(row_ids)

    def _purge(self, row_ids: Ints) -> None:
        columns = self.windows.table.columns
        for name, (_, initial) in self.windows.plan.storage().items():
            columns[name][row_ids] = initial

    def _mark(self, row_ids: Ints) -> None:
        self._changed.mark(row_ids, len(self.windows.table.columns[ROWS]))

    def _forget(self, row_ids: Ints) -> None:
        self._changed.forget(row_ids, len(self.windows.table.columns[ROWS]))

    def _answers(self, row_ids: Ints, ask: Callable[[TriggerWindow], tuple[bool, bool]]) -> tuple[Bools, Bools]:
        asked = {row_id: self._window(row_id) for row_id in row_ids.tolist()}
        answers: npt.NDArray[np.bool_] = np.array([ask(window) for window in asked.values()], np.bool_).reshape(-1, 2)
        self._keep(asked)
        return answers[:, 0], answers[:, 1]

    def _window(self, row_id: int) -> TriggerWindow:
        windows, columns = self.windows, self.windows.table.columns
        *keys, start_ms = windows.table.keys_of(np.array([row_id]))[0]
        bounded, whole = windows.window.bounded, windows.codec.columns == (ONE_KEY,)
        state = {name: columns[_STATE + name][row_id].item() for name in self._trigger.state}
        return TriggerWindow(
            None if whole else windows.codec.user_key(tuple(keys)),
            start_ms if bounded else None,
            int(windows.window.ends(np.array([start_ms]))[0]) if bounded else None,
            int(columns[ROWS][row_id]),
            state,
        )

    def _keep(self, asked: Mapping[int, TriggerWindow]) -> None:
        row_ids = np.fromiter(asked, np.int64, len(asked))
        for name in self._trigger.state:
            self.windows.table.columns[_STATE + name][row_ids] = [window.state[name] for window in asked.values()]

    def _answer(
        self,
        method: Callable[..., TriggerResult | None],
        name: str,
        window: TriggerWindow,
        *arguments: Any,
        default: TriggerResult = TriggerResult.NOTHING,
    ) -> tuple[bool, bool]:
        said = f"{type(self._trigger).__name__}.{name}"
        try:
            answer = method(*arguments, window)
            if answer is not None and not isinstance(answer, TriggerResult):
                raise InvalidJob(f"{said} returned {answer!r}: return a TriggerResult, as TriggerResult.FIRE, or None")
            unknown = window.state.keys() - self._trigger.state.keys()
            if unknown:
                raise InvalidJob(f"{said} wrote window.state[{min(unknown)!r}]: name it in `state` of the class")
            for state, initial in self._trigger.state.items():
                window.state[state] = _number(window.state[state], initial, said, state)
        except Exception as error:
            operator = self.windows.operator
            raise user_error(
                error, function=said, operator=operator.name, subtask=operator.context.subtask, key=window.key
            ) from error
        answer = default if answer is None else answer
        return TriggerResult.FIRE in answer, TriggerResult.PURGE in answer


def _number(value: Any, initial: float, method: str, state: str) -> float:
    """Returns `value` as the column of `state` holds it. Raises `InvalidJob` if that is another number."""

    def declared() -> str:
        return f"{method}: window.state[{state!r}] begins with {initial!r}"

    kind = type(initial)
    number: float = as_scalar(kind, value, declared, "was set")
    if kind is int and not -(1 << 63) <= number < 1 << 63:
        raise InvalidJob(
            f"{method}: window.state[{state!r}] cannot hold {number}: whole numbers have 64 bits; begin with "
            f"{initial}.0 for floats"
        )
    return number
