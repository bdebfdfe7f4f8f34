"""Base of the entries of windows, in a columnar table keyed by (keys, start).
Kinds: docs/design/windows.md.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import order_of_ints
from barrier_runtime.data.keys import sort_rows
from barrier_runtime.operators.aggregation.accumulators import SumBounds
from barrier_runtime.operators.aggregation.batch_values import Left
from barrier_runtime.operators.aggregation.described import describe_aggregates
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Columns
from barrier_runtime.operators.base import Capture, Emit
from barrier_runtime.operators.windows import firing
from barrier_runtime.operators.windows.firing import EARLY, RETRACTED, TIME, UPDATE, window_schema
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.errors import InvalidJob

_MAX_ROWS = 65_536
Ints: TypeAlias = npt.NDArray[np.int64]


class WindowEntries:
    in_slices = False
    evictable = False

    def __init__(self, operator: WindowOperator, beside: Sequence[pa.Field]) -> None:
        """`beside`: columns of results between keys and aggregates. Called after event time is restored."""
        self.operator = operator
        self.where = operator.where
        self._beside = tuple(beside)
        self._lateness_ms = operator.lateness_ms

    def bind(self, columns: pa.Schema) -> None:
        operator = self.operator
        aggregates = operator.content.aggregates
        self.codec = operator.codec
        self.plan = plan_aggregates(aggregates, columns, self.where, operator.known_columns)
        self._output = window_schema(columns, operator.key_columns, aggregates, self.where, self._beside)
        self.table = operator.table(self.plan, self._more_state(), self.evictable, self.in_slices)
        describe_aggregates(operator.backend, dict(aggregates), self.where, first=operator.context.subtask == 0)
        self.bounds = SumBounds()
        self._restored()

    def _restored(self) -> None:
        pass

    def _more_state(self) -> Mapping[str, tuple[str, Any]]:
        return {}

    def captured(self, capture: Capture) -> None:
        """Adds state outside of the table to a snapshot."""

    def process(self, batch: Batch, emit: Emit) -> None:
        """Takes rows; rows that have to wait become `operator.rest`."""
        raise NotImplementedError

    def reach(self, watermark_ms: int, emit: Emit) -> Iterator[None]:
        """Does the work due at `watermark_ms`, with a step after each part."""
        raise NotImplementedError

    def reach_floors(self, emit: Emit) -> Iterator[None]:
        """Emits windows over by their key group's event time, which is ahead of the subtask's."""
        raise NotImplementedError

    @property
    def next_ms(self) -> int | None:
        """Watermark before which no window is over; None: no windows."""
        raise NotImplementedError

    def tell_early(self, emit: Emit) -> bool:
        """Emits a turn of early results due by the wall clock; returns whether any were due."""
        return False

    def _floors_of(self, row_ids: Ints) -> Ints:
        if not len(row_ids):
            return np.zeros(0, np.int64)
        keys = zip(*self.table.keys_of(row_ids), strict=True)
        width = range(len(self.operator.key_columns))
        return self.operator.reached_by([self.codec.column(i, values) for i, values in zip(width, keys, strict=False)])

    def parts(self, row_ids: Ints, by: Ints | None = None) -> Iterator[Ints | None]:
        """Yields `row_ids` by window and keys, in parts (see `in_order`).
        `by`: a first sort key, by row id of the table."""

        def order(some: Ints) -> Ints:
            return self.ordered(some, None if by is None else by[some])

        if len(row_ids) and self.table.int_keys_of(row_ids[:1]) is None:
            return firing.in_order(row_ids, order, firing.FEW_TUPLES, firing.PART_TUPLES)

        def fields_of(some: Ints) -> list[Ints]:
            *keys, starts = self.fields_of(some)
            return [*([] if by is None else [by[some]]), starts, *keys]

        return firing.ints_in_order(row_ids, fields_of, firing.FEW, firing.PART)

    def left(self, column: str, row_id: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self.plan.left(self.where, column, self.table.keys_of(np.array([row_id]))[0][:-1], aggregate)

    def _process_in_cuts(
        self,
        batch: Batch,
        emit: Emit,
        cut: Callable[[Batch], tuple[int, int] | None],
        process: Callable[[Batch, Emit], None],
    ) -> None:
        operator = self.operator
        operator.arrive(emit)
        while (found := cut(batch)) is not None:
            row, reached_ms = found
            if row:
                process(batch.slice(0, row), emit)
                if operator.rest is not None:
                    operator.rest = batch.slice(row - len(operator.rest))
                    return
            if not operator.first_goes(batch, row, reached_ms, emit):
                return
            batch = batch.slice(row)
        process(batch, emit)

    def fields_of(self, row_ids: Ints) -> list[Any]:
        ints = self.table.int_keys_of(row_ids)
        return list(ints) if ints is not None else list(zip(*self.table.keys_of(row_ids), strict=True))

    def ordered(self, row_ids: Ints, by: Ints | None = None) -> Ints:
        if not len(row_ids):
            return row_ids
        *keys, starts = self.fields_of(row_ids)
        first = [] if by is None else [by]
        if isinstance(starts, np.ndarray):
            ordered: Ints = row_ids[order_of_ints([*first, starts, *keys])]
            return ordered
        columns = [pa.array(starts), *(self.codec.column(i, values) for i, values in enumerate(keys))]
        by_keys: Ints = row_ids[sort_rows([*map(pa.array, first), *columns])]
        return by_keys

    def results(
        self,
        row_ids: Ints,
        fields: list[Any],
        ends: Ints,
        accumulators: Columns,
        updates: Ints | None = None,
        early: bool | npt.NDArray[np.bool_] = False,
        retracted: bool = False,
        of_id: Left | None = None,
    ) -> pa.RecordBatch:
        """`fields`: of the entries' keys.
        `of_id`: error for a result that does not fit its type, if `row_ids` are not the table's."""

        def left(column: str, row: int, aggregate: str = "sum_", /) -> Exception:
            return (of_id or self.left)(column, int(row_ids[row]), aggregate)

        *keys, starts = fields
        beside = {
            "window_start": lambda: pa.array(np.array(starts, np.int64)).view(TIME),
            "window_end": lambda: pa.array(ends).view(TIME),
            UPDATE: lambda: pa.array(updates),
            EARLY: lambda: pa.array(np.full(len(row_ids), early, np.bool_)),
            RETRACTED: lambda: pa.array(np.full(len(row_ids), retracted, np.bool_)),
        }
        return pa.RecordBatch.from_arrays(
            [
                *[self.codec.column(i, values) for i, values in enumerate(keys)],
                *[beside[field.name]() for field in self._beside],
                *[output.column(accumulators, left) for output in self.plan.outputs],
            ],
            schema=self._output,
        )

    def accumulators(self, row_ids: Ints) -> Columns:
        return {name: column[row_ids] for name, column in self.table.columns.items()}

    def initial(self, count: int) -> dict[str, npt.NDArray[Any]]:
        columns = self.table.columns
        storage = self.plan.storage()
        return {name: np.full(count, initial, columns[name].dtype) for name, (_, initial) in storage.items()}

    def send(self, results: pa.RecordBatch, reached: Ints, emit: Emit, emit_ns: int | None = None) -> None:
        """`reached`: event time directly before each result."""
        operator = self.operator
        fired = Batch(results, operator.emit_ns() if emit_ns is None else emit_ns, reached if operator.by_row else None)
        for first in range(0, results.num_rows, _MAX_ROWS):
            emit(fired.slice(first, _MAX_ROWS))
