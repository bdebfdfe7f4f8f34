"""Results of `migrate=` are stored: in every kind of state each entry is migrated once, however often it is read,
except entries that a crash rolled back.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import Driven, World

from barrier_runtime import TTL, ListState, MapState, Retry, ValueState
from barrier_runtime.operators.functions.process import ProcessOperator
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from tests.drawn import examples

KEYS = 200  # more than the cache holds
HOUR = TTL(timedelta(hours=1), clock="processing")
Row = dict[str, Any]


def step(one: Any, entries: Any, items: Any) -> type:
    class Step:
        value = one
        by_name = entries
        listed = items

        def process(self, key: int, row: Row, ctx: Any) -> Iterator[Row]:
            what, number = row["what"], row["n"]
            if what == "put":
                self.value.value = number
                self.by_name[number % 3] = number
                self.listed.append(number)
            elif what == "delete":
                self.value.clear()
                self.by_name.pop(number % 3, None)
                self.listed.clear()
            elif what == "one":
                yield {"found": [self.by_name.get(number % 3) or 0]}
                return
            yield {"found": [self.value.value or 0, *self.by_name.values(), *self.listed]}

    return Step


def opened(world: World, version: Any, restored: tuple[OperatorSnapshot, ...] = (), retry: bool = False) -> Driven:
    on_error: Any = Retry(1) if retry else "fail"
    return Driven(ProcessOperator("op", ["k"], version, on_error=on_error), world, restored)


def read(driven: Driven, *rows: tuple[int, str, int]) -> list[Any]:
    driven.feed([{"k": key, "what": what, "n": number} for key, what, number in rows])
    return [row["found"] for row in driven.take()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "ttl", "retry"), [("rocksdb", None, False), ("memory", HOUR, True)])
def test_an_entry_is_made_new_once_however_often_it_is_read(kind: Any, ttl: TTL | None, retry: bool) -> None:
    made: Counter[int] = Counter()

    def cents(euros: int) -> int:
        made[euros] += 1
        return euros * 100

    old = step(ValueState(int, ttl=ttl), MapState(int, int, ttl=ttl), ListState(int, ttl=ttl))
    changed: dict[str, Any] = {"ttl": ttl, "migrate": cents}
    new = step(ValueState(int, **changed), MapState(int, int, **changed), ListState(int, **changed))
    world = World(kind, cache_bytes=40_000)
    driven = opened(world, old)
    read(driven, *[(key, "put", key + 1) for key in range(KEYS)])
    snapshot = driven.snapshot(1)
    driven.operator.close()

    looks = [(key, "look", 0) for key in range(KEYS)]
    expected = [[100 * (key + 1)] * 3 for key in range(KEYS)]
    driven = opened(world, new, (snapshot,), retry)
    for _ in range(3):
        assert read(driven, *looks) == expected
    assert made == dict.fromkeys(range(1, KEYS + 1), 3), "one value, one entry of a map, one of a list"
    for table in driven.operator.backend._tables.values():  # type: ignore[attr-defined]
        assert table.frozen_entries <= 200, "what is written again does not pile up"
    snapshot = driven.snapshot(2)
    assert read(driven, *looks) == expected
    driven.operator.close()
    driven = opened(world, new, (snapshot,), retry)
    assert read(driven, *looks) == expected
    driven.operator.close()
    assert set(made.values()) == {3}


STEP = st.one_of(
    st.tuples(st.integers(0, 3), st.sampled_from(["put", "delete", "look", "one"]), st.integers(1, 9)),
    st.sampled_from(["checkpoint", "restore"]),
)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.just("put"), st.integers(1, 9)), max_size=8), st.lists(STEP, max_size=20)
)
@examples(60)
def test_values_are_those_of_a_dict_whatever_comes_between(first: list[Any], steps: list[Any]) -> None:
    old = step(ValueState(int), MapState(int, int), ListState(int))
    changed = {"migrate": lambda value: value + 1_000}
    new = step(ValueState(int, **changed), MapState(int, int, **changed), ListState(int, **changed))
    world = World(cache_bytes=1)
    driven, model = opened(world, old), Model()
    for each in first:
        assert read(driven, each) == model.told(*each)
    snapshot, taken = driven.snapshot(1), model.copy(1_000)
    driven.operator.close()
    driven, model = opened(world, new, (snapshot,)), taken.copy()
    for number, each in enumerate(steps, 2):
        if each == "checkpoint":
            snapshot, taken = driven.snapshot(number), model.copy()
        elif each == "restore":
            driven.operator.close()
            driven, model = opened(world, new, (snapshot,)), taken.copy()
        else:
            assert read(driven, each) == model.told(*each)
    driven.operator.close()


class Model:
    def __init__(self) -> None:
        self.values: dict[int, int] = {}
        self.maps: dict[int, dict[int, int]] = {}
        self.lists: dict[int, list[int]] = {}

    def copy(self, more: int = 0) -> "Model":
        copy = Model()
        copy.values = {key: value + more for key, value in self.values.items()}
        copy.maps = {key: {name: value + more for name, value in each.items()} for key, each in self.maps.items()}
        copy.lists = {key: [value + more for value in each] for key, each in self.lists.items()}
        return copy

    def told(self, key: int, what: str, number: int) -> list[Any]:
        entries, items = self.maps.setdefault(key, {}), self.lists.setdefault(key, [])
        if what == "put":
            self.values[key] = entries[number % 3] = number
            items.append(number)
        elif what == "delete":
            self.values.pop(key, None)
            entries.pop(number % 3, None)
            items.clear()
        elif what == "one":
            return [[entries.get(number % 3) or 0]]
        return [[self.values.get(key) or 0, *(entries[name] for name in sorted(entries)), *items]]
