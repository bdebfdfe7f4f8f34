"""Checkpoints of a compacted log by number: kept ones are restored and read, others are refused with a list."""

import pickle
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest
from coordinator_world import Coordinator, spec, started

from barrier_runtime.coordinator.log import records
from barrier_runtime.coordinator.log.decision_log import LogEntry, complete_of
from barrier_runtime.coordinator.log.reader import read_log
from barrier_runtime.coordinator.log.records import base_of
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore, get_or_none
from barrier_runtime.state.store.open import open_store
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state_tables.finding import find_checkpoint, pinned_again, pinned_checkpoint

PATHS = Paths("flights")
RETAINED = msgspec.structs.replace(spec().checkpoints, retained=20)


@pytest.fixture(autouse=True)
def small_steps() -> Iterator[None]:
    with patch.object(records, "MILESTONE_STEP", 8):
        yield


def complete(coordinator: Coordinator, slots: list, times: int) -> None:
    for _ in range(times):
        coordinator.checkpoint(*slots)
        for slot in slots:
            slot.commit(slot.highest)


def base(store: ObjectStore) -> int:
    head = read_log(store, PATHS).head
    assert head is not None
    return base_of(head.record)


def restart(store: MemoryStore, number: int) -> Coordinator:
    job = spec(run_id="again", restore=str(number), allow_replay=True, checkpoints=RETAINED)
    return Coordinator(store, job, leader="leader-b", now_ms=5_000_000).begin()


@pytest.mark.slow
def test_kept_checkpoint_below_the_base_is_restored_by_number(store: MemoryStore) -> None:
    coordinator, *slots = started(store, spec(checkpoints=RETAINED))
    complete(coordinator, slots, 60)
    assert base(store) > 44
    again = restart(store, 43)
    again.run_with(again.slot(0, "x"), again.slot(1, "y"))
    restored = read_log(store, PATHS).restored
    assert restored is not None
    assert complete_of(restored).checkpoint == 43


@pytest.mark.slow
@pytest.mark.parametrize("number", [20, 40])
def test_start_from_a_dropped_checkpoint_names_the_kept_ones(store: MemoryStore, number: int) -> None:
    coordinator, *slots = started(store, spec(checkpoints=RETAINED))
    complete(coordinator, slots, 60)
    ended = restart(store, number).settle().ended
    assert ended is not None
    assert f"checkpoint {number} of job flights is not kept any more (kept: 51, 52, " in ended.reason
    assert "59, 60): restore" in ended.reason


def test_number_that_was_never_reached_is_refused_as_before(store: MemoryStore) -> None:
    coordinator, *slots = started(store, spec(checkpoints=RETAINED))
    complete(coordinator, slots, 30)
    ended = restart(store, 99).settle().ended
    assert ended is not None
    assert "has no completed checkpoint 99 (newest: 30, 29" in ended.reason


@pytest.mark.slow
def test_reader_of_a_dropped_checkpoint_of_a_compacted_log_learns_the_kept_ones(tmp_path: Path) -> None:
    coordinator, *slots = started(open_store(str(tmp_path)), spec(checkpoints=RETAINED))
    complete(coordinator, slots, 60)
    assert find_checkpoint(str(tmp_path), "flights", 45).manifest.checkpoint == 45
    with pytest.raises(InvalidJob, match=r"checkpoint 20 of job flights is not kept any more \(kept: 51, 52, "):
        find_checkpoint(str(tmp_path), "flights", 20)


@pytest.mark.slow
def test_pinned_checkpoint_is_opened_by_another_process_after_the_log_was_compacted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    coordinator, *slots = started(store)
    complete(coordinator, slots, 4)
    planned, pin = pinned_checkpoint(str(tmp_path), "flights")
    assert pin is not None
    decided: LogEntry = pickle.loads(pickle.dumps(planned.decided))
    complete(coordinator, slots, 40)
    assert base(store) > decided.position
    assert get_or_none(store, PATHS.log_record(decided.position)) is None, "compacted away"
    found, again = pinned_again(str(tmp_path), "flights", decided)
    assert found.manifest == planned.manifest
    assert again is not None
    for each in (again, pin):
        each.release()
    with pytest.raises(InvalidJob, match="checkpoint 4 of job flights is not kept any more"):
        pinned_again(str(tmp_path), "flights", decided)
