"""Exact distinct counts of a batch equal the counts of the same rows added singly."""

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime.operators.aggregation.batch_values import BatchValues, RunningOrder
from barrier_runtime.operators.aggregation.kinds import collecting
from barrier_runtime.operators.aggregation.kinds.cells import Cells, EncodedValues, Reader
from barrier_runtime.operators.aggregation.kinds.collecting import DistinctCells, SetCell
from barrier_runtime.state.errors import InvalidJob

NAN = float("nan")
VALUES = {
    "int": pa.array([None, *range(200)], pa.int64()),
    "float": pa.array([None, 0.0, -0.0, NAN, -NAN, float("inf"), *np.linspace(0, 3, 50)], pa.float64()),
    "text": pa.array([None, "", "a", "é", *(f"text-{number}" for number in range(90))]),
    "boolean": pa.array([None, True, False]),
}


def of(cells: type[Cells], kind: pa.DataType, limit: int = 1_000) -> Cells:
    made = cells(SetCell("v", EncodedValues(kind, distinct=True), limit, exact=True))
    made.readers["count"] = Reader(
        "count", pa.int64(), lambda state: len(state.known), lambda read: pa.array(read, pa.int64())
    )
    return made


def left(column: str, row_id: int, aggregate: str = "sum_") -> InvalidJob:
    return InvalidJob(f"{aggregate} of {column} of key {row_id}")


@pytest.mark.parametrize("indexed", [0, 40, 10_000])  # number of values from which a key has a separate index
@pytest.mark.parametrize("keys", [1, 7])
@pytest.mark.parametrize("name", VALUES)
def test_after_each_row_and_at_the_end(name: str, keys: int, indexed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "MANY", indexed)
    # Of seven keys some have their index only, and that not for ever.
    monkeypatch.setattr(collecting, "REMEMBERED", 100)
    monkeypatch.setattr(collecting, "_LOOKED_THROUGH", 16)
    random, values = np.random.default_rng(5), VALUES[name]
    one, many = of(Cells, values.type), of(DistinctCells, values.type)
    state = [np.array([b""] * keys, np.object_) for _ in range(2)]
    for _ in range(4):  # batches: the cells hold the values of earlier batches
        batch = pa.RecordBatch.from_arrays([values.take(pa.array(random.integers(0, len(values), 150)))], ["v"])
        rows = RunningOrder.of(random.integers(0, keys, 150))
        found = []
        for made, cells in zip((one, many), state, strict=True):
            before = {made.name: cells[rows.row_ids]}
            added = made.added(before, rows, BatchValues(batch, "a step"), left)
            ends, after = made.running(before, rows, BatchValues(batch, "a step"), left)
            assert added[made.name].tolist() == ends[made.name].tolist()
            cells[rows.row_ids] = ends[made.name]
            found.append((made.result({**ends, **after}, "count"), made.result({made.name: cells}, "count")))
        assert found[0] == found[1]
    assert state[0].tolist() == state[1].tolist()


def test_what_stands_between_the_values_of_two_keys_is_no_value() -> None:
    cells = np.array([b"", collecting.COUNT.pack(1) + (7).to_bytes(8, "little")] * 2, np.object_)
    words = np.array([7, 1 << 32, 0])
    fresh = collecting.learned_together(cells, np.repeat(np.arange(4), 3), np.tile(np.arange(3), 4), words)
    assert fresh.tolist() == [True, True, True, False, True, True] * 2
    assert [len(cell) for cell in cells] == [4 + 3 * 8] * 4


@pytest.mark.slow
def test_a_set_of_very_many_numbers_is_what_numpy_says_also_made_anew_of_its_cell() -> None:
    random, cell = np.random.default_rng(6), np.array([b""], np.object_)
    seen = np.empty(0, np.int64)
    made = of(DistinctCells, pa.int64(), limit=1 << 20)
    for number in range(6):
        if number == 3:  # another process
            made = of(DistinctCells, pa.int64(), limit=1 << 20)
        values = random.integers(-(1 << 62), 1 << 62, 40_000)[random.integers(0, 40_000, 60_000)]
        values = np.concatenate((values, seen[: number * 100]))
        batch = pa.RecordBatch.from_arrays([pa.array(values)], ["v"])
        rows, before = RunningOrder.of(np.zeros(len(values), np.int64)), {made.name: cell}
        ends, after = made.running(before, rows, BatchValues(batch, "a step"), left)
        counts = made.result({**ends, **after}, "count").to_numpy()
        whole = np.concatenate((seen, values))
        _, first = np.unique(whole, return_index=True)
        fresh = np.zeros(len(whole), np.int64)
        fresh[first] = 1
        assert counts.tolist() == np.cumsum(fresh)[len(seen) :].tolist()
        cell, seen = ends[made.name], whole
    assert len(cell[0]) == 4 + 8 * len(np.unique(seen))


@pytest.mark.slow
def test_indexes_that_are_too_large_together_are_not_made_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "REMEMBERED", 8_000)
    made: list[int] = []

    class Counted(collecting.KnownWords):
        def __init__(self, cell: bytes) -> None:
            made.append(len(cell))
            super().__init__(cell)

    monkeypatch.setattr(collecting, "KnownWords", Counted)
    cells, state = of(DistinctCells, pa.int64(), 1 << 20), np.array([b""] * 4, np.object_)
    seen: list[set[int]] = [set() for _ in state]

    def add(groups: list[int], begin: int) -> None:
        of_row = np.repeat(np.array(groups), 3_000)
        values = np.tile(np.arange(begin, begin + 3_000), len(groups))
        rows = RunningOrder.of(of_row)
        batch = BatchValues(pa.RecordBatch.from_arrays([pa.array(values)], ["v"]), "a step")
        state[rows.row_ids] = cells.added({cells.name: state[rows.row_ids]}, rows, batch, left)[cells.name]
        for group in groups:
            seen[group].update(range(begin, begin + 3_000))
        assert cells.result({cells.name: state}, "count").to_pylist() == [len(each) for each in seen]

    for number in range(10):
        add([0, 1, 2] if number % 2 else [2, 1, 0], number * 100)
    assert len(made) == 2, "there is no room for the third"
    for number in range(collecting._UNUSED_BATCHES + 2):  # batches without the key, until the index is unused
        add([3], number * 10)
    add([2, 3], 0)
    assert len(made) == 4, "what is not used gives its room to others"


@pytest.mark.parametrize("indexed", [0, 10_000])
def test_a_key_with_too_many_values_is_named_and_one_with_just_as_many_is_not(
    indexed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "MANY", indexed)
    values = pa.array([1, 2, 2, 1, 3, 1, 2, 3, 4, 4], pa.int64())
    batch, groups = pa.RecordBatch.from_arrays([values], ["v"]), np.array([0] * 5 + [1] * 5)
    rows = RunningOrder.of(groups)
    before = {"count_distinct:v": np.array([b"", b""], np.object_)}
    enough = of(DistinctCells, pa.int64(), limit=4)
    assert enough.result(enough.added(before, rows, BatchValues(batch, "a step"), left), "count").to_pylist() == [3, 4]
    with pytest.raises(InvalidJob, match="count_distinct of v of key 1"):
        of(DistinctCells, pa.int64(), limit=3).running(before, rows, BatchValues(batch, "a step"), left)


def test_equal_values_of_one_batch_that_look_unlike_are_one() -> None:
    state = SetCell("v", EncodedValues(pa.int64(), distinct=True), 10, exact=True).opened(b"")
    assert state.unknown([b"a", b"b", b"a", b"b", b"c"]) == [0, 1, 4]
