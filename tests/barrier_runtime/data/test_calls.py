"""Expressions as calls of Arrow's functions give what Arrow's engine gives, or there are no calls."""

import contextlib
import datetime
import decimal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven

from barrier_runtime.data.expressions import calls, shared
from barrier_runtime.data.sql.expression import SqlExpression
from barrier_runtime.operators.functions.expressions import SelectExpressionsOperator
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples
from tests.evaluated import evaluated

_MOMENTS = [0, None, 1_700_000_000, -1]
_DECIMAL = decimal.Decimal("1.25")
_NUMBERS = [0, None, -7, 120]
ROWS = pa.record_batch(
    {
        **{str(kind): pa.array(_NUMBERS, kind) for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
        **{str(kind): pa.array([0, None, 7, 200], kind) for kind in (pa.uint8(), pa.uint64())},
        **{str(kind): pa.array([0.0, None, float("nan"), -0.1], kind) for kind in (pa.float32(), pa.float64())},
        "decimal(9, 2)": pa.array(
            [decimal.Decimal("1.25"), None, decimal.Decimal("-3"), decimal.Decimal(0)], pa.decimal128(9, 2)
        ),
        "decimal(12, 5)": pa.array(
            [decimal.Decimal("0.00001"), None, decimal.Decimal(7), decimal.Decimal(0)], pa.decimal128(12, 5)
        ),
        "bool": [True, None, False, True],
        "string": ["", None, "\u00e9", "abc"],
        "binary": [b"", None, b"\x00", b"abc"],
        "date32": pa.array([0, None, 19_000, -1], pa.date32()),
        **{f"timestamp({unit})": pa.array(_MOMENTS, pa.timestamp(unit, "UTC")) for unit in ("s", "ms", "us")},
        "duration": pa.array(_MOMENTS, pa.duration("ms")),
    }
)
LITERALS = [
    *(pa.scalar(value) for value in (0, 1, -1, 200, 2**40, 0.5, 0.1, True, "abc", "", b"abc")),
    *(pa.scalar(1, kind) for kind in (pa.int8(), pa.uint8(), pa.float32())),
    pa.scalar(decimal.Decimal("1.5")),
    pa.scalar(None),
    pa.scalar(None, pa.int64()),
    pa.scalar(datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc), pa.timestamp("us", "UTC")),
    pa.scalar(datetime.date(2020, 1, 1)),
]
ONE = ("negate_checked", "abs", "is_null", "is_valid", "invert", "utf8_upper", "utf8_length", "year", "sign", "floor")
TWO = (
    *("add", "add_checked", "subtract", "subtract_checked", "multiply", "multiply_checked", "divide", "divide_checked"),
    *("equal", "not_equal", "greater", "less_equal", "and_kleene", "or_kleene", "coalesce", "max_element_wise"),
)
_leaves = st.sampled_from(ROWS.schema.names).map(pc.field) | st.sampled_from(LITERALS).map(pc.scalar)


def _calls(inner: st.SearchStrategy[pc.Expression]) -> st.SearchStrategy[pc.Expression]:
    one = st.builds(lambda name, each: pc.Expression._call(name, [each]), st.sampled_from(ONE), inner)
    two = st.builds(lambda name, *both: pc.Expression._call(name, list(both)), st.sampled_from(TWO), inner, inner)
    chosen = st.builds(pc.if_else, inner, inner, inner)
    kinds = st.sampled_from([pa.int32(), pa.int64(), pa.float64(), pa.string(), pa.decimal128(12, 5)])
    return one | two | chosen | st.builds(lambda each, kind: each.cast(kind), inner, kinds)


@given(st.recursive(_leaves, _calls, max_leaves=6))
@examples(600)
def test_they_give_what_the_engine_gives(expression: pc.Expression) -> None:
    with contextlib.suppress(InvalidJob, pa.ArrowException):  # `evaluated` has seen that both refuse
        evaluated(ROWS, expression)


@pytest.mark.parametrize(
    "text",
    ["int32 * 2", "int64 > 3", "2 < int32", "double > 2", "string = 'a' AND bool", "base64(binary)", "upper(string)"],
)
def test_common_expressions_are_calls(text: str) -> None:
    expression = SqlExpression(text, "t").compiled(ROWS.schema)
    assert calls(shared([expression], ROWS.schema.names), ROWS.schema) is not None


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("int64") > pc.scalar(0.5),  # the engine compares as 32-bit floats
        pc.field("uint64") > pc.scalar(1),
        pc.field("int8") + pc.scalar(200),
        pc.field("timestamp(ms)") > LITERALS[-2],
        pc.Expression._call("random", [], pc.RandomOptions(initializer=1)),
        pc.scalar(1),
        pc.Expression._call("multiply", [pc.field("float"), pc.field("float")]),
    ],
)
def test_others_stay_with_the_engine(expression: pc.Expression) -> None:
    assert calls(shared([expression], ROWS.schema.names), ROWS.schema) is None


def test_a_refusal_names_the_expression() -> None:
    columns = {name: SqlExpression(text, "t") for name, text in {"ok": "int64 + 1", "of": "int64 / int8"}.items()}
    with pytest.raises(InvalidJob, match=r"select 'ratio': 'int64 / int8': the expression cannot be computed: divide"):
        Driven(SelectExpressionsOperator("ratio", columns)).feed(ROWS)
