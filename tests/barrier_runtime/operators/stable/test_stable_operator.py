"""`stable`: which rows are released when, in which order, and what a snapshot holds. The pure operator, by hand."""

from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.coordinator.log.restore_choice import snapshots_for_slot
from barrier_runtime.data.elements import WATERMARK_MAX, Batch
from barrier_runtime.operators import stable as stable_module
from barrier_runtime.operators.base import Emit
from barrier_runtime.operators.stable import StableOperator, decoded, encoded
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.barrier_runtime.operator_harness import World


def batch(*values: int, reached: int | None = None) -> Batch:
    rows = pa.RecordBatch.from_arrays([pa.array(values, pa.int64())], names=["v"])
    return Batch(rows, 1, None if reached is None else np.full(len(values), reached, np.int64))


class Stable:
    """The operator of a subtask, with the rows and watermarks that left it."""

    def __init__(self, *restored: OperatorSnapshot, subtask: int = 0, parallelism: int = 1) -> None:
        self.world = World(subtask=subtask, parallelism=parallelism)
        self.operator = StableOperator("s")
        self.operator.open(self.world.context("s", restored))
        self.left: list[int | str] = []

    def take(self, *values: int) -> "Stable":
        self.operator.process(batch(*values), self._emit)
        return self

    def watermark(self, ms: int) -> "Stable":
        self.operator.on_watermark(ms, self._emit)
        return self

    def snapshot(self, checkpoint: int) -> OperatorSnapshot:
        capture = self.operator.snapshot(checkpoint)
        values = dict(capture.parts()) if capture.parts is not None else {}
        return OperatorSnapshot("s", self.world.subtask, self.world.parallelism, values)

    def decide(self, checkpoint: int, turns: int = 100) -> "Stable":
        self.operator.on_complete(checkpoint)
        return self.turn(turns)

    def turn(self, turns: int = 100) -> "Stable":
        for _ in range(turns):
            worked = self.operator.on_wall_clock(self._emit)
            reached = self.operator.own_watermark()
            if reached is not None and f"w{reached}" not in self.left:
                self.left.append(f"w{reached}")
            if not worked:
                break
        return self

    @property
    def _emit(self) -> Emit:
        return Emit(lambda rows: self.left.extend(rows.rows.column("v").to_pylist()))


def test_rows_before_the_barrier_leave_after_the_decision() -> None:
    stable = Stable().take(1, 2)
    assert stable.turn().left == []
    stable.snapshot(1)
    stable.take(3)
    assert stable.turn().left == []
    assert stable.decide(1).left == [1, 2]
    assert stable.operator.unfinished


def test_watermarks_wait_with_the_rows_before_them() -> None:
    stable = Stable().take(1).watermark(10).watermark(20).take(2).watermark(30)
    stable.snapshot(1)
    stable.watermark(40)
    assert stable.decide(1).left == [1, "w20", 2, "w30"]
    stable.snapshot(2)
    assert stable.decide(2).left[-1] == "w40"
    assert not stable.operator.unfinished
    assert stable.watermark(WATERMARK_MAX).operator.own_watermark() == WATERMARK_MAX


def test_a_restart_releases_the_rows_of_the_snapshot_in_the_same_order() -> None:
    stable = Stable().take(1).watermark(10).take(2)
    taken = stable.snapshot(1)
    decided = stable.decide(1).left
    again = Stable(taken).take(7)
    assert not again.operator.has_room
    assert again.turn().left == decided == [1, "w10", 2]
    assert again.operator.has_room


def test_the_decision_of_a_later_checkpoint_counts_for_an_aborted_one() -> None:
    stable = Stable().take(1)
    stable.snapshot(1)
    stable.take(2)
    stable.snapshot(2)
    stable.take(3)
    stable.snapshot(3)
    stable.operator.on_abort(1)
    assert stable.decide(2).left == [1, 2]


def test_a_snapshot_holds_decided_rows_that_have_not_left() -> None:
    stable = Stable().take(1).watermark(1).take(2)
    stable.snapshot(1)
    assert stable.decide(1, turns=1).left == [1, "w1"]
    stable.take(3)
    assert [item.rows.column("v").to_pylist() for item in items(stable.snapshot(2)) if not isinstance(item, int)] == [
        [2, 3]
    ]


def test_rows_of_two_decisions_at_most_wait_for_room() -> None:
    stable = Stable().take(1)
    stable.snapshot(1)
    stable.decide(1, turns=0).take(2)
    assert stable.operator.has_room
    stable.snapshot(2)
    assert not stable.decide(2, turns=0).operator.has_room
    assert stable.turn().operator.has_room


def test_fewer_subtasks_release_the_rows_of_all_each_in_order() -> None:
    taken = [Stable(subtask=at, parallelism=3).take(10 * at, 10 * at + 1).watermark(5).snapshot(1) for at in range(3)]
    both = [Stable(*taken, subtask=at, parallelism=2).turn().left for at in range(2)]
    assert both == [[0, 1, 20, 21], [10, 11]]  # watermarks of other subtasks are dropped


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_restart_hands_the_rows_of_a_subtask_to_one_slot(parallelism: int) -> None:
    """So no slot holds the rows of the whole job in memory."""
    taken = tuple(Stable(subtask=at, parallelism=3).take(at).snapshot(1) for at in range(3))
    given = [snapshots_for_slot(taken, slot, parallelism) for slot in range(parallelism)]
    assert sorted(each.subtask for snapshots in given for each in snapshots if each.values) == [0, 1, 2]
    left = [Stable(*given[at], subtask=at, parallelism=parallelism).turn().left for at in range(parallelism)]
    assert sorted(row for rows in left for row in rows) == [0, 1, 2]


def test_rows_of_a_checkpoint_of_an_earlier_build_are_released() -> None:
    taken = Stable().take(1, 2).snapshot(1)
    earlier = {name.removeprefix("own-"): value for name, value in taken.values.items()}
    assert Stable(OperatorSnapshot("s", 0, 1, earlier)).turn().left == [1, 2]


def test_rows_beyond_the_bound_leave_memory_and_keep_their_order() -> None:
    with patch.object(stable_module, "_IN_MEMORY_BYTES", 10_000):
        stable = Stable()
        for value in range(100):
            stable.take(value).watermark(value)
        taken = stable.snapshot(1)
        left = stable.decide(1).turn(1_000).left
    assert [value for value in left if not isinstance(value, str)] == list(range(100))
    assert Stable(taken).turn(1_000).left == left


def test_released_rows_leave_memory_and_go_to_no_file() -> None:
    with patch.object(stable_module, "_IN_MEMORY_BYTES", 10_000), patch.object(stable_module, "on_disk") as to_files:
        stable = Stable()
        for checkpoint in range(1, 30):
            stable.take(checkpoint)
            stable.snapshot(checkpoint)
            stable.decide(checkpoint)
    assert stable.left == list(range(1, 30))
    assert not to_files.called, "a batch counts 2 kB, and no more than two waited"


@pytest.mark.slow
def test_large_rows_are_released_a_few_at_a_time() -> None:
    """Rows of a release are joined, and Arrow joins at most 2 GiB of texts."""
    large = "x" * (6 << 20)
    stable, released = Stable(), []
    emit = Emit(lambda rows: released.append(rows.rows.column("v").to_pylist()))
    for value in range(5):
        rows = pa.record_batch({"v": [value], "text": [large * (1 + 3 * (value == 2))]})
        stable.operator.process(Batch(rows, 1), emit)
    stable.snapshot(1)
    stable.operator.on_complete(1)
    while stable.operator.on_wall_clock(emit):
        pass
    assert released == [[0, 1], [2], [3, 4]], "the row of 24 MiB goes alone"


@given(st.lists(st.one_of(st.integers(0, 9), st.lists(st.integers(0, 9), min_size=1, max_size=4))))
def test_a_snapshot_keeps_the_places_of_watermarks(given_items: list[int | list[int]]) -> None:
    sent = [item if isinstance(item, int) else batch(*item, reached=3) for item in given_items]
    assert flat(decoded(dict(encoded(sent)), "s")) == flat(sent)


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_rows_of_changed_columns_stay_apart(names: tuple[str, str]) -> None:
    sent = [Batch(pa.record_batch({name: [1]}), 1) for name in names]
    assert [item.rows.schema.names for item in decoded(dict(encoded(sent)), "s") if not isinstance(item, int)] == [
        [name] for name in names
    ]


def items(snapshot: OperatorSnapshot) -> list[Batch | int]:
    return list(decoded(snapshot.values, "s"))


def flat(found: object) -> list[object]:
    flattened: list[object] = []
    for item in found:  # type: ignore[attr-defined]
        if isinstance(item, int):
            flattened.append(f"w{item}")
        else:
            assert item.reached is not None
            flattened += list(zip(item.rows.column("v").to_pylist(), item.reached.tolist(), strict=True))
    return flattened
