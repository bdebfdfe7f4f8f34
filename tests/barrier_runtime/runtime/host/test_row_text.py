"""Rows as text for people: always JSON, bounded, without secrets, whatever the values are."""

import json
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.data.elements import Batch
from barrier_runtime.runtime.host.inspection import MOST_OF_A_ROW, first_of, rows_as_text


def shown(columns: dict[str, pa.Array]) -> dict[str, Any]:
    (line,) = first_of(rows_as_text([Batch(pa.record_batch(columns), 0)], 5))
    assert len(line) < MOST_OF_A_ROW + 100

    def no_constant(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    found: dict[str, Any] = json.loads(line, parse_constant=no_constant)
    return found


def test_long_values_are_cut_before_they_are_converted() -> None:
    rows = pa.record_batch(
        {
            "text": pa.array(["x" * 1_000_000]),
            "list": pa.array([list(range(100_000))]),
            "small": pa.array([{"a": [1, None]}]),
            "bytes": pa.array([b"\x00\xff"]),
            "at": pa.array([0], pa.timestamp("ms")),
        }
    )
    (line,) = rows_as_text([Batch(rows, 0)], 5)
    shown = json.loads(line)
    assert shown["text"] == "x" * 300 + "…"
    assert shown["list"].endswith(" bytes)")
    assert shown["small"] == {"a": [1, None]}
    assert (shown["bytes"], shown["at"]) == ("b'\\x00\\xff'", "1970-01-01 00:00:00")
    assert len(line) < 1_000


def test_secrets_are_masked_by_value_and_the_text_stays_json() -> None:
    found = shown(
        {
            "api_key": pa.array([42]),
            "token": pa.array([None], pa.string()),
            "setting": pa.array([{"name": "api_key", "value": "s3cr3t"}]),
            "headers": pa.array([[("password", "s3cr3t"), ("x", "y")]], pa.map_(pa.string(), pa.string())),
            "nested": pa.array([{"list": [{"secret": ["s3cr3t"]}], "n": float("nan")}]),
            "json": pa.array(['{"password": "s3cr3t", "n": 1}']),
            "bytes": pa.array([b"password=s3cr3t"]),
            "url": pa.array(["x" * 250 + "https://user:s3cr3t" + "s3cr3t" * 20 + "@host"]),
        }
    )
    assert "s3cr3t" not in json.dumps(found)
    assert (found["api_key"], found["token"]) == ("******", None)
    assert found["setting"] == {"name": "api_key", "value": "******"}
    assert found["headers"] == [["password", "******"], ["x", "y"]]
    assert found["nested"] == {"list": [{"secret": "******"}], "n": "nan"}
    assert found["json"] == '{"password": ******, "n": 1}'
    assert shown({"name": pa.array(["password"]), "value": pa.array(["s3cr3t"])})["value"] == "******"


@pytest.mark.slow
@pytest.mark.parametrize("value", [list(range(500)), "x" * 300, [None] * 100_000, [False] * 30_000])
def test_a_wide_row_is_cut_and_says_so(value: Any) -> None:
    found = shown({f"c{at}": pa.array([value]) for at in range(1_000)})
    assert found.popitem() == ("…", f"the row is cut: {1_000 - len(found):,} more columns")
    assert len(found) > 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (pa.array([10**18], pa.timestamp("s")), "<value out of range: 1000000000000000000>"),
        (pa.array([10**9], pa.date32()), "<value out of range: 1000000000>"),
        (pa.array([2**62], pa.duration("s")), str(2**62)),
        (pa.array([[10**18]], pa.list_(pa.timestamp("s"))), "[ <value out of range: 1000000000000000000> ]"),
        (pa.array([0], pa.timestamp("s", "No/Where")), "1970-01-01 00:00:00Z"),
    ],
)
def test_values_beyond_pythons_range_are_shown_as_arrow_does(value: pa.Array, expected: str) -> None:
    assert shown({"at": value, "n": pa.array([1])}) == {"at": expected, "n": 1}


def test_invalid_utf8_refuses_no_preview() -> None:
    data = pa.array([b"\xff\xfe" * 3_000], pa.binary())
    assert "n" in shown({"text": pa.Array.from_buffers(pa.string(), 1, data.buffers()), "n": pa.array([1])})
