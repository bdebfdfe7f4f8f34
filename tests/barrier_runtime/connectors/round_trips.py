"""Types of columns and their special values, for tests that write rows with a sink and read them back.

A test of a format takes `KINDS`, writes `kind.special()` (and `column_of(kind)`, drawn by hypothesis) and compares with
`assert_same`, or asserts that the sink refuses the type. `SPECIAL_TEXTS` are the texts that some format, reader or
database takes for something else than text.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31, as days since 1970
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY = 86_400
_INT64 = (-(1 << 63), (1 << 63) - 1)

# fmt: off
NULL_SPELLINGS = (
    "", "NA", "N/A", "n/a", "<NA>", "null", "NULL", "Null", "None", "nil", "NIL", "\\N", "-", "?", "#N/A",
    "#NA", "#NULL!", "NaN", "nan", "-NaN", "-nan", "1.#IND", "1.#QNAN", "-1.#IND", "#N/A N/A", "(null)",
    "undefined", "\\\\N",
)
NUMBER_LIKE = (
    "0", "1", "-1", "+1", "-0", "007", "00", "1.10", "1.0", "1.", ".5", "12e3", "1E5", "1e400", "-1e-400",
    "0x1F", "0b1", "1_000", "1,000", "1.000,5", "12345678901234567890", "12345678901234567891", "9" * 60,
    "0." + "3" * 40, "1/2", "inf", "-inf", "Infinity", "-Infinity", "+Infinity", "true", "false", "True",
    "FALSE", "yes", "no", "t", "f",
)
TIME_LIKE = (
    "2024-02-29", "2023-02-29", "2024-02-29T23:59:59.999999999Z", "2024-02-29 23:59:59", "24:00:00", "23:59:60",
    "PT1S", "2024-02-29T23:59:59+05:30", "9999-12-31", "0001-01-01", "12:34", "20240229", "1709251199",
    "2024-W09-4",
)
MARKS = (
    " ", "  x  ", "\t", "x\ty", "\n", "\r", "\r\n", "x\n", "\nx", "x\r\ny", "x\n\ny", "\x0b\x0c", "\x85",
    "\u2028", "\u2029", "\x00", "x\x00y", "\x1a", "\x7f", "\ufeff", "\ufeffx", "�", "\uffff", "\U0010ffff",
    "\u200b", "\u202e", ",", ";", "|", "x,y", '"', '""', '"""', '"x"', 'x"y', '"x', 'x"', '",\n"', "'", "''",
    "`", '\\', "\\n", '\\"', '\\\\', "{}", "[]", '{"a": 1}', "[1]", "/", "..", "a/b", "a=b", "%", "%2F", "%00",
    "#x", "# x", "--", "$1", "{0}", "=1+1", "@x",
)
LETTERS = (
    "x", "ä", "ä", "ß", "ss", "SS", "\u0130", "\u0131", "é", "é", "日本",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\U0001d518", "x" * 300, "ä" * 300, "a", "A", "á", "a ", " a",
    "__HIVE_DEFAULT_PARTITION__", "__debezium_unavailable_value", "select", "NULL ",
)
# fmt: on
SPECIAL_TEXTS = tuple(dict.fromkeys((*NULL_SPELLINGS, *NUMBER_LIKE, *TIME_LIKE, *MARKS, *LETTERS)))
SPECIAL_BYTES = (b"", b"\x00", b"\xff\xfe", b"caf\xe9", b'"', b",\n", b"NA", b"null", bytes(range(256)))
SPECIAL_FLOATS = (
    *(0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, 1e22, 1e23, 12345678901234567890.0, 2.0**53, 2.0**53 + 2, float(2**63), 1e300),
    *(5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308, float("nan"), float("inf"), float("-inf")),
)


@dataclass(frozen=True)
class Kind:
    """A column type. `values`: special values; times and dates are numbers of their unit since 1970 or midnight."""

    type: pa.DataType
    values: tuple[Any, ...]
    drawn: st.SearchStrategy[Any]

    def __str__(self) -> str:
        return str(self.type)

    def special(self) -> pa.Array:
        return array_of([None, *self.values, None], self.type)


def array_of(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind)


def column_of(kind: Kind, *, least: int = 1, most: int = 20) -> st.SearchStrategy[pa.Array]:
    """Draws columns of this type: special values, drawn values and nulls."""
    values = st.one_of(st.none(), st.sampled_from(kind.values), kind.drawn) if kind.values else st.none()
    return st.lists(values, min_size=least, max_size=most).map(lambda drawn: array_of(drawn, kind.type))


def integers(kind: pa.DataType, least: int, most: int) -> Kind:
    values = tuple(sorted({least, least + 1, *(each for each in (-1, 0, 1, 2**53 + 1) if least <= each <= most), most}))
    return Kind(kind, values, st.integers(least, most))


def floats(kind: pa.DataType, width: int) -> Kind:
    narrow = {16: np.float16, 32: np.float32, 64: np.float64}[width]
    with np.errstate(over="ignore", under="ignore"):
        values = [narrow(each) for each in SPECIAL_FLOATS]
        values += [np.finfo(narrow).max, np.finfo(narrow).min, np.finfo(narrow).tiny, narrow(16_777_217)]
    unique = list({each.tobytes(): each for each in values}.values())
    if width == 16:
        return Kind(kind, tuple(unique), st.floats(width=16).map(np.float16))
    drawn = st.floats(width=32) if width == 32 else st.floats()
    return Kind(kind, tuple(map(float, unique)), drawn.map(float))


def decimals(kind: pa.DataType) -> Kind:
    precision, scale = kind.precision, kind.scale
    most = 10**precision - 1
    numbers = [0, 1, -1, 10, -most, most, most // 3]
    texts = st.integers(-most, most)
    return Kind(kind, tuple(_decimal(each, scale) for each in numbers), texts.map(lambda each: _decimal(each, scale)))


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


def moments(unit: str, zone: str | None) -> Kind:
    """Timestamps of the years 1 to 9999, or as far as nanoseconds reach."""
    per = _PER_SECOND[unit]
    least, most = max(_INT64[0] + 1, _FIRST_DAY * _DAY * per), min(_INT64[1], (_LAST_DAY + 1) * _DAY * per - 1)
    spring = 1_711_846_800 * per  # 2024-03-31T01:00:00Z: summer time begins in Europe
    autumn = 1_729_990_800 * per  # 2024-10-27T01:00:00Z: an hour of local time is repeated
    leap = 1_709_251_199 * per  # 2024-02-29T23:59:59Z
    digits = [leap + per // 10**count for count in range(1, 10) if 10**count <= per]
    values = {least, most, -1, 0, 1, leap, leap + per - 1, spring - 1, spring, autumn - 1, autumn, *digits}
    return Kind(pa.timestamp(unit, zone), tuple(sorted(values)), st.integers(least, most))


def times(kind: pa.DataType) -> Kind:
    per = _PER_SECOND[kind.unit]
    digits = {43_200 * per + per // 10**count for count in range(1, 10) if 10**count <= per}
    values = {0, 1, 43_200 * per, *digits, _DAY * per - per, _DAY * per - 1}
    return Kind(kind, tuple(sorted(values)), st.integers(0, _DAY * per - 1))


def durations(unit: str) -> Kind:
    per = _PER_SECOND[unit]
    least, most = _INT64[0] + 1, _INT64[1]
    values = {least, -per - 1, -per, -1, 0, 1, per, per + 1, _DAY * per, 90_061 * per + 1, most}
    return Kind(pa.duration(unit), tuple(sorted(values)), st.integers(least, most))


def dates(kind: pa.DataType) -> Kind:
    scale = 1 if pa.types.is_date32(kind) else _DAY * 1000
    days = (_FIRST_DAY, -25_567, -1, 0, 1, 19_782, _LAST_DAY)  # 1900-01-01, 2024-02-29
    drawn = st.integers(_FIRST_DAY, _LAST_DAY)
    return Kind(kind, tuple(day * scale for day in days), drawn.map(lambda day: day * scale))


def texts(kind: pa.DataType) -> Kind:
    return Kind(kind, SPECIAL_TEXTS, st.text(max_size=20))  # Arrow's text has no lone surrogates, nor has hypothesis'


def binaries(kind: pa.DataType) -> Kind:
    width = kind.byte_width if pa.types.is_fixed_size_binary(kind) else None
    if width is not None:
        return Kind(
            kind,
            (bytes(width), b"\xff" * width, b"NA\n,"[:width].ljust(width)),
            st.binary(min_size=width, max_size=width),
        )
    return Kind(kind, SPECIAL_BYTES, st.binary(max_size=20))


_TEXT, _FLOAT, _BIG = texts(pa.string()), floats(pa.float64(), 64), integers(pa.int64(), *_INT64)
_MOMENT = moments("us", "UTC")
PLAIN_KINDS = (
    Kind(pa.bool_(), (True, False), st.booleans()),
    *(integers(getattr(pa, f"int{bits}")(), -(1 << bits - 1), (1 << bits - 1) - 1) for bits in (8, 16, 32, 64)),
    *(integers(getattr(pa, f"uint{bits}")(), 0, (1 << bits) - 1) for bits in (8, 16, 32, 64)),
    floats(pa.float16(), 16),
    floats(pa.float32(), 32),
    _FLOAT,
    *map(decimals, (pa.decimal128(38, 18), pa.decimal128(10, 0), pa.decimal128(5, 2), pa.decimal128(38, 38))),
    *map(decimals, (pa.decimal128(5, -2), pa.decimal256(76, 10), pa.decimal32(9, 4), pa.decimal64(18, 6))),
    *map(texts, (pa.string(), pa.large_string(), pa.string_view())),
    *map(binaries, (pa.binary(), pa.large_binary(), pa.binary(4), pa.binary_view())),
    *map(dates, (pa.date32(), pa.date64())),
    *map(times, (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *(moments(unit, zone) for unit in _PER_SECOND for zone in (None, "UTC", "Europe/Berlin", "+05:30")),
    *map(durations, _PER_SECOND),
    Kind(pa.null(), (), st.none()),
    Kind(
        pa.month_day_nano_interval(), ((1, 2, 3), (0, 0, 0), (-1, -2, -3)), st.tuples(*[st.integers(-1000, 1000)] * 3)
    ),
    Kind(pa.dictionary(pa.int32(), pa.string()), SPECIAL_TEXTS, st.text(max_size=20)),
)
NESTED_KINDS = (
    *(
        Kind(
            make(each.type),
            ([], [None], list(each.values), [each.values[-1]] * 2),
            st.lists(each.drawn | st.none(), max_size=4),
        )
        for make, each in ((pa.list_, _BIG), (pa.list_, _TEXT), (pa.large_list, _FLOAT), (pa.list_, _MOMENT))
    ),
    Kind(pa.list_(pa.int32(), 2), ([1, 2], [None, -1]), st.lists(st.integers(0, 9), min_size=2, max_size=2)),
    Kind(
        pa.struct([("n", _BIG.type), ("t", _TEXT.type), ("f", _FLOAT.type), ("at", _MOMENT.type)]),
        (
            {"n": None, "t": None, "f": None, "at": None},
            *({"n": _INT64[1], "t": text, "f": float("nan"), "at": 1} for text in ("", "NA", "x\n", '"')),
        ),
        st.fixed_dictionaries({"n": _BIG.drawn, "t": _TEXT.drawn | st.none(), "f": _FLOAT.drawn, "at": _MOMENT.drawn}),
    ),
    Kind(
        pa.map_(pa.string(), pa.float64()),
        ([], [("", None)], [("NaN", float("nan")), ("a.b", -0.0), ("日", float("-inf"))]),
        st.dictionaries(st.text(max_size=5), _FLOAT.drawn | st.none(), max_size=4).map(lambda each: list(each.items())),
    ),
    Kind(
        pa.map_(pa.int64(), pa.string()),
        ([], [(-1, "x"), (_INT64[1], None)]),
        st.dictionaries(_BIG.drawn, st.text(max_size=5), max_size=4).map(lambda each: list(each.items())),
    ),
    Kind(
        pa.list_(pa.struct([("b", pa.binary()), ("d", pa.date32()), ("p", pa.decimal128(10, 2))])),
        ([], [{"b": b"\xff", "d": 0, "p": Decimal("1.10")}, None]),
        st.lists(
            st.fixed_dictionaries({"b": st.binary(max_size=4), "d": st.integers(-9, 9), "p": st.just(Decimal("0.00"))}),
            max_size=3,
        ),
    ),
    Kind(pa.list_(pa.list_(pa.duration("ns"))), ([], [[]], [[1, None], None]), st.just([[0]])),
)
KINDS = (*PLAIN_KINDS, *NESTED_KINDS)


def comparable(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Values in a form in which equal means equal: NaN is NaN, -0.0 is not 0.0, and nothing of a time is left out."""
    if isinstance(column, pa.ChunkedArray):
        column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)
    return list(_comparable(column))


def _comparable(column: pa.Array) -> Iterator[Any]:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column = column.dictionary_decode()
    if pa.types.is_map(kind):
        pairs = pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        yield from _comparable(column.cast(pa.list_(pairs)))
    elif pa.types.is_struct(kind):
        members = zip(*map(_comparable, column.flatten()), strict=True) if kind.num_fields else iter([()] * len(column))
        for valid, member in zip(column.is_valid().to_pylist(), members, strict=True):
            yield member if valid else None
    elif pa.types.is_nested(kind):
        for number in range(len(column)):
            yield comparable(column[number].values) if column[number].is_valid else None
    elif pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        yield from column.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    elif pa.types.is_floating(kind):
        yield from (None if each is None else repr(float(each)) for each in column.to_pylist())
    else:
        yield from column.to_pylist()


def assert_same(read: pa.Array | pa.ChunkedArray, written: pa.Array | pa.ChunkedArray) -> None:
    assert read.type.equals(written.type), f"{read.type} was read, {written.type} was written"
    got, wanted = comparable(read), comparable(written)
    assert len(got) == len(wanted), f"{len(got)} rows were read, {len(wanted)} were written"
    wrong = [
        (number, each, other) for number, (each, other) in enumerate(zip(got, wanted, strict=True)) if each != other
    ]
    assert not wrong, f"row {wrong[0][0]} of {written.type}: {wrong[0][1]!r} was read, {wrong[0][2]!r} was written"


def python_values(column: pa.Array) -> list[Any]:
    """Returns the values as a user's function gets them; times outside the range of Python's types become None."""
    values = []
    for each in column:
        try:
            value = each.as_py()
        except (ValueError, OverflowError):
            value = None
        values.append(value)
    return [_without_pandas(each) for each in values]


def _without_pandas(value: Any) -> Any:
    """Converts pandas times, which Arrow returns for nanoseconds if pandas is installed."""
    if isinstance(value, datetime.datetime | datetime.timedelta) and type(value).__module__.startswith("pandas"):
        return value.to_pydatetime() if isinstance(value, datetime.datetime) else value.to_pytimedelta()
    return value
