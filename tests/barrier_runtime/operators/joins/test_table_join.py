"""Joins with a table that changes, against a dict per moment: versions by event time, and the newest row of a key."""

import random
from collections import Counter
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from barrier_runtime import CollectSink, Dataflow, Tumbling, count
from barrier_runtime.api.stream import Stream
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.joins.as_of import AsOfKind, NewestTableJoinOperator, VersionedTableJoinOperator
from barrier_runtime.operators.joins.base import Side
from barrier_runtime.state.errors import InvalidJob
from tests.barrier_runtime.operator_harness import Driven, Kind, World
from tests.barrier_runtime.operators.joins.joined import Event, Row, Subtasks, play, random_events, sides
from tests.drawn import some

LEFT = sides()[0]
CHANGES = pa.schema([("kk", pa.string()), ("t", pa.int64()), ("b", pa.int64()), ("gone", pa.bool_())])
TABLE = Side(("kk",), "t", CHANGES)
UNTIMED = (Side(("k",), "", LEFT.schema), Side(("kk",), "", CHANGES))


def versioned(how: AsOfKind = "left", late: bool = True) -> VersionedTableJoinOperator:
    return VersionedTableJoinOperator("j", LEFT, TABLE, "gone", how, late=late)


def newest(how: AsOfKind = "left") -> NewestTableJoinOperator:
    return NewestTableJoinOperator("j", *UNTIMED, "gone", how)


def with_deletes(rng: random.Random, events: list[Event]) -> list[Event]:
    """Marks a random share of the changes as deletes; the other changes have null in `gone`."""
    share = rng.choice([0.0, 0.3, 0.7])
    return [(port, {**row, "gone": rng.random() < share or None} if port else row) for port, row in events]


def as_it_was(in_time: list[Event], how: str) -> Counter[Any]:
    """(k, t, a, t_right, b) of all left rows; `in_time` in the order in which they came."""
    found: Counter[Any] = Counter()
    for left in (row for port, row in in_time if port == 0):
        its = [row for port, row in in_time if port and row["kk"] is not None and row["kk"] == left["k"]]
        last = None
        for change in sorted((row for row in its if row["t"] <= left["t"]), key=lambda row: row["t"]):
            last = None if change["gone"] else change
        if last is not None:
            found[left["k"], left["t"], left["a"], last["t"], last["b"]] += 1
        elif how == "left":
            found[left["k"], left["t"], left["a"], None, None] += 1
    return found


def check_versioned(seed: int) -> None:
    rng = random.Random(seed)
    how: AsOfKind = rng.choice(["left", "inner"])
    disorder = rng.choice([0, 10, 100])
    events = random_events(rng, rng.choice([0, 20, 150]), rng.choice([1, 3, 40]), disorder, rng.choice([0, 1, 7]))
    events = with_deletes(rng, events)
    subtasks = Subtasks(lambda: versioned(how), (LEFT, TABLE), rng.randint(1, 3))
    in_time: list[Event] = []
    late: list[int] = []
    told_late: list[int] = []
    got: Counter[Any] = Counter()
    told = WATERMARK_MIN
    for what, value in play(rng, subtasks, events, disorder, rng.randint(0, 3)):
        if what == "fed":
            port, row, on_time = value
            if on_time:
                in_time.append((port, row))
            else:
                late.append(row["b"] if port else row["a"])
        elif what in ("rows", "fired"):
            rows, watermark = value
            got.update(tuple(row.values()) for row in rows)
            assert all(row["t"] > told for row in rows), "a row is late for its successor"
            if watermark < WATERMARK_MAX:
                told = max(told, watermark)
        elif what == "late":
            told_late += [row["a"] for row in value[0]] + [row["b"] for row in value[1]]
        else:
            assert value == (0, 0)
    assert got == as_it_was(in_time, how)
    assert sorted(told_late) == sorted(late)


@pytest.mark.slow
@pytest.mark.draws
def test_many_tables_are_joined_as_they_were() -> None:
    """Holds for any order, batch borders, watermarks, restarts and parallelism."""
    for seed in some(400):
        check_versioned(seed)


def check_newest(seed: int) -> None:
    """Feeds the rows in order, each batch from a single side, with restores between."""
    rng = random.Random(seed)
    how: AsOfKind = rng.choice(["left", "inner"])
    events = with_deletes(rng, random_events(rng, rng.choice([5, 200, 500]), rng.choice([1, 5, 60]), 5, 3))
    subtasks = Subtasks(lambda: newest(how), UNTIMED, rng.randint(1, 3))
    table: dict[str, Row] = {}
    got: Counter[Any] = Counter()
    wanted: Counter[Any] = Counter()
    checkpoint = 0
    while events:
        size = 1
        while size < min(len(events), rng.choice([1, 5, 30])) and events[size][0] == events[0][0]:
            size += 1
        now, events = events[:size], events[size:]
        subtasks.feed(now[0][0], [row for _, row in now])
        for port, row in now:
            if port and row["kk"] is not None:
                table.pop(row["kk"], None)
                if not row["gone"]:
                    table[row["kk"]] = row
            elif not port:
                its = table.get(row["k"]) if row["k"] is not None else None
                if its is not None or how == "left":
                    values = (None, None) if its is None else (its["t"], its["b"])
                    wanted.update([(row["k"], row["t"], row["a"], *values)])
        got.update(tuple(row.values()) for row in subtasks.take())
        assert subtasks.held == (0, len(table))
        if rng.random() < 0.05:
            checkpoint += 1
            subtasks = subtasks.rescaled(checkpoint, rng.randint(1, 3))
    assert got == wanted


@pytest.mark.slow
@pytest.mark.draws
def test_many_tables_are_joined_as_they_are() -> None:
    for seed in some(80):
        check_newest(seed)


# ---------------------------------------------------------------- single cases


def left(key: str | None, time: int, number: int = 0) -> Row:
    return {"k": key, "t": time, "a": number}


def change(key: str | None, time: int, number: int = 0, gone: bool | None = None) -> Row:
    return {"kk": key, "t": time, "b": number, "gone": gone}


def feed(it: Driven, port: int, *rows: Row) -> None:
    it.feed(list(rows), (LEFT.schema, CHANGES)[port], port=port)


def test_columns_are_those_of_both_but_what_tells_deletes() -> None:
    it = Driven(versioned("inner"))
    feed(it, 1, change("x", 5, 1))
    feed(it, 0, left("x", 6, 2))
    it.watermark(6)
    assert it.take() == [{"k": "x", "t": 6, "a": 2, "t_right": 5, "b": 1}]


def test_a_delete_counts_from_its_very_time_until_the_key_is_back() -> None:
    it = Driven(versioned())
    feed(it, 1, change("x", 10, 1), change("x", 20, 0, gone=True), change("x", 30, 2))
    feed(it, 0, *[left("x", time) for time in (9, 10, 19, 20, 29, 30)])
    it.watermark(50)
    assert [row["b"] for row in it.take()] == [None, 1, 1, None, None, 2]


def test_of_changes_at_one_time_the_last_one_counts() -> None:
    it = Driven(versioned())
    feed(it, 1, change("x", 10, 1), change("x", 10, 0, gone=True), change("y", 10, gone=True), change("y", 10, 7))
    feed(it, 0, left("x", 10), left("y", 10))
    it.watermark(50)
    assert [(row["k"], row["b"]) for row in it.take()] == [("x", None), ("y", 7)]


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_deletes_passed_by_event_time_are_dropped_also_for_keys_without_new_rows(kind: Kind) -> None:
    it = Driven(versioned(), World(kind))
    feed(it, 1, *[change(f"k{n}", 10, n) for n in range(100)])
    it.watermark(10)
    feed(it, 1, *[change(f"k{n}", 20, gone=True) for n in range(100)])
    it.watermark(19)
    assert it.operator.held == (0, 200)  # type: ignore[attr-defined]
    it.watermark(20)
    assert it.operator.held == (0, 0)  # type: ignore[attr-defined]
    feed(it, 0, left("k7", 21))
    it.watermark(30)
    assert [row["b"] for row in it.take()] == [None]


def test_a_deleted_key_stays_deleted_while_older_versions_are_not_swept_yet() -> None:
    it = Driven(versioned())
    feed(it, 1, *[change(f"k{n}", 10, n) for n in range(100)])
    it.watermark(10)
    feed(it, 1, change("k7", 20, gone=True))
    it.watermark(20)
    feed(it, 0, left("k7", 21), left("k8", 21))
    it.watermark(30)
    assert {row["k"]: row["b"] for row in it.take()} == {"k7": None, "k8": 8}
    restored = Driven(versioned(), it.world, (it.snapshot(1),), name="j")
    feed(restored, 0, left("k7", 31), left("k8", 31))
    restored.watermark(40)
    assert {row["k"]: row["b"] for row in restored.take()} == {"k7": None, "k8": 8}


def test_newest_row_is_emitted_at_once_in_row_order_with_its_event_time() -> None:
    it = Driven(newest("inner"))
    feed(it, 1, change("x", 99, 1), change("x", 98, 2), change("y", 5, 3))
    rows = [left("x", 1, 0), left("z", 2, 1), left("y", 3, 2), left(None, 4, 3), left("x", 5, 4)]
    it.feed(rows, LEFT.schema, reached=np.array([1, 2, 3, 4, 5]), port=0)
    assert [(row["a"], row["b"]) for row in it.rows] == [(0, 2), (2, 3), (4, 2)]
    assert [list(batch.reached) for batch in it.batches if batch.reached is not None] == [[1, 3, 5]]


@pytest.mark.slow
def test_one_row_per_key_is_held_however_often_it_changes() -> None:
    it = Driven(newest())
    for number in range(300):
        feed(it, 1, change("x", 0, number), change(f"k{number % 5}", 0, number))
    assert it.operator.held == (0, 6)  # type: ignore[attr-defined]
    assert sum(len(run) for run in it.operator._buffers[1].runs) <= 30, "dead rows go"  # type: ignore[attr-defined]
    feed(it, 0, left("x", 0))
    assert [row["b"] for row in it.take()] == [299]


# ---------------------------------------------------------------- in jobs

ORDERS = {"id": int, "at": int, "customer": str}
CUSTOMERS = {"name": str, "at": int, "city": str, "gone": bool}


def read(flow: Dataflow, name: str, rows: list[dict[str, Any]], schema: dict[str, type], **more: Any) -> Stream:
    options: dict[str, Any] = {"event_time": "at", "max_out_of_orderness": timedelta(seconds=5), **more}
    return flow.from_iterator(name, lambda part, of: rows, schema=schema, splits=1, **options)


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("unaligned", [False, True])
def test_a_job_joins_a_table_as_it_was_and_a_window_counts_what_comes_out(parallelism: int, unaligned: bool) -> None:
    rng = random.Random(4)
    names = [f"c{n}" for n in range(5)]
    orders = [{"id": n, "at": n * 50 + rng.randrange(4_000), "customer": rng.choice(names)} for n in range(400)]
    changes = [
        {"name": rng.choice(names), "at": n * 200 + rng.randrange(4_000), "city": f"city {n}", "gone": n % 3 == 2}
        for n in range(100)
    ]
    flow, out, counted = Dataflow("cities"), CollectSink(), CollectSink()
    joined = (
        read(flow, "orders", orders, ORDERS)
        .key_by("customer")
        .table_join("city", read(flow, "changes", changes, CUSTOMERS).key_by("name"), event_time="at", deleted="gone")
    )
    assert joined.schema is not None
    assert joined.schema.names == ["customer", "id", "at", "at_right", "city"]
    joined.sink("out", out)
    windows = joined.key_by("customer").window("w", Tumbling(timedelta(seconds=1)), event_time="at")
    windows.aggregate(n=count()).sink("counted", counted)
    options: dict[str, Any] = {"unaligned": True} if unaligned else {}
    flow.run_local(parallelism=parallelism, checkpoint_interval=0.05, **options)

    def city(order: dict[str, Any]) -> str | None:
        its = [row for row in changes if row["name"] == order["customer"] and row["at"] <= order["at"]]
        last = max(its, key=lambda row: row["at"], default=None)
        return None if last is None or last["gone"] else str(last["city"])

    assert {row["id"]: row["city"] for row in out.rows()} == {order["id"]: city(order) for order in orders}
    assert sum(row["n"] for row in counted.rows()) == len(orders)


def test_a_job_joins_the_newest_rows_of_a_table_without_event_time() -> None:
    flow, out = Dataflow("newest"), CollectSink()
    orders = [{"id": n, "at": 0, "customer": "ada"} for n in range(50)]
    untimed = {"event_time": None, "max_out_of_orderness": timedelta()}
    table = read(flow, "changes", [], CUSTOMERS, **untimed).key_by("name")
    rows = read(flow, "orders", orders, ORDERS, **untimed)
    rows.key_by("customer").table_join("city", table).sink("out", out)
    flow.run_local(parallelism=2)
    assert [(row["customer"], row["city"]) for row in out.rows()] == [("ada", None)] * 50


def two(**more: Any) -> tuple[Any, Any]:
    flow = Dataflow("f")
    return read(flow, "orders", [], ORDERS).key_by("customer"), read(flow, "t", [], CUSTOMERS, **more).key_by("name")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"deleted": "city"}, "deleted='city' is string: pass a column of booleans"),
        ({"deleted": "no"}, "no"),
        ({"how": "right"}, "how='right': use one of left, inner"),
        ({"late": True}, "without event_time= no row is late"),
        ({"event_time": ""}, "event_time='': pass the name of the column"),
        ({"event_time": 3}, "event_time=3: give a text or a list of texts or None"),
        ({"event_time": ("at", "city")}, "city"),
    ],
)
def test_what_makes_no_sense_is_refused_when_the_flow_is_written(options: dict[str, Any], said: str) -> None:
    orders, table = two()
    with pytest.raises(InvalidJob, match=said):
        orders.table_join("city", table, **options)


def test_a_table_without_watermarks_is_refused_where_its_event_time_counts() -> None:
    orders, table = two(event_time=None, max_out_of_orderness=timedelta())
    with pytest.raises(InvalidJob, match="'t' has no watermarks"):
        orders.table_join("city", table, event_time="at")
    assert orders.table_join("city", table).schema is not None


def test_a_sink_that_relies_on_a_replay_is_refused_behind_the_newest_rows() -> None:
    class Same(CollectSink):
        deterministic = True

    orders, table = two()
    with pytest.raises(InvalidJob, match="in step 'city' before it a row gets what the table has when it comes"):
        orders.table_join("city", table).sink("out", Same())
    orders.table_join("was", table, event_time="at").sink("was-out", Same())


def test_what_its_state_means_is_told_by_the_kind_the_times_and_what_deletes() -> None:
    """A restore with another definition is refused, as for all joins."""

    def definition(**options: Any) -> str:
        orders, table = two()
        joined = orders.table_join("city", table, **options)
        node = joined._plan.nodes[joined._node]
        assert node.definition == node.make("city").definition
        return str(node.definition)

    assert definition() == "left table join, the newest row"
    assert definition(how="inner", deleted="gone") == "inner table join, the newest row, deleted by gone"
    assert definition(event_time="at", deleted="gone") == "left table join, at at or before at, deleted by gone"
