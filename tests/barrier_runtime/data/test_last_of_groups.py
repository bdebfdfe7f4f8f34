"""The last row of each row's group: integers by hash, other columns by Arrow, and rows whose hashes collide."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.grouping import last_of_groups
from tests.drawn import examples

# Only the highest bits of these integers differ, so few places are used, and most rows collide.
COLLIDING = st.integers(-8, 7).map(lambda number: number << 60)
INTEGERS = st.one_of(COLLIDING, st.integers(-3, 3))
KINDS: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), INTEGERS),
    (pa.uint64(), st.integers(0, 15).map(lambda number: number << 60)),
    (pa.int8(), st.integers(-2, 2)),
    (pa.timestamp("ms"), st.integers(0, 3)),
    (pa.int64(), st.one_of(st.none(), INTEGERS)),
    (pa.string(), st.sampled_from(["a", "b", None])),
    (pa.bool_(), st.booleans()),
    (pa.int64(), st.just(7)),
]
COLUMNS = st.integers(1, 60).flatmap(
    lambda rows: st.lists(
        st.sampled_from(KINDS).flatmap(
            lambda kind: st.lists(kind[1], min_size=rows, max_size=rows).map(lambda values: pa.array(values, kind[0]))
        ),
        min_size=1,
        max_size=3,
    )
)


def by_dict(columns: list[pa.Array]) -> list[int]:
    keys = list(zip(*[column.to_pylist() for column in columns], strict=True))
    last = {key: row for row, key in enumerate(keys)}
    return [last[key] for key in keys]


@pytest.mark.slow
@examples(300)
@given(COLUMNS)
def test_each_row_finds_the_last_row_of_its_group(columns: list[pa.Array]) -> None:
    last_of, last = last_of_groups(columns)
    assert last_of.tolist() == by_dict(columns)
    assert last.tolist() == sorted(set(by_dict(columns)))


@pytest.mark.parametrize("key", [lambda row: row % 997, lambda row: row // 3, lambda row: (row % 16 - 8) << 60])
def test_many_rows(key: Any) -> None:
    columns = [pa.array([key(row) for row in range(5_000)], pa.int64())]
    assert last_of_groups(columns)[0].tolist() == by_dict(columns)
