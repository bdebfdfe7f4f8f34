"""Preview of rows that a step sends on: few rows, of bounded size, not stored."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from barrier_runtime.coordinator.wire.messages import MOST_ROWS
from barrier_runtime.data.elements import Batch
from barrier_runtime.runtime.subtask import Subtask

LASTS_S = 2.0


class Preview:
    def __init__(self, subtask: Subtask, position: int, count: int, full: "asyncio.Future[None]") -> None:
        self._left = self.count = max(1, min(count, MOST_ROWS))
        self.batches: list[Batch] = []
        self.full = full
        self.end: Callable[[], Any] = subtask.chain.watch(position, self._seen)

    def _seen(self, batch: Batch) -> None:
        if self._left > 0 and batch.count:
            self.batches.append(batch)
            self._left -= batch.count
        if self._left <= 0 and not self.full.done():
            self.full.set_result(None)


def place_of(step: str, subtasks: Sequence[Subtask]) -> tuple[Subtask, int] | None:
    for subtask in subtasks:
        names = [name for name, _ in subtask.chain.operators]
        if subtask.source is not None and subtask.source[0] == step:
            return subtask, 0
        if step in names:
            at = names.index(step)
            ends = at == len(names) - 1 and not subtask.chain.outputs
            return subtask, at if ends else at + 1
    return None
