"""Closes what a dropped generation had open, off the loop, once the work that may use it has ended."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from barrier_runtime.runtime.host.workers import WorkerExecutor
from barrier_runtime.runtime.resources import SlotResources
from barrier_runtime.state.errors import BarrierRuntimeError

Part: TypeAlias = tuple[str, Callable[[], None]]  # the name of an operator or source, and what closes it

POLL_S = 0.05  # whether what is to be closed has come to rest


class Closing:
    """The end of one generation's operators. A commit of it may hang for ever, and a thread with it; that holds its
    sink in memory then, but not the generation with its state and its channels. `closed` is told of the last part."""

    def __init__(self, resources: SlotResources, closed: asyncio.Future[None]) -> None:
        self._res = resources
        self._closed = closed
        self._left = 0

    def close(self, executor: WorkerExecutor | None, parts: list[Part]) -> None:
        """Once `executor` is quiet."""
        self._left += 1
        self._when_quiet(executor, parts)

    def _when_quiet(self, executor: WorkerExecutor | None, parts: list[Part]) -> None:
        if executor is not None and executor.busy:
            self._res.loop.call_later(POLL_S, self._when_quiet, executor, parts)
        else:
            self._res.workers.submit(partial(_close_all, parts), self._done)

    def _done(self, result: Any, error: BaseException | None) -> None:
        self._left -= 1
        if not self._left and not self._closed.done():  # whoever waited may have been cancelled
            self._closed.set_result(None)
        if error is not None:
            self._res.loop.call_exception_handler({"message": "closing a generation failed", "exception": error})


def _close_all(parts: list[Part]) -> None:
    troubles: list[tuple[str, Exception]] = []
    for name, close in parts:
        try:
            close()
        except Exception as error:
            troubles.append((name, error))
    if troubles:
        name, trouble = troubles[0]
        raise BarrierRuntimeError(f"closing operator {name} failed: {trouble}") from trouble
