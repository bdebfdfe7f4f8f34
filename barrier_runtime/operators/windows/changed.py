"""Early results by the wall clock: which windows got rows since their last result, and their results in slices."""

from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.operators.aggregation.state_columns import ROWS
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.base import Ints, WindowOperator

_SLICE = 16_384  # windows of one turn by the wall clock


class ChangedWindows(WindowOperator):
    _changed: npt.NDArray[np.bool_]  # by row id: rows came since the last result
    _interval_ms: int | None

    def _mark(self, row_ids: Ints) -> None:
        self._mark_quietly(row_ids)

    def _mark_quietly(self, row_ids: Ints) -> None:
        """Without a wake-up: also on a worker thread, where the operator is opened."""
        missing = len(self._table.columns[ROWS]) - len(self._changed)
        if missing > 0:
            self._changed = np.concatenate([self._changed, np.zeros(missing, np.bool_)])
        self._changed[row_ids] = True

    def _forget_changes(self, row_ids: Ints) -> None:
        if len(self._changed):
            self._mark_quietly(row_ids[:0])
            self._changed[row_ids] = False

    def _tell(self, row_ids: Ints, reached_ms: int, emit: Emit, emit_ns: int | None = None) -> None:
        """Early results of these windows."""
        raise NotImplementedError


class ByWallClock(ChangedWindows):
    """A while after the first row since the last results, those of all windows that have changed. `_changed` is what
    is left to tell, so nothing else has to be in a snapshot."""

    _due_s: float | None = None  # by the steady clock
    _next = 0  # row id from which on windows are to be told now

    def on_wall_clock(self, emit: Emit, last: bool = False) -> bool:
        if last or not len(self._changed) or self._going_to_ms is not None:
            return False
        if self._due_s is None:
            if self._changed.any():
                self._wait()
            return False
        if self.context.now_s() < self._due_s:
            return False
        row_ids: Any = self._next + np.flatnonzero(self._changed[self._next :])[:_SLICE]
        if not len(row_ids):
            self._due_s, self._next = None, 0
            return self.on_wall_clock(emit)
        self._next = int(row_ids[-1]) + 1
        self._tell(self._ordered(row_ids), self._watermark_ms, emit, self.context.wall_ms() * 1_000_000)
        return True

    def _mark(self, row_ids: Ints) -> None:
        super()._mark(row_ids)
        if self._due_s is None and len(row_ids):
            self._wait()

    def _wait(self) -> None:
        assert self._interval_ms is not None
        self._due_s = self.context.now_s() + self._interval_ms / 1_000
        self.context.call_later(self._interval_ms / 1_000, self.context.wake)
