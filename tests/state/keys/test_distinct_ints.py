"""Distinct ints against a set, for any numbers in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.state.keys.distinct_ints import distinct_ints

_INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(_INT64 | st.integers(-3, 3), max_size=300))
def test_each_value_is_there_once_and_they_rise(values: list[int]) -> None:
    given_ones = np.array(values, np.int64)
    assert distinct_ints(given_ones).tolist() == sorted(set(values))
    assert given_ones.tolist() == values, "what was given stays as it is"


@pytest.mark.parametrize("count", [0, 1, 2])
def test_the_array_is_its_own(count: int) -> None:
    values = np.arange(count)
    assert not np.shares_memory(distinct_ints(values), values)
