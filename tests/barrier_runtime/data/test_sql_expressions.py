"""SQL expressions: results as in Spark SQL, and refusals by name at build time."""

import datetime
import decimal
import math
import pickle
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import barrier_runtime as br
from barrier_runtime.data.sql.expression import SqlExpression, known_functions
from barrier_runtime.data.sql.kernels import remainder
from barrier_runtime.state.errors import InvalidJob
from tests.evaluated import evaluated

UTC = datetime.timezone.utc
WORDS = ("update", "values", "set")  # with which statements of SQL begin
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("j", pa.int64()),
        ("small", pa.int32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("t", pa.timestamp("us", "UTC")),
        ("d", pa.decimal128(5, 2)),
        ("day", pa.date32()),
        ("p", pa.struct([("q", pa.int64())])),
        *((word, pa.int64()) for word in WORDS),
    ]
)

ROWS: list[dict[str, Any]] = [
    {
        "i": 7,
        "j": -2,
        "small": 2_000_000_000,
        "x": 2.5,
        "s": "abc",
        "b": True,
        "t": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        "d": decimal.Decimal("1.25"),
        "day": datetime.date(2026, 1, 2),
        "p": {"q": 5},
    },
    {
        "i": -7,
        "j": 2,
        "small": -3,
        "x": -1.75,
        "s": " a'bc ",
        "b": False,
        "t": datetime.datetime(2025, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC),
        "d": decimal.Decimal("-3.99"),
        "day": datetime.date(2024, 2, 29),
        "p": {"q": 6},
    },
    {**dict.fromkeys(SCHEMA.names), "j": 1},
    {
        "i": 16_777_217,
        "j": 3,
        "small": 0,
        "x": 0.1,
        "s": "",
        "b": True,
        "t": datetime.datetime(1969, 7, 20, 20, 17, 40, tzinfo=UTC),
        "d": decimal.Decimal("0.00"),
        "day": datetime.date(1969, 7, 20),
        "p": {"q": 0},
    },
]

PATTERNS = (  # of date_format
    *("yyyy", "MM", "dd", "HH", "mm", "ss", "yyyy-MM-dd", "HH:mm", "HH:mm:ss", "yyyy-MM-dd HH:mm:ss"),
    *("dd.MM.yyyy, HH:mm:ss", "yyyyMMdd", "ss|mm|HH", "<MM>", "~dd~", "yyyy é MM", "mmss", "MM 7 mm", "yyyy$MM%dd"),
)
REFUSED = (
    *("", "-", "y", "yy", "yyy", "yyyyy", "yyyyyyyy", "YYYY", "M", "MMM", "MMMM", "d", "ddd", "dddd", "D", "H", "HHHH"),
    *("hh", "m", "mmmm", "s", "ssss", "S", "ss.SSS", "EEE", "a", "z", "[MM]", "{MM}", "#dd", "yyyyTMM", "yyyy''T''MM"),
)
EXPRESSIONS = [
    "i > 3 AND s = 'abc'",
    "i > 3 OR b",
    "NOT b",
    "x * 0.908e0",
    "i * 0.5e0",
    "i + j - 1",
    "-i",
    "i / j",
    "i % j",
    "x % 2",
    "x % 0.1e0",
    "x % -0.5e0",
    "1e300 % 7.0e0",
    "(i * 0 - 9223372036854775807 - 1) % -1",
    "i div j",
    "small + i",
    "d * 2",
    "d + i",
    "d - d",
    "i IS NOT NULL",
    "b IS TRUE",
    "b IS NOT TRUE",
    "i IN (7, 1)",
    "i IN (7, NULL)",
    "i NOT IN (7, 8)",
    "s IN ('abc', '')",
    "i <=> 7",
    "i <=> NULL",
    "i BETWEEN -7 AND 7",
    "s LIKE 'a%'",
    "s NOT LIKE '%c'",
    "s ILIKE 'A_C'",
    "s RLIKE '^a'",
    "CASE WHEN b THEN 1 WHEN i < 0 THEN 2 END",
    "CASE i WHEN 7 THEN 'seven' ELSE 'other' END",
    "IF(b, i, j)",
    "IF(b, 1, 2.5e0)",
    "coalesce(i, j, 0)",
    "nvl(s, 'none')",
    "nullif(i, 7)",
    "greatest(i, j)",
    "greatest(x, cast('NaN' AS DOUBLE))",
    "greatest(cast('NaN' AS DOUBLE), i, NULL)",
    "least(x, cast('NaN' AS DOUBLE))",
    "least(cast('NaN' AS DOUBLE), NULL)",
    "least(i, j, 0)",
    "abs(i)",
    "abs(d)",
    "sign(x)",
    "ceil(x)",
    "floor(x)",
    "round(x)",
    "round(x, 1)",
    "sqrt(i)",
    "power(x, 2)",
    "exp(0)",
    "ln(i)",
    "upper(s)",
    "lower(s)",
    "length(s)",
    "trim(s)",
    "ltrim(s)",
    "rtrim(s)",
    "s || '-' || s",
    "concat(s, i)",
    "substring(s, 2, 2)",
    "substring(s, 0, 2)",
    "substring(s, -2, 1)",
    "substr(s, 2)",
    "left(s, 1)",
    "right(s, 2)",
    "replace(s, 'b', 'BB')",
    "regexp_replace(s, '(b)', '[$1]')",
    *(f"split_part(s, 'b', {number})" for number in (1, 2, 3, -1, -2, -3)),
    "split_part(s, 'bc', 1)",
    "split_part(s, '', 1)",
    "split_part(s, '', 2)",
    "split_part(concat(s, '/', s), '/', 2) || split_part(concat(s, '/', s), '/', 1)",
    "regexp_count(s, 'b')",
    "regexp_count(s, '.')",
    "regexp_count(s, '[ab]')",
    "regexp_count('abc', 'b')",
    "startswith(s, 'a')",
    "endswith(s, 'c')",
    "contains(s, 'b')",
    "year(t)",
    "quarter(t)",
    "month(t)",
    "day(t)",
    "dayofmonth(day)",
    "hour(t)",
    "minute(t)",
    "second(t)",
    "extract(YEAR FROM t)",
    "date_trunc('hour', t)",
    "date_trunc('week', t)",
    *(f"date_format(t, '{pattern}')" for pattern in PATTERNS),
    "date_format(day, 'yyyy/MM/dd HH:mm:ss')",
    "date_format('2024-02-29 12:30:00', 'HH.mm')",
    "t > timestamp '2026-01-01 00:00:00'",
    "t < '2026-01-01'",
    "day >= date '2024-02-29'",
    "t + interval 5 minutes",
    "t - interval 1 hour",
    "cast(x AS INT)",
    "cast(i AS STRING)",
    "cast(i AS DECIMAL(12, 2))",
    "cast(d AS DOUBLE)",
    "cast(t AS DATE)",
    "cast('5' AS BIGINT) + i",
    "p.q + 1",
    "P.Q + I",
    "`i` + 1",
    "s = 'it''s' -- a comment",
    "1 + 1",
    "to_date(t)",
    "to_date('2024-02-29')",
    "to_date(t) = DATE '2026-01-02'",
    "date(t)",
    "round(i, -1)",
    "round(d, 1)",
    "round(cast(99.99e0 AS DECIMAL(4, 2)), 1)",
    "ceil(cast(99.99e0 AS DECIMAL(4, 2))) = 100",
    "round(x / 3, 12)",
    "round(x * 1e15, -12)",
    "cast(s AS STRING)",
    "cast(s AS BINARY) = cast(' a\\'bc ' AS BINARY)",
    "length(cast(concat(s, 'é') AS BINARY))",
    "round(d, -1)",
    "day + interval 1 day",
    "day - interval 2 weeks",
    "cast(d AS DECIMAL(5, 1))",
    "cast(d AS INT)",
    "cast('12.345' AS DECIMAL(4, 1))",
    "cast(' 7 ' AS INT)",
    "cast('2024-02-29 12:30:00' AS DATE)",
    "i = '7'",
    "x > '1.5'",
    "coalesce(NULL, i)",
    "least(i, NULL, 3)",
    "NULL = NULL",
    "hour(day)",
    "year('2024-02-29')",
    "replace(s, 'b')",
    "update = 0",
    "`values` + set",
    "d div 2",
    "d div cast('0.01' AS DECIMAL(3, 2))",
    "CASE WHEN d <> 0 THEN i div d END",
    "cast('9007199254740993' AS DECIMAL(18, 0)) div 1",
    "cast(d AS DECIMAL(38, 18)) div cast('0.13' AS DECIMAL(38, 18))",
    "cast(cast(d AS DECIMAL(20, 8)) * 0 AS STRING)",
    "concat('<', cast(cast('-1.2e-7' AS DECIMAL(20, 8)) AS DECIMAL(20, 8)), '>')",
    "cast('1234567890123456789012.5' AS DECIMAL(38, 0))",
    "cast('0.123456789012345678901234567890123456785' AS DECIMAL(38, 38))",
    "cast('99999999999999999999999999999999999999' AS DECIMAL(38, 0))",
    "extract(SECOND FROM t)",
    "extract(SECOND FROM day)",
    "interval 1 day + day",
    "greatest(t, t - interval 1 day)",
    "cast(j AS DECIMAL(38, 30))",
    "t < '2025-12-31 23:59:59.9990001'",
    "hour('2026-01-31T10:00:00+02:00')",
    "hour(concat('2026-01-31T10:00:0', abs(i % 10), if(b, 'Z', ' +02:00')))",
    "cast('2026-01-31T01:00:00+02:00' AS DATE)",
    "regexp_replace('a$b', 'b', '\\\\$')",
    "regexp_replace('a$b', '(b)', '[$0\\\\1$12\\\\n\\\\\\\\]')",
    "i + NULL",
    "NOT NULL",
    "b AND NULL",
    "i > NULL",
    "NULL",
    "'it''s'",
    "replace('it''s', '''', '-')",
    "CASE WHEN small = 0 THEN 0 ELSE i div small END",
    "CASE WHEN small = 0 THEN 1 WHEN i div small >= 0 THEN i div small ELSE 100 % small END",
    "CASE WHEN small < 1000 THEN small * small ELSE -small END",
    "CASE small WHEN 0 THEN -1 ELSE 7 div small END",
    "CASE WHEN s = '' THEN year('2024-01-01') WHEN s = 'x' THEN year(s) ELSE -1 END",
    "IF(small <> 0, i / small, -1e0)",
    "IF(s = '7', cast(s AS INT), -1)",
    "IF(b, 1, IF(small = 0 OR j < 0, 2, i div small))",
    "IF(i < -100, abs(-9223372036854775807 - i), 0)",
    "small <> 0 AND i / small > 0 AND 5 / small < 1",
    "small = 0 OR i % small = 1",
    "coalesce(i, 1 div (j - 2))",
    "nvl(i, 5 / j)",
    "coalesce(d, 0)",
    "greatest(d, 0)",
    "least(d, i, x)",
    "nullif(d, 0)",
    "CASE WHEN b THEN d ELSE 0 END",
    "CASE WHEN b THEN d WHEN i < 0 THEN i ELSE d END",
    "(i + 9007199254740993) / 2",
    "cast(i + 9007199254740993 AS DOUBLE)",
    "cast(i AS FLOAT)",
    "i + 9007199254740993 > x",
    "coalesce(i + 9007199254740993, 0.5e0)",
]


for number, row in enumerate(ROWS):
    row.update(dict.fromkeys(WORDS, number))


def computed(text: str, rows: pa.RecordBatch | None = None) -> pa.Array:
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA) if rows is None else rows
    return evaluated(batch, SqlExpression(text, "t").compiled(batch.schema))[0]


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("i > 3 AND s = 'abc'", pa.bool_(), [True, False, None, False]),
        ("x * 0.5", pa.float64(), [1.25, -0.875, None, 0.05]),
        ("i * 0.5", pa.float64(), [3.5, -3.5, None, 8_388_608.5]),
        ("i / j", pa.float64(), [-3.5, -3.5, None, 16_777_217 / 3]),
        ("i % j", pa.int64(), [1, -1, None, 2]),
        ("i NOT IN (7, NULL)", pa.bool_(), [False, None, None, None]),
        ("s NOT LIKE 'a%'", pa.bool_(), [False, True, None, True]),
        ("CASE WHEN b IS NULL OR NULL THEN 1 ELSE 2 END", pa.int32(), [2, 2, 1, 2]),
        ("small + 1", pa.int32(), [2_000_000_001, -2, None, 1]),
        ("CASE WHEN b THEN 1 WHEN i < 0 THEN 2 END", pa.int32(), [1, 2, None, 1]),
        ("d / 2", pa.float64(), [0.625, -1.995, None, 0.0]),
        (
            "d * 2",
            pa.decimal128(7, 2),
            [decimal.Decimal(each) for each in ("2.50", "-7.98")] + [None, decimal.Decimal(0)],
        ),
        ("t < '2026-01-01'", pa.bool_(), [False, True, None, True]),
        ("substring(s, -2, 1)", pa.string(), ["b", "c", None, ""]),
        ("i IS NULL", pa.bool_(), [False, False, True, False]),
        ("round(x)", pa.float64(), [3.0, -2.0, None, 0.0]),
        ("1 | i & 6", pa.int64(), [7, 1, None, 1]),
        ("j & 1 << 2", pa.int64(), [4, 0, 0, 0]),
    ],
)
def test_an_expression_gives(text: str, kind: pa.DataType, values: list[Any]) -> None:
    column = computed(text)
    assert (column.type, column.to_pylist()) == (kind, values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("foo(i)", "the function foo is not known here.*Known are abs, "),
        ("i +", "is no SQL expression"),
        ("", "is no SQL expression"),
        ("i; j", "give one, without a comma or semicolon"),
        ("i, j", "give one, without a comma"),
        ("i FROM t", "a query does not belong here"),
        ("values + 1", "at .values.: correct it. A column whose name is a word of SQL stands in backticks"),
        ("xxhash64(t)", "the function xxhash64 is not known"),
        ("floor()", "an argument is missing"),
        ("year()", "an argument is missing"),
        ("substring(s)", "an argument is missing"),
        ("t + interval 1 month", "INTERVAL '1' MONTH is not known here: an INTERVAL has one of WEEK, DAY"),
        ("cast(t AS BIGINT)", "does not become int64 by CAST here: take parts of a time"),
        ("cast(day AS INT)", "does not become int32 by CAST here"),
        ("cast(i AS DATE)", "does not become date32"),
        ("i > 'many'", "'many' is not a number"),
        ("zz > 1", "there is no column 'zz': the rows have i: int64.*single quotes"),
        ("p.zz", "there is no field 'zz' of p"),
        ("i.q", "there is no field 'q' of i"),
        ('i = "zz" + 1', "'zz' is not a number"),
        ("count(*)", "count is an aggregate of many rows: use .key_by"),
        ("sum(i) OVER ()", "aggregate of many rows"),
        ("rand() > 0.5", r"rand\(\) would give another value when rows are read again"),
        ("now() > t", r"now\(\) would give another value"),
        ("current_timestamp() > t", "would give another value"),
        ("SELECT i", "is no SQL expression"),
        ("i IN (SELECT 1)", "a query does not belong here"),
        ("i AS k", "a new name does not belong here"),
        ("s + 1", "string and int8 do not go together: CAST what has another type"),
        ("if(b, 1, 'a')", "do not go together"),
        ("i[0]", r"i\[0\]: it takes an array, and this is int64"),
        ("substring(s, i)", "the position has to be a constant"),
        ("s LIKE s", "the pattern has to be a constant"),
        ("s LIKE NULL", "the pattern is NULL, so that is what comes of it"),
        ("t + INTERVAL '1 02:00:00' DAY TO SECOND", "is not known here: an INTERVAL has a number and a unit"),
        ("cast(i AS DECIMAL(39, 2))", "more than 38 digits"),
        ("try_cast(s AS INT)", "use cast"),
        ("cast(i AS INTERVAL)", "the type INTERVAL is not known here"),
        ("extract(EPOCH FROM t)", "the unit is epoch; one of year, .*, second$"),
        ("date_trunc('foo', t)", "the unit is foo; one of year, .*, second$"),
        *(
            (f"date_format(t, '{pattern}')", "the pattern is .*; one of yyyy, MM, dd, HH, mm, ss and signs")
            for pattern in REFUSED
        ),
        ("date_format(t, s)", "the pattern has to be a constant"),
        ("split_part(s, 'b', 0)", "parts are numbered from 1 on, or from the end"),
        ("split_part(s, s, 1)", "the delimiter has to be a constant"),
        ("split_part(s, 'b', i)", "the number of the part has to be a constant"),
        ("regexp_count(s, s)", "the pattern has to be a constant"),
        ("99999999999999999999", "beyond 64 bits"),
        ("t > 'yesterday'", "'yesterday' is not a time"),
        ("s LIKE 'a!%' ESCAPE '!'", "not known here"),
        ("i BETWEEN SYMMETRIC 7 AND 1", "has no symmetric here|is no SQL"),
        ("trim(BOTH 'x' FROM s)", "trim has no expression here"),
        ("regexp_replace(s, 'b', '$')", r"the replacement is '\$': \$ stands before the number of a group, as in \$1"),
        ("regexp_replace(s, 'b', '5 $ each')", "the number of a group"),
        (r"regexp_replace(s, 'b', 'x\\')", "the number of a group"),
        (f"regexp_replace(s, '{'(b)' * 12}', '$12')", "groups have numbers up to 9 here"),
        ("cast('a b' AS TIMESTAMP)", "'a b' is not a time: write '2026-01-31', '2026-01-31 12:00:00' or"),
    ],
)
def test_what_is_not_known_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        computed(text)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("CASE WHEN small = 0 THEN 0 ELSE i div small END", [0, 2, None, 0]),
        ("small <> 0 AND i / small > 0", [True, True, None, False]),
        ("small = 0 OR i % small = 1", [False, False, None, True]),
        ("coalesce(i, 1 div (j - 2))", [7, -7, -1, 16_777_217]),
        ("IF(s = '7', cast(s AS INT), -1)", [-1, -1, -1, -1]),
    ],
)
def test_what_nobody_needs_does_not_fail(text: str, values: list[Any]) -> None:
    """The fourth row has a 0, the second row's `j` is 2, and no text is a number."""
    assert computed(text).to_pylist() == values


LOWEST, HIGHEST, MOST = -(1 << 63), (1 << 63) - 1, (1 << 64) - 1
WHOLE = pa.record_batch(
    {
        "u": pa.array([1, MOST, None], pa.uint64()),
        "i": pa.array([LOWEST, HIGHEST, 0], pa.int64()),
        "u32": pa.array([0, (1 << 32) - 1, None], pa.uint32()),
        "i32": pa.array([-(1 << 31), (1 << 31) - 1, 0], pa.int32()),
        "u8": pa.array([0, 255, None], pa.uint8()),
        "i8": pa.array([-128, 127, 0], pa.int8()),
    }
)


@pytest.mark.parametrize(
    ("text", "kind", "values"),
    [
        ("u > i", pa.bool_(), [True, True, None]),
        ("u = -1", pa.bool_(), [False, False, None]),
        ("u IN (1, -1)", pa.bool_(), [True, False, None]),
        ("u <=> i", pa.bool_(), [False, False, False]),
        ("u + i", pa.decimal128(21, 0), [LOWEST + 1, MOST + HIGHEST, None]),
        ("u - i8", pa.decimal128(21, 0), [129, MOST - 127, None]),
        ("u - 1", pa.uint64(), [0, MOST - 1, None]),
        ("u % 2", pa.uint64(), [1, 1, None]),
        ("u div 2", pa.int64(), [0, HIGHEST, None]),
        ("IF(u > 1, u, i)", pa.decimal128(20, 0), [LOWEST, MOST, 0]),
        ("coalesce(u, 0)", pa.uint64(), [1, MOST, 0]),
        ("CAST(u AS DECIMAL(20, 0))", pa.decimal128(20, 0), [1, MOST, None]),
        ("u32 + i32", pa.int64(), [-(1 << 31), (1 << 32) + (1 << 31) - 2, None]),
        ("u32 > i32", pa.bool_(), [True, True, None]),
        ("u32 - 1", pa.int64(), [-1, (1 << 32) - 2, None]),
        ("u8 + i8", pa.int16(), [-128, 382, None]),
        ("coalesce(u8, -1)", pa.int32(), [0, 255, -1]),
        ("i % -1", pa.int64(), [0, 0, 0]),
        ("i32 % 7", pa.int32(), [-2, 1, 0]),
    ],
)
def test_whole_numbers_of_any_size_with_and_without_a_sign_go_together(
    text: str, kind: pa.DataType, values: list[Any]
) -> None:
    column = computed(text, WHOLE)
    assert (column.type, column.to_pylist()) == (kind, values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "u * i",
            r"u \* i: a decimal has at most 38 digits, and this result may need more: CAST the operands",
        ),
        ("u % -1", r"u % -1: a decimal has at most 38 digits, and"),
        ("u div i", "uint64 and int64 do not go together: CAST one"),
    ],
)
def test_whole_numbers_that_have_no_type_together_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        computed(text, WHOLE.slice(0, 0))


@pytest.mark.parametrize("by_arrow", [True, False])
def test_a_remainder_of_doubles_is_exact_with_and_without_arrow_s_own(by_arrow: bool) -> None:
    if by_arrow and "remainder" not in pc.list_functions():
        pytest.skip("this release of Arrow has none")
    divided, divisors = [1e300, -7.5, 1.0, 5.0, None, 2.0, float("inf")], [7.0, 2.0, 0.1, float("inf"), 0.0, None, 2.0]
    rows = pa.record_batch({"a": pa.array(divided), "b": pa.array(divisors)})
    for divisor, of in ((pc.field("b"), divisors), (pc.scalar(0.1), [0.1] * len(divided))):
        (found,) = evaluated(rows, remainder(pc.field("a"), divisor, pa.float64(), by_arrow))
        with np.errstate(invalid="ignore"):
            expected = [None if None in pair else float(np.fmod(*pair)) for pair in zip(divided, of, strict=True)]
        assert str(found.to_pylist()) == str(expected)
    with pytest.raises(InvalidJob, match="divide by zero"):
        evaluated(rows, remainder(pc.field("a"), pc.scalar(0.0), pa.float64(), by_arrow))
    rows = pa.record_batch({"a": pa.array([LOWEST, -7, None]), "b": pa.array([-1, 3, -1])})
    (found,) = evaluated(rows, remainder(pc.field("a"), pc.field("b"), pa.int64(), by_arrow))
    assert found.to_pylist() == [0, -1, None]


@pytest.mark.slow
def test_many_conditions_that_may_fail_are_few_calls() -> None:
    """Evaluating each condition in the rows of all earlier ones would need more calls than there are atoms."""
    terms = " AND ".join(f"i / small > -{number}e9" for number in range(1, 101))
    assert computed(f"small <> 0 AND {terms}").to_pylist() == [True, True, None, False]


@pytest.mark.parametrize(
    "text", ["i / 0", "i % 0", "small * small", "cast(s AS INT)", "cast(i * 1000 AS INT)", "abs(k)"]
)
def test_what_has_no_value_ends_the_job(text: str) -> None:
    lowest = pa.array([-(1 << 63)] * len(ROWS))
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA).append_column("k", lowest)
    with pytest.raises(InvalidJob, match="cannot be computed"):
        computed(text, batch)


@pytest.mark.parametrize("operator", ["+", "/", "div"])
def test_each_part_of_a_long_expression_is_compiled_once(operator: str) -> None:
    """Two compilations at each of sixty levels would never end."""
    assert len(computed(f" {operator} ".join(["j"] * 60))) == len(ROWS)


def test_all_functions_are_listed() -> None:
    assert {"abs", "cast", "date_trunc", "if", "power", "rlike", "startswith", "substring"} <= set(known_functions())
    assert "timestamp_trunc" not in known_functions()


def test_a_name_may_differ_in_case_where_that_is_clear() -> None:
    batch = pa.RecordBatch.from_pydict({"Price": [1], "n": [2], "N": [3]})
    assert computed("price + n", batch).to_pylist() == [3]
    assert computed("`N`", batch).to_pylist() == [3]
    with pytest.raises(InvalidJob, match="no column 'q'"):
        computed("q", batch)
    both = pa.RecordBatch.from_pydict({"aB": [1], "Ab": [2]})
    with pytest.raises(InvalidJob, match="more than one column 'ab'"):
        computed("ab", both)


def test_it_travels_to_a_slot() -> None:
    expression = pickle.loads(pickle.dumps(SqlExpression("i + 1", "t")))
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA)
    assert evaluated(batch, expression.compiled(SCHEMA))[0].to_pylist() == [8, -6, None, 16_777_218]


@pytest.mark.slow
def test_a_remainder_without_arrow_s_own_travels_to_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    made = remainder(pc.field("a"), pc.scalar(7.0), pa.float64(), by_arrow=False)
    (tmp_path / "made").write_bytes(pickle.dumps(made))
    program = (
        "import pickle, sys; import pyarrow as pa; from barrier_runtime.data.expressions import evaluate;"
        "made = pickle.load(open(sys.argv[1], 'rb')); print(evaluate(pa.record_batch({'a': [1e300]}), [made], 't')[0])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "made")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr, told.stdout.split()) == (0, "", ["[", str(int(math.fmod(1e300, 7.0))), "]"])


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False])
def test_steps_take_text(known: bool) -> None:
    """If the schema is unknown at build time, SQL is compiled for the arriving rows."""
    rows = [{"kind": "bid", "price": 50}, {"kind": "bid", "price": 150}, {"kind": "ask", "price": 300}]
    flow = br.Dataflow("sql")
    stream = _source(flow, rows, {"kind": str, "price": int})
    if not known:
        stream = stream.map(lambda row: row)
        assert stream.schema is None
    bids, rest = stream.split("kinds", "CASE WHEN kind = 'bid' THEN 'bids' ELSE 'rest' END", into=("bids", "rest"))
    dear = bids.filter("price > 100").select({"kind": "kind", "eur": "price * 0.5", "one": "1"})
    out, others = br.CollectSink(), br.CollectSink()
    dear.sink("out", out)
    rest.select(["price"]).sink("rest", others)
    flow.run_local()
    assert out.rows() == [{"kind": "bid", "eur": 75.0, "one": 1}]
    assert others.rows() == [{"price": 300}]


def test_what_has_no_value_is_told_with_the_expression() -> None:
    stream = _source(flow := br.Dataflow("sql"), [{"n": 1}, {"n": 0}], {"n": int})
    stream.select({"n": "n", "share": "10 / n"}).sink("out", br.CollectSink())
    with pytest.raises(br.BarrierRuntimeError, match=r"'10 / n': the expression cannot be computed: divide by zero"):
        flow.run_local(parallelism=1)


def test_a_plain_name_is_a_column_in_any_case_and_other_words_are_sql() -> None:
    stream = _source(flow := br.Dataflow("sql"), [{"id": 1}], {"id": int})
    out = br.CollectSink()
    stream.select({"a": "ID", "b": "TRUE", "c": "id"}).sink("out", out)
    flow.run_local(parallelism=1)
    assert out.rows() == [{"a": 1, "b": True, "c": 1}]
    with pytest.raises(InvalidJob, match="there is no column 'idd'"):
        stream.select({"a": "idd"})
    with pytest.raises(InvalidJob, match="would give another value"):
        stream.select({"a": "current_date"})


def test_mistakes_show_when_the_flow_is_written() -> None:
    stream = _source(br.Dataflow("sql"), [{"n": 1}], {"n": int})
    with pytest.raises(InvalidJob, match="the expression n gives int64: use one that gives true or false"):
        stream.filter("n")
    with pytest.raises(InvalidJob, match=r"select, column 'm': 'q \+ 1': there is no column 'q'"):
        stream.select({"m": "q + 1"})
    with pytest.raises(InvalidJob, match="on_error='skip' is for functions"):
        stream.filter("n > 0", on_error="skip")


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    settings = {"spark.ui.enabled": "false", "spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}
    builder = SparkSession.builder.master("local[1]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


def by_spark(spark: Any, rows: pa.Table, texts: Sequence[str]) -> dict[str, list[Any]]:
    columns = [f"{text} AS c{index}" for index, text in enumerate(text.split(" --")[0] for text in texts)]
    table = spark.createDataFrame(rows).coalesce(1).selectExpr(*columns).toArrow()
    return {text: table.column(index).to_pylist() for index, text in enumerate(texts)}


@pytest.mark.spark
def test_dates_of_all_years_are_written_as_spark_writes_them(spark: Any) -> None:
    texts = [f"date_format(t, '{pattern}')" for pattern in PATTERNS]
    random = np.random.default_rng(4)
    first, last = (np.datetime64(text, "ms").astype(np.int64) for text in ("0001-01-01", "9999-12-31T23:59:59.999"))
    edges = ["1582-10-04T12:00", "1582-10-15", "1899-12-31T23:59:59.999", "1970-01-01", "2000-02-29", "2023-12-31"]
    times = [first, last, *np.array(edges, "datetime64[ms]").astype(np.int64), *random.integers(first, last, 3_000)]
    every = pa.array([int(each) for each in times], pa.timestamp("ms", "UTC"))
    micros = every.cast(pa.timestamp("us", "UTC"))
    answers = by_spark(spark, pa.table({"t": micros}), texts)
    for column in (every, micros, every.cast(pa.timestamp("ms"))):
        batch = pa.RecordBatch.from_pydict({"t": column})
        assert {text: computed(text, batch).to_pylist() for text in texts} == answers


@pytest.mark.spark
def test_the_values_are_those_of_spark_sql(spark: Any) -> None:
    of_spark, different = by_spark(spark, pa.Table.from_pylist(ROWS, SCHEMA), EXPRESSIONS), {}
    for text in EXPRESSIONS:
        ours = computed(text).to_pylist()
        theirs = of_spark[text]
        if [_plain(each) for each in ours] != [_plain(each) for each in theirs]:
            different[text] = (ours, theirs)
    assert not different


def _plain(value: Any) -> Any:
    """Makes equal numbers, and NaNs, compare equal."""
    if isinstance(value, float):
        return "nan" if value != value else round(value, 12)
    return value


def _source(flow: br.Dataflow, rows: list[dict[str, Any]], schema: Any) -> Any:
    return flow.from_iterator("rows", lambda index, of: iter(rows), schema=schema, splits=1)
