"""Running aggregates of a small batch, a row at a time: what `accumulators.running` does for many at once.

For counts, sums and extremes of integers and sums of floats, over columns without nulls, by keys of integers, booleans,
text and bytes. Means, widened sums and extremes of floats, all other aggregates, and other keys, which have rules
of their own, are left to numpy. The results are the same, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

import pyarrow.types as types

from barrier_runtime.data.few_rows import FewRows, Layout
from barrier_runtime.operators.aggregation.batch_values import Left
from barrier_runtime.operators.aggregation.plan import AggregationPlan, AnyOutput, Output
from barrier_runtime.operators.aggregation.state_columns import Accumulator
from barrier_runtime.state.columns.column_table import ColumnTable

# a column of the table, row id per row, the batch's columns, what to raise for a sum -> value after each row
_Step: TypeAlias = Callable[[Any, list[int], Sequence[list[Any]], Left], list[Any]]

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class FewRunning:
    """The aggregates of one plan over small batches of one schema."""

    def __init__(
        self, keys: list[int], single_int: bool, aggregated: list[int], steps: dict[str, _Step], results: list[str]
    ) -> None:
        """`keys`, `aggregated`: positions of columns. `steps`: by accumulator. `results`: an accumulator per output."""
        self._keys = keys
        self._single_int = single_int
        self._aggregated = aggregated
        self._steps = steps
        self._results = results

    @staticmethod
    def of(plan: AggregationPlan, keys: Sequence[str], layout: Layout) -> "FewRunning | None":
        """None: these aggregates are for numpy."""
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
        """The row ids, and a column per output. None: there are nulls, which are for numpy."""
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
    """The accumulator is the result."""
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


# A memoryview reads and writes a number of a column in half the time that numpy takes.


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
