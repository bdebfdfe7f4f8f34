"""Accumulator of state columns that change together, in row order.
Column names never change, such as `first.has:price`: kind, part, column."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Values


class Composite(Protocol):
    @property
    def name(self) -> str:
        """Name, equal for composites with the same state and behaviour."""

    def storage(self) -> dict[str, tuple[str, Initial]]:
        """State columns: name -> (numpy dtype, initial value)."""

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        """Returns the columns after all rows, per group of `rows`.

        `before`: the values before, per group. The bits do not depend on the cuts of batches.
        """

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        """Returns `added`, and the inputs of the results after each row, in the order of `rows.order`."""

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        """Merges accumulators per entry: the rows of `before` precede those of `later`.
        `left` gets the index of an entry."""


class RowByRow:
    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        """Returns the columns after each row, in the order of `rows.order`."""
        raise NotImplementedError

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        return self.running(before, rows, batch, left)[0]

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        after = self.after(before, rows, batch, left)
        last = rows.starts + rows.lengths - 1
        return {name: values[last] for name, values in after.items()}, after


def carried(latest: npt.NDArray[np.intp], groups: npt.NDArray[np.intp], before: Values, after: Values) -> Values:
    """Values at the `latest` row that gave one (-1: none, so the group's value before)."""
    return np.where(latest >= 0, after[latest], before[groups])
