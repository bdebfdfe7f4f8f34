"""Late rows as a separate stream: rows in time and late rows together are all rows, for every kind of window."""

import datetime
from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World
from window_operators import aggregating, slicing

from barrier_runtime import CollectSink, Dataflow, Session, Sliding, Tumbling, count, stddev
from barrier_runtime.operators.windows.operator import LATE
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("other", pa.list_(pa.int8()))])


def rows_at(*times: int) -> list[dict[str, Any]]:
    return [{"k": "a", "t": t, "other": [n]} for n, t in enumerate(times)]


def driven(window: Any, world: World | None = None, restored: Any = (), kind: Any = aggregating) -> Driven:
    made = kind("w", ["k"], window, "t", {"n": count()}, SCHEMA, late=True)
    return Driven(made, world, restored, name="w", tags=[LATE])


def late_rows(it: Driven) -> list[dict[str, Any]]:
    return [row for batch in it.side[LATE] for row in batch.rows.to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("window", "kind"),
    [
        (Tumbling(10 * MS), aggregating),
        (Sliding(20 * MS, 5 * MS), aggregating),
        (Sliding(20 * MS, 5 * MS), slicing),
    ],
)
@examples(80)
@given(
    steps=st.lists(st.tuples(st.lists(st.integers(-60, 60), max_size=8), st.integers(-60, 60)), max_size=6),
    restart=st.booleans(),
)
def test_rows_in_time_and_late_rows_are_all_rows(
    window: Any, kind: Any, steps: list[tuple[list[int], int]], restart: bool
) -> None:
    world = World()
    it, fed, late, counted = driven(window, world, kind=kind), [], [], 0
    for checkpoint, (times, watermark) in enumerate(steps, 1):
        rows = rows_at(*times)
        fed += rows
        if rows:
            it.feed(rows, SCHEMA)
        it.watermark(watermark)
        late += late_rows(it)
        it.side[LATE].clear()
        counted += sum(row["n"] for row in it.take())
        if restart:
            snapshot = it.snapshot(checkpoint)
            it.operator.close()
            it = driven(window, world, (snapshot,), kind)
    reached, true = -1_000, []
    for times, watermark in steps:
        # the last window of a time starts at the multiple of `slide` at or before the time
        slide, size = (10, 10) if isinstance(window, Tumbling) else (5, 20)
        true += [t for t in times if t // slide * slide + size - 1 <= reached]
        reached = max(reached, watermark)
    assert [row["t"] for row in late] == true
    it.watermark(10_000)
    assert counted + sum(row["n"] for row in it.rows) >= len(fed) - len(late)
    assert "late_rows" not in world.metrics.counts


@pytest.mark.parametrize("kind", [aggregating, slicing])
def test_row_late_for_some_of_its_windows_counts_in_the_others_and_is_not_late(kind: Any) -> None:
    it = driven(Sliding(20 * MS, 5 * MS), kind=kind)
    it.watermark(19)  # [0, 20) and all earlier windows are over
    it.feed(rows_at(4, 5, 19), SCHEMA)
    assert [row["t"] for row in late_rows(it)] == [4]
    it.watermark(1_000)
    starts = [(row["window_start"].microsecond // 1_000, row["n"]) for row in it.rows]
    assert starts == [(5, 2), (10, 1), (15, 1)]


def test_late_rows_keep_all_columns_of_the_input() -> None:
    it = driven(Tumbling(10 * MS))
    it.watermark(100)
    it.feed(rows_at(5, 105), SCHEMA)
    assert it.side[LATE][0].rows.schema == SCHEMA
    assert late_rows(it) == [{"k": "a", "t": 5, "other": [0]}]


@pytest.mark.slow
@pytest.mark.parametrize("window", [Tumbling(10 * MS), Sliding(10 * MS, 5 * MS), Session(3 * MS)])
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_has_its_late_rows_as_a_stream(window: Any, parallelism: int) -> None:
    flow, results, late = Dataflow("late"), CollectSink(), CollectSink()
    rows = [{"k": k, "t": 1_000 * n - (2_500 if n % 5 == 4 else 0), "n": n} for n in range(40) for k in "ab"]
    schema = {"k": str, "t": int, "n": int}
    source = flow.from_iterator("rows", lambda part, of: rows, schema=schema, event_time="t", splits=1)
    keyed = source.key_by("k").window("w", window, event_time="t")
    counts, too_late = keyed.aggregate(late=True, rows=count())
    assert too_late.schema == source.schema
    counts.sink("results", results)
    too_late.filter(lambda row: row["n"] > 4).sink("late", late)
    flow.run_local(parallelism=parallelism)
    true = [row for row in rows if row["n"] % 5 == 4 and row["n"] > 4]
    assert Counter((row["k"], row["n"]) for row in late.rows()) == Counter((row["k"], row["n"]) for row in true)
    per_row = 2 if isinstance(window, Sliding) else 1
    assert sum(row["rows"] for row in results.rows()) == per_row * (len(rows) - len(true) - 2)


def test_a_result_that_is_named_late_is_refused_with_the_remedy() -> None:
    flow = Dataflow("late")
    source = flow.from_iterator("rows", lambda part, of: [], schema={"k": str, "t": int}, event_time="t")
    window = source.key_by("k").window("w", Session(3 * MS), event_time="t")
    with pytest.raises(InvalidJob, match=r"window 'w': late=.* use True for a stream of the late rows"):
        window.aggregate(late=stddev("t"))
    with pytest.raises(
        InvalidJob, match=r"is not a window: pass Tumbling.*, Sliding, Calendar, Session, Count or Global"
    ):
        source.key_by("k").window("w", 5, event_time="t")  # type: ignore[arg-type]
