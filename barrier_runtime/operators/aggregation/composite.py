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

    def after(self, before: Columns, rows: RunningOrder, batch: BatchValues, left: Left) -> Columns:
        """Its columns after each row, in the order of `rows.order`. `before`: what they hold, per group of `rows`. Rows
        taken one by one, in whatever batches they come, give the same bits."""

    def merged(self, before: Columns, later: Columns, left: Left) -> Columns:
        """Its columns for entries that have the rows of both: those of `before`, and then those of `later`. `left` gets
        the index of an entry."""


def carried(latest: npt.NDArray[np.intp], groups: npt.NDArray[np.intp], before: Values, after: Values) -> Values:
    """Per row `after` of the row `latest[row]`; what its group had `before` where that is -1."""
    return np.where(latest >= 0, after[latest], before[groups])
