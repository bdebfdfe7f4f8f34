"""Windows by count: they are what windows of all rows tell every n rows, of the rows since the last time. So a row that
fills a window emits it within its batch, and state is one entry per key, however many windows there were."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.base import Emit
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

    def _fire(self, row_ids: Ints, emit: Emit) -> None:
        """The input has ended: these are not full."""
        self._remove(row_ids)
