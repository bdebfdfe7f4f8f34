"""Rows without content: a topic of changes has them after deletions."""

import datetime
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling

UTC = datetime.timezone.utc
CHANGE = {"id": "int64", "city": "string", "deleted": "bool", "changed_at": "timestamp[us, tz=UTC]"}
ORDER = {"customer": "int64", "n": "int64", "at": "timestamp[us, tz=UTC]"}
TOMBSTONE = {"id": None, "city": None, "deleted": None, "changed_at": None}


def at(minute: int) -> datetime.datetime:
    return datetime.datetime(2024, 1, 1, 12, minute, tzinfo=UTC)


def joined(kind: str) -> list[Any]:
    flow, out = Dataflow("tombstones"), CollectSink()
    changes = [
        {"id": 1, "city": "Ulm", "deleted": False, "changed_at": at(1)},
        TOMBSTONE,
        {"id": 1, "city": None, "deleted": True, "changed_at": at(5)},
        TOMBSTONE,
    ]
    orders = [{"customer": 1, "n": minute, "at": at(minute)} for minute in (3, 7)]
    table = flow.from_iterator(
        "changes", lambda number, of: iter(changes), splits=1, schema=CHANGE, event_time="changed_at"
    ).key_by("id")
    keyed = flow.from_iterator(
        "orders", lambda number, of: iter(orders), splits=1, schema=ORDER, event_time="at"
    ).key_by("customer")
    if kind == "table_join":
        rows = keyed.table_join("j", table, deleted="deleted", event_time=("at", "changed_at"), how="left")
    elif kind == "asof_join":
        rows = keyed.asof_join("j", table, event_time=("at", "changed_at"), how="left")
    elif kind == "join":
        near = datetime.timedelta(minutes=3)
        rows = keyed.join("j", table, between=(-near, near), event_time=("at", "changed_at"))
    else:
        rows = keyed.window_join("j", table, Tumbling(datetime.timedelta(minutes=4)), event_time=("at", "changed_at"))
    rows.select(["n", "city"]).sink("out", out)
    flow.run_local(parallelism=1)
    return sorted(((row["n"], row["city"]) for row in out.rows()), key=str)


# Source: our own trial
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("table_join", [(3, "Ulm"), (7, None)]),
        ("asof_join", [(3, "Ulm"), (7, None)]),
        ("join", [(3, "Ulm"), (3, None), (7, None)]),
        ("window_join", [(3, "Ulm"), (7, None)]),
    ],
)
def test_a_tombstone_matches_nothing_in_a_join_by_event_time(kind: str, rows: list[Any]) -> None:
    assert joined(kind) == rows
