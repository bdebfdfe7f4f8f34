"""Slots that do not hear each other although both reach the coordinator."""

from coordinator_world import Coordinator, FakeSlot, spec, started

from barrier_runtime.coordinator.job.effects import KillSlotTask
from barrier_runtime.coordinator.wire.messages import Deploy, Heartbeat, Shutdown
from barrier_runtime.state.store.memory import MemoryStore


def beats(coordinator: Coordinator, seconds: int, *slots: FakeSlot, unheard: "dict[int, dict[int, int]]") -> None:
    """Lets `slots` send heartbeats for `seconds`; the silences in `unheard` grow with the time."""
    for second in range(1, seconds + 1):
        coordinator.later(1_000)
        for slot in slots:
            silent = {peer: since + 1_000 * second for peer, since in unheard.get(slot.index, {}).items()}
            slot.say(Heartbeat(slot.token, unheard=silent))
        coordinator.settle()


def fences(coordinator: Coordinator) -> int:
    return coordinator.protocol.token or 0


def test_a_silent_link_ends_the_generation_within_the_slot_timeout_and_is_named():
    coordinator, first, second = started(MemoryStore())
    before = fences(coordinator)
    beats(coordinator, 2, first, second, unheard={})
    beats(coordinator, 10, first, second, unheard={1: {0: 0}})
    assert fences(coordinator) > before
    reason = coordinator.status.recoveries[-1].reason
    assert "slot 1 of host worker has not heard slot 0 of host worker for 8 s, and both reach the coordinator" in reason


def test_the_silence_of_a_blocked_slot_is_no_fault_of_a_link():
    coordinator, first, second = started(MemoryStore())
    before = fences(coordinator)
    beats(coordinator, 2, first, second, unheard={})
    beats(coordinator, 9, second, unheard={1: {0: 0}})  # user code blocks the loop of slot 0
    first.say(Heartbeat(first.token))
    second.say(Heartbeat(second.token, unheard={0: 9_000}))
    coordinator.settle()
    assert fences(coordinator) == before
    assert coordinator.phase == "running"


def test_a_slot_of_a_pair_that_fails_again_is_requested_elsewhere_without_a_fence():
    coordinator, first, second = started(MemoryStore())
    beats(coordinator, 12, first, second, unheard={1: {0: 0}})
    between = fences(coordinator)
    assert first.last(Deploy).token == between
    beats(coordinator, 60, first, second, unheard={1: {0: 0}})
    assert fences(coordinator) == between, "slots that connect try on by themselves"
    assert coordinator.status.condition == "WAITING_NETWORK"
    assert "slot 1 of host worker has not heard slot 0" in coordinator.status.condition_reason
    assert coordinator.kills == [KillSlotTask(1, 0, second.uuid, avoid="worker")]
    assert [order.avoid for order in coordinator.status.kill] == ["worker"]
    moved = coordinator.slot(1, attempt=5).connect()
    assert second.last(Shutdown).outcome == "left", "Spark must not start the replaced slot again"
    beats(coordinator, 2, first, moved, unheard={})
    for slot in (first, moved):
        slot.restored()
    assert coordinator.phase == "running"
    assert coordinator.status.kill == ()


def test_a_replacement_after_the_link_healed_ends_the_duel_of_two_spark_jobs():
    coordinator, first, second = started(MemoryStore())
    beats(coordinator, 12, first, second, unheard={1: {0: 0}})
    beats(coordinator, 60, first, second, unheard={1: {0: 0}})
    beats(coordinator, 2, first, second, unheard={})
    for slot in (first, second):
        slot.restored()
    assert coordinator.status.kill == ()
    coordinator.slot(1, attempt=5).connect()
    assert second.last(Shutdown).outcome == "left", "Spark must not start the replaced slot again"


def test_processes_without_another_host_are_not_replaced_when_their_link_fails_again():
    coordinator, first, second = started(MemoryStore(), spec(carrier="processes"))
    beats(coordinator, 12, first, second, unheard={1: {0: 0}})
    beats(coordinator, 60, first, second, unheard={1: {0: 0}})
    assert coordinator.status.condition == "WAITING_NETWORK"
    assert coordinator.kills == []
    beats(coordinator, 2, first, second, unheard={})
    for slot in (first, second):
        slot.restored()
    assert coordinator.phase == "running"
