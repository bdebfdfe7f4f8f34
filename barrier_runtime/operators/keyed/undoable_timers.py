"""Undoes what a failed call of a user's function did to timers, before the call is repeated (`state/values/undo` does
the same for tables)."""

from typing import Any

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.keyed.timers import Timers, whole_ms
from barrier_runtime.operators.keyed.wall_timers import WallTimers


class UndoableTimers(Timers):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.found: dict[int, bool] = {}  # times of timers of the call's key that it has touched: whether they were set

    def begin(self) -> None:
        if self.found:
            self.found = {}

    def put_back(self) -> None:
        found, self.found = self.found, {}
        ending, self._ending = self._ending, False
        for timestamp_ms, was_set in found.items():
            if was_set:
                super().register(timestamp_ms)
            else:
                super().delete(timestamp_ms)
        self._ending = ending

    def register(self, timestamp_ms: int) -> None:
        self._find(timestamp_ms)
        super().register(timestamp_ms)

    def delete(self, timestamp_ms: int) -> None:
        self._find(timestamp_ms)
        super().delete(timestamp_ms)

    def _find(self, timestamp_ms: int) -> None:
        timestamp_ms = whole_ms(timestamp_ms)
        if timestamp_ms not in self.found and WATERMARK_MIN <= timestamp_ms <= WATERMARK_MAX:
            self.found[timestamp_ms] = self.is_set(timestamp_ms)


class UndoableWallTimers(UndoableTimers, WallTimers):
    pass
