"""Rewrites the stored entries of a columnar table when the program's columns differ from the checkpoint's.

Entries do not name their columns (see `stored_rows`), so all of them are rewritten before the first is read: once, when
the table is opened, and in bounded memory. A crash on the way costs nothing, because the checkpoint stays as it is.

    column            in the checkpoint     not in it
    in the program    its value             its initial value
    not in it         dropped               -

A column that was dropped and comes back later so begins with its initial value, and never with what an old row had.
Segments name their columns; what they have is read the same way, and their rows are written again as a whole.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from barrier_runtime.state.columns.wide_columns import EMPTY, cells_of, is_wide, tails
from barrier_runtime.state.kv.shard import Shard

_ROWS = 8_192  # at a time


class OtherRow(Exception):
    """An entry that is no row of these columns; its text says what it has instead."""


@dataclass(frozen=True)
class RowLayout:
    """How an entry has the columns `kinds`, name → numpy dtype: a version byte, the numbers in this order, little
    endian, and then the cells."""

    kinds: Mapping[str, str]
    version: int

    @property
    def numbers(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if not is_wide(kind)]

    @property
    def cells(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if is_wide(kind)]

    def row(self, numbers: Sequence[str]) -> np.dtype[Any]:
        """Of an entry that has the columns `numbers`, the first ones of `self.numbers`."""
        return np.dtype([("", "u1")] + [(name, np.dtype(self.kinds[name]).newbyteorder("<")) for name in numbers])


def rewrite(
    shard: Shard,
    state_id: int,
    before: RowLayout,
    now: RowLayout,
    initial: Mapping[str, Any],
    check_version: Callable[[int], None],
) -> None:
    """Every entry of the state `state_id` from `before` to `now`; `initial` has the value of each column of `now`.
    Raises `OtherRow` for an entry that is not as `before` says; `check_version` raises for one of a newer release."""
    rows = shard.scan_state(state_id)
    while chunk := list(islice(rows, _ROWS)):
        for version in sorted({value[0] for _, value in chunk}):
            check_version(version)
        columns = _read([value for _, value in chunk], before)
        made = {}
        for name, kind in now.kinds.items():
            found = columns.get(name)
            made[name] = np.full(len(chunk), initial[name], kind) if found is None else found.astype(kind, copy=False)
        shard.write(list(zip([key for key, _ in chunk], _written(made, now, len(chunk)), strict=True)))


def _read(values: Sequence[bytes], layout: RowLayout) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of these entries. The last numbers may be missing in some: older releases did not write them."""
    numbers, cells = layout.numbers, layout.cells
    columns: dict[str, np.ndarray[Any, Any]] = {
        name: np.zeros(len(values), kind) if not is_wide(kind) else np.full(len(values), EMPTY, np.object_)
        for name, kind in layout.kinds.items()
    }
    row = layout.row(numbers)
    if not cells and all(len(value) == row.itemsize for value in values):  # nearly always
        found = np.frombuffer(b"".join(values), row)
        return {name: found[name] for name in numbers}
    of_width = {layout.row(numbers[:count]).itemsize: numbers[:count] for count in range(len(numbers) + 1)}
    for at, value in enumerate(values):
        width = row.itemsize if cells else len(value)
        if width not in of_width or len(value) < width:
            raise OtherRow(f"{len(value)} bytes a row instead of {row.itemsize}")
        (found,) = np.frombuffer(value[:width], layout.row(of_width[width]))
        for name in of_width[width]:
            columns[name][at] = found[name]
        try:
            tail = cells_of(value, width, len(cells))
        except ValueError as error:
            raise OtherRow(f"{error} in the cells of a row") from error
        for name, cell in zip(cells, tail, strict=True):
            columns[name][at] = cell
    return columns


def _written(columns: Mapping[str, np.ndarray[Any, Any]], layout: RowLayout, count: int) -> list[bytes]:
    numbers, cells = layout.numbers, layout.cells
    row = layout.row(numbers)
    rows = np.empty(count, row)
    rows[row.names[0]] = layout.version  # type: ignore[index]
    for name in numbers:
        rows[name] = columns[name]
    data, width = rows.tobytes(), row.itemsize
    packed = [data[start : start + width] for start in range(0, count * width, width)]
    if not cells:
        return packed
    behind = tails(columns, cells, np.arange(count))
    return [number + cell for number, cell in zip(packed, behind, strict=True)]
