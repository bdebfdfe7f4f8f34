"""An accumulator of several state columns that change together, in the order of rows.
Column names are fixed, such as `first.has:price`: kind, part, column."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Values


class Composite(Protocol):
    @property
    def name(self) -> str:
        """Equal for composites with the same columns of state and the same behaviour."""

    def storage(self) -> dict[str, tuple[str, Initial]]:
        """State columns: name -> (numpy dtype, initial value)."""

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        """Returns the columns after all rows, per group of `rows`. `before`: their values before, per group.
        Rows give the same bits in whatever batches they arrive."""

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        """Returns `added`; and the inputs of the results after each row, in the order of `rows.order`."""

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        """Returns the columns of entries with the rows of both: those of `before`, then those of `later`.
        `left` gets the index of an entry."""


class RowByRow:
    """Composites that compute their columns after each row of a batch at once."""

    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        """Columns after each row, in the order of `rows.order`."""
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
    """Per row `after[latest[row]]`; for -1 the group's value `before`."""
    return np.where(latest >= 0, after[latest], before[groups])
