"""What an operator does for its states with TTL besides judging what is read: reads the wall clock, sweeps, and has the
store compacted after a sweep that deleted most of it."""

import logging
from typing import Any

from barrier_runtime.operators.base import OperatorContext
from barrier_runtime.operators.state.ttl import Timing
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.values.expiry_sweep import ExpirySweep

log = logging.getLogger("barrier_runtime.state")


class Reclaiming:
    """On the loop. Made by an operator that has states with TTL."""

    def __init__(self, timing: Timing, backend: KeyedBackend, context: OperatorContext, where: str) -> None:
        self._timing = timing
        self._backend = backend
        self._context = context
        self._where = where
        self._compacts = False
        self._compacts_after: int | None = None  # the checkpoint which brings the deletions to the store
        swept = [each for each in timing.tables if each.expiry.ttl_ms is not None]
        self._sweep = ExpirySweep(swept, context.now_s, context.call_later, self._mostly_deleted)

    def begin(self) -> None:
        """A batch, a watermark or a barrier is at hand."""
        self._timing.wall.read()

    def snapshot(self, checkpoint: int) -> None:
        """Before the state of `checkpoint` is frozen."""
        self.begin()
        if self._compacts:
            self._compacts, self._compacts_after = False, checkpoint
        self._sweep.look()

    def completed(self, checkpoint: int) -> None:
        if self._compacts_after is not None and checkpoint >= self._compacts_after:
            self._compacts_after = None
            self._context.executor.submit(self._backend.compact, self._compacted)

    def close(self) -> None:
        self._sweep.closed = True

    def _mostly_deleted(self) -> None:
        self._compacts = True

    def _compacted(self, result: Any, error: BaseException | None) -> None:
        if error is not None:
            log.warning(
                "%s: the room of expired state is not given back (%s): tried again after the next sweep that deletes "
                "most of it",
                self._where,
                error,
            )
