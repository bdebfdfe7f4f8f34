"""Aggregates that never end: each row goes out with the values of its key including itself, vectorised per batch."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.grouping import group_rows
from barrier_runtime.data.schemas import check_free
from barrier_runtime.operators.aggregation.accumulators import running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.described import describe_aggregates
from barrier_runtime.operators.aggregation.few import FewRunning
from barrier_runtime.operators.aggregation.own import AnyAggregate, columns_used
from barrier_runtime.operators.aggregation.plan import plan_aggregates
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.state.errors import InvalidJob

_MANY = 512  # rows from which finding the distinct keys first pays


class RunningAggregateOperator(KeyedOperator):
    kind = "running aggregate"

    def __init__(
        self, name: str, keys: Sequence[str], aggregates: Mapping[str, AnyAggregate], schema: pa.Schema | None = None
    ) -> None:
        used = columns_used(aggregates.values())
        super().__init__(name, keys, keys, schema, used)
        self._aggregates = dict(aggregates)
        self._output: pa.Schema | None = None
        self._few_schema: pa.Schema | None = None  # of small batches, and how they are aggregated
        self._few_running: FewRunning | None = None

    def bind(self, columns: pa.Schema) -> None:
        self._plan = plan_aggregates(self._aggregates, columns, self.where, self._known_columns())
        self._table = self._column_table("running", self._plan.storage(), self._plan.added(), evictable=True)
        describe_aggregates(self.backend, self._aggregates, self.where, first=self.context.subtask == 0)

    def on_input_schema(self, schema: pa.Schema) -> None:
        check_free(self._aggregates, schema.names, self.where)
        self._output = running_schema(schema, self._aggregates, self.where)

    def process(self, batch: Batch, emit: Emit, port: int = 0) -> None:
        self._check(batch.schema)
        few = batch.few
        if few is not None and self._process_few(batch, few, emit):
            return
        rows = batch.rows
        if not rows.num_rows:
            return
        order = self._order(rows)
        results = running(self._plan, self._table.columns, order, BatchValues(rows, self.where), self._left)
        self._table.mark_dirty(order.row_ids)
        outputs = self._plan.outputs

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return self._left(column, order.row_id_of(row), aggregate)

        if len(outputs) == 1:  # appending one column is cheaper than putting all together anew
            emit(batch.having(rows.append_column(outputs[0].name, outputs[0].column(results, left))))
            return
        arrays = [*rows.columns, *[output.column(results, left) for output in outputs]]
        emit(batch.having(pa.RecordBatch.from_arrays(arrays, schema=self._output)))

    def _process_few(self, batch: Batch, few: FewRows, emit: Emit) -> bool:
        """False: this is for Arrow."""
        if few.schema is not self._few_schema:
            self._few_schema = few.schema
            self._few_running = FewRunning.of(self._plan, self._key_columns, few.layout)
        added = None if self._few_running is None else self._few_running.add(self._table, few, self._left)
        if added is None:
            return False
        row_ids, results = added
        self._table.mark_few_dirty(row_ids)
        assert self._output is not None
        emit(batch.having(FewRows.made_of(self._output, [*few.columns, *results])))
        return True

    def _left(self, column: str, row_id: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self._plan.left(self.where, column, self._table.keys_of(np.array([row_id]))[0], aggregate)

    def _order(self, rows: pa.RecordBatch) -> RunningOrder:
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is None:
            groups = group_rows(keys)
            return RunningOrder.of(groups.of_row, self._table.row_ids(groups.keys))
        if len(keys) > 1 or len(rows) < _MANY:
            return RunningOrder.of(self._table.row_ids_int64(*ints))
        encoded = keys[0].dictionary_encode()  # the index is asked once per key, not once per row
        row_ids = self._table.row_ids_int64(encoded.dictionary.to_numpy().astype(np.int64, copy=False))
        return RunningOrder.of(encoded.indices.to_numpy(), row_ids)


def running_schema(schema: pa.Schema, aggregates: Mapping[str, AnyAggregate], where: str) -> pa.Schema:
    """The input's columns, then the aggregates."""
    return pa.schema([*schema, *plan_aggregates(aggregates, schema, where).fields()])
