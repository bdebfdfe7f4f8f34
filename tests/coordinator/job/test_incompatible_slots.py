"""Slots whose versions do not fit are refused by name; another build is a warning."""

import pytest
from coordinator_world import Coordinator, started

from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION, Shutdown
from barrier_runtime.state.store.memory import MemoryStore

OWN = {
    "Python": "3.11.4",
    "pyarrow": "21.0.0",
    "msgspec": "0.19.0",
    "rocksdict": "0.3.25",
    "barrier-runtime": "0.1.0",
    "the build of barrier-runtime": "aaaa",
}
REMEDY = "give the executors the driver's environment"


def beginning() -> Coordinator:
    return Coordinator(MemoryStore(), versions=OWN).begin()


@pytest.mark.parametrize(
    ("versions", "said"),
    [
        ({"Python": "3.12.0"}, "slot 1 on host worker has Python 3.12.0, the coordinator has 3.11.4: "),
        ({"pyarrow": "20.9.0"}, "slot 1 on host worker has pyarrow 20.9.0, the coordinator has 21.0.0: "),
        ({"the protocol": "1"}, f"slot 1 on host worker has the protocol 1, the coordinator has {PROTOCOL_VERSION}: "),
        (
            {"msgspec": "1.0.0", "rocksdict": "1.1.0"},
            "has msgspec 1.0.0, the coordinator has 0.19.0 and rocksdict 1.1.0, the coordinator has 0.3.25: ",
        ),
    ],
)
def test_first_start_with_an_incompatible_slot_fails_and_names_it(versions, said):
    coordinator = beginning()
    coordinator.slot(0).connect()
    coordinator.settle()
    other = coordinator.slot(1)
    other.versions = OWN | versions
    other.connect()
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    assert said in coordinator.status.error
    assert REMEDY in coordinator.status.error
    assert said in other.last(Shutdown).reason
    assert other.closed


def test_incompatible_slot_that_came_before_the_fence_is_refused_as_well():
    coordinator = beginning()
    other = coordinator.slot(0)
    other.versions = OWN | {"Python": "3.12.0"}
    other.connect()
    assert other.last(Shutdown).outcome == "replaced"
    coordinator.settle()
    assert coordinator.ended.outcome == "failed"
    assert "slot 0 on host worker has Python 3.12.0" in coordinator.status.error


def test_place_of_a_refused_process_is_taken_by_another_before_the_fence():
    coordinator = beginning()
    other, right = coordinator.slot(0, attempt=1), coordinator.slot(0, attempt=2)
    other.versions, right.versions = OWN | {"Python": "3.12.0"}, OWN
    other.connect()
    right.connect()
    coordinator.run_with(right, coordinator.slot(1))
    assert coordinator.phase == "running"


@pytest.mark.parametrize(
    "versions", [{}, OWN, {"Python": "3.11.9", "pyarrow": "21.4.0"}, {"rocksdict": "0.4.1", "msgspec": "0.20.0"}]
)
def test_slots_of_equal_or_unknown_versions_run_without_a_warning(versions):
    coordinator = beginning()
    slots = coordinator.slot(0), coordinator.slot(1)
    for slot in slots:
        slot.versions = versions
    coordinator.run_with(*slots)
    assert coordinator.phase == "running"
    assert [slot.differs for slot in coordinator.status.slots] == ["", ""]


def test_job_that_has_run_refuses_the_process_and_waits_for_another():
    coordinator, first, second = started(MemoryStore(), versions=OWN)
    second.cut()
    coordinator.settle()
    other = coordinator.slot(1, attempt=1)
    other.versions = OWN | {"Python": "3.12.0"}
    other.connect()
    coordinator.settle()
    assert other.last(Shutdown).outcome == "replaced", "Spark starts the task again"
    assert coordinator.ended is None
    coordinator.run_with(first, coordinator.slot(1, attempt=2))
    assert coordinator.phase == "running"


def test_upgraded_coordinator_keeps_the_slots_that_run():
    store = MemoryStore()
    _, *slots = started(store, versions=OWN)
    after = Coordinator(store, leader="leader-b", versions=OWN | {"pyarrow": "22.0.0"}).begin()
    for slot in slots:
        slot.coordinator, slot.versions = after, OWN
        slot.connect()
    after.settle()
    assert after.phase == "running"


def test_another_build_is_a_warning_in_the_status_of_the_slot():
    coordinator = beginning()
    slots = coordinator.slot(0), coordinator.slot(1)
    slots[0].versions, slots[1].versions = OWN, OWN | {"the build of barrier-runtime": "bbbb"}
    coordinator.run_with(*slots)
    assert coordinator.phase == "running"
    assert [slot.differs for slot in coordinator.status.slots] == [
        "",
        "slot 1 on host worker has the build of barrier-runtime bbbb, the coordinator has aaaa: "
        "install the same build on all hosts",
    ]
