"""Observes one operator of a replay row by row.

Each row is passed as a batch of its own: operators may not depend on batch boundaries.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.rows import rows_of
from barrier_runtime.data.schemas import no_column
from barrier_runtime.operators.base import Emit, Operator
from barrier_runtime.operators.keyed.operator import KeyedLife
from barrier_runtime.operators.outputs.side_outputs import ERROR_SCHEMA
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from barrier_runtime.state_tables.arrow_columns import masked
from barrier_runtime.state_tables.wanted_keys import one_value

T = TypeVar("T")
_LOOKED_AT = "the rows that are looked at"
State = dict[str, Any]  # by name: a value, {entry: value}, [element, …], [time, …], or {namespace: {column: value}}
_OF_ROWS = ("message", "traceback", "row", "key")  # columns of error rows that quote rows
_RAISED = re.compile(r"[\w.<>]+\(\) of operator '[^'\n]*'(, subtask \d+)?(, raised \w+)?")


def masked_row(row: Any, columns: Sequence[str]) -> Any:
    is_error = isinstance(row, dict) and row.keys() >= set(ERROR_SCHEMA.names)
    return masked(row, (*columns, *_OF_ROWS) if columns and is_error else columns)


def shown_error(error: BaseException, redact: Sequence[str]) -> BaseException:
    """Returns `error`; if columns are hidden, without the text, which quotes rows."""
    if not redact:
        return error
    text = str(error.args[0]) if error.args else ""
    return (UserCodeError if isinstance(error, UserCodeError) else InvalidJob)(_hidden(text, type(error).__name__))


def _hidden(error: str, kind: str) -> str:
    raised = _RAISED.match(error)
    return f"{raised[0] if raised else kind} (the rest is hidden, because columns are)"


@dataclass(frozen=True)
class ReplayedRow:
    """`row`: as it arrived at input `port`; None if only time advanced. `reached_ms`: event time at the
    row, or the event time that arrived; None: unknown. `before`, `after`: the key's state by name. `emitted`: rows of
    the main output, `side`: rows of side outputs by name. `error`: error of the operator, or empty.
    """

    number: int  # from 0
    row: dict[str, Any] | None
    reached_ms: int | None
    before: State
    after: State
    emitted: list[dict[str, Any]]
    side: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    port: int = 0
    error: str = ""

    def redacted(self, columns: Sequence[str]) -> "ReplayedRow":
        """Hides values of columns with these names."""
        hidden: dict[str, Any] = {name: masked(getattr(self, name), columns) for name in ("before", "after")}
        hidden["row"] = masked_row(self.row, columns)
        hidden["emitted"] = [masked_row(each, columns) for each in self.emitted]
        hidden["side"] = {tag: [masked_row(each, columns) for each in rows] for tag, rows in self.side.items()}
        if self.error and columns:
            hidden["error"] = _hidden(self.error, "an error")
        return replace(self, **hidden)


@dataclass(frozen=True)
class Wanted:
    """Values of columns by input port; other ports select all rows."""

    by_port: Mapping[int, Mapping[str, Any]]
    only_now: Callable[[], bool] = lambda: True

    def mask(self, rows: pa.RecordBatch, port: int) -> pa.BooleanArray | None:
        if not self.only_now():
            return pa.array([False] * rows.num_rows)
        chosen: pa.BooleanArray | None = None
        for column, value in self.by_port.get(port, {}).items():
            if column not in rows.schema.names:
                raise no_column(column, rows.schema.names, _LOOKED_AT, ", which the key names")
            array = rows.column(column)
            one = one_value(value, array.type, column, _LOOKED_AT)[0]
            same = pc.is_null(array) if value is None else pc.equal(array, one)
            same = pc.fill_null(same, False)
            chosen = same if chosen is None else pc.and_(chosen, same)
        return chosen


class _Collecting(Emit):
    __slots__ = ("_emitted", "_onward", "_side_rows")

    def __init__(self, onward: Emit) -> None:
        super().__init__(onward)
        self._onward = onward
        self._emitted: list[dict[str, Any]] = []
        self._side_rows: dict[str, list[dict[str, Any]]] = {}

    def __call__(self, batch: Batch) -> None:
        self._emitted += rows_of(batch.rows)
        self._onward(batch)

    def to(self, tag: str, batch: Batch) -> bool:
        self._side_rows.setdefault(tag, []).extend(rows_of(batch.rows))
        self._onward.to(tag, batch)
        return True

    def taken(self) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
        taken = self._emitted, {tag: rows for tag, rows in self._side_rows.items() if rows}
        self._emitted, self._side_rows = [], {}
        return taken


class DebuggerQuit(UserCodeError):
    """The user has left the debugger."""


@dataclass(frozen=True)
class Coming:
    number: int
    row: dict[str, Any]
    before: State | None


class Observer:
    """`told` receives each processed row. `call` gets the row and the key's state before `work`, so a
    debugger may step in. `one_key`: without it no state is shown, because nobody knows whose state changes with time.
    """

    def __init__(
        self,
        wanted: Wanted,
        told: Callable[[ReplayedRow], None],
        call: Callable[[Operator, "Coming", Callable[[], None]], None] = lambda operator, coming, work: work(),
        one_key: bool = True,
    ) -> None:
        self.wanted = wanted
        self.one_key = one_key
        self.hides_state = False
        self._told = told
        self._call = call
        self._number = 0

    def watch(self, operator: Operator) -> Operator:
        self.hides_state = isinstance(operator, KeyedLife) and not self.one_key
        watched = _Watched(self, operator)
        for name, method in watched.methods().items():
            setattr(operator, name, method)
        return operator

    def call(self, operator: Operator, row: dict[str, Any], before: State, work: Callable[[], None]) -> None:
        self._call(operator, Coming(self._number, row, None if self.hides_state else before), work)

    def tell(self, **of_row: Any) -> None:
        number, self._number = self._number, self._number + 1
        self._told(ReplayedRow(number=number, **of_row))


class _Watched:
    def __init__(self, observer: Observer, operator: Operator) -> None:
        self._observer = observer
        self._operator = operator
        self._process, self._toward = operator.process, operator.toward
        self._wall, self._end = operator.on_wall_clock, operator.on_end
        self._state: State | None = None
        self._in_row = False

    def methods(self) -> dict[str, Any]:
        return {"process": self.process, "toward": self.toward, "on_wall_clock": self.wall, "on_end": self.end}

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        mask = self._observer.wanted.mask(batch.rows, port)
        if mask is not None:
            batch = batch.only(batch.rows.filter(mask), mask)
        self._operator.stops = False  # a row is passed once, after everything that is due before
        for at in range(len(batch)):
            self._row(batch.slice(at, 1), emit, port)

    def _row(self, batch: Batch, emit: Emit, port: int) -> None:
        row, reached = rows_of(batch.rows)[0], batch.reached
        before, collecting, error = self._before(), _Collecting(emit), ""
        self._in_row, whole = True, True
        try:
            self._observer.call(self._operator, row, before, lambda: self._process(batch, collecting, port))
        except DebuggerQuit:
            whole = False
            raise
        except Exception as failure:
            error = str(failure.args[0] if isinstance(failure, UserCodeError) else failure)
            raise
        finally:
            self._in_row = False
            emitted, side = collecting.taken()
            self._state = self._now()
            if whole:
                self._observer.tell(
                    row=row,
                    reached_ms=None if reached is None else _known(int(reached[0])),
                    before=before,
                    after=self._state,
                    emitted=emitted,
                    side=side,
                    port=port,
                    error=error,
                )

    def toward(self, watermark_ms: int, emit: Emit) -> bool:
        return self._timed(lambda to: self._toward(watermark_ms, to), emit, watermark_ms, True)

    def wall(self, emit: Emit, last: bool = False) -> bool:
        return self._timed(lambda to: self._wall(to, last), emit, None, False)

    def end(self, emit: Emit) -> None:
        self._timed(self._end, emit, None, True)

    def _timed(self, work: Callable[[Emit], T], emit: Emit, reached_ms: int | None, look: bool) -> T:
        """Reports an advance of time, if it emits rows or changes the state.

        `look`: compare the state even if `work` returns false and emits nothing."""
        if self._in_row:  # the row caused this call
            return work(emit)
        before, collecting = self._before(), _Collecting(emit)
        result = work(collecting)
        emitted, side = collecting.taken()
        if look or result or emitted or side:
            self._state = self._now()
            if emitted or side or self._state != before:
                at_ms, after = _known(reached_ms), self._state
                self._observer.tell(row=None, reached_ms=at_ms, before=before, after=after, emitted=emitted, side=side)
        return result

    def _before(self) -> State:
        if self._state is None:
            self._state = self._now()
        return self._state

    def _now(self) -> State:
        return {} if self._observer.hides_state else state_of(self._operator)


def _known(ms: int | None) -> int | None:
    return None if ms in (None, WATERMARK_MIN, WATERMARK_MAX) else ms


def state_of(operator: Operator) -> State:
    """State, as plain data, of an operator with one key."""
    if not isinstance(operator, KeyedLife) or not hasattr(operator, "backend"):
        return {}
    found: State = {}
    for name, _, beside, value in operator.backend.contents():
        what = operator.backend.description(name)
        plain = _plain(value[1] if what.ttl is not None and isinstance(value, tuple) else value)
        if what.row.layout == "times":
            found.setdefault(name, []).append(beside[0])
        elif what.row.layout == "entries":
            found.setdefault(name, {})[beside[0]] = plain
        elif beside:
            found.setdefault(name, {})[", ".join(map(str, beside))] = plain
        else:
            found[name] = plain
    for name, value in found.items():
        kind = operator.backend.description(name).kind
        if kind == "timers":
            found[name] = sorted(value)
        elif kind == "list":
            found[name] = [value[at] for at in sorted(value)]
    return dict(sorted(found.items()))


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value.item() if isinstance(value, np.generic) else value, enc_hook=_of_numpy)


def _of_numpy(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else repr(value)
