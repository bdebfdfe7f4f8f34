"""Which rows of a batch go to which downstream subtask. Pure and vectorised: one pass, one `take`, slices.

Hash partitioning sends a row to the subtask that owns its key group, so it agrees with state by construction.
"""

import numpy as np
import pyarrow as pa

from barrier_runtime.elements import Batch
from state.errors import InvalidJob
from state.key_groups import key_groups_of

_SMALL = 64  # rows; below, whole-batch shortcuts are worth testing for


def hash_partition(
    batch: Batch, keys: tuple[str, ...], parallelism: int, max_parallelism: int
) -> list[tuple[int, Batch]]:
    """Rows by owner of their key group: (subtask, rows in their order), only where there are rows."""
    if parallelism == 1:
        return [(0, batch)]
    rows = batch.rows
    columns = []
    for key in keys:
        position = rows.schema.get_field_index(key)
        if position < 0:
            raise InvalidJob(f"key_by({key!r}): there is no such column; the batch has {', '.join(rows.schema.names)}")
        columns.append(rows.column(position))
    groups = key_groups_of(columns, max_parallelism)
    targets = groups.astype(np.int64) * parallelism // max_parallelism
    counts = np.bincount(targets, minlength=parallelism)
    present = np.flatnonzero(counts)
    if len(present) == 1:
        return [(int(present[0]), batch)]
    order = np.argsort(targets, kind="stable")
    taken = rows.take(pa.array(order))
    parts: list[tuple[int, Batch]] = []
    start = 0
    for target in present.tolist():
        size = int(counts[target])
        parts.append((target, Batch(taken.slice(start, size), batch.emit_ns)))
        start += size
    return parts


class Rebalancer:
    """Whole batches round robin; large ones are cut so that every subtask gets a part."""

    def __init__(self, parallelism: int, first: int) -> None:
        self._parallelism = parallelism
        self._next = first % parallelism

    def partition(self, batch: Batch) -> list[tuple[int, Batch]]:
        total = batch.rows.num_rows
        if self._parallelism == 1 or total <= _SMALL:
            return [(self._take_next(), batch)]
        size = -(-total // self._parallelism)
        return [
            (self._take_next(), Batch(batch.rows.slice(start, size), batch.emit_ns)) for start in range(0, total, size)
        ]

    def _take_next(self) -> int:
        target = self._next
        self._next = (self._next + 1) % self._parallelism
        return target
