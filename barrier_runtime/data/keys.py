"""Key columns of a batch as state keys, and back; rows of a batch to subtasks.

A state key is a tuple of None, bool, int, float, str or bytes. Dates are days and timestamps microseconds, as
for the choice of a subtask.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import MOST_ROWS, FewRows, PartedRows, RowsOfPart
from barrier_runtime.data.rows import values_of
from barrier_runtime.data.schemas import no_column
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_groups_of, key_groups_of_few

StateKey: TypeAlias = tuple[Any, ...]


def check_key_type(kind: pa.DataType, column: str, where: str) -> None:
    if _is_temporal(kind) or _is_plain(kind) or (pa.types.is_dictionary(kind) and _is_plain(kind.value_type)):
        return
    raise InvalidJob(
        f"{where}: key column {column!r} has type {kind}, which cannot be a key: cast it to an integer, string, "
        "bytes, date or timestamp first"
    )


def _is_temporal(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _is_int64_at_most(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) and not pa.types.is_uint64(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_float32(kind)
        or pa.types.is_float64(kind)
    )


def plain_floats(array: pa.Array, what: str, step: str) -> pa.Array:
    """Replaces -0.0 by 0.0. Raises `InvalidJob` for NaN."""
    if pc.any(pc.is_nan(array)).as_py():
        raise InvalidJob(f"{what} holds NaN, which equals nothing: replace or filter it before {step}")
    return pc.add(array.cast(pa.float64()), pa.scalar(0.0))


def key_column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_date(kind):
        return pa.array(values, pa.int32()).view(pa.date32()).cast(kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).view(pa.timestamp("us", kind.tz)).cast(kind)
    return pa.array(values, kind)


class KeyCodec:
    def __init__(self, schema: pa.Schema, columns: Sequence[str], where: str) -> None:
        self.columns = tuple(columns)
        for column in columns:
            if column not in schema.names:
                raise InvalidJob(f"{where}: there is no key column {column!r}: the rows have {', '.join(schema.names)}")
            check_key_type(schema.field(column).type, column, where)
        self.types = tuple(schema.field(column).type for column in columns)
        self._where = where
        self._temporal = any(_is_temporal(kind) for kind in self.types)
        self._single = len(self.columns) == 1
        self._ints = all(_is_temporal(kind) or _is_int64_at_most(kind) for kind in self.types)

    @property
    def is_one_int64(self) -> bool:
        """Columnar tables have a shortcut for a single int64 column."""
        return self._single and bool(pa.types.is_int64(self.types[0]))

    def arrays(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """Key columns in forms whose `to_pylist` gives fields of state keys."""
        return [
            self._plain(batch.column(column), column, kind)
            for column, kind in zip(self.columns, self.types, strict=True)
        ]

    def int64(self, arrays: list[pa.Array]) -> "list[npt.NDArray[np.int64]] | None":
        """Returns None unless all fields of the keys are ints."""
        if not self._ints or any(array.null_count for array in arrays):
            return None
        return [array.to_numpy().astype(np.int64, copy=False) for array in arrays]

    def keys(self, batch: Batch) -> tuple[list[StateKey], list[Any]]:
        few = batch.few
        if few is not None:
            positions, _ = few.layout.key_columns(self.columns)
            if positions:
                columns = [few.columns[position] for position in positions]
                state_keys = list(zip(*columns, strict=True))
                return state_keys, columns[0] if self._single else state_keys
        state_keys = self.state_keys(batch.rows)
        return state_keys, self.user_keys(batch.rows, state_keys)

    def state_keys(self, batch: pa.RecordBatch) -> list[StateKey]:
        return list(zip(*[array.to_pylist() for array in self.arrays(batch)], strict=True))

    def user_keys(self, batch: pa.RecordBatch, state_keys: list[StateKey]) -> list[Any]:
        if self._temporal:
            columns = [values_of(batch.column(column)) for column in self.columns]
            return columns[0] if self._single else list(zip(*columns, strict=True))
        return [key[0] for key in state_keys] if self._single else state_keys

    def user_key(self, state_key: StateKey) -> Any:
        if self._temporal:
            values = tuple(values_of(self.column(i, [value]))[0] for i, value in enumerate(state_key))
            return values[0] if self._single else values
        return state_key[0] if self._single else state_key

    def column(self, index: int, values: Sequence[Any]) -> pa.Array:
        return key_column(values, self.types[index])

    def _plain(self, array: pa.Array, column: str, kind: pa.DataType) -> pa.Array:
        if pa.types.is_integer(kind):
            return array
        if pa.types.is_date(kind):
            return array.cast(pa.date32()).view(pa.int32())
        if pa.types.is_timestamp(kind):
            try:
                return array.cast(pa.timestamp("us", kind.tz)).view(pa.int64())
            except pa.ArrowInvalid as error:
                raise InvalidJob(
                    f"{self._where}: key column {column!r} is {kind} and not in whole microseconds ({error}): "
                    "round it to microseconds before key_by"
                ) from error
        if pa.types.is_dictionary(kind):
            return array.dictionary_decode()
        if pa.types.is_floating(kind):
            return plain_floats(array, f"{self._where}: key column {column!r}", "key_by")
        return array


def sort_rows(keys: Sequence[pa.Array]) -> np.ndarray:
    """Positions of rows sorted by these columns, first column first, nulls last."""
    table = pa.table({str(i): array for i, array in enumerate(keys)})
    order = pc.sort_indices(table, sort_keys=[(str(i), "ascending") for i in range(len(keys))])
    indices: np.ndarray = order.to_numpy()
    return indices


# Assigns rows of a batch to subtasks; hash partitioning follows state's key groups.

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
    parted, reached = None, batch.reached
    parts: list[tuple[int, Batch]] = []
    start = 0
    for target, size in enumerate(counts):
        if size == rows.num_rows:
            return [(target, batch)]
        if size:
            if parted is None:
                order = targets.argsort(kind="stable")
                parted = PartedRows(rows.take(pa.array(order)))
                reached = None if reached is None else reached[order]
            part = None if reached is None else reached[start : start + size]
            parts.append((target, Batch(RowsOfPart(parted, start, size), batch.emit_ns, part)))
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
