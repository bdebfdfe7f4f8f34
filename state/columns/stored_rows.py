"""Rows of a columnar table as values of the key-value store: version byte, packed numbers, cells.

The numbers are little endian; cells follow the numbers (see `wide_columns`).

    version 1     numbers
    version 2     numbers; rows of version 1 lack the last numbers, which are 0 there
    version 3     numbers and cells

A row does not name the columns. If the program's columns differ from the checkpoint's, opening the table rewrites all
stored entries in bounded memory; the checkpoint stays unchanged.

    column                in the checkpoint     not in the checkpoint
    in the program        keeps the value       begins with the initial value
    not in the program    dropped               -

Segments name their columns and follow the same table; all their rows are written again.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.wide_columns import EMPTY, cells_of, is_wide, tails
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.row_index import RowIds
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.versioned import Format

_ROWS = 8_192


class OtherRow(Exception):
    """The text describes the entry."""


@dataclass(frozen=True)
class RowLayout:
    """`kinds`: name → numpy dtype."""

    kinds: Mapping[str, str]
    version: int

    @property
    def numbers(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if not is_wide(kind)]

    @property
    def cells(self) -> list[str]:
        return [name for name, kind in self.kinds.items() if is_wide(kind)]

    def row(self, numbers: Sequence[str]) -> np.dtype[Any]:
        """`numbers`: the first of `self.numbers`."""
        return np.dtype([("", "u1")] + [(name, np.dtype(self.kinds[name]).newbyteorder("<")) for name in numbers])


def rewrite(
    shard: Shard,
    state_id: int,
    before: RowLayout,
    now: RowLayout,
    initial: Mapping[str, Any],
    check_version: Callable[[int], None],
) -> None:
    """`initial`: value per column of `now`.

    Raises `OtherRow` for an entry of another layout than `before`.
    """
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
    numbers, cells = layout.numbers, layout.cells
    columns: dict[str, np.ndarray[Any, Any]] = {
        name: np.zeros(len(values), kind) if not is_wide(kind) else np.full(len(values), EMPTY, np.object_)
        for name, kind in layout.kinds.items()
    }
    row = layout.row(numbers)
    if not cells and all(len(value) == row.itemsize for value in values):
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


VALUE_VERSION = 1
ADDED_VERSION = 2
WIDE_VERSION = 3
_FORMAT = Format("operator {}: a row of its state", WIDE_VERSION, damaged="restore from another checkpoint")


class StoredRows:
    def __init__(self, operator: str, state: str, kinds: Mapping[str, str], added: Collection[str]) -> None:
        self._operator = operator
        self._state = state
        self._kinds = dict(kinds)
        self.wide = tuple(column for column, kind in kinds.items() if is_wide(kind))
        self.numbers = tuple(column for column in kinds if column not in self.wide)
        self.dtype = np.dtype([("", "u1")] + [(column, little(kinds[column])) for column in self.numbers])
        self._version = WIDE_VERSION if self.wide else ADDED_VERSION if added else VALUE_VERSION
        self._added_bytes = sum(self.dtype[column].itemsize for column in added)

    def pack(self, columns: Mapping[str, npt.NDArray[Any]], row_ids: RowIds) -> npt.NDArray[np.void]:
        rows = np.empty(len(row_ids), self.dtype)
        rows[self.dtype.names[0]] = self._version  # type: ignore[index]
        for column in self.numbers:
            rows[column] = columns[column][row_ids]
        return rows

    def read(self, data: Sequence[bytes]) -> tuple[npt.NDArray[np.void], list[list[bytes]]]:
        width = self.dtype.itemsize
        cells = []
        if self.wide:
            cells = [self._cells_of(value) for value in data]
            data = [value[:width] for value in data]
        for value in data:
            if len(value) != width or value[0] != self._version:
                data = [self._as_written_now(each) for each in data]
                break
        return np.frombuffer(b"".join(data), self.dtype), cells

    def _cells_of(self, value: bytes) -> list[bytes]:
        width = self.dtype.itemsize
        self._check_version(value[0])
        try:
            found = cells_of(value, width, len(self.wide)) if value[0] == WIDE_VERSION else None
        except ValueError:
            found = None
        if found is None:
            raise self._other_columns(f"{len(value)} bytes a row, of which the first {width} are numbers")
        return found

    def _as_written_now(self, value: bytes) -> bytes:
        width = self.dtype.itemsize
        if len(value) == width and value[0] == self._version:
            return value
        if len(value) + self._added_bytes == width and value[0] == VALUE_VERSION:
            return bytes([self._version]) + value[1:] + bytes(self._added_bytes)
        self._check_version(value[0])
        raise self._other_columns(f"{len(value)} bytes a row instead of {width}")

    def check_kinds(self, before: Mapping[str, np.dtype[Any]]) -> None:
        """Raises `InvalidJob` if a remaining column has another type."""
        if any(name in self._kinds and np.dtype(self._kinds[name]) != kind for name, kind in before.items()):
            raise self._other_kinds(before)

    def rewrite(self, shard: Shard, state_id: int, before: Mapping[str, str], initial: Mapping[str, Any]) -> None:
        wide = any(map(is_wide, before.values()))
        was = RowLayout(before, WIDE_VERSION if wide else VALUE_VERSION)
        try:
            rewrite(shard, state_id, was, RowLayout(self._kinds, self._version), initial, self._check_version)
        except OtherRow as error:
            raise self._other_columns(str(error)) from error

    def check_written(self, written: Mapping[str, np.dtype[Any]], added: Collection[str]) -> None:
        """Raises `InvalidJob` unless a segment has all columns, or all except `added`."""
        now = {name: little(kind) for name, kind in self._kinds.items()}
        if written != now and written != {name: kind for name, kind in now.items() if name not in added}:
            raise self._other_kinds(written)

    def _other_kinds(self, written: Mapping[str, np.dtype[Any]]) -> InvalidJob:
        return self._other_columns(", ".join(f"{name} {kind}" for name, kind in written.items()))

    def _other_columns(self, written: str) -> InvalidJob:
        return other_columns(self._operator, self._state, written)

    def _check_version(self, version: int) -> None:
        _FORMAT.check(version, repr(self._operator))


def other_columns(operator: str, state: str, written: str) -> InvalidJob:
    return InvalidJob(
        f"operator {operator!r}: its state {state!r} was written with other columns than it has now ({written}): keep "
        "what it computes as it was (such as its aggregates) and put more into an operator of another name, or give it "
        "a new name to start without state"
    )


def little(kind: str) -> np.dtype[Any]:
    little_endian: np.dtype[Any] = np.dtype(kind).newbyteorder("<")
    return little_endian
