"""Rules for when windows emit results: for each kind of trigger, and `OnClose` without a trigger."""

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import KeyCodec
from barrier_runtime.operators.aggregation.accumulators import SumBounds
from barrier_runtime.operators.aggregation.batch_values import RunningOrder
from barrier_runtime.operators.aggregation.plan import AggregationPlan
from barrier_runtime.operators.aggregation.state_columns import Columns
from barrier_runtime.operators.base import Emit, OperatorContext
from barrier_runtime.operators.windows.firing import FIRINGS, ByStart
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import InvalidJob

Ints: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class WindowEnds(Protocol):
    @property
    def bounded(self) -> bool: ...

    def ends(self, starts_ms: Ints) -> Ints: ...

    def over_by(self, watermarks_ms: Ints) -> Ints: ...


class TimedOperator(Protocol):
    name: str
    lateness_ms: int
    watermark_ms: int

    @property
    def context(self) -> OperatorContext: ...


class RuledWindows(Protocol):
    table: ColumnTable
    plan: AggregationPlan
    codec: KeyCodec
    bounds: SumBounds
    due: ByStart
    held: list[tuple[pa.RecordBatch, Ints]] | None

    @property
    def where(self) -> str: ...

    @property
    def window(self) -> WindowEnds: ...

    @property
    def operator(self) -> TimedOperator: ...

    def take(self, batch: Batch, emit: Emit) -> tuple[int, int] | None: ...

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> Ints: ...

    def row_ids(self, rows: pa.RecordBatch, starts: Ints) -> Ints: ...

    def note(self, windows: ByStart, row_ids: Ints) -> None: ...

    def entries_of_over(self, rows: pa.RecordBatch, starts: Ints) -> Ints: ...

    def next_updates(self, order: RunningOrder) -> Ints: ...

    def fields_of(self, row_ids: Ints) -> list[Any]: ...

    def ordered(self, row_ids: Ints) -> Ints: ...

    def parts(self, row_ids: Ints) -> Iterator[Ints | None]: ...

    def accumulators(self, row_ids: Ints) -> Columns: ...

    def initial(self, count: int) -> dict[str, npt.NDArray[Any]]: ...

    def results(
        self,
        row_ids: Ints,
        fields: list[Any],
        ends: Ints,
        accumulators: Columns,
        updates: Ints | None = None,
        early: bool | Bools = False,
    ) -> pa.RecordBatch: ...

    def left(self, column: str, row_id: int, aggregate: str = "sum_", /) -> InvalidJob: ...

    def fire(self, row_ids: Ints, emit: Emit) -> None: ...

    def fire_again(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints, emit: Emit) -> None: ...

    def fire_over(self, watermark_ms: int, emit: Emit) -> Iterator[None]: ...

    def keep(self, row_ids: Ints) -> None: ...

    def went_out(self, row_ids: Ints) -> None: ...

    def remove(self, row_ids: Ints) -> None: ...

    def send(self, results: pa.RecordBatch, reached: Ints, emit: Emit, emit_ns: int | None = None) -> None: ...

    def send_for(self, results: pa.RecordBatch, batch: Batch, of_row: Ints, emit: Emit) -> None: ...


class OnClose:
    """Rule without a trigger: emits windows when over; with an allowed lateness, again per late row."""

    evictable = True
    any_order = True  # rows of different keys may be taken in any order
    cuts_batches = False  # results may be due between two rows of a batch

    def __init__(self, windows: "RuledWindows") -> None:
        self.windows = windows
        self.is_kept = windows.operator.lateness_ms > 0

    def columns(self) -> Mapping[str, tuple[str, Any]]:
        return {FIRINGS: ("int64", 0)} if self.is_kept else {}

    def restored(self) -> None:
        """Called after the table is open."""

    def were_over(self, row_ids: Ints) -> Bools:
        """Returns the mask of windows that were emitted at their end and are kept for late rows."""
        over: Bools = self.windows.table.columns[FIRINGS][row_ids] > 0
        return over

    def cut(self, batch: Batch) -> tuple[int, int] | None:
        """Returns the first row before which results are due, and event time there (ms), or None."""
        return None

    def take(self, batch: Batch, emit: Emit) -> tuple[int, int] | None:
        return self.windows.take(batch, emit)

    def add(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints | None, emit: Emit) -> None:
        self.windows.add(rows, starts, batch, of_row, emit)

    def left_memory(self) -> None:
        """Called after each batch once entries are evicted."""

    def fire_again(self, rows: pa.RecordBatch, starts: Ints, batch: Batch, of_row: Ints, emit: Emit) -> None:
        self.windows.fire_again(rows, starts, batch, of_row, emit)

    def before(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        """Does the work due before event time reaches `watermark_ms`, and yields after each part."""
        return iter(())

    def turn(self, emit: Emit) -> bool:
        """See `WindowEntries.tell_early`."""
        return False

    def fire(self, row_ids: Ints, emit: Emit) -> None:
        self.windows.fire(row_ids, emit)

    def went_out(self, row_ids: Ints) -> None:
        """Called after results of windows that stay."""

    def keep_over(self, row_ids: Ints) -> None:
        """Called when windows are over and kept for late rows."""

    def removed(self, row_ids: Ints) -> None:
        """Called before windows are removed."""
