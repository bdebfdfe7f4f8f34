"""Preflight before the first FENCE, so that a start that cannot work leaves an earlier run alone."""

import pytest
from coordinator_world import Coordinator, FakeSlot, spec, started

from barrier_runtime.coordinator.wire.messages import JobSpec, Probe, Probed, Shutdown, SlotFacts
from barrier_runtime.state.store.memory import MemoryStore

LIMIT_MS, ANSWERS_MS = 20_000, 5_000
FACTS = SlotFacts(clock_ms=1_000_000, open_files=1_024, free_bytes=50 << 30, folder="/local")
OWN = {"Python": "3.11.4"}


def checked(**changes: object) -> JobSpec:
    return spec(preflight_ms=LIMIT_MS, **changes)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def beginning(store: MemoryStore, job: JobSpec | None = None) -> tuple[Coordinator, FakeSlot, FakeSlot]:
    coordinator = Coordinator(store, job or checked(), versions=OWN).begin().settle()
    slots = coordinator.slot(0), coordinator.slot(1)
    for each in slots:
        each.facts, each.versions = FACTS, OWN
    return coordinator, *slots


def records(store: MemoryStore) -> int:
    return sum(1 for _ in store.list("flights/log/"))


def test_fence_is_appended_once_all_slots_have_told_what_they_reach(store):
    coordinator, first, second = beginning(store)
    assert coordinator.phase == "checking"
    assert "waits for slots 0, 1 of 2 to register before it takes the job over" in coordinator.status.condition_reason
    first.connect()
    assert not first.got(Probe)
    second.connect()
    for each in (first, second):
        assert [peer.slot for peer in each.last(Probe).peers] == [0, 1]
    first.say(Probed("", 5))
    coordinator.settle()
    assert records(store) == 0
    assert "waits for answers of all slots about their hosts" in coordinator.status.condition_reason
    second.say(Probed("", 5, {0: "refused"}))
    assert coordinator.status.preflight.findings[0].severity == "error"
    coordinator.settle()
    assert records(store) == 1, "a finding is no reason to wait: each fault has a reaction of its own"
    assert coordinator.phase == "restoring"
    assert len(first.got(Probe)) == 1


def test_slots_without_facts_are_not_probed(store):
    coordinator, first, second = beginning(store)
    for each in (first, second):
        each.facts = None
        each.connect()
    coordinator.settle()
    assert coordinator.phase == "restoring"


def test_slot_of_another_version_is_refused_before_a_record_is_written(store):
    coordinator, first, second = beginning(store)
    second.versions = {"Python": "3.12.1"}
    second.connect()
    assert coordinator.ended is None, "the matrix has all hosts"
    first.connect()
    first.say(Probed("", 5))
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    assert "slot 1 on host worker has Python 3.12.1, the coordinator has 3.11.4" in coordinator.status.error
    assert first.last(Shutdown).outcome == "failed"
    assert records(store) == 0
    assert coordinator.status.preflight.complete


def test_refused_start_leaves_an_earlier_run_alone(store):
    before, *running = started(store, versions=OWN)
    coordinator, first, second = beginning(store, checked(run_id="run-2"))
    first.versions = second.versions = {"Python": "3.12.1"}
    first.connect()
    second.connect()
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    before.trigger()
    for each in running:
        each.ack(1)
    before.settle()
    assert before.ended is None
    assert before.status.checkpoints.completed == 1


def test_later_run_goes_on_from_what_the_earlier_completed_meanwhile(store):
    before, *running = started(store, versions=OWN)
    coordinator, first, second = beginning(store, checked(run_id="run-2"))
    first.connect()
    before.trigger()
    for each in running:
        each.ack(1)
    before.settle()
    second.connect()
    for each in (first, second):
        each.say(Probed("", 5))
    coordinator.settle()
    assert coordinator.status.restored_checkpoint == 1


def test_refused_slot_ends_the_wait_for_slots_that_do_not_come(store):
    coordinator, _, second = beginning(store)
    second.versions = {"Python": "3.12.1"}
    second.connect()
    coordinator.later(ANSWERS_MS)
    assert coordinator.ended.outcome == "failed"
    assert records(store) == 0


def test_missing_slot_holds_the_fence_up_for_a_limited_time(store):
    """The earlier run may hold the cores of the missing slot."""
    coordinator, first, _ = beginning(store)
    first.connect()
    coordinator.later(LIMIT_MS - 1)
    coordinator.settle()
    assert records(store) == 0
    coordinator.later(1)
    coordinator.settle()
    assert records(store) == 1
    assert coordinator.phase == "waiting"


def test_silent_slot_holds_the_fence_up_for_a_limited_time(store):
    coordinator, first, second = beginning(store)
    first.connect()
    second.connect()
    first.say(Probed("", 5))
    coordinator.later(ANSWERS_MS)
    coordinator.settle()
    assert coordinator.phase == "restoring"
    assert coordinator.status.preflight.unanswered == (1,)


def test_process_that_replaces_another_is_probed_as_well(store):
    coordinator, first, second = beginning(store)
    first.connect()
    second.connect()
    first.say(Probed("", 5))
    second.cut()
    again = coordinator.slot(1, attempt=1)
    again.facts, again.versions = FACTS, OWN
    again.connect()
    again.say(Probed("", 5))
    coordinator.settle()
    assert coordinator.phase == "restoring"


def test_restarted_coordinator_of_a_running_job_checks_nothing(store):
    _, *slots = started(store, checked())
    after = Coordinator(store, checked(), leader="leader-b").begin()
    for each in slots:
        each.coordinator = after
        each.connect()
    after.settle()
    assert after.phase == "running"


def test_stop_during_the_check_ends_the_job_without_a_record(store):
    coordinator, first, _ = beginning(store)
    first.connect()
    coordinator.stop("now")
    coordinator.settle()
    assert coordinator.ended.outcome == "cancelled"
    assert records(store) == 0
