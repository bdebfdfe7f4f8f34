"""Observes the rows that `stable` releases."""

import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from workload import Row

from barrier_runtime.data.elements import Batch
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.stable import StableOperator


def watched(on_released: Callable[[int, Sequence[Row]], None]) -> AbstractContextManager[Any]:
    """Calls `on_released(token, rows)` for all rows that a subtask of a generation emits."""
    original = StableOperator.on_wall_clock

    @functools.wraps(original)
    def on_wall_clock(self: StableOperator, emit: Emit, last: bool = False) -> bool:
        def emitted(batch: Batch) -> None:
            on_released(self._context.token, [Row(**row) for row in batch.rows.to_pylist()])
            emit(batch)

        return original(self, Emit(emitted), last)

    return patch.object(StableOperator, "on_wall_clock", on_wall_clock)
