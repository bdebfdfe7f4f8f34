"""Columns of a columnar table whose values have no fixed width: cells of bytes.

A cell is replaced, never changed, so a freeze copies references. The memory limit counts cells when rows are marked.

    in a segment    lengths, then the bytes of all cells (see `segment`)
    in an entry     after the row's numbers, per cell length (4 bytes, little endian) and bytes
"""

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.state.keys.distinct_ints import distinct_ints
from barrier_runtime.state.keys.row_index import Ints, RowIds

WIDE = "O"
EMPTY = b""
_OBJECT_BYTES = 33  # size of a `bytes` object besides the content
_length = struct.Struct("<I")

Cells = npt.NDArray[np.object_]


def is_wide(kind: Any) -> bool:
    return bool(np.dtype(kind).kind == WIDE)


def lengths(cells: Cells) -> Ints:
    return np.fromiter(map(len, cells), np.int64, len(cells))


def empty_cells(count: int) -> Cells:
    return np.full(count, EMPTY, np.object_)


def to_binary(cells: Cells) -> pa.LargeBinaryArray:
    return pa.array(cells, pa.large_binary())


def from_binary(array: pa.LargeBinaryArray) -> Cells:
    return array.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def memory(cells: Cells) -> int:
    """Approximate size in bytes, without the references."""
    return int(lengths(cells).sum()) + _OBJECT_BYTES * len(cells)


def tails(columns: Mapping[str, npt.NDArray[Any]], names: Sequence[str], row_ids: RowIds) -> list[bytes]:
    found = [columns[name][row_ids].tolist() for name in names]
    rows = zip(*found, strict=True)
    return [b"".join(part for cell in row for part in (_length.pack(len(cell)), cell)) for row in rows]


def cells_of(value: bytes, start: int, count: int) -> list[bytes]:
    """Raises `ValueError` for another number of cells."""
    found = []
    for _ in range(count):
        if start + _length.size > len(value):
            raise ValueError(f"{len(value)} bytes end within a length")
        (length,) = _length.unpack_from(value, start)
        start += _length.size
        found.append(value[start : start + length])
        start += length
    if start != len(value):
        raise ValueError(f"{len(value)} bytes instead of {start}")
    return found


class CellBytes:
    def __init__(self) -> None:
        self.total = 0
        self._of_row = np.zeros(0, np.int64)

    def grow(self, capacity: int) -> None:
        grown = np.zeros(capacity, np.int64)
        grown[: len(self._of_row)] = self._of_row
        self._of_row = grown

    def changed(self, row_ids: RowIds, columns: Sequence[Cells]) -> None:
        """`row_ids` may repeat."""
        distinct = distinct_ints(row_ids)
        now = np.full(len(distinct), _OBJECT_BYTES * len(columns), np.int64)
        for cells in columns:
            now += lengths(cells[distinct])
        self.total += int((now - self._of_row[distinct]).sum())
        self._of_row[distinct] = now

    def gone(self, row_ids: RowIds) -> None:
        """`row_ids` are distinct."""
        self.total -= int(self._of_row[row_ids].sum())
        self._of_row[row_ids] = 0
