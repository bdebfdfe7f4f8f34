"""Windows kept for late rows, against a model in plain Python: results, number of updates, and removal."""

import datetime
from collections import defaultdict
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, Slots, World, entries_left, held_in_memory
from window_models import Rows, actions_of, driven_beside, plain
from window_operators import aggregating

from barrier_runtime import CollectSink, Dataflow, Session, Sliding, Tumbling, count, first, mean, sum_
from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.operators.windows.operator import LATE, WindowOperator
from barrier_runtime.state.errors import InvalidJob
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SIZE, SLIDE, LATENESS = 20, 10, 15
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("x", pa.float64())])


def operator(slide: int = SIZE) -> WindowOperator:
    window = Tumbling(SIZE * MS) if slide == SIZE else Sliding(SIZE * MS, slide * MS)
    aggregates = {"n": count(), "total": sum_("v"), "sum_x": sum_("x"), "mean_v": mean("v"), "first_v": first("v")}
    return aggregating("w", ["k"], window, "t", aggregates, SCHEMA, late=True, lateness_ms=LATENESS)


def driven(slide: int = SIZE) -> Driven:
    return Driven(operator(slide), name="w", tags=[LATE])


def row(k: str | None, t: int, v: int | None = 1, x: float = 0.5) -> dict[str, Any]:
    return {"k": k, "t": t, "v": v, "x": x}


def late_rows(it: Driven) -> Rows:
    rows = [each for batch in it.side[LATE] for each in batch.rows.to_pylist()]
    it.side[LATE].clear()
    return rows


class Model:
    def __init__(self, slide: int) -> None:
        self.slide = slide
        self.windows: dict[tuple[int, Any], Rows] = defaultdict(list)
        self.updates: dict[tuple[int, Any], int] = defaultdict(int)
        self.watermark = WATERMARK_MIN
        self.late: Rows = []
        self.out: Rows = []

    def feed(self, each: dict[str, Any], reached: int = WATERMARK_MIN) -> None:
        self.advance(reached)
        last = each["t"] // self.slide * self.slide
        starts = range(last - SIZE + self.slide, last + 1, self.slide)
        kept = [start for start in starts if start + SIZE - 1 + LATENESS > self.watermark]
        if not kept:
            self.late.append(each)
        for start in kept:
            self.windows[start, each["k"]].append(each)
            if start + SIZE - 1 <= self.watermark:
                self.fire(start, each["k"])

    def advance(self, watermark: int) -> None:
        if watermark <= self.watermark:
            return
        due = [key for key in self.windows if self.watermark < key[0] + SIZE - 1 <= watermark]
        self.watermark = watermark
        for start, k in sorted(due, key=lambda key: (key[0], key[1] is None, key[1] or "")):
            self.fire(start, k)
        for start, k in list(self.windows):
            if start + SIZE - 1 + LATENESS <= watermark:
                del self.windows[start, k]

    def fire(self, start: int, k: Any) -> None:
        rows = self.windows[start, k]
        values = [each["v"] for each in rows if each["v"] is not None]
        self.out.append(
            {
                "k": k,
                "window_start": start,
                "window_end": start + SIZE,
                "update": self.updates[start, k],
                "n": len(rows),
                "total": sum(values) if values else None,
                "sum_x": sum(each["x"] for each in rows),
                "mean_v": sum(values) / len(values) if values else None,
                "first_v": rows[0]["v"],
            }
        )
        self.updates[start, k] += 1


ROW = st.builds(
    row,
    st.sampled_from(["a", "b", None]),
    st.integers(-50, 60),
    st.one_of(st.none(), st.integers(-9, 9)),
    st.sampled_from([0.1, 0.7, 1e17, -1e17]),
)
ACTION = actions_of(ROW)


def test_state_is_kept_exactly_until_window_end_and_lateness_are_over() -> None:
    it = driven()
    it.feed([row("a", 5)], SCHEMA)
    it.watermark(SIZE - 1)
    assert [(each["update"], each["n"]) for each in it.take()] == [(0, 1)]
    it.watermark(SIZE - 1 + LATENESS - 1)
    it.feed([row("a", 6)], SCHEMA)
    assert [(each["update"], each["n"]) for each in it.take()] == [(1, 2)]
    it.watermark(SIZE - 1 + LATENESS)
    assert it.operator._table.entries == 0  # type: ignore[attr-defined]
    it.feed([row("a", 7)], SCHEMA)
    assert [each["t"] for each in late_rows(it)] == [7]
    assert it.take() == []


@pytest.mark.parametrize("held", [None, 3])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_late_row_refines_a_fired_window_after_a_restore_at_another_parallelism(
    before: int, after: int, held: int | None
) -> None:
    """Each of 20 keys has a kept window that has fired: the late row counts with the rows before the restore, as the
    next update, and the remaining lateness is unchanged.
    """
    keys = [f"k{n}" for n in range(20)]
    with held_in_memory(held):
        slots = Slots(operator, before, tags=[LATE])
        slots.feed([row(k, 5, n) for n, k in enumerate(keys)], SCHEMA)
        slots.watermarks(*[SIZE] * before)
        assert sorted((each["k"], each["update"]) for each in slots.take()) == sorted((k, 0) for k in keys)
        slots = slots.rescaled(1, after)
        assert slots.take() == []
        slots.feed([row(k, 6, 100) for k in keys], SCHEMA)
        refined = sorted((each["k"], each["update"], each["n"], each["total"]) for each in slots.take())
        assert refined == sorted((k, 1, 2, n + 100) for n, k in enumerate(keys))
        slots = slots.rescaled(2, before)
        slots.watermarks(*[SIZE - 1 + LATENESS - 1] * before)
        slots.feed([row("k0", 19, 1000)], SCHEMA)
        assert [(each["update"], each["n"], each["total"]) for each in slots.take()] == [(2, 3, 1100)]
        slots.watermarks(*[SIZE - 1 + LATENESS] * before)
        slots.feed([row("k1", 19)], SCHEMA)
        assert slots.take() == []
        assert [each["k"] for it in slots.driven for each in late_rows(it)] == ["k1"]
        for it in slots.driven:
            it.snapshot(3)
            assert entries_left(it.operator) == 0


@pytest.mark.parametrize("session", [False, True], ids=["window", "session"])
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_snapshot_has_no_row_and_no_file_of_windows_whose_lateness_is_over(kind: Kind, session: bool) -> None:
    """The session's gap equals the window's size, and all rows are at the start."""
    made = aggregating("w", ["k"], Session(SIZE * MS), "t", {"n": count()}, lateness_ms=LATENESS)
    it = Driven(made if session else operator(), World(kind), name="w", tags=[] if session else [LATE])
    it.feed([row(f"k{n}", 0) for n in range(1_000)], SCHEMA)
    empty = {"records.kv", "CURRENT"}  # the store's file without rows, and RocksDB's list of files

    def with_rows(checkpoint: int) -> list[str]:
        keyed = it.snapshot(checkpoint).keyed
        it.operator.on_complete(checkpoint)
        assert keyed is not None
        return [file.name for file in keyed.files if not (file.name in empty or file.name.startswith("MANIFEST"))]

    assert with_rows(1)
    it.watermark(SIZE - 1 + session)
    assert len(it.take()) == 1_000
    it.watermark(SIZE - 2 + session + LATENESS)
    assert with_rows(2)
    it.watermark(SIZE - 1 + session + LATENESS)
    assert with_rows(3) == []
    assert entries_left(it.operator) == 0


def test_row_of_a_removed_window_still_counts_in_later_kept_or_open_windows() -> None:
    """[-10, 10) is removed, [0, 20) has fired and is kept."""
    it = driven(SLIDE)
    it.watermark(9 + LATENESS)
    it.feed([row("a", 5), row("b", -5)], SCHEMA)
    assert [(each["window_start"], each["update"]) for each in plain(it.take())] == [(0, 0)]
    assert [(each["k"], each["t"]) for each in late_rows(it)] == [("b", -5)]


def test_three_late_rows_of_one_batch_are_three_updates() -> None:
    it = driven()
    it.feed([row("a", 1, 1)], SCHEMA)
    it.watermark(SIZE)
    it.take()
    it.feed([row("a", 2, 10), row("b", 3, 7), row("a", 4, 100)], SCHEMA)
    assert [(each["k"], each["update"], each["total"]) for each in it.take()] == [
        ("a", 1, 11),
        ("b", 0, 7),
        ("a", 2, 111),
    ]


def stream(rows: Rows, flow: Dataflow) -> Any:
    schema = {"k": str, "t": int, "v": int}
    return flow.from_iterator("rows", lambda part, of: rows, schema=schema, event_time="t", splits=1)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_updates_its_windows_and_has_the_rest_as_a_stream(parallelism: int) -> None:
    rows = [{"k": "a", "t": t, "v": v} for v, t in enumerate((1, 25, 2, 30, 3, 36, 4, 100))]
    flow, results, late = Dataflow("late"), CollectSink(), CollectSink()
    window = (
        stream(rows, flow).key_by("k").window("w", Tumbling(SIZE * MS), event_time="t", allowed_lateness=LATENESS * MS)
    )
    updates, too_late = window.aggregate(late=True, n=count(), total=sum_("v"))
    assert updates.schema.names == ["k", "window_start", "window_end", "update", "n", "total"]
    updates.sink("results", results)
    too_late.sink("late", late)
    flow.run_local(parallelism=parallelism)
    assert [(each["update"], each["n"], each["total"]) for each in results.rows()] == [
        (0, 1, 0),
        (1, 2, 2),
        (2, 3, 6),
        (0, 3, 9),
        (0, 1, 7),
    ]
    assert [each["t"] for each in late.rows()] == [4]


def test_what_lateness_cannot_be_is_refused_with_the_remedy() -> None:
    keyed = stream([], Dataflow("late")).key_by("k")
    with pytest.raises(InvalidJob, match="allowed_lateness of window 'w'"):
        keyed.window("w", Tumbling(5 * MS), event_time="t", allowed_lateness=-MS)
    with pytest.raises(InvalidJob, match="output column 'update' exists already"):
        keyed.window("w", Tumbling(5 * MS), event_time="t", allowed_lateness=MS).aggregate(update=count())


def test_another_lateness_is_another_definition_and_none_is_that_of_older_releases() -> None:
    def definition(lateness_ms: int) -> str:
        return aggregating("w", ["k"], Tumbling(SIZE * MS), "t", {}, lateness_ms=lateness_ms).definition

    assert definition(0) == "tumbling 0:00:00.020000"
    assert definition(5) == "tumbling 0:00:00.020000, allowed lateness 0:00:00.005000"


@pytest.mark.slow
@pytest.mark.parametrize("slide", [SIZE, SLIDE])
@examples(120)
@given(st.lists(ACTION, max_size=10), st.sampled_from([None, 3]))
def test_windows_fire_once_and_again_for_each_late_row_as_a_row_by_row_model(
    slide: int, actions: list[tuple[str, Any]], held: int | None
) -> None:
    """R1: for any batch borders, and over restarts at any parallelism; rows in time and late rows together are all
    rows. If most entries are not in memory, only the order of keys within a window differs.
    """
    with held_in_memory(held):
        run_beside_model(slide, actions, held is None)


def run_beside_model(slide: int, actions: list[tuple[str, Any]], ordered: bool) -> None:
    model = Model(slide)
    slots = Slots(lambda: operator(slide), 1, tags=[LATE])
    slots, got, late, alone = driven_beside(model, slots, actions, SCHEMA)
    if not (ordered and alone):
        got, model.out = (sorted(rows, key=repr) for rows in (got, model.out))
    if not alone:
        late, model.late = (sorted(rows, key=repr) for rows in (late, model.late))
    assert got == model.out
    assert late == model.late
    for it in slots.driven:
        it.snapshot(len(actions) + 2)
        assert entries_left(it.operator) == 0
