"""Keyed state against a dict: random puts, gets, deletes, captures, drains, aborts, crashes and rescalings.

For every interleaving, a table has the content of the dict, and a snapshot restores the dict's content at the barrier.
"""

from typing import Any

import numpy as np
import pytest
from backend_bench import values
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from tests.drawn import examples
from tests.state.backend_model import RuntimeModel

KEYS = st.integers(0, 40)


class KeyedBackendModel(RuntimeModel):
    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Any, Any] = {}
        self.counts: dict[Any, int] = {}
        self.evictable = False

    @initialize(evictable=st.booleans())
    def start(self, evictable: bool) -> None:
        self.evictable = evictable
        self.backend = self.bench.open()
        self.open_tables()

    def open_tables(self) -> None:
        self.table = values(self.backend)
        self.dense = self.backend.column_table("dense", {"count": ("i8", 0)}, 1, evictable=self.evictable)

    def expected(self) -> Any:
        return self.values, self.counts

    def expect(self, state: Any) -> None:
        self.values, self.counts = state

    # ---- actions of operators

    @rule(key=KEYS, value=st.lists(st.integers(0, 9), max_size=3))
    def put(self, key: int, value: list[int]) -> None:
        self.table.put((key,), list(value))
        self.values[key] = list(value)

    @rule(start=st.sampled_from([0, 20, 600, 1_200]), count=st.integers(300, 900))
    def put_many(self, start: int, count: int) -> None:
        for key in range(start, start + count):
            self.table.put((key,), [key])
            self.values[key] = [key]

    @rule(key=KEYS)
    def append_in_place(self, key: int) -> None:
        value = self.table.get((key,))
        assert value == self.values.get(key)
        if value is not None:
            value.append(7)
            self.table.put((key,), value)
            self.values[key] = list(value)

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        self.table.delete((key,))
        self.values.pop(key, None)

    @rule(key=st.integers(0, 1_500))
    def get(self, key: int) -> None:
        assert self.table.get((key,)) == self.values.get(key)

    @rule(keys=st.lists(KEYS, min_size=1, max_size=8, unique=True), fast=st.booleans())
    def count(self, keys: list[Any], fast: bool) -> None:
        row_ids = self.dense.row_ids_int64(np.array(keys)) if fast else self.dense.row_ids([(key,) for key in keys])
        assert self.dense.columns["count"][row_ids].tolist() == [self.counts.get(key, 0) for key in keys]
        self.dense.columns["count"][row_ids] += 1
        self.dense.mark_dirty(row_ids)
        for key in keys:
            self.counts[key] = self.counts.get(key, 0) + 1

    @rule(start=st.sampled_from([0, 20, 600, 1_200, 1_800]), count=st.integers(300, 900))
    def count_many(self, start: int, count: int) -> None:
        self.count(list(range(start, start + count)), True)

    @rule(numbers=st.lists(KEYS, min_size=1, max_size=4, unique=True))
    def count_texts(self, numbers: list[int]) -> None:
        """Counts text keys: one such key changes the representation of all keys, in memory and stored."""
        self.count([f"text {number}" for number in numbers], False)

    @rule(key=KEYS | KEYS.map("text {}".format))
    def remove(self, key: Any) -> None:
        if key in self.counts:
            self.dense.remove(self.dense.row_ids([(key,)]))
            del self.counts[key]

    @rule()
    def everything_agrees(self) -> None:
        assert {key[0]: value for key, value in self.table.scan()} == self.values
        if not self.evictable:  # counting would load evicted rows into memory
            self._counts_agree()

    def _counts_agree(self) -> None:
        row_ids = self.dense.load_all()
        keys = [key[0] for key in self.dense.keys_of(row_ids)]
        found = dict(zip(keys, self.dense.columns["count"][row_ids].tolist(), strict=True))
        assert {key: count for key, count in found.items() if count} == self.counts

    def teardown(self) -> None:
        if hasattr(self, "dense"):
            self._counts_agree()
        super().teardown()


class RocksDbModel(KeyedBackendModel):
    kind = "rocksdb"


TestMemoryBackendAgainstADict = KeyedBackendModel.TestCase
TestMemoryBackendAgainstADict.settings = examples(40, stateful_step_count=50)
TestRocksDbBackendAgainstADict = pytest.mark.slow(RocksDbModel.TestCase)
TestRocksDbBackendAgainstADict.settings = examples(12, stateful_step_count=50)
