"""JSON of sinks: values are exact, and JSON sources read maps back as maps."""

import datetime
import decimal
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime import InvalidJob
from barrier_runtime.connectors.files.csv_quoting import row_begins
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.json_values import json_values

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
SECONDS = st.one_of(
    st.integers(-12_687_428 * 86_400, 11_248_738 * 86_400 - 1),  # years -32767 to 32767
    st.integers(-(10**10), 10**10),
    st.sampled_from([-62_167_219_200, -62_135_596_801, -62_135_596_800, -1, 0, 253_402_300_799, 253_402_300_800]),
)
FRACTIONS = st.one_of(st.integers(0, 10**9 - 1), st.sampled_from([0, 1, 10**3, 10**6, 500 * 10**6, 10**9 - 1]))
MOMENTS = st.lists(st.one_of(st.none(), st.tuples(SECONDS, FRACTIONS)), min_size=1, max_size=5)
ZONES = st.sampled_from([None, "UTC", "Europe/Berlin", "America/New_York", "+05:30"])
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


def by_arrow(value: int | None, unit: str, *, zone: bool, csv: bool) -> str | None:
    """Returns a timestamp as Arrow's cast of times with a zone writes it, by `strftime`; JSON of whole seconds in
    years that Python supports has no fraction.
    """
    if value is None:
        return None
    text: str = pa.array([value], pa.timestamp(unit, "UTC")).cast(pa.string())[0].as_py()
    text = text if zone else text.removesuffix("Z")
    if csv:
        return text
    whole = value % PER_SECOND[unit] == 0
    years = -62_135_596_800 <= value // PER_SECOND[unit] < 253_402_300_800
    if whole and (unit == "ms" or (unit == "us" and years)):
        text = text.replace("." + "0" * (3 if unit == "ms" else 6), "")
    return text.replace(" ", "T")


@given(MOMENTS, st.sampled_from(list(PER_SECOND)), ZONES, st.sampled_from(["plain", "list", "struct"]))
def test_every_moment_has_the_text_that_strftime_makes_of_it(
    moments: list[tuple[int, int] | None], unit: str, zone: str | None, shape: str
) -> None:
    per_second = PER_SECOND[unit]
    most = 2**63 // 10**9 - 1 if unit == "ns" else 1 << 40  # seconds
    values = [
        None if each is None else max(-most, min(most, each[0])) * per_second + each[1] * per_second // 10**9
        for each in moments
    ]
    column = pa.array(values, pa.timestamp(unit, zone))
    texts = [by_arrow(value, unit, zone=zone is not None, csv=True) for value in values]
    batch = pa.record_batch({"c": column, "t": pa.array(["x"] * len(values))})
    written = encoders.csv([batch]).decode().splitlines()
    assert written == ['"c","t"', *(f'{text or ""},"x"' for text in texts)]
    if shape == "list":
        column = pa.ListArray.from_arrays(list(range(len(values) + 1)), column)
    elif shape == "struct":
        column = pa.StructArray.from_arrays([column], ["x"])
    wanted = [by_arrow(value, unit, zone=zone is not None, csv=False) for value in values]
    lines = [msgspec.json.decode(line) for line in encoders.jsonl([pa.record_batch({"c": column})]).splitlines()]
    found = [line["c"] for line in lines]
    assert wanted == [each[0] if shape == "list" else each["x"] if shape == "struct" else each for each in found]


def test_csv_beside_times_with_a_zone_is_what_arrow_writes() -> None:
    kinds: dict[pa.DataType, list[Any]] = {
        pa.string(): ["", 'a"b,\n', None],
        pa.large_string(): ["x", None, '"'],
        pa.string_view(): ["x", None, ""],
        pa.int64(): [-(2**63), None, 0],
        pa.uint64(): [2**64 - 1, None, 0],
        pa.bool_(): [True, False, None],
        pa.float64(): [1e16, float("nan"), -0.0],
        pa.float32(): [0.1, None, float("-inf")],
        pa.decimal128(10, 2): [decimal.Decimal("1.20"), None, decimal.Decimal(0)],
        pa.date32(): [-1, None, 20_000],
        pa.time64("ns"): [5, None, 0],
        pa.duration("us"): [-5, None, 0],
        pa.timestamp("ms"): [-1, None, 1_000],
        pa.null(): [None, None, None],
        pa.dictionary(pa.int8(), pa.string()): ["a", 'b"', None],
    }
    columns = {f"c{number}": pa.array(values, kind) for number, (kind, values) in enumerate(kinds.items())}
    moments = pa.array([0, None, 1], pa.timestamp("ns", "UTC"))
    texts = ["1970-01-01 00:00:00.000000000Z", "", "1970-01-01 00:00:00.000000001Z"]
    alone = encoders.csv_rows([pa.record_batch(columns)])
    beside = encoders.csv_rows([pa.record_batch({"t": moments, **columns})])
    begins = row_begins(alone, ",", blank_rows=True)
    rows = [alone[begin:end] for begin, end in zip(begins, [*begins[1:], len(alone)], strict=True)]
    assert beside == b"".join(text.encode() + b"," + row for text, row in zip(texts, rows, strict=True))


@given(st.integers(-62_135_596_800 * 10**6, 253_402_300_800 * 10**6 - 1))
def test_microseconds_have_the_text_of_a_datetime(micros: int) -> None:
    moment = EPOCH + datetime.timedelta(microseconds=micros)
    column = pa.array([micros], pa.timestamp("us", "UTC"))
    assert encoders.jsonl([pa.record_batch({"c": column})]) == msgspec.json.encode({"c": moment}) + b"\n"


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
