"""A brief status, completed by the last whole one, and the version of the status without the status."""

from coordinator_world import Coordinator, new_generation, spec, started

from barrier_runtime.coordinator.client.rest_types import news_of
from barrier_runtime.coordinator.job.events import UserRescale
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.job.status_view import news_version
from barrier_runtime.coordinator.status.status import completed_brief
from barrier_runtime.coordinator.wire.messages import Heartbeat
from barrier_runtime.state.store.memory import MemoryStore


def checked(coordinator: Coordinator) -> str:
    """Returns the version of the status."""
    protocol, now_ms = coordinator.protocol, coordinator.now_ms
    whole = protocol.status(now_ms)
    assert completed_brief(protocol.status(now_ms, brief=True), whole) == whole
    version = news_version(protocol.facts, whole.phase, whole.outcome, whole.condition, whole.condition_reason)
    assert version == news_of(whole)
    return version


def test_a_brief_status_and_its_version_agree_with_the_whole_status() -> None:
    coordinator, a, b = started(MemoryStore(), spec(max_parallelism=8))
    versions = [checked(coordinator)]
    coordinator.later(1_000)
    for slot in (a, b):
        slot.beat()
        slot.ack(1)
    coordinator.settle()
    versions.append(checked(coordinator))
    coordinator.post(UserRescale(RescaleRequest("more", 3, 60_000)))
    coordinator.settle()
    versions.append(checked(coordinator))
    assert versions[0] == versions[1] != versions[2]


def test_a_quick_recovery_changes_the_version() -> None:
    """The slots of the generation before must not be shown."""
    coordinator, a, b = started(MemoryStore(), spec())
    before, woken, condition = checked(coordinator), coordinator.protocol.news, coordinator.status.condition
    new_generation(coordinator, a, b)
    assert (coordinator.status.condition, coordinator.status.phase) == (condition, "running")
    assert checked(coordinator) != before
    assert coordinator.protocol.news != woken


def test_the_version_contains_kill_orders() -> None:
    coordinator, a, b = started(MemoryStore(), spec(slot_timeout_ms=3_000))
    before = checked(coordinator)
    b.cut()
    for _ in range(8):
        coordinator.later(500)
        a.say(Heartbeat(coordinator.protocol.token or 0))
        coordinator.settle()
    assert coordinator.status.kill
    assert checked(coordinator) != before
