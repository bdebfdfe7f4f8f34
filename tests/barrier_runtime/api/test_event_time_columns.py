"""A step whose event time is another column than the watermark's is told so: its rows may be late."""

import warnings
from collections.abc import Callable
from datetime import timedelta

import pytest

from barrier_runtime import Dataflow, Tumbling
from barrier_runtime.api.stream import Stream

SECOND = timedelta(seconds=1)


def read(flow: Dataflow, name: str, event_time: str | None = "at") -> Stream:
    schema = {"k": int, "at": int, "made": int}
    return flow.from_iterator(name, lambda part, of: [], schema=schema, event_time=event_time)


def window(stream: Stream, column: str) -> None:
    stream.key_by("k").window("w", Tumbling(SECOND), event_time=column)


def joined(flow: Dataflow, times: str | tuple[str, str] = "at") -> Stream:
    left, right = read(flow, "left"), read(flow, "right")
    return left.key_by("k").join("j", right.key_by("k"), between=(-SECOND, SECOND), event_time=times)


def as_of(flow: Dataflow) -> Stream:
    return read(flow, "left").key_by("k").asof_join("j", read(flow, "right").key_by("k"), event_time="at")


def late_rows(flow: Dataflow) -> Stream:
    """A side output, whose rows are others than those of its step."""
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
    """A function may put the time into any column; a union of streams by different ones is by none."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        window(make(Dataflow("f")), column)


def test_a_join_by_another_column_is_told_with_the_side() -> None:
    with pytest.warns(UserWarning, match=r"join 'j', left stream: .*column 'made'") as told:
        joined(Dataflow("f"), ("made", "at"))
    assert len(told) == 1
