"""The hint where a log ends: right, old, wrong or missing, the head that is found is the log's own."""

import threading
from collections.abc import Callable

import msgspec
import pytest
from coordinator_world import log_of as log_of_job
from coordinator_world import new_generation, started

from barrier_runtime.coordinator.log.reader import EVERY, READ_AHEAD, HeadHint, Hint, find_head, read_log
from barrier_runtime.coordinator.log.records import FIRST_POSITION, NO_RECORD, milestone_after
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import sha256_hex

PATHS = Paths("flights")


def log_of(records: int) -> tuple[Callable[[int], bool], list[int]]:
    """`exists` of a log with the positions 1 to `records`, and the positions that were asked for."""
    asked: list[int] = []

    def exists(position: int) -> bool:
        asked.append(position)
        return FIRST_POSITION <= position <= records

    return exists, asked


@pytest.mark.parametrize("records", [0, 1, 2, 7, 8, 9, 100, 1_000])
def test_whatever_the_hint_the_head_is_the_last_record(records: int) -> None:
    for hint in (NO_RECORD, 1, 2, 5, records - 1, records, records + 1, 10 * records + 5):
        exists, _ = log_of(records)
        assert find_head(exists, hint=hint, at_once=1) == (records or NO_RECORD), hint


@pytest.mark.parametrize("behind", range(EVERY))
def test_a_fresh_hint_costs_a_round_of_reads_and_a_milestone(behind: int) -> None:
    exists, asked = log_of(100_000)
    assert find_head(exists, hint=100_000 - behind) == 100_000
    assert sorted(asked[:-1]) == list(range(100_000 - behind, 100_000 - behind + READ_AHEAD))
    assert asked[-1] == milestone_after(100_000)


def test_records_that_come_while_positions_are_read_leave_no_gap() -> None:
    """The answer for a position may be older than the answer for a later position: the first absent position counts."""
    assert find_head(lambda position: position in (10, 11, 13), hint=10, at_once=1) == 11


def test_a_hint_is_stored_every_few_records_and_read_back(store: MemoryStore) -> None:
    hint = HeadHint(store, "job/log-hint.json")
    assert hint.read() == NO_RECORD
    for position in range(1, 3 * EVERY):
        hint.follow(position)
        assert position - HeadHint(store, "job/log-hint.json").read() <= EVERY


class Rounds(MemoryStore):
    """Counts groups of reads that are under way at the same time: a read waits for the others of the same group."""

    def __init__(self) -> None:
        super().__init__("rounds")
        self.groups: list[list[str]] = []

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes:
        thread = threading.current_thread()
        alone = thread is threading.main_thread()
        if alone or not self.groups or self.groups[-1][:1] != ["side by side"]:
            self.groups.append(["alone" if alone else "side by side"])
        self.groups[-1].append(key)
        return super().get(key, offset, size)


@pytest.mark.parametrize("behind", range(EVERY))
def test_a_fresh_hint_shows_a_start_all_it_needs_in_three_rounds(behind: int) -> None:
    """The hint, then the records at the end with the FENCE of their generation, then the next milestone."""
    store = Rounds()
    coordinator, *slots = started(store)
    for _ in range(12):
        coordinator.checkpoint(*slots)
    head = len(log_of_job(store))
    store.put(PATHS.log_hint, msgspec.json.encode(Hint(head - behind, 1)))
    store.groups.clear()
    view = read_log(store, PATHS, completes=2, run_id="another", kept=True)
    assert view.head is not None
    assert (view.head.position, len(view.completes), view.kept) == (head, 2, (head,))
    assert [group[0] for group in store.groups] == ["alone", "side by side", "alone"]
    assert view.first_sha256 == sha256_hex(store.get(PATHS.log_record(FIRST_POSITION)))


def test_a_damaged_first_record_identifies_no_log_and_stops_nothing(store: MemoryStore) -> None:
    """Nothing of the newest generation rests on the first record."""
    coordinator, a, b = started(store)
    new_generation(coordinator, a, b)
    coordinator.checkpoint(a, b)
    head, key = len(log_of_job(store)), PATHS.log_record(FIRST_POSITION)
    store.put(PATHS.log_hint, msgspec.json.encode(Hint(head, 2)))
    assert read_log(store, PATHS, kept=True).first_sha256 == sha256_hex(store.get(key))
    store.damage(key, store.get(key)[:-20])
    view = read_log(store, PATHS, kept=True)
    assert (view.head.position if view.head else 0, view.first_sha256) == (head, "")


@pytest.mark.parametrize("data", [b"", b"{}", b'{"position": "x"}', b'{"position": -5}', b"[1", b"\xff"])
def test_something_that_is_no_hint_counts_as_none(store: MemoryStore, data: bytes) -> None:
    store.put("job/log-hint.json", data)
    assert HeadHint(store, "job/log-hint.json").read() == NO_RECORD


def test_a_store_that_refuses_the_hint_keeps_nothing_from_going_on(store: MemoryStore) -> None:
    store.inject(Fault.FAIL_BEFORE, times=2)
    hint = HeadHint(store, "job/log-hint.json")
    hint.follow(EVERY)
    assert hint.read() == NO_RECORD
    assert hint.read() == NO_RECORD


def test_hint_beyond_the_end_does_not_hide_records_after_the_known_one() -> None:
    assert find_head(lambda position: 1 <= position <= 20, known=3, hint=50) == 20
