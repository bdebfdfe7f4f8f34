"""Operators of `with_watermarks` in mid-stream: watermarks from a column or a user's class.

Neither keeps state: after a recovery the watermark rises anew with the rows.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import Detail, EventClock, check_event_time_type, doubt_of_unit, event_times_ms
from barrier_runtime.data.schemas import no_column
from barrier_runtime.operators.base import Emit, Operator, OperatorContext
from barrier_runtime.operators.user_code import function_name, user_error
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted, shortened

Ints = npt.NDArray[np.int64]
log = logging.getLogger(__name__)


class WatermarkGenerator(ABC):
    """Base class of users' generators: override `watermarks`.
    Attributes of the object may remember facts about earlier rows."""

    @abstractmethod
    def watermarks(self, times: Ints) -> Ints:
        """Returns the watermark at each of the next rows, that row included.

        `times` are the rows' event times, at least one (times and watermarks: ms since the epoch, int64). A watermark
        states that no later row has that time or an earlier time; a lower watermark has no effect. The result must
        depend on the rows alone, not on the cuts between batches.
        """


class GeneratedWatermarkOperator(Operator):
    """Replaces watermarks by those of `make()`; rows without event time have no effect."""

    forwards_watermarks = False

    def __init__(self, name: str, column: str, make: Callable[[], WatermarkGenerator]) -> None:
        self._name = name
        self._where = f"with_watermarks {name!r}"
        self._column = column
        self._make = make
        self._reached_ms = WATERMARK_MIN

    def open(self, context: OperatorContext) -> None:
        self._subtask = context.subtask
        try:
            self._generator = self._make()
        except Exception as error:
            raise self._failed(error, function_name(self._make), None) from error
        if not isinstance(self._generator, WatermarkGenerator):
            raise InvalidJob(
                f"{self._where}: generator= made {self._generator!r}: pass a subclass of WatermarkGenerator, or a "
                "function that makes one"
            )

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        if self._column not in rows.schema.names:
            raise no_column(self._column, rows.schema.names, self._where)
        times = rows.column(self._column)
        check_event_time_type(times.type, self._column, self._where)
        known = times.drop_null() if times.null_count else times
        reached = None
        if len(known):
            told = self._told(event_times_ms(known), batch)
            if times.null_count:
                filled = np.full(len(times), WATERMARK_MIN, np.int64)
                filled[times.is_valid().to_numpy(zero_copy_only=False)] = told
                told = filled
            reached = np.maximum(np.maximum.accumulate(told), self._reached_ms)
            self._reached_ms = int(reached[-1])
        emit(Batch(rows, batch.emit_ns, reached))

    def own_watermark(self) -> int | None:
        return None if self._reached_ms == WATERMARK_MIN else self._reached_ms

    def _told(self, times: Ints, batch: Batch) -> Ints:
        function = f"{type(self._generator).__name__}.watermarks()"
        try:
            given: Any = self._generator.watermarks(times.copy())
        except Exception as error:
            raise self._failed(error, function, batch) from error
        if not isinstance(given, np.ndarray) or given.dtype.kind not in "iu" or given.shape != times.shape:
            said = (
                f"{given.dtype} of shape {given.shape}"
                if isinstance(given, np.ndarray)
                else shortened(repr(given), 100)
            )
            raise InvalidJob(
                f"{self._where}: {function} gave {said} for {counted(len(times), 'row')}: return a numpy array of "
                "int64 with the watermark (ms) at each of them"
            )
        # the last watermark is reserved for the end of the input
        told: Ints = np.minimum(given.astype(np.int64), WATERMARK_MAX - 1)
        return told

    def _failed(self, error: Exception, function: str, batch: Batch | None) -> Exception:
        rows = None if batch is None else batch.rows
        return user_error(error, function=function, operator=self._name, subtask=self._subtask, batch=rows)


class WatermarkOperator(Operator):
    """Replaces watermarks by a column's greatest time less the bound of disorder."""

    forwards_watermarks = False

    def __init__(self, name: str, column: str, max_out_of_orderness_ms: int, detail: Detail = "every") -> None:
        self._where = f"with_watermarks {name!r}"
        self._column = column
        self._clock = EventClock(max_out_of_orderness_ms, detail)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        schema = batch.rows.schema
        if self._column not in schema.names:
            raise no_column(self._column, schema.names, self._where)
        times = batch.rows.column(self._column)
        check_event_time_type(times.type, self._column, self._where)
        if self._clock.greatest_ms == WATERMARK_MIN and (doubt := doubt_of_unit(times, self._column, self._where)):
            log.warning("%s", doubt)
        emit(Batch(batch.rows, batch.emit_ns, self._clock.see(times)))

    def own_watermark(self) -> int | None:
        return None if self._clock.greatest_ms == WATERMARK_MIN else self._clock.watermark_ms
