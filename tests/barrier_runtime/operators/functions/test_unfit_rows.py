"""Rows that are no instances of their class fail as rows whose function raises."""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from barrier_runtime import CollectSink, Dataflow, IteratorSource
from barrier_runtime.state.errors import BarrierRuntimeError

COLUMNS = {"id": int, "price": float, "kind": str}
NEVER: Iterator[int] = iter(())


class Kind(enum.Enum):
    WEB = "web"


@dataclass
class Order:
    id: int
    price: float
    kind: Kind

    def __post_init__(self) -> None:
        if self.price == 0:
            next(NEVER)
        if self.price < 0:
            raise ArithmeticError("a negative price")


GOOD = {"id": 1, "price": 1.0, "kind": "web"}
BAD = {
    "ArithmeticError: a negative price": {**GOOD, "price": -1.0},
    "'shop' is no value of the enum Kind": {**GOOD, "kind": "shop"},
    "Order.price is null": {**GOOD, "price": None},
    "the constructor raised StopIteration": {**GOOD, "price": 0.0},
}


def price(order: Order, ctx: Any = None) -> dict[str, Any]:
    return {"id": order.id}


class Keyed:
    def process(self, key: int, order: Order, ctx: Any) -> dict[str, Any]:
        return {"id": order.id}


STEPS: dict[str, Any] = {
    "map": lambda rows, how: rows.map(price, schema={"id": int}, **how),
    "flat_map": lambda rows, how: rows.flat_map(lambda order: [price(order)], schema={"id": int}, **how),
    "filter": lambda rows, how: rows.filter(lambda order: bool(price(order)), **how),
    "process": lambda rows, how: rows.process("p", price, schema={"id": int}, **how),
    "keyed": lambda rows, how: rows.key_by("id").process("p", Keyed, schema={"id": int}, **how),
}


def given(step: str, rows: list[dict[str, Any]], **how: Any) -> tuple[list[int], list[dict[str, Any]]]:
    flow, out, errors = Dataflow("unfit"), CollectSink(), CollectSink()
    source = IteratorSource(lambda index, of: rows if index == 0 else [], schema=COLUMNS)
    made = STEPS[step](flow.source("in", source).typed(Order), how)
    if how.get("on_error") == "side":
        made, failed = made
        failed.sink("failed", errors)
    made.sink("out", out)
    flow.run_local()
    return sorted(row["id"] for row in out.rows()), errors.rows()


@pytest.mark.parametrize("step", STEPS)
def test_rows_that_are_no_instances_go_where_on_error_says(step: str) -> None:
    bad = [{**row, "id": 10 + number} for number, row in enumerate(BAD.values())]
    good = [{**GOOD, "id": number} for number in range(3)]
    ids, errors = given(step, [good[0], *bad, *good[1:]], on_error="side")
    assert ids == [0, 1, 2]
    told = sorted(errors, key=lambda error: error["row"] or "")
    assert [f'"id":{row["id"]}' in error["row"] for row, error in zip(bad, told, strict=True)] == [True] * len(bad)
    for says, error in zip(BAD, told, strict=True):
        assert says in f"{error['error_type']}: {error['message']}"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("says", BAD)
def test_without_on_error_the_error_names_step_key_and_record(step: str, says: str) -> None:
    bad = {**BAD[says], "id": 10}
    with pytest.raises(BarrierRuntimeError, match="of operator") as told:
        given(step, [GOOD, bad, GOOD])
    assert says in str(told.value)
    assert "record: {'id': 10" in str(told.value)
    assert ("key: 10" in str(told.value)) == (step == "keyed")


def test_a_split_skips_rows_that_are_no_instances() -> None:
    flow, out = Dataflow("unfit"), CollectSink()
    source = IteratorSource(lambda index, of: [*BAD.values(), GOOD] if index == 0 else [], schema=COLUMNS)
    rows = flow.source("in", source).typed(Order)
    cheap, dear = rows.split("by-price", lambda order: "cheap", into=("cheap", "dear"), on_error="skip")
    cheap.union(dear).sink("out", out)
    with pytest.warns(UserWarning, match="the row is skipped"):
        flow.run_local()
    assert [row["id"] for row in out.rows()] == [1]
