"""Arrow types against PostgreSQL types, and rows as CSV. See tests/ends/test_postgres_types.py for a real server."""

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.connectors.postgres.columns import POSTGRES_COLUMNS, Column, encode_csv
from barrier_runtime.connectors.sink_bases.sql.columns import Fitted, checked, fitted
from barrier_runtime.state.errors import InvalidJob


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def column(base: str, element: str | None = None, typmod: int = -1) -> Column:
    return Column("c", f"shown {base}", base, element=element, typmod=typmod)


def fits(schema: pa.Schema, columns: list[Column], where: str = "here") -> tuple[Fitted, ...]:
    return fitted(schema, columns, POSTGRES_COLUMNS, "public.t", where, ())


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (pa.int8(), column("int2")),
        (pa.uint8(), column("int2")),
        (pa.int32(), column("int8")),
        (pa.uint32(), column("int8")),
        (pa.uint64(), column("numeric")),
        (pa.float16(), column("float4")),
        (pa.float32(), column("float8")),
        (pa.float64(), column("float8")),
        (pa.float64(), column("numeric")),
        (pa.float32(), column("numeric")),
        (pa.list_(pa.float64()), column("_numeric", "numeric")),
        (pa.bool_(), column("bool")),
        (pa.string(), column("text")),
        (pa.string(), column("jsonb")),
        (pa.large_string(), column("uuid")),
        (pa.string(), column("mood_enum")),
        (pa.dictionary(pa.int32(), pa.string()), column("varchar")),
        (pa.binary(), column("bytea")),
        (pa.timestamp("ms"), column("timestamp")),
        (pa.timestamp("ns", "Europe/Berlin"), column("timestamptz")),
        (pa.timestamp("ms"), column("timestamp", typmod=3)),
        (pa.date64(), column("date")),
        (pa.time32("s"), column("time")),
        (pa.duration("ms"), column("interval")),
        (pa.decimal128(10, 2), column("numeric", typmod=numeric(10, 2))),
        (pa.decimal128(10, 2), column("numeric", typmod=numeric(20, 4))),
        (pa.decimal256(60, 30), column("numeric")),
        (pa.list_(pa.int32()), column("_int8", "int8")),
        (pa.large_list(pa.string()), column("_text", "text")),
        (pa.list_(pa.int32()), column("jsonb")),
        (pa.struct([("x", pa.int32())]), column("json")),
        (pa.map_(pa.string(), pa.int32()), column("jsonb")),
        (pa.null(), column("int4")),
    ],
)
def test_what_changes_no_value_fits(kind: pa.DataType, target: Column) -> None:
    fits(pa.schema([("c", kind)]), [target])


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (pa.int64(), column("int4")),
        (pa.uint16(), column("int2")),
        (pa.uint64(), column("int8")),
        (pa.int32(), column("float8")),
        (pa.int64(), column("text")),
        (pa.float64(), column("float4")),
        (pa.float64(), column("numeric", typmod=numeric(20, 4))),
        (pa.float64(), replace(column("numeric"), infinities=False)),
        (pa.string(), column("int8")),
        (pa.string(), column("timestamp")),
        (pa.binary(), column("text")),
        (pa.string(), column("bytea")),
        (pa.timestamp("us"), column("timestamptz")),
        (pa.timestamp("us", "UTC"), column("timestamp")),
        (pa.timestamp("us"), column("timestamp", typmod=3)),
        (pa.timestamp("us"), column("date")),
        (pa.date32(), column("timestamp")),
        (pa.decimal128(10, 3), column("numeric", typmod=numeric(10, 2))),
        (pa.decimal128(11, 2), column("numeric", typmod=numeric(10, 2))),
        (pa.list_(pa.int64()), column("_int4", "int4")),
        (pa.list_(pa.list_(pa.int32())), column("_int4", "int4")),
        (pa.int32(), column("_int4", "int4")),
        (pa.list_(pa.int32()), column("int4")),
        (pa.struct([("x", pa.int32())]), column("text")),
        (pa.bool_(), column("int4")),
        (pa.string(), column("_text", "text")),
    ],
)
def test_what_could_change_a_value_is_refused_by_column_and_both_types(kind: pa.DataType, target: Column) -> None:
    message = refused(pa.schema([("c", kind)]), [target])
    assert f"column 'c' is {kind}, in table public.t it is {target.shown}" in message
    assert "cast it" in message


def refused(schema: pa.Schema, columns: list[Column]) -> str:
    with pytest.raises(InvalidJob) as caught:
        fits(schema, columns, "job 'j'")
    return str(caught.value)


def test_a_column_that_the_table_lacks_is_named_with_those_it_has() -> None:
    columns = [Column("a", "integer", "int4"), Column("b", "text", "text")]
    message = refused(pa.schema([("a", pa.int32()), ("z", pa.int32())]), columns)
    assert "column 'z', table public.t has not; it has a, b: ALTER TABLE" in message


def test_a_column_that_needs_a_value_and_gets_none_is_named() -> None:
    columns = [
        Column("a", "integer", "int4"),
        Column("id", "bigint", "int8", not_null=True, filled=True),
        Column("total", "bigint", "int8", not_null=True, generated=True),
        Column("b", "text", "text", not_null=True),
    ]
    assert "'b' of table public.t is NOT NULL without a default" in refused(pa.schema([("a", pa.int32())]), columns)


def test_a_column_that_the_server_makes_takes_no_values() -> None:
    message = refused(pa.schema([("a", pa.int32())]), [Column("a", "integer", "int4", generated=True)])
    assert "column 'a' of table public.t is generated by the server: leave it out" in message


def test_a_column_twice_in_the_rows_is_refused() -> None:
    schema = pa.schema([("a", pa.int32()), ("a", pa.int32())])
    assert "column 'a' is in the rows twice" in refused(schema, [Column("a", "integer", "int4")])


def csv(values: list[Any], kind: pa.DataType, target: Column) -> str:
    batch = pa.record_batch({"c": pa.array(values, kind)})
    return encode_csv(checked(batch, fits(batch.schema, [target]), "t", "here")).decode()


def test_nothing_is_mistaken_for_a_null() -> None:
    written = csv([None, "", "NULL", "\\N", 'a"b', "x,\ny"], pa.string(), column("text"))
    assert written == '\n""\n"NULL"\n"\\N"\n"a""b"\n"x,\ny"\n'


def test_elements_of_arrays_are_quoted_and_escaped() -> None:
    written = csv([["a", None, 'q"\\'], [], None], pa.list_(pa.string()), column("_text", "text"))
    assert written == '"{""a"",NULL,""q\\""\\\\""}"\n"{}"\n\n'


def test_of_nanoseconds_whole_microseconds_are_kept() -> None:
    assert csv([1_999, None], pa.timestamp("ns"), column("timestamp")) == '"1970-01-01 00:00:00.000001"\n\n'
    assert csv([1_999], pa.duration("ns"), column("interval")) == '"1 microseconds"\n'
    assert csv([1_999], pa.time64("ns"), column("time")) == '"00:00:00.000001"\n'


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_nanoseconds_before_1970_stay_in_their_second_day_and_year(zone: str | None) -> None:
    written = csv([-1, -1_001], pa.timestamp("ns", zone), column("timestamptz" if zone else "timestamp"))
    assert [line[1:27] for line in written.split("\n")[:2]] == [
        "1969-12-31 23:59:59.999999",
        "1969-12-31 23:59:59.999998",
    ]


def test_a_time_beyond_all_microseconds_is_an_error() -> None:
    with pytest.raises(InvalidJob, match=r"column 'c' cannot be written to t: .*out of bounds"):
        csv([2**62], pa.timestamp("s"), column("timestamp"))
