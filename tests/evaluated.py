"""Evaluates expressions in both ways of the product, which have to agree."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrier_runtime.data.expressions import calls, evaluate, shared
from barrier_runtime.state.errors import InvalidJob


def evaluated(rows: pa.RecordBatch, *expressions: pc.Expression) -> list[pa.Array]:
    """One array per expression, by Arrow's engine. Calls, if there are any, have to give or refuse the same."""
    by_calls = calls(shared(expressions, rows.schema.names), rows.schema)
    try:
        planned = evaluate(rows, list(expressions), "t")
    except InvalidJob:
        if by_calls is not None:
            with pytest.raises(pa.ArrowException):
                by_calls(rows)
        raise
    if by_calls is not None:
        called = by_calls(rows)
        assert [each.type for each in called] == [each.type for each in planned]
        assert [_bits(each) for each in called] == [_bits(each) for each in planned]
    return planned


def _bits(column: pa.Array) -> list[object]:
    """Values of a column, in which NaN equals NaN and 0.0 differs from -0.0."""
    if not pa.types.is_floating(column.type):
        return [column.to_pylist(), column.null_count]
    filled = column.fill_null(0).to_numpy(zero_copy_only=False)
    nan = np.isnan(filled)
    return [column.is_null().to_pylist(), nan.tolist(), np.signbit(filled).tolist(), np.where(nan, 0, filled).tolist()]
