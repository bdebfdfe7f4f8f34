"""Running aggregates of a small batch, a row at a time: what `accumulators.running` does for many at once.

For counts, integer sums, float sums and extremes of integers over columns without nulls, which is what small batches
have (see `data/few_rows`). Means, widened sums and extremes of floats, which have rules of their own for NaN, are left
to numpy. The results are the same, bit for bit.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.data.few_rows import Layout
from barrier_runtime.operators.aggregation.accumulators import Left
from barrier_runtime.operators.aggregation.functions import Accumulator, AggregationPlan, Columns, Output

FewColumns: TypeAlias = Sequence[list[Any]]
# state columns, row id per row, columns of the batch, what to raise for a sum -> a result column per output
FewRunning: TypeAlias = Callable[[Columns, list[int], FewColumns, Left], list[list[Any]]]
_Step: TypeAlias = Callable[[Columns, list[int], FewColumns, Left], list[Any]]

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


def few_running(plan: AggregationPlan, layout: Layout) -> FewRunning | None:
    """None: these aggregates are for numpy."""
    steps: dict[str, _Step] = {}
    for accumulator in plan.accumulators:
        step = _step(accumulator, layout)
        if step is None:
            return None
        steps[accumulator.name] = step
    if not all(map(_is_plain, plan.outputs)):
        return None
    names = [output.value.name for output in plan.outputs]

    def run(columns: Columns, row_ids: list[int], values: FewColumns, left: Left) -> list[list[Any]]:
        results = {name: step(columns, row_ids, values, left) for name, step in steps.items()}
        return [results[name] for name in names]

    return run


def _is_plain(output: Output) -> bool:
    """The accumulator is the result."""
    wanted = pa.float64() if output.value.dtype == "float64" else pa.int64()
    return output.carry is None and output.aggregate.kind != "mean" and output.type == wanted


def _step(accumulator: Accumulator, layout: Layout) -> _Step | None:
    name, column = accumulator.name, accumulator.column
    if accumulator.kind == "rows" or accumulator.kind == "values":
        return lambda columns, row_ids, values, left: _counted(columns[name], row_ids)
    if accumulator.kind == "carry" or column is None:
        return None
    position = layout.positions[column]
    code = layout.codes[position]
    if accumulator.kind == "sum" and (code, accumulator.dtype) == ("d", "float64"):
        return lambda columns, row_ids, values, left: _float_sums(columns[name], row_ids, values[position])
    if position not in layout.integers or accumulator.dtype != "int64":
        return None
    if accumulator.kind == "sum":
        return lambda columns, row_ids, values, left: _int_sums(columns[name], row_ids, values[position], column, left)
    pick: Callable[[int, int], int] = min if accumulator.kind == "min" else max
    return lambda columns, row_ids, values, left: _extremes(columns[name], row_ids, values[position], pick)


def _counted(target: Any, row_ids: list[int]) -> list[int]:
    results = []
    item = target.item
    for row_id in row_ids:
        target[row_id] = count = item(row_id) + 1
        results.append(count)
    return results


def _int_sums(target: Any, row_ids: list[int], values: list[int], column: str, left: Left) -> list[int]:
    results = []
    item = target.item
    for row_id, value in zip(row_ids, values, strict=True):
        total = item(row_id) + value
        if not _LOWEST <= total <= _HIGHEST:
            raise left(column, row_id)
        target[row_id] = total
        results.append(total)
    return results


def _float_sums(target: Any, row_ids: list[int], values: list[float]) -> list[float]:
    results = []
    item = target.item
    for row_id, value in zip(row_ids, values, strict=True):
        target[row_id] = total = item(row_id) + value
        results.append(total)
    return results


def _extremes(target: Any, row_ids: list[int], values: list[int], pick: Callable[[int, int], int]) -> list[int]:
    results = []
    item = target.item
    for row_id, value in zip(row_ids, values, strict=True):
        target[row_id] = found = pick(item(row_id), value)
        results.append(found)
    return results
