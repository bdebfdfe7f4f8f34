"""Times of text: all digits are kept, or the text is refused with the unit that keeps them."""

import re

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.values.stored_times import numbers_of_texts, rounded_down, stored_of_text, times_of_texts
from tests.drawn import examples

LEAP = 1_709_251_199  # 2024-02-29T23:59:59Z
MOMENTS = [
    ("2024-02-29T23:59:59Z", LEAP * 10**9),
    ("2024-02-29 23:59:59", LEAP * 10**9),
    ("2024-02-29t23:59:59z", LEAP * 10**9),
    ("2024-02-29T23:59:59.9Z", LEAP * 10**9 + 900_000_000),
    ("2024-02-29T23:59:59.999999999+00:00", LEAP * 10**9 + 999_999_999),
    ("2024-02-29T23:59:59.123456789000Z", LEAP * 10**9 + 123_456_789),
    ("2024-03-01T05:29:59+05:30", LEAP * 10**9),
    ("2024-02-29T18:59:59-0500", LEAP * 10**9),
    ("2024-02-29T18:59:59-05", LEAP * 10**9),
    ("1969-12-31T23:59:59.999999999Z", -1),
    ("2000-02-29T00:00:00Z", 951_782_400 * 10**9),
]


@pytest.mark.parametrize(("text", "nanoseconds"), MOMENTS)
def test_a_timestamp_keeps_all_digits(text: str, nanoseconds: int) -> None:
    assert stored_of_text(text, pa.timestamp("ns")) == nanoseconds
    assert numbers_of_texts([text, None], pa.timestamp("ns", "UTC")) == [nanoseconds, None]
    assert times_of_texts([text], pa.timestamp("ns", "Europe/Berlin")).cast(pa.int64()).to_pylist() == [nanoseconds]


def test_years_behind_those_of_python_are_read() -> None:
    assert stored_of_text("10000-01-01T00:00:00+01:00", pa.timestamp("s")) == 253_402_300_800 - 3600


@pytest.mark.parametrize(
    ("text", "unit", "remedy"),
    [
        ("2024-02-29T23:59:59.9999999Z", "us", "timestamp[ns]"),
        ("2024-02-29T23:59:59.999999999Z", "us", "timestamp[ns]"),
        ("2024-02-29T23:59:59.0001Z", "ms", "timestamp[us]"),
        ("2024-02-29T23:59:59.5Z", "s", "timestamp[ms]"),
        ("2024-02-29T23:59:59.0000000001Z", "ns", "nanoseconds"),
        ("9999-12-31T00:00:00Z", "ns", "timestamp[us]"),
    ],
)
def test_a_timestamp_of_more_digits_names_the_unit_that_keeps_them(text: str, unit: str, remedy: str) -> None:
    for read in (
        lambda: times_of_texts([text], pa.timestamp(unit)),
        lambda: numbers_of_texts([text], pa.timestamp(unit)),
    ):
        with pytest.raises(ValueError, match=text[:10]) as caught:
            read()
        assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["2024-02-30T00:00:00Z", "2024-02-29T24:00:00Z", "2024-02-29T23:59:60Z", "2024-02-29", "2024-02-29T23:59:59,5Z",
     "20240229T235959Z", "2024-W09-4T23:59:59Z", " 2024-02-29T23:59:59Z", "2024-02-29T23:59:59+24:00", "", "now",
     "2024-02-29T23:59:59\u0661Z"],
)  # fmt: skip
def test_a_text_that_is_no_timestamp_is_refused_in_any_number(text: str) -> None:
    for read in (times_of_texts, numbers_of_texts):
        for texts in ([text], [text] * 20):
            with pytest.raises(ValueError, match=re.escape(repr(text))):
                read(texts, pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("text", "kind", "stored"),
    [
        ("23:59:59.5", pa.time32("ms"), 86_399_500),
        ("12:00:00.1234567Z", pa.time64("ns"), 43_200_123_456_700),
        ("12:00:00.100000000", pa.time32("ms"), 43_200_100),
        ("P1DT2H3M4.5S", pa.duration("ms"), 93_784_500),
        ("-PT0.000000001S", pa.duration("ns"), -1),
        ("P1W", pa.duration("s"), 604_800),
        ("P1.5D", pa.duration("s"), 129_600),
        ("PT9223372036854775807S", pa.duration("s"), 2**63 - 1),
        ("2024-02-29", pa.date32(), 19_782),
        ("0001-01-01", pa.date64(), -719_162 * 86_400_000),
    ],
)
def test_other_times_keep_all_digits(text: str, kind: pa.DataType, stored: int) -> None:
    assert stored_of_text(text, kind) == stored


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("23:59:59.5", pa.time32("s")),
        ("24:00:00", pa.time32("s")),
        ("12:00:00+01:00", pa.time64("us")),
        ("12:00", pa.time64("us")),
        ("PT1.1234567S", pa.duration("us")),
        ("P", pa.duration("us")),
        ("PT", pa.duration("us")),
        ("P1Y", pa.duration("us")),
        ("1", pa.duration("us")),
        ("PT9223372036854775808S", pa.duration("s")),
        ("2023-02-29", pa.date32()),
        ("2024-02-29T00:00:00", pa.date32()),
    ],
)
def test_other_times_that_would_change_are_refused(text: str, kind: pa.DataType) -> None:
    with pytest.raises(ValueError, match=text.replace("+", r"\+")):
        stored_of_text(text, kind)


_DIGITS = st.sampled_from(["", ".5", ".000", ".123456", ".1234560", ".123456789", ".9999999"])
_ZONES = st.sampled_from(["Z", "+00:00", "-12:30", "+0530", "+14", ""])


@examples(200)
@given(st.datetimes(), _DIGITS, _ZONES, st.sampled_from(["s", "ms", "us", "ns"]))
def test_arrow_and_the_exact_reading_agree(moment: "object", digits: str, zone: str, unit: str) -> None:
    text = f"{moment:%Y-%m-%dT%H:%M:%S}{digits}{zone}".rjust(19 + len(digits + zone), "0")
    kind = pa.timestamp(unit, "UTC")
    try:
        exact = stored_of_text(text, kind)
    except ValueError:
        with pytest.raises(ValueError, match=text[:10]):
            times_of_texts([text], kind)
        with pytest.raises(ValueError, match=text[:10]):
            numbers_of_texts([text], kind)
    else:
        assert times_of_texts([text], kind).cast(pa.int64()).to_pylist() == [exact]
        assert numbers_of_texts([text], kind) == [exact]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_times_before_1970_are_rounded_down(zone: str | None) -> None:
    given = pa.array([7, -1, -999, None, -1_001, 1_999], pa.timestamp("ns", zone))[1:]
    found = rounded_down(given, "us")
    assert found.type == pa.timestamp("us", zone)
    assert found.cast(pa.int64()).to_pylist() == [-1, -1, None, -2, 1]
    assert rounded_down(given, "ms").cast(pa.int64()).to_pylist() == [-1, -1, None, -1, 0]
    assert rounded_down(pa.array([-1, None], pa.timestamp("s")), "ms").cast(pa.int64()).to_pylist() == [-1_000, None]
