"""Running aggregates: each row is emitted with its key's values so far, itself included.

`FewRunning` computes small batches of common types without nulls row by row, all else numpy (`accumulators.running`),
with bit-for-bit equal results.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as types

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.few_rows import FewRows, Layout
from barrier_runtime.data.grouping import group_rows
from barrier_runtime.data.schemas import check_free
from barrier_runtime.operators.aggregation.accumulators import running
from barrier_runtime.operators.aggregation.batch_values import BatchValues, Left, RunningOrder
from barrier_runtime.operators.aggregation.described import describe_aggregates
from barrier_runtime.operators.aggregation.own import AnyAggregate, columns_used
from barrier_runtime.operators.aggregation.partials import refuse_partial_rows
from barrier_runtime.operators.aggregation.plan import AggregationPlan, AnyOutput, Output, plan_aggregates
from barrier_runtime.operators.aggregation.state_columns import Accumulator, Columns
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.keyed.operator import KeyedOperator
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.errors import InvalidJob

# table column, row id per row, batch columns, error of a sum -> value after each row
_Step: TypeAlias = Callable[[Any, list[int], Sequence[list[Any]], Left], list[Any]]

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class FewRunning:
    def __init__(
        self, keys: list[int], single_int: bool, aggregated: list[int], steps: dict[str, _Step], results: list[str]
    ) -> None:
        self._keys = keys
        self._single_int = single_int
        self._aggregated = aggregated
        self._steps = steps
        self._results = results

    @staticmethod
    def of(plan: AggregationPlan, keys: Sequence[str], layout: Layout) -> "FewRunning | None":
        at_keys = [layout.positions[key] for key in keys]
        outputs = [output for output in plan.outputs if _is_plain(output)]
        if not layout.keys.issuperset(at_keys) or len(outputs) < len(plan.outputs):
            return None
        steps: dict[str, _Step] = {}
        for each in plan.accumulators:
            step = _step(each, layout)
            if step is None:
                return None
            steps[each.name] = step
        aggregated = sorted({layout.positions[each.column] for each in plan.accumulators if each.column})
        single_int = len(at_keys) == 1 and at_keys[0] in layout.integers
        return FewRunning(at_keys, single_int, aggregated, steps, [output.value.name for output in outputs])

    def add(self, table: ColumnTable, few: FewRows, left: Left) -> tuple[list[int], list[list[Any]]] | None:
        """Returns the row ids and a column per output; None: there are nulls, so numpy is needed."""
        columns = few.columns
        if self._aggregated and any(None in columns[position] for position in self._aggregated):
            return None
        keys = columns[self._keys[0]]
        if self._single_int and None not in keys:
            row_ids = table.row_ids_of_few(keys)
        else:
            row_ids = table.row_ids(list(zip(*[columns[at] for at in self._keys], strict=True))).tolist()
        state = table.columns
        after = {name: step(state[name], row_ids, columns, left) for name, step in self._steps.items()}
        return row_ids, [after[name] for name in self._results]


def _is_plain(output: AnyOutput) -> TypeGuard[Output]:
    if not isinstance(output, Output) or output.carry is not None or output.aggregate.kind == "mean":
        return False
    return bool(types.is_integer(output.type) or types.is_float64(output.type))


def _step(accumulator: Accumulator, layout: Layout) -> _Step | None:
    if accumulator.kind in ("rows", "values"):
        return lambda target, row_ids, columns, left: _counted(target, row_ids)
    column = accumulator.column
    if accumulator.kind == "carry" or column is None:
        return None
    position = layout.positions[column]
    if accumulator.kind == "sum" and types.is_floating(layout.types[position]):
        return lambda target, row_ids, columns, left: _float_sums(target, row_ids, columns[position])
    if position not in layout.integers:
        return None
    if accumulator.kind == "sum":
        return lambda target, row_ids, columns, left: _int_sums(target, row_ids, columns[position], column, left)
    pick: Callable[[int, int], int] = min if accumulator.kind == "min" else max
    return lambda target, row_ids, columns, left: _extremes(target, row_ids, columns[position], pick)


def _counted(target: Any, row_ids: list[int]) -> list[int]:
    results = []
    cells: Any = memoryview(target)
    for row_id in row_ids:
        cells[row_id] = count = cells[row_id] + 1
        results.append(count)
    return results


def _int_sums(target: Any, row_ids: list[int], values: list[int], column: str, left: Left) -> list[int]:
    results = []
    cells: Any = memoryview(target)
    for row_id, value in zip(row_ids, values, strict=True):
        total = cells[row_id] + value
        if not _LOWEST <= total <= _HIGHEST:
            raise left(column, row_id)
        cells[row_id] = total
        results.append(total)
    return results


def _float_sums(target: Any, row_ids: list[int], values: list[float]) -> list[float]:
    results = []
    cells: Any = memoryview(target)
    for row_id, value in zip(row_ids, values, strict=True):
        cells[row_id] = total = cells[row_id] + value
        results.append(total)
    return results


def _extremes(target: Any, row_ids: list[int], values: list[int], pick: Callable[[int, int], int]) -> list[int]:
    results = []
    cells: Any = memoryview(target)
    for row_id, value in zip(row_ids, values, strict=True):
        cells[row_id] = found = pick(cells[row_id], value)
        results.append(found)
    return results


_MANY = 512  # rows from which it pays to find the distinct keys first


class RunningAggregateOperator(KeyedOperator):
    kind = "running aggregate"

    def __init__(
        self, name: str, keys: Sequence[str], aggregates: Mapping[str, AnyAggregate], schema: pa.Schema | None = None
    ) -> None:
        used = columns_used(aggregates.values())
        super().__init__(name, keys, keys, schema, used)
        self._aggregates = dict(aggregates)
        self._output: pa.Schema | None = None
        self._few_schema: pa.Schema | None = None
        self._few_running: FewRunning | None = None

    def bind(self, columns: pa.Schema) -> None:
        self._plan = plan_aggregates(self._aggregates, columns, self.where, self._known_columns())
        self._table = self._column_table("running", self._plan.storage(), self._plan.added(), evictable=True)
        describe_aggregates(self.backend, self._aggregates, self.where, first=self.context.subtask == 0)

    def on_input_schema(self, schema: pa.Schema) -> None:
        refuse_partial_rows(schema, self.where)
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

        def left(column: str, row: int, aggregate: str = "sum_", /) -> InvalidJob:
            return self._left(column, order.row_id_of(row), aggregate)

        whole = batch.having(self._with_results(rows, results, left))
        self._send(whole, len(order.starts), order.last_rows, emit)

    def _process_few(self, batch: Batch, few: FewRows, emit: Emit) -> bool:
        if few.schema is not self._few_schema:
            self._few_schema = few.schema
            self._few_running = FewRunning.of(self._plan, self._key_columns, few.layout)
        added = None if self._few_running is None else self._few_running.add(self._table, few, self._left)
        if added is None:
            return False
        row_ids, results = added
        self._table.mark_few_dirty(row_ids)
        assert self._output is not None
        rows = FewRows.made_of(self._output, [*few.columns, *results])
        self._send(batch.having(rows), len(row_ids), lambda: _last_rows(row_ids), emit)
        return True

    def _with_results(self, rows: pa.RecordBatch, accumulators: Columns, left: Left) -> pa.RecordBatch:
        outputs = self._plan.outputs
        if len(outputs) == 1:  # appending a column is cheaper than a new batch
            return rows.append_column(outputs[0].name, outputs[0].column(accumulators, left))
        arrays = [*rows.columns, *[output.column(accumulators, left) for output in outputs]]
        return pa.RecordBatch.from_arrays(arrays, schema=self._output)

    def _send(self, results: Batch, keys: int, last_rows: Callable[[], npt.NDArray[np.intp]], emit: Emit) -> None:
        """`keys`: of the rows, or more. `last_rows` returns the positions of the last row of each key, ascending."""
        emit(results)

    def _left(self, column: str, row_id: int, aggregate: str = "sum_", /) -> InvalidJob:
        return self._plan.left(self.where, column, self._table.keys_of(np.array([row_id]))[0], aggregate)

    def _order(self, rows: pa.RecordBatch) -> RunningOrder:
        keys = self.codec.arrays(rows)
        ints = self.codec.int64(keys)
        if ints is None and len(keys) == 1 and len(rows) >= _MANY and pa.types.is_string(keys[0].type):
            return RunningOrder.of(self._table.row_ids_of_texts(keys[0]))
        if ints is None:
            groups = group_rows(keys)
            return RunningOrder.of(groups.of_row, self._table.row_ids(groups.keys))
        if len(keys) > 1 or len(rows) < _MANY:
            return RunningOrder.of(self._table.row_ids_int64(*ints))
        encoded = keys[0].dictionary_encode()  # one lookup in the index per key, not per row
        row_ids = self._table.row_ids_int64(encoded.dictionary.to_numpy().astype(np.int64, copy=False))
        return RunningOrder.of(encoded.indices.to_numpy(), row_ids)


def _last_rows(row_ids: list[int]) -> npt.NDArray[np.intp]:
    last = {row_id: row for row, row_id in enumerate(row_ids)}
    return np.array(sorted(last.values()), np.intp)


def running_schema(schema: pa.Schema, aggregates: Mapping[str, AnyAggregate], where: str) -> pa.Schema:
    return pa.schema([*schema, *plan_aggregates(aggregates, schema, where).fields()])
