"""Windows or sessions with rows since their last result, and their early results by the wall clock."""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from barrier_runtime.operators.base import OperatorContext

Ints: TypeAlias = npt.NDArray[np.int64]
_SLICE = 16_384


class Changed:
    """Marks by row id, rebuilt from the table at a restore."""

    def __init__(self) -> None:
        self._marks: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)

    def __bool__(self) -> bool:
        return bool(self._marks.any())

    @property
    def is_used(self) -> bool:
        return len(self._marks) > 0

    def row_ids(self, first: int = 0) -> Ints:
        row_ids: Any = first + np.flatnonzero(self._marks[first:])
        found: Ints = row_ids
        return found

    def mark(self, row_ids: Ints, capacity: int) -> None:
        missing = capacity - len(self._marks)
        if missing > 0:
            self._marks = np.concatenate([self._marks, np.zeros(missing, np.bool_)])
        self._marks[row_ids] = True

    def forget(self, row_ids: Ints, capacity: int) -> None:
        if len(self._marks):
            self.mark(row_ids[:0], capacity)
            self._marks[row_ids] = False

    def clear(self) -> None:
        self._marks = np.zeros(0, np.bool_)


class WallTurns:
    """Emits all changed windows an interval after the first row since the last results.

    Snapshots need only the marks.
    """

    def __init__(self, context: OperatorContext, interval_ms: int, changed: Changed) -> None:
        self._context = context
        self._interval_s = interval_ms / 1_000
        self._changed = changed
        self._due_s: float | None = None
        self._next = 0  # row id from which on results are due now

    def turn(self, tell: Callable[[Ints, int], None]) -> bool:
        """Returns whether results were due. `tell` emits results of row ids at a time in nanoseconds."""
        if not self._changed.is_used:
            return False
        if self._due_s is None:
            if self._changed:
                self._wait()
            return False
        if self._context.now_s() < self._due_s:
            return False
        row_ids = self._changed.row_ids(self._next)[:_SLICE]
        if not len(row_ids):
            self._due_s, self._next = None, 0
            return self.turn(tell)
        self._next = int(row_ids[-1]) + 1
        tell(row_ids, self._context.wall_ms() * 1_000_000)
        return True

    def marked(self) -> None:
        if self._due_s is None:
            self._wait()

    def _wait(self) -> None:
        self._due_s = self._context.now_s() + self._interval_s
        self._context.call_later(self._interval_s, self._context.wake)
