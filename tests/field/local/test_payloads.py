"""JSON payloads of the real world: every digit is in the column, or the record is named."""

import datetime

import pyarrow as pa

from barrier_runtime.connectors.source_bases.payloads import JsonPayloads, decoded


def _read(payload: bytes, kind: pa.DataType) -> tuple[pa.Array, str]:
    """The value `x` of a payload, and the fault of the payload."""
    columns, bad = decoded(JsonPayloads(pa.schema([("x", kind)]), "source 'in'"), [payload], [None])
    return columns[0], bad.get(0, "")


# Source: our own trial
def test_seven_digits_of_a_second_are_not_rounded_into_the_next_day() -> None:
    _, wrong = _read(b'{"x": "2024-02-29T23:59:59.9999999Z"}', pa.timestamp("us", "UTC"))
    assert "declare the column as timestamp[ns, tz=UTC]" in wrong


# Source: our own trial
def test_seven_digits_of_which_the_last_is_zero_fit_into_microseconds() -> None:
    column, wrong = _read(b'{"x": "2024-02-29T23:59:59.9999990Z"}', pa.timestamp("us"))
    assert (column.to_pylist(), wrong) == ([datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)], "")


# Source: our own trial
def test_nine_digits_of_a_second_are_kept_as_nanoseconds() -> None:
    column, _ = _read(b'{"x": "2024-02-29T23:59:59.123456789Z"}', pa.timestamp("ns", "UTC"))
    assert column.cast(pa.int64()).to_pylist() == [1_709_251_199_123_456_789]


# Source: our own trial
def test_a_whole_number_of_twenty_digits_is_no_double() -> None:
    _, wrong = _read(b'{"x": 12345678901234567891}', pa.float64())
    assert "digits would be lost" in wrong
