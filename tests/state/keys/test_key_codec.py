"""Encoded keys: exact round trips, and bytes in the order of the values."""

import datetime as dt
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.keys.key_codec import decode_columns, decode_key, encode_key, encode_keys
from tests.drawn import examples

UTC = dt.timezone.utc
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(["\0", "a\0", "a\0b", "a\0\0"])
FIELDS: list[st.SearchStrategy[Any]] = [
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    _text,
    st.binary(max_size=6) | st.sampled_from([b"\0", b"\0\xff", b"\xff\0", b"\0\0\xff"]),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
]
_key = st.lists(st.one_of(FIELDS), max_size=4).map(tuple)


def _rank(field: Any) -> tuple[int, Any]:
    """Returns the documented rank of the field's type, then the value."""
    kinds = [type(None), bool, int, float, str, bytes, dt.date, dt.datetime]
    position = kinds.index(type(field)) + (0.5 if isinstance(field, dt.datetime) and field.tzinfo else 0)
    return (position, 0 if field is None else field)  # type: ignore[return-value]


@pytest.mark.slow
@examples(500)
@given(_key)
def test_a_key_comes_back_as_it_was(key: tuple[Any, ...]) -> None:
    back = decode_key(encode_key(key))
    assert back == key
    assert [type(field) for field in back] == [type(field) for field in key]
    assert decode_key(b"1234" + encode_key(key), 4) == key


_alike = st.lists(st.sampled_from([*FIELDS, st.integers(-5, 5)]), max_size=3).flatmap(
    lambda kinds: st.lists(st.tuples(*kinds), min_size=1, max_size=6)
)


@pytest.mark.slow
@examples(300)
@given(_alike, st.lists(_key, max_size=2))
def test_many_keys_at_once_are_encoded_as_each_is(keys: list[tuple[Any, ...]], others: list[tuple[Any, ...]]) -> None:
    for many in (keys * 16, (keys + others) * 16):
        assert encode_keys(many) == [encode_key(key) for key in many]


def test_many_keys_with_one_that_cannot_be_a_key_are_refused_as_it_is() -> None:
    for field, message in ((2**64, "does not fit in 64 bits"), ("\ud800", "not valid text"), (float("nan"), "NaN")):
        with pytest.raises(InvalidJob, match=message):
            encode_keys([(type(field)(), 1)] * 20 + [(field, 1)])


@pytest.mark.slow
@examples(300)
@given(_alike)
def test_columns_of_many_keys_are_the_fields_of_each(keys: list[tuple[Any, ...]]) -> None:
    columns = [list(column) for column in decode_columns([b"1234" + encode_key(key) for key in keys], 4)]
    assert columns == [list(field) for field in zip(*keys, strict=True)]


def test_of_many_keys_the_one_that_is_none_is_told() -> None:
    good = encode_key((5,))
    for bad in (good[:-1], b"\xff" * len(good), good + b"\x30abc", b"\x30abc"):
        with pytest.raises(Corrupt, match=bad.hex()):
            decode_columns([good, bad])


@pytest.mark.slow
@examples(500)
@given(_key, _key)
def test_the_order_of_the_bytes_is_the_order_of_the_keys(left: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    ranks = [tuple(_rank(field) for field in key) for key in (left, right)]
    assert (encode_key(left) < encode_key(right)) == (ranks[0] < ranks[1])


@pytest.mark.parametrize("field", FIELDS)
def test_one_kind_sorts_like_its_values(field: st.SearchStrategy[Any]) -> None:
    @examples(100)
    @given(field, field)
    def check(left: Any, right: Any) -> None:
        if left is None or right is None:
            return
        assert (encode_key((left,)) < encode_key((right,))) == (left < right)

    check()


def test_keys_are_what_they_always_were() -> None:
    assert encode_key((1, "a\0b", None)).hex() == "148000000000000001" + "306100ff6200" + "05"
    assert encode_key((-1.5, True, b"\xff")).hex() == "204007ffffffffffff" + "0b" + "31ff00"
    assert encode_key((2**63,)).hex() == "158000000000000000"
    assert encode_key((dt.date(1970, 1, 1), dt.datetime(1970, 1, 1))).hex() == "4080000000" + "418000000000000000"


def test_minus_zero_is_zero_and_nan_is_no_key() -> None:
    assert encode_key((-0.0,)) == encode_key((0.0,))
    with pytest.raises(InvalidJob, match="NaN"):
        encode_key((math.nan,))


def test_numpy_scalars_are_stored_as_plain_values() -> None:
    assert decode_key(encode_key((np.int64(5), np.str_("a"), np.bool_(True)))) == (5, "a", True)


def test_a_datetime_in_another_zone_comes_back_as_the_same_moment_in_utc() -> None:
    moment = dt.datetime(2024, 5, 1, 12, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert decode_key(encode_key((moment,))) == (moment,)


@pytest.mark.parametrize("field", [2**64, -(2**63) - 1, "\ud800", object(), 1j, (1, 2), ["a"]])
def test_what_cannot_be_a_key_is_refused(field: Any) -> None:
    with pytest.raises(InvalidJob):
        encode_key((field,))


@pytest.mark.parametrize("data", [b"\xff", b"\x14\x80", b"\x30abc", b"\x40\xff\xff\xff\xff", b"\x00", b"\x30\xff\x00"])
def test_bytes_that_are_no_key_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt):
        decode_key(data)


def test_a_pickle_where_a_key_is_expected_is_refused_undecoded() -> None:
    """B4"""

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("the pickle was loaded",))

    with pytest.raises(Corrupt):
        decode_key(pickle.dumps(Bomb()))
