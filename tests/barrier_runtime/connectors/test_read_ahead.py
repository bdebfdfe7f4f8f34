"""Staged objects read ahead: in order, bounded, with errors in their place."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.connectors.read_ahead import read_ahead


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 9), st.integers(1, 60))
def test_objects_come_in_order_and_no_more_rows_wait_than_may(sizes: list[int], at_once: int, most: int) -> None:
    counting = threading.Lock()
    under_way: set[int] = set()

    def read(position: int) -> int:
        with counting:
            under_way.add(position)
            rows = sum(sizes[each] for each in under_way)
            assert len(under_way) <= at_once
            assert rows <= most or len([each for each in under_way if sizes[each]]) == 1
        return position

    found = []
    for position in read_ahead(read, range(len(sizes)), lambda each: sizes[each], at_once, most):
        found.append(position)
        with counting:
            under_way.discard(position)
    assert found == list(range(len(sizes)))


def test_an_error_comes_at_the_turn_of_its_object() -> None:
    def read(number: int) -> int:
        if number == 3:
            raise ValueError("damaged")
        return number

    reading = read_ahead(read, range(6), lambda _: 1, 4)
    assert [next(reading) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError, match="damaged"):
        next(reading)


def test_several_objects_are_under_way_at_a_time() -> None:
    """Each read waits until all four have started."""
    all_there = threading.Barrier(4)

    def read(number: int) -> int:
        all_there.wait(30)
        return number

    assert list(read_ahead(read, range(4), lambda _: 1, 4)) == [0, 1, 2, 3]
