"""Partitioning: every row goes to the owner of the row's key group, in order, and no row is lost."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import Batch
from barrier_runtime.data.keys import Rebalancer, hash_partition
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_group
from tests.drawn import examples


@examples(100)
@given(
    st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(["a", "b", None])), min_size=1, max_size=200),
    st.integers(1, 5),
)
def test_rows_go_to_the_subtask_that_owns_their_state_in_their_order(keys, parallelism):
    rows = pa.record_batch(
        {
            "k": pa.array([k for k, _ in keys], pa.int64()),
            "s": pa.array([s for _, s in keys], pa.string()),
            "at": pa.array(range(len(keys))),
        }
    )
    parts = hash_partition(Batch(rows, 7), ("k", "s"), parallelism, 128)
    seen = []
    for target, part in parts:
        assert part.emit_ns == 7
        positions = part.rows.column("at").to_pylist()
        assert positions == sorted(positions)
        for position in positions:
            group = key_group(keys[position], 128)
            assert group * parallelism // 128 == target
        seen += positions
    assert sorted(seen) == list(range(len(keys)))


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(InvalidJob, match=r"'shop'.*a, b"):
        hash_partition(Batch(pa.record_batch({"a": [1], "b": [2]}), 0), ("shop",), 2, 128)


def test_small_batches_go_round_and_large_ones_are_shared():
    rebalancer = Rebalancer(3, first=1)
    small = Batch(pa.record_batch({"v": [1]}), 0)
    assert [rebalancer.partition(small)[0][0] for _ in range(4)] == [1, 2, 0, 1]
    large = Batch(pa.record_batch({"v": np.arange(1000)}), 0)
    parts = rebalancer.partition(large)
    assert sorted(target for target, _ in parts) == [0, 1, 2]
    assert [v for _, part in parts for v in part.rows.column(0).to_pylist()] == list(range(1000))
