"""Redis keys and values: different keys have different texts, and NaN and infinite floats survive."""

import datetime
import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.redis.sink import check_key, json_of, keys_of, text_of
from tests.drawn import examples

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.string(): st.text("\\:Nnul1x", max_size=5),
    pa.binary(): st.lists(st.sampled_from(b"\\:N\xff"), max_size=5).map(bytes),
    pa.int64(): st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(allow_nan=False),
    pa.list_(pa.float64()): st.lists(st.sampled_from([0.5, math.inf, -math.inf]), max_size=2),
    pa.timestamp("ns", "UTC"): st.integers(-3000, 3000),
    pa.dictionary(pa.int32(), pa.string()): st.text("\\:N", max_size=3),
}


@st.composite
def keyed(draw: st.DrawFn) -> list[pa.Array]:
    """Draws columns of 1 to 3 types, some rows with nulls."""
    kinds = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=3))
    rows = draw(st.integers(1, 12))
    return [pa.array(draw(st.lists(st.none() | TYPES[kind], min_size=rows, max_size=rows)), kind) for kind in kinds]


def values(column: pa.Array) -> list[Any]:
    return [
        repr(value) for value in (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    ]


@examples(100)
@given(keyed())
def test_rows_have_the_same_redis_key_exactly_when_their_keys_are_equal(columns: list[pa.Array]) -> None:
    names = [f"k{number}" for number in range(len(columns))]
    texts = keys_of(pa.RecordBatch.from_arrays(columns, names), names)
    assert len(set(texts)) == len(set(zip(*map(values, columns), strict=True)))


def keys(*columns: pa.Array) -> list[bytes]:
    names = [f"k{number}" for number in range(len(columns))]
    return keys_of(pa.RecordBatch.from_arrays(list(columns), names), names)


def test_the_key_of_one_column_is_its_value_as_it_is() -> None:
    assert keys(pa.array(["a", "x:y", "null", "", "a\\b", "\u00fc"])) == [
        *(b"a", b"x:y", b"null", b"", b"a\\b", "\u00fc".encode())
    ]
    assert keys(pa.array([1, -7])) == [b"1", b"-7"]
    assert keys(pa.array([True])) == [b"true"]
    time = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)
    assert keys(pa.array([time], pa.timestamp("ns", "UTC"))) == [b"2024-01-02T00:00:00Z"]


def test_a_null_is_told_from_every_text() -> None:
    assert keys(pa.array([None, "null", "\\N", "\\\\N"])) == [b"\\N", b"null", b"\\\\N", b"\\\\\\N"]
    assert keys(pa.array([None, "\\N"]), pa.array(["a", "a"])) == [b"\\N:a", b"\\\\N:a"]


def test_colons_inside_the_columns_of_a_key_are_told_from_those_between_them() -> None:
    assert keys(pa.array(["x:y", "x"]), pa.array(["z", "y:z"])) == [b"x\\:y:z", b"x:y\\:z"]


def test_times_that_differ_by_nanoseconds_have_different_keys() -> None:
    for kind in (pa.timestamp("ns"), pa.time64("ns"), pa.duration("ns"), pa.list_(pa.timestamp("ns"))):
        numbers: list[object] = [1000, 1001, 1002, 86_399_999_999_999]
        assert len(set(keys(pa.array([[each] for each in numbers] if pa.types.is_list(kind) else numbers, kind)))) == 4
    assert keys(pa.array([-1, -1001, None], pa.timestamp("ns")))[1:] == [b"1969-12-31T23:59:59.999998+999ns", b"\\N"]


def test_a_key_column_of_several_types_is_refused() -> None:
    kind = pa.dense_union([pa.field("i", pa.int64()), pa.field("s", pa.string())])
    assert "column 'k' has values of several types" in str(check_key("k", kind))
    assert check_key("k", pa.int64()) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 0.1, -0.0])
def test_a_float_comes_back_from_its_text_and_from_json(value: float) -> None:
    for found in (float(text_of(value)), float(json.loads(json_of({"a": [value]}))["a"][0])):
        assert repr(found) == repr(value)
