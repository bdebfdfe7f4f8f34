"""Decimals and times in SQL expressions, and their texts, keep every digit in every combination."""

import datetime
import pickle
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime.data.sql.expression import SqlExpression
from barrier_runtime.state.errors import InvalidJob
from tests.evaluated import evaluated

UTC = datetime.timezone.utc
TEN = datetime.datetime(2026, 1, 31, 10)
WITH_MICROSECONDS = TEN.replace(microsecond=500_123)


def computed(text: str, **columns: pa.Array) -> pa.Array:
    rows = pa.record_batch(columns or {"one": pa.array([1])})
    return evaluated(rows, SqlExpression(text, "t").compiled(rows.schema))[0]


def decimals(digits: int, scale: int, *values: str | None) -> pa.Array:
    return pa.array([value and Decimal(value) for value in values], pa.decimal128(digits, scale))


def times(unit: str, zone: str | None, *values: datetime.datetime | None) -> pa.Array:
    return pa.array(values, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False).cast(pa.timestamp(unit, zone))


# ---- decimals


@pytest.mark.parametrize(
    ("digits", "scale", "left", "right", "quotient"),
    [
        (5, 2, "0.30", "0.10", 3),
        (5, 2, "-0.30", "0.10", -3),
        (14, 2, "999999999999.99", "0.01", 99_999_999_999_999),
        (18, 0, "9007199254740993", "1", 9_007_199_254_740_993),
        (18, 4, "12345678901234.5678", "-0.0003", -41_152_263_004_115_226),
        (28, 10, "7", "0.3", 23),
        (38, 18, "12345678901234567890.5", "7.25", 1_702_852_262_239_250_743),
        (38, 18, "-7", "0.3", -23),
    ],
)
def test_whole_quotients_of_decimals_are_exact(digits: int, scale: int, left: str, right: str, quotient: int) -> None:
    columns = {"a": decimals(digits, scale, left, left, None), "b": decimals(digits, scale, right, None, right)}
    found = computed("a div b", **columns)
    assert (found.type, found.to_pylist()) == (pa.int64(), [quotient, None, None])
    with pytest.raises(InvalidJob, match=r"(?i)divide by zero"):
        computed("a div b", a=columns["a"], b=decimals(digits, scale, "0", "0", "0"))


def test_whole_quotients_of_decimals_and_whole_numbers_are_exact_and_bounded() -> None:
    prices = decimals(38, 18, "10.5", "9223372036854775806.9")
    assert computed("d div 1", d=prices).to_pylist() == [10, (1 << 63) - 2]
    assert computed("i div d", d=decimals(5, 2, "0.3"), i=pa.array([(1 << 60) + 1])).to_pylist() == [
        (((1 << 60) + 1) * 10) // 3
    ]
    with pytest.raises(InvalidJob, match="out of bounds"):
        computed("d div CAST('0.5' AS DECIMAL(2, 1))", d=prices)
    with pytest.raises(InvalidJob, match="a quotient is beyond 64 bits"):
        computed("d div e", d=prices, e=decimals(38, 18, "0.5", "0.5"))
    assert computed("CASE WHEN d < 11 THEN d div 2 END", d=decimals(38, 0, "9", "9" * 38)).to_pylist() == [4, None]


@pytest.mark.parametrize(
    ("scale", "values", "texts"),
    [
        (2, ["0", "-1.5", None], ["0.00", "-1.50", None]),
        (8, ["0", "0.00000012", "-0.00000012", "1.5"], ["0.00000000", "0.00000012", "-0.00000012", "1.50000000"]),
        (18, [None, "0", "1"], [None, "0." + "0" * 18, "1." + "0" * 18]),
        (-2, ["1200"], ["1200"]),
    ],
)
def test_text_of_a_decimal_has_no_exponent(scale: int, values: list[str | None], texts: list[str | None]) -> None:
    column = decimals(30, scale, *values)
    assert computed("CAST(d AS STRING)", d=column).to_pylist() == texts
    assert computed("concat('<', d)", d=column).to_pylist() == [text and f"<{text}" for text in texts]
    assert computed("d || '>'", d=column).to_pylist() == [text and f"{text}>" for text in texts]


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("1234567890123456789012", "DECIMAL(38, 0)", "1234567890123456789012"),
        ("9" * 38, "DECIMAL(38, 0)", "9" * 38),
        ("-1234567890123456789012.5", "DECIMAL(38, 0)", "-1234567890123456789013"),
        ("0." + "1" * 38, "DECIMAL(38, 38)", "0." + "1" * 38),
        ("0." + "1" * 45, "DECIMAL(38, 10)", "0." + "1" * 10),
        ("609919966." + "521" * 14, "DECIMAL(35, 1)", "609919966.5"),
        ("0" * 50 + "21.4138" + "1" * 40 + "e3", "DECIMAL(21, 2)", "21413.81"),
        (" 12.345 ", "DECIMAL(4, 1)", "12.3"),
        ("1e5", "DECIMAL(8, 2)", "100000.00"),
        ("-0.005", "DECIMAL(3, 2)", "-0.01"),
    ],
)
def test_text_becomes_a_decimal_with_all_its_digits(text: str, kind: str, value: str) -> None:
    found = computed(f"CAST(s AS {kind})", s=pa.array([text, None, "0"]))
    assert found.to_pylist() == [Decimal(value), None, Decimal(0)]


@pytest.mark.parametrize(
    "text", ["1234567890" * 4, "9" * 39 + "." + "5" * 45, "95e59", "1e38", "1" * 77, "x", "nan", ""]
)
def test_text_that_is_no_decimal_of_38_digits_ends_the_job(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"more digits than|not fit in precision|Failed to parse|not a valid"):
        computed("CAST(s AS DECIMAL(38, 0))", s=pa.array(["1", text]))


@pytest.mark.parametrize("text", ["CAST(d AS DECIMAL(38, 18))", "coalesce(e, d)", "IF(e IS NULL, d, e)"])
def test_a_decimal_does_not_become_another_number_where_it_has_too_many_digits(text: str) -> None:
    """`10^21` with 18 digits after the point exceeds the 128 bits of Arrow's arithmetic."""
    large = {"d": decimals(38, 0, "123456789012345678901234", "2"), "e": decimals(38, 18, None, "0.5")}
    with pytest.raises(InvalidJob, match="does not fit in precision 38"):
        computed(text, **large)
    small = {name: column.slice(1) for name, column in large.items()}
    assert computed(text, **small).type == pa.decimal128(38, 18)


def test_a_whole_number_becomes_a_decimal_of_any_scale() -> None:
    for text in ("CAST(i AS DECIMAL(38, 30))", "coalesce(d, i)", "coalesce(d, 7)"):
        found = computed(text, i=pa.array([7]), d=decimals(38, 30, None))
        assert (found.type, found.to_pylist()) == (pa.decimal128(38, 30), [Decimal(7)])
    with pytest.raises(InvalidJob, match="does not fit in precision 38"):
        computed("CAST(i AS DECIMAL(38, 30))", i=pa.array([123_456_789]))


@pytest.mark.parametrize("text", ["d + d", "d * 2", "d * d", "d - i"])
def test_a_result_of_more_digits_than_a_decimal_has_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"at most 38 digits, and this result may need more.* AS DECIMAL\(18, 4\)\)$"):
        computed(text, d=decimals(38, 18, "1"), i=pa.array([1]))
    narrow = text.replace("d", "CAST(d AS DECIMAL(18, 4))")
    assert computed(narrow, d=decimals(38, 18, "1"), i=pa.array([1])).to_pylist()[0] in (0, 1, 2)


@pytest.mark.parametrize(
    ("text", "digits", "scale", "value", "rounded"),
    [
        ("round(a)", 10, 2, "99999999.99", "100000000"),
        ("round(a, 1)", 10, 2, "-99999999.99", "-100000000.0"),
        ("round(a, -5)", 10, 2, "99999999.99", "100000000"),
        ("round(a, -3)", 3, 2, "9.99", "0"),
        ("round(a, 2)", 10, 2, "99999999.99", "99999999.99"),
        ("ceil(a)", 10, 2, "99999999.99", "100000000"),
        ("floor(a)", 10, 2, "-99999999.99", "-100000000"),
        ("ceil(a)", 38, 30, "99999999.999999999999999999999999999999", "100000000"),
        ("CAST(a AS DECIMAL(10, 1))", 10, 2, "99999999.99", "100000000.0"),
        ("CAST(a AS DECIMAL(38, 0))", 38, 1, "9999999999999999999999999999999999999.9", f"1{'0' * 37}"),
    ],
)
def test_a_rounded_decimal_may_have_a_digit_more(text: str, digits: int, scale: int, value: str, rounded: str) -> None:
    found = computed(text, a=decimals(digits, scale, value, None))
    assert [None if each is None else str(each) for each in found.to_pylist()] == [rounded, None]


def test_a_rounded_decimal_that_does_not_fit_ends_the_job() -> None:
    with pytest.raises(InvalidJob, match="does not fit in precision 4"):
        computed("CAST(a AS DECIMAL(4, 1))", a=decimals(10, 2, "99999999.99"))


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize(
    ("digits", "value", "rounded"),
    [
        (11, 0.12345678901234, 0.12345678901),
        (12, -9.73751e-9, -9.738e-9),
        (15, 1e300, 1e300),
        (400, 0.1, 0.1),
        (-11, 549e9, 500e9),
        (-19, 1e20, 1e20),
        (-400, 1e20, 0.0),
        (12, float("inf"), float("inf")),
    ],
)
def test_doubles_are_rounded_to_many_digits(kind: pa.DataType, digits: int, value: float, rounded: float) -> None:
    """Arrow's own rounding uses 32-bit powers of ten, which turns 0.12345678901 into 0.1234567895…."""
    given = pa.array([value, None]).cast(kind, safe=False)
    found = computed(f"round(a, {digits})", a=given)
    assert (found.type, found.to_pylist()) == (kind, pa.array([rounded, None]).cast(kind, safe=False).to_pylist())


@pytest.mark.parametrize(
    ("text", "value"),
    [("a % 3", "0.12345"), ("a % b", "0.12345"), ("-a % 3", "-0.12345"), ("a div 3", "0"), ("a div b", "0")],
)
def test_decimals_below_one_are_divided_by_whole_numbers(text: str, value: str) -> None:
    found = computed(text, a=decimals(5, 5, "0.12345", None), b=pa.array([7, 7], pa.int16()))
    assert [each and Decimal(each) for each in found.to_pylist()] == [Decimal(value) or 0, None]


# ---- times


@pytest.mark.parametrize("zones", [("UTC", "UTC"), ("UTC", "Europe/Paris"), (None, "UTC"), ("UTC", None), (None, None)])
@pytest.mark.parametrize("units", [("us", "ms"), ("ms", "us"), ("us", "s"), ("ns", "ms"), ("s", "us")])
def test_times_of_unlike_units_and_zones_are_compared_as_they_are(
    units: tuple[str, str], zones: tuple[str | None, str | None]
) -> None:
    at, start = (times(*each, WITH_MICROSECONDS, TEN, None) for each in zip(units, zones, strict=True))
    expected = {
        "at > start": units[0] in ("us", "ns"),
        "at < start": units[1] == "us",
        "at = start": False,
        "at <=> start": False,
        "at BETWEEN start AND start": False,
    }
    if units == ("ms", "us"):
        expected["at < start"] = True
    for text, first in expected.items():
        second = text not in ("at > start", "at < start")
        assert computed(text, at=at, start=start).to_pylist() == [first, second, True if "<=>" in text else None]
    difference = computed("at - start", at=at, start=start)
    assert pa.types.is_duration(difference.type)
    assert difference.null_count == 1


def test_the_finer_of_two_times_is_kept_by_functions_of_several() -> None:
    columns = {"ms": times("ms", "UTC", None), "us": times("us", "UTC", WITH_MICROSECONDS)}
    for text in ("coalesce(ms, us)", "IF(ms IS NULL, us, ms)", "nullif(us, ms)"):
        assert computed(text, **columns).to_pylist() == [WITH_MICROSECONDS.replace(tzinfo=UTC)]


@pytest.mark.parametrize("zones", [("UTC", "UTC"), ("Europe/Paris", "Europe/Paris"), ("Europe/Paris", None)])
def test_the_greatest_and_the_least_of_times_with_a_zone(zones: tuple[str | None, str | None]) -> None:
    one, other = times("us", zones[0], WITH_MICROSECONDS, TEN, None), times("ms", zones[1], TEN, None, None)
    for text, first in (("greatest(one, other)", WITH_MICROSECONDS), ("least(other, NULL, one)", TEN)):
        found = computed(text, one=one, other=other)
        assert found.cast(pa.timestamp("us")).to_pylist() == [first, TEN, None]
        assert found.type.tz


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("t < '2026-01-31 10:00:00.5'", True),
        ("t = '2026-01-31 10:00:00.5'", False),
        ("'2026-01-31 10:00:00.000001' > t", True),
        ("t = '2026-01-31 10:00:00'", True),
        ("t IN ('2026-01-31 10:00:00.5', '2026-01-31T12:00:00+02:00')", True),
        ("t = '2026-01-31 10:00:00 UTC'", True),
    ],
)
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_constant_beside_a_time_keeps_its_microseconds(text: str, truth: bool, unit: str, zone: str | None) -> None:
    assert computed(text, t=times(unit, zone, TEN)).to_pylist() == [truth]


def test_a_constant_that_nanoseconds_do_not_hold_is_refused_with_a_remedy() -> None:
    with pytest.raises(
        InvalidJob, match=r"'0001-01-01' is beyond timestamp\[ns\]: CAST the time beside it AS TIMESTAMP"
    ):
        computed("t > '0001-01-01'", t=times("ns", None, TEN))


@pytest.mark.parametrize(
    ("zone", "unit", "time", "begin"),
    [
        ("Europe/Paris", "hour", datetime.datetime(2026, 10, 25, 0, 30), datetime.datetime(2026, 10, 25, 0)),
        ("Europe/Paris", "hour", datetime.datetime(2026, 10, 25, 1, 30), datetime.datetime(2026, 10, 25, 1)),
        ("Europe/Paris", "minute", datetime.datetime(2026, 10, 25, 1, 30, 5), datetime.datetime(2026, 10, 25, 1, 30)),
        ("Europe/Paris", "day", datetime.datetime(2026, 10, 25, 1, 30), datetime.datetime(2026, 10, 24, 22)),
        ("Asia/Kolkata", "hour", datetime.datetime(2026, 1, 1, 0, 45), datetime.datetime(2026, 1, 1, 0, 30)),
        ("America/Havana", "day", datetime.datetime(2026, 11, 1, 18), datetime.datetime(2026, 11, 1, 4)),
        ("America/Havana", "day", datetime.datetime(2026, 3, 8, 18), datetime.datetime(2026, 3, 8, 5)),
    ],
)
def test_times_that_clocks_show_twice_or_never_are_truncated(
    zone: str, unit: str, time: datetime.datetime, begin: datetime.datetime
) -> None:
    """All values in UTC. A repeated midnight is the first of the two; a skipped midnight is the next existing time."""
    found = computed(f"date_trunc('{unit}', t)", t=times("ms", zone, time, None))
    assert (found.type, found.cast(pa.timestamp("ms")).to_pylist()) == (pa.timestamp("ms", zone), [begin, None])


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_extracted_seconds_have_their_fraction(unit: str) -> None:
    before_1970 = datetime.datetime(1969, 12, 31, 23, 59, 59, 0 if unit == "s" else 250_000)
    found = computed("extract(SECOND FROM t)", t=times(unit, "UTC", WITH_MICROSECONDS, before_1970, None))
    fractions = {"s": ["0", "59"], "ms": ["0.5", "59.25"]}.get(unit, ["0.500123", "59.25"])
    assert (found.type, found.to_pylist()) == (pa.decimal128(8, 6), [*map(Decimal, fractions), None])
    assert computed("second(t)", t=times(unit, "UTC", WITH_MICROSECONDS)).to_pylist() == [0]


@pytest.mark.parametrize(
    ("written", "hours"),
    [
        (["2026-01-31T10:00:00Z", "2026-01-31T10:00:00+02:00", None], [10, 8, None]),
        (["2026-01-31 10:00:00", "2026-01-31", None], [10, 0, None]),
        (
            ["2026-01-31 10:00:00", "2026-01-31T10:00:00.1234567Z", "2026-01-31 10:00:00 -0130", " 2026-01-31"],
            [10, 10, 11, 0],
        ),
        (["2026-01-31 10:00:00 UTC", "2026-01-31 10:00:00GMT"], [10, 10]),
        ([*["2026-01-31 10:00:00"] * 40, "2026-01-31T10:00:00+02:00"], [*[10] * 40, 8]),
    ],
)
def test_text_with_a_zone_is_a_time(written: list[str | None], hours: list[int | None]) -> None:
    assert computed("hour(s)", s=pa.array(written)).to_pylist() == hours
    found = computed("CAST(s AS TIMESTAMP)", s=pa.array(written))
    assert found.type == pa.timestamp("us", "UTC")
    assert [each and each.hour for each in found.to_pylist()] == hours


def test_a_date_is_the_one_that_is_written() -> None:
    written = pa.array(["2026-01-31T01:00:00+02:00", "2026-01-31", "2026-01-31 10:00:00", None])
    for text in ("to_date(s)", "CAST(s AS DATE)"):
        found = computed(text, s=written)
        assert (found.type, found.to_pylist()) == (pa.date32(), [*[TEN.date()] * 3, None])


@pytest.mark.parametrize("text", ["CAST(s AS TIMESTAMP)", "hour(s)", "to_date(s)"])
def test_text_that_is_no_time_ends_the_job_with_a_remedy(text: str) -> None:
    with pytest.raises(InvalidJob, match=r"'31\.1\.2026'.*: write '2026-01-31', '2026-01-31 12:00:00' or"):
        computed(text, s=pa.array(["2026-01-31", "31.1.2026"]))


def test_days_and_a_date_are_a_date_in_either_order() -> None:
    day = pa.array([TEN.date()])
    found = computed("INTERVAL 1 DAY + day", day=day)
    assert found.equals(computed("day + INTERVAL 1 DAY", day=day))
    assert found.type == pa.date32()
    assert computed("INTERVAL 1 HOUR + day", day=day).to_pylist() == [TEN.replace(hour=1)]


# ---- text


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"%\\\\", [True, False, False]),
        (r"C:\\\\%", [True, True, False]),
        (r"%\\\\a\\\\", [True, False, False]),
        (r"%\\%%", [False, False, True]),
        (r"_:\\\\_%", [True, True, False]),
    ],
)
@pytest.mark.parametrize("operator", ["LIKE", "ILIKE"])
def test_an_escaped_backslash_in_a_pattern_is_one(operator: str, pattern: str, found: list[bool]) -> None:
    """Also if % is only at the start or only at the end, where Arrow read both backslashes literally."""
    texts = pa.array(["C:\\a\\", "C:\\b", "C:%%", None])
    assert computed(f"a {operator} '{pattern}'", a=texts).to_pylist() == [*found, None]


@pytest.mark.parametrize("pattern", [r"a\\b", r"a\\"])
def test_a_backslash_before_nothing_special_is_refused_in_a_pattern(pattern: str) -> None:
    with pytest.raises(InvalidJob, match="a backslash stands before %, _ or another backslash"):
        computed(f"a LIKE '{pattern}'", a=pa.array(["ab"]))


@pytest.mark.parametrize("kind", ["STRING", "VARCHAR(2)"])
def test_text_that_is_cast_to_text_keeps_its_spaces(kind: str) -> None:
    assert computed(f"CAST(a AS {kind})", a=pa.array([" b ", None])).to_pylist() == [" b ", None]
    assert computed("CAST(a AS BINARY)", a=pa.array([" b ", None])).to_pylist() == [b" b ", None]


def test_the_length_of_bytes_is_theirs() -> None:
    assert computed("length(a)", a=pa.array(["é".encode(), b"\xff", None])).to_pylist() == [2, 1, None]
    assert computed("length(a)", a=pa.array(["é", None])).to_pylist() == [1, None]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view()])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("CAST(a AS INT)", 7),
        ("CAST(a AS DATE)", datetime.date(2026, 1, 31)),
        ("CAST(a AS DECIMAL(38, 20)) > 0", True),
        ("a = '7'", False),
        ("length(a)", 3),
    ],
)
def test_every_type_of_text_is_text(kind: pa.DataType, text: str, value: Any) -> None:
    given = {"CAST(a AS DATE)": " 2026-01-31 ", "CAST(a AS DECIMAL(38, 20)) > 0": f"7.{'1' * 40}"}.get(text, " 7 ")
    assert computed(text, a=pa.array([given, None], kind)).to_pylist() == [value, None]


@pytest.mark.parametrize(
    ("replacement", "text"),
    [
        (r"\\$", "a$$c"),
        ("[$1]", "a$[b]c"),
        ("[$0]", "a$[b]c"),
        ("$12", "a$b2c"),
        (r"\\1", "a$1c"),
        (r"\\n", "a$nc"),
        (r"\\\\", "a$\\c"),
        (r"\\\\$1", "a$\\bc"),
        ("", "a$c"),
    ],
)
def test_a_replacement_is_read_sign_by_sign(replacement: str, text: str) -> None:
    assert computed(f"regexp_replace(s, '(b)', '{replacement}')", s=pa.array(["a$bc", None])).to_pylist() == [
        text,
        None,
    ]


def test_a_column_may_have_the_name_of_what_is_refused() -> None:
    for text in ("CAST(try_cast_at AS STRING)", "try_cast_at::string"):
        assert computed(text, try_cast_at=pa.array([1])).to_pylist() == ["1"]
    with pytest.raises(InvalidJob, match="try_cast is not known here: use cast"):
        computed("TRY_CAST(try_cast_at AS STRING)", try_cast_at=pa.array([1]))


@pytest.mark.slow
def test_what_reads_text_is_there_in_a_process_that_compiles_nothing(tmp_path: Path) -> None:
    rows = pa.record_batch({"s": pa.array(["2026-01-31T10:00:00Z"]), "d": decimals(38, 18, "0.000000000000000001")})
    texts = ("hour(s)", "to_date(s)", "CAST(d AS STRING)", "CAST('1.5' AS DECIMAL(3, 1))", "d div d")
    made: Any = [SqlExpression(text, "t").compiled(rows.schema) for text in texts]
    (tmp_path / "made").write_bytes(pickle.dumps((made, rows)))
    program = (
        "import pickle, sys; from barrier_runtime.data.expressions import evaluate;"
        "print([str(each[0]) for each in evaluate(*reversed(pickle.load(open(sys.argv[1], 'rb'))), 't')])"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "made")]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.returncode, told.stderr) == (0, "")
    assert told.stdout.strip() == "['10', '2026-01-31', '0.000000000000000001', '1.5', '1']"


# ---- many parts


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("i IN (7, 300)", [True, None, False]),
        ("i IN (7, NULL)", [True, None, None]),
        ("i NOT IN (7, NULL)", [False, None, None]),
        ("small IN (7, 300)", [True, None, False]),
        ("s IN ('a', 'b')", [True, None, False]),
        ("s NOT IN ('')", [True, None, False]),
        ("x IN (7, 0)", [True, None, True]),
        ("1 IN (2, NULL)", [None, None, None]),
    ],
)
def test_what_is_in_a_list(text: str, values: list[bool | None]) -> None:
    columns = {"i": pa.array([7, None, -1]), "small": pa.array([7, None, -1], pa.int8())}
    found = computed(text, **columns, s=pa.array(["a", None, ""]), x=pa.array([7.0, None, -0.0]))
    assert found.to_pylist() == values


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_list_of_many_values_is_looked_up(quote: str) -> None:
    """An OR of as many comparisons takes Arrow seconds for a batch of one row, and minutes for 5,000 values."""
    compiled = SqlExpression(f"a IN ({', '.join(f'{quote}{n}{quote}' for n in range(50))})", "t").compiled(
        pa.schema([("a", pa.string() if quote else pa.int64())])
    )
    assert str(compiled).count("is_in") == 1
    assert "or_kleene" not in str(compiled)


@pytest.mark.parametrize("text", [" + ".join(["a"] * 2_000), "(" * 500 + "a" + ")" * 500])
def test_an_expression_that_is_too_deep_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(InvalidJob, match="too many parts inside each other: make columns of parts of it") as refused:
        computed(text, a=pa.array([1]))
    assert len(str(refused.value)) < 400
