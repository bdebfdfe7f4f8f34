"""Sources that discover splits: assignment, snapshots, and notification of decided checkpoints."""

import contextlib
import random
import threading
import uuid
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from operator_harness import World
from source_harness import drained, names, opened, rows_of, snapshot_of, spec_of

from barrier_runtime.api.dataflow import Dataflow
from barrier_runtime.connectors.discovery import ListingThread
from barrier_runtime.connectors.memory import iterator
from barrier_runtime.connectors.memory.collect import CollectSink
from barrier_runtime.connectors.memory.iterator import IteratedRows
from barrier_runtime.connectors.name_set import NameSet
from barrier_runtime.connectors.source import DiscoveringSource, Discovery, Polled, Split
from barrier_runtime.graph.compiler import compile_plan
from barrier_runtime.graph.job_graph import SourceSpec
from barrier_runtime.runtime.sources.driver import SourceDriver
from barrier_runtime.runtime.sources.progress import SPLITS_VALUE, SourceProgress
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.store.memory import Fault
from barrier_runtime.state.store.open import open_store
from tests.drawn import examples
from tests.waiting import until

SCHEMA = pa.schema([("split", pa.string()), ("n", pa.int64())])


class Position(msgspec.Struct):
    row: int


class Shelf:
    """Rows per split. Splits may be added at any time, with or without an end."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}
        self.endless: set[str] = set()
        self.trouble: list[Exception] = []  # errors of the next listings
        self.unreadable: set[str] = set()
        self.heard: list[tuple[str, str, int]] = []  # calls to readers: split, call, checkpoint
        self.closed: list[str] = []

    def put(self, split: str, rows: int, *, endless: bool = False) -> None:
        self.rows[split] = rows
        if endless:
            self.endless.add(split)

    def listed(self) -> list[Split]:
        return [Split(id, b"payload of " + id.encode()) for id in sorted(self.rows)]


class ShelfReader:
    def __init__(self, shelf: Shelf, id: str) -> None:
        self._shelf = shelf
        self._id = id
        self._row = 0

    @property
    def finished(self) -> bool:
        return self._row >= self._shelf.rows[self._id] and self._id not in self._shelf.endless

    def poll(self, max_rows: int, now_ns: int) -> Polled | None:
        numbers = range(self._row, min(self._row + max_rows, self._shelf.rows[self._id]))
        if not numbers:
            return None
        self._row = numbers.stop
        return Polled(pa.RecordBatch.from_pylist([{"split": self._id, "n": n} for n in numbers], SCHEMA), now_ns)

    def next_due_ns(self) -> int | None:
        return None

    def position(self) -> bytes:
        return msgspec.json.encode(Position(self._row))

    def seek(self, position: bytes) -> None:
        self._row = msgspec.json.decode(position, type=Position).row

    def close(self) -> None:
        self._shelf.closed.append(self._id)


class ListeningReader(ShelfReader):
    def snapshotted(self, checkpoint: int) -> None:
        self._shelf.heard.append((self._id, "snapshotted", checkpoint))

    def completed(self, checkpoint: int) -> None:
        self._shelf.heard.append((self._id, "completed", checkpoint))


class ShelfSource:
    """Source over a `Shelf`. `discovers`: the source finds splits that appear later."""

    exactly_once = True
    schema = SCHEMA

    def __init__(self, shelf: Shelf, reader: type[ShelfReader] = ShelfReader, *, discovers: bool = True) -> None:
        self._shelf = shelf
        self._reader = reader
        self._discovers = discovers

    def splits(self, parallelism: int) -> Sequence[Split]:
        return self._shelf.listed()

    def reader(self, split: Split) -> ShelfReader:
        assert split.payload == b"payload of " + split.id.encode()
        if split.id in self._shelf.unreadable:
            self._shelf.unreadable.discard(split.id)
            raise Unavailable(f"{split.id} is not there yet")
        return self._reader(self._shelf, split.id)

    def owner(self, split_id: str, parallelism: int) -> int:
        return zlib.crc32(split_id.encode()) % parallelism

    def discovery(self, known: NameSet) -> Discovery | None:
        return Looks(self._shelf, known) if self._discovers else None


class Looks:
    def __init__(self, shelf: Shelf, known: NameSet) -> None:
        self._shelf = shelf
        self._seen = known

    def found(self) -> Sequence[Split]:
        if self._shelf.trouble:
            raise self._shelf.trouble.pop(0)
        new = [split for split in self._shelf.listed() if split.id not in self._seen]
        for split in new:
            self._seen.add(split.id)
        return new

    def close(self) -> None:
        self._shelf.closed.append("discovery")


def shelf_of(**rows: int) -> Shelf:
    shelf = Shelf()
    for split, count in rows.items():
        shelf.put(split, count)
    return shelf


def started(shelf: Shelf, world: World | None = None, restored: Sequence[OperatorSnapshot] = ()) -> SourceDriver:
    return opened(spec_of(ShelfSource(shelf)), world or World(), tuple(restored))


def polled(driver: SourceDriver, times: int = 20, max_rows: int = 100) -> list[dict[str, Any]]:
    return rows_of([batch for _ in range(times) if (batch := driver.poll(0, max_rows)) is not None])


def progress_of(snapshot: OperatorSnapshot) -> SourceProgress:
    return msgspec.json.decode(snapshot.values[SPLITS_VALUE], type=SourceProgress)


# ---------------------------------------------------------------- finding


def test_splits_that_appear_are_read_after_those_that_were_there() -> None:
    shelf = shelf_of(a=2)
    driver = started(shelf)
    assert [row["split"] for row in polled(driver)] == ["a", "a"]
    shelf.put("b", 3)
    assert [row["n"] for row in polled(driver)] == [0, 1, 2]
    assert driver.records == 5


def test_a_source_that_looks_for_splits_never_ends_and_is_idle_without_any() -> None:
    driver = started(Shelf())
    assert (driver.finished, driver.idle, driver.watermark()) == (False, True, None)
    driver.poll(5_000_000)
    assert driver.next_due_ns() == 15_000_000  # the next listing is in 10 ms, not at once
    driver.close()


def test_a_subtask_is_idle_its_idle_timeout_after_each_split_and_looks_in_time() -> None:
    shelf, world = Shelf(), World()
    driver = opened(spec_of(ShelfSource(shelf), event_time="n", idle_timeout_ms=10), world)
    now_ns, ms = 1_000_000_000, 1_000_000
    driver.poll(now_ns)
    assert driver.idle, "nothing was there yet"
    for split in ("a", "b"):
        shelf.put(split, 1)
        began_ns = now_ns
        while not driver.records or split not in shelf.closed:
            driver.poll(now_ns)
            now_ns += ms
        assert not driver.idle, "the next split may come soon"
        while not driver.idle:
            assert now_ns - began_ns < 30 * ms
            due_ns = driver.next_due_ns()
            assert due_ns is not None
            now_ns = max(now_ns, due_ns)
            driver.poll(now_ns)
        assert now_ns - began_ns > 10 * ms
    restored = opened(
        spec_of(ShelfSource(shelf), event_time="n", idle_timeout_ms=10), World(), (snapshot_of(driver, world),)
    )
    restored.poll(now_ns)
    assert not restored.idle, "the timeout counts anew"


def test_a_source_that_does_not_look_for_splits_ends_with_those_it_has() -> None:
    shelf = shelf_of(a=2)
    driver = opened(spec_of(ShelfSource(shelf, discovers=False)), World())
    assert len(rows_of(drained(driver))) == 2
    assert (driver.finished, driver.idle, driver.watermark()) == (True, False, None)


def test_a_subtask_whose_splits_have_ended_holds_the_watermark_of_what_it_read() -> None:
    shelf = shelf_of(a=10)
    spec = spec_of(ShelfSource(shelf), event_time="n", max_out_of_orderness_ms=2)
    world = World()
    driver = opened(spec, world)
    polled(driver)
    assert driver.idle
    assert driver.watermark() == 9 - 2 - 1
    driver = opened(spec, world, (snapshot_of(driver, world),))
    assert driver.watermark() == 9 - 2 - 1
    shelf.put("b", 30)
    driver.poll(0, 20)
    assert driver.watermark() == 19 - 2 - 1
    assert not driver.idle


def test_a_look_that_fails_is_counted_and_the_next_one_finds_the_splits() -> None:
    shelf, world = Shelf(), World()
    driver = started(shelf, world)
    shelf.trouble = [Unavailable("no answer"), Unavailable("no answer")]
    shelf.put("a", 1)
    assert driver.poll(0) is None
    assert driver.poll(0) is None
    assert len(polled(driver)) == 1
    assert (world.metrics.counts["discovery_failures"], world.metrics.counts["splits_discovered"]) == (2, 1)


def test_a_look_that_finds_a_mistake_of_the_user_fails_the_job() -> None:
    shelf = Shelf()
    driver = started(shelf)
    shelf.trouble = [InvalidJob("no such folder")]
    with pytest.raises(InvalidJob, match="no such folder"):
        driver.poll(0)


def test_a_found_split_that_cannot_be_opened_now_is_tried_again() -> None:
    shelf, world = Shelf(), World()
    driver = started(shelf, world)
    shelf.put("a", 2)
    shelf.unreadable.add("a")
    assert len(polled(driver)) == 2
    assert world.metrics.counts["discovery_failures"] == 1


def test_closing_ends_discovery_and_readers() -> None:
    shelf = shelf_of(a=5)
    driver = started(shelf)
    driver.poll(0, 1)
    driver.close()
    assert sorted(shelf.closed) == ["a", "discovery"]


# ---------------------------------------------------------------- snapshots


def test_a_split_found_before_the_checkpoint_goes_on_although_nobody_lists_it_now() -> None:
    shelf, world = Shelf(), World()
    driver = started(shelf, world)
    shelf.put("a", 10)
    assert len(polled(driver, times=1, max_rows=4)) == 4
    snapshot = snapshot_of(driver, world)
    spec = SourceSpec("src", ShelfSource(shelf), ())
    driver = opened(spec, world, (snapshot,))
    assert [row["n"] for row in polled(driver)] == [4, 5, 6, 7, 8, 9]


def test_a_split_found_after_the_checkpoint_is_found_again() -> None:
    shelf, world = shelf_of(a=1), World()
    driver = started(shelf, world)
    polled(driver)
    snapshot = snapshot_of(driver, world)
    shelf.put("b", 3)
    assert len(polled(driver)) == 3
    driver = started(shelf, world, (snapshot,))
    assert [row["split"] for row in polled(driver)] == ["b"] * 3
    assert driver.records == 4


def test_what_is_listed_but_newer_than_the_checkpoint_is_left_to_discovery() -> None:
    """A source may read later splits from their beginning, and others from a given position."""
    shelf, world = shelf_of(a=1), World()
    snapshot = snapshot_of(started(shelf, world), world)
    shelf.put("b", 1)
    told: list[list[str]] = []

    class Told(ShelfSource):
        def discovery(self, known: NameSet) -> Discovery | None:
            told.append([id for id in ("a", "b") if id in known])
            return super().discovery(known)

    driver = opened(spec_of(Told(shelf)), world, (snapshot,))
    assert told == [["a"]]
    assert sorted(row["split"] for row in polled(driver)) == ["a", "b"]
    driver = opened(spec_of(ShelfSource(shelf, discovers=False)), world, (snapshot,))
    assert sorted(row["split"] for row in rows_of(drained(driver))) == ["a", "b"]


def test_of_a_split_that_ended_only_its_name_is_kept() -> None:
    shelf, world = shelf_of(a=1, b=2, c=50), World()
    driver = started(shelf, world)
    polled(driver, times=3, max_rows=10)
    progress = progress_of(snapshot_of(driver, world))
    assert (progress.finished, progress.done_rows) == (2, 3)
    assert set(progress.splits) == {"c"}
    assert progress.splits["c"].payload == b"payload of c"


def test_a_snapshot_of_a_source_that_did_not_discover_is_taken_on() -> None:
    """Also for a snapshot from before discovery existed, without payloads and names of ended splits."""
    splits = {
        "a": {"rows": 5, "greatest_ms": 0, "finished": True, "position": None},
        "b": {"rows": 4, "greatest_ms": 0, "finished": False, "position": {"row": 4}},
    }
    snapshot = OperatorSnapshot(
        "src", 0, 1, {SPLITS_VALUE: msgspec.json.encode({"splits": splits, "version": 1})}, None
    )
    driver = started(shelf_of(a=5, b=9), World(), (snapshot,))
    assert driver.records == 9
    assert [row["n"] for row in polled(driver)] == [4, 5, 6, 7, 8]


def test_a_source_that_discovers_no_more_remembers_what_was_read() -> None:
    shelf, world = shelf_of(a=3, b=2), World()
    driver = started(shelf, world)
    polled(driver)
    snapshot = snapshot_of(driver, world)

    class Fixed:
        exactly_once, schema = True, SCHEMA
        splits, reader = ShelfSource(shelf).splits, ShelfSource(shelf).reader

    assert not isinstance(Fixed(), DiscoveringSource)
    driver = opened(spec_of(Fixed()), world, (snapshot,))
    assert driver.finished
    assert driver.records == 5


def test_a_split_that_neither_is_listed_nor_can_be_made_again_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iterator, "_TIMEOUT_S", 30.0)
    world = World()
    driver = opened(spec_of(IteratedRows("src", lambda i, n: iter([{"n": 1}] * 5), SCHEMA, True, 1)), world)
    driver.poll(0, 2)
    with pytest.raises(InvalidJob, match=r"split '0-of-1' was read up to row 2 but is not there any more"):
        started(shelf_of(a=1), world, (snapshot_of(driver, world),))


class StagedShelf:
    """Source over rows that were added before the job started."""

    exactly_once, schema = True, SCHEMA

    def __init__(self, shelf: Shelf) -> None:
        inner = ShelfSource(shelf)
        self.splits, self.reader = inner.splits, inner.reader

    def stage(self, job: str, storage: str, *, fresh: bool) -> None: ...
    def unstage(self, job: str, storage: str) -> None: ...


def test_job_continues_with_the_rows_of_its_checkpoint_though_others_were_staged() -> None:
    world = World()
    driver = opened(spec_of(StagedShelf(shelf_of(a1=5, a2=8))), world)
    driver.poll(0, 5)
    driver.poll(0, 3)
    driver.poll(0, 1)
    snapshot = snapshot_of(driver, world)
    everything = shelf_of(a1=5, a2=8, b1=5, b2=8)
    newer = [Split(id, b"payload of " + id.encode()) for id in ("b1", "b2")]
    rest = []
    for subtask in range(2):
        spec = SourceSpec("src", StagedShelf(everything), tuple(newer))
        driver = opened(spec, World(subtask=subtask, parallelism=2), (snapshot,))
        rest += rows_of(drained(driver))
    assert {row["split"] for row in rest} == {"a2"}
    assert len(rest) == 13 - progress_rows(snapshot)


def progress_rows(snapshot: OperatorSnapshot) -> int:
    progress = progress_of(snapshot)
    return progress.done_rows + sum(split.rows for split in progress.splits.values())


def test_without_the_snapshots_of_all_subtasks_nothing_is_restored() -> None:
    world = World(parallelism=2)
    snapshot = snapshot_of(started(Shelf(), world), world)
    with pytest.raises(InvalidJob, match="lacks the positions of other subtasks"):
        started(Shelf(), world, (snapshot,))


@pytest.mark.slow
@examples(150)
@given(st.integers(0, 2**32))
def test_every_row_of_every_split_is_read_once_over_crashes_and_rescaling(seed: int) -> None:
    """R1, for discovered splits: the decided rows are those read up to the last checkpoint of all subtasks."""
    chance = random.Random(seed)
    shelf = Shelf()
    decided: list[tuple[str, int]] = []
    snapshots: tuple[OperatorSnapshot, ...] = ()
    put_up = 0
    for parallelism in (2, 3, 1, chance.randint(1, 4)):
        worlds = [World(subtask=subtask, parallelism=parallelism) for subtask in range(parallelism)]
        source = ShelfSource(shelf)
        listed = tuple(shelf.listed()) if chance.random() < 0.5 else ()
        drivers = [opened(SourceSpec("src", source, listed), world, snapshots) for world in worlds]
        undecided: list[tuple[str, int]] = []
        for _ in range(chance.randint(1, 30)):
            act = chance.random()
            if act < 0.2:
                shelf.put(f"split-{put_up}", chance.randint(0, 12))
                put_up += 1
            elif act < 0.85:
                rows = polled(chance.choice(drivers), 1, chance.randint(1, 7))
                undecided += [(row["split"], row["n"]) for row in rows]
            else:
                snapshots = tuple(snapshot_of(*pair) for pair in zip(drivers, worlds, strict=True))
                decided += undecided
                undecided = []
    snapshots = snapshots or ()
    drivers = [
        opened(SourceSpec("src", ShelfSource(shelf), ()), World(subtask=i, parallelism=3), snapshots) for i in range(3)
    ]
    for driver in drivers:
        decided += [(row["split"], row["n"]) for row in polled(driver, times=4 * put_up + 4)]
    assert sorted(decided) == sorted((split, n) for split, rows in shelf.rows.items() for n in range(rows))
    assert sum(driver.records for driver in drivers) == len(decided)


# ---------------------------------------------------------------- who hears of checkpoints


def test_a_reader_hears_when_its_position_was_taken_and_when_that_is_decided() -> None:
    shelf = Shelf()
    shelf.put("a", 3, endless=True)
    world = World()
    driver = opened(spec_of(ShelfSource(shelf, ListeningReader)), world)
    driver.poll(0, 1)
    driver.snapshot(1)
    driver.poll(0, 1)
    driver.snapshot(2)
    driver.completed(2)  # covers checkpoint 1, which was given up
    assert shelf.heard == [("a", "snapshotted", 1), ("a", "snapshotted", 2), ("a", "completed", 2)]


def test_a_reader_at_its_end_hears_on_until_a_checkpoint_covers_the_end() -> None:
    shelf, world = shelf_of(a=3), World()
    driver = opened(spec_of(ShelfSource(shelf, ListeningReader)), world)
    driver.snapshot(1)
    polled(driver)
    driver.completed(1)
    assert shelf.closed == []
    driver.snapshot(2)
    driver.completed(2)
    assert shelf.closed == ["a"]
    driver.snapshot(3)
    driver.completed(3)
    assert [heard for heard in shelf.heard if heard[2] == 3] == []
    assert shelf.heard[-1] == ("a", "completed", 2)


# ---------------------------------------------------------------- in a job


def test_a_source_without_splits_is_accepted_when_it_looks_for_some() -> None:
    flow = Dataflow("empty")
    flow.source("src", ShelfSource(Shelf())).sink("out", CollectSink())
    assert compile_plan(flow.plan, 2).chains[0].source is not None


@pytest.mark.slow
@pytest.mark.usefixtures("both_ways", "manifests_are_objects")
@pytest.mark.filterwarnings("ignore:.*cannot be copied")  # threads of this process are no part of a flow on Spark
def test_in_a_job_readers_hear_of_decided_checkpoints_only() -> None:
    """The first checkpoint cannot be written and is aborted; a later checkpoint covers the same rows."""
    url = f"memory://{uuid.uuid4().hex}"
    store = open_store(url)
    shelf = Shelf()
    shelf.put("a", 5, endless=True)

    class Ending(ListeningReader):
        """Ends after two notifications of decided checkpoints."""

        def snapshotted(self, checkpoint: int) -> None:
            if not shelf.heard:
                store.inject(Fault.FAIL_BEFORE, "put", "/checkpoints/", times=None)
            elif shelf.heard[-1][2] > 1:
                store.heal()
            super().snapshotted(checkpoint)

        def completed(self, checkpoint: int) -> None:
            super().completed(checkpoint)
            if len([heard for heard in shelf.heard if heard[1] == "completed"]) == 2:
                shelf.endless.clear()

    flow = Dataflow("listening")
    flow.source("src", ShelfSource(shelf, Ending, discovers=False)).sink("out", CollectSink())
    flow.run_local(
        checkpoints=url, checkpoint_interval=0.02, checkpoint_timeout=0.3, tolerable_failures=50, parallelism=1
    )
    completed = [checkpoint for _, what, checkpoint in shelf.heard if what == "completed"]
    snapshotted = [checkpoint for _, what, checkpoint in shelf.heard if what == "snapshotted"]
    assert 1 in snapshotted
    assert 1 not in completed
    assert completed == sorted(completed)
    assert set(completed) <= set(snapshotted)
    assert snapshotted[-1] == completed[-1], "the last checkpoint covers the end of the input, and is heard of"
    assert shelf.closed == ["a"]


# ---------------------------------------------------------------- the thread that lists


def test_a_listing_thread_gives_each_split_once_and_goes_on_after_trouble() -> None:
    shelf = shelf_of(a=1, b=1)
    answers: list[Exception] = [Unavailable("no answer")]

    def list_splits() -> Sequence[Split]:
        if answers:
            raise answers.pop(0)
        return shelf.listed()

    listing = ListingThread(list_splits, names("a"), 0.002, "src")
    found: list[str] = []
    failures = []

    def look() -> bool:
        try:
            found.extend(split.id for split in listing.found())
        except Unavailable as error:
            failures.append(str(error))
        return "c" in found

    try:
        until(lambda: look() or "b" in found)
        shelf.put("c", 1)
        until(look)
        assert found == ["b", "c"]
        assert failures == ["no answer"]
    finally:
        listing.close()
    until(lambda: all(thread.name != "discovery-src" for thread in threading.enumerate()))


def test_a_listing_that_failed_is_repeated_soon_also_where_one_is_all_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("barrier_runtime.connectors.discovery._AGAIN_S", 0.002)
    shelf = shelf_of(a=1)
    answers = [Unavailable("no answer")] * 3

    def list_splits() -> Sequence[Split]:
        if answers:
            raise answers.pop()
        return shelf.listed()

    listing = ListingThread(list_splits, NameSet(), 1e9, "src-3")

    def look() -> bool:
        with contextlib.suppress(Unavailable):
            return [split.id for split in listing.found()] == ["a"]
        return False

    try:
        until(look)
    finally:
        listing.close()


def test_a_listing_thread_that_met_a_mistake_says_so_for_ever_and_lists_no_more() -> None:
    def list_splits() -> Sequence[Split]:
        raise InvalidJob("no such folder")

    listing = ListingThread(list_splits, NameSet(), 0.002, "src-2")
    until(lambda: all(thread.name != "discovery-src-2" for thread in threading.enumerate()))
    for _ in range(2):
        with pytest.raises(InvalidJob, match="no such folder"):
            listing.found()
