"""Accumulators with one cell of bytes per entry: collections, sketches, and users' own, row by row.

A cell is *opened* once per key and batch, and becomes bytes again. Results must not depend on how often the state was
opened.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Values
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
