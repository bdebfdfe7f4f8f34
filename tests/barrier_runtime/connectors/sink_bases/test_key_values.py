"""Key values that databases treat as equal or change on storing, found without a server."""

import math
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.clickhouse.sink import column_for, takes, unkept
from barrier_runtime.connectors.mysql.columns import MYSQL_COLUMNS, MySQLColumn
from barrier_runtime.connectors.postgres.columns import POSTGRES_COLUMNS, Column, encode_csv
from barrier_runtime.connectors.sink_bases.sql.columns import (
    ColumnRules,
    TableColumn,
    below_microseconds,
    checked,
    fitted,
    negative_zeros,
    with_trailing_spaces,
)
from barrier_runtime.connectors.sqlite.sink import SQLITE_COLUMNS, base_of
from barrier_runtime.state.errors import InvalidJob


@pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.float64()])
def test_negative_zeros_are_told_from_zeros(kind: pa.DataType) -> None:
    values = pa.array([0.0, -0.0, None, -1.0, math.nan, -math.inf], pa.float64()).cast(kind)
    assert negative_zeros(values).to_pylist() == [False, True, False, False, False, False]


def test_trailing_spaces_and_digits_below_a_microsecond_are_found() -> None:
    assert with_trailing_spaces(pa.array(["a ", " a", "", None])).to_pylist() == [True, False, False, None]
    for kind in (pa.timestamp("ns", "UTC"), pa.time64("ns"), pa.duration("ns")):
        assert below_microseconds(pa.array([0, 1_000, 1_001, None], kind)).to_pylist() == [False, False, True, False]


@pytest.mark.parametrize(
    ("column", "values", "key", "said"),
    [
        ("Date", pa.array([0, 65_535], pa.date32()), False, ""),
        ("Date", pa.array([None, -1], pa.date32()), False, "before 1970-01-01"),
        ("Nullable(Date)", pa.array([65_536], pa.date32()), False, "after 2149-06-06"),
        ("Date32", pa.array([-25_567, 120_529], pa.date32()), False, ""),
        ("Date32", pa.array([-25_568], pa.date32()), False, "before 1900"),
        ("DateTime('Europe/Berlin')", pa.array([0, (1 << 32) - 1], pa.timestamp("s", "UTC")), False, ""),
        ("DateTime", pa.array([1 << 32], pa.timestamp("s", "Europe/Berlin")), False, "after 2106"),
        ("DateTime64(6)", pa.array([-2_208_988_800_000_000], pa.timestamp("us")), False, ""),
        ("DateTime64(6)", pa.array([-2_208_988_800_000_001], pa.timestamp("us")), False, "before 1900"),
        ("Array(Date)", pa.array([[1], [-1]], pa.list_(pa.date32())), False, "before 1970"),
        ("Array(String)", pa.array([["a", None]]), False, r"Array\(Nullable\(String\)\)"),
        ("Array(Nullable(String))", pa.array([["a", None]]), False, ""),
        ("Float64", pa.array([-0.0]), False, ""),
        ("Float64", pa.array([-0.0]), True, "a key is -0.0"),
        ("Float64", pa.array([0.0, math.nan]), True, ""),
    ],
)
def test_clickhouse_keeps_a_value_or_says_why_not(column: str, values: pa.Array, key: bool, said: str) -> None:
    found = unkept(column, values, is_key=key)
    assert (found == "") if not said else pa.compute.match_substring_regex(pa.scalar(found), said).as_py()


def test_a_column_proposed_for_clickhouse_takes_the_type() -> None:
    for kind in (pa.timestamp("us"), pa.decimal128(10, 2), pa.list_(pa.int8()), pa.float32(), pa.binary(), pa.bool_()):
        assert takes(column_for(kind), kind)
    for kind in (pa.timestamp("ns"), pa.decimal128(5, -2), pa.time64("us")):
        assert column_for(kind) == ""


def mysql(base: str, **options: Any) -> MySQLColumn:
    return MySQLColumn("k", options.pop("shown", base), base, charset="utf8mb4", **options)


@pytest.mark.parametrize(
    ("column", "values", "key", "said"),
    [
        (mysql("varchar", collation="utf8mb4_bin", octets=80, characters=20), pa.array(["a "]), False, ""),
        (
            mysql("varchar", collation="utf8mb4_bin", octets=80, characters=20),
            pa.array(["a "]),
            True,
            "ends with a space",
        ),
        (mysql("varchar", collation="utf8mb4_nopad_bin", octets=80, characters=20), pa.array(["a "]), True, ""),
        (mysql("varchar", collation="utf8mb4_0900_bin", octets=80, characters=20), pa.array(["a "]), True, ""),
        (mysql("char", octets=80, characters=20), pa.array(["a "]), False, "which char removes"),
        (mysql("double"), pa.array([-0.0]), False, "stores as 0.0"),
        (mysql("double", shown="double(7,2)"), pa.array([1.5]), False, "cannot hold every such value"),
        (mysql("float", shown="float(7,2)"), pa.array([1.5], pa.float32()), False, "cannot hold every such value"),
        (mysql("double", unsigned=True), pa.array([1.5]), False, "cannot hold every such value"),
        (mysql("decimal", unsigned=True, precision=20), pa.array([1], pa.int32()), False, "cannot hold every such"),
        (mysql("decimal", unsigned=True, precision=20), pa.array([1], pa.uint32()), False, ""),
        (mysql("tinyint", unsigned=True), pa.array([True]), False, ""),
        (mysql("datetime", second_digits=6), pa.array([1], pa.timestamp("ns")), False, ""),
        (mysql("datetime", second_digits=6), pa.array([1], pa.timestamp("ns")), True, "digits below a microsecond"),
        (mysql("json"), pa.array(['{"a": [{"b": 1}, {"b": 0.1}], "c": "b: 1, b: 2"}', None]), False, ""),
        (
            mysql("json"),
            pa.array(["{}", '{"a": {"b": 1, "c": 2, "b": 3}}']),
            False,
            "a key twice, of which MySQL keeps",
        ),
        (mysql("json", shown="longtext"), pa.array(['{"b": 1, "b": 3}', "0.12345678901234567890"]), False, ""),
        (mysql("json"), pa.array(["[18446744073709551615, -9223372036854775808, 1e23, 0.123456789012345]"]), False, ""),
        (mysql("json"), pa.array(['{"a": 18446744073709551616}']), False, "more digits than MySQL keeps"),
        (mysql("json"), pa.array(["[1, 0.12345678901234567890]"]), False, "more digits than MySQL keeps"),
        (mysql("json"), pa.array(['"0.12345678901234567890"']), False, ""),
        (mysql("json"), pa.array([100 * "[" + '"\\"[["' + 100 * "]"]), False, ""),
        (mysql("json"), pa.array([101 * "[" + 101 * "]"]), False, "more than 100 levels"),
        (mysql("json"), pa.array([100_000 * "[" + 100_000 * "]"]), False, "is not JSON"),
    ],
)
def test_mysql_keeps_a_value_or_says_why_not(column: MySQLColumn, values: pa.Array, key: bool, said: str) -> None:
    keeps_or_says(MYSQL_COLUMNS, column, values, key, said)


@pytest.mark.parametrize(
    ("collation", "apart"),
    [
        ("utf8mb4_bin", True),
        ("utf8mb4_0900_bin", True),
        ("utf8mb4_nopad_bin", True),
        ("utf8mb4_0900_ai_ci", False),
        ("utf8mb4_0900_as_cs", False),
        ("utf8mb4_general_ci", False),
        ("utf8mb4_uca1400_nopad_as_cs", False),
    ],
)
def test_only_binary_collations_tell_texts_apart(collation: str, apart: bool) -> None:
    assert mysql("varchar", collation=collation).tells_texts_apart is apart


def postgres(base: str, typmod: int = -1, **options: Any) -> Column:
    return Column("k", base, base, typmod=typmod, **options)


@pytest.mark.parametrize(
    ("column", "values", "key", "said"),
    [
        (postgres("varchar", 6), pa.array(["ab"]), True, ""),
        (postgres("varchar", 6), pa.array(["a  "]), False, "is longer than varchar, which cuts spaces"),
        (postgres("bpchar", 6), pa.array(["ab", None]), False, ""),
        (postgres("bpchar", 6), pa.array(["a"]), False, r"has not exactly 2 characters.*varchar\(2\)"),
        (postgres("char"), pa.array(["a"]), False, "cannot hold every such value"),
        (postgres("text"), pa.array(["a\0"]), False, r"U\+0000, an invalid byte sequence"),
        (postgres("_text", element="text"), pa.array([["a\0"]]), False, r"U\+0000"),
        (postgres("inet"), pa.array(["::1"]), False, ""),
        (postgres("inet"), pa.array(["::1"]), True, "different texts may be one value"),
        (postgres("mood", enum=True), pa.array(["sad"]), True, ""),
        (postgres("uuid"), pa.array(["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]), False, ""),
        (postgres("json"), pa.array(['{"b": 1, "b": 3}']), False, ""),
        (postgres("jsonb"), pa.array(['{"b": 1, "c": [{"b": 3}]}', "1e999", None]), False, ""),
        (postgres("jsonb"), pa.array(["{}", '[{"b": 1, "b": 3}]']), False, "a key twice, of which jsonb keeps one"),
        (postgres("_jsonb", element="jsonb"), pa.array([['{"b": 1, "b": 3}']]), False, "a key twice"),
        (postgres("uuid"), pa.array(["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]), True, "another spelling of a uuid"),
        (postgres("float8"), pa.array([-0.0]), False, ""),
        (postgres("float8"), pa.array([-0.0]), True, "is -0.0, which is the key 0.0"),
        (postgres("numeric"), pa.array([-0.0]), False, "is -0.0, which is 0 as numeric"),
        (postgres("numeric", ((5 << 16) | (-2 & 0x7FF)) + 4), pa.array([1]), False, "cannot hold every such value"),
        (postgres("timestamp"), pa.array([1], pa.timestamp("ns")), True, "digits below a microsecond"),
        (postgres("timestamp"), pa.array([1], pa.timestamp("ns")), False, ""),
        (postgres("date"), pa.array([-719_163], pa.date32()), False, "before the year 1"),
        (postgres("timestamp"), pa.array([2**63 - 1], pa.timestamp("us")), False, "after 32767"),
        (postgres("interval", 0x7FFF0000), pa.array([1], pa.duration("ms")), False, "cannot hold every such value"),
        (postgres("interval", 0x7FFF0003), pa.array([1], pa.duration("ms")), False, ""),
    ],
)
def test_postgresql_keeps_a_value_or_says_why_not(column: Column, values: pa.Array, key: bool, said: str) -> None:
    keeps_or_says(POSTGRES_COLUMNS, column, values, key, said)


@pytest.mark.parametrize(
    ("declared", "values", "key", "said"),
    [
        ("bigint", pa.array([2**63 - 1, None]), False, ""),
        ("bigint", pa.array([1], pa.uint64()), False, "cannot hold every such value"),
        ("bigint", pa.array([True]), False, ""),
        ("numeric", pa.array([1]), False, "cannot hold every such value"),
        ("double", pa.array([math.inf, 0.1]), False, ""),
        ("double", pa.array([math.nan]), False, "is NaN, which SQLite stores as null"),
        ("real", pa.array([-0.0]), False, "is -0.0, which SQLite stores as 0.0"),
        ("integer", pa.array([1.5]), False, "cannot hold every such value"),
        ("varchar(2)", pa.array(["abc", "a "]), True, ""),
        ("timestamp", pa.array(["abc"]), False, "cannot hold every such value"),
        ("timestamp", pa.array([1], pa.timestamp("ns", "UTC")), False, ""),
        ("text", pa.array([1], pa.timestamp("ns")), True, "digits below a microsecond"),
        ("text", pa.array([1], pa.duration("s")), False, "cannot hold every such value"),
        ("date", pa.array([86_400_000], pa.date64()), False, ""),
        ("blob", pa.array([b"a"]), True, ""),
        ("blob", pa.array(["a"]), False, "cannot hold every such value"),
        ("text", pa.array([None], pa.string()), True, "is null"),
    ],
)
def test_sqlite_keeps_a_value_or_says_why_not(declared: str, values: pa.Array, key: bool, said: str) -> None:
    keeps_or_says(SQLITE_COLUMNS, TableColumn("k", declared, base_of(declared)), values, key, said)


@pytest.mark.parametrize(
    ("declared", "found"),
    [
        *(("INT", "INTEGER"), ("UNSIGNED BIG INT", "INTEGER"), ("CHARINT", "INTEGER"), ("nvarchar(9)", "TEXT")),
        *(("clob", "TEXT"), ("", "BLOB"), ("double precision", "REAL"), ("decimal(9, 2)", "NUMERIC")),
    ],
)
def test_affinities_of_sqlite_are_those_of_its_rules(declared: str, found: str) -> None:
    assert base_of(declared) == found


def keeps_or_says(rules: ColumnRules, column: TableColumn, values: pa.Array, key: bool, said: str) -> None:
    batch = pa.record_batch({"k": values})

    def write() -> bytes:
        fits = fitted(batch.schema, [column], rules, "t", "here", ["k"] if key else ())
        return encode_csv(checked(batch, fits, "t", "here"))

    if said:
        with pytest.raises((InvalidJob, pa.ArrowInvalid), match=f"column 'k'.*{said}"):
            write()
    else:
        assert write()
