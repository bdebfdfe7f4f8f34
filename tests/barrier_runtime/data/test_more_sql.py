"""JSON, arrays, maps, dates, texts and bits in SQL expressions: the results of Spark SQL."""

import datetime
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from test_sql_expressions import by_spark, spark  # noqa: F401 - a fixture

import barrier_runtime as br
from barrier_runtime.data.expressions import Compiled
from barrier_runtime.data.sql.expression import SqlExpression
from barrier_runtime.state.errors import InvalidJob
from tests.evaluated import evaluated

UTC = datetime.timezone.utc
ITEM = pa.struct([("sku", pa.string()), ("n", pa.int64())])
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("small", pa.int32()),
        ("x", pa.float64()),
        ("s", pa.string()),
        ("js", pa.string()),
        ("t", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("d", pa.decimal128(7, 2)),
        ("raw", pa.binary()),
        ("numbers", pa.list_(pa.int64())),
        ("words", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int64())),
        ("items", pa.list_(ITEM)),
        ("p", pa.struct([("q", pa.int64()), ("items", pa.list_(ITEM)), ("when", pa.timestamp("us", "UTC"))])),
    ]
)

ROWS: list[dict[str, Any]] = [
    {
        "i": 7,
        "small": 3,
        "x": 2.5,
        "s": "ab1c,de22",
        "js": '{"id": 12, "name": "a\\"b", "at": "2026-01-31T10:00:00.5Z", "price": 1.50, "tags": ["x", "y"], '
        '"address": {"city": "Köln", "zip": null}, "lines": [{"n": 1}, {"n": 2.5}], "paid": true, "m": {"k": 1}}',
        "t": datetime.datetime(2026, 1, 31, 3, 4, 5, 678_901, tzinfo=UTC),
        "day": datetime.date(2024, 2, 29),
        "d": Decimal("12.30"),
        "raw": b"\x00\xffab",
        "numbers": [3, 1, None, 3],
        "words": ["b", None, "a", ""],
        "m": [("k", 1), ("l", None)],
        "items": [{"sku": "a", "n": 1}, {"sku": "b", "n": None}],
        "p": {"q": 5, "items": [{"sku": "z", "n": 9}], "when": datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)},
    },
    {
        "i": -7,
        "small": -3,
        "x": -0.5,
        "s": "Ünï o'neil  x",
        "js": '{"id": "12", "price": 1e3, "tags": [], "address": {}, "paid": "yes", "at": "soon", '
        '"lines": [{}], "m": {}}',
        "t": datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        "day": datetime.date(1969, 12, 31),
        "d": Decimal("-0.05"),
        "raw": b"",
        "numbers": [],
        "words": ["x"],
        "m": [],
        "items": [],
        "p": {"q": None, "items": [], "when": None},
    },
    dict.fromkeys(SCHEMA.names),
    {
        "i": 1_700_000_000_123,
        "small": 40,
        "x": 12345678.9,
        "s": "",
        "js": '{"id": 12',
        "t": datetime.datetime(2026, 12, 28, tzinfo=UTC),
        "day": datetime.date(2026, 12, 28),
        "d": Decimal("0.00"),
        "raw": b"a",
        "numbers": [5],
        "words": [],
        "m": [("k", 7)],
        "items": [{"sku": None, "n": 3}],
        "p": {"q": 1, "items": None, "when": None},
    },
]
JSON_SCHEMA = (
    "id INT, name STRING, at TIMESTAMP, price DECIMAL(6, 2), tags ARRAY<STRING>, "
    "address STRUCT<city: STRING, zip: INT>, lines ARRAY<STRUCT<n: DOUBLE>>, paid BOOLEAN, m MAP<STRING, INT>"
)
EXPRESSIONS = [
    *(
        f"get_json_object(js, '$.{path}')"
        for path in ("id", "name", "price", "tags", "tags[0]", "tags[7]", "address", "address.city", "lines[1].n", "no")
    ),
    "get_json_object(js, '$')",
    "get_json_object('[1, {\"a\": true}]', '$[1].a')",
    "get_json_object(js, '$[\\'id\\']')",
    f"from_json(js, '{JSON_SCHEMA}')",
    "from_json(js, 'id BIGINT').id + 1",
    "from_json(js, 'id STRING, price STRING, address STRING, tags STRING')",
    "from_json(js, 'price DOUBLE, at DATE')",
    "from_json('[1, 2, 3]', 'ARRAY<INT>')",
    "from_json('{\"a\": 1}', 'MAP<STRING, INT>')['a']",
    "from_json('', 'a INT')",
    "to_json(p)",
    "to_json(items)",
    "to_json(m)",
    "to_json(numbers)",
    "to_json(struct(i, s, x, t, day, d, raw))",
    "to_json(named_struct('a', small, 'b', words))",
    "size(numbers)",
    "size(m)",
    "cardinality(words)",
    "array_size(items)",
    "IF(size(numbers) > 0, numbers[0], -1)",
    "IF(size(numbers) > 0, element_at(numbers, -1), -1)",
    "IF(size(items) > 0, items[0].sku, 'none')",
    "IF(size(p.items) > 0, p.items[0].n, 0)",
    "get(numbers, 1)",
    "get(numbers, -1)",
    "get(numbers, small)",
    "try_element_at(numbers, 9)",
    "try_element_at(numbers, -2)",
    "m['k']",
    "element_at(m, 'l')",
    "element_at(m, s)",
    "map_keys(m)",
    "map_values(m)",
    "map_contains_key(m, 'k')",
    "array_contains(numbers, 3)",
    "array_contains(numbers, 4)",
    "array_contains(words, s)",
    "array_position(numbers, 3)",
    "array_join(words, '-')",
    "array_join(words, '-', '?')",
    "array_max(numbers)",
    "array_min(numbers)",
    "sort_array(numbers)",
    "sort_array(words, false)",
    "array_distinct(numbers)",
    "slice(numbers, 2, 2)",
    "slice(numbers, -2, 5)",
    "reverse(numbers)",
    "array(small, i, 3)",
    "array('a', s)",
    "flatten(array(numbers, array(1L)))",
    "map('a', i, coalesce(s, 'z'), 2L)['a']",
    "split(s, ',')",
    "split(s, '[0-9]+')",
    "split(s, ',', 1)",
    "split('a.b.c', '\\\\.', 2)",
    "split(s, '^[a-z]')",
    "split('bb ab b', '\\\\bb')",
    "split('b-b-b', '\\\\bb', 2)",
    "split(s, '^[a-z]', 1)",
    "regexp_count(s, '^[a-z]')",
    "regexp_count('bb ab', '\\\\bb')",
    "regexp_count('ab cd', '\\\\b')",
    "ln(CAST('NaN' AS DOUBLE))",
    "pmod(d, 3)",
    "pmod(d, -3)",
    "locate('', s, 3)",
    "substring_index('aaaa', 'aa', 2)",
    "substring_index('aaaa', 'aa', -2)",
    "regexp_count(s, '$')",
    "from_json('null', 'a INT') IS NULL",
    "log2(CAST('NaN' AS DOUBLE))",
    "regexp_extract(s, '([a-z]+)([0-9]+)', 2)",
    "regexp_extract(s, '([a-z]+)([0-9]+)')",
    "regexp_extract(s, '[0-9]+', 0)",
    "regexp_extract(s, '(?:a)(b)|(z)', 2)",
    "concat_ws('-', s, NULL, i)",
    "concat_ws(',', s, js)",
    "md5(s)",
    "sha(s)",
    "sha1(raw)",
    *(f"sha2(s, {bits})" for bits in (0, 224, 256, 384, 512)),
    "crc32(s)",
    "base64(raw)",
    "unbase64(base64(raw)) = raw",
    "hex(i)",
    "hex(s)",
    "initcap(s)",
    "lpad(s, 5, 'xy')",
    "rpad(s, 12, 'xy')",
    "rpad(s, 3)",
    "instr(s, 'e')",
    "locate('e', s)",
    "locate('e', s, 8)",
    "position('o', s)",
    "reverse(s)",
    "repeat(s, 2)",
    "translate(s, 'abe', 'x')",
    "substring_index(s, ',', 1)",
    "substring_index('a.b.c', '.', -2)",
    "levenshtein(s, 'abc')",
    "ascii(s)",
    "chr(65)",
    "char_length(s)",
    "octet_length(s)",
    "bit_length(s)",
    "datediff(t, day)",
    "datediff('2026-03-01', day)",
    "date_add(day, 1)",
    "date_add(t, small)",
    "date_sub(day, 29)",
    "add_months(day, 12)",
    "add_months(day, -1)",
    "add_months(t, small)",
    "last_day(day)",
    "dayofweek(day)",
    "weekday(day)",
    "dayofyear(t)",
    "weekofyear(day)",
    "trunc(day, 'MM')",
    "trunc(day, 'year')",
    "trunc(day, 'WEEK')",
    "date_part('month', day)",
    "unix_timestamp(t)",
    "unix_timestamp('2026-01-31 10:00:00')",
    "unix_timestamp('31.01.2026', 'dd.MM.yyyy')",
    "to_unix_timestamp(t)",
    "from_unixtime(small)",
    "from_unixtime(small * 100000000L, 'yyyy/MM/dd')",
    "timestamp_millis(i)",
    "timestamp_micros(i)",
    "timestamp_seconds(small)",
    "unix_millis(t)",
    "unix_micros(t)",
    "unix_seconds(t)",
    "unix_date(day)",
    "date_from_unix_date(small)",
    "to_date('31/01/2026', 'dd/MM/yyyy')",
    "log10(x)",
    "log2(i)",
    "log(2, i)",
    "log1p(x)",
    "sin(x) + cos(x) + tan(x) + atan(x) + atan2(x, 1)",
    "asin(x)",
    "acos(x)",
    "degrees(x)",
    "radians(x)",
    "cbrt(x)",
    "pi() + e()",
    "rint(x)",
    "bround(x)",
    "pmod(i, 3)",
    "pmod(small, -5)",
    "pmod(x, 2e0)",
    "i & 3",
    "i | 3",
    "i ^ small",
    "~i",
    "shiftleft(small, 2)",
    "shiftright(i, 2)",
    "i >> 2",
    "small << 2",
    "i | 3 & small",
    "i ^ 5 & 3 | 8",
    "i & 6 << 1",
    "7 - small << 1 & i",
    "isnull(s)",
    "isnotnull(s)",
    "isnan(x)",
    "nanvl(x, 0)",
    "nvl2(s, i, small)",
]


def computed(text: str, rows: pa.RecordBatch | None = None) -> pa.Array:
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA) if rows is None else rows
    return evaluated(batch, SqlExpression(text, "t").compiled(batch.schema))[0]


def plain(value: Any) -> Any:
    """Makes equal numbers, and NaNs, compare equal, within other values, too."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float):
        return "nan" if value != value else round(value, 12)
    if isinstance(value, datetime.datetime):
        return value.replace(tzinfo=None)
    return value


@pytest.mark.spark
def test_the_values_are_those_of_spark_sql(spark: Any) -> None:  # noqa: F811
    of_spark, different = by_spark(spark, pa.Table.from_pylist(ROWS, SCHEMA), EXPRESSIONS), {}
    for text in EXPRESSIONS:
        ours = plain(computed(text).to_pylist())
        if ours != plain(of_spark[text]):
            different[text] = (ours, plain(of_spark[text]))
    assert not different


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("numbers[7]", r"an array of 4 elements has no position 7"),
        ("element_at(numbers, 0)", "positions are numbered from 1 on"),
        ("try_element_at(numbers, 0)", "positions are numbered from 1 on"),
        ("size(i)", "it takes an array, and this is int64"),
        ("map_keys(numbers)", "it takes a map, and this is list"),
        ("m[i]", "int64 and string do not go together: CAST one"),
        ("numbers['a']", "the position in an array is a whole number, and this is string"),
        ("items[0].nn", r"there is no field 'nn' of struct.*did you mean 'n'"),
        ("array(1, 'a')", "elements are int32 and string: CAST what has another type"),
        ("map('a')", "an argument is missing"),
        ("map('a', 1, 'b')", "a map has a value for each key"),
        ("flatten(numbers)", "it takes an array of arrays"),
        ("array_join(numbers, ',')", "it joins texts"),
        ("concat_ws(',', words)", "join the elements of an array by array_join"),
        ("get_json_object(js, 'id')", r"the path is 'id': write \$, then \.name"),
        ("get_json_object(js, '$.lines[*].n')", "the path is"),
        ("get_json_object(js, s)", "the path has to be a constant"),
        ("from_json(js, s)", "the schema has to be a constant"),
        ("split(s, 'a*')", "the pattern 'a\\*' also matches where no character is: write \\+ for \\*"),
        ("split(s, '$')", "also matches where no character is"),
        ("split(s, '\\\\b')", "also matches where no character is"),
        *(
            (f"from_json(js, '{schema}')", "the schema is .*: write names and types, as in 'id BIGINT")
            for schema in ("", "id", "id FOO", "id INT,", "id INT, n FOO", "MAP<STRING>", "a INT; b INT", "id NUMERAL(")
        ),
        ("from_json(js, 'a INT, a STRING')", "the schema has the field 'a' twice"),
        ("from_json(js, 'a INTERVAL')", "the type INTERVAL is not known here|the schema is"),
        ("to_json(i)", r"it takes a struct, a map or an array, and this is int64: use struct\(…\)"),
        ("split(s, '')", "the pattern is empty"),
        ("split(s, s)", "the pattern has to be a constant"),
        ("regexp_extract(s, '(a)', 2)", "has 1 groups, and no group 2"),
        ("sha2(s, 100)", "the number of bits is 100; one of 0, 224, 256"),
        ("unix_timestamp()", "would give another value when rows are read again"),
        ("unix_timestamp(s, 'EEE')", "the pattern is 'EEE'; one of yyyy, MM"),
        ("to_date('2026', 'yyyy-MM')", "'2026' is not a time of the form 'yyyy-MM'"),
        ("timestamp_seconds(x)", "a moment since 1970 is a whole number, and this is double: CAST it"),
        ("timestamp_seconds(9223372036854775807)", "overflow"),
        ("datediff(DAY, day, day)", "datediff takes 2 arguments at most"),
        ("i & x", "it takes whole numbers, and these are int64 and double"),
        ("pmod(i, 0)", "divide by zero"),
        ("unbase64('%%')", "'%%' is not base64"),
    ],
)
def test_what_has_no_value_is_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        computed(text)


@pytest.mark.slow
def test_moments_beyond_the_pattern_and_constants_are_computed_without_rows() -> None:
    nothing = pa.RecordBatch.from_pylist([], SCHEMA)
    assert [len(computed(text, nothing)) for text in EXPRESSIONS] == [0] * len(EXPRESSIONS)


@pytest.mark.parametrize(
    ("schema", "kind"),
    [
        ("a: INT, `my b` STRING NOT NULL", pa.struct([("a", pa.int32()), ("my b", pa.string())])),
        ("date DATE, map MAP<STRING, DECIMAL(5, 2)>", None),
        ("ARRAY<STRUCT<x: ARRAY<BIGINT>>>", pa.list_(pa.struct([("x", pa.list_(pa.int64()))]))),
        ("INT", pa.int32()),
    ],
)
def test_a_schema_is_read_as_spark_writes_it(schema: str, kind: pa.DataType | None) -> None:
    map_ = pa.map_(pa.string(), pa.decimal128(5, 2))
    assert computed(f"from_json(js, '{schema}')").type == (kind or pa.struct([("date", pa.date32()), ("map", map_)]))


def test_a_slice_of_a_batch_has_its_own_elements() -> None:
    batch = pa.RecordBatch.from_pylist(ROWS, SCHEMA).slice(3)
    assert [computed(text, batch).to_pylist() for text in ("numbers[0]", "m['k']", "map_keys(m)", "size(m)")] == [
        [5],
        [7],
        [["k"]],
        [1],
    ]


@pytest.mark.slow
def test_a_compiled_expression_travels_to_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    text = "from_json(js, 'm MAP<STRING, INT>').m['k']"
    compiled = Compiled(SqlExpression(text, "t").compiled(SCHEMA), text)
    (tmp_path / "compiled").write_bytes(pickle.dumps(compiled))
    program = (
        "import pickle, sys; import pyarrow as pa; from barrier_runtime.data.expressions import evaluate;"
        "made = pickle.load(open(sys.argv[1], 'rb')).expression;"
        "print(evaluate(pa.record_batch({'js': ['{\"m\": {\"k\": 7}}']}), [made], 't')[0].to_pylist())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "compiled")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr, told.stdout) == (0, "", "[7]\n")


@pytest.mark.parametrize("known", [True, False])
def test_nested_json_is_read_in_a_flow(known: bool) -> None:
    flow, out = br.Dataflow("json"), br.CollectSink()
    values = [{"value": row["js"]} for row in ROWS]
    stream = flow.from_iterator("in", lambda index, of: iter(values), schema={"value": str}, splits=1)
    rows = stream if known else stream.map(lambda row: row)
    order = "from_json(value, 'id INT, lines ARRAY<STRUCT<n: DOUBLE>>')"
    rows.select({"id": f"{order}.id", "lines": f"size({order}.lines)"}).sink("out", out)
    flow.run_local(parallelism=1)
    assert [tuple(row.values()) for row in out.rows()] == [(12, 2), (None, 1), (None, None), (None, None)]


@pytest.mark.parametrize(
    "text",
    [
        '{"id": 1, "s": "\\ud83d"}',
        '{"id": 1, "s": {"\\ud83d": 2}}',
        '{"id": 1, "s": ' + 5_000 * "[" + 5_000 * "]" + "}",
        5_000 * "[",
    ],
    ids=["half a pair", "half a pair in a name", "deep", "deep without an end"],
)
def test_json_that_is_no_text_or_too_deep_gives_null(text: str) -> None:
    flow, out = br.Dataflow("odd"), br.CollectSink()
    stream = flow.from_iterator("in", lambda index, of: iter([{"value": text}]), schema={"value": str}, splits=1)
    columns = ["get_json_object(value, '$.s')", "from_json(value, 's STRING').s", "from_json(value, 's INT').s"]
    stream.select({f"c{number}": column for number, column in enumerate(columns)}).sink("out", out)
    flow.run_local(parallelism=1)
    assert [list(row.values()) for row in out.rows()] == [[None, None, None]]


def test_anchors_match_the_begin_of_the_text_alone() -> None:
    texts = pa.record_batch([pa.array(["aab", "bb ab", "", None])], ["s"])

    def of(text: str) -> list[Any]:
        (column,) = evaluated(texts, SqlExpression(text, "select").compiled(texts.schema))
        return list(column.to_pylist())

    assert of("regexp_count(s, '^a')") == [1, 0, 0, None]
    assert of("regexp_count(s, '\\\\bb')") == [0, 1, 0, None]
    assert of("split(s, '^a')") == [["", "ab"], ["bb ab"], [""], None]
    assert of("split(s, '\\\\bb|^a', 2)") == [["", "ab"], ["", "b ab"], [""], None]


def test_edges_of_json_and_floats_give_what_spark_gives() -> None:
    nan = float("nan")
    columns = {"xa": [[nan, 1.0, nan], [None, nan], [0.0]], "x": [0.0, -0.0, 1.0], "f": [0.1, 1e10, nan]}
    kinds = [pa.list_(pa.float64()), pa.float64(), pa.float32()]
    arrays = [pa.array(each, kind) for each, kind in zip(columns.values(), kinds, strict=True)]
    rows = pa.record_batch(arrays, [*columns])
    second, day = (
        datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC),
        datetime.datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    expected: dict[str, Any] = {
        "array_contains(xa, CAST('NaN' AS DOUBLE))": [True, True, False],
        "array_position(xa, CAST('NaN' AS DOUBLE))": [1, 2, 0],
        "size(array_distinct(xa))": [2, 2, 1],
        "atan2(x, -0.0e0)": [0.0, 0.0, 1.570796326795],
        "to_json(struct(f))": ['{"f":0.1}', '{"f":1.0E10}', '{"f":"NaN"}'],
        "from_json('{\"a\": 1700000000}', 'a TIMESTAMP').a": [second] * 3,
        "from_json('{\"a\": 1.5}', 'a TIMESTAMP').a": [None] * 3,
        "from_json('{\"a\": 1700000000000}', 'a TIMESTAMP').a": [None] * 3,
        "from_json('{\"a\": \"2024-1-2 3:4:5\"}', 'a TIMESTAMP').a": [day] * 3,
        "from_json('{\"a\": \"2024-1-2\"}', 'a DATE').a": [day.date()] * 3,
        "from_json('{\"a\": 1}', 'ARRAY<STRUCT<a: INT>>')": [[{"a": 1}]] * 3,
    }
    made = [SqlExpression(text, "select").compiled(rows.schema) for text in expected]
    found = [plain(column.to_pylist()) for column in evaluated(rows, *made)]
    assert dict(zip(expected, found, strict=True)) == {text: plain(values) for text, values in expected.items()}


def test_logarithm_of_nan_is_nan() -> None:
    numbers = pa.record_batch([pa.array([float("nan"), 0.0, -1.0, None])], ["x"])
    for function in ("ln", "log", "log2", "log10", "log1p"):
        (column,) = evaluated(numbers, SqlExpression(f"{function}(x)", "select").compiled(numbers.schema))
        first, *others = column.to_pylist()
        assert first != first
        assert others == [0.0 if function == "log1p" else None, None, None]


def test_rare_arguments_give_what_spark_gives() -> None:
    rows = pa.record_batch([pa.array([Decimal("-1.25"), Decimal("7.10"), None])], ["d"])
    expected = {
        "pmod(d, 3)": [Decimal("1.75"), Decimal("1.10"), None],
        "pmod(d, -3)": [Decimal("-1.25"), Decimal("1.10"), None],
        "locate('', 'abc', 3)": [1] * 3,
        "substring_index('aaaa', 'aa', 2)": ["a"] * 3,
        "substring_index('aaaa', 'aa', -2)": ["a"] * 3,
        "substring_index('a.b.c', '.', -2)": ["b.c"] * 3,
        "regexp_count('abc', '$')": [1] * 3,
        "regexp_count('éß', '')": [3] * 3,
        "from_json('null', 'a INT') IS NULL": [False] * 3,
    }
    made = [SqlExpression(text, "select").compiled(rows.schema) for text in expected]
    found = [column.to_pylist() for column in evaluated(rows, *made)]
    assert dict(zip(expected, found, strict=True)) == expected
