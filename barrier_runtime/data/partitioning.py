"""Assigns rows of a batch to subtasks; hash partitioning follows state's key groups."""

from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows
from barrier_runtime.data.schemas import no_column
from barrier_runtime.state.keys.key_groups import key_groups_of, key_groups_of_few

_SMALL = 64  # rows up to which a batch is not cut


def hash_partition(
    batch: Batch, keys: tuple[str, ...], parallelism: int, max_parallelism: int
) -> list[tuple[int, Batch]]:
    """Returns (subtask, rows in order) by key group, without empty parts."""
    if parallelism == 1:
        return [(0, batch)]
    if batch.count <= MOST_ROWS:
        few = batch.as_few
        few_parts = None if few is None else _partition_few(batch, few, keys, parallelism, max_parallelism)
        if few_parts is not None:
            return few_parts
    rows = batch.rows
    columns = []
    for key in keys:
        position = rows.schema.get_field_index(key)
        if position < 0:
            raise no_column(key, rows.schema.names, f"key_by({key!r}), in the rows that came")
        columns.append(rows.column(position))
    targets = _owners(parallelism, max_parallelism)[key_groups_of(columns, max_parallelism)]
    counts = np.bincount(targets, minlength=parallelism).tolist()
    taken, reached = None, batch.reached
    parts: list[tuple[int, Batch]] = []
    start = 0
    for target, size in enumerate(counts):
        if size == rows.num_rows:
            return [(target, batch)]
        if size:
            if taken is None:
                order = targets.argsort(kind="stable")
                taken = rows.take(pa.array(order))
                reached = None if reached is None else reached[order]
            part = None if reached is None else reached[start : start + size]
            parts.append((target, Batch(taken.slice(start, size), batch.emit_ns, part)))
            start += size
    return parts


def _partition_few(
    batch: Batch, few: FewRows, keys: tuple[str, ...], parallelism: int, max_parallelism: int
) -> list[tuple[int, Batch]] | None:
    """Returns None if Arrow must partition the rows."""
    at_keys, kinds = few.layout.key_columns(keys)
    if not at_keys:
        return None
    groups = key_groups_of_few([few.columns[at] for at in at_keys], kinds, max_parallelism)
    if groups is None:
        return None
    targets = list(map(_owner_list(parallelism, max_parallelism).__getitem__, groups))
    found = set(targets)
    if len(found) == 1:
        return [(targets[0], batch)]
    parts = []
    for target in sorted(found):
        which = [owner == target for owner in targets]
        reached = None if batch.reached is None else batch.reached[which]
        parts.append((target, Batch(few.filter(which), batch.emit_ns, reached)))
    return parts


@lru_cache
def _owner_list(parallelism: int, max_parallelism: int) -> list[int]:
    owners: list[int] = _owners(parallelism, max_parallelism).tolist()
    return owners


@lru_cache
def _owners(parallelism: int, max_parallelism: int) -> npt.NDArray[np.uint16]:
    """Key group -> owning subtask, as 16-bit integers."""
    groups = np.arange(max_parallelism, dtype=np.int64)
    return (groups * parallelism // max_parallelism).astype(np.uint16)


class Rebalancer:
    """Distributes whole batches round robin; cuts large batches into a part per subtask."""

    def __init__(self, parallelism: int, first: int) -> None:
        self._parallelism = parallelism
        self._next = first % parallelism

    def partition(self, batch: Batch) -> list[tuple[int, Batch]]:
        total = len(batch)
        if self._parallelism == 1 or total <= _SMALL:
            return [(self._take_next(), batch)]
        size = -(-total // self._parallelism)
        return [(self._take_next(), batch.slice(start, size)) for start in range(0, total, size)]

    def _take_next(self) -> int:
        target = self._next
        self._next = (self._next + 1) % self._parallelism
        return target
