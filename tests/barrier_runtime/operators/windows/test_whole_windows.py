"""Functions of whole windows and the top rows of windows, against a model that sorts all rows: over restarts at other
parallelisms, for any batch borders, and with windows larger than memory.
"""

import datetime
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, Kind, Slots, World
from window_operators import applying, topping

from barrier_runtime import CollectSink, Dataflow, Every, Global, Session, Sliding, Tumbling, count
from barrier_runtime.data.elements import WATERMARK_MAX
from barrier_runtime.operators.windows import operator as operator_module
from barrier_runtime.operators.windows.assigners import WindowAssigner
from barrier_runtime.operators.windows.operator import LATE, WindowOperator
from barrier_runtime.operators.windows.whole import window_rows
from barrier_runtime.operators.windows.whole.apply import TimeWindow
from barrier_runtime.operators.windows.whole.top import top_schema
from barrier_runtime.state.errors import InvalidJob, UserCodeError
from barrier_runtime.state.values import table
from tests.drawn import examples

MS = datetime.timedelta(milliseconds=1)
SCHEMA = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64()), ("s", pa.string())])
OUT = pa.schema([("k", pa.string()), ("start", pa.int64()), ("seen", pa.string())])
WINDOWS = [Tumbling(20 * MS), Sliding(20 * MS, 10 * MS), Global()]
Rows = list[dict[str, Any]]


def as_text(key: Any, window: TimeWindow, table: pa.Table) -> dict[str, Any]:
    return {"k": key, "start": window.start_ms, "seen": str([(row["t"], row["v"]) for row in table.to_pylist()])}


def batches_as_text(key: Any, window: TimeWindow, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    yield pa.Table.from_pylist([as_text(key, window, pa.Table.from_pylist(rows, SCHEMA))], OUT)


def operator(window: WindowAssigner, form: str) -> WindowOperator:
    event_time = "t" if window.bounded else None
    if form == "top":
        return topping("w", ["k"], window, event_time, 3, "v", True, SCHEMA, late=window.bounded)
    function: Any = batches_as_text if form == "batches" else as_text
    return applying("w", ["k"], window, event_time, function, SCHEMA, OUT, window.bounded, form == "batches")


class Model:
    """All rows, row by row."""

    def __init__(self, window: WindowAssigner, form: str) -> None:
        self.window, self.form = window, form
        self.watermark = -1
        self.rows: dict[tuple[Any, int], Rows] = defaultdict(list)
        self.late: Rows = []

    def feed(self, rows: Rows) -> None:
        for row in rows:
            starts = self.window.assign(np.array([row["t"]]))[1].tolist()
            kept = [start for start in starts if self.window.last_ms(start) > self.watermark]
            for start in kept:
                self.rows[row["k"], start].append(row)
            if not kept:
                self.late.append(row)

    def results(self) -> Rows:
        results = []
        for (key, start), its in self.rows.items():
            window = TimeWindow(start, start + self.window.size_ms) if self.window.bounded else TimeWindow(None, None)
            if self.form == "top":
                ranked = sorted(its, key=lambda row: (row["v"] is None, -(row["v"] or 0)))[:3]
                beside = {"window_start": window.start, "window_end": window.end} if self.window.bounded else {}
                results += [{**row, **beside, "rank": rank} for rank, row in enumerate(ranked, 1)]
            else:
                ordered = sorted(its, key=lambda row: row["t"]) if self.window.bounded else its
                results.append(as_text(key, window, pa.Table.from_pylist(ordered, SCHEMA)))
        return results


def plain(rows: Rows) -> list[str]:
    return sorted(str(sorted((name, str(value)) for name, value in row.items())) for row in rows)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window_rows, "CHUNK_BYTES", 400)
    monkeypatch.setattr(window_rows, "TAIL_BYTES", 80)


ROW = st.fixed_dictionaries(
    {
        "k": st.sampled_from(["a", "b", "c", None]),
        "t": st.integers(0, 80),
        "v": st.one_of(st.none(), st.integers(-3, 3)),
        "s": st.text(max_size=3),
    }
)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(ROW, min_size=1, max_size=12)),
        st.tuples(st.just("watermark"), st.integers(0, 90)),
        st.tuples(st.just("restart"), st.integers(1, 3)),
    ),
    max_size=14,
)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["table", "batches", "top"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@given(actions=ACTIONS, tails=st.lists(st.sampled_from([0, 80, 1_024]), min_size=1, max_size=4))
@examples(25)
def test_windows_have_what_sorting_all_rows_gives_over_restarts_at_any_parallelism(
    window: WindowAssigner, form: str, actions: list[tuple[str, Any]], tails: list[int]
) -> None:
    """`tails`: maximum bytes of rows in the entry of a window, a value per incarnation."""
    slots, model = Slots(lambda: operator(window, form), 1, tags=[LATE]), Model(window, form)
    found: Rows = []
    late: Rows = []
    window_rows.TAIL_BYTES = tails[0]
    for number, (kind, what) in enumerate([*actions, ("watermark", WATERMARK_MAX)]):
        if kind == "rows":
            slots.feed(what, SCHEMA)
            model.feed(what)
        elif kind == "watermark":
            model.watermark = max(model.watermark, what)
            slots.watermarks(*[what] * slots.parallelism)
        else:
            found += slots.take()
            late += late_rows(slots)
            slots = slots.rescaled(number + 1, what)
            window_rows.TAIL_BYTES = tails[number % len(tails)]
    assert plain(found + slots.take()) == plain(model.results())
    assert plain(late + late_rows(slots)) == plain(model.late)
    for driven in slots.driven:
        assert not len(driven.operator._table.load_all())  # type: ignore[attr-defined]
        assert not list(driven.operator.entries._held_rows._chunks.scan())  # type: ignore[attr-defined]


def late_rows(slots: Slots) -> Rows:
    return [row for driven in slots.driven for batch in driven.side[LATE] for row in batch.rows.to_pylist()]


@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
@pytest.mark.parametrize("form", ["table", "batches", "top"])
def test_what_is_held_is_in_the_snapshot_and_what_came_after_it_is_not(form: str, backend: Kind) -> None:
    world, window = World(backend), WINDOWS[0]
    it, model = Driven(operator(window, form), world, tags=[LATE]), Model(window, form)
    rows = [{"k": "ab"[number % 2], "t": number * 7 % 20, "v": number, "s": "x"} for number in range(50)]
    for row in rows[:40]:
        it.feed([row], SCHEMA)
    model.feed(rows[:40])
    snapshot = it.snapshot(1)
    it.feed(rows[40:], SCHEMA)
    it.operator.close()
    it = Driven(operator(window, form), world, (snapshot,), tags=[LATE])
    it.watermark(19)
    assert plain(it.rows) == plain(model.results())


def test_many_windows_are_given_in_slices_and_in_the_order_of_window_and_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_module, "SLICE_STEPS", 1)  # a fast machine would finish all windows in one slice
    it = Driven(operator(WINDOWS[0], "table"), tags=[LATE])
    rows = [{"k": f"{number:03}", "t": number % 40, "v": 1, "s": ""} for number in reversed(range(300))]
    it.feed(rows, SCHEMA)
    slices = 0
    while not it.operator.toward(WATERMARK_MAX, it._emit):
        slices += 1
    assert slices > 1
    assert [(row["start"], row["k"]) for row in it.rows] == sorted((row["t"] // 20 * 20, row["k"]) for row in rows)


@pytest.mark.slow
def test_window_larger_than_a_chunk_is_read_in_ordered_parts_not_held_together() -> None:
    sizes: list[int] = []

    def sizes_of(key: Any, window: TimeWindow, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        times = []
        for batch in batches:
            sizes.append(len(batch))
            times += batch.column("t").to_pylist()
        assert times == sorted(times)
        return {"k": key, "start": 0, "seen": str(len(times))}

    it = Driven(applying("w", ["k"], Tumbling(10_000 * MS), "t", sizes_of, SCHEMA, OUT, batches=True))
    for first in range(0, 9_000, 100):  # in disorder of up to 150
        times = [max(0, first + (number * 37) % 150 - 50) for number in range(100)]
        it.feed([{"k": "a", "t": time, "v": 1, "s": "x" * 10} for time in times], SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert it.rows == [{"k": "a", "start": 0, "seen": "9000"}]
    assert max(sizes) <= 600


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["memory", "rocksdb"])
def test_rows_that_wait_to_be_written_are_bounded_in_bytes_whatever_their_size(
    backend: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_MOST_BYTES", 20_000)
    monkeypatch.setattr(window_rows, "CHUNK_BYTES", 4_000)
    world, window = World(backend), Tumbling(1_000 * MS)
    it, model = Driven(operator(window, "batches"), world, tags=[LATE]), Model(window, "batches")
    most = 0
    for number in range(60):
        size = 2_000 if number % 3 else 3
        rows = [{"k": "ab"[at % 2], "t": number * 10 + at, "v": number, "s": "x" * size} for at in range(4)]
        it.feed(rows, SCHEMA)
        model.feed(rows)
        most = max(most, it.operator.entries._held_rows._chunks.memory_bytes())  # type: ignore[attr-defined]
        if number == 40:
            snapshot = it.snapshot(1)
            it.operator.close()
            it = Driven(operator(window, "batches"), world, (snapshot,), tags=[LATE])
    assert 10_000 < most <= 40_000  # of 320,000
    it.watermark(WATERMARK_MAX)
    assert plain(it.rows) == plain(model.results())


@pytest.mark.parametrize(
    ("result", "rows"),
    [
        (None, []),
        ([], []),
        (OUT.empty_table(), []),
        ({"k": "r", "start": 1, "seen": None}, [{"k": "r", "start": 1, "seen": None}]),
        ([{"k": "r", "start": 1, "seen": "x"}] * 2, [{"k": "r", "start": 1, "seen": "x"}] * 2),
        (
            [pa.RecordBatch.from_pydict({"seen": ["x"], "start": pa.array([1], pa.int32()), "k": ["r"]})],
            [{"k": "r", "start": 1, "seen": "x"}],
        ),
    ],
    ids=["None", "no rows", "empty table", "row", "rows", "other order and narrower type"],
)
def test_a_function_may_give_a_table_rows_or_nothing(result: Any, rows: Rows) -> None:
    it = Driven(applying("w", ["k"], WINDOWS[0], "t", lambda key, window, table: result, SCHEMA, OUT))
    it.feed([{"k": "a", "t": 1, "v": 1, "s": ""}], SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert it.rows == rows


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda key: pa.table({"x": [1]}), "return these columns, or correct schema="),
        (lambda key: 1 / 0, "ZeroDivisionError"),
        (lambda key: {"k": key, "start": "x", "seen": ""}, "a row has 'x'"),
    ],
)
def test_what_goes_wrong_in_a_function_is_told_with_its_key(function: Any, said: str) -> None:
    def of_window(key: Any, window: TimeWindow, table: pa.Table) -> Any:
        return function(key) if key == "the key" else {"k": key, "start": 1, "seen": ""}

    it = Driven(applying("w", ["k"], WINDOWS[0], "t", of_window, SCHEMA, OUT))
    it.feed([{"k": key, "t": 1, "v": 1, "s": ""} for key in ("a", "the key", "z")], SCHEMA)
    with pytest.raises(UserCodeError, match="the key") as raised:
        it.watermark(WATERMARK_MAX)
    assert said in str(raised.value)


@pytest.mark.parametrize("form", [len, str, pa.Table.to_pandas])
def test_what_is_no_result_of_a_window_is_told_with_what_would_be(form: Any) -> None:
    """Iterating a DataFrame gives column names, and iterating a string letters."""
    it = Driven(applying("w", ["k"], WINDOWS[0], "t", lambda k, w, t: form(t), SCHEMA, OUT))
    it.feed([{"k": "a", "t": 1, "v": 1, "s": ""}], SCHEMA)
    with pytest.raises(UserCodeError, match=r"returned (int|str|DataFrame): return a pyarrow\.Table"):
        it.watermark(WATERMARK_MAX)


def test_what_a_function_does_with_a_row_after_it_gave_it_changes_no_result() -> None:
    row: dict[str, Any] = {}

    def same(key: Any, window: TimeWindow, table: pa.Table) -> dict[str, Any]:
        row.update(as_text(key, window, table))
        return row

    it = Driven(applying("w", ["k"], WINDOWS[0], "t", same, SCHEMA, OUT))
    it.feed([{"k": key, "t": 1, "v": 1, "s": ""} for key in "abc"], SCHEMA)
    it.watermark(WATERMARK_MAX)
    assert [row["k"] for row in it.rows] == ["a", "b", "c"]


def read(flow: Dataflow, rows: Rows) -> Any:
    return flow.from_iterator(
        "rows",
        lambda part, of: rows[part::of],
        schema=SCHEMA,
        splits=2,
        event_time="t",
        max_out_of_orderness=100 * MS,
    ).key_by("k")


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_job_applies_functions_and_ranks(parallelism: int) -> None:
    rows = [{"k": "abc"[number % 3], "t": number * 7 % 90, "v": number, "s": "x"} for number in range(60)]
    flow, texts, ranks = Dataflow("whole"), CollectSink(), CollectSink()
    keyed = read(flow, rows)
    keyed.window("texts", WINDOWS[0], event_time="t").apply(as_text, schema=OUT).sink("out", texts)
    keyed.window("ranks", WINDOWS[0], event_time="t").top(2, by="v", largest=False).sink("top", ranks)
    flow.run_local(parallelism=parallelism)
    model = Model(WINDOWS[0], "table")
    model.feed(rows)
    assert plain(texts.rows()) == plain(model.results())
    for row in ranks.rows():
        its = [each for each in rows if each["k"] == row["k"] and each["t"] // 20 == row["t"] // 20]
        assert row["v"] == sorted(each["v"] for each in its)[row["rank"] - 1]
    assert top_schema(SCHEMA, True).names == list(ranks.rows()[0])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()])
@pytest.mark.parametrize("largest", [True, False])
def test_nan_is_the_greatest_number_of_a_ranking_however_its_rows_are_cut(kind: pa.DataType, largest: bool) -> None:
    """As in Spark; among equal rows the older is first, 0.0 equals -0.0, and null is last."""
    nan, inf = float("nan"), float("inf")
    values = [1.0, nan, None, -0.0, inf, 0.0, -nan, -inf, None, nan]
    rank = {True: [1, 6, 9, 4, 0, 3, 5, 7, 2, 8], False: [7, 3, 5, 0, 4, 1, 6, 9, 2, 8]}[largest]
    schema = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", kind), ("n", pa.int64())])
    for cut in (1, 3, 10):
        for n in (1, 2, 4, 9, 12):
            top = topping("w", ["k"], WINDOWS[0], "t", n, "v", largest, schema)
            driven, numbers = Driven(top), np.arange(10)
            for first in range(0, 10, cut):
                some = numbers[first : first + cut]
                column = pa.array([values[i] for i in some], kind)
                arrays = [pa.array(["a"] * len(some)), pa.array(some * 0), column, pa.array(some)]
                driven.feed(pa.RecordBatch.from_arrays(arrays, schema=schema))
            driven.watermark(WATERMARK_MAX)
            assert [row["n"] for row in driven.take()] == rank[:n]


def test_what_whole_windows_cannot_be_is_refused_with_the_remedy() -> None:
    keyed = read(Dataflow("refused"), [])
    window = keyed.window("w", WINDOWS[0], event_time="t")
    with pytest.raises(InvalidJob, match="not for sessions"):
        keyed.window("w", Session(5 * MS), event_time="t").apply(as_text, schema=OUT)
    with pytest.raises(InvalidJob, match="leave allowed_lateness= out"):
        keyed.window("w", WINDOWS[0], event_time="t", allowed_lateness=MS).top(1, by="v")
    with pytest.raises(InvalidJob, match="leave early= out"):
        keyed.window("w", WINDOWS[0], event_time="t", early=Every(rows=1)).apply(as_text, schema=OUT)
    with pytest.raises(InvalidJob, match="leave late= out"):
        keyed.window("w", Global()).apply(as_text, schema=OUT, late=True)
    with pytest.raises(InvalidJob, match="function=<str>: give a function"):
        window.apply("text", schema=OUT)
    two: Any = lambda key, window: None  # noqa: E731
    with pytest.raises(InvalidJob, match=r"takes \(key, window\): let it take \(key, window, table\)"):
        window.apply(two, schema=OUT)
    with pytest.raises(InvalidJob, match=r"let it take \(key, window, batches\)"):
        window.apply(two, schema=OUT, batches=True)
    with pytest.raises(InvalidJob, match=r"let it take \(key, window, values\)"):
        window.apply(two, schema=OUT, n=count())
    with pytest.raises(InvalidJob, match=r"takes \(key, window, table, more\): let it take \(key, window, table\)"):
        keyed._stream.window_all("w", WINDOWS[0], event_time="t").apply(
            lambda key, window, table, more: None, schema=OUT
        )
    fitting: list[Any] = [max, lambda *given: None, lambda key, window, table, more=1: None]
    for number, fits in enumerate(fitting):
        keyed.window(f"fits-{number}", WINDOWS[0], event_time="t").apply(fits, schema=OUT)
    with pytest.raises(InvalidJob, match="at least 1"):
        window.top(0, by="v")
    with pytest.raises(InvalidJob, match="there is no column 'x'"):
        window.top(1, by="x")
    several: Any = ["v", "k"]
    with pytest.raises(InvalidJob, match=r"top\(by=\['v', 'k'\]\): pass the name of one column, as in by='v'; to rank"):
        window.top(1, by=several)
    for kind in (pa.decimal32(5, 2), pa.list_(pa.int8()), pa.struct([("a", pa.int8())])):
        given = read(Dataflow("unsorted"), [])._stream.map(
            lambda row: row, schema=pa.schema([("k", pa.int64()), ("v", kind)])
        )
        with pytest.raises(InvalidJob, match="which has no order"):
            given.window_all("w", Global()).top(1, by="v")
    unknown = read(Dataflow("unknown"), [])._stream.map(lambda row: row).key_by("k")
    windowed = unknown.window("w", WINDOWS[0], event_time="t")
    with pytest.raises(InvalidJob, match="know the columns"):
        windowed.top(1, by="v")
    ranked = window.top(1, by="v").key_by("k").window("again", Global())
    with pytest.raises(InvalidJob, match="exists already"):
        ranked.top(1, by="v")
