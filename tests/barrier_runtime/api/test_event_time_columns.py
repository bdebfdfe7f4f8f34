"""A step whose event-time column differs from the watermark's column warns: rows may be late."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from barrier_runtime import (
    CollectSink,
    Dataflow,
    InvalidJob,
    KeyedStream,
    Session,
    Sliding,
    Tumbling,
    connect,
    count,
    sum_,
)
from barrier_runtime.api.stream import Stream
from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.graph.compiler import compile_plan

SECOND = timedelta(seconds=1)
ROWS = {"k": int, "at": int, "made": int}
DUE = {"k": int, "due": int}


def read(flow: Dataflow, name: str, event_time: str | None = "at") -> Stream:
    return flow.from_iterator(name, lambda part, of: [], schema=ROWS, event_time=event_time)


def window(stream: Stream, column: str) -> None:
    stream.key_by("k").window("w", Tumbling(SECOND), event_time=column)


def joined(flow: Dataflow, times: str | tuple[str, str] = "at") -> Stream:
    left, right = read(flow, "left"), read(flow, "right")
    return left.key_by("k").join("j", right.key_by("k"), between=(-SECOND, SECOND), event_time=times)


def as_of(flow: Dataflow) -> Stream:
    return read(flow, "left").key_by("k").asof_join("j", read(flow, "right").key_by("k"), event_time="at")


def late_rows(flow: Dataflow) -> Stream:
    """Returns a side output, whose rows differ from the step's rows."""
    left, right = read(flow, "left").key_by("k"), read(flow, "right").key_by("k")
    _, late, _ = left.join("j", right, between=(-SECOND, SECOND), event_time="at", late=True)
    return late


@pytest.mark.parametrize(
    ("make", "column", "other"),
    [
        (lambda flow: read(flow, "rows"), "made", "at"),
        (lambda flow: read(flow, "rows").filter("k > 1").union(read(flow, "more")), "made", "at"),
        (lambda flow: read(flow, "rows").with_watermarks("made"), "at", "made"),
        (lambda flow: read(flow, "rows").filter("k > 1").with_watermarks("made"), "at", "made"),
        (joined, "made", "at"),
        (as_of, "at_right", "at"),
        (lambda flow: read(flow, "rows").select(["made", "k", "at"]), "made", "at"),
        (lambda flow: read(flow, "rows").select({"made": "made", "k": "k", "due": "at"}), "made", "due"),
        (lambda flow: read(flow, "rows").broadcast_join("more", [{"k": 1, "v": 2}], on="k"), "made", "at"),
    ],
)
def test_a_window_by_another_column_than_the_watermarks_is_told(
    make: Callable[[Dataflow], Stream], column: str, other: str
) -> None:
    with pytest.warns(
        UserWarning, match=rf"window 'w': .*column '{column}', but the watermark is of '{other}'"
    ) as told:
        window(make(Dataflow("f")), column)
    assert told[0].filename == __file__, "the line that the user wrote"


@pytest.mark.parametrize(
    ("make", "function"),
    [
        (lambda rows: rows.map(dict, schema=ROWS), "a map"),
        (lambda rows: rows.map(dict, schema=ROWS, name="named").filter("k > 1").rename(at="due"), "map 'named'"),
        (lambda rows: rows.key_by("k").process("made", lambda key, row, ctx: row, schema=ROWS), "process 'made'"),
        (lambda rows: rows.map(dict, schema={"k": int, "made": int}), "a map"),
    ],
)
def test_a_window_by_a_column_that_a_function_makes_is_told(make: Callable[[Stream], Stream], function: str) -> None:
    with pytest.warns(
        UserWarning, match=rf"'made' of the rows of {function}, but the watermark is of 'at'.* may be late"
    ) as told:
        window(make(read(Dataflow("f"), "rows")), "made")
    assert told[0].filename == __file__, "the line that the user wrote"


def test_a_rename_behind_a_function_keeps_the_event_time() -> None:
    rows = read(Dataflow("f"), "rows").map(dict, schema=ROWS).rename(at="due")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.key_by("k").window("w", Tumbling(SECOND))
    taken = read(Dataflow("f"), "rows").map(dict, schema=ROWS).select({"k": "k", "at": "made"})
    with pytest.raises(InvalidJob, match="pass event_time="):
        taken.key_by("k").window("w", Tumbling(SECOND))
    with pytest.warns(
        UserWarning, match=r"column 'at' of the rows of a map, but the watermark is of another column before"
    ):
        taken.key_by("k").window("w", Tumbling(SECOND), event_time="at")


@pytest.mark.parametrize(
    ("make", "column"),
    [
        (lambda flow: read(flow, "rows"), "at"),
        (lambda flow: read(flow, "rows").map(dict, schema=ROWS), "at"),
        (lambda flow: read(flow, "rows").map(dict, schema=ROWS).rename(at="due").filter("k > 1"), "due"),
        (lambda flow: read(flow, "rows").map(dict, schema=ROWS).select({"k": "k", "due": "at"}), "due"),
        (lambda flow: read(flow, "rows").map(dict).map(dict, schema=ROWS).with_columns(due="at"), "due"),
        (lambda flow: read(flow, "rows").map(dict, schema=ROWS).with_columns(at="at + 1"), "at"),
        (lambda flow: read(flow, "rows").rename(at="due").map(dict, schema=DUE), "due"),
        (lambda flow: read(flow, "rows").select({"k": "k", "due": "at"}).map(dict, schema=DUE), "due"),
        (lambda flow: read(flow, "rows").with_columns(due="at").map(dict, schema=DUE).map(dict, schema=DUE), "due"),
        (lambda flow: read(flow, "rows").map(dict, schema=ROWS).with_watermarks("made"), "made"),
        (lambda flow: joined(flow).map(dict, schema=ROWS), "at"),
        (lambda flow: read(flow, "rows").filter("k > 1").union(read(flow, "more")), "at"),
        (lambda flow: read(flow, "rows").map(lambda row: row), "made"),
        (lambda flow: read(flow, "rows").select({"k": "k", "at": "at", "made": "at"}), "made"),
        (lambda flow: read(flow, "rows").select({"k": "k", "at": "at", "made": "at * 1"}), "made"),
        (lambda flow: read(flow, "rows").select(["k", "made"]), "made"),
        (lambda flow: read(flow, "rows").union(read(flow, "more").with_watermarks("made")), "made"),
        (joined, "at"),
        (joined, "at_right"),
        (as_of, "at"),
        (lambda flow: late_rows(flow).filter("k > 1"), "made"),
    ],
)
def test_where_the_columns_agree_or_are_not_known_nothing_is_told(
    make: Callable[[Dataflow], Stream], column: str
) -> None:
    """A function may put the time into any column; a union of streams with different event-time columns has no event-
    time column.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window(make(Dataflow("f")), column)


FOLLOWING: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "a shorter window": (
        Tumbling(2 * SECOND),
        lambda its: its.window("n", Tumbling(SECOND), event_time="window_start"),
    ),
    "windows that begin elsewhere": (
        Tumbling(2 * SECOND),
        lambda its: its.window("n", Tumbling(2 * SECOND, SECOND), event_time="window_start"),
    ),
    "sessions": (Tumbling(SECOND), lambda its: its.window("n", Session(SECOND), event_time="window_start")),
    "a window behind sliding ones": (
        Sliding(3 * SECOND, SECOND),
        lambda its: its.window("n", Tumbling(3 * SECOND), event_time="window_start"),
    ),
    "a window behind sessions": (
        Session(SECOND),
        lambda its: its.window("n", Tumbling(SECOND), event_time="window_start"),
    ),
    "an as-of join": (Tumbling(SECOND), lambda its: its.asof_join("n", its, event_time="window_start")),
}


def results_of(flow: Dataflow, window: Any) -> Stream:
    return read(flow, "rows").key_by("k").window("w", window, event_time="at").aggregate(n=count())


def results(flow: Dataflow, window: Any) -> KeyedStream:
    return results_of(flow, window).key_by("k")


@pytest.mark.parametrize("case", FOLLOWING)
def test_the_start_of_a_window_as_event_time_is_told_where_results_would_be_late(case: str) -> None:
    """Results appear when the watermark has passed the end of their window."""
    window, step = FOLLOWING[case]
    with pytest.warns(UserWarning, match=r"event time is column 'window_start', but the watermark is of 'window_end'"):
        step(results(Dataflow("f"), window))


def test_behind_a_select_and_in_windows_over_all_rows_it_is_told_as_well() -> None:
    window, _ = FOLLOWING["a shorter window"]
    chosen = results_of(Dataflow("f"), window).select({"begins": "window_start", "window_end": "window_end", "n": "n"})
    said = r"event time is column 'begins', but the watermark is of 'window_end'"
    with pytest.warns(UserWarning, match=said):
        chosen.window_all("a", Tumbling(SECOND), event_time="begins")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen.window_all("b", window, event_time="begins")


def test_rows_that_top_gives_have_the_time_at_which_their_window_is_over() -> None:
    tops = read(Dataflow("f"), "rows").key_by("k").window("w", Tumbling(SECOND), event_time="at").top(1, by="made")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window(tops, "at")
    with pytest.warns(UserWarning, match="event time is column 'at', but the watermark is of 'window_end'"):
        tops.key_by("k").window("x", Session(SECOND), event_time="at")


@pytest.mark.parametrize(
    ("window", "column"),
    [
        (Tumbling(SECOND), "window_start"),
        (Sliding(4 * SECOND, 2 * SECOND), "window_start"),
        (Session(SECOND), "window_end"),
    ],
)
def test_a_window_that_ends_no_earlier_than_those_it_takes_is_told_nothing(window: Any, column: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results(Dataflow("f"), Tumbling(SECOND)).window("n", window, event_time=column)


def united(flow: Dataflow, size: int) -> Stream:
    more = read(flow, "more").key_by("k").window("m", Tumbling(size * SECOND), event_time="at").aggregate(n=count())
    return results_of(flow, Tumbling(SECOND)).union(more)


def window_joined(flow: Dataflow) -> Stream:
    left, right = read(flow, "left"), read(flow, "right")
    return left.key_by("k").window_join("j", right.key_by("k"), Tumbling(SECOND))


RESULT = {"k": int, "window_start": "timestamp[ms, UTC]", "window_end": "timestamp[ms, UTC]"}


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda flow: united(flow, 3), r"do not contain the windows of the rows \(tumbling 0:00:03\)"),
        (window_joined, r"though the windows \(tumbling 0:00:04\) contain .* Pass event_time='window_start'"),
        (
            lambda flow: window_joined(flow).rename(window_start="begins"),
            r"though the windows \(tumbling 0:00:04\) contain .* Pass event_time='begins'",
        ),
        (
            lambda flow: window_joined(flow).drop("window_start").rename(made="window_start"),
            r"\(tumbling 0:00:01\) without the column of their start, .* Keep 'window_start'",
        ),
        (
            lambda flow: results_of(flow, Tumbling(SECOND)).map(dict, schema=RESULT, name="named"),
            r"not known behind map 'named', .* Place the function behind these windows",
        ),
    ],
)
def test_results_that_count_by_their_end_are_told_with_the_remedy(
    make: Callable[[Dataflow], Stream], told: str
) -> None:
    rows = make(Dataflow("f")).key_by("k")
    with pytest.warns(UserWarning, match=told) as warned:
        rows.window("w", Tumbling(4 * SECOND))
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows.window("meant", Tumbling(4 * SECOND), event_time="window_end")


def test_pairs_of_windows_and_united_results_may_count_by_their_start() -> None:
    for rows, column in ((united(Dataflow("f"), 2), None), (window_joined(Dataflow("f")), "window_start")):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            rows.key_by("k").window("w", Tumbling(4 * SECOND), event_time=column)


@pytest.mark.slow
def test_united_results_of_two_sizes_count_where_their_rows_do() -> None:
    """The second that ends with the window of four seconds is a result of that window."""
    flow, sink = Dataflow("f"), CollectSink()
    streams = []
    for size in (1, 2):
        rows = [{"k": 1, "at": at * 500, "made": 0} for at in range(16)]
        given = flow.from_iterator(
            f"of-{size}", lambda part, of, rows=rows: rows, schema=ROWS, splits=1, event_time="at"
        )
        streams.append(given.key_by("k").window(f"w-{size}", Tumbling(size * SECOND)).aggregate(n=count()))
    streams[0].union(streams[1]).key_by("k").window("all", Tumbling(4 * SECOND)).aggregate(n=sum_("n")).sink(
        "out", sink
    )
    flow.run_local(parallelism=1)
    assert [row["n"] for row in sink.rows()] == [16, 16]


@pytest.mark.slow
@pytest.mark.parametrize("column", ["window_start", "window_end"])
def test_results_that_are_told_of_are_late_and_those_that_are_not_are_in_time(column: str) -> None:
    flow, late = Dataflow("f"), CollectSink()
    rows = [{"k": 1, "at": second * 1_000, "made": 0} for second in range(10)]
    read = flow.from_iterator("rows", lambda part, of: rows, schema=ROWS, splits=1, event_time="at")
    its = read.key_by("k").window("w", Tumbling(2 * SECOND), event_time="at").aggregate(n=count()).key_by("k")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, left, _ = its.asof_join("j", its, event_time=column, late=True)
    left.sink("late", late)
    flow.run_local(parallelism=1)
    assert bool(late.rows()) == (column == "window_start")


def test_a_join_by_another_column_is_told_with_the_side() -> None:
    with pytest.warns(UserWarning, match=r"join 'j', left stream: .*column 'made'") as told:
        joined(Dataflow("f"), ("made", "at"))
    assert len(told) == 1


@pytest.mark.parametrize("idle", [None, SECOND])
@pytest.mark.parametrize("watch", [None, SECOND])
def test_a_watched_folder_beside_another_input_needs_an_idle_timeout(tmp_path: Path, watch: Any, idle: Any) -> None:
    (tmp_path / "a.jsonl").write_text('{"k": 1, "at": 1, "made": 0}\n')
    flow = Dataflow("f")
    folder = flow.read_jsonl("prices", str(tmp_path), schema=ROWS, watch=watch, event_time="at", idle_timeout=idle)
    read = flow.from_iterator("rows", lambda part, of: [], schema=ROWS, splits=1, event_time="at")
    both = folder.union(read).key_by("k").window("w", Tumbling(SECOND), event_time="at")
    both.aggregate(n=count()).sink("out", CollectSink())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        flow.explain()
    said = [str(each.message) for each in told if "idle_timeout" in str(each.message)]
    assert len(said) == (watch is not None and idle is None)
    assert all(each.startswith("union 'union-1': between two files of source 'prices'") for each in said)
    assert {each.filename for each in told} <= {__file__}, "a warning names the user's line"


@pytest.mark.filterwarnings("ignore:.*check that source 'history'")
def test_a_watched_folder_that_follows_a_history_needs_no_idle_timeout(tmp_path: Path) -> None:
    flow = Dataflow("f")
    history = flow.from_iterator("history", lambda part, of: [], schema=ROWS, splits=1, event_time="at")
    live = flow.read_jsonl("live", str(tmp_path), schema=ROWS, watch=SECOND, event_time="at")
    both = history.followed_by("both", live).key_by("k").window("w", Tumbling(SECOND), event_time="at")
    both.aggregate(n=count()).sink("out", CollectSink())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        flow.explain()
    assert not [each for each in told if "idle_timeout" in str(each.message)]


def from_kafka(flow: Dataflow, name: str, **settings: Any) -> Stream:
    client: dict[str, Any] = {"group": "g", "value": "json", "schema": ROWS, "metadata": [], "key": None}
    return flow.read_kafka(name, "127.0.0.1:9", name, **client, event_time="at", **settings)


def polled(flow: Dataflow, name: str, **settings: Any) -> Stream:
    return flow.from_poll(name, lambda cursor: ([], cursor), every=1, schema=ROWS, event_time="at", **settings)


def generated(flow: Dataflow, name: str) -> Stream:
    return flow.rate(name, 10, event_time="intended_at").with_columns(k="value", at="intended_at", made="value")


def said_of_pauses(flow: Dataflow) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        compile_plan(flow.plan, 1, list_splits=lambda source, parallelism: [Split("all")])
    return [str(each.message) for each in told if "idle_timeout" in str(each.message)]


@pytest.mark.parametrize(
    ("left", "right", "paused"),
    [
        (from_kafka, read, ["left"]),
        (from_kafka, from_kafka, ["left", "right"]),
        (read, polled, ["right"]),
        (partial(from_kafka, until="latest"), read, []),
        (partial(from_kafka, idle_timeout=SECOND), partial(polled, idle_timeout=SECOND), []),
        (generated, generated, []),
    ],
)
def test_inputs_that_may_pause_are_named_once_each(left: Any, right: Any, paused: list[str]) -> None:
    """Two joins of the same inputs warn as one join."""
    flow = Dataflow("f")
    one, other = left(flow, "left").key_by("k"), right(flow, "right").key_by("k")
    for name in ("first", "second"):
        joined = one.join(name, other, between=(-SECOND, SECOND), event_time="at", suffix=("", "_other"))
        joined.sink(f"of-{name}", CollectSink())
    named = said_of_pauses(flow)
    assert len(named) == len(paused)
    for source, text in zip(paused, named, strict=True):
        assert text.startswith(f"join 'first': while nothing new arrives in source {source!r}")
        assert f"read {source!r} with idle_timeout=" in text


class Playlist:
    """A user's source, whose attributes `pauses` and `passed_over` mean something else."""

    schema = pa.schema([(name, pa.int64()) for name in ROWS])
    exactly_once = True
    passed_over = ("first", "second")

    def __init__(self) -> None:
        self._rows = pa.RecordBatch.from_pylist([{"k": 1, "at": 1, "made": 1}], self.schema)

    def pauses(self, minutes: int) -> list[int]:
        return [minutes]

    def splits(self, parallelism: int) -> list[Split]:
        return [Split("all")]

    def reader(self, split: Split) -> "Playlist":
        return self

    finished = False

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        self.finished = True
        return Polled(self._rows, now_ns)

    def next_due_ns(self) -> None:
        return None

    def position(self) -> bytes:
        return b"1"

    def seek(self, position: bytes) -> None:
        self.finished = True

    def close(self) -> None:
        pass


def test_a_method_pauses_of_a_users_source_is_no_statement_about_pauses() -> None:
    flow = Dataflow("f")
    one = flow.source("left", Playlist(), event_time="at").key_by("k")
    other = read(flow, "right").key_by("k")
    one.join("joined", other, between=(-SECOND, SECOND), event_time="at", suffix=("", "_other")).sink(
        "of", CollectSink()
    )
    assert said_of_pauses(flow) == []


def test_names_passed_over_by_a_users_source_are_no_number_of_files() -> None:
    flow, sink = Dataflow("alone"), CollectSink()
    flow.source("songs", Playlist()).sink("out", sink)
    status = flow.run_local(parallelism=1, restart="none").status
    assert len(sink.rows()) == 1
    assert not any("songs.files_passed_over" in slot.metrics for slot in status.slots)


def test_an_input_that_may_pause_beside_none_with_event_time_needs_no_idle_timeout() -> None:
    flow = Dataflow("f")
    rows, rules = from_kafka(flow, "rows"), read(flow, "rules", event_time=None)
    both = rows.filter("k > 1").union(rows.filter("k < 1")).key_by("k")
    ruled = connect(rows=both, rules=rules.broadcast()).process("ruled", Ruled, schema=ROWS, event_time="at")
    ruled.key_by("k").window("w", Tumbling(SECOND), event_time="at").aggregate(n=count()).sink("out", CollectSink())
    assert said_of_pauses(flow) == []


class Ruled:
    def on_rows(self, key: int, row: Any, ctx: Any) -> Any:
        yield row

    def on_rules(self, rule: Any, ctx: Any) -> None:
        return None
