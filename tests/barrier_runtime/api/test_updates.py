"""Steps that count every update of a running aggregate cause a warning at build time and in `explain`."""

import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, Every, Tumbling, count, last, max_, mean, sum_

SECOND = timedelta(seconds=1)
ROWS = [{"user": user, "city": "x", "amount": 1, "at": datetime(2026, 1, 1, tzinfo=timezone.utc)} for user in "aaab"]


def rows(index: int, of: int) -> Iterator[dict[str, Any]]:
    return iter(ROWS)


def read(flow: Dataflow, name: str = "rows") -> Any:
    kinds = {"user": str, "city": str, "amount": int, "at": datetime}
    return flow.from_iterator(name, rows, schema=kinds, splits=1, event_time="at")


def per_user(flow: Dataflow) -> Any:
    return read(flow).key_by("user").aggregate("per_user", n=count())


def windowed(stream: Any, **early: Any) -> Any:
    return stream.window("windows", Tumbling(SECOND), event_time="at", **early)


COUNTED: dict[str, Callable[[Dataflow], Any]] = {
    "sum": lambda flow: per_user(flow).key_by("city").aggregate("t", t=sum_("n")),
    "mean": lambda flow: per_user(flow).key_by("city").aggregate("t", t=mean("n")),
    "count": lambda flow: per_user(flow).key_by("city").aggregate("t", t=count()),
    "window": lambda flow: windowed(per_user(flow).key_by("city")).aggregate(t=sum_("n")),
    "top": lambda flow: windowed(per_user(flow).key_by("city")).top(2, by="n"),
    "select": lambda flow: per_user(flow).select({"city": "city", "m": "n"}).key_by("city").aggregate("t", t=sum_("m")),
    "expression": lambda flow: (
        per_user(flow).select({"city": "city", "m": "n * 2"}).key_by("city").aggregate("t", t=sum_("m"))
    ),
    "map": lambda flow: (
        per_user(flow)
        .map(lambda row: {"city": row["city"], "m": row["n"]}, schema={"city": str, "m": int})
        .key_by("city")
        .aggregate("t", t=sum_("m"))
    ),
    "map without schema": lambda flow: per_user(flow).map(dict).key_by("city").aggregate("t", t=sum_("n")),
    "filter": lambda flow: per_user(flow).filter("n > 0").rebalance().key_by("city").aggregate("t", t=sum_("n")),
    "union": lambda flow: (
        per_user(flow)
        .union(read(flow, "more").select({**{name: name for name in ROWS[0]}, "n": "amount"}))
        .key_by("city")
        .aggregate("t", t=sum_("n"))
    ),
    "deduplicate": lambda flow: per_user(flow).deduplicate("t", "user", within=None),
    "join": lambda flow: (
        per_user(flow)
        .key_by("user")
        .join("t", read(flow, "more").key_by("user"), between=(-SECOND, SECOND), event_time="at")
    ),
    "join by one of several keys": lambda flow: (
        read(flow)
        .key_by("user", "city")
        .aggregate("per_user", n=count())
        .key_by("user")
        .join("t", read(flow, "more").key_by("user"), between=(-SECOND, SECOND), event_time="at")
    ),
    "behind a join": lambda flow: (
        per_user(flow)
        .key_by("city")
        .join("j", read(flow, "more").key_by("city"), between=(-SECOND, SECOND), event_time="at")
        .key_by("city")
        .aggregate("t", t=sum_("n"))
    ),
    "early results": lambda flow: (
        windowed(read(flow).key_by("user"), early=Every(rows=1))
        .aggregate(n=count())
        .key_by("user")
        .aggregate("t", t=sum_("n"))
    ),
    "results for late rows": lambda flow: (
        windowed(read(flow).key_by("user"), allowed_lateness=SECOND)
        .aggregate(n=count())
        .key_by("user")
        .aggregate("t", t=sum_("n"))
    ),
    "behind a lookup": lambda flow: (
        per_user(flow)
        .lookup("l", lambda keys: [{"x": 1} for _ in keys], key="user", schema={"x": int})
        .key_by("city")
        .aggregate("t", t=sum_("n"))
    ),
}
NOT_COUNTED: dict[str, Callable[[Dataflow], Any]] = {
    "another column": lambda flow: per_user(flow).key_by("city").aggregate("t", t=sum_("amount")),
    "the greatest": lambda flow: per_user(flow).key_by("city").aggregate("t", t=max_("n"), l=last("n")),
    "left out": lambda flow: per_user(flow).select(["city"]).key_by("city").aggregate("t", t=count()),
    "a window first": lambda flow: (
        windowed(read(flow).key_by("user")).aggregate(n=count()).key_by("user").aggregate("t", t=sum_("n"))
    ),
    "last results": lambda flow: (
        windowed(read(flow).key_by("user"), early=Every(rows=1))
        .aggregate(n=count())
        .filter("not early")
        .key_by("user")
        .aggregate("t", t=sum_("n"))
    ),
    "first results": lambda flow: (
        windowed(read(flow).key_by("user"), allowed_lateness=SECOND)
        .aggregate(n=count())
        .filter("update = 0")
        .key_by("user")
        .aggregate("t", t=sum_("n"))
    ),
    "a join by a column of the rows": lambda flow: (
        per_user(flow)
        .key_by("user", "city")
        .join("t", read(flow, "more").key_by("user", "city"), between=(-SECOND, SECOND), event_time="at")
    ),
    "an id of the rows": lambda flow: per_user(flow).deduplicate("t", "user", "at", within=None),
}


def told(make: Callable[[Dataflow], Any]) -> tuple[list[str], str]:
    """Returns the warnings at build time, and the text of `explain`."""
    flow = Dataflow("updates")
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        make(flow).sink("out", CollectSink())
    return [str(each.message) for each in found if "update" in str(each.message)], flow.explain()


@pytest.mark.parametrize("make", COUNTED.values(), ids=COUNTED)
def test_a_step_that_counts_every_update_is_warned_of_with_the_remedy(make: Callable[[Dataflow], Any]) -> None:
    (text,), explained = told(make)
    assert "'t': " in text or "'windows': " in text
    assert "running aggregate 'per_user'" in text or "'windows'" in text
    assert "window (key_by" in text or "filter('not early')" in text or "filter('update = 0')" in text
    assert text.partition(": ")[2] in explained


@pytest.mark.parametrize("make", NOT_COUNTED.values(), ids=NOT_COUNTED)
def test_a_step_that_counts_each_input_row_once_is_not_warned_of(make: Callable[[Dataflow], Any]) -> None:
    texts, explained = told(make)
    assert texts == []
    assert "every update" not in explained
