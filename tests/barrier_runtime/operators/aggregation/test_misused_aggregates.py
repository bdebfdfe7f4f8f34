"""Expressions where an aggregate needs a column: the message names the function and `with_columns`."""

from collections.abc import Callable
from typing import Any

import pytest

from barrier_runtime import Dataflow, col
from barrier_runtime.operators.aggregation.functions import Aggregate, arg_max, count, max_, quantile, sum_
from barrier_runtime.state.errors import InvalidJob

V: Any = col("v")


def rows() -> Any:
    schema = {"k": str, "v": int, "at": int}
    return Dataflow("misused").from_iterator("in", lambda i, n: [], schema=schema, splits=1, event_time="at")


@pytest.mark.parametrize(
    ("function", "make"),
    [
        ("sum_", lambda: sum_(V)),
        ("max_", lambda: max_(V)),
        ("count", lambda: count(V)),
        ("quantile", lambda: quantile(V * 2, 0.5)),
        ("arg_max", lambda: arg_max("k", by=V)),
    ],
)
def test_a_column_object_is_refused_with_the_remedy(function: str, make: Callable[[], Aggregate]) -> None:
    with pytest.raises(InvalidJob, match=rf"{function}: .*: give the name of a column, such as {function}\('v'\)"):
        make()


def test_an_expression_as_text_is_a_column_after_with_columns() -> None:
    with pytest.raises(InvalidJob, match=r"needs a column 'v \* 2'.*\.with_columns\(x="):
        rows().key_by("k").aggregate("a", x=sum_("v * 2"))
