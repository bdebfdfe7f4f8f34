"""The hint where a log ends: right, old, wrong or missing, the head that is found is the log's own."""

from collections.abc import Callable

import pytest

from barrier_runtime.coordinator.log.hint import EVERY, READ_AHEAD, HeadHint
from barrier_runtime.coordinator.log.reader import find_head
from barrier_runtime.coordinator.log.records import FIRST_POSITION, NO_RECORD
from barrier_runtime.state.store.memory import Fault, MemoryStore


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
def test_a_fresh_hint_costs_one_round_of_reads_in_a_log_of_100_000_records(behind: int) -> None:
    exists, asked = log_of(100_000)
    assert find_head(exists, hint=100_000 - behind) == 100_000
    assert sorted(asked) == list(range(100_000 - behind, 100_000 - behind + READ_AHEAD))


def test_records_that_come_while_positions_are_read_leave_no_gap() -> None:
    """The answer for one position may be older than that for a later one: the first absent position counts."""
    there = {position: position in (10, 11, 13) for position in range(30)}
    assert find_head(lambda position: there[position], hint=10, at_once=1) == 11


def test_a_hint_is_stored_every_few_records_and_read_back(store: MemoryStore) -> None:
    hint = HeadHint(store, "job/log-hint.json")
    assert hint.read() == NO_RECORD
    for position in range(1, 3 * EVERY):
        hint.follow(position)
        assert position - HeadHint(store, "job/log-hint.json").read() <= EVERY


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
