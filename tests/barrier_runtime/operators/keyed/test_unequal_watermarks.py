"""Rescaling of keyed operators from a checkpoint whose subtasks have different watermarks, as in unaligned and at-
least-once checkpoints.
"""

import dataclasses
import datetime
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Slots, World
from window_operators import aggregating

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.operators.aggregation.functions import count
from barrier_runtime.operators.deduplication.operator import DeduplicateOperator
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.operators.keyed.progress import VALUE
from barrier_runtime.operators.windows.assigners import Tumbling
from barrier_runtime.operators.windows.operator import WindowOperator
from tests.drawn import examples

SIZE = 100
KEYS = list(range(40))


def window() -> WindowOperator:
    return aggregating("w", ["k"], Tumbling(datetime.timedelta(milliseconds=SIZE)), "t", {"n": count()})


def once() -> DeduplicateOperator:
    return DeduplicateOperator("d", ["k"], 1_000)


def test_a_window_that_fired_before_rescaling_does_not_fire_again_for_a_late_row() -> None:
    """R3: subtask 1 was ahead when the checkpoint overtook the rows to subtask 0."""
    slots = Slots(window, 2)
    slots.feed([{"k": k, "t": 50} for k in KEYS])
    slots.watermarks(20, 300)
    fired = {row["k"] for row in slots.take()}
    assert 0 < len(fired) < len(KEYS)
    for checkpoint, parallelism in ((1, 1), (2, 3), (3, 1)):  # floors are part of the next snapshots, too
        slots = slots.rescaled(checkpoint, parallelism)
    slots.feed([{"k": k, "t": 60} for k in KEYS])
    slots.watermarks(150)
    slots.feed([{"k": k, "t": 250} for k in KEYS])
    assert slots.late() == 2 * len(fired)
    slots.watermarks(1_000)
    rows = slots.take()
    assert {(row["k"], row["n"]) for row in rows if row["window_start"].microsecond == 0} == {
        (k, 2) for k in KEYS if k not in fired
    }
    slots.feed([{"k": k, "t": 1_000} for k in KEYS])
    slots.watermarks(2_000)
    assert len(slots.take()) == len(KEYS)


@pytest.mark.slow
@examples(60)
@given(
    parallelisms=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    rounds=st.lists(
        st.tuples(
            st.lists(st.tuples(st.sampled_from(KEYS[:12]), st.integers(0, 900)), max_size=12),
            st.lists(st.integers(0, 900), min_size=4, max_size=4),
        ),
        min_size=4,
        max_size=4,
    ),
)
def test_no_window_fires_twice_over_any_changes_of_parallelism_with_any_watermarks(
    parallelisms: list[int], rounds: list[tuple[list[tuple[int, int]], list[int]]]
) -> None:
    """R3: every row is in a window, or late by the watermark that the row's key had seen."""
    slots = Slots(window, parallelisms[0])
    reached = dict.fromkeys(KEYS, WATERMARK_MIN)  # by key
    fed, late, results = 0, 0, []
    for checkpoint, (parallelism, (rows, watermarks)) in enumerate(zip(parallelisms, rounds, strict=False), 1):
        if checkpoint > 1:
            slots = slots.rescaled(checkpoint, parallelism)
        if rows:
            slots.feed([{"k": k, "t": t} for k, t in rows])
        fed += len(rows)
        late += sum(t // SIZE * SIZE + SIZE - 1 <= reached[k] for k, t in rows)
        slots.watermarks(*watermarks[:parallelism])
        of_keys = hash_partition(Batch(pa.RecordBatch.from_pydict({"k": KEYS}), 0), ("k",), parallelism, 128)
        for subtask, part in of_keys:
            for k in part.rows.column("k").to_pylist():
                reached[k] = max(reached[k], watermarks[subtask])
        results += slots.take()
    slots.watermarks(*[10_000] * slots.parallelism)
    results += slots.take()
    assert len({(row["k"], row["window_start"]) for row in results}) == len(results)
    assert sum(row["n"] for row in results) == fed - late


def test_id_seen_before_any_watermark_is_kept_from_the_highest_first_watermark() -> None:
    """R3: after rescaling, time begins with the latest of the subtasks' first watermarks."""
    slots = Slots(once, 2)
    slots.feed([{"k": k} for k in KEYS])
    slots.watermarks(100, 700)
    assert len(slots.take()) == len(KEYS)
    slots = slots.rescaled(1, 1)
    slots.watermarks(1_699)
    slots.feed([{"k": k} for k in KEYS])
    assert slots.take() == []
    slots.watermarks(1_700)
    slots.feed([{"k": k} for k in KEYS])
    assert len(slots.take()) == len(KEYS)


def test_id_seen_in_event_time_is_forgotten_on_time_after_a_rescale() -> None:
    """R3: another subtask's later first watermark concerns only ids seen before all watermarks."""
    slots = Slots(once, 2)
    slots.watermarks(100, 700)
    slots.feed([{"k": k} for k in KEYS])
    assert len(slots.take()) == len(KEYS)
    behind = {
        k
        for subtask, part in hash_partition(Batch(pa.RecordBatch.from_pydict({"k": KEYS}), 0), ("k",), 2, 128)
        for k in part.rows.column("k").to_pylist()
        if subtask == 0
    }
    slots = slots.rescaled(1, 1)
    slots.watermarks(1_099)
    slots.feed([{"k": k} for k in KEYS])
    assert slots.take() == []
    slots.watermarks(1_100)
    slots.feed([{"k": k} for k in KEYS])
    assert {row["k"] for row in slots.take()} == behind


def test_id_that_comes_while_its_subtask_is_behind_is_kept_for_the_whole_horizon() -> None:
    """R3: the event time of the id's key group was ahead of the rescaled subtask's."""
    slots = Slots(once, 2)
    slots.feed([{"k": -1}])
    slots.watermarks(100, 100)
    slots.watermarks(100, 700)
    ahead = {
        k
        for subtask, part in hash_partition(Batch(pa.RecordBatch.from_pydict({"k": KEYS}), 0), ("k",), 2, 128)
        for k in part.rows.column("k").to_pylist()
        if subtask == 1
    }
    slots = slots.rescaled(1, 1)
    slots.take()
    slots.feed([{"k": k} for k in KEYS])
    assert len(slots.take()) == len(KEYS)
    slots.watermarks(1_100)
    slots.feed([{"k": k} for k in KEYS])
    assert {row["k"] for row in slots.take()} == set(KEYS) - ahead


def test_progress_written_by_older_releases_is_read() -> None:
    driven = Driven(window(), name="op")
    driven.feed([{"k": 1, "t": 50}])
    driven.watermark(20)
    snapshot = driven.snapshot(1)
    old: dict[str, Any] = msgspec.msgpack.decode(snapshot.values[VALUE])
    del old["floors"]
    snapshot = msgspec.structs.replace(snapshot, values={VALUE: msgspec.msgpack.encode(old)})
    driven.operator.close()
    again = Driven(window(), driven.world, (snapshot,), name="op")
    again.watermark(99)
    assert [row["n"] for row in again.rows] == [1]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_equal_watermarks_leave_no_floors(parallelism: int) -> None:
    slots = Slots(window, 2)
    slots.feed([{"k": k, "t": 50} for k in KEYS])
    slots.watermarks(20, 20)
    slots = slots.rescaled(1, parallelism)
    assert all(driven.operator._floors is None for driven in slots.driven)  # type: ignore[attr-defined]


def test_a_run_that_reads_on_amid_the_last_timers_fires_none_early() -> None:
    """R7: a checkpoint between two slices of the timers that fire at the end of a drained job."""

    class Alarm:
        def process(self, key: int, row: dict[str, Any], ctx: Any) -> None:
            ctx.timers.register(row["at"])

        def on_timer(self, key: int, at_ms: int, ctx: Any) -> dict[str, Any]:
            return {"k": key, "at": at_ms}

    schema = pa.schema([("k", pa.int64()), ("at", pa.int64())])

    def alarm() -> ProcessOperator:
        return ProcessOperator("op", ["k"], Alarm, output=schema, schema=schema)

    world = World()
    driven = Driven(alarm(), world)
    driven.feed([{"k": 1, "at": at} for at in range(100, 1_600)], schema)
    driven.operator.toward(WATERMARK_MAX, driven._emit)
    fired = [row["at"] for row in driven.take()]
    assert 0 < len(fired) < 1_500
    snapshot = driven.snapshot(1)
    driven.operator.close()
    context = dataclasses.replace(world.context("op", (snapshot,)), reopened=True)
    world.context = lambda name, restored=(): context  # type: ignore[method-assign]
    again = Driven(alarm(), world, (snapshot,))
    assert again.operator.going_to_ms is None
    again.feed([{"k": 2, "at": 5_000}], schema)
    assert again.take() == []
    again.watermark(5_000)
    assert [row["at"] for row in again.take()] == [*range(100 + len(fired), 1_600), 5_000]
