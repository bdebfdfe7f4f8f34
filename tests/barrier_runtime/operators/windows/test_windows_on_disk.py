"""Windows whose entries do not fit in memory: no result is missing or duplicated, over snapshots, restores while
windows fire and other parallelisms; memory holds at most the configured number of entries.
"""

import datetime
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from operator_harness import Driven, Slots, World, entries_left, held_in_memory
from window_operators import aggregating, slicing

from barrier_runtime import Sliding, Tumbling, count, first, max_, sum_
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators.windows import aggregate, firing
from barrier_runtime.operators.windows import operator as operator_module
from barrier_runtime.operators.windows.operator import WindowOperator
from barrier_runtime.state.columns import column_table
from barrier_runtime.state.keys.key_groups import key_groups_of_int64

MS = datetime.timedelta(milliseconds=1)
MANY, HELD = 1_800, 200
AGGREGATES = {"n": count(), "total": sum_("v"), "v1": first("v")}
KINDS = ["tumbling", "sliding", "sliding windows", "lateness"]
# rows with several windows and kept windows use all code paths of tumbling windows, and more
HARDER = KINDS[1:]
MOSTLY_SLOW = ["tumbling", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Shrinks limits so that a few thousand windows behave like a hundred million."""
    for name, value in {"FEW": 100, "FEW_TUPLES": 100, "PART": 20, "_CHUNK": 200}.items():
        monkeypatch.setattr(firing, name, value)
    monkeypatch.setattr(column_table, "_MOST_REMOVED", 10)
    for module in (operator_module, aggregate):  # the amount of work, not the machine's speed, ends slices
        monkeypatch.setattr(module, "SLICE_S", 600.0)
    with held_in_memory(HELD):
        yield


def operator(kind: str) -> WindowOperator:
    if kind == "sliding":
        adding_up = {"n": count(), "total": sum_("v"), "v1": max_("v")}
        return slicing("w", ["k"], Sliding(20 * MS, 10 * MS), "t", adding_up)
    window = Sliding(20 * MS, 10 * MS) if kind == "sliding windows" else Tumbling(20 * MS)
    return aggregating("w", ["k"], window, "t", AGGREGATES, lateness_ms=15 if kind == "lateness" else 0)


def batches(text: bool = False, many: int = MANY) -> list[pa.RecordBatch]:
    drawn = np.random.default_rng(1)
    keys = drawn.integers(0, many // 2, many)
    columns = {
        "k": pa.array([f"key {key}" for key in keys.tolist()]) if text else pa.array(keys),
        "t": pa.array(drawn.integers(0, 60, many)),
        "v": pa.array(drawn.integers(0, 1_000, many)),
    }
    rows = pa.RecordBatch.from_pydict(columns)
    return [rows.slice(start, many // 30) for start in range(0, many, many // 30)]


def model(kind: str = "tumbling", text: bool = False) -> list[tuple[Any, ...]]:
    slide = 10 if "sliding" in kind else 20
    found: dict[tuple[Any, int], list[int]] = {}
    for each in pa.Table.from_batches(batches(text)).to_pylist():
        last = each["t"] // slide * slide
        for start in range(last - 20 + slide, last + 1, slide):
            found.setdefault((each["k"], start), []).append(each["v"])
    return sorted(
        (key, start, len(values), sum(values), max(values) if kind == "sliding" else values[0])
        for (key, start), values in found.items()
    )


def plain(results: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return sorted(
        (each["k"], round(each["window_start"].timestamp() * 1_000), each["n"], each["total"], each["v1"])
        for each in results
    )


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("tumbling", True),
        pytest.param("sliding", True, marks=pytest.mark.slow),
        *(pytest.param(kind, False, marks=pytest.mark.slow) for kind in KINDS),
    ],
)
def test_most_windows_are_not_in_memory_and_all_come_out_once(kind: str, text: bool) -> None:
    it = Driven(operator(kind), World("rocksdb"), name="w")
    most = 0
    for rows in batches(text):
        it.feed(rows)
        most = max(most, it.operator._table.entries)  # type: ignore[attr-defined]
    assert most < 3 * HELD
    it.watermark(WATERMARK_MAX)
    assert plain(it.take()) == model(kind, text)
    it.snapshot(1)
    assert entries_left(it.operator) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", HARDER)
def test_rows_that_come_for_windows_on_disk_are_given_back_after_a_slice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aggregate, "_ROWS_ON_DISK", 7)
    monkeypatch.setattr(operator_module, "SLICE_STEPS", 2)
    it, slices = Driven(operator(kind), World("rocksdb"), name="w"), 0
    it.operator.stops = True  # as a subtask says that takes them back
    for number, rows in enumerate(batches()):
        left: Batch | None = Batch(rows, 0)
        while left is not None:
            before = len(left)
            it.operator.process(left, it._emit)
            left = it.operator.take_rest()
            if left is not None:
                assert before - len(left) == 14
                slices += 1
                if slices % 50 == 0:  # the rest is in flight meanwhile
                    snapshot = it.snapshot(1_000 * number + slices)
                    it.operator.close()
                    it = Driven(operator(kind), it.world, (snapshot,), name="w")
                    it.operator.stops = True
    assert slices > 60
    it.watermark(WATERMARK_MAX)
    assert plain(it.take()) == model(kind)


@pytest.mark.slow
def test_a_slice_has_few_key_groups_and_rows_of_a_key_stay_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aggregate, "_ROWS_ON_DISK", 50)
    monkeypatch.setattr(operator_module, "SLICE_STEPS", 1)
    it = Driven(operator("tumbling"), World("rocksdb"), name="w")
    for rows in batches():
        it.feed(rows)
    it.operator.stops = True
    assert not it.operator._table.is_in_memory  # type: ignore[attr-defined]
    drawn = np.random.default_rng(2)
    keys, values = drawn.integers(0, MANY // 2, 1_000), drawn.integers(0, 1_000, 1_000)
    rows = pa.RecordBatch.from_pydict({"k": keys, "t": np.full(1_000, 70), "v": values})
    it.operator.process(Batch(rows, 0), it._emit)
    groups = []
    while (left := it.operator.take_rest()) is not None:
        keys_of_slice = left.rows.column("k").to_numpy()[:50]
        groups.append(len(set(key_groups_of_int64(keys_of_slice, it.operator.context.max_parallelism).tolist())))
        it.operator.process(left, it._emit)
    assert len(groups) == 19
    assert max(groups) < 20  # about 40 of 128 otherwise
    it.watermark(WATERMARK_MAX)
    found = {key: first_value for key, start, _, _, first_value in plain(it.take()) if start == 60}
    assert found == dict(zip(keys[::-1].tolist(), values[::-1].tolist(), strict=True))


def test_what_was_deleted_since_its_neighbours_were_read_does_not_come_back() -> None:
    """Half of a window is in memory and fires before the other half is read."""
    it = Driven(operator("tumbling"), World("rocksdb"), name="w")
    keys = np.arange(4_000)
    for start in range(0, len(keys), 100):
        some = keys[start : start + 100]
        it.feed(pa.RecordBatch.from_pydict({"k": some, "t": some * 0, "v": some}))
    it.snapshot(1)  # entries in memory are now on disk, too
    it.watermark(WATERMARK_MAX)
    assert sorted(each["k"] for each in it.take()) == keys.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", HARDER)
def test_restored_between_two_slices_of_firing_none_is_missing_and_none_comes_twice(kind: str) -> None:
    world, got = World("rocksdb"), []
    it = Driven(operator(kind), world, name="w")
    for number, rows in enumerate(batches()):
        it.feed(rows)
        if number % 7 == 6:
            snapshot = it.snapshot(number + 1)
            it.operator.close()
            it = Driven(operator(kind), world, (snapshot,), name="w")
    checkpoint, restored = 100, 0
    every = 40 if kind == "sliding windows" else 60
    while not it.operator.toward(59 + 1_000, it._emit):
        got += it.take()
        checkpoint += 1
        if checkpoint % every == 0:
            restored += 1
            snapshot = it.snapshot(checkpoint)
            it.operator.close()
            it = Driven(operator(kind), world, (snapshot,), name="w")
    assert restored
    assert plain(got + it.take()) == model(kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MOSTLY_SLOW)
def test_what_is_on_disk_goes_along_to_another_parallelism(kind: str) -> None:
    slots, got = Slots(lambda: operator(kind), 1), []
    for number, rows in enumerate(batches()):
        slots.feed(rows.to_pylist())
        if number in (9, 19):
            slots = slots.rescaled(number, 3 if number == 9 else 2)
    slots.watermarks(39, 19)  # not equally far
    got += slots.take()
    slots = slots.rescaled(50, 3)
    slots.watermarks(WATERMARK_MAX, WATERMARK_MAX, WATERMARK_MAX)
    got += slots.take()
    assert plain(got) == model(kind)
    for driven in slots.driven:
        driven.snapshot(51)
        assert entries_left(driven.operator) == 0


@pytest.mark.slow
def test_subtask_that_was_ahead_continues_at_other_parallelism_with_disk_windows() -> None:
    """Windows that are over by the event time of their key group are read in parts; the part in memory may be empty."""
    slots = Slots(lambda: operator("tumbling"), 2)
    for batch in batches():
        slots.feed(batch.to_pylist())
    ahead, behind = slots.driven
    while not ahead.rows:
        ahead.operator.toward(45, ahead._emit)
    while not behind.operator.toward(5, behind._emit):
        pass
    found = slots.take()
    slots = slots.rescaled(1, 1)
    it = slots.driven[0]
    while not it.operator.toward(WATERMARK_MAX, it._emit):
        pass
    assert plain(found + slots.take()) == model()
