"""A sink's knowledge of the job's decision log."""

import dataclasses

import pytest

from barrier_runtime.connectors.job_log import log_id
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.memory import Fault, MemoryStore
from barrier_runtime.state.versioned import sha256_hex
from tests.first_record import begin_log


def context(store: MemoryStore) -> SinkContext:
    return SinkContext("job", "out", 1, 0, 1, lambda url: store, store, "lineage")


@pytest.mark.parametrize("fault", [Fault.TRUNCATED_READ, Fault.FLIPPED_BYTE])
def test_a_first_record_that_is_read_wrongly_once_gives_no_other_log(fault: Fault, store: MemoryStore) -> None:
    """Found by the simulation: a subtask with another identity fenced the subtask's own generation."""
    key = begin_log(store, "job", "a")
    expected = log_id(context(store))
    assert expected.startswith("log ")
    store.inject(fault, "get", key, times=2)
    assert log_id(context(store)) == expected


def test_a_first_record_that_is_damaged_is_an_error_that_names_it(store: MemoryStore) -> None:
    """O4"""
    key = begin_log(store, "job", "a")
    store.damage(key, store.get(key)[:-20])
    with pytest.raises(Corrupt, match=key):
        log_id(context(store))


def test_the_coordinator_sends_the_identity_of_the_log_that_a_subtask_would_read(store: MemoryStore) -> None:
    key = begin_log(store, "job", "a")
    expected = log_id(context(store))
    sent = dataclasses.replace(context(store), log_sha256=sha256_hex(store.get(key)))
    store.inject(Fault.FAIL_BEFORE, "get", times=None)
    assert log_id(sent) == expected


def test_without_a_log_the_lineage_is_the_identity(store: MemoryStore) -> None:
    assert log_id(context(store)) == "lineage lineage"
