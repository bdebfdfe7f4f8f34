"""Rows of a columnar table as values of the key-value store: a version byte and the row's numbers, packed, little
endian, and its cells behind them (see `wide_columns`).

    version 1     numbers
    version 2     numbers, of which rows of version 1 lack the last: they are 0 there
    version 3     numbers and cells

A row does not name its columns, so those that the program has must be the ones it was written with, or all rows are
made anew before the first is read (see `changed_columns`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from barrier_runtime.state.columns.changed_columns import OtherRow, RowLayout, rewrite
from barrier_runtime.state.columns.wide_columns import cells_of, is_wide
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.row_index import RowIds
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.versioned import Format

VALUE_VERSION = 1
ADDED_VERSION = 2  # of rows with columns that rows of version 1 lack
WIDE_VERSION = 3  # of rows with cells behind their numbers
_FORMAT = Format("operator {}: a row of its state", WIDE_VERSION, damaged="restore from another checkpoint")


class StoredRows:
    """How the rows of one table are written, and what was written is read."""

    def __init__(self, operator: str, state: str, kinds: Mapping[str, str], added: Collection[str]) -> None:
        """`kinds`: of the columns, name → numpy dtype. `added`: the last of them, which older releases lack."""
        self._operator = operator
        self._state = state
        self._kinds = dict(kinds)
        self.wide = tuple(column for column, kind in kinds.items() if is_wide(kind))
        self.numbers = tuple(column for column in kinds if column not in self.wide)
        self.dtype = np.dtype([("", "u1")] + [(column, little(kinds[column])) for column in self.numbers])
        self._version = WIDE_VERSION if self.wide else ADDED_VERSION if added else VALUE_VERSION
        self._added_bytes = sum(self.dtype[column].itemsize for column in added)

    def pack(self, columns: Mapping[str, npt.NDArray[Any]], row_ids: RowIds) -> npt.NDArray[np.void]:
        """The numbers of `row_ids`, as they are written."""
        rows = np.empty(len(row_ids), self.dtype)
        rows[self.dtype.names[0]] = self._version  # type: ignore[index]
        for column in self.numbers:
            rows[column] = columns[column][row_ids]
        return rows

    def read(self, data: Sequence[bytes]) -> tuple[npt.NDArray[np.void], list[list[bytes]]]:
        """The numbers of what was written, and the cells of each row of a table that has some."""
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
        """A column that stays has its type."""
        if any(name in self._kinds and np.dtype(self._kinds[name]) != kind for name, kind in before.items()):
            raise self._other_kinds(before)

    def rewrite(self, shard: Shard, state_id: int, before: Mapping[str, str], initial: Mapping[str, Any]) -> None:
        """All rows, which have the columns `before`, as they are written now; `initial`: of columns that came."""
        wide = any(map(is_wide, before.values()))
        was = RowLayout(before, WIDE_VERSION if wide else VALUE_VERSION)
        try:
            rewrite(shard, state_id, was, RowLayout(self._kinds, self._version), initial, self._check_version)
        except OtherRow as error:
            raise self._other_columns(str(error)) from error

    def check_written(self, written: Mapping[str, np.dtype[Any]], added: Collection[str]) -> None:
        """A segment has all columns, or all but those that were added since."""
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
