"""`col`: expressions as objects, which are the text of SQL."""

import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, ColumnExpression, Dataflow, InvalidJob, Stream, col

AT = datetime.datetime(2026, 1, 31, 10, 0, 0, 500_000, tzinfo=datetime.timezone.utc)
ROW = {"n": 7, "x": 2.5, "s": "it's \\ ü", "at": AT, "my col": [1, 2], "p": {"q": 5}}
SCHEMA = pa.schema(
    [
        *(("n", pa.int64()), ("x", pa.float64()), ("s", pa.string()), ("at", pa.timestamp("us", "UTC"))),
        *(("my col", pa.list_(pa.int64())), ("p", pa.struct([("q", pa.int64())]))),
    ]
)


def rows_in(flow: Dataflow) -> Stream:
    return flow.from_iterator("in", lambda index, of: iter([ROW]), schema=SCHEMA, splits=1)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (col("n") + 1, 8),
        (1 + col("n"), 8),
        (col("n") - 1, 6),
        (10 - col("n"), 3),
        (col("n") * 2, 14),
        (2 * col("n"), 14),
        (col("n") / 2, 3.5),
        (14 / col("n"), 2.0),
        (col("n") % 4, 3),
        (-col("n"), -7),
        (col("x") == 2.5, True),
        (col("x") != 2.5, False),
        (col("x") < 1e300, True),
        ((col("n") > 3) & ~(col("n") >= 7) | (col("n") <= 7), True),
        (col("s") == ROW["s"], True),
        (col("at") == AT, True),
        (col("at") + datetime.timedelta(seconds=1) > AT, True),
        (col("at").call("to_date") == datetime.date(2026, 1, 31), True),
        (col("n") == Decimal("7.00"), True),
        (col("n") < Decimal("1.5E+3"), True),
        (col("n").is_null(), False),
        (col("n").is_not_null(), True),
        (col("n").is_in([1, 7]), True),
        (col("n").between(1, 6), False),
        (col("s").like("it%"), True),
        (col("s").rlike("^it.s"), True),
        (col("n").cast("STRING"), "7"),
        (col("my col")[1], 2),
        (col("p").field("q"), 5),
        (col("s").call("substring", 1, 2), "it"),
        (col("n").call("coalesce", None, 1), 7),
    ],
    ids=str,
)
def test_an_object_is_the_expression_that_it_looks_like(column: ColumnExpression, value: Any) -> None:
    flow, out = Dataflow("columns"), CollectSink()
    rows_in(flow).select({"value": column}).sink("out", out)
    flow.run_local(parallelism=1)
    assert out.rows() == [{"value": value}]


@pytest.mark.slow
def test_steps_take_objects() -> None:
    flow, out, rest = Dataflow("columns"), CollectSink(), CollectSink()
    rows = rows_in(flow).filter(col("n") > 3).with_columns(double=col("n") * 2).key_by(odd=col("n") % 2)
    one, other = rows._stream.split("by", col("s").call("left", 1), into=("i", "t"))
    one.explode(col("my col"), into="item").select("item", {"double": col("double")}).sink("out", out)
    other.select("n").sink("rest", rest)
    flow.run_local(parallelism=1)
    assert out.rows() == [{"item": 1, "double": 14}, {"item": 2, "double": 14}]


def test_mistakes_are_told() -> None:
    with pytest.raises(InvalidJob, match="write & for and"):
        bool(col("n") > 3)
    with pytest.raises(InvalidJob, match=r"col\(5\): give the name of a column"):
        col(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="is no value of an expression"):
        col("n") + object()
    with pytest.raises(InvalidJob, match="there is no column 'm'"):
        rows_in(Dataflow("columns")).filter(col("m") > 3)
