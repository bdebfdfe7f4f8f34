"""`column_of`: each value is read back equal from its column, or refused with the value's place."""

import datetime as dt
import decimal
import enum
import uuid
import zoneinfo
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.values.into_columns import UnkeptValue, column_of, keeps
from tests.drawn import examples

D = decimal.Decimal
UTC = dt.timezone.utc
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


class _Colour(enum.IntEnum):
    RED = 3


class _Word(str, enum.Enum):
    YES = "yes"


class _Point(NamedTuple):
    b: str
    a: int


POINT = pa.struct([("a", pa.int64()), ("b", pa.string())])
DEEP = pa.list_(pa.struct([("x", pa.map_(pa.string(), pa.struct([("n", pa.int32())])))]))
KEPT = [
    (pa.bool_(), np.True_, True),
    (pa.int64(), 2.0, 2),
    (pa.int64(), D("12345678901234567"), 12345678901234567),
    (pa.int8(), _Colour.RED, 3),
    (pa.uint64(), np.uint64(2**64 - 1), 2**64 - 1),
    (pa.float64(), 2**60, float(2**60)),
    (pa.float64(), np.float32(0.5), 0.5),
    (pa.float32(), 0.1, float(np.float32(0.1))),
    (pa.float32(), float("-inf"), float("-inf")),
    (pa.decimal128(10, 2), D("1.5000000000000000000000000000000000000000000000"), D("1.50")),
    (pa.decimal128(38, 0), 10**38 - 1, D(10**38 - 1)),
    (pa.string(), _Word.YES, "yes"),
    (pa.string(), b"caf\xc3\xa9", "café"),
    (pa.binary(), memoryview(b"ab"), b"ab"),
    (pa.date32(), dt.datetime(2024, 2, 29), dt.date(2024, 2, 29)),
    (pa.date32(), dt.datetime(2024, 2, 29, tzinfo=UTC), dt.date(2024, 2, 29)),
    (pa.date32(), np.datetime64("2024-02"), dt.date(2024, 2, 1)),
    (pa.date64(), dt.datetime(2024, 2, 29), dt.date(2024, 2, 29)),
    (pa.time32("ms"), dt.time(1, 2, 3, 4000), dt.time(1, 2, 3, 4000)),
    (pa.time64("us"), dt.time(1, tzinfo=UTC), dt.time(1)),
    (pa.timestamp("ms"), dt.datetime(1969, 12, 31, 23, 59, 59, 999000), dt.datetime(1969, 12, 31, 23, 59, 59, 999000)),
    (pa.timestamp("us"), pd.Timestamp("2024-01-01 00:00:00.123456"), dt.datetime(2024, 1, 1, 0, 0, 0, 123456)),
    (pa.timestamp("us", "UTC"), dt.datetime(2024, 7, 1, 2, tzinfo=BERLIN), dt.datetime(2024, 7, 1, tzinfo=UTC)),
    (pa.timestamp("us"), np.datetime64("2024-01-01T00:00:00.123456000"), dt.datetime(2024, 1, 1, 0, 0, 0, 123456)),
    (pa.duration("ms"), np.timedelta64(-5, "s"), dt.timedelta(seconds=-5)),
    (pa.duration("ms"), np.timedelta64(-5, "250ms"), dt.timedelta(milliseconds=-1250)),
    (pa.timestamp("s"), np.datetime64("2024-01-01T00:30", "15m"), dt.datetime(2024, 1, 1, 0, 30)),
    (pa.duration("us"), pd.Timedelta(microseconds=7), dt.timedelta(microseconds=7)),
    (pa.list_(pa.int64()), (1, 2.0), [1, 2]),
    (pa.list_(pa.int64(), 2), range(2), [0, 1]),
    (pa.large_list(pa.float64()), np.array([0.5, 1]), [0.5, 1.0]),
    (POINT, _Point("x", 1), {"a": 1, "b": "x"}),
    (POINT, {"b": "x"}, {"a": None, "b": "x"}),
    (pa.map_(pa.string(), pa.int64()), {"k": None}, [("k", None)]),
    (pa.dictionary(pa.int16(), pa.string()), "a", "a"),
    (DEEP, [{"x": {"k": {"n": 1}}}, None], [{"x": [("k", {"n": 1})]}, None]),
    *(
        (kind, missing, None)
        for kind in (pa.int64(), pa.timestamp("us"), pa.date32(), POINT)
        for missing in (pd.NaT, pd.NA)
    ),
]
REFUSED = [
    (pa.bool_(), 1),
    (pa.int64(), 1.5),
    (pa.int64(), True),
    (pa.int64(), float("nan")),
    (pa.int64(), D("1.5")),
    (pa.int64(), uuid.UUID(int=5)),
    (pa.int64(), np.timedelta64(5, "ns")),
    (pa.int64(), np.datetime64("2024-01-01")),
    (pa.int8(), 128),
    (pa.float64(), True),
    (pa.float64(), 2**53 + 1),
    (pa.float64(), "1"),
    (pa.float32(), 1e300),
    (pa.float32(), -3.5e38),
    (pa.float32(), 2**24 + 1),
    (pa.float16(), 65520.0),
    (pa.decimal128(10, 2), D("1.23456789012345678901234567890123456789012")),
    (pa.decimal128(10, 2), D("1.005")),
    (pa.decimal128(10, 2), D("123456789")),
    (pa.decimal128(10, 2), D("NaN")),
    (pa.decimal128(10, 2), 1.5),
    (pa.string(), "\ud800"),
    (pa.string(), b"caf\xe9"),
    (pa.string(), 1),
    (pa.binary(2), b"a"),
    (pa.date32(), dt.datetime(2024, 1, 1, 12)),
    (pa.date64(), dt.datetime(2024, 1, 1, 12)),
    (pa.date64(), np.datetime64("2024-01-01T12:00")),
    (pa.date32(), dt.datetime(2024, 1, 1, tzinfo=BERLIN)),
    (pa.date32(), 1.5),
    (pa.date32(), "2024-01-01"),
    (pa.time32("s"), dt.time(1, 2, 3, 4)),
    (pa.time64("us"), dt.time(1, tzinfo=dt.timezone(dt.timedelta(hours=1)))),
    (pa.timestamp("s"), dt.datetime(2024, 1, 1, 0, 0, 0, 5)),
    (pa.timestamp("ms", "UTC"), dt.datetime(2024, 1, 1, 0, 0, 0, 5, tzinfo=UTC)),
    (pa.timestamp("us"), pd.Timestamp("2024-01-01 00:00:00.123456789")),
    (pa.timestamp("us"), np.datetime64("2024-01-01T00:00:00.123456789")),
    (pa.timestamp("us"), 1.5),
    (pa.timestamp("ns"), dt.datetime(9999, 1, 1)),
    (pa.timestamp("us"), uuid.UUID(int=5)),
    (pa.duration("s"), dt.timedelta(microseconds=1)),
    (pa.duration("us"), pd.Timedelta(5)),
    (pa.list_(pa.int64()), b"ab"),
    (pa.list_(pa.int64()), [1.5]),
    (pa.list_(pa.int64()), np.array([1.5])),
    (pa.list_(pa.field("item", pa.int64(), False)), [None]),
    (pa.list_(pa.int64(), 2), [1]),
    (POINT, {"a": 1, "c": 2}),
    (POINT, [("a", 1), ("a", 2)]),
    (pa.struct([pa.field("a", pa.int64(), False)]), {}),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), ("a", 2)]),
    (pa.map_(pa.string(), pa.int64()), [("a", 1), (b"a", 2)]),
    (pa.map_(pa.string(), pa.int64()), {None: 1}),
    (pa.dictionary(pa.int16(), pa.string()), 1),
    (DEEP, [{"x": {"k": {"n": 1, "m": 2}}}]),
    (DEEP, [{"x": {"k": {"n": 1.5}}}]),
]


@pytest.mark.parametrize(("kind", "value", "expected"), KEPT)
def test_a_kept_value_comes_out_as_it_went_in(kind: pa.DataType, value: Any, expected: Any) -> None:
    column = column_of([value, None], kind)
    column.validate(full=True)
    assert column.type == kind
    assert column.to_pylist() == [expected, None]


@pytest.mark.parametrize(("kind", "value"), REFUSED)
def test_a_value_that_would_change_is_refused_with_its_row(kind: pa.DataType, value: Any) -> None:
    with pytest.raises(UnkeptValue, match="column 'c' is ") as caught:
        column_of([None, value], kind, "c")
    assert (caught.value.row, caught.value.column) == (1, "c")
    assert caught.value.value is value


def test_the_remedy_names_the_unit_that_keeps_the_time() -> None:
    late = pd.Timestamp("2024-01-01 00:00:00.123456789", tz="UTC")
    with pytest.raises(UnkeptValue, match=r"declare the column as timestamp\[ns, tz=UTC\], or round it"):
        column_of([late], pa.timestamp("ms", "UTC"), "at")
    assert column_of([late], pa.timestamp("ns", "UTC")).cast(pa.int64()).to_pylist() == [late.value]


def test_a_null_of_a_column_that_has_none_is_refused() -> None:
    with pytest.raises(UnkeptValue, match=r"'c' is int64, but there is None .* declared not nullable"):
        column_of([1, None], pa.int64(), "c", nullable=False)


_SCALARS = {
    pa.int16(): st.integers(-(2**20), 2**20) | st.floats() | st.booleans() | st.decimals(places=1),
    pa.uint64(): st.integers(-5, 2**65) | st.floats(),
    pa.float64(): st.floats() | st.integers(-(2**70), 2**70),
    pa.float32(): st.floats(width=32) | st.integers(-(2**30), 2**30),
    pa.decimal128(9, 3): st.decimals() | st.integers(-(10**7), 10**7) | st.floats(),
    pa.string(): st.text(st.characters()) | st.binary(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.date32(): st.dates() | st.datetimes(),
    pa.timestamp("ms"): st.datetimes() | st.dates(),
    pa.timestamp("ns", "UTC"): st.datetimes(timezones=st.just(UTC)),
    pa.time64("us"): st.times() | st.floats(),
    pa.duration("s"): st.timedeltas() | st.integers(-5, 5).map(lambda n: dt.timedelta(seconds=n)),
}


@pytest.mark.slow
@examples(300)
@given(st.data())
def test_any_value_is_equal_in_its_column_or_is_refused(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(_SCALARS)))
    values = data.draw(st.lists(_SCALARS[kind] | st.none(), max_size=4))
    alone = [keeps([value], kind) for value in values]
    if not all(alone):
        with pytest.raises(UnkeptValue) as caught:
            column_of(values, kind, "c")
        assert caught.value.row == alone.index(False)
        return
    column = column_of(values, kind, "c")
    for value, stored in zip(values, column.cast(_READ.get(kind, kind)).to_pylist(), strict=True):
        if isinstance(value, bytes) and pa.types.is_string(kind):
            value = value.decode()
        if isinstance(value, dt.datetime) and pa.types.is_date(kind):
            stored = dt.datetime.combine(stored, dt.time())
        assert stored == value or (stored != stored and value != value)


_READ = {pa.timestamp("ns", "UTC"): pa.timestamp("us", "UTC")}  # Python's times have no nanoseconds
