"""Batches as rows that have only the columns for which a function reads them."""

import sys
from collections.abc import Iterator
from typing import Any

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.rows import Row, dicts, each_row_of, values_of, values_of_few

_MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on


def each_row_read(batch: Batch, reads: frozenset[str] | None) -> Iterator[Row]:
    """Yields one dict per row, with the columns of the batch that are in `reads`; None: with all columns.

    While a debugger runs, rows have all columns, because the debugger shows them.
    """
    if reads is None or _debugged():
        return each_row_of(batch)
    few = batch.few
    if few is None:
        rows = batch.rows
        names = [name for name in rows.schema.names if name in reads]
        columns = [values_of(rows.column(name)) for name in names]
    else:
        layout, at = few.layout, few.layout.positions_of(reads)
        names = [layout.names[each] for each in at]
        columns = [few.columns[each] for each in at]
        if layout.has_times:
            columns = [
                values_of_few(values, layout.types[each], layout.times[each])
                for each, values in zip(at, columns, strict=True)
            ]
    return dicts(names, columns) if names else ({} for _ in range(batch.count))


def _debugged() -> bool:
    """True if a debugger (or another tracer) may look at the variables of functions."""
    if sys.gettrace() is not None:
        return True
    return _MONITORING is not None and _MONITORING.get_tool(_MONITORING.DEBUGGER_ID) is not None
