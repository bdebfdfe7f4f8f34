"""Sources with rows from a thread: the slot sleeps until the thread wakes the slot, and no row is left behind.

| the queue of the loop | the thread            | then                                                             |
|---|---|---|
| empty                 | puts                  | wakes: the loop looks                                            |
| has rows              | puts                  | does not: the loop asks again as long as there is something      |
| is being emptied      | puts                  | whoever comes second sees it: the loop takes it, or is woken     |
| any                   | fails                 | wakes: trouble is met where it lies                              |
"""

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from operator_harness import World
from source_harness import names, opened, spec_of

from barrier_runtime import Dataflow
from barrier_runtime.connectors.discovery import ListingThread
from barrier_runtime.connectors.kafka.source import partition_queue
from barrier_runtime.connectors.kafka.source.partition_queue import Fetched, PartitionQueue
from barrier_runtime.connectors.kafka.source.position import KafkaPosition, KafkaSplit
from barrier_runtime.connectors.kafka.source.reader import KafkaReader
from barrier_runtime.connectors.memory import poll
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.source import Polled, Split, Waking
from barrier_runtime.state.errors import InvalidJob, Unavailable
from tests.drawn import seeds
from tests.stepped_threads import Stepper

SCHEMA = pa.schema([("n", pa.int64())])
HOUR_NS = 3_600_000_000_000


def chunk(offset: int) -> Fetched:
    return Fetched(pa.record_batch({"n": [offset]}), [offset], offset + 1, None, at_ns=0)


def queue(wake: Callable[[], None]) -> PartitionQueue:
    return PartitionQueue("t", 0, KafkaPosition(0), "here", wake)


# ---------------------------------------------------------------- the queue of a partition


def test_the_first_of_several_chunks_wakes_and_trouble_does() -> None:
    woken: list[str] = []
    source = queue(lambda: woken.append("woken"))
    source.put(chunk(0))
    source.put(chunk(1))
    assert len(woken) == 1
    assert source.take(100) is not None
    source.put(chunk(2))
    assert len(woken) == 2
    source.fail(Unavailable("the broker is gone"))
    assert len(woken) == 3


@pytest.mark.parametrize("seed", seeds(60))
def test_a_loop_that_sleeps_unless_it_is_woken_takes_every_row(seed: int) -> None:
    """Thread and loop alternate at any line. The loop sleeps if the queue was empty and no wake-up arrived since."""
    stepper, chance, woken = Stepper(seed, [partition_queue]), random.Random(seed), [True]
    taken: list[int] = []

    def wake() -> None:
        woken[0] = True

    source = queue(wake)

    def fill() -> None:
        for offset in range(12):
            source.put(chunk(offset))

    def loop() -> None:
        while len(taken) < 12:
            stepper.wait_until(lambda: woken[0])
            woken[0] = False
            while (found := source.take(chance.choice([1, 2, 100]))) is not None:
                taken.extend(found.rows.column("n").to_pylist())

    stepper.run(thread=fill, loop=loop)
    assert taken == list(range(12))


def test_a_reader_of_kafka_is_not_asked_meanwhile_but_wakes_its_slot() -> None:
    joined: list[PartitionQueue] = []
    woken = threading.Event()

    class Pool:
        rest_s = 0.0

        def join(self, queue: PartitionQueue) -> Any:
            joined.append(queue)
            return self

        def poll(self) -> None:
            """Raises nothing: the thread runs without error."""

    pool = Pool()
    reader = KafkaReader("src", KafkaSplit("t", 0, 0), pool)  # type: ignore[arg-type]
    assert isinstance(reader, Waking)
    reader.wake_by(woken.set)
    reader.gather_for(0.005)
    assert reader.poll(10, HOUR_NS) is None
    assert pool.rest_s == 0.005
    due_ns = reader.next_due_ns()
    assert due_ns is not None
    assert due_ns >= HOUR_NS + 100_000_000
    assert not woken.is_set()
    joined[0].put(chunk(0))
    assert woken.is_set()
    assert reader.next_due_ns() is None


# ---------------------------------------------------------------- discovery


def test_listing_wakes_after_a_find_or_a_failure_and_the_driver_polls_seldom() -> None:
    answers: deque[Sequence[Split] | Exception] = deque([[Split("a")], [Split("a")], InvalidJob("no such folder")])
    turns, looked = threading.Semaphore(0), threading.Semaphore(0)

    def list_splits() -> Sequence[Split]:
        turns.acquire()
        looked.release()
        answer = answers.popleft()
        if isinstance(answer, Exception):
            raise answer
        return answer

    listing = ListingThread(list_splits, names(), 0.0, "waking")
    woken = threading.Semaphore(0)
    listing.wake_by(woken.release)
    assert woken.acquire(timeout=30)  # splits found before `wake_by` also wake
    turns.release()
    assert woken.acquire(timeout=30)
    assert [split.id for split in listing.found()] == ["a"]
    turns.release()  # nothing new: no wake-up
    turns.release()
    assert woken.acquire(timeout=30)
    with pytest.raises(InvalidJob, match="no such folder"):
        listing.found()
    assert not woken.acquire(blocking=False)


class Rows:
    """Rows of a thread; a slot that polls by the clock would wait for an hour."""

    exactly_once = True
    schema = SCHEMA

    def __init__(self, count: int) -> None:
        self.count = count

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [Split("0")]

    def reader(self, split: Split) -> "RowsReader":
        return RowsReader(self.count)


class RowsReader:
    def __init__(self, count: int) -> None:
        self._count = count
        self._taken = 0
        self._come: deque[int] = deque()
        self._asked = threading.Event()  # in vain: the slot is about to sleep

    @property
    def finished(self) -> bool:
        return self._taken == self._count

    def wake_by(self, wake: Callable[[], None]) -> None:
        def come() -> None:
            for number in range(self._count):
                self._asked.wait()
                self._asked.clear()
                self._come.append(number)
                wake()

        threading.Thread(target=come, daemon=True).start()

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        if not self._come:
            self._asked.set()
            return None
        self._taken += 1
        return Polled(pa.record_batch({"n": [self._come.popleft()]}), now_ns)

    def next_due_ns(self) -> int | None:
        return None if self._come or not self._asked.is_set() else 1 << 62

    def position(self) -> bytes:
        return b"{}"

    def seek(self, position: bytes) -> None:
        """Never called: this test restores no reader."""

    def close(self) -> None:
        """Does nothing: the thread ends with the last row."""


def test_every_row_of_a_waking_source_comes_through_though_none_is_due_for_an_hour() -> None:
    flow = Dataflow("waking")
    sink = CollectSink()
    flow.source("rows", Rows(300)).sink("out", sink)
    flow.run_local(parallelism=1, checkpoint_interval=3_600.0)
    assert [row["n"] for row in sink.rows()] == list(range(300))


def test_a_call_of_the_thread_makes_a_split_due_whatever_the_reader_said_before() -> None:
    class Reader(RowsReader):
        def next_due_ns(self) -> int | None:
            return 1 << 62 if self._asked.is_set() else None

        def poll(self, max_rows: int, now_ns: int) -> Polled | None:
            polled = super().poll(max_rows, now_ns)
            self._asked.set()  # for the next row
            return polled

    class Source(Rows):
        def reader(self, split: Split) -> Reader:
            return Reader(self.count)

    flow = Dataflow("waking")
    sink = CollectSink()
    flow.source("rows", Source(300)).sink("out", sink)
    flow.run_local(parallelism=1, checkpoint_interval=3_600.0)
    assert [row["n"] for row in sink.rows()] == list(range(300))


def test_pages_of_a_polled_function_arrive_though_the_next_look_is_in_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "_LOOK_NS", HOUR_NS)
    flow, sink = Dataflow("polled"), CollectSink()

    def fetch(cursor: int | None) -> tuple[list[dict[str, int]], int] | None:
        number = cursor or 0
        return None if number == 20 else ([{"n": number}], number + 1)

    flow.from_poll("pages", fetch, every=0.001, schema={"n": int}).sink("out", sink)
    flow.run_local(parallelism=1, checkpoint_interval=3_600.0)
    assert [row["n"] for row in sink.rows()] == list(range(20))


@pytest.mark.parametrize(
    ("options", "seconds"), [({}, 0.00065), ({"latency_target": 0.2}, 0.2), ({"latency_target": 0}, 0)]
)
def test_a_reader_with_a_thread_hears_how_long_rows_may_wait_for_others(options: Any, seconds: float) -> None:
    told: list[float] = []

    class Reader(RowsReader):
        def gather_for(self, seconds: float) -> None:
            told.append(seconds)

    class Source(Rows):
        def reader(self, split: Split) -> Reader:
            return Reader(3)

    flow = Dataflow("gathering")
    sink = CollectSink()
    flow.source("rows", Source(3)).sink("out", sink)
    flow.run_local(parallelism=1, checkpoint_interval=3_600.0, **options)
    assert told == [seconds]
    assert [row["n"] for row in sink.rows()] == [0, 1, 2]


def test_the_driver_tells_a_waking_reader_and_a_waking_discovery_whom_to_wake() -> None:
    told: list[str] = []

    class Reader(RowsReader):
        def wake_by(self, wake: Callable[[], None]) -> None:
            told.append("reader")

    class Looks:
        def wake_by(self, wake: Callable[[], None]) -> None:
            told.append("discovery")

        def found(self) -> Sequence[Split]:
            return [new.pop()] if new else []

        def close(self) -> None:
            """No thread."""

    new = [Split("1")]

    class Source(Rows):
        def reader(self, split: Split) -> Reader:
            return Reader(5)

        def owner(self, split_id: str, parallelism: int) -> int:
            return 0

        def discovery(self, known: Any) -> Looks:
            return Looks()

    driver = opened(spec_of(Source(5)), World())
    assert sorted(told) == ["discovery", "reader"]
    driver.poll(HOUR_NS)
    assert sorted(told) == ["discovery", "reader", "reader"]
    driver.poll(HOUR_NS)
    assert driver.next_due_ns() == HOUR_NS + 500_000_000
    driver.close()
