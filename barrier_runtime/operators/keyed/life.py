"""Lifecycle of an operator with keyed state: the backend from `open` to `close`, and restored event time.
Subclasses (`KeyedOperator`, `JoinOperator`) decide about keys and their columns."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import WATERMARK_MIN, Batch
from barrier_runtime.operators.base import Operator, OperatorContext
from barrier_runtime.operators.keyed.progress import Floor, Floors, Progress, restored_progress
from barrier_runtime.state.backend.keyed_backend import KeyedBackend


class KeyedLife(Operator):
    name: str
    backend: KeyedBackend

    def __init__(self) -> None:
        self._watermark_ms = WATERMARK_MIN
        self._floors: Floors | None = None  # while a key group is ahead of the watermark
        self._emit_ns = 0
        self._opened = False

    def _restore_progress(self, context: OperatorContext) -> Progress:
        """Opens the backend, as the first step of `open`, and restores event time from the snapshots."""
        self.context = context
        self.metrics = context.metrics
        self.backend = context.open_keyed()
        self._opened = True
        groups = self.backend.key_group_first, self.backend.key_group_last
        progress = restored_progress(context.restored, self.name, *groups, reopened=context.reopened)
        self._watermark_ms = progress.watermark_ms
        self._floors = Floors(progress.floors, context.max_parallelism) if progress.floors else None
        self._emit_ns = progress.emit_ns
        return progress

    def _floors_to_store(self) -> tuple[Floor, ...]:
        return () if self._floors is None else self._floors.above(self._watermark_ms)

    def on_complete(self, checkpoint: int) -> None:
        self.backend.snapshots.completed(checkpoint)

    def on_abort(self, checkpoint: int) -> None:
        self.backend.snapshots.aborted(checkpoint)

    def close(self) -> None:
        if self._opened:
            self._opened = False
            self.backend.close()

    def _floors_by_key(self, rows: pa.RecordBatch, keys: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """Returns event time at each row: that of its key group before rescaling, or the subtask's watermark.
        None: the subtask's watermark for all rows."""
        if self._floors is None:
            return None
        if not self._floors_to_store():
            self._floors = None
            return None
        return self._floors.watermarks([rows.column(key) for key in keys], self._watermark_ms)

    def _watermarks_by_key(self, batch: Batch, keys: Sequence[str]) -> npt.NDArray[np.int64] | None:
        """Returns event time at each row, independent of the cuts of batches.
        None: the subtask's watermark for all rows."""
        reached, floors = batch.reached, None if self._floors is None else self._floors_by_key(batch.rows, keys)
        if reached is None or not len(reached) or reached[-1] <= self._watermark_ms:
            return floors
        return np.maximum(reached, self._watermark_ms if floors is None else floors)
