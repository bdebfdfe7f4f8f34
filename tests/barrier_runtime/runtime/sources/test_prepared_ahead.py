"""Threads prepare readers that query a store first, before their turn, so the loop never waits for a reader."""

import threading
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from operator_harness import World
from source_harness import drained, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.connectors.source import Polled, Split
from barrier_runtime.connectors.source_bases.ranges import THREADS
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.state.errors import Unavailable
from tests.waiting import until

SCHEMA = pa.schema([("split", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("ms"))])
SECOND_NS = 1_000_000_000


class Far:
    """Splits of three rows in a store that answers once `answers` is set."""

    exactly_once = True
    schema = SCHEMA

    def __init__(self, count: int, broken: str = "") -> None:
        self.ids = [f"{n:03}" for n in range(count)]
        self.broken = broken
        self.answers = threading.Event()
        self.begun: list[str] = []
        self.prepared: list[str] = []
        self.closed: list[str] = []

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split(id, b"", 1) for id in self.ids]

    def reader(self, split: Split) -> "FarReader":
        return FarReader(self, split.id)


class FarReader:
    remote = True

    def __init__(self, source: Far, id: str) -> None:
        self._source, self._id = source, id
        self._n = 0
        self._open = self._preparing = self._closed = False

    def prepare(self) -> None:
        self._preparing = True
        self._source.begun.append(self._id)
        assert self._source.answers.wait(60)
        if self._id == self._source.broken:
            raise Unavailable(f"{self._id} is away")
        assert not self._closed
        self._open, self._preparing = True, False
        self._source.prepared.append(self._id)

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        assert self._open, "it was asked before it was prepared"
        row = {"split": self._id, "n": self._n, "at": self._n}
        self._n += 1
        return Polled(pa.RecordBatch.from_pylist([row], schema=SCHEMA), now_ns)

    @property
    def finished(self) -> bool:
        return self._n == 3

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        assert not self._preparing
        return str(self._n).encode()

    def seek(self, position: bytes) -> None:
        self._n = int(position)

    def close(self) -> None:
        self._closed = True
        self._source.closed.append(self._id)


def all_of(source: Far) -> list[tuple[str, int]]:
    return [(id, n) for id in source.ids for n in range(3)]


def read(driver: SourceDriver) -> list[tuple[str, int]]:
    return sorted((row["split"], row["n"]) for row in rows_of(drained(driver)))


def test_the_loop_waits_for_no_answer_and_is_woken_by_it() -> None:
    source, world, woken = Far(3), World(), threading.Event()
    context = world.context("src")
    object.__setattr__(context, "wake_from_thread", woken.set)
    driver = SourceDriver()
    driver.open(context, spec_of(source))
    assert driver.poll(SECOND_NS) is None
    assert driver.next_due_ns() == 2 * SECOND_NS  # not as soon as possible
    assert not driver.idle
    source.answers.set()
    assert woken.wait(60)
    assert driver.next_due_ns() is None
    assert read(driver) == all_of(source)
    driver.close()
    assert sorted(source.closed) == source.ids


@pytest.mark.parametrize("event_time", [None, "at"])
def test_every_row_of_many_splits_comes_once(event_time: str | None) -> None:
    source = Far(150)
    source.answers.set()
    driver = opened(spec_of(source, event_time=event_time, max_out_of_orderness_ms=0), World())
    assert read(driver) == all_of(source)
    assert sorted(source.prepared) == source.ids
    driver.close()


def test_few_splits_are_prepared_before_their_turn() -> None:
    source = Far(150)
    source.answers.set()
    driver = opened(spec_of(source), World())
    first: dict[str, int] = {}
    while len(first) < len(source.ids):
        batch = driver.poll(0)
        for row in rows_of([batch]) if batch is not None else ():
            first.setdefault(row["split"], len(first))
        assert len(source.prepared) - len(first) <= 65
    assert read(driver)
    driver.close()


def test_a_snapshot_tells_where_splits_were_that_are_being_prepared() -> None:
    source, world = Far(2), World()
    source.answers.set()
    driver = opened(spec_of(source), world)
    rows: list[dict[str, Any]] = []
    while len(rows) < 3:
        batch = driver.poll(0)
        rows += rows_of([batch]) if batch is not None else []
    snapshot = snapshot_of(driver, world)
    driver.close()
    slow = Far(2)
    driver = opened(spec_of(slow), world, (snapshot,))
    assert driver.poll(0) is None
    snapshot = snapshot_of(driver, world)
    assert driver.records == 3
    slow.answers.set()
    driver.close()
    source = Far(2)
    source.answers.set()
    driver = opened(spec_of(source), world, (snapshot,))
    assert sorted(read(driver) + [(row["split"], row["n"]) for row in rows]) == all_of(source)
    driver.close()


def test_a_split_that_was_restored_far_on_lets_those_before_it_go_first() -> None:
    """More new splits than are prepared ahead exist, and all are behind the restored split in event time."""
    few, world = Far(1), World()
    few.answers.set()
    spec: dict[str, Any] = {"event_time": "at", "max_out_of_orderness_ms": 0}
    driver = opened(spec_of(few, **spec), world)
    while driver.records < 2:
        driver.poll(0)
    snapshot = snapshot_of(driver, world)
    driver.close()
    many = Far(100)
    many.answers.set()
    driver = opened(spec_of(many, **spec), world, (snapshot,))
    assert read(driver) == all_of(many)[2:]
    driver.close()


def test_an_error_of_a_thread_is_raised_when_the_split_has_its_turn() -> None:
    source = Far(3, broken="001")
    source.answers.set()
    driver = opened(spec_of(source), World())
    with pytest.raises(Unavailable, match="001 is away"):
        drained(driver)
    driver.close()
    assert sorted(source.closed) == source.ids


def test_a_reader_that_is_being_prepared_is_closed_after_that() -> None:
    source = Far(40)
    driver = opened(spec_of(source), World())
    assert driver.poll(0) is None
    until(lambda: len(source.begun) == THREADS, "every thread prepares a reader")
    driver.close()
    assert sorted(source.closed) == sorted(set(source.ids) - set(source.begun)), "the others were never begun"
    source.answers.set()
    until(lambda: len(source.closed) == 40, "the threads have closed their readers")
    assert sorted(source.closed) == source.ids
