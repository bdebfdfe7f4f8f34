"""Checkpoint contents other than keyed state, as tables: rows in flight, rows of joins, broadcast
state, transactions.
"""

import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from barrier_runtime import BroadcastState, Dataflow, ValueState, connect
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state_tables import open_checkpoint
from tests.barrier_runtime.running_job import RunningJob, Target
from tests.unpacked import unpack

STORED = Path(__file__).parents[2] / "stored"


@pytest.fixture(scope="module")
def unaligned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Checkpoint folder of a job of an earlier release, with rows in flight and pending transactions."""
    folder = tmp_path_factory.mktemp("unaligned")
    unpack(STORED / "f69d69f-unaligned.tar.xz", folder)
    return str(folder / "checkpoints")


def test_what_was_read_is_either_in_state_or_in_flight(unaligned: str) -> None:
    with open_checkpoint(unaligned, "stored", pin=False) as stored:
        read = sum(row["rows"] for row in stored.positions().to_pylist() if row["source"] == "fixed")
        seen = {row["key_1"]: int(row["value"]) for row in stored.table("quiet", "seen").read_all().to_pylist()}
        ways = [each for each in stored.tables() if each.kind == "in flight" and each.operator == "quiet"]
        waiting = [row for way in ways for row in stored.table("quiet", way.state).read_all().to_pylist()]
        one = stored.table("quiet", ways[0].state, {"k": waiting[0]["k"]}).read_all().to_pylist()
        with pytest.raises(InvalidJob, match=r"quiet\.in_flight_0: it has no column 'sensor', it has k, n, x, at"):
            stored.table("quiet", ways[0].state, {"sensor": 1})
    assert waiting, "nothing was in flight"
    assert sum(seen.values()) + len(waiting) == read
    assert one == [row for row in waiting if row["k"] == waiting[0]["k"]]
    in_flight = Counter(row["k"] for row in waiting)
    numbers = [row["n"] for row in waiting]
    assert len(set(numbers)) == len(numbers)
    for key, rows in in_flight.items():  # the first rows of a key are in state, the later ones in flight
        first = min(row["n"] for row in waiting if row["k"] == key)
        assert seen.get(key, 0) <= first // 7 + 1
        assert rows > 0


def test_transactions_that_wait_are_listed(unaligned: str) -> None:
    with open_checkpoint(unaligned, "stored", pin=False) as stored:
        pending = stored.pending().to_pylist()
        newest = stored.checkpoint
    assert {row["sink"] for row in pending} <= {"windows-out", "running-out", "quiet-out", "once-out"}
    assert pending, "nothing was pending"
    assert all(0 < row["checkpoint"] <= newest and row["committable"] for row in pending)


def waiting_rows(rows: list[dict[str, Any]], over: list[bool], key: str, start: int | str) -> Any:
    """Yields `rows`, and then rows of distinct keys after `start`, until `over` is set."""

    def given(index: int, of: int) -> Iterator[dict[str, Any]]:
        yield from rows
        number = 0
        while not over:
            number += 1
            yield {**rows[-1], key: start + number if isinstance(start, int) else f"{start}{number}"}
            time.sleep(0.01)

    return given


async def stored_rows(flow: Dataflow, target: Target, many: int, folder: Path, over: list[bool]) -> str:
    """Writes a savepoint of the job after `many` rows."""
    job = RunningJob(flow, folder / "job", parallelism=2)
    try:
        await job.rows_in(target, many)
        await job.savepoint(str(folder / "savepoint"))
    finally:
        over.append(True)
        await job.stop()
    return str(folder / "savepoint")


@pytest.mark.slow
async def test_rows_that_a_join_holds_tell_whether_they_have_met_a_partner(tmp_path: Path) -> None:
    over: list[bool] = []
    orders = [{"id": n, "at": n} for n in range(20)]
    payments = [{"order": n, "at": n, "eur": 10 * n} for n in range(0, 20, 2)]
    flow, target = Dataflow("paid"), Target()
    options: dict[str, Any] = {"splits": 1, "event_time": "at", "max_out_of_orderness": timedelta(hours=1)}
    left = flow.from_iterator(
        "orders", waiting_rows(orders, over, "id", 1_000), schema={"id": int, "at": int}, **options
    )
    shape = {"order": int, "at": int, "eur": int}
    right = flow.from_iterator("payments", waiting_rows(payments, over, "order", 1_000_000), schema=shape, **options)
    paid = left.key_by("id").join(
        "paid", right.key_by("order"), between=(timedelta(0), timedelta(hours=1)), how="inner", event_time="at"
    )
    paid.sink("out", target)
    url = await stored_rows(flow, target, 10, tmp_path, over)
    with open_checkpoint(url) as stored:
        kinds = {each.state: each.kind for each in stored.tables() if each.operator == "paid"}
        of_orders = stored.table("paid", "left").read_all().to_pylist()
        of_payments = stored.table("paid", "right").read_all().to_pylist()
        assert stored.table("paid", "right", {"order": 4}).read_all().to_pylist() == [
            row for row in of_payments if row["order"] == 4
        ]
    assert (kinds["left"], kinds["right"]) == ("join", "join")
    assert sorted(row["id"] for row in of_orders if row["id"] < 1_000) == list(range(20))
    own = [(row["order"], row["eur"]) for row in of_payments if row["order"] < 1_000_000]
    assert sorted(own) == [(n, 10 * n) for n in range(0, 20, 2)]
    assert {"id", "at", "matched"} == of_orders[0].keys()


class Check:
    limits = BroadcastState(str, float)
    seen = ValueState(int, default=0)

    def on_rules(self, row: dict[str, Any], ctx: Any) -> None:
        self.limits[row["shop"]] = row["most"]

    def on_orders(self, key: int, row: dict[str, Any], ctx: Any) -> Iterator[dict[str, Any]]:
        self.seen.value += 1
        yield {"id": key}


@pytest.mark.slow
async def test_broadcast_state_is_a_map(tmp_path: Path) -> None:
    over: list[bool] = []
    flow, target = Dataflow("checked"), Target()
    rules = [{"shop": f"s{n}", "most": n / 2} for n in range(5)]
    orders = flow.from_iterator(
        "orders", waiting_rows([{"id": n} for n in range(30)], over, "id", 1_000), schema={"id": int}, splits=1
    )
    ruled = flow.from_iterator(
        "rules", waiting_rows(rules, over, "shop", "later-"), schema={"shop": str, "most": float}, splits=1
    )
    checked = connect(orders=orders.key_by("id"), rules=ruled.broadcast())
    checked.process("check", Check, schema={"id": int}).sink("out", target)
    job = RunningJob(flow, tmp_path / "job", parallelism=2)
    found: list[dict[str, Any]] = []
    try:
        await job.rows_in(target, 30)
        for attempt in range(200):  # rules and orders arrive concurrently
            await job.savepoint(str(tmp_path / f"savepoint-{attempt}"))
            with open_checkpoint(str(tmp_path / f"savepoint-{attempt}")) as stored:
                (info,) = [each for each in stored.tables() if each.state == "limits"]
                found = stored.table("check", "limits").read_all().to_pylist()
                one = stored.table("check", "limits", {"entry": "s3"}).read_all().to_pylist()
            if len(found) >= 5:
                break
    finally:
        over.append(True)
        await job.stop()
    assert (info.kind, info.type) == ("broadcast", "float")
    assert found[:5] == [{"entry": f"s{n}", "value": n / 2} for n in range(5)], "in the order in which they came"
    assert one == [{"entry": "s3", "value": 1.5}]
