"""An accumulator of several columns of state that change together, and by the order of rows.

Its columns have names like `first.has:price`: kind, part, what it is of; they never change.
"""

from typing import Protocol

import numpy as np
import numpy.typing as npt

from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder
from barrier_runtime.operators.aggregation.state_columns import Columns, Initial, Values


class Composite(Protocol):
    @property
    def name(self) -> str:
        """Equal for those that have the same columns of state, and do the same."""

    def storage(self) -> dict[str, tuple[str, Initial]]:
        """Its columns: name → (numpy dtype, initial value)."""

    def added(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        """Its columns with all rows, per group of `rows`. `before`: what they hold, per group. Rows taken one by one,
        in whatever batches they come, give the same bits."""

    def running(
        self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left
    ) -> tuple[Columns, dict[str, Values]]:
        """`added`, and after each row, in the order of `rows.order`, what its results are computed from."""

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        """Its columns for entries that have the rows of both: those of `before`, and then those of `later`. `left` gets
        the index of an entry."""


class RowByRow:
    """A composite that finds its columns after each row of a batch at once."""

    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> dict[str, Values]:
        """Its columns after each row, in the order of `rows.order`."""
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
    """Per row `after` of the row `latest[row]`; what its group had `before` where that is -1."""
    return np.where(latest >= 0, after[latest], before[groups])
