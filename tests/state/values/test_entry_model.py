"""Many entries per key against dicts and lists, on both key-value stores, with the smallest caches.

Random programs mix state handles with captures, drains, aborts, crashes and rescalings. For every interleaving, state
lists and maps equal a list and a dict; maps iterate in the order of their keys, also while they change.
"""

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from barrier_runtime import ListState, MapState
from barrier_runtime.operators.state.handle import CurrentKey
from tests.drawn import examples
from tests.state.backend_model import RuntimeModel

KEYS = st.integers(0, 3)
ENTRIES = st.integers(-30, 1_500)
NUMBERS = st.integers(-9, 9)


class EntryModel(RuntimeModel):
    @initialize()
    def start(self) -> None:
        self.expect((defaultdict(list), defaultdict(dict), defaultdict(dict)))
        self.backend = self.bench.open()
        self.open_tables()

    def open_tables(self) -> None:
        self.current = CurrentKey()
        self.items = ListState(int).open(self.backend, "items", "here", 1, self.current, "self")
        self.counts = MapState(int, int).open(self.backend, "counts", "here", 1, self.current, "self")
        self.texts = MapState(str, list[int]).open(self.backend, "texts", "here", 1, self.current, "self")

    def expected(self) -> Any:
        return self.lists, self.maps, self.of_lists

    def expect(self, state: Any) -> None:
        self.lists, self.maps, self.of_lists = state

    def at(self, key: int) -> None:
        self.current.key = (key,)

    # ---- lists

    @rule(key=KEYS, value=NUMBERS)
    def append(self, key: int, value: int) -> None:
        self.at(key)
        self.items.append(value)
        self.lists[key].append(value)

    @rule(key=KEYS, count=st.sampled_from([0, 2, 300, 700]))
    def extend(self, key: int, count: int) -> None:
        self.at(key)
        self.items += range(count)
        self.lists[key] += range(count)

    @rule(key=KEYS, values=st.lists(NUMBERS, max_size=5))
    def update(self, key: int, values: list[int]) -> None:
        self.at(key)
        self.items.update(values)
        self.lists[key] = list(values)

    @rule(key=KEYS)
    def clear_list(self, key: int) -> None:
        self.at(key)
        self.items.clear()
        self.lists[key] = []

    @rule(key=KEYS, index=st.integers(-400, 400))
    def one_element(self, key: int, index: int) -> None:
        self.at(key)
        expected = self.lists[key]
        if -len(expected) <= index < len(expected):
            assert self.items[index] == expected[index]

    # ---- maps

    @rule(key=KEYS, entry=ENTRIES, value=NUMBERS)
    def put(self, key: int, entry: int, value: int) -> None:
        self.at(key)
        self.counts[entry] = value
        self.maps[key][entry] = value

    @rule(key=KEYS, start=st.sampled_from([0, 200, 800]), count=st.integers(200, 600))
    def put_many(self, key: int, start: int, count: int) -> None:
        self.at(key)
        self.counts.update((entry, entry) for entry in range(start, start + count))
        self.maps[key].update((entry, entry) for entry in range(start, start + count))

    @rule(key=KEYS, entry=ENTRIES)
    def take(self, key: int, entry: int) -> None:
        self.at(key)
        assert (entry in self.counts) == (entry in self.maps[key])
        assert self.counts.pop(entry, None) == self.maps[key].pop(entry, None)

    @rule(key=KEYS, start=st.sampled_from([0, 200, 800]), count=st.integers(200, 600))
    def remove_many(self, key: int, start: int, count: int) -> None:
        self.at(key)
        for entry in range(start, start + count):
            if entry in self.maps[key]:
                del self.counts[entry], self.maps[key][entry]

    @rule(key=KEYS)
    def clear_map(self, key: int) -> None:
        self.at(key)
        self.counts.clear()
        self.maps[key] = {}

    @rule(key=KEYS, seed=st.integers(0, 10**6), jump=st.sampled_from([1, 40]))
    def change_while_iterating(self, key: int, seed: int, jump: int) -> None:
        """Changes the map during an iteration, which always continues at the next greater present key."""
        self.at(key)
        drawn, model = random.Random(seed), self.maps[key]
        last = -(10**6)
        for entry, value in self.counts.items():
            expected = min(each for each in model if each > last)
            assert (entry, value) == (expected, model[expected])
            last = expected
            for _ in range(drawn.choice((0, 0, 1, 3))):
                other = entry + drawn.randrange(-2 * jump, 3 * jump)
                if drawn.random() < 0.6:
                    self.counts.pop(other, None)
                    model.pop(other, None)
                elif other < 1_600:
                    self.counts[other] = model[other] = drawn.randrange(100)
        assert not any(each > last for each in model)

    @rule(key=KEYS, entry=st.sampled_from(["", "a", "a\0", "ab", "é", "\U0001f600"]), value=NUMBERS)
    def grow_a_value_in_place(self, key: int, entry: str, value: int) -> None:
        self.at(key)
        values = self.texts.setdefault(entry, [])
        values.append(value)
        self.texts[entry] = values
        self.of_lists[key].setdefault(entry, []).append(value)

    # ---- all

    @rule()
    def everything_agrees(self) -> None:
        for key in range(4):
            self.at(key)
            assert list(self.items) == self.lists[key]
            assert len(self.items) == len(self.lists[key])
            assert list(self.counts.items()) == sorted(self.maps[key].items())
            assert (len(self.counts), bool(self.counts)) == (len(self.maps[key]), bool(self.maps[key]))
            assert list(self.texts.items()) == sorted(self.of_lists[key].items())
            assert list(self.texts) == sorted(self.of_lists[key])


class RocksDbEntryModel(EntryModel):
    kind = "rocksdb"


TestEntriesInMemoryAgainstListsAndDicts = EntryModel.TestCase
TestEntriesInMemoryAgainstListsAndDicts.settings = examples(30, stateful_step_count=30)
TestEntriesInRocksDbAgainstListsAndDicts = pytest.mark.slow(RocksDbEntryModel.TestCase)
TestEntriesInRocksDbAgainstListsAndDicts.settings = examples(12, stateful_step_count=30)
