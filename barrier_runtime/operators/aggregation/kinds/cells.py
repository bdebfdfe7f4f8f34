"""Accumulators with one cell of bytes per entry: collections, sketches, and users' own, row by row.

A cell is *opened* once per key and batch, and becomes bytes again. Results must not depend on how often the state was
opened.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder, codes_of
from barrier_runtime.operators.aggregation.state_columns import (
    Columns,
    Initial,
    Ints,
    Values,
    from_words,
    to_words,
    word_dtypes,
)
from barrier_runtime.state.columns.wide_columns import EMPTY, WIDE

State = TypeVar("State")


class Full(Exception):
    """No room for a further value."""


class CellKind(Protocol[State]):
    """Kind of state in a cell. A cell without bytes belongs to an entry without values."""

    @property
    def name(self) -> str:
        """Name of the state column; never changes, equal for kinds with the same state."""

    @property
    def column(self) -> str:
        """Column of the computation, for messages."""

    def values(self, batch: BatchValues) -> tuple[Sequence[Any], Values | None]:
        """Returns a value per row for `add`, and the rows that count (None: all)."""

    def opened(self, cell: bytes) -> State: ...

    def add(self, state: State, values: Sequence[Any]) -> State:
        """Returns `state`, possibly changed in place, with `values` added. Raises `Full` without room."""

    def closed(self, state: State) -> bytes: ...

    def merged(self, earlier: bytes, later: bytes) -> bytes:
        """Returns the merged cell of two entries with values. Raises `Full` as `add` does."""


@dataclass(frozen=True)
class Reader:
    """Output of a cell: `read` gives a result, which later additions to the state do not change; `array` a column of
    results."""

    key: str  # equal for readers of the same result
    type: pa.DataType
    read: Callable[[Any], Any]
    array: Callable[[list[Any]], pa.Array]


@dataclass(frozen=True)
class Cells:
    kind: CellKind[Any]
    readers: dict[str, Reader] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.kind.name

    def storage(self) -> dict[str, tuple[str, Initial]]:
        return {self.name: (WIDE, EMPTY)}

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        kind, cells = self.kind, before[self.name].copy()
        values, positions = self._taken(rows, batch)
        bounds = np.searchsorted(positions, [*rows.starts, len(rows.order)]).tolist()
        for group in np.flatnonzero(np.diff(bounds)).tolist():
            taken = values[bounds[group] : bounds[group + 1]]
            try:
                cells[group] = kind.closed(kind.add(kind.opened(cells[group]), taken))
            except Full:
                raise left(kind.column, int(rows.row_ids[group]), str(kind)) from None
        return {self.name: cells}

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        kind, cells = self.kind, before[self.name].copy()
        values, positions = self._taken(rows, batch)
        at = np.full(len(rows.order), -1, np.int64)
        at[positions] = np.arange(len(positions))
        taken = at.tolist()
        readers = list(self.readers.values())
        results = [np.empty(len(rows.order), np.object_) for _ in readers]
        for group, (start, length) in enumerate(zip(rows.starts.tolist(), rows.lengths.tolist(), strict=True)):
            state = kind.opened(cells[group])
            read = [reader.read(state) for reader in readers]
            changed = False
            for position in range(start, start + length):
                value = taken[position]
                if value >= 0:
                    try:
                        state = kind.add(state, values[value : value + 1])
                    except Full:
                        raise left(kind.column, int(rows.row_ids[group]), str(kind)) from None
                    read, changed = [reader.read(state) for reader in readers], True
                for result, found in zip(results, read, strict=True):
                    result[position] = found
            if changed:
                cells[group] = kind.closed(state)
        return {self.name: cells}, {self._results(reader): each for reader, each in zip(readers, results, strict=True)}

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        merged = before[self.name].copy()
        for entry, cell in enumerate(later[self.name]):
            if cell:
                try:
                    merged[entry] = self.kind.merged(merged[entry], cell) if merged[entry] else cell
                except Full:
                    raise left(self.kind.column, entry, str(self.kind)) from None
        return {self.name: merged}

    def result(self, accumulators: Columns, key: str) -> pa.Array:
        reader = self.readers[key]
        after_rows = accumulators.get(self._results(reader))
        if after_rows is not None:
            return reader.array(after_rows.tolist())
        return reader.array([reader.read(self.kind.opened(cell)) for cell in accumulators[self.name]])

    def _results(self, reader: Reader) -> str:
        return f"{self.name}.{reader.key}"

    def _taken(self, rows: RunningOrder, batch: BatchValues) -> tuple[Sequence[Any], Values]:
        values, counts = self.kind.values(batch)
        positions = np.arange(len(rows.order)) if counts is None else np.flatnonzero(counts[rows.order])
        order = rows.order[positions].tolist()
        return [values[row] for row in order], positions


# A column's values as consecutive bytes, for cells.
# Words of 8 bytes (little endian); text and bytes after their length (4 bytes).

_length = struct.Struct("<I")
_WORD_BYTES = 8


class EncodedValues:
    """`distinct`: equal values have equal bytes, so 0.0 replaces -0.0, one NaN all others."""

    def __init__(self, kind: pa.DataType, distinct: bool = False) -> None:
        self.kind = kind
        self._distinct = distinct
        self._dtypes = word_dtypes(kind)
        self._wide = self._dtypes == (WIDE,)
        self._bytes = 0 if self._wide else _WORD_BYTES * len(self._dtypes)

    @property
    def is_one_word(self) -> bool:
        return self._bytes == _WORD_BYTES

    def of(self, batch: BatchValues, column: str, rows: Values | None = None) -> list[bytes]:
        """Null has bytes without meaning."""
        words = batch.words(column)
        if rows is not None:
            words = tuple(word[rows] for word in words)
        if self._wide:
            return [_length.pack(len(cell)) + cell for cell in words[0]]
        width, data = self._bytes, np.stack([self._plain(word) for word in words], 1).tobytes()
        return [data[at : at + width] for at in range(0, len(data), width)]

    def coded(self, batch: BatchValues, column: str) -> tuple[Ints, Ints]:
        """Returns a number per row, -1 for null, rising by one at each new value, and the word of each number."""
        if pa.types.is_signed_integer(self.kind):  # the values are the words
            encoded = batch.encoded(column)
            return codes_of(encoded), to_words(encoded.dictionary)[0]
        (word,), valid = batch.words(column), batch.valid(column)
        words = pa.array(self._plain(word).view(np.int64), mask=None if valid is None else ~valid)
        encoded = words.dictionary_encode()
        return codes_of(encoded), encoded.dictionary.to_numpy()

    def split(self, data: bytes) -> list[bytes]:
        width = self._bytes
        if not self._wide:
            return [data[at : at + width] for at in range(0, len(data), width)]
        found, at = [], 0
        while at < len(data):
            end = at + _length.size + _length.unpack_from(data, at)[0]
            found.append(data[at:end])
            at = end
        return found

    def array(self, values: Sequence[bytes]) -> pa.Array:
        """Returns the column of values from `of`; an element may hold several values."""
        data = b"".join(values)
        if not self._wide:
            words = np.frombuffer(data, np.int64).reshape(-1, len(self._dtypes)).T
            return from_words(
                tuple(np.ascontiguousarray(word).view(self._dtypes[0]) for word in words), self.kind, None
            )
        cells = np.array([None, *(value[_length.size :] for value in self.split(data))], np.object_)[1:]
        return from_words((cells,), self.kind, None)

    def _plain(self, word: Any) -> Any:
        if self._distinct and word.dtype == np.float64:
            return np.where(np.isnan(word), np.nan, word + 0.0)
        return word
