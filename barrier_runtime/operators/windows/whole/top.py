"""The n greatest or least rows of each window by a column; open windows hold no others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.data.grouping import stable_order
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.windows.aggregate import Windows
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.entries import Ints
from barrier_runtime.operators.windows.firing import SPAN
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.triggers import WindowTrigger
from barrier_runtime.operators.windows.whole.apply import HeldWindows, Results
from barrier_runtime.operators.windows.whole.window_rows import TAIL, Bools, WindowRows
from barrier_runtime.state.columns.wide_columns import EMPTY, lengths

RANK = "rank"  # output column: 1, 2, …


@dataclass(frozen=True)
class Top:
    n: int
    by: str
    largest: bool = True
    spans_known: bool = False  # the rows are results of the same windows, with start and end
    holds_rows = True

    @property
    def aggregates(self) -> Mapping[str, AnyAggregate]:
        return {}

    def definition(self, window: WindowAssigner, lateness_ms: int = 0, trigger: WindowTrigger | None = None) -> str:
        return f"{window.definition}, the {self.n} {'largest' if self.largest else 'smallest'} by {self.by}"

    def entries(self, operator: WindowOperator) -> Windows:
        return TopWindows(operator, self)


class TopWindows(HeldWindows):
    small_at_once = 2_048

    def __init__(self, operator: WindowOperator, content: Top) -> None:
        super().__init__(operator)
        self._content = content
        self._adds_span = self.window.bounded and not content.spans_known

    def _holder(self, columns: pa.Schema) -> WindowRows:
        self._top_output = top_schema(columns, self._adds_span)
        return _TopRows(self._content, self.operator.backend, self.table, columns, None, self.where)

    def _results_of(self, row_id: int, state_key: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
        for rows in self._held_rows.batches_of(row_id):
            yield self._told(rows, np.array([state_key[-1]]), np.array([len(rows)]))

    def _add_small(self, row_ids: Ints, state_keys: list[tuple[Any, ...]], results: Results) -> None:
        rows, counts = self._held_rows.of_small(row_ids)
        starts = [state_key[-1] for state_key in state_keys]
        results.add(self._told(rows, np.array(starts), counts), starts, counts.tolist())

    def _told(self, rows: pa.RecordBatch, starts: Ints, counts: Ints) -> pa.RecordBatch:
        ranks = pa.array(np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts) + 1)
        beside = [ranks]
        if self._adds_span:
            times = (np.repeat(starts, counts), np.repeat(self.window.ends(starts), counts))
            beside = [*(pa.array(time).view(field.type) for field, time in zip(SPAN, times, strict=True)), ranks]
        return pa.RecordBatch.from_arrays([*rows.columns, *beside], schema=self._top_output)


class _TopRows(WindowRows):
    """Rows by rank, in a tail or a single chunk."""

    def __init__(self, content: Top, *rest: Any) -> None:
        super().__init__(*rest)
        self._n = content.n
        self._by = content.by
        self._sort: Any = "descending" if content.largest else "ascending"

    def _ranked(self, rows: pa.RecordBatch) -> npt.NDArray[np.intp]:
        """Returns the order of rows: of equal rows the older is first; NaN is greatest, nulls are last."""
        order: npt.NDArray[np.intp] = pc.sort_indices(rows, [(self._by, self._sort)]).to_numpy().astype(np.intp)
        values = rows.column(self._by)
        if self._sort == "descending" and pa.types.is_floating(values.type):
            known = len(values) - values.null_count
            numbers = known - int(np.isnan(values.drop_null().to_numpy(zero_copy_only=False)).sum())
            order = np.concatenate((order[numbers:known], order[:numbers], order[known:]))
        return order

    def _order(self, rows: pa.RecordBatch, row_ids: Ints) -> npt.NDArray[np.intp]:
        order = self._ranked(rows)
        order = order[stable_order(row_ids[order])]
        ordered = row_ids[order]
        firsts = np.flatnonzero(np.diff(ordered, prepend=-1))
        ranks = np.arange(len(ordered)) - np.repeat(firsts, np.diff(firsts, append=len(ordered)))
        return order[ranks < self._n]

    def _kept(self, rows: pa.RecordBatch, row_ids: Ints) -> tuple[pa.RecordBatch, Ints]:
        """Returns the rows to keep, including rows of tails, which are rewritten."""
        rows, row_ids = super()._kept(rows, row_ids)
        tails = self._windows.columns[TAIL]
        entries = row_ids[np.flatnonzero(np.diff(row_ids, prepend=-1))]
        entries = entries[lengths(tails[entries]) > 0]
        if len(entries):
            before, counts = self._tails(entries)
            tails[entries] = EMPTY
            rows, row_ids = pa.concat_batches([before, rows]), np.concatenate([np.repeat(entries, counts), row_ids])
            rows, row_ids = super()._kept(rows, row_ids)
        return rows, row_ids

    def _may_grow_tails(self, entries: Ints) -> Bools:
        return self.are_small(entries)

    def _takes_in(self, before: int, rows: pa.RecordBatch) -> bool:
        return True

    def _merged(self, chunks: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
        if len(chunks) == 1:
            return chunks[0]
        rows = pa.concat_batches(chunks)
        return rows.take(pa.array(self._ranked(rows)[: self._n]))


def top_schema(schema: pa.Schema, adds_span: bool) -> pa.Schema:
    return pa.schema([*schema, *(SPAN if adds_span else ()), pa.field(RANK, pa.int64())])
