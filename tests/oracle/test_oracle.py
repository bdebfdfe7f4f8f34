"""A few seeds of `tests/oracle/run.py`, which the command runs by the thousand; proof that a comparison can fail; Spark
SQL and DuckDB agree on joins.
"""

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any
from unittest.mock import patch

import pytest

from barrier_runtime.operators.aggregation.latest import LatestAggregateOperator
from barrier_runtime.operators.joins.interval import IntervalJoinOperator
from tests.oracle.joins import draw_joins
from tests.oracle.run import draw, judge


@pytest.mark.parametrize(
    "numbers", [range(4), *(pytest.param(some, marks=pytest.mark.slow) for some in (range(4, 8), (8, 9, 12, 15, 18)))]
)
def test_random_flows_give_what_an_oracle_gives(numbers: Iterable[int]) -> None:
    """Those of the first twenty seeds that draw a kind or mode not drawn before."""
    for number in numbers:
        verdict = judge(number)
        assert not verdict.wrong, f"seed {number} ({verdict.kind}, {verdict.mode}): {verdict.wrong}"


def test_seeds_draw_every_kind_and_mode() -> None:
    drawn = [draw(number) for number in range(300)]
    assert len(Counter((seed.kind.split()[0], seed.mode) for seed in drawn)) == 11 * 3


@pytest.mark.slow
def test_a_bound_that_is_one_longer_is_found() -> None:
    """An interval join that lets rows go without a partner a millisecond early."""
    numbers = [number for number in range(400) if draw(number).kind in ("interval left join", "interval full join")]
    before = IntervalJoinOperator.__init__

    def wrong(operator: Any, *args: Any, **more: Any) -> None:
        before(operator, *args, **more)
        operator._upper -= 1

    with patch.object(IntervalJoinOperator, "__init__", wrong):
        assert any(judge(number).wrong for number in numbers[:12])


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(11, 23), (35, 47)])
def test_latest_rows_give_what_an_oracle_gives(numbers: Iterable[int]) -> None:
    for number in numbers:
        verdict = judge(number)
        assert (verdict.kind, verdict.wrong) == ("latest", ""), f"seed {number} ({verdict.mode})"


@pytest.mark.slow
def test_a_row_that_is_held_over_a_barrier_is_found() -> None:
    numbers = [number for number in range(200) if draw(number).kind == "latest"]
    with patch.object(LatestAggregateOperator, "before_barrier", lambda operator, emit: None):
        assert any(judge(number).wrong for number in numbers)


@pytest.mark.spark
def test_spark_sql_says_the_same_of_joins() -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.shuffle.partitions", "1").getOrCreate()
    rng, compared = random.Random(7), set[str]()
    while len(compared) < 8:
        case = draw_joins(rng)
        if case.kind in ("interval", "window"):
            compared.add(f"{case.kind} {case.how}")
            rows = [each.rows for each in (case.left, case.right)]
            for name, its in zip("lr", rows, strict=True):
                values = [tuple(row.values()) for row in its]
                session.createDataFrame(values, "k string, t bigint, v bigint").createOrReplaceTempView(name)
            assert Counter(tuple(row) for row in session.sql(case.sql).collect()) == case.expected(*rows)
    session.stop()
