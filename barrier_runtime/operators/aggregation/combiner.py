"""The combiner: turns a batch into partial rows before the exchange by key.

The measured share of different keys decides whether to combine. Design: docs/design/combiner.md.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, TypeAlias

import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.grouping import last_of_groups
from barrier_runtime.operators.aggregation.merging import may_be_in_any_order
from barrier_runtime.operators.aggregation.own import AnyAggregate
from barrier_runtime.operators.aggregation.partial_schema import PARTIAL
from barrier_runtime.operators.aggregation.partials import partial_rows
from barrier_runtime.operators.aggregation.plan import AggregationPlan, plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Ints

FEWEST = 512  # rows of a batch from which combining pays
_SAMPLE = 16_384
_ON, _OFF = 0.25, 0.35  # shares of different keys at which combining begins and ends
_PAUSE = 64  # batches between two samples
_MORE = 4  # a batch with so many times the rows of the last sample is sampled at once
_NARROW = 64  # bytes per row of batches that may be larger

# batch, key columns -> columns by which rows are combined; None: the batch is not combined
CombinedBy: TypeAlias = Callable[[Batch, list[pa.Array]], list[pa.Array] | None]


class _Share:
    def __init__(self) -> None:
        self._is_on = False
        self._pause = 0
        self._sampled = 0  # rows of the last sample

    def looks(self, rows: int) -> bool:
        """Small batches, such as the first batches of a source, do not decide on batches of many more rows."""
        if self._is_on or not self._pause or rows >= min(_SAMPLE, _MORE * self._sampled) > self._sampled:
            return True
        self._pause -= 1
        return False

    def is_low(self, keys: Sequence[pa.Array]) -> bool:
        if self._is_on:
            return True
        sample = [column.slice(0, _SAMPLE) for column in keys]
        _, last = last_of_groups(sample)
        self._is_on = len(last) <= _ON * len(sample[0])
        self._pause, self._sampled = _PAUSE, len(sample[0])
        return self._is_on

    def stays_low(self, rows: int, different: int) -> bool:
        self._is_on = different <= _OFF * rows
        return self._is_on


class Combiner:
    mode: ClassVar[Literal["chosen", "on", "off"]] = "chosen"  # tests force the others

    def __init__(
        self,
        keys: Sequence[str],
        aggregates: Mapping[str, AnyAggregate],
        where: str,
        by: CombinedBy | None = None,
    ) -> None:
        self._keys = tuple(keys)
        self._by = by
        self._aggregates = aggregates
        self._where = where
        self._share = _Share()
        self.takes_more = False
        self._schema: pa.Schema | None = None
        self._plan: AggregationPlan | None = None  # None: rows of `_schema` are not combined

    def combined(self, batch: Batch) -> Batch:
        chosen = self.mode == "chosen"
        self.takes_more = False
        if self.mode == "off" or not batch.count or (chosen and batch.count < FEWEST):
            return batch
        if chosen and not self._share.looks(batch.count):
            return batch
        keys = self._keys_of(batch) if self._combines(batch.schema) else None
        if keys is None or (chosen and not self._share.is_low(keys)):
            return batch
        last_of, last = last_of_groups(keys)
        if chosen and not self._share.stays_low(batch.count, len(last)):
            return batch
        partial = self._partial_rows(batch, last_of, last)
        self.takes_more = partial is not None and batch.rows.nbytes <= _NARROW * batch.count
        return partial or batch

    def _keys_of(self, batch: Batch) -> list[pa.Array] | None:
        if not set(self._keys) <= set(batch.schema.names):
            return None
        keys = [batch.rows.column(key) for key in self._keys]
        return keys if self._by is None else self._by(batch, keys)

    def _partial_rows(self, batch: Batch, last_of: Ints, last: Ints) -> Batch | None:
        assert self._plan is not None
        return partial_rows(self._plan, batch, last_of, last, self._where)

    def _combines(self, schema: pa.Schema) -> bool:
        if self._schema is None or not (schema is self._schema or schema.equals(self._schema)):
            self._schema, self._plan = schema, None
            names = schema.names
            if not any(name.startswith(PARTIAL) for name in names):
                plan = plan_aggregates(self._aggregates, schema, self._where)
                self._plan = plan if may_be_in_any_order(plan) else None
        return self._plan is not None
