"""`deduplicate` against a plain model: each id passes once within the horizon, over restarts and other parallelisms."""

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, World

from barrier_runtime import CollectSink, Dataflow, JsonlSink
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.data.plain_rows import PlainRows
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.operators.deduplication.operator import DeduplicateOperator
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import examples

SCHEMA = pa.schema([("id", pa.string()), ("part", pa.int32()), ("n", pa.int64())])
KEYS = ("id", "part")


@pytest.mark.parametrize("sizes", [(6,), (1, 1, 1, 1, 1, 1), (2, 3, 1)])
def test_an_id_is_forgotten_at_the_row_where_event_time_has_come_far_enough(sizes: tuple[int, ...]) -> None:
    """As with a watermark before each row; a snapshot between two batches contains the event time reached."""
    reached = np.array([WATERMARK_MIN, 1_000, 1_050, 1_099, 1_100, 1_250])
    rows = [{"id": "a", "part": 1, "n": n} for n in range(6)]
    world, restored, passed, at = World(), tuple[OperatorSnapshot, ...](), list[int](), 0
    for number, size in enumerate(sizes, 1):
        driven = Driven(operator(), world, restored)
        part = slice(at, at := at + size)
        driven.feed(rows[part], SCHEMA, reached=reached[part])
        passed += [row["n"] for row in driven.rows]
        restored = (driven.snapshot(number),)
    assert passed == [0, 4, 5], "ids that came before all event time count as seen at the first one"


def operator(within_ms: int | None = 100, keys: tuple[str, ...] = KEYS) -> DeduplicateOperator:
    return DeduplicateOperator("d", keys, within_ms)


class Model:
    """Reference model of `deduplicate` that takes single rows."""

    def __init__(self, within_ms: int | None) -> None:
        self.within_ms = within_ms
        self.seen: dict[Any, int | None] = {}  # id -> watermark at arrival; None: before the first watermark
        self.watermark: int | None = None
        self.first: int | None = None
        self.passed: list[int] = []
        self.rows = 0

    def feed(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self.rows += 1
            key = (row["id"], row["part"])
            if key not in self.seen or self._forgotten(self.seen[key]):
                self.seen[key] = self.watermark
                self.passed.append(row["n"])

    def advance(self, watermark: int) -> None:
        if self.watermark is None:
            self.first = self.watermark = watermark
        self.watermark = max(self.watermark, watermark)

    def _forgotten(self, seen: int | None) -> bool:
        if self.within_ms is None or self.watermark is None:
            return False
        assert self.first is not None
        return self.watermark - (self.first if seen is None else seen) >= self.within_ms


class Slots:
    """Subtasks of the operator that share a store."""

    def __init__(self, within_ms: int | None, parallelism: int, kind: Kind = "memory") -> None:
        self.within_ms = within_ms
        self.shared = World(kind)
        self._start(parallelism, ())

    def _start(self, parallelism: int, restored: tuple[OperatorSnapshot, ...]) -> None:
        self.parallelism = parallelism
        self.driven = []
        for subtask in range(parallelism):
            world = World(self.shared.kind, subtask, parallelism)
            world.store, world.metrics, world._numbers = self.shared.store, self.shared.metrics, self.shared._numbers
            self.driven.append(Driven(operator(self.within_ms), world, restored, name="d"))

    def feed(self, rows: list[dict[str, Any]]) -> list[int]:
        batch = Batch(pa.RecordBatch.from_pylist(rows, SCHEMA), 0)
        for subtask, part in hash_partition(batch, KEYS, self.parallelism, 128):
            self.driven[subtask].feed(part.rows)
        return [row["n"] for driven in self.driven for row in driven.take()]

    def watermark(self, ms: int) -> None:
        for driven in self.driven:
            driven.watermark(ms)

    def restart(self, checkpoint: int, parallelism: int) -> None:
        snapshots = tuple(driven.snapshot(checkpoint) for driven in self.driven)
        self.close()
        self._start(parallelism, snapshots)

    def close(self) -> None:
        for driven in self.driven:
            driven.operator.close()


ROW = st.tuples(st.one_of(st.none(), st.sampled_from("abcdefgh")), st.one_of(st.none(), st.integers(0, 1)))
ACTION = st.one_of(
    st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=25)),
    st.tuples(st.just("watermark"), st.one_of(st.integers(-4, 4), st.integers(-6, 12).map(lambda n: 50 * n))),
    st.tuples(st.just("restart"), st.integers(1, 4)),
)


@pytest.mark.slow
@examples(120)
@given(st.lists(ACTION, max_size=20), st.sampled_from([None, 1, 3, 100]), st.integers(1, 3))
def test_each_id_passes_once_within_its_horizon_over_restarts_and_rescalings(
    actions: list[tuple[str, Any]], within_ms: int | None, parallelism: int
) -> None:
    """R1, R3: the passed row numbers equal the model's."""
    slots, model = Slots(within_ms, parallelism), Model(within_ms)
    for checkpoint, (action, argument) in enumerate(actions, 1):
        if action == "rows":
            rows = [{"id": id, "part": part, "n": model.rows + at} for at, (id, part) in enumerate(argument)]
            before = len(model.passed)
            model.feed(rows)
            assert sorted(slots.feed(rows)) == model.passed[before:]
        elif action == "watermark":
            slots.watermark(argument)
            model.advance(argument)
        else:
            slots.restart(checkpoint, argument)
    counts = slots.shared.metrics.counts
    assert counts.get("duplicates", 0) == model.rows - len(model.passed)
    assert counts.get("lookups", 0) + counts.get("lookups_saved", 0) == model.rows
    slots.close()


@pytest.mark.slow
def test_many_ids_equal_the_model_through_sweeps_snapshots_and_rescaling() -> None:
    """More ids than a filter, a clean-up slice or a scan chunk holds; snapshots interrupt the clean-up."""
    random = np.random.default_rng(11)
    slots, model = Slots(100, 2, "rocksdb"), Model(100)
    for step in range(1, 41):
        for _ in range(3):
            numbers = random.integers(step * 300, step * 300 + 6_000, 700)
            rows = [{"id": f"id-{n}", "part": 0, "n": model.rows + at} for at, n in enumerate(numbers.tolist())]
            before = len(model.passed)
            model.feed(rows)
            assert sorted(slots.feed(rows)) == model.passed[before:]
        slots.watermark(17 * step)
        model.advance(17 * step)
        if step % 7 == 3:
            slots.restart(step, (2, 3, 1)[step % 3])
        elif step % 3 == 0:
            for driven in slots.driven:
                driven.snapshot(step)
                driven.operator.on_complete(step)
    slots.close()


def ids(first: int, last: int) -> pa.RecordBatch:
    numbers = range(first, last)
    columns = [[f"id-{n}" for n in numbers], [0] * len(numbers), list(numbers)]
    return pa.RecordBatch.from_arrays(
        [pa.array(values, kind) for values, kind in zip(columns, SCHEMA.types, strict=True)], schema=SCHEMA
    )


@pytest.mark.slow
def test_state_holds_little_more_than_two_horizons_of_ids() -> None:
    """A stream of new ids that never ends needs bounded state and filters."""
    driven = Driven(operator(within_ms=100), name="d")
    most = 0
    for step in range(100):
        driven.feed(ids(step * 500, step * 500 + 500))
        driven.watermark(step * 10)
        driven.batches.clear()
        if step % 10 == 9:
            driven.snapshot(step)
            most = max(most, sum(1 for _ in driven.operator._table.scan()))
    per_horizon = 10 * 500
    assert per_horizon <= most <= 2.5 * per_horizon
    assert driven.operator._filters.ids <= 1.5 * per_horizon


@pytest.mark.slow
def test_new_ids_are_hardly_ever_looked_up() -> None:
    driven = Driven(operator(), name="d")
    for start in range(0, 100_000, 2_000):
        driven.feed(ids(start, start + 2_000))
    driven.feed(ids(0, 1_000))
    counts = driven.world.metrics.counts
    assert counts["duplicates"] == 1_000
    assert counts["lookups"] < 1_000 + 0.01 * 100_000
    assert counts["lookups_saved"] == 101_000 - counts["lookups"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_filters_rebuilt_after_a_restore_find_old_ids_and_save_look_ups_of_new_ids(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("barrier_runtime.operators.deduplication.operator._FILLED_AT_ONCE", 12_000)
    world = World(kind)
    driven = Driven(operator(), world, name="d")
    driven.feed(ids(0, 30_000))
    snapshot = driven.snapshot(1)
    driven.operator.close()
    driven = Driven(operator(), world, (snapshot,), name="d")
    world.metrics.counts.clear()
    driven.feed(ids(20_000, 40_000))
    assert [row["n"] for row in driven.rows] == list(range(30_000, 40_000))
    assert world.metrics.counts["lookups"] < 10_000 + 0.01 * 10_000
    driven.operator.close()


@pytest.mark.slow
def test_filters_have_half_of_the_cache_and_what_they_cannot_tell_is_looked_up() -> None:
    driven = Driven(operator(), World("rocksdb", cache_bytes=1 << 20), name="d")
    for start in range(0, 60_000, 5_000):
        driven.feed(ids(start, start + 5_000))
        driven.operator.on_watermark(start // 5_000, driven._emit)
    assert driven.operator._filters.bytes <= 1 << 19
    driven.feed(ids(55_000, 61_000))
    assert [row["n"] for row in driven.rows] == list(range(61_000))
    driven.operator.close()


# ---------------------------------------------------------------- single rules


def row(id: str | None, n: int = 0, part: int | None = 0) -> dict[str, Any]:
    return {"id": id, "part": part, "n": n}


def passed(driven: Driven) -> list[int]:
    return [row["n"] for row in driven.take()]


def test_the_first_of_several_rows_with_one_id_in_a_batch_passes() -> None:
    driven = Driven(operator())
    driven.feed([row("a", 1), row("b", 2), row("a", 3), row("a", 4), row("b", 5)], SCHEMA)
    assert passed(driven) == [1, 2]


def test_an_id_is_forgotten_exactly_when_the_watermark_has_advanced_by_the_horizon() -> None:
    driven = Driven(operator(100))
    driven.watermark(1_000)
    driven.feed([row("a", 1)], SCHEMA)
    driven.watermark(1_099)
    driven.feed([row("a", 2)], SCHEMA)
    driven.watermark(1_100)
    driven.feed([row("a", 3)], SCHEMA)
    assert passed(driven) == [1, 3]


def test_ids_are_remembered_for_the_whole_horizon_whenever_they_were_seen() -> None:
    """Also ids seen just before a filter ends: a filter is kept until all ids in the filter are forgotten."""
    within, last = 43, 47
    driven = Driven(operator(within))
    for now in range(last + within + 1):
        driven.watermark(1_000 + now)
        seen = (now, now - within + 1, now - within)
        driven.feed([row(f"{id}", now - id) for id in seen if 0 <= id <= last], SCHEMA)
    assert sorted(passed(driven)) == sorted([0, within] * (last + 1))


def test_a_duplicate_does_not_lengthen_the_memory_of_its_id() -> None:
    driven = Driven(operator(100))
    driven.watermark(0)
    driven.feed([row("a", 1)], SCHEMA)
    driven.watermark(60)
    driven.feed([row("a", 2)], SCHEMA)
    driven.watermark(120)
    driven.feed([row("a", 3)], SCHEMA)
    assert passed(driven) == [1, 3]


@pytest.mark.parametrize("restart", [False, True])
def test_ids_seen_before_the_first_watermark_are_remembered_from_there_on(restart: bool) -> None:
    """Else the first watermark, decades after the beginning of time, would make all of them forgotten."""
    world = World()
    driven = Driven(operator(100), world, name="d")
    driven.feed([row("a", 1)], SCHEMA)
    assert passed(driven) == [1]
    driven.watermark(1_700_000_000_000)
    if restart:
        driven = Driven(operator(100), world, (driven.snapshot(1),), name="d")
    driven.watermark(1_700_000_000_099)
    driven.feed([row("a", 2)], SCHEMA)
    driven.watermark(1_700_000_000_100)
    driven.feed([row("a", 3)], SCHEMA)
    assert passed(driven) == [3]


def test_without_watermarks_or_without_a_horizon_nothing_is_forgotten() -> None:
    for within, watermarks in ((100, []), (None, [0, 10**12])):
        driven = Driven(operator(within))
        driven.feed([row("a", 1)], SCHEMA)
        for ms in watermarks:
            driven.watermark(ms)
        driven.feed([row("a", 2)], SCHEMA)
        assert passed(driven) == [1]


def test_the_end_of_the_input_forgets_nothing_because_the_job_may_go_on_with_more() -> None:
    world = World()
    driven = Driven(operator(100), world, name="d")
    driven.watermark(50)
    driven.feed([row("a", 1)], SCHEMA)
    driven.watermark(WATERMARK_MAX)
    snapshot = driven.snapshot(1)
    driven = Driven(operator(100), world, (snapshot,), name="d")
    driven.feed([row("a", 2), row("b", 3)], SCHEMA)
    assert passed(driven) == [3]


def test_a_null_id_is_a_value_like_others() -> None:
    driven = Driven(operator())
    driven.feed([row(None, 1), row(None, 2), row(None, 3, part=None), row("a", 4, part=None), row(None, 5)], SCHEMA)
    assert passed(driven) == [1, 3, 4]


def test_what_comes_after_the_barrier_is_not_in_the_snapshot() -> None:
    """U12: an id of a row that will be read again must not be known."""
    world = World()
    driven = Driven(operator(), world, name="d")
    driven.feed([row("a", 1)], SCHEMA)
    capture = driven.operator.snapshot(1)
    driven.feed([row("b", 2)], SCHEMA)
    snapshot = world.finish("d", 1, capture)
    driven = Driven(operator(), world, (snapshot,), name="d")
    driven.feed([row("a", 3), row("b", 4)], SCHEMA)
    assert passed(driven) == [4]


def test_the_horizon_may_be_changed_between_two_runs() -> None:
    world = World()
    driven = Driven(operator(None), world, name="d")
    driven.watermark(1_000)
    driven.feed([row("a", 1)], SCHEMA)
    snapshot = driven.snapshot(1)
    driven = Driven(operator(100), world, (snapshot,), name="d")
    driven.feed([row("a", 2)], SCHEMA)
    driven.watermark(1_100)
    driven.feed([row("a", 3)], SCHEMA)
    assert passed(driven) == [3]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int64(), [-(2**63), 0, 2**63 - 1]),
        (pa.uint8(), [0, 255]),
        (pa.bool_(), [True, False]),
        (pa.float64(), [0.0, -1.5, float("inf")]),
        (pa.binary(), [b"", b"\0", b"x" * 300]),
        (pa.date32(), [datetime.date(1960, 1, 1), datetime.date(2024, 2, 29)]),
        (pa.timestamp("ms", "UTC"), [datetime.datetime(2024, 1, 1, tzinfo=datetime.timezone.utc)]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b"]),
    ],
    ids=str,
)
def test_ids_of_every_key_type_are_found_again_also_after_a_restore(kind: pa.DataType, values: list[Any]) -> None:
    world = World()
    rows = pa.record_batch({"id": pa.array([*values, None, *values], kind)})
    driven = Driven(operator(keys=("id",)), world, name="d")
    driven.feed(rows)
    assert sum(batch.rows.num_rows for batch in driven.batches) == len(values) + 1
    snapshot = driven.snapshot(1)
    driven = Driven(operator(keys=("id",)), world, (snapshot,), name="d")
    driven.feed(PlainRows()(rows))  # older releases handed dictionaries to operators and stored that type
    assert driven.batches == []


# ---------------------------------------------------------------- in a flow

HOUR = datetime.timedelta(hours=1)


@pytest.mark.slow
@pytest.mark.usefixtures("both_ways")
def test_a_flow_drops_the_rows_it_has_seen() -> None:
    flow, sink = Dataflow("once"), CollectSink()
    twice = flow.rate("numbers", 1e6, 4_000, keys=1_000)
    twice.deduplicate("once", "key", within=None).select(["key"]).sink("out", sink)
    flow.run_local(parallelism=2)
    assert sorted(row["key"] for row in sink.rows()) == list(range(1_000))


def test_a_horizon_of_no_time_and_unknown_columns_are_refused() -> None:
    numbers = Dataflow("once").rate("numbers", 10)
    with pytest.raises(InvalidJob, match="within is 0"):
        numbers.deduplicate("once", "value", within=datetime.timedelta())
    with pytest.raises(InvalidJob, match="'ident'"):
        numbers.deduplicate("once", "ident", within=HOUR)
    with pytest.raises(InvalidJob, match="name at least one"):
        numbers.deduplicate("once", within=HOUR)
    with pytest.raises(InvalidJob, match=r"within=1:00:00 is measured by the watermark.*'numbers'.*pass event_time="):
        numbers.deduplicate("once", "value", within=HOUR)


def test_deduplicate_is_explained_and_keeps_the_columns(tmp_path: Any) -> None:
    flow = Dataflow("once")
    numbers = flow.rate("numbers", 10).with_watermarks("intended_at")
    stream = numbers.deduplicate("once", "value", within=HOUR)
    assert stream.schema == numbers.schema
    stream.sink("out", JsonlSink(str(tmp_path)))
    chains = compile_plan(flow.plan, 2).chains
    assert [op.describe for chain in chains for op in chain.operators if op.kind == "deduplicate"] == [
        "value within 1:00:00; rows are combined before the exchange if that saves rows"
    ]


def test_the_model_knows_that_time_begins_with_the_first_watermark() -> None:
    model = Model(10)
    model.feed([row("a", 1)])
    model.advance(WATERMARK_MIN + 1)
    model.feed([row("a", 2)])
    assert model.passed == [1]
