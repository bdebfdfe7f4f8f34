"""Windows by count: every n rows of a key a result of those n rows.

They are made of a window over all rows with an early result every n rows, of the rows since the last one. So a row that
fills a window emits it within its batch, and state is one entry per key, however many windows there were. With a slide
it is one per key and phase (see `Count`); those of other phases are over at other rows, because each phase but the
first begins as if it had had rows before."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.windows.aggregate import FIRINGS
from barrier_runtime.operators.windows.assigners import Count
from barrier_runtime.operators.windows.base import Ints
from barrier_runtime.operators.windows.early import EarlyWindowOperator
from barrier_runtime.operators.windows.triggers import Every


class CountWindowOperator(EarlyWindowOperator):
    def __init__(
        self,
        name: str,
        keys: Sequence[str],
        window: Count,
        event_time: str | None,
        aggregates: Mapping[str, AnyAggregate],
        schema: pa.Schema | None = None,
        late: bool = False,
    ) -> None:
        early = Every(rows=window.rows, accumulate=False)
        super().__init__(name, keys, window, event_time, aggregates, schema, late, early=early)
        self.definition = window.definition
        self._beside = ()
        self._slide = window.rows if window.slide is None else window.slide

    def _since(self, row_ids: Ints) -> Ints:
        since = super()._since(row_ids)
        if self._slide == self._rows:
            return since
        phases = -np.asarray(self._fields_of(row_ids)[-1], np.int64)
        begins = self._table.columns[FIRINGS][row_ids] == 0
        with_those_before: Ints = since + begins * phases * self._slide
        return with_those_before

    def _fire(self, row_ids: Ints, emit: Emit) -> None:
        """The input has ended: these are not full."""
        self._remove(row_ids)
