"""Timers of a keyed operator against a plain set, with so little memory that most timers are in the store.

Timers are written, read, dropped, restored at another parallelism and restored from an older checkpoint in any order.
"""

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.keyed.timers import TABLE, Slice, StateKey, Timers, _sortable
from barrier_runtime.operators.state.handle import CurrentKey
from barrier_runtime.state.backend.keyed_backend import KeyedBackend
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.key_groups import key_group, key_group_range
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot
from barrier_runtime.state.values.timer_table import TimerTable, decode_timer, encode_timer
from tests.drawn import examples
from tests.state.backend_bench import Bench, checkpoint, drain, of_operator

GROUPS = 2  # so that memory holds four timers of each
KEYS: list[StateKey] = [(None,), *[(f"key {number}",) for number in range(5)]]
Fired = tuple[StateKey, int]


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def few(number: int) -> Slice:
    piece = Slice(lambda: 0.0)
    piece._left = number
    return piece


class Subtask:
    def __init__(
        self, bench: Bench, restored: list[OperatorSnapshot], number: int, of: int, groups: int, from_ms: int
    ) -> None:
        self.backend: KeyedBackend = bench.open(restored, number, of, groups)
        self.table: TimerTable = self.backend.timer_table(TABLE, 1)
        self.current = CurrentKey()
        self.timers = Timers(self.table, self.current, None, from_ms, held=1)


class Job:
    """Timers of all subtasks, and a plain set as their model."""

    def __init__(self, bench: Bench, groups: int = GROUPS) -> None:
        self.bench = bench
        self.groups = groups
        self.model: set[tuple[int, StateKey]] = set()
        self.taken: tuple[list[OperatorSnapshot], set[tuple[int, StateKey]], int] = ([], set(), WATERMARK_MIN)
        self.checkpoint = 0
        self.frozen = False
        self.outside = 0
        self.begin(1)

    def begin(self, parallelism: int) -> None:
        """From the last checkpoint, or from nothing."""
        snapshots, model, from_ms = self.taken
        self.model = set(model)
        self.subtasks = [
            Subtask(self.bench, snapshots, number, parallelism, self.groups, from_ms) for number in range(parallelism)
        ]
        self.frozen = False

    def at(self, key: StateKey) -> Subtask:
        group = key_group(key, self.groups)
        for number, subtask in enumerate(self.subtasks):
            first, last = key_group_range(number, len(self.subtasks), self.groups)
            if first <= group <= last:
                subtask.current.key = key
                return subtask
        raise AssertionError(f"no subtask has group {group}")

    def register(self, key: StateKey, at_ms: int) -> None:
        self.at(key).timers.register(at_ms)
        self.model.add((at_ms, key))

    def delete(self, key: StateKey, at_ms: int) -> None:
        self.at(key).timers.delete(at_ms)
        self.model.discard((at_ms, key))

    def fire(self, watermark_ms: int, piece: int = 0) -> list[Fired]:
        """Fires all timers up to the watermark, or `piece` timers of each subtask, and compares them with the model."""
        fired = []
        for subtask in self.subtasks:
            mine = [(at, key) for at, key in self.model if self.at(key) is subtask and at <= watermark_ms]
            mine.sort(key=lambda each: (each[0], each[1][0] is not None, each[1]))
            given = [(at, key) for key, at in subtask.timers.due(watermark_ms, few(piece) if piece else None)]
            assert given == (mine[: len(given)] if piece else mine)
            self.model.difference_update(given)
            fired += [(key, at) for at, key in given]
        return fired

    def freeze(self) -> None:
        self.checkpoint += 1
        self.frozen = True
        for subtask in self.subtasks:
            subtask.backend.snapshots.freeze(self.checkpoint)

    def drain(self, entries: int) -> None:
        for subtask in self.subtasks:
            subtask.backend.snapshots.drain(entries)

    def abort(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.snapshots.aborted(self.checkpoint)

    def complete(self) -> None:
        from_ms = min(subtask.timers.lowest_ms for subtask in self.subtasks)
        assert all(at >= from_ms for at, _ in self.model)
        self.checkpoint += 1
        snapshots = [
            of_operator(checkpoint(subtask.backend, self.checkpoint), number, len(self.subtasks))
            for number, subtask in enumerate(self.subtasks)
        ]
        for subtask in self.subtasks:
            subtask.backend.snapshots.completed(self.checkpoint)
        self.taken = (snapshots, set(self.model), from_ms)

    def check(self) -> None:
        """Checks where `timers` keeps each timer: in memory, or in the store after the mark of the key group."""
        for subtask in self.subtasks:
            timers, table = subtask.timers, subtask.table
            marks = {group: entry[:2] for entry in timers._heap if entry[2] for group in range(entry[3], entry[4] + 1)}
            assert len(marks) == timers._covered
            first, last = table.key_groups
            if timers._far_ms <= WATERMARK_MAX:
                assert set(marks) == set(range(first, last + 1))
                assert all((timers._far_ms, ()) >= mark for mark in marks.values())
            waiting = set(table.waiting())
            for at_ms, key in self.model:
                if self.at(key) is subtask and not timers._held.get((at_ms, key)):
                    assert (at_ms, _sortable(key)) > marks[key_group(key, self.groups)]
                    assert at_ms >= timers._outside_ms or (at_ms, key) not in waiting
                    self.outside += 1

    def close(self) -> None:
        for subtask in self.subtasks:
            subtask.backend.close()


ACTION = st.tuples(
    st.sampled_from(
        ["register"] * 6 + ["delete", "delete", "again", "fire", "slice", "freeze", "drain", "abort", "take", "restart"]
    ),
    st.integers(0, len(KEYS) - 1),
    st.integers(-3, 30),
)


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@examples(40)
@given(st.lists(ACTION, max_size=100), st.integers(1, 3))
def test_timers_fire_as_a_plain_set_of_them_would(
    kind: Any, actions: list[tuple[str, int, int]], repeated: int
) -> None:
    made = tempfile.mkdtemp()
    try:
        job, watermark = Job(Bench(Path(made), kind=kind)), 0
        for action, number, distance in actions * repeated:
            key, at = KEYS[number], watermark + distance
            if action == "register":
                job.register(key, at)
            elif action == "delete":
                job.delete(key, at)
            elif action == "again":
                job.delete(key, at)
                job.register(key, at)
            elif action == "fire":
                watermark += max(0, distance // 4)
                job.fire(watermark)
            elif action == "slice":
                job.fire(watermark + 3, piece=1 + distance % 3)
            elif action == "freeze":
                job.freeze()
            elif action == "drain":
                job.drain(1 + abs(distance))
            elif action == "abort":
                job.abort()
            elif action == "take":
                job.complete()
            else:
                job.close()
                job.begin(1 + number % GROUPS)
            assert job.at(key).timers.of_key() == sorted(at for at, other in job.model if other == key)
            job.check()
        job.fire(WATERMARK_MAX)
        assert not job.model
        assert not any(len(subtask.timers) for subtask in job.subtasks)
        job.close()
    finally:
        shutil.rmtree(made)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [("memory", 0), *(pytest.param(*each, marks=pytest.mark.slow) for each in [("memory", 1), ("rocksdb", 2)])],
)
@pytest.mark.parametrize(
    "ahead",
    [
        pytest.param((40, 60), id="steady", marks=pytest.mark.slow),
        pytest.param((1, 400), id="any time"),
        pytest.param((0, 6), id="soon", marks=pytest.mark.slow),
    ],
)
def test_timers_of_a_long_stream_are_where_they_are_found_whatever_happens_meanwhile(
    kind: Any, seed: int, ahead: tuple[int, int], folder: Path
) -> None:
    """Rows set timers ahead of the watermark, as in most programs, so timers far ahead are only written."""
    drawn, keys = random.Random(seed), [(f"key {number}",) for number in range(40)]
    job, watermark = Job(Bench(folder, kind=kind), groups=4), 0
    for step in range(300):
        for _ in range(drawn.randrange(6)):
            job.register(drawn.choice(keys), watermark + drawn.randint(*ahead))
        if job.model and drawn.random() < 0.3:
            at, key = drawn.choice(sorted(job.model))
            job.delete(key, at)
            if drawn.random() < 0.3:
                job.register(key, at)
        action = drawn.random()
        if action < 0.3:
            watermark += drawn.randrange(1, 4)
            job.fire(watermark)
        elif action < 0.4:
            job.fire(watermark + 3, piece=drawn.randrange(1, 5))
        elif action < 0.6:
            job.freeze()
        elif action < 0.8:
            job.drain(drawn.randrange(1, 40))
        elif action < 0.83:
            job.abort()
        elif action < 0.87:
            job.complete()
        elif action < 0.88:
            job.close()
            job.begin(drawn.randrange(1, 5))
        if step % 3 == 0:
            job.check()
    job.fire(WATERMARK_MAX)
    assert not job.model
    job.close()


@pytest.mark.parametrize("events", [3_000, pytest.param(30_000, marks=pytest.mark.slow)])
def test_timers_that_are_moved_with_every_event_take_no_memory(events: int, folder: Path) -> None:
    """The pattern of session timeouts: (delete, register) with every event, on 100 keys."""
    job, longest = Job(Bench(folder, kind="memory")), 0
    for event in range(events):
        key = (f"key {event % 100}",)
        job.delete(key, event - 100 + 10**9)
        job.register(key, event + 10**9)
        longest = max(longest, len(job.subtasks[0].timers))
        if event % 1_000 == 0:
            job.complete()
    assert len(job.model) == 100
    assert longest <= 2 * 100 + 2 * 64
    assert len(job.fire(WATERMARK_MAX)) == 100


def test_a_stored_timer_that_is_deleted_before_it_is_read_does_not_fire(folder: Path) -> None:
    job = Job(Bench(folder))
    for number in range(3):
        job.register((f"key {number}",), 5 + number)
    job.complete()
    job.close()
    job.begin(1)
    job.delete(("key 1",), 6)
    assert job.fire(10) == [(("key 0",), 5), (("key 2",), 7)]
    job.close()


def test_deleted_timers_leave_memory_long_before_that_is_full(folder: Path) -> None:
    """With as many timers in memory as production holds, which those of the test above never are."""
    subtask = Job(Bench(folder, kind="memory")).subtasks[0]
    timers, subtask.current.key = Timers(subtask.table, subtask.current), ("key",)
    for at_ms in range(1_000):
        timers.register(at_ms)
        timers.delete(at_ms)
        assert len(timers) <= 2 * 64
    assert list(timers.due(WATERMARK_MAX)) == []


@pytest.mark.slow
@pytest.mark.parametrize("same_time", [True, False])
def test_memory_holds_the_next_timers_only_whether_they_are_due_together_or_not(same_time: bool, folder: Path) -> None:
    bench = Bench(folder, cache_bytes=1 << 20)
    job, longest = Job(bench), 0
    timers = job.subtasks[0].timers
    for number in range(20_000):
        job.register((f"key {number:05}",), 10 if same_time else 20_000 - number)
        longest = max(longest, len(timers))
    assert longest <= 4_000, "what is not in the store yet, and what has been written since the last look"
    job.complete()
    job.close()
    job.begin(1)
    timers, longest, fired = job.subtasks[0].timers, 0, []
    for key, at in timers.due(20_000):
        longest = max(longest, len(timers))
        fired.append((at, key))
    assert fired == sorted(job.model)
    assert longest <= 8 * GROUPS + 4, "four of each key group, and marks"
    job.close()


class Reads:
    """Counts the entries read from a key-value store."""

    def __init__(self, subtask: Subtask) -> None:
        self.count = 0
        kv: Any = subtask.backend._shard.kv
        scan = kv.scan

        def counted(start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
            for entry in scan(start, end):
                self.count += 1
                yield entry

        kv.scan = counted


@pytest.mark.slow
def test_restore_does_not_read_all_timers_and_no_scan_begins_with_fired_timers(folder: Path) -> None:
    job = Job(Bench(folder))
    for number in range(5_000):
        job.register((f"key {number}",), number)
    job.complete()
    job.fire(2_000)
    job.complete()
    assert job.taken[2] > 2_000, "the bound that a snapshot keeps"
    job.close()
    job.begin(1)
    reads = Reads(job.subtasks[0])
    assert len(job.fire(2_010)) == 10
    assert reads.count <= 30
    job.close()


@pytest.mark.slow
def test_timers_stored_by_key_are_read_at_any_parallelism_and_then_stored_by_time(
    folder: Path,
) -> None:
    bench = Bench(folder)
    older = bench.open(max_parallelism=GROUPS)
    table = older.table(TABLE, encode_timer, decode_timer, 1, immutable=True)
    other = older.table("other", encode_timer, decode_timer, 1)
    stored = {(at, (f"key {at % 7}",)) for at in range(1_000)}
    for at, key in stored:
        table.put((*key, at), True)
        other.put(key, True)
    taken = of_operator(checkpoint(older, 1))
    assert taken.keyed is not None
    assert TABLE not in taken.keyed.described
    older.close()
    job = Job(bench)
    job.close()
    job.taken = ([taken], stored, WATERMARK_MIN)
    job.begin(2)
    job.fire(300)
    job.complete()
    for snapshot in job.taken[0]:
        assert snapshot.keyed is not None
        assert snapshot.keyed.described[TABLE].kind == "timers"
    job.close()
    job.begin(1)
    assert dict(job.subtasks[0].backend.table("other", encode_timer, decode_timer, 1).scan()) == {
        (f"key {number}",): True for number in range(7)
    }
    reads = Reads(job.subtasks[0])
    job.fire(310)
    assert reads.count <= 60, "they are not looked for in the old place again"
    assert len(job.fire(WATERMARK_MAX)) == 689
    job.close()


def test_timers_that_a_newer_release_has_stored_are_refused(folder: Path) -> None:
    import msgspec

    job = Job(Bench(folder))
    job.register(("a",), 1)
    job.complete()
    (snapshot,) = job.taken[0]
    assert snapshot.keyed is not None
    what = msgspec.structs.replace(snapshot.keyed.described[TABLE], layout=2)
    newer = msgspec.structs.replace(snapshot, keyed=msgspec.structs.replace(snapshot.keyed, described={TABLE: what}))
    backend = job.bench.open([newer], max_parallelism=GROUPS)
    with pytest.raises(InvalidJob, match="written by a newer release"):
        backend.timer_table(TABLE, 1)


def test_timers_at_the_ends_of_time(folder: Path) -> None:
    job = Job(Bench(folder))
    for at in (WATERMARK_MIN, -1, 0, WATERMARK_MAX - 1, WATERMARK_MAX):
        job.register(("a",), at)
    job.complete()
    job.close()
    job.begin(1)
    assert [at for _, at in job.fire(0)] == [WATERMARK_MIN, -1, 0]
    job.register(("b",), WATERMARK_MIN)
    assert job.fire(0) == [(("b",), WATERMARK_MIN)]
    assert [at for _, at in job.fire(WATERMARK_MAX)] == [WATERMARK_MAX - 1, WATERMARK_MAX]
    for at in (WATERMARK_MIN - 1, WATERMARK_MAX + 1):
        with pytest.raises(InvalidJob, match="out of range"):
            job.register(("a",), at)
        job.at(("a",)).timers.delete(at)
    job.close()


def test_the_last_timers_delete_others_and_register_none(folder: Path) -> None:
    job = Job(Bench(folder))
    for at in range(200):
        job.register(("a",), at)
    subtask, fired = job.subtasks[0], []
    for key, at in subtask.timers.due(WATERMARK_MAX):
        subtask.current.key = key
        fired.append(at)
        if at == 0:
            for other in range(50, 200):
                subtask.timers.delete(other)
            subtask.timers.register(60)
            subtask.timers.register(20)
            subtask.timers.register(1_000)
    assert fired == [*range(50)]
    assert list(subtask.table.scan()) == []
    job.close()


def test_a_mass_that_is_due_at_one_time_is_read_once(folder: Path) -> None:
    """Also if these timers register others, so that memory is trimmed between them."""
    job = Job(Bench(folder))
    for number in range(2_000):
        job.register((f"key {number:04}",), 10)
    job.complete()
    job.close()
    job.begin(1)
    subtask, fired = job.subtasks[0], []
    reads = Reads(subtask)
    for key, at in subtask.timers.due(10):
        subtask.current.key = key
        fired.append((at, key))
        subtask.timers.register(1_000)
        if len(fired) % 100 == 0:
            drain(subtask.backend)
    assert fired == sorted(job.model)
    assert reads.count <= 4 * 2_000
    job.close()
