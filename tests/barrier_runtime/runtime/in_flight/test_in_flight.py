"""Rows in flight on their way into a checkpoint and back: stored, checked, spread anew at another parallelism."""

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime.data.elements import Batch
from barrier_runtime.graph.job_graph import Edge
from barrier_runtime.runtime.in_flight import read_in_flight, write_in_flight
from barrier_runtime.runtime.network import frames
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.keys.key_groups import key_group_range, key_groups_of
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import MemoryStore

GROUPS = 16
HASH = {0: Edge(0, 0, 1, "hash", ("k",))}
ROUND_ROBIN = {0: Edge(0, 0, 1, "rebalance")}


def batch(keys, emit_ns=1, at=0):
    """`at`: number of the first row."""
    numbers = pa.array(range(at, at + len(keys)), pa.int64())
    return Batch(pa.record_batch({"k": pa.array(keys, pa.int64()), "at": numbers}), emit_ns)


class Stored:
    """In-flight rows of operator "count", stored by the operator's subtasks."""

    def __init__(self, parallelism, inline_bytes=0):
        self.store = MemoryStore()
        self.parallelism = parallelism
        self.inline_bytes = inline_bytes
        self.snapshots = []
        self.keys = iter(f"job/data/1/slot/{number}" for number in range(1_000))

    def write(self, subtask, data, check=lambda: None):
        files = write_in_flight(data, self.store, self.keys.__next__, self.inline_bytes, check)
        self.snapshots.append(OperatorSnapshot("count", subtask, self.parallelism, in_flight=files))
        return files

    def read(self, subtask, parallelism, edges):
        return read_in_flight(self.snapshots, "count", edges, subtask, parallelism, GROUPS, self.store)


def test_batches_come_back_as_they_were_in_one_object():
    stored = Stored(1)
    data = {0: [batch([3, 1], 5), batch([2], 7)], 1: [batch([9])]}
    files = stored.write(0, data)
    assert [each.port for each in files] == [0, 1]
    assert len(stored.store.keys()) == 1
    edges = {port: Edge(port, 0, 1, "hash", ("k",), port) for port in data}
    assert stored.read(0, 1, edges) == [(port, each) for port, batches in data.items() for each in batches]


@pytest.mark.parametrize("rows", [1, 255, 256, 257, 512, 513, 1_025])
def test_every_row_of_a_batch_that_is_worked_off_in_pieces_comes_back(rows):
    stored = Stored(1)
    stored.write(0, {0: [batch(list(range(rows))), batch([7], at=rows)]})
    read = [each.rows for _, each in stored.read(0, 1, HASH)]
    assert pa.Table.from_batches(read).column("at").to_pylist() == list(range(rows + 1))
    assert max(each.num_rows for each in read) <= 256


def timed(keys, reached):
    return Batch(batch(keys).rows, 1, np.array(reached, np.int64))


def test_rows_keep_what_event_time_was_reached_at_each_of_them():
    stored = Stored(1)
    stored.write(0, {0: [timed([3, 1, 2], [5, 7, 7]), batch([2]), timed(list(range(600)), list(range(600)))]})
    read = [each for _, each in stored.read(0, 1, HASH)]
    assert [None if each.reached is None else each.reached.tolist() for each in read] == [
        [5, 7, 7],
        None,
        list(range(256)),
        list(range(256, 512)),
        list(range(512, 600)),
    ]


@pytest.mark.parametrize("edges", [HASH, ROUND_ROBIN])
def test_at_another_parallelism_event_time_is_told_by_those_who_are_behind(edges):
    """A subtask may get rows of a subtask that was far ahead, followed by rows of another that was behind."""
    stored = Stored(2)
    for subtask in range(2):
        stored.write(subtask, {0: [timed([1, 2, 3], [5 * subtask] * 3)]})
    read = [each for subtask in range(3) for _, each in stored.read(subtask, 3, edges)]
    assert len(read) >= 2
    assert all(each.reached is None for each in read)


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_columns_that_nobody_wants_any_more_are_left_out(parallelism):
    """For example columns of Parquet files that an older release read although unused."""
    stored = Stored(2)
    for subtask in range(2):
        stored.write(subtask, {0: [timed([1, 2, 3], [5 * subtask] * 3)]})
    edges = {0: Edge(0, 0, 1, "rebalance", schema=pa.schema([("at", pa.int64())]))}
    read = [each for subtask in range(parallelism) for _, each in stored.read(subtask, parallelism, edges)]
    assert [each.rows.to_pydict() for each in read] == [{"at": [0, 1, 2]}] * 2
    assert [each.reached is None for each in read] == [parallelism != 2] * 2


def test_few_rows_travel_inside_the_manifest():
    stored = Stored(1, inline_bytes=20_000)
    (file,) = stored.write(0, {0: [batch([1])]})
    assert file.file.inline is not None
    assert stored.store.keys() == ()
    assert stored.read(0, 1, HASH) == [(0, batch([1]))]


def test_rows_whose_schema_changes_in_a_local_queue_are_stored_too():
    other = Batch(pa.record_batch({"k": pa.array(["a"])}), 1)
    stored = Stored(1)
    assert len(stored.write(0, {0: [batch([1]), other, batch([2])]})) == 3
    assert stored.read(0, 1, HASH) == [(0, batch([1])), (0, other), (0, batch([2]))]


def test_nothing_is_uploaded_for_a_checkpoint_that_nobody_wants_any_more():
    """U3"""

    def check():
        raise Unavailable("given up")

    stored = Stored(1)
    with pytest.raises(Unavailable):
        stored.write(0, {0: [batch([1])]}, check)
    assert stored.store.keys() == ()


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 2), (4, 1), (3, 3)])
def test_at_another_parallelism_every_row_goes_to_who_owns_its_key_in_the_same_order(before, after):
    """R1, U1"""
    stored = Stored(before)
    keys = list(range(40)) * 3
    groups = key_groups_of([pa.array(keys, pa.int64())], GROUPS).tolist()
    for subtask in range(before):
        first, last = key_group_range(subtask, before, GROUPS)
        own = [key for key, group in zip(keys, groups, strict=True) if first <= group <= last]
        stored.write(subtask, {0: [batch(own[:7]), batch(own[7:], at=7)]})
    found = {}
    for subtask in range(after):
        first, last = key_group_range(subtask, after, GROUPS)
        for _, each in stored.read(subtask, after, HASH):
            column = each.rows.column(0)
            assert all(first <= group <= last for group in key_groups_of([column], GROUPS).tolist())
            for key, at in zip(column.to_pylist(), each.rows.column(1).to_pylist(), strict=True):
                found.setdefault(key, []).append(at)
    assert found.keys() == set(keys)
    assert all(len(numbers) == 3 and sorted(numbers) == numbers for numbers in found.values())


@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 4)])
def test_rows_of_a_round_robin_edge_go_to_one_subtask_each(before, after):
    """R1"""
    stored = Stored(before)
    for subtask in range(before):
        stored.write(subtask, {0: [batch([subtask])]})
    found = [
        each.rows.column(0)[0].as_py()
        for subtask in range(after)
        for _, each in stored.read(subtask, after, ROUND_ROBIN)
    ]
    assert sorted(found) == list(range(before))


def test_rows_for_an_input_that_is_gone_are_refused_with_the_remedy():
    stored = Stored(1)
    stored.write(0, {3: [batch([1])]})
    with pytest.raises(InvalidJob, match=r"input 3 of count.*stop\(\)"):
        stored.read(0, 1, HASH)


def test_rows_of_a_later_release_are_refused_with_the_remedy(monkeypatch):
    """B6: their hash is right."""
    stored = Stored(1)
    with monkeypatch.context() as later:
        later.setattr(frames, "_FIRST_VERSION", frames.FRAME_VERSION + 1)
        stored.write(0, {0: [batch([1])]})
    with pytest.raises(
        InvalidJob, match=r"in-flight-0\.frames.*version .*this release reads .*a newer release wrote it"
    ):
        stored.read(0, 1, HASH)


def test_damage_is_noticed():
    """O8"""
    stored = Stored(1)
    stored.write(0, {0: [batch([1])]})
    (key,) = stored.store.keys()
    stored.store.put(key, b"x" * len(stored.store.get(key)))
    with pytest.raises(Corrupt, match=r"in-flight-0\.frames"):
        stored.read(0, 1, HASH)


def test_rows_of_two_inputs_go_by_the_keys_of_their_own_input_at_another_parallelism():
    """A join: the key columns of the two sides have different names and meanings."""
    left = pa.RecordBatch.from_pydict({"k": list(range(40)), "other": [0] * 40})
    right = pa.RecordBatch.from_pydict({"other": list(range(40)), "k": [0] * 40})
    edges = {0: Edge(0, 0, 2, "hash", ("k",), 0), 1: Edge(1, 1, 2, "hash", ("other",), 1)}
    stored = Stored(1)
    stored.write(0, {0: [Batch(left, 0)], 1: [Batch(right, 0)]})
    for subtask in range(3):
        first, last = key_group_range(subtask, 3, GROUPS)
        own = [key for key in range(40) if first <= key_groups_of([pa.array([key])], GROUPS)[0] <= last]
        read = stored.read(subtask, 3, edges)
        for port, column in ((0, "k"), (1, "other")):
            there = [key for its, each in read if its == port for key in each.rows.column(column).to_pylist()]
            assert sorted(there) == own
