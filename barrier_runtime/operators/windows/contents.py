"""Content of windows that keep aggregates, the choice of their entries, and rows that may be combined."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.event_time import event_times_ms
from barrier_runtime.data.grouping import extremes, number_rows, stable_order
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.windows.aggregate import Windows
from barrier_runtime.operators.windows.assigners import Session, WindowAssigner, lateness_definition
from barrier_runtime.operators.windows.entries import WindowEntries
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.operators.windows.sessions.aggregate import Sessions
from barrier_runtime.operators.windows.sessions.updates import ToldSessions
from barrier_runtime.operators.windows.sliding import sliding_entries
from barrier_runtime.operators.windows.triggers import WindowTrigger


@dataclass(frozen=True)
class Aggregates:
    aggregates: Mapping[str, AnyAggregate]
    in_slices: bool = True  # where windows share slices and the aggregates permit
    holds_rows = False

    def definition(self, window: WindowAssigner, lateness_ms: int = 0, trigger: WindowTrigger | None = None) -> str:
        told = "" if trigger is None else f", {trigger.definition}"
        return lateness_definition(window, lateness_ms) + told

    def entries(self, operator: WindowOperator) -> WindowEntries:
        window = operator.window
        once = not operator.lateness_ms and operator.trigger is None
        if window.merges:
            return Sessions(operator) if once else ToldSessions(operator)
        if window.shares_slices and self.in_slices and once and not operator.clock.is_wall_clock:
            return sliding_entries(operator)
        return Windows(operator)


# Rows that the combiner may replace by a partial row: they share their windows and their lateness.
# Design: docs/design/combiner.md.


@dataclass(frozen=True)
class WindowParts:
    window: WindowAssigner
    column: str

    def __call__(self, batch: Batch, keys: list[pa.Array]) -> list[pa.Array] | None:
        """Returns the keys and the part of each row; None: rows may not be combined."""
        if batch.reached is not None:
            return None
        times_ms = _times_ms(batch, self.column, self.window)
        if times_ms is None:
            return None
        first, last = self.window.parts_of(np.array(extremes(times_ms))).tolist()
        return keys if first == last else [*keys, pa.array(self.window.parts_of(times_ms))]


@dataclass(frozen=True)
class Repeats:
    window: Session
    column: str

    def __call__(self, batch: Batch, keys: list[pa.Array]) -> list[pa.Array] | None:
        """Returns a number per row, equal for repeats; None: rows may not be combined."""
        times_ms = _times_ms(batch, self.column, self.window)
        if times_ms is None:
            return None
        of_row, _ = number_rows(keys)
        order = stable_order(of_row)
        begins = np.zeros(len(order), np.bool_)
        for values in (of_row, times_ms, batch.reached):
            if values is not None:
                ordered = values[order]
                begins[1:] |= ordered[1:] != ordered[:-1]
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(begins)
        return [pa.array(numbers)]


def _times_ms(batch: Batch, column: str, window: WindowAssigner) -> npt.NDArray[np.int64] | None:
    if column not in batch.rows.schema.names or batch.rows.column(column).null_count:
        return None
    times_ms = event_times_ms(batch.rows.column(column))
    return times_ms if window.holds(*extremes(times_ms)) else None
