"""Common parts of several expressions are computed once, with equal results."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from barrier_runtime.data.expressions import evaluate, shared
from barrier_runtime.data.sql.expression import SqlExpression

ROWS = pa.record_batch(
    {
        "url": ["https://a.b/c/d", None, "", "x/y/z/é"],
        "n": pa.array([1, None, 3, -4], pa.int64()),
        "m": pa.array([7, 8, None, 9], pa.int64()),
        "ts": pa.array([0, 40_000_000, None, 80_000_000], pa.timestamp("ms", "UTC")),
        "odd\nend: 'add'": [1, 2, 3, 4],
        "s": [{"x": 1, "y": 2}, {"x": None, "y": 3}, None, {"x": 5, "y": 6}],
    }
)
_parts = pc.split_pattern(pc.field("url"), pattern="/")
_sum = pc.field("n") + pc.field("m")


def sql(text: str) -> pc.Expression:
    return SqlExpression(text, "a step").compiled(ROWS.schema)


@pytest.mark.parametrize(
    ("expressions", "parts"),
    [
        ([pc.list_value_length(_parts), pc.is_null(_parts)], 1),
        ([_sum, _sum * 2, pc.negate(_sum * 2)], 1),  # the larger part is shared; the smaller then occurs only once
        ([sql("CASE WHEN hour(ts) > 8 THEN 'a' WHEN hour(ts) < 4 OR hour(ts) = 6 THEN 'b' END")], 1),
        ([sql("date_format(ts, 'yyyy-MM-dd')"), sql("date_format(ts, 'yyyy-MM')"), sql("n > 1 AND m > 1")], 1),
        ([sql("CASE WHEN n > 0 THEN n END"), sql("CASE WHEN n > 0 THEN m END"), sql("n > 0")], 1),
        ([pc.struct_field(pc.field("s"), "x") + 1, pc.struct_field(pc.field("s"), "x"), pc.field("s", "y")], 1),
        ([sql("n <> 0 AND " + " AND ".join(f"m / n > -{number}e9" for number in range(1, 11)))], 7),  # 2,863 calls
        ([sql("regexp_extract(url, 'b/(.)', 1)"), sql("upper(regexp_extract(url, 'b/(.)', 1))")], 1),  # a long name
        ([pc.field("n"), pc.field("n"), pc.scalar(1), pc.scalar(1), *[pc.add(pc.scalar(1), 2)] * 2], 0),
        ([pc.field(1) + 1, pc.field(1) + 1], 0),  # a column by number has no serialised form
        ([pc.field("n").cast(pa.int32()), pc.field("n").cast(pa.int16())], 0),  # nearly the same is not the same
        ([pc.field("n") + pa.scalar(1, pa.int8()), pc.field("n") + pa.scalar(1, pa.int16())], 0),
        (
            [pc.is_in(pc.field("url"), value_set=pa.array(["", "it's: 'so'\nend: 'x'"])), pc.field("url") == "a\nb"]
            * 2,
            2,
        ),
    ],
)
def test_it_is_what_each_expression_gives_alone(expressions: list[pc.Expression], parts: int) -> None:
    found = shared(expressions, ROWS.schema.names)
    assert len(found.parts) == parts
    alone = [evaluate(ROWS, [expression], "a step")[0] for expression in expressions]
    together = evaluate(ROWS, found.expressions, "a step", found.parts)
    assert [array.type for array in together] == [array.type for array in alone]
    assert together == alone
