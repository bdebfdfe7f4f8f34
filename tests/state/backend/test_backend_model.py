"""Keyed state against a plain dict: random puts, gets, deletes, freezes, drains, aborts, crashes and rescalings.

Whatever the interleaving, a table says what the dict says, and a snapshot restores to the dict as it was at its
barrier.
"""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from backend_bench import Bench, drain, of_operator, values
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.backend.restore import BackendKind
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from tests.drawn import examples

KEYS = st.integers(0, 40)


class KeyedBackendModel(RuleBasedStateMachine):
    kind: BackendKind = "memory"

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp(prefix="backend-model-"))
        self.bench = Bench(self.directory, self.kind, cache_bytes=1)  # the smallest caches there can be
        self.checkpoint = 0
        self.completed: tuple[KeyedSnapshot, dict[Any, Any], dict[Any, int]] | None = None
        self.in_flight: dict[int, tuple[dict[Any, Any], dict[Any, int]]] = {}
        self.written: dict[int, KeyedSnapshot] = {}
        self.values: dict[Any, Any] = {}
        self.counts: dict[Any, int] = {}
        self.evictable = False

    @initialize(evictable=st.booleans())
    def start(self, evictable: bool) -> None:
        self.evictable = evictable
        self._opened(self.bench.open())

    def _opened(self, backend: KeyedBackend) -> None:
        self.backend = backend
        self.table = values(backend)
        self.dense = backend.column_table("dense", {"count": ("i8", 0)}, 1, evictable=self.evictable)

    # ---- what operators do

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
        """Keys that are no ints change how all are held and written."""
        self.count([f"text {number}" for number in numbers], False)

    @rule(key=KEYS | KEYS.map("text {}".format))
    def remove(self, key: Any) -> None:
        if key in self.counts:
            self.dense.remove(self.dense.row_ids([(key,)]))
            del self.counts[key]

    # ---- what the runtime does

    @precondition(lambda self: len(self.in_flight) < 3)
    @rule()
    def freeze(self) -> None:
        self.checkpoint += 1
        self.backend.freeze(self.checkpoint)
        self.in_flight[self.checkpoint] = (_copy(self.values), dict(self.counts))

    @rule(entries=st.integers(1, 400))
    def drain_a_slice(self, entries: int) -> None:
        self.backend.drain(entries)

    @precondition(lambda self: set(self.in_flight) - set(self.written))
    @rule(complete=st.booleans())
    def write_the_oldest(self, complete: bool) -> None:
        number = min(set(self.in_flight) - set(self.written))
        drain(self.backend)
        self.written[number] = self.backend.write_snapshot(number)
        if complete:
            self.complete_the_newest_written()

    @precondition(lambda self: self.in_flight)
    @rule(sure=st.sampled_from([True, False, False]))
    def abort_the_newest(self, sure: bool) -> None:
        if sure:
            number = max(self.in_flight)
            self.backend.aborted(number)
            self.written.pop(number, None)
            del self.in_flight[number]

    @precondition(lambda self: self.written)
    @rule()
    def complete_the_newest_written(self) -> None:
        number = max(self.written)
        self.backend.completed(number)
        self.completed = (self.written[number], *self.in_flight[number])
        self.in_flight = {later: state for later, state in self.in_flight.items() if later > number}
        self.written = {}

    @precondition(lambda self: self.completed is not None)
    @rule(keep_copies=st.booleans(), through=st.sampled_from([1, 2, 3]))
    def crash_and_restore(self, keep_copies: bool, through: int) -> None:
        """Roll back to the last completed checkpoint, maybe on a fresh slot, maybe by way of another parallelism."""
        self.backend.close()
        if not keep_copies:
            self.bench.copies = LocalCopies()
        self.in_flight, self.written = {}, {}
        assert self.completed is not None
        self.values, self.counts = _copy(self.completed[1]), dict(self.completed[2])
        restored = [of_operator(self.completed[0])]
        if through > 1:
            restored = self._rescaled(restored, through)
        self._opened(self.bench.open(restored))
        self.everything_agrees()

    def _rescaled(self, restored: list[Any], through: int) -> list[Any]:
        self.checkpoint += 1
        rescaled = []
        for subtask in range(through):
            part = self.bench.open(restored, subtask, through)
            part.freeze(self.checkpoint)
            drain(part)
            rescaled.append(of_operator(part.write_snapshot(self.checkpoint), subtask, through))
            part.close()
        return rescaled

    @rule()
    def everything_agrees(self) -> None:
        assert {key[0]: value for key, value in self.table.scan()} == self.values
        if not self.evictable:  # else it would bring everything into memory
            self._counts_agree()

    def _counts_agree(self) -> None:
        row_ids = self.dense.load_all()
        keys = [key[0] for key in self.dense.keys_of(row_ids)]
        found = dict(zip(keys, self.dense.columns["count"][row_ids].tolist(), strict=True))
        assert {key: count for key, count in found.items() if count} == self.counts

    def teardown(self) -> None:
        try:
            if hasattr(self, "backend"):
                self.everything_agrees()
                self._counts_agree()
                self.backend.close()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


def _copy(state: dict[Any, Any]) -> dict[Any, Any]:
    return {key: list(value) for key, value in state.items()}


class RocksDbModel(KeyedBackendModel):
    kind = "rocksdb"


TestMemoryBackendAgainstADict = KeyedBackendModel.TestCase
TestMemoryBackendAgainstADict.settings = examples(40, stateful_step_count=50)
TestRocksDbBackendAgainstADict = RocksDbModel.TestCase
TestRocksDbBackendAgainstADict.settings = examples(12, stateful_step_count=50)
