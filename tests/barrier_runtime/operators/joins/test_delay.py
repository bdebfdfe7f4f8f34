"""Delay of the watermark after a join: no joined row is late for the next step."""

from datetime import timedelta

import pyarrow as pa
import pytest

from barrier_runtime.operators.joins.base import Side
from barrier_runtime.operators.joins.interval import IntervalJoinOperator, WindowJoinOperator, output_delay_ms
from barrier_runtime.operators.windows.assigners import Tumbling

MS = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("lower", "upper", "delay"), [(-5, 20, 20), (-20, 5, 20), (3, 7, 7), (-7, -3, 7), (0, 0, 0), (-0.5, 0.25, 1)]
)
def test_the_longer_bound_on_either_side_is_the_delay(lower: float, upper: float, delay: int) -> None:
    assert output_delay_ms((lower * MS, upper * MS)) == delay


def test_joins_say_their_delay() -> None:
    side = Side(("k",), "t", pa.schema([("k", pa.int64()), ("t", pa.int64())]))
    assert IntervalJoinOperator("j", side, side, (-9 * MS, 4 * MS)).output_delay_ms == 9
    assert WindowJoinOperator("j", side, side, Tumbling(10 * MS)).output_delay_ms == 9
