"""State with a TTL against dicts of (time, value), on both key-value stores, with the smallest caches.

Random programs mix rows in and out of order, watermarks, partial cleanups, captures, drains, aborts, crashes,
rescalings and changes of the TTL. For every interleaving, a row sees exactly the values written, or read if reads
refresh the state, less than the TTL before its own time. Cleanups are never visible.
"""

from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from barrier_runtime import TTL, ListState, MapState, ReducingState, ValueState
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.operators.state.ttl import Timing
from barrier_runtime.state.values.timed_table import ExpirySweep
from tests.drawn import examples
from tests.state.backend_model import RuntimeModel

KEYS = st.integers(0, 3)
ENTRIES = st.integers(-5, 40)
NUMBERS = st.integers(-9, 9)
AFTER_MS = st.sampled_from([-30, -1, 0, 1, 5, 30, 99, 100, 101])  # row time minus watermark
TTLS_MS = (20, 50, 100)

Held = tuple[int, Any]


class TtlModel(RuntimeModel):
    @initialize(ttl_ms=st.sampled_from(TTLS_MS))
    def start(self, ttl_ms: int) -> None:
        self.ttl_ms = ttl_ms
        self.expect((0, defaultdict(dict), defaultdict(dict), defaultdict(list), defaultdict(dict)))
        self.backend = self.bench.open()
        self.open_tables()

    def open_tables(self) -> None:
        self.current = CurrentKey()
        self.current.timing = timing = Timing(lambda: 0, lambda: self.watermark_ms)
        self.step = timing.event.context = SimpleNamespace(timestamp=0, watermark=self.watermark_ms)
        on_write, on_read = (TTL(timedelta(milliseconds=self.ttl_ms), refresh) for refresh in ("on_write", "on_read"))
        at = (self.backend, "", "here", 1, self.current, "self")
        opened = lambda name, state: state.open(at[0], name, *at[2:])  # noqa: E731
        self.last = opened("last", ValueState(list[int], ttl=on_write))
        self.peak = opened("peak", ReducingState(int, max, ttl=on_read))
        self.items = opened("items", ListState(int, ttl=on_write))
        self.counts = opened("counts", MapState(int, int, ttl=on_read))
        self.later: list[Callable[[], None]] = []
        self.now_s = 0.0
        tables = timing.tables
        self.sweep = ExpirySweep(
            tables, lambda: self.now_s, lambda seconds, call: self.later.append(call), lambda: None
        )

    def expected(self) -> Any:
        return self.watermark_ms, self.lasts, self.peaks, self.lists, self.maps

    def expect(self, state: Any) -> None:
        self.watermark_ms, self.lasts, self.peaks, self.lists, self.maps = state

    # ---- time

    def at(self, key: int, after_ms: int) -> None:
        """Starts a row of `key`, and drops from the model all values that no row can see."""
        self.current.key = (key,)
        self.step.timestamp, self.step.watermark = self.watermark_ms + after_ms, self.watermark_ms
        self.now_ms = max(self.watermark_ms, self.watermark_ms + after_ms)

    def live(self, held: Held | None) -> bool:
        return held is not None and held[0] + self.ttl_ms > self.now_ms

    def stamped(self, before: Held | None, value: Any) -> Held:
        return max(self.now_ms, before[0] if before is not None else self.now_ms), value

    def read(self, held: Any, name: Any) -> Any:
        """Returns the expected read of `held[name]` in a state that reads refresh."""
        found = held.get(name)
        if not self.live(found):
            return None
        held[name] = self.stamped(found, found[1])
        return found[1]

    @rule(by=st.sampled_from([1, 10, 49, 50, 51, 200]))
    def watermark(self, by: int) -> None:
        self.watermark_ms += by
        for held in (self.lasts[0], self.peaks[0], *self.maps.values()):
            for name in [name for name, (ms, _) in held.items() if ms + self.ttl_ms <= self.watermark_ms]:
                del held[name]
        for key, elements in self.lists.items():
            self.lists[key] = [each for each in elements if each[0] + self.ttl_ms > self.watermark_ms]

    # ---- actions of a function

    @rule(key=KEYS, after=AFTER_MS, value=NUMBERS)
    def write_value(self, key: int, after: int, value: int) -> None:
        self.at(key, after)
        self.last.update([value])
        self.lasts[0][key] = self.stamped(self.lasts[0].get(key), [value])

    @rule(key=KEYS, after=AFTER_MS)
    def read_value(self, key: int, after: int) -> None:
        self.at(key, after)
        held = self.lasts[0].get(key)
        assert self.last.value == (held[1] if self.live(held) else None)

    @rule(key=KEYS, after=AFTER_MS)
    def clear_values(self, key: int, after: int) -> None:
        self.at(key, after)
        self.last.clear()
        self.peak.clear()
        self.lasts[0].pop(key, None)
        self.peaks[0].pop(key, None)

    @rule(key=KEYS, after=AFTER_MS, value=NUMBERS)
    def add(self, key: int, after: int, value: int) -> None:
        self.at(key, after)
        before = self.read(self.peaks[0], key)
        new = value if before is None else max(before, value)
        assert self.peak.add(value) == new
        self.peaks[0][key] = self.stamped(self.peaks[0].get(key), new)

    @rule(key=KEYS, after=AFTER_MS)
    def read_peak(self, key: int, after: int) -> None:
        self.at(key, after)
        assert self.peak.value == self.read(self.peaks[0], key)

    @rule(key=KEYS, after=AFTER_MS, values=st.lists(NUMBERS, max_size=300))
    def extend(self, key: int, after: int, values: list[int]) -> None:
        self.at(key, after)
        self.items.extend(values)
        self.lists[key] += [(self.now_ms, value) for value in values]

    @rule(key=KEYS, after=AFTER_MS, values=st.lists(NUMBERS, max_size=5))
    def update(self, key: int, after: int, values: list[int]) -> None:
        self.at(key, after)
        self.items.update(values)
        self.lists[key] = [(self.now_ms, value) for value in values]

    @rule(key=KEYS, after=AFTER_MS)
    def read_list(self, key: int, after: int) -> None:
        self.at(key, after)
        expected = [value for ms, value in self.lists[key] if ms + self.ttl_ms > self.now_ms]
        assert list(self.items) == expected
        assert len(self.items) == len(expected)
        assert bool(self.items) == bool(expected)
        assert not expected or self.items[-1] == expected[-1]

    @rule(key=KEYS, after=AFTER_MS, entries=st.dictionaries(ENTRIES, NUMBERS, max_size=40))
    def put(self, key: int, after: int, entries: dict[int, int]) -> None:
        self.at(key, after)
        self.counts.update(entries)
        for entry, value in entries.items():
            self.maps[key][entry] = self.stamped(self.maps[key].get(entry), value)

    @rule(key=KEYS, after=AFTER_MS, entry=ENTRIES)
    def one_entry(self, key: int, after: int, entry: int) -> None:
        self.at(key, after)
        expected = self.read(self.maps[key], entry)
        assert (entry in self.counts) == (expected is not None)
        assert self.counts.get(entry) == expected

    @rule(key=KEYS, after=AFTER_MS, entry=ENTRIES)
    def remove(self, key: int, after: int, entry: int) -> None:
        self.at(key, after)
        expected = self.read(self.maps[key], entry)
        assert self.counts.pop(entry, None) == expected
        if expected is not None:
            del self.maps[key][entry]

    @rule(key=KEYS, after=AFTER_MS)
    def walk(self, key: int, after: int) -> None:
        self.at(key, after)
        held = self.maps[key]
        number = len(self.counts)
        expected = [(entry, self.read(held, entry)) for entry in sorted(held)]
        expected = [(entry, value) for entry, value in expected if value is not None]
        assert list(self.counts.items()) == expected
        assert number == len(expected)

    # ---- cleanups

    @rule(rest=st.booleans())
    def begin_a_sweep(self, rest: bool) -> None:
        self.now_s += 0.01 if rest else 1_000.0
        self.sweep.look()

    @precondition(lambda self: self.later)
    @rule(slices=st.integers(1, 5))
    def sweep_on(self, slices: int) -> None:
        for _ in range(slices):
            if self.later:
                self.later.pop()()

    @precondition(lambda self: self.completed is not None)
    @rule(ttl_ms=st.sampled_from(TTLS_MS), through=st.sampled_from([1, 2]))
    def another_program(self, ttl_ms: int, through: int) -> None:
        """Restores with a shorter TTL: with a longer TTL, values that a cleanup has removed would be missing."""
        self.ttl_ms = min(self.ttl_ms, ttl_ms)
        self.crash_and_restore(True, through)

    def everything_agrees(self) -> None:
        for key in range(4):
            for after in (0, 7, 60):
                self.read_value(key, after)
                self.read_list(key, after)
                self.walk(key, after)
                self.read_peak(key, after)


class RocksDbTtlModel(TtlModel):
    kind = "rocksdb"


TestTtlInMemoryAgainstDicts = TtlModel.TestCase
TestTtlInMemoryAgainstDicts.settings = examples(60, stateful_step_count=40)
TestTtlInRocksDbAgainstDicts = pytest.mark.slow(RocksDbTtlModel.TestCase)
TestTtlInRocksDbAgainstDicts.settings = examples(15, stateful_step_count=40)
