"""A duration is a `timedelta` or a number of seconds, in windows, joins, state, retries and sources."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from barrier_runtime import (
    TTL,
    Cache,
    CollectSink,
    Dataflow,
    Every,
    InvalidJob,
    Retry,
    Session,
    Sliding,
    Stream,
    Tumbling,
    count,
)
from barrier_runtime.data.schemas import Duration, as_duration

MINUTE = timedelta(minutes=1)
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)
ROWS = [{"k": 1, "at": BEGIN + timedelta(seconds=20 * n)} for n in range(9)]
VALUES: list[tuple[Callable[[Any], object], timedelta, float]] = [
    (Tumbling, MINUTE, 60),
    (Session, MINUTE, 60.0),
    (TTL, MINUTE, 60),
    (Every, timedelta(milliseconds=1_500), 1.5),
    (lambda span: Tumbling(MINUTE, span), timedelta(seconds=-10), -10),
    (lambda span: Sliding(MINUTE, span, span / 2), timedelta(seconds=20), 20),
    (lambda span: Retry(3, backoff=span), timedelta(milliseconds=100), 0.1),
    (lambda span: Cache(10, ttl=span), MINUTE, 60),
]


@pytest.mark.parametrize(("make", "span", "seconds"), VALUES)
def test_seconds_make_the_same_value_as_a_timedelta(
    make: Callable[[Any], object], span: timedelta, seconds: float
) -> None:
    assert make(seconds) == make(span)
    assert (str(make(seconds)), repr(make(seconds))) == (str(make(span)), repr(make(span)))


def read(flow: Dataflow, name: str, bound: Duration) -> Stream:
    return flow.from_iterator(
        name,
        lambda part, of: ROWS,
        schema={"k": int, "at": datetime},
        splits=1,
        event_time="at",
        max_out_of_orderness=bound,
        idle_timeout=bound,
    )


def steps(one: Duration) -> Dataflow:
    """A flow in which each step has the duration `one`."""
    flow = Dataflow("durations")
    rows, others = read(flow, "rows", one).key_by("k"), read(flow, "others", one).key_by("k")
    windows = rows.window("w", Tumbling(one), event_time="at", allowed_lateness=one, early=Every(one))
    windows.aggregate(n=count()).sink("windows", CollectSink())
    rows.join("j", others, between=(0, one), event_time="at").sink("joined", CollectSink())
    rows.asof_join("a", others, event_time="at", tolerance=one).sink("as-of", CollectSink())
    more = read(flow, "more", one).deduplicate("d", "k", within=one)
    more.with_watermarks("at", max_out_of_orderness=one).sink("first", CollectSink())
    return flow


def test_steps_with_seconds_are_those_with_a_timedelta() -> None:
    assert str(steps(60).explain()) == str(steps(MINUTE).explain())


@pytest.mark.slow
def test_windows_and_joins_of_seconds_run() -> None:
    flow, counts, joined = Dataflow("run"), CollectSink(), CollectSink()
    rows = read(flow, "rows", 5).key_by("k")
    rows.window("w", Tumbling(60), event_time="at").aggregate(n=count()).sink("counts", counts)
    later = read(flow, "others", 5).key_by("k")
    rows.join("j", later, between=(0, 20.0), event_time="at").sink("joined", joined)
    flow.run_local()
    assert sorted((row["window_start"], row["n"]) for row in counts.rows()) == [
        (BEGIN + n * MINUTE, 3) for n in range(3)
    ]
    assert len(joined.rows()) == 9 + 8


@pytest.mark.parametrize("wrong", ["60", None, True, float("nan"), float("inf"), 1e300, 1e-9, b"1"])
def test_other_values_are_refused_with_the_remedy(wrong: Any) -> None:
    with pytest.raises(InvalidJob, match=r"the size of a window is .*: pass a datetime.timedelta, or a number of sec"):
        as_duration(wrong, "the size of a window")


@pytest.mark.parametrize("make", [Tumbling, Session, Every, TTL])
def test_seconds_below_a_millisecond_are_refused(make: Callable[[float], object]) -> None:
    with pytest.raises(InvalidJob, match="whole milliseconds"):
        make(1.0005)


@pytest.mark.parametrize("bound", ["x", None, "60"])
def test_bounds_of_a_join_are_durations(bound: Any) -> None:
    flow = Dataflow("bounds")
    rows, others = read(flow, "rows", 5).key_by("k"), read(flow, "others", 5).key_by("k")
    with pytest.raises(InvalidJob, match=r"a bound of between=.* of join 'j' is .*: pass a datetime.timedelta"):
        rows.join("j", others, between=(0, bound), event_time="at")
