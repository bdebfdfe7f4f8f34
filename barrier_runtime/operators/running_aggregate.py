"""Aggregates that never end: each row goes out with the values of its key including itself, vectorised per batch."""

from collections.abc import Mapping, Sequence

import pyarrow as pa

from barrier_runtime.aggregates import Aggregate, plan_aggregates
from barrier_runtime.elements import Batch
from barrier_runtime.grouping import group_rows
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed_operator import KeyedOperator
from barrier_runtime.registers import BatchValues, RunningOrder, running


class RunningAggregateOperator(KeyedOperator):
    kind = "running aggregate"

    def __init__(
        self, name: str, keys: Sequence[str], aggregates: Mapping[str, Aggregate], schema: pa.Schema | None = None
    ) -> None:
        used = [aggregate.column for aggregate in aggregates.values() if aggregate.column is not None]
        super().__init__(name, keys, [*keys, *used], schema)
        self._aggregates = dict(aggregates)
        self._output: pa.Schema | None = None

    def bind(self, columns: pa.Schema) -> None:
        self._plan = plan_aggregates(self._aggregates, columns, self.where)
        self._table = self.backend.dense_table(
            "running", self._plan.storage(), key_width=len(self._key_columns), evictable=True
        )

    def on_input_schema(self, schema: pa.Schema) -> None:
        self._output = running_schema(schema, self._aggregates, self.where)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        rows = batch.rows
        self._check(rows.schema)
        if not rows.num_rows:
            return
        if self.codec.is_one_int64 and not (key := rows.column(self._key_columns[0])).null_count:
            slots = self._table.slots_int64(key.to_numpy())
        else:
            groups = group_rows(self.codec.arrays(rows))
            slots = self._table.slots(groups.keys)[groups.of_row]
        order = RunningOrder.of(slots)
        results = running(self._plan.registers, self._table.columns, order, BatchValues(rows))
        self._table.mark_dirty(order.unique)
        arrays = [*rows.columns, *[output.column(results) for output in self._plan.outputs]]
        emit(Batch(pa.RecordBatch.from_arrays(arrays, schema=self._output), batch.emit_ns))


def running_schema(schema: pa.Schema, aggregates: Mapping[str, Aggregate], where: str) -> pa.Schema:
    """The input's columns, then the aggregates."""
    return pa.schema([*schema, *plan_aggregates(aggregates, schema, where).fields()])
