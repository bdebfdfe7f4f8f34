"""The combiner: turns the rows of a batch into partial rows before they are exchanged by key.

It keeps no rows between batches: batches are small at low load, where there is nothing to save, and grow with the load.
So nothing waits, and a barrier or watermark finds nothing to flush. The measured share of different keys decides
(`_Share`); see docs/design/combiner.md.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import number_rows
from barrier_runtime.data.partial_rows import PARTIAL
from barrier_runtime.operators.aggregation.merging import may_be_in_any_order
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.partials import partial_rows
from barrier_runtime.operators.aggregation.plan import AggregationPlan, plan_aggregates

FEWEST = 512  # rows of a batch from which combining pays
_SAMPLE = 16_384  # rows
_ON, _OFF = 0.5, 0.7  # shares of different keys among the rows at which combining begins and ends
_PAUSE = 64  # batches between two samples


class _Share:
    """Whether few enough of the rows have different keys.

    off ─ share of a sample <= `_ON` ─► on ─ share of a batch > `_OFF` ─► off; the next sample is `_PAUSE` batches later
    """

    def __init__(self) -> None:
        self._is_on = False
        self._pause = 0

    def is_low(self, keys: Sequence[pa.Array]) -> bool:
        """Returns whether to number the keys of a batch."""
        if self._is_on:
            return True
        if self._pause:
            self._pause -= 1
            return False
        sample = [column.slice(0, _SAMPLE) for column in keys]
        _, different = number_rows(sample)
        self._is_on = different <= _ON * len(sample[0])
        self._pause = _PAUSE
        return self._is_on

    def stays_low(self, rows: int, different: int) -> bool:
        """Notes the keys of a batch. Returns whether to combine the batch."""
        self._is_on = different <= _OFF * rows
        return self._is_on


class Combiner:
    """The combiner of a sending subtask and edge."""

    mode: ClassVar[Literal["chosen", "on", "off"]] = "chosen"  # tests force the others

    def __init__(self, keys: Sequence[str], aggregates: Mapping[str, AnyAggregate], where: str) -> None:
        self._keys = tuple(keys)
        self._aggregates = aggregates
        self._where = where
        self._share = _Share()
        self._schema: pa.Schema | None = None
        self._plan: AggregationPlan | None = None  # None: rows of `_schema` are not combined

    def combined(self, batch: Batch) -> Batch:
        """Returns partial rows in place of the rows, or the batch."""
        if self.mode == "off" or (self.mode == "chosen" and batch.count < FEWEST) or not batch.count:
            return batch
        rows = batch.rows
        plan = self._plan_of(rows.schema)
        if plan is None:
            return batch
        keys = [rows.column(key) for key in self._keys]
        if self.mode == "chosen" and not self._share.is_low(keys):
            return batch
        of_row, different = number_rows(keys)
        if self.mode == "chosen" and not self._share.stays_low(batch.count, different):
            return batch
        return partial_rows(plan, batch, of_row, different, self._where) or batch

    def _plan_of(self, schema: pa.Schema) -> AggregationPlan | None:
        if self._schema is None or not (schema is self._schema or schema.equals(self._schema)):
            self._schema, self._plan = schema, None
            names = schema.names
            if set(self._keys) <= set(names) and not any(name.startswith(PARTIAL) for name in names):
                plan = plan_aggregates(self._aggregates, schema, self._where)
                self._plan = plan if may_be_in_any_order(plan) else None
        return self._plan
