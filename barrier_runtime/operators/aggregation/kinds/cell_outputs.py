"""Choice of the cell that an aggregate keeps, and of the reader of the results."""

import pyarrow as pa

from barrier_runtime.operators.aggregation.functions import Aggregate
from barrier_runtime.operators.aggregation.kinds.cells import Cells, EncodedValues, Reader
from barrier_runtime.operators.aggregation.kinds.collecting import DistinctCells, ListCell, SetCell, lists
from barrier_runtime.operators.aggregation.kinds.sketches import (
    DistinctSketch,
    FrequentSketch,
    QuantileSketch,
    distinct_estimate,
    frequent_lists,
    frequent_type,
    most_frequent,
    quantiles_of,
    require_sketches,
)

_INT64, _FLOAT64 = pa.int64(), pa.float64()


def cell_output(aggregate: Aggregate, kind: pa.DataType) -> tuple[Cells, Reader] | None:
    column, limit, ranks = aggregate.column, aggregate.limit or 0, aggregate.ranks
    assert column is not None
    distinct = EncodedValues(kind, distinct=True)
    match aggregate.kind:
        case "collect_list":
            plain = EncodedValues(kind)
            listed = Reader("list", pa.list_(kind), lambda state: state, lambda read: lists(plain, read))
            return Cells(ListCell(column, plain, limit)), listed
        case "collect_set":
            listed = Reader("set", pa.list_(kind), lambda state: state.collected, lambda read: lists(distinct, read))
            return Cells(SetCell(column, distinct, limit, exact=False)), listed
        case "count_distinct" if not aggregate.approximate:
            counted = Reader("count", _INT64, lambda state: len(state.known), lambda read: pa.array(read, _INT64))
            return DistinctCells(SetCell(column, distinct, limit, exact=True)), counted
        case "count_distinct" | "quantile" | "quantiles" | "top_k":
            require_sketches()
    match aggregate.kind:
        case "count_distinct":
            estimated = Reader("count", _INT64, distinct_estimate, lambda read: pa.array(read, _INT64))
            return Cells(DistinctSketch(column, distinct)), estimated
        case "quantile":
            one = Reader(
                f"at {ranks[0]}",
                _FLOAT64,
                lambda state: quantiles_of(state, ranks)[0],
                lambda read: pa.array(read, _FLOAT64),
            )
            return Cells(QuantileSketch(column)), one
        case "quantiles":
            several = pa.list_(_FLOAT64)
            all_of_them = Reader(
                f"at all of {ranks}",
                several,
                lambda state: quantiles_of(state, ranks),
                lambda read: pa.array(read, several),
            )
            return Cells(QuantileSketch(column)), all_of_them
        case "top_k":
            frequent = Reader(
                f"top {limit}",
                frequent_type(kind),
                lambda state: most_frequent(state, limit),
                lambda read: frequent_lists(distinct, read),
            )
            return Cells(FrequentSketch(column, distinct)), frequent
    return None
