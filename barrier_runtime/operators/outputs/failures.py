"""Rows whose function raised, in steps that do not fail then: skipped, or sent to the errors output.

Wrong use of this package, failing storage and lack of memory still end the job; so does a result that does not fit the
schema, except in `map` and `flat_map` with a declared schema.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from barrier_runtime.coordinator.metric_table import ERROR_ROWS, SKIPPED_ROWS
from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import Row, rows_of, taken_value
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.functions.instances import check_made
from barrier_runtime.operators.metrics import MetricGroup
from barrier_runtime.operators.outputs.side_outputs import ERROR_SCHEMA, ERRORS, OnError, SideOutput, SideOutputs
from barrier_runtime.operators.user_code import function_name, said, user_traceback
from barrier_runtime.state.errors import BarrierRuntimeError

T = TypeVar("T")
NO_KEY = object()


class Failures:
    """Failed rows of a step. Call `opened` with the step's context, and `begin` before each batch."""

    metrics: MetricGroup
    _replay: Callable[..., str]
    _position: Callable[[], str]

    def __init__(self, on_error: OnError, operator: str, function: str) -> None:
        self._operator = operator
        self._function = function
        self._output = (
            SideOutput(ERRORS, f"operator {operator!r}", ERROR_SCHEMA, "report this") if on_error == "side" else None
        )
        self._said = False
        self.begin(None)

    def opened(self, context: OperatorContext, later: bool = False) -> None:
        """`later`: rows may fail after the source has read further rows."""
        self.metrics, self._replay = context.metrics, context.replay
        self._position = _nowhere if later else context.position

    def begin(self, batch: Batch | None) -> None:
        self._batch = batch
        self.row = -1  # the last row tried
        if self._output is not None:
            self._output.back_to(0)

    def takes(self, error: Exception) -> bool:
        return not isinstance(error, BarrierRuntimeError | MemoryError)

    def add(
        self,
        error: Exception,
        row: int | None,
        reached_ms: int | None,
        key: object = NO_KEY,
        event_time_ms: int | None = None,
        instead: Mapping[str, Any] | None = None,
    ) -> None:
        """`row`: of the batch; None for a timer, and for the data in `instead`."""
        if self._output is None:
            self.metrics.count(SKIPPED_ROWS)
            self._say(error)
            return
        self.metrics.count(ERROR_ROWS)
        shown = instead
        if self._batch is not None and row is not None:
            (shown,) = rows_of(self._batch.rows.slice(row, 1))
        self._output.add(
            {
                "operator": self._operator,
                "error_type": type(error).__name__,
                "message": _text(said(error)),
                "traceback": _text(user_traceback(error)),
                "row": None if shown is None else _json(shown),
                "key": None if key is NO_KEY else _json(key),
                "event_time": event_time_ms,
                "replay": (self._replay() if key is NO_KEY else self._replay(key)) or None,
                "position": self._position() or None,
            },
            reached_ms,
        )

    def flush(self, emit: Emit, emit_ns: int) -> None:
        self._batch = None
        if self._output is not None:
            self._output.flush(emit, emit_ns, self.metrics)

    def _say(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            warnings.warn(
                f"{self._function} of operator {self._operator!r} raised {type(error).__name__}: {said(error)}; the "
                f"row is skipped, and so are later ones: they are counted ({SKIPPED_ROWS.name}) and not told of again",
                stacklevel=2,
            )


def in_parts(
    batch: Batch, call: Callable[[Batch], T], failures: Failures, failed: Callable[[Exception, Batch], Exception]
) -> Iterator[tuple[Batch, T]]:
    """Yields the results of `call`, a function of batches, in order, with their rows.
    If `call` raises, the batch is halved until each failing row is alone. `failed` makes the errors that end the job.
    """
    failures.begin(batch)
    waiting = [(0, len(batch))]
    while waiting:
        first, count = waiting.pop()
        part = batch if count == len(batch) else batch.slice(first, count)
        try:
            given = call(part)
        except Exception as error:
            if not failures.takes(error):
                raise failed(error, part) from error
            if count == 1:
                failures.add(error, first, None if batch.reached is None else int(batch.reached[first]))
            else:
                waiting += [(first + count // 2, count - count // 2), (first, count // 2)]
            continue
        yield part, given


def guarded(
    call: Callable[..., Any],
    take: Callable[[Any, list[Row], Callable[[], Row]], None],
    sides: SideOutputs,
    failures: Failures,
    of_rows: bool,
) -> Callable[..., Any]:
    """Returns `call`, a keyed function of rows (or timers), without the errors that `failures` takes.
    A failed call yields and emits nothing. `take` copies rows as they are yielded."""

    def tried(key: Any, what: Any, ctx: Any) -> list[Row] | None:
        if of_rows:
            failures.row += 1
        emitted = sides.counts()
        given: list[Row] = []
        try:
            check_made(what)
            before = taken_value(what)
            result = call(key, what, ctx)
            if result is not None:
                take(result, given, lambda: before)
        except Exception as error:
            if not failures.takes(error):
                raise
            sides.back_to(emitted)
            failures.add(error, failures.row if of_rows else None, sides.reached_ms, key, ctx.timestamp)
            return None
        return given

    tried.__qualname__ = function_name(call)[:-2]
    return tried


def _nowhere() -> str:
    return ""


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def _text(text: str) -> str:
    """An error may quote invalid Unicode."""
    return text.encode(errors="backslashreplace").decode()
