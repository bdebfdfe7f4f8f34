"""A step whose event-time column differs from the watermark's column warns: rows may be late."""

import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, KeyedStream, Session, Sliding, Tumbling, count
from barrier_runtime.api.stream import Stream

SECOND = timedelta(seconds=1)
ROWS = {"k": int, "at": int, "made": int}


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
    ("make", "column"),
    [
        (lambda flow: read(flow, "rows"), "at"),
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
    assert all("union 'union-1': while nothing new arrives in source 'prices'" in each for each in said)
