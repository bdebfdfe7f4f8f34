"""Joins in whole jobs: two sources, self-joins, chains of joins, late rows as streams, and refusals at build time."""

import random
from collections import Counter
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import CollectSink, Count, Dataflow, Global, JobFailed, Session, Tumbling, count
from barrier_runtime.api.stream import Stream
from barrier_runtime.state.errors import InvalidJob

SECOND = timedelta(seconds=1)
ORDERS = {"id": int, "at": int, "amount": int}
PAYMENTS = {"order_id": int, "at": int, "paid": int}
Rows = list[dict[str, Any]]


def read(flow: Dataflow, name: str, rows: Rows, schema: dict[str, type], disorder: int = 0, **more: Any) -> Stream:
    bound = timedelta(milliseconds=disorder)
    options = {"event_time": "at", "max_out_of_orderness": bound, **more}
    return flow.from_iterator(name, lambda part, of: rows, schema=schema, splits=1, **options)


def orders_and_payments(seed: int) -> tuple[Rows, Rows]:
    rng = random.Random(seed)
    orders = [{"id": n, "at": n * 100 - rng.randrange(900), "amount": n * 10} for n in range(300)]
    payments = [
        {"order_id": n, "at": n * 100 + rng.randrange(3_000), "paid": part}
        for n in range(0, 300, 2)
        for part in range(rng.choice([0, 1, 2]))
    ]
    return orders, payments


def joined(orders: Rows, payments: Rows, lower: int, upper: int) -> Counter[Any]:
    found: Counter[Any] = Counter()
    for order in orders:
        its = [p for p in payments if p["order_id"] == order["id"] and lower <= p["at"] - order["at"] <= upper]
        found.update([(order["id"], p["paid"]) for p in its] or [(order["id"], None)])
    return found


@pytest.mark.slow
@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("unaligned", [False, True])
def test_a_job_joins_two_sources(parallelism: int, unaligned: bool) -> None:
    orders, payments = orders_and_payments(3)
    flow, out = Dataflow("paid"), CollectSink()
    left, right = read(flow, "orders", orders, ORDERS, 1_000), read(flow, "payments", payments, PAYMENTS, 3_500)
    paid = left.key_by("id").join(
        "paid", right.key_by("order_id"), between=(0 * SECOND, 2 * SECOND), how="left", event_time="at"
    )
    assert paid.schema is not None
    assert paid.schema.names == ["id", "at", "amount", "at_right", "paid"]
    paid.sink("out", out)
    options: dict[str, Any] = {"unaligned": True} if unaligned else {}
    flow.run_local(parallelism=parallelism, checkpoint_interval=0.05, **options)
    assert Counter((row["id"], row["paid"]) for row in out.rows()) == joined(orders, payments, 0, 2_000)


@pytest.mark.slow
def test_a_stream_is_joined_with_itself_and_the_result_with_a_third() -> None:
    rows = [{"id": n % 10, "at": n * 100, "amount": n} for n in range(100)]
    flow, out = Dataflow("itself"), CollectSink()
    source = read(flow, "rows", rows, ORDERS)
    keyed = source.key_by("id")
    pairs = keyed.join("pairs", keyed, between=(SECOND, SECOND), event_time="at")
    rates = read(flow, "rates", [{"order_id": n, "at": 0, "paid": n} for n in range(10)], PAYMENTS)
    fx = pairs.key_by("id").asof_join("fx", rates.key_by("order_id"), event_time=("at_right", "at"), suffix=("", "_fx"))
    # `fx` joined by the time in `at_right`. `at` is one second older, so rows may be late for the window.
    counted = fx.key_by("paid").window("w", Tumbling(5 * SECOND), event_time="at_right")
    counted.aggregate(n=count()).sink("out", out)
    flow.run_local(parallelism=2)
    assert sum(row["n"] for row in out.rows()) == 90
    assert {row["paid"] for row in out.rows()} == set(range(10))


@pytest.mark.slow
def test_no_result_of_a_join_is_late_for_a_window_behind_it() -> None:
    orders, payments = orders_and_payments(5)
    flow, out, late = Dataflow("behind"), CollectSink(), CollectSink()
    left, right = read(flow, "orders", orders, ORDERS, 1_000), read(flow, "payments", payments, PAYMENTS, 3_500)
    full = left.key_by("id").join(
        "paid", right.key_by("order_id"), between=(-SECOND, 2 * SECOND), how="left", event_time="at"
    )
    windows = full.key_by("id").window("w", Tumbling(SECOND), event_time="at")
    results, too_late = windows.aggregate(late=True, n=count())
    results.sink("out", out)
    too_late.sink("late", late)
    flow.run_local(parallelism=2)
    assert late.rows() == []
    assert sum(row["n"] for row in out.rows()) == joined(orders, payments, -1_000, 2_000).total()


def test_a_window_join_in_a_job_and_late_rows_as_streams() -> None:
    flow, out, late = Dataflow("windows"), CollectSink(), [CollectSink(), CollectSink()]
    rows = [{"id": n % 3, "at": n * 1_000 - (30_000 if n == 50 else 0), "amount": n} for n in range(100)]
    source = read(flow, "rows", rows, ORDERS)
    keyed = source.key_by("id")
    both, *lates = keyed.window_join("both", keyed, Tumbling(3 * SECOND), event_time="at", how="full", late=True)
    both.sink("out", out)
    for stream, sink, name in zip(lates, late, ("left", "right"), strict=True):
        stream.sink(name, sink)
    flow.run_local(parallelism=1)
    for column, sink in zip(("amount", "amount_right"), late, strict=True):
        there = {row[column] for row in out.rows() if row[column] is not None}
        too_late = [row["amount"] for row in sink.rows()]
        assert sorted([*there, *too_late]) == list(range(100))
        assert set(too_late) <= {50}


def two(flow: Dataflow, **right: Any) -> tuple[Any, Any]:
    left = read(flow, "left", [], ORDERS)
    return left.key_by("id"), read(flow, "right", [], PAYMENTS, **right).key_by("order_id")


BOUNDS = (0 * SECOND, SECOND)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"between": (SECOND,)}, r"join 'j': between=.*: pass two timedeltas"),
        ({"between": (SECOND, 0 * SECOND)}, "the first bound is greater, so nothing would match: exchange them"),
        ({"between": (0 * SECOND, timedelta(days=40_000))}, "use bounds of at most 100 years"),
        ({"how": "outer"}, "how='outer': use one of inner, left, right, full, semi, anti"),
        ({"event_time": ("at", "paid_at")}, "join 'j', right stream.*'paid_at'"),
        ({"event_time": 5}, "event_time=5: give a text or a list of texts"),
        ({"suffix": ("", "")}, "pass two different endings of names"),
        ({"late": "yes"}, "late=<str>: give True or False"),
    ],
)
def test_what_a_join_cannot_be_is_refused_when_it_is_written(changed: dict[str, Any], message: str) -> None:
    left, right = two(Dataflow("f"))
    with pytest.raises(InvalidJob, match=message):
        left.join("j", right, **{"between": BOUNDS, "event_time": "at", **changed})


def test_streams_that_cannot_be_joined_are_refused_with_the_remedy() -> None:
    flow = Dataflow("f")
    left, right = two(flow)
    join: dict[str, Any] = {"between": BOUNDS, "event_time": "at"}
    with pytest.raises(InvalidJob, match="is not a keyed stream: pass the other stream with its keys"):
        left.join("j", read(flow, "plain", [], ORDERS), **join)
    with pytest.raises(InvalidJob, match="is of flow 'g', the left one of 'f': read both in one flow"):
        left.join("j", two(Dataflow("g"))[1], **join)
    silent = flow.from_iterator("silent", lambda part, of: [], schema=PAYMENTS).key_by("order_id")
    with pytest.raises(
        InvalidJob, match=r"right stream: rows are held until the watermark.*'silent' has no watermarks"
    ):
        left.join("j", silent, **join)
    text = read(flow, "text", [], {"order_id": str, "at": int}).key_by("order_id")
    with pytest.raises(InvalidJob, match="'id' is int64 on the left, and 'order_id' is string on the right: cast one"):
        left.join("j", text, **join)
    unknown = read(flow, "unknown", [], PAYMENTS).map(lambda row: row).key_by("order_id")
    with pytest.raises(InvalidJob, match=r"columns are not known before its first row.*pass schema="):
        left.join("j", unknown, **join)
    both = read(flow, "both", [], PAYMENTS).key_by("order_id", "paid")
    with pytest.raises(InvalidJob, match=r"keys \(id\), the right one \(order_id, paid\): key both by as many"):
        left.join("j", both, **join)
    with pytest.raises(InvalidJob, match="a session is made of the rows of one stream"):
        left.window_join("j", right, Session(SECOND), event_time="at")
    for window in (Count(3), Global()):
        with pytest.raises(InvalidJob, match=f"{type(window).__name__}.*has no times that rows of two streams could"):
            left.window_join("j", right, window, event_time="at")
    with pytest.raises(InvalidJob, match="exact=<str>: give True or False"):
        left.asof_join("j", right, event_time="at", exact="yes")


@pytest.mark.slow
def test_other_bounds_are_refused_before_the_run_begins(tmp_path: Any) -> None:
    def run(upper: timedelta) -> None:
        flow = Dataflow("paid")
        left, right = read(flow, "orders", ROWS, ORDERS), read(flow, "payments", [], PAYMENTS)
        stream = left.key_by("id").join(
            "paid", right.key_by("order_id"), between=(0 * SECOND, upper), how="left", event_time="at"
        )
        stream.sink("out", CollectSink())
        flow.run_local(parallelism=1, checkpoints=str(tmp_path), restore="latest")

    run(SECOND)
    with pytest.raises(Exception, match=r"left join, at - at from 0:00:00 to 0:00:0[12]"):
        run(2 * SECOND)


ROWS: Rows = [{"id": n, "at": n, "amount": n} for n in range(5)]


@pytest.mark.slow
def test_failed_join_continues_at_another_parallelism_from_unaligned_checkpoint(tmp_path: Path) -> None:
    log, total = tmp_path / "again" / "log", 20_000

    def run(parallelism: int, fails: bool) -> Rows:
        def order(row: dict[str, int]) -> dict[str, int]:
            number = row["value"]
            if fails and number > 100 and number % 50 == 0 and len(list(log.iterdir())) > 4:
                raise ValueError("enough")
            return {"id": number, "at": number, "amount": number}

        apart = SECOND * total / 1_000  # no row is late, however long a slot pauses between two splits
        flow, out = Dataflow("again"), CollectSink()
        speed = 2_000 if fails else 1_000_000
        left = flow.rate("orders", speed, total, splits=2).map(order, schema=ORDERS).with_watermarks("at", apart)
        right = flow.rate("payments", speed, total, splits=2).map(
            lambda row: {"order_id": row["value"], "at": row["value"] + 40, "paid": 1}, schema=PAYMENTS
        )
        right = right.filter("order_id % 3 <> 0").with_watermarks("at", apart)
        paid = left.key_by("id").join(
            "paid", right.key_by("order_id"), between=(SECOND * 0, SECOND / 25), how="full", event_time="at"
        )
        paid.sink("out", out)
        with pytest.raises(JobFailed, match="enough") if fails else nullcontext():
            flow.run_local(
                parallelism=parallelism,
                checkpoints=str(tmp_path),
                checkpoint_interval=0.05,
                restart="none",
                unaligned=True,
            )
        return out.rows()

    rows = run(1, fails=True)
    before = len(rows)
    rows += run(2, fails=False)
    assert 0 < before < total
    assert sorted((row["id"], row["amount"], row["paid"]) for row in rows) == [
        (number, number, 1 if number % 3 else None) for number in range(total)
    ]
