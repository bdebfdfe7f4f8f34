"""JSON of sinks: nothing of a value is lost, and a map is what sources of JSON read as a map."""

from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import InvalidJob
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.json_values import json_values

TAGS = pa.map_(pa.string(), pa.int64())


@pytest.mark.parametrize(
    ("kind", "values", "json"),
    [
        (TAGS, [None, [("a", 1), ("b", None)], []], 'null,{"a":1,"b":null},{}'),
        (pa.list_(TAGS), [[[("a", 1)], None]], '[{"a":1},null]'),
        (pa.map_(pa.int32(), TAGS), [[(7, [("a", 1)])]], '{"7":{"a":1}}'),
        (pa.map_(pa.date32(), pa.binary()), [[(0, b"x")]], '{"1970-01-01":"eA=="}'),
        (pa.map_(pa.struct([("x", pa.int64())]), pa.int64()), [[({"x": 1}, 2)]], '[[{"x":1},2]]'),
        (pa.timestamp("ns"), [1, None], '"1970-01-01T00:00:00.000000001",null'),
        (pa.list_(pa.timestamp("ns", "UTC")), [[1]], '["1970-01-01T00:00:00.000000001Z"]'),
        (pa.struct([("d", pa.duration("ns"))]), [{"d": -1_000_000_001}, None], '{"d":"-PT1.000000001S"},null'),
        (pa.duration("ns"), [86_400_000_000_000], '"P1D"'),
        (pa.duration("s"), [2**62], '"PT4611686018427387904S"'),
        (pa.time64("ns"), [1], '"00:00:00.000000001"'),
        (pa.time64("ns"), [1_000], '"00:00:00.000001"'),
        (pa.timestamp("ms", "UTC"), [253_402_300_800_000], '"10000-01-01T00:00:00Z"'),
        (pa.date32(), [2_932_897], '"10000-01-01"'),
        (pa.timestamp("ms"), [1, 1_000], '"1970-01-01T00:00:00.001","1970-01-01T00:00:01"'),
        (pa.timestamp("us", "Europe/Berlin"), [-2_208_988_800_000_000], '"1900-01-01T00:00:00Z"'),
        (pa.float32(), [float("nan"), -0.0, float("-inf"), None], '"NaN",-0.0,"-Infinity",null'),
        (pa.list_(pa.struct([("x", pa.float64())])), [[{"x": float("inf")}]], '[{"x":"Infinity"}]'),
    ],
)
def test_values_are_written_whole(kind: pa.DataType, values: list[Any], json: str) -> None:
    lines = encoders.jsonl([pa.record_batch({"c": pa.array(values, kind)})]).decode().splitlines()
    assert ",".join(line[len('{"c":') : -1] for line in lines) == json


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (pa.timestamp("s"), 2**62, "column 'c': the timestamp\\[s\\] 4611686018427387904 .* beyond the years"),
        (pa.list_(pa.date32()), [2**31 - 1], "column 'c': the date32\\[day\\] 2147483647 .* beyond the years"),
        (TAGS, [("a", 1), ("a", 2)], "column 'c': a map has the key 'a' twice"),
    ],
)
def test_values_that_json_does_not_hold_are_refused_with_column(kind: pa.DataType, value: Any, said: str) -> None:
    with pytest.raises(InvalidJob, match=said):
        encoders.jsonl([pa.record_batch({"c": pa.array([value], kind)})])


def test_a_part_of_nested_columns_is_that_part() -> None:
    inner = pa.struct([("x", pa.list_(pa.int64(), 2)), ("y", pa.large_list(pa.string()))])
    rows = [
        None,
        [],
        [None, {"x": None, "y": ["a", None]}],
        [{"x": [1, None], "y": None}],
        None,
        [{"x": [3, 4], "y": []}],
    ]
    column = pa.array(rows, pa.list_(inner))
    for first in range(len(rows)):
        assert json_values(column.slice(first, 3)) == rows[first : first + 3]
