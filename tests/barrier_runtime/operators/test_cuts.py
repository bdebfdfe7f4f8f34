"""Results do not depend on batch borders: with timers, late rows and windows, with steps before and after them, and
for each public step alone and after every other (`cut_steps`).
"""

import datetime
import random
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from cut_bench import STEPS, Bench, CutSource, Step
from cut_functions import MS, SCHEMA, Every3
from cut_steps import pairs
from hypothesis import given
from hypothesis import strategies as st
from inline_job import run_inline
from operator_harness import Driven, World

from barrier_runtime import (
    TTL,
    CollectSink,
    Dataflow,
    Every,
    MapState,
    ProcessContext,
    Session,
    Sliding,
    Tumbling,
    ValueState,
    count,
    max_,
    mean,
)
from barrier_runtime.api.dataflow import Stream
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN, Batch
from barrier_runtime.data.event_time import EventClock
from barrier_runtime.data.keys import hash_partition
from barrier_runtime.data.rows import Row
from barrier_runtime.operators.aggregation.partials import Combiner
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.runtime.network.frames import FrameReader, FrameWriter
from tests.drawn import examples


class Sessions:
    """Groups rows of a key up to 30 ms apart into sessions; each row moves the timer that closes the session."""

    rows = ValueState(int, default=0)
    last = ValueState(int, default=-1)
    timer = ValueState(int, default=-1)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        assert ctx.timestamp is not None
        self.rows.value += 1
        self.last.value = max(self.last.value, ctx.timestamp)
        ctx.timers.delete(self.timer.value)
        self.timer.value = self.last.value + 30
        ctx.timers.register(self.timer.value)
        if row["n"] % 5 == 0:
            ctx.timers.register(ctx.timestamp - 50)  # in the past, perhaps
        yield {"k": key, "t": ctx.timestamp, "n": self.rows.value, "watermark": ctx.watermark}

    def on_timer(self, key: str, timestamp_ms: int, ctx: ProcessContext) -> Any:
        yield {"k": key, "t": timestamp_ms, "n": -self.rows.value, "watermark": ctx.watermark}
        if timestamp_ms == self.timer.value:
            self.rows.clear()
            self.last.clear()
            ctx.timers.register(timestamp_ms + 7)


class Recent:
    """Counts the rows of a key with a TTL of 30 ms; late rows are evaluated at the watermark."""

    rows = ValueState(int, default=0, ttl=TTL(30 * MS))
    numbers = MapState(int, int, ttl=TTL(30 * MS, refresh="on_read"))

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.rows.value += 1
        self.numbers[row["n"] % 4] = row["n"]
        yield {"k": key, "t": sum(self.numbers.values()), "n": self.rows.value, "watermark": len(self.numbers)}


class Arrivals:
    """Reports the order of arrivals as seen by a second function with timers."""

    seen = ValueState(int, default=0)

    def process(self, key: str, row: Row, ctx: ProcessContext) -> Any:
        self.seen.value += 1
        ctx.timers.register(row["t"] + 10)
        yield {"k": str(key), "t": row["t"], "n": self.seen.value, "watermark": ctx.watermark}

    def on_timer(self, key: str, timestamp_ms: int, ctx: ProcessContext) -> Any:
        yield {"k": str(key), "t": timestamp_ms, "n": -self.seen.value, "watermark": ctx.watermark}


SEEN = {"k": str, "t": int, "n": int, "watermark": int}


def sessions(stream: Stream) -> Stream:
    return stream.key_by("k").process("sessions", Sessions, event_time="t", schema=SEEN)


def recent(stream: Stream) -> Stream:
    return stream.key_by("k").process("recent", Recent, event_time="t", schema=SEEN)


def windows(stream: Stream) -> Stream:
    return stream.key_by("k").window("w", Tumbling(20 * MS), event_time="t").aggregate(rows=count(), n=max_("n"))


def windows_of_sessions(stream: Stream) -> Stream:
    return windows(sessions(stream))


def session_windows(stream: Stream) -> Stream:
    """With late rows, as rows like the others."""
    window = stream.key_by("k").window("w", Session(20 * MS), event_time="t")
    results, late = window.aggregate(late=True, rows=count(), n=max_("n"), x=mean("n"))
    return results.union(
        late.map(
            lambda row: {**dict.fromkeys(results.schema.names), "k": row["k"], "n": -row["n"]},
            schema=results.schema,
        )
    )


def windows_that_wait(stream: Stream) -> Stream:
    window = stream.key_by("k").window("w", Sliding(20 * MS, 10 * MS), event_time="t", allowed_lateness=25 * MS)
    return window.aggregate(rows=count(), n=max_("n"), x=mean("n"))


def timers_of_windows_that_wait(stream: Stream) -> Stream:
    """Of early results by rows, and of results for late rows."""
    window = stream.key_by("k").window(
        "w", Sliding(20 * MS, 10 * MS), event_time="t", early=Every(rows=2), allowed_lateness=25 * MS
    )
    results = window.aggregate(rows=count(), n=max_("n"))
    return _timers_at_ends(results)


def timers_of_own_trigger_that_waits(stream: Stream) -> Stream:
    window = stream.key_by("k").window("w", Tumbling(20 * MS), event_time="t", early=Every3(), allowed_lateness=25 * MS)
    return _timers_at_ends(window.aggregate(rows=count(), n=max_("n")))


def sliding_windows(stream: Stream) -> Stream:
    """In slices; with late rows, as rows like the others."""
    window = stream.key_by("k").window("w", Sliding(20 * MS, 5 * MS), event_time="t")
    results, late = window.aggregate(late=True, rows=count(), n=max_("n"), x=mean("n"))
    return results.union(
        late.map(
            lambda row: {**dict.fromkeys(results.schema.names), "k": row["k"], "n": -row["n"]},
            schema=results.schema,
        )
    )


def timers_of_windows(stream: Stream) -> Stream:
    return _timers_at_ends(windows(stream))


def _timers_at_ends(results: Stream) -> Stream:
    counted = results.map(
        lambda row: {"k": row["k"], "t": int(row["window_end"].timestamp() * 1000), "n": row["n"]}, schema=SCHEMA
    )
    return counted.key_by("k").process("arrivals", Arrivals, schema=SEEN)


def timers_of_sessions(stream: Stream) -> Stream:
    return sessions(stream).key_by("n").process("arrivals", Arrivals, schema=SEEN)


def steps_before(stream: Stream) -> Stream:
    kept = stream.filter(pc.field("n") != 3)
    chosen = kept.select({"k": "k", "t": "t", "n": pc.field("n") + 1}).filter(lambda row: row["n"] != 8)
    twice = chosen.flat_map(lambda row: [row] * (row["n"] % 3), schema=SCHEMA).map(lambda row: row, schema=SCHEMA)
    joined = twice.broadcast_join("small", [{"k": "a", "x": 1}, {"k": "b", "x": 2}], on="k", how="inner")
    return sessions(joined.key_by("k").aggregate("running", so_far=count()))


def own_watermarks(stream: Stream) -> Stream:
    return sessions(stream.rebalance().with_watermarks("t", 3 * MS))


PARALLEL = [{"parallelism": 1}, {"parallelism": 2, "wire": False}, {"parallelism": 3, "wire": True}]
FLOWS = [
    sessions,
    recent,
    windows,
    session_windows,
    sliding_windows,
    windows_that_wait,
    windows_of_sessions,
    timers_of_windows,
    timers_of_windows_that_wait,
    timers_of_own_trigger_that_waits,
    timers_of_sessions,
    steps_before,
    own_watermarks,
]


def ran(rows: Sequence[Row], sizes: Sequence[int], step: Any, disorder_ms: int, **options: Any) -> list[Row]:
    flow, out = Dataflow("cuts"), CollectSink()
    source = flow.source("s", CutSource(rows, sizes), event_time="t", max_out_of_orderness=disorder_ms * MS)
    step(source).sink("out", out)
    flow.run_local(**{"parallelism": 1, **options})
    return sorted(out.rows(), key=lambda row: "rows" in row and row["rows"] is None)  # side outputs go their own way


@st.composite
def cut_rows(draw: st.DrawFn) -> tuple[list[Row], list[int]]:
    steps = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-40, 45)), min_size=1, max_size=40))
    at, rows = 1_000, []
    for n, (key, step) in enumerate(steps):
        at = max(0, at + step)
        rows.append({"k": key, "t": at, "n": n})
    sizes, left = [], len(rows)
    while left:
        sizes.append(draw(st.integers(1, left)))
        left -= sizes[-1]
    return rows, sizes


@pytest.mark.slow
@pytest.mark.parametrize("step", FLOWS)
@examples(12)
@given(cut=cut_rows(), disorder_ms=st.sampled_from([0, 5, 60]))
def test_rows_give_the_same_results_however_they_are_cut_into_batches(
    step: Any, cut: tuple[list[Row], list[int]], disorder_ms: int
) -> None:
    """R1: the same rows in the same order; batch borders do not decide whether rows are late or timers due."""
    rows, sizes = cut
    row_by_row = ran(rows, [1] * len(rows), step, disorder_ms)
    assert ran(rows, sizes, step, disorder_ms) == row_by_row
    assert ran(rows, [len(rows)], step, disorder_ms) == row_by_row


@pytest.mark.slow
def test_what_the_last_rows_make_due_fires_before_the_end_of_the_input() -> None:
    """The rows that bring event time there may be filtered out, or go to another subtask."""
    filtered = [{"k": "a", "t": t, "n": n} for n, t in enumerate((1_000, 1_000, 1_031, 1_031))]
    for sizes in ([1] * 4, [3, 1], [4]):
        assert [row["t"] for row in ran(filtered, sizes, steps_before, 0)] == [1_000, 1_000, 1_000, 1_030, 1_037]
    elsewhere = [{"k": "c", "t": 1_000, "n": 1}, {"k": "a", "t": 1_031, "n": 1}]
    for options in PARALLEL:
        assert sorted(row["t"] for row in ran(elsewhere, [1, 1], sessions, 0, **options)) == [
            1_000,
            1_030,
            1_031,
            1_037,
            1_061,
        ]


@pytest.mark.slow
@pytest.mark.parametrize("step", [sessions, windows])
@examples(6)
@given(cut=cut_rows(), disorder_ms=st.sampled_from([0, 5]), parallelism=st.sampled_from([2, 3]), wire=st.booleans())
def test_one_split_gives_the_same_results_at_every_parallelism(
    step: Any, cut: tuple[list[Row], list[int]], disorder_ms: int, parallelism: int, wire: bool
) -> None:
    """R1: subtasks of a source that have nothing to read hold no event time back, from the first row on."""
    rows, sizes = cut

    def results(sizes: list[int], **options: Any) -> list[str]:
        return sorted(map(str, ran(rows, sizes, step, disorder_ms, **options)))

    assert results(sizes, parallelism=parallelism, wire=wire) == results([1] * len(rows))


@pytest.mark.parametrize("options", PARALLEL)
def test_sessions_of_a_file_that_is_read_as_one_batch_are_closed_in_between(options: dict[str, Any]) -> None:
    rows = [{"k": "a", "t": t, "n": 1} for t in (0, 10, 100, 105, 300)]
    given = ran(rows, [5], sessions, 0, **options)
    closed = [(row["t"], row["n"]) for row in given if row["n"] < 0 and row["t"] % 10 != 7]
    assert closed == [(40, -2), (135, -2), (330, -1)]


@pytest.mark.parametrize("options", PARALLEL)
def test_late_rows_inside_one_batch_are_late(options: dict[str, Any]) -> None:
    rows = [{"k": "a", "t": t, "n": 1} for t in (5, 25, 6, 26, 45, 27)]
    given = ran(rows, [6], windows, 0, **options)
    assert [(row["window_start"].microsecond // 1000, row["rows"]) for row in given] == [(0, 1), (20, 2), (40, 1)]


@pytest.mark.slow
def test_a_session_that_was_not_told_yet_is_not_retracted() -> None:
    """A row moves the session's start earlier, while a late row of another key emits that key's session again."""
    rows = [
        {"k": k, "t": t, "n": n} for n, (k, t) in enumerate([("a", 1_000), ("b", 1_050), ("a", 1_005), ("b", 1_040)])
    ]

    def step(stream: Stream) -> Stream:
        window = stream.key_by("k").window("w", Session(20 * MS), event_time="t", allowed_lateness=60 * MS)
        return window.aggregate(last=max_("n"))

    for sizes in ([1] * 4, [4], [2, 2]):
        given = [(row["k"], row["update"], row["retracted"], row["last"]) for row in ran(rows, sizes, step, 0)]
        assert given == [("a", 0, False, 0), ("a", 1, False, 2), ("b", 0, False, 3)], sizes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Tumbling(20 * MS), Sliding(20 * MS, 20 * MS)])
@pytest.mark.parametrize("accumulate", [True, False])
def test_early_results_and_results_for_late_rows_keep_the_order_of_rows(kind: Any, accumulate: bool) -> None:
    rows = [{"k": "a", "t": t, "n": n} for n, t in enumerate((1_005, 1_025, 1_010, 1_020, 1_011, 1_022))]

    def step(stream: Stream) -> Stream:
        early = Every(rows=2, accumulate=accumulate)
        window = stream.key_by("k").window("w", kind, event_time="t", early=early, allowed_lateness=25 * MS)
        return window.aggregate(last=max_("n"))

    for sizes in ([1] * 6, [6], [3, 3]):
        given = [(row["window_start"].microsecond // 1_000, row["last"]) for row in ran(rows, sizes, step, 0)]
        assert given == [(0, 0), (0, 2), (20, 3), (0, 4), (20, 5)], sizes


# ------------------------------------------------------------ each step alone and behind every other

ROWS = 10
_WORLD = World()


def drawn_rows(rng: random.Random, in_order: bool) -> list[Row]:
    """Times go forth and back (`in_order`: never back); a key returns often."""
    at, rows = 1_000, []
    for n in range(ROWS):
        at = max(900, at + rng.randint(0 if in_order else -25, 32))
        rows.append({"k": rng.choice("aab" if n < ROWS / 2 else "abc"), "t": at, "n": n})
    return rows


def drawn_cuts(rng: random.Random) -> list[int]:
    sizes: list[int] = []
    while (left := ROWS - sum(sizes)) > 0:
        sizes.append(rng.randint(1, left))
    return sizes


def made(rows: Sequence[Row], steps: Sequence[Step], disorder_ms: int) -> Bench:
    bench = Bench(rows, [1] * ROWS, disorder_ms)
    stream = bench.source
    for name, step in zip(("first", "second"), steps, strict=False):
        stream = step.make(bench, stream, name)
    stream.sink("out", CollectSink())
    return bench


def collected(bench: Bench, sizes: Sequence[int], steps: Sequence[Step], mode: str = "off") -> Any:
    """Returns the rows per sink, with late rows and other side outputs; in order if the steps promise an order.
    `mode`: of combiners."""
    bench.cut(sizes)
    ordered = all(step.in_order for step in steps)
    with patch.object(Combiner, "mode", mode):
        found = run_inline(bench.flow, _WORLD)
    return {name: rows if ordered else sorted(map(str, rows)) for name, rows in found.items()}


def differences(steps: Sequence[Step], seed: str) -> list[str]:
    """Returns the batch sizes and sinks whose rows differ from those of single-row batches without combiners."""
    rng = random.Random(seed)
    rows = drawn_rows(rng, any(step.merges for step in steps))
    disorder_ms = rng.choice([0, 0, 6])
    bench = made(rows, steps, disorder_ms)
    expected = collected(bench, [1] * ROWS, steps)
    cuts = [[ROWS], drawn_cuts(rng)] if len(steps) == 1 or rng.random() < 0.15 else [[ROWS]]
    return [
        f"{' → '.join(step.name for step in steps)}, cut into {sizes}: {name} differs"
        for sizes in cuts
        for name, found in collected(bench, sizes, steps, rng.choice(("on", "on", "off"))).items()
        if found != expected[name]
    ]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # the event time of some pairs is another than the watermark's
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_gives_the_same_rows_however_they_are_cut(step: Step) -> None:
    assert [found for seed in range(3) for found in differences([step], f"{step.name} {seed}")] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("first", STEPS.values(), ids=STEPS)
def test_two_steps_give_the_same_rows_however_they_are_cut(first: Step) -> None:
    found = [differences([first, second], f"{first.name} {second.name}") for second in pairs(first.name)]
    assert [each for one in found for each in one] == []


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "first",
    ["map_batches_to_more", "process_groups", "lookup", "join", "tumbling", "tumbling_early_by_rows_with_lateness"],
)
@pytest.mark.parametrize("second", ["process_with_timers", "deduplicate_within"])
def test_readers_of_event_time_behind_some_steps(first: str, second: str) -> None:
    """A sample of the pairs, for `make check`."""
    assert differences([STEPS[first], STEPS[second]], f"{first} {second}") == []


def of_own_watermarks(bench: Bench, rows: Stream, name: str) -> Stream:
    """Ahead of those of the source, which takes rows to be later than this."""
    return rows.select({"k": "k", "t": "t", "n": "n"}).with_watermarks("t")


def test_own_watermarks_that_are_ahead_take_no_event_time_from_steps_before() -> None:
    """The step before is in the same chain, and follows the event time of the chain's input."""
    before = STEPS["deduplicate_within"]
    for seed in range(3):
        rows = drawn_rows(random.Random(seed), False)
        expected = collected(made(rows, [before], 60), [1] * ROWS, [before])
        both = [before, Step("own", of_own_watermarks, ())]
        bench = made(rows, both, 60)
        for sizes in ([1] * ROWS, [ROWS]):
            assert collected(bench, sizes, both) == expected


# ------------------------------------------------------------ the parts


def test_event_time_is_told_row_by_row_where_somebody_needs_it() -> None:
    def told(detail: Any, times: list[int | None], others_ms: int = WATERMARK_MAX) -> list[int] | None:
        reached = EventClock(5, detail, 10).see(pa.array(times, pa.int64()), others_ms)
        return None if reached is None else reached.tolist()

    assert told("every", [20, 15, None, 30]) == [14, 14, 14, 24]
    assert told("every", [20, 15, None, 30], others_ms=20) == [14, 14, 14, 20]
    assert told("every", [9, 10]) is None  # the watermark does not advance
    assert told("late", [20, 15, 30, 40]) is None  # no row is behind the watermark
    assert told("late", [20, 15, 30, 14]) == [14, 14, 24, 24]
    assert told("late", [24, 30]) is None
    assert told("late", [30, 24]) == [24, 24]  # at the watermark itself: a window that ends there is over
    assert told("none", [20, 15, 30, 14]) is None
    clock = EventClock(2**62)
    assert clock.see(pa.array([WATERMARK_MIN + 5])) is None
    assert clock.watermark_ms == WATERMARK_MIN
    assert EventClock(100, "every").see(pa.array([WATERMARK_MIN + 50])).tolist() == [WATERMARK_MIN]  # type: ignore[union-attr]


def test_event_time_stays_with_its_rows_through_frames_cuts_and_exchanges() -> None:
    rows = pa.RecordBatch.from_pydict({"k": pa.array(range(1_000)), "t": pa.array(range(1_000))})
    batch = Batch(rows, 7, np.arange(1_000))
    writer, reader = FrameWriter(), FrameReader()
    for element in (batch, Batch(rows, 8)):
        (got, _), *_ = reader.feed(b"".join(bytes(part) for part in writer.encode(element)))
        assert isinstance(got, Batch)
        assert got.rows.equals(rows)
        assert (got.reached is None) == (element.reached is None)
        assert got.reached is None or got.reached.tolist() == list(range(1_000))
    parts = hash_partition(batch, ("k",), 3, 128)
    assert sum(part.rows.num_rows for _, part in parts) == 1_000
    for _, part in parts:
        assert part.reached is not None
        assert part.reached.tolist() == part.rows.column("t").to_pylist()
    assert batch.slice(5, 3).reached.tolist() == [5, 6, 7]  # type: ignore[union-attr]


def test_a_timer_sees_event_time_at_its_own_time_whatever_the_watermark_jumped_to() -> None:
    driven = Driven(ProcessOperator("p", ["k"], Arrivals))
    driven.feed([{"k": "a", "t": 0}, {"k": "a", "t": 20}])
    driven.take()
    driven.watermark(100)
    assert [(row["t"], row["watermark"]) for row in driven.take()] == [(10, 10), (30, 30)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("us", "UTC"), pa.date32()])
def test_a_row_of_the_far_future_is_counted_and_told_once_with_source_split_and_row(
    kind: pa.DataType, caplog: pytest.LogCaptureFixture
) -> None:
    year_9999 = pa.array([datetime.datetime(9999, 1, 1)]).cast(pa.timestamp("ms")).view(pa.int64())[0].as_py()
    rows = [{"k": "a", "t": t, "n": 1} for t in (5, 6, year_9999, 7, year_9999 + 1)]
    source = CutSource(rows, [2, 3])
    source.schema = pa.schema([SCHEMA.field("k"), pa.field("t", kind), SCHEMA.field("n")])
    source.batches = [
        pa.RecordBatch.from_arrays(
            [
                batch["k"],
                batch["t"].cast(pa.timestamp("ms")).cast(kind, safe=False) if kind != pa.int64() else batch["t"],
                batch["n"],
            ],
            schema=source.schema,
        )
        for batch in source.batches
    ]
    flow, out = Dataflow("far"), CollectSink()
    flow.source("s", source, event_time="t").sink("out", out)
    flow.run_local(parallelism=1)
    told = [record.getMessage() for record in caplog.records if "ahead of this machine's clock" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith("source 's', subtask 0: row 2 of split 'all'")
    assert f"the event time {year_9999} ms in column 't'" in told[0]
    assert len(out.rows()) == 5
