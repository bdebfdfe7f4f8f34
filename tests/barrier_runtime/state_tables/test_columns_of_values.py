"""Stored values as columns: a column of values equals the single values."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state_tables.arrow_columns import PACKED_INT, decoded_all
from tests.drawn import examples

_value = st.none() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=3) | st.lists(st.integers(0, 9), max_size=3)
_marks = st.sampled_from([b"", b"", b"\xc1E" + bytes(8), b"\xc1P" + bytes(7) + b"\xc1", b"\xc1V\x02"])


@pytest.mark.slow
@examples(200)
@given(st.lists(st.tuples(_marks, _value), max_size=5))
def test_values_with_and_without_marks(values: list[tuple[bytes, Any]]) -> None:
    data = [mark + msgspec.msgpack.encode(value) for mark, value in values]
    assert decoded_all(data, None, "here") == [value for _, value in values]


def test_pickles_stay_closed_and_packed_integers_have_eight_bytes() -> None:
    assert decoded_all([b"\xc1V\x02\x80.", b"\x80."], ValueType("pickle"), "here") == [b"\x80.", b"\x80."]
    assert decoded_all([(-2).to_bytes(8, "big", signed=True), b"\x05"], PACKED_INT, "here") == [-2, 5]


@pytest.mark.parametrize("bad", [b"\xc1\x99", b"\x92\x01", b"", b"\x01\x02"])
def test_a_value_that_is_none_is_damage(bad: bytes) -> None:
    with pytest.raises(Corrupt, match="here: a value is not readable"):
        decoded_all([b"\x01", bad], None, "here")
