"""Spare slots: states, and the interleavings of docs/design/spare-slots.md."""

import pytest
from coordinator_world import Coordinator, FakeSlot, commit, kinds, pause, spec, started, successor
from rich.console import Console

from barrier_runtime.coordinator.job.effects import KillSlotTask
from barrier_runtime.coordinator.job.events import UserRescale
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.page.job_view import live
from barrier_runtime.coordinator.status.figure_table import EXPOSED
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.status.status import JobStatus, SparesStatus
from barrier_runtime.coordinator.status.why.job import why_job
from barrier_runtime.coordinator.wire.messages import Deploy, Heartbeat, Prefetch, Shutdown, Start, Trigger
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.tools.views import job_view

console = Console(width=200)


def with_spares(store: MemoryStore, spares: int = 1, **arguments: object) -> tuple[Coordinator, list[FakeSlot]]:
    """Returns a running job of two slots, and its processes; the spares are the last."""
    coordinator, *slots = started(store, spec(spare_slots=spares), **arguments)
    return coordinator, [*slots, *(coordinator.slot(2 + n, attempt=2 + n).connect() for n in range(spares))]


def lose(coordinator: Coordinator, *slots: FakeSlot) -> None:
    for slot in slots:
        slot.cut()
    for _ in range(3):  # the grace for a reconnect, then the delay of a restart
        coordinator.later(600)
        coordinator.settle()


def run(coordinator: Coordinator, *slots: FakeSlot) -> None:
    for slot in slots:
        slot.restored()
    assert coordinator.phase == "running", coordinator.protocol.reason


def dies_and_returns(coordinator: Coordinator, number: int, attempt: int) -> FakeSlot:
    return coordinator.slot(number, attempt=attempt).connect()


def spares(coordinator: Coordinator) -> tuple[int, tuple[int, ...]]:
    found = coordinator.status.spares
    return found.ready, found.gone


def test_job_starts_without_its_spares_and_then_asks_for_them(store: MemoryStore) -> None:
    coordinator, *_ = started(store, spec(spare_slots=2))
    assert coordinator.status.spares == SparesStatus(wanted=2, ready=0, gone=(2, 3))
    coordinator.slot(2, attempt=2).connect()
    assert coordinator.status.spares == SparesStatus(wanted=2, ready=1, gone=(3,))


def test_page_why_status_and_metrics_tell_how_many_spares_are_ready(store: MemoryStore) -> None:
    coordinator, *_ = started(store, spec(spare_slots=2))
    coordinator.slot(2, attempt=2).connect()
    status = coordinator.status
    (reason,) = [each for each in why_job(status, status.at_ms) if each.cause == "fewer_spares"]
    assert reason.sentence == f"Job {status.job} has 1 of 2 spares ready: a lost slot may wait for a new process."
    assert reason.evidence == ("1 spare not started, or lost",)
    assert "give Spark a core" in reason.remedy
    assert live(status, status.at_ms)["slots"] == "2 of 2, 1 of 2 spares ready"
    with console.capture() as printed:
        console.print(job_view(status))
    assert "2 of 2 slots; 1 of 2 spares ready" in printed.get().replace("\n", " ")
    assert missing(status) == {(): 1.0}
    coordinator.slot(3, attempt=3).connect()
    assert "fewer_spares" not in [each.cause for each in why_job(coordinator.status, status.at_ms)]
    assert missing(coordinator.status) == {(): 0.0}
    assert missing(started(MemoryStore("other"))[0].status) == {}


def test_a_spare_of_a_job_without_spark_asks_for_no_cores_of_spark(store: MemoryStore) -> None:
    coordinator, *_ = started(store, spec(spare_slots=2, carrier="processes"))
    status = coordinator.status
    (reason,) = [each for each in why_job(status, status.at_ms) if each.cause == "fewer_spares"]
    assert "Spark" not in reason.remedy


def missing(status: JobStatus) -> dict[tuple[str, ...], float]:
    (figure,) = [each for each in EXPOSED if each.exposed == "barrier_spares_missing"]
    return dict(figure.values(status))


def test_spare_has_the_number_of_a_lost_slot_at_once(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    number = coordinator.checkpoint(first, second)
    lose(coordinator, first)
    deploy = spare.last(Deploy)
    assert (deploy.slot, deploy.checkpoint, spare.index) == (0, number, 0)
    assert [peer.uuid for peer in deploy.peers] == [spare.uuid, second.uuid]
    run(coordinator, spare, second)
    assert spares(coordinator) == (0, (0,))
    assert coordinator.checkpoint(spare, second) == number + 1


def test_replacement_of_a_lost_slot_is_the_new_spare(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    lose(coordinator, first)
    run(coordinator, spare, second)
    new = dies_and_returns(coordinator, 0, attempt=9)
    assert (coordinator.phase, spares(coordinator), new.got(Deploy)) == ("running", (1, ()), [])
    lose(coordinator, spare)
    assert new.last(Deploy).slot == -1  # its own number again
    run(coordinator, new, second)
    assert spares(coordinator) == (0, (2,))


def test_process_that_was_only_cut_off_is_refused_and_ended(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    lose(coordinator, first)
    kill = next(each for each in coordinator.protocol.facts.slots.kills if each.uuid == first.uuid)
    assert isinstance(kill, KillSlotTask)
    assert (kill.slot, kill.task_attempt) == (0, first.attempt)
    first.connect()
    assert first.last(Shutdown).outcome == "replaced"
    run(coordinator, spare, second)
    dies_and_returns(coordinator, 0, attempt=9)
    assert (coordinator.protocol.facts.slots.kills, spares(coordinator)[0]) == ((), 1)


def test_two_lost_slots_with_one_spare_wait_for_one_process(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    lose(coordinator, first, second)
    assert (coordinator.phase, coordinator.status.missing_slots) == ("waiting", (1,))
    new = dies_and_returns(coordinator, 0, attempt=9)  # of the slot whose number the spare has
    assert (spare.last(Deploy).slot, new.last(Deploy).slot) == (0, 1)
    run(coordinator, spare, new)
    assert spares(coordinator) == (0, (1,))


def test_spare_that_dies_as_it_is_taken_is_a_lost_slot(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    lose(coordinator, first)
    lose(coordinator, spare)
    assert coordinator.status.missing_slots == (0,)
    new = dies_and_returns(coordinator, 2, attempt=9)
    run(coordinator, new, second)
    assert (new.index, spares(coordinator)) == (0, (0, (0,)))


def test_silent_spare_is_not_taken_before_its_next_heartbeat(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    for _ in range(5):
        coordinator.later(1_000)
        first.beat()
        second.beat()
    assert spares(coordinator) == (0, ())
    lose(coordinator, first)
    assert (coordinator.status.missing_slots, spare.got(Deploy)) == ((0,), [])
    second.beat()
    assert not spare.got(Deploy)
    spare.beat()
    assert spare.last(Deploy).slot == 0


def test_spare_on_another_host_than_the_lost_slot_comes_first(store: MemoryStore) -> None:
    coordinator, *slots = started(store, spec(spare_slots=2))
    near, far = coordinator.slot(2, attempt=2), coordinator.slot(3, attempt=3)
    far.host = "other"
    near.connect(), far.connect()
    lose(coordinator, slots[0])
    assert (far.last(Deploy).slot, near.got(Deploy)) == (0, [])


def test_new_coordinator_learns_numbers_from_running_slots(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    lose(coordinator, first)
    run(coordinator, spare, second)
    new = dies_and_returns(coordinator, 0, attempt=9)
    token = spare.token
    after = Coordinator(store, spec(spare_slots=1)).begin()
    for slot in (second, spare, new):
        slot.coordinator, slot.link = after, 0
        slot.connect()
    after.settle()
    assert (after.phase, spare.token, spares(after)) == ("running", token, (1, ()))
    assert after.checkpoint(spare, second)


def test_rescale_up_takes_the_spare_and_asks_for_another(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    lose(coordinator, first)
    run(coordinator, spare, second)
    new = dies_and_returns(coordinator, 0, attempt=9)
    coordinator.post(UserRescale(RescaleRequest("up", 3, 60_000)))
    coordinator.later(0)
    coordinator.settle()
    last = coordinator.acknowledge(spare, second) if spare.last(Trigger).pause else None
    assert last is not None
    assert {each.slot for each in spare.got(Prefetch)} == {-1}, "the rescale restores numbers"
    for slot in (spare, second):
        slot.commit(last)
    coordinator.settle()
    coordinator.later(0)
    coordinator.settle()
    assert [new.last(Deploy).slot, second.last(Deploy).slot, spare.last(Deploy).slot] == [-1, -1, -1]
    spare.index = 2
    run(coordinator, new, second, spare)
    assert (coordinator.status.parallelism, spares(coordinator)) == (3, (0, (3,)))
    assert len(new.got(Start)) == 1


def taken(store: MemoryStore, **arguments: object) -> tuple[Coordinator, FakeSlot, FakeSlot, FakeSlot]:
    """Returns a running job whose slot 0 is the process that was started as spare 2; process 0 is the spare."""
    coordinator, (first, second, spare) = with_spares(store, **arguments)
    lose(coordinator, first)
    run(coordinator, spare, second)
    new = dies_and_returns(coordinator, 0, attempt=9)
    coordinator.checkpoint(spare, second)
    return coordinator, spare, second, new


def moves(coordinator: Coordinator, *slots: FakeSlot) -> None:
    commit(coordinator, pause(coordinator, *slots), *slots)
    coordinator.settle()


def test_former_spare_leaves_its_host_under_the_number_of_its_start(store: MemoryStore) -> None:
    coordinator, old, second, spare = taken(store)
    old.say(Heartbeat(old.token, notices=1))
    (leaving,) = coordinator.status.leaving
    assert (leaving.slot, leaving.started_as, leaving.task_attempt) == (0, 2, old.attempt)
    new = successor(coordinator, 2, attempt=11)
    assert [each.last(Prefetch).slot for each in (old, second, new)] == [0, -1, 0]
    moves(coordinator, old, second)
    assert (new.last(Deploy).slot, new.last(Deploy).checkpoint) == (0, second.last(Trigger).checkpoint)
    assert old.last(Shutdown).outcome == "left"
    assert (spare.got(Deploy), spare.got(Shutdown)) == ([], [])
    new.index = 0
    run(coordinator, new, second)
    assert spares(coordinator) == (1, ())
    lose(coordinator, new)
    assert spare.last(Deploy).slot == -1


def test_successor_and_not_a_spare_has_the_slot_of_a_host_that_died(store: MemoryStore) -> None:
    coordinator, old, second, spare = taken(store)
    old.say(Heartbeat(old.token, notices=1))
    new = successor(coordinator, 2, attempt=11)
    lose(coordinator, old)
    assert (new.last(Deploy).slot, spare.got(Deploy)) == (0, [])
    new.index = 0
    run(coordinator, new, second)
    assert spares(coordinator) == (1, ())


def test_spare_of_a_host_that_leaves_comes_last(store: MemoryStore) -> None:
    coordinator, *slots = started(store, spec(spare_slots=2))
    near, far = coordinator.slot(2, attempt=2), coordinator.slot(3, attempt=3)
    near.host = "spot"
    near.connect(), far.connect()
    near.say(Heartbeat(near.token, notices=1))
    lose(coordinator, slots[0])
    assert (far.last(Deploy).slot, near.got(Deploy)) == (0, [])
    run(coordinator, far, slots[1])
    lose(coordinator, far)
    assert near.last(Deploy).slot == 0


def test_silent_successor_leaves_when_a_spare_takes_the_slot(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    coordinator.checkpoint(first, second)
    first.say(Heartbeat(first.token, notices=1))
    new = successor(coordinator, 0, attempt=11)
    for _ in range(5):
        coordinator.later(1_000)
        for slot in (first, second, spare):
            slot.beat()
    lose(coordinator, first)
    assert spare.last(Deploy).slot == 0
    assert new.last(Shutdown).outcome == "left"


def test_new_coordinator_without_history_keeps_the_successor_of_a_former_spare(store: MemoryStore) -> None:
    _, old, second, spare = taken(store)
    token = old.token
    after = Coordinator(store, spec(spare_slots=1)).begin()
    new = successor(after, 2, attempt=11)
    for slot in (second, old, spare):
        slot.coordinator, slot.link = after, 0
        slot.connect()
    after.settle()
    assert (after.phase, old.token, new.got(Deploy)) == ("running", token, [])


def test_broken_spare_does_not_keep_slots_on_a_host_that_ends(store: MemoryStore) -> None:
    coordinator, a, b = started(store, spec(spare_slots=1))
    broken = coordinator.slot(2, attempt=2)
    broken.broken = "ImportError: no module"
    broken.connect()
    coordinator.checkpoint(a, b)
    b.say(Heartbeat(b.token, notices=1))
    new = successor(coordinator, 1, 5)
    moves(coordinator, a, b)
    assert new.got(Deploy)


@pytest.mark.parametrize("known", [True, False], ids=["history", "no history"])
def test_new_coordinator_gives_no_spare_the_number_of_a_process_that_may_connect(
    store: MemoryStore, known: bool
) -> None:
    coordinator, (a, b, spare) = with_spares(store)
    coordinator.checkpoint(a, b)
    if known:
        store.put(coordinator.paths.history, encode_history(coordinator.protocol.history()))
    other = Coordinator(store, coordinator.protocol.spec).begin()
    spare.coordinator = b.coordinator = other
    spare.connect()
    new = other.slot(0, attempt=9).connect()  # the process of slot 0 died together with the coordinator
    other.settle()
    other.later(0)
    b.connect()
    other.later(0)
    assert not b.got(Shutdown)
    assert not spare.got(Deploy)
    assert new.got(Deploy)


@pytest.mark.parametrize("known", [True, False], ids=["history", "no history"])
def test_new_coordinator_gives_a_spare_the_number_of_a_process_that_never_connects(
    store: MemoryStore, known: bool
) -> None:
    coordinator, (a, b, spare) = with_spares(store)
    coordinator.checkpoint(a, b)
    if known:
        store.put(coordinator.paths.history, encode_history(coordinator.protocol.history()))
    other = Coordinator(store, coordinator.protocol.spec).begin()
    spare.coordinator = other
    spare.connect()
    new = other.slot(0, attempt=9).connect()
    other.settle()
    for _ in range(other.protocol.spec.slot_timeout_ms // 1_000):
        assert not spare.got(Deploy)
        other.later(1_000)
        new.say(Heartbeat(new.token))
        spare.say(Heartbeat(spare.token))
    other.later(0)
    assert spare.last(Deploy).slot == 1


def test_spare_that_hangs_is_closed_and_not_killed(store: MemoryStore) -> None:
    coordinator, (first, second, spare) = with_spares(store)
    for _ in range(coordinator.protocol.spec.slot_timeout_ms // 1_000):
        assert not spare.closed
        coordinator.later(1_000)
        first.beat()
        second.beat()
    coordinator.later(0)
    assert spare.closed
    assert (coordinator.phase, spares(coordinator)) == ("running", (0, (2,)))
    assert (coordinator.kills, coordinator.status.kill, spare.got(Shutdown)) == ([], (), [])
    spare.connect()  # the process has woken up
    assert spares(coordinator) == (1, ())
    lose(coordinator, first)
    assert spare.last(Deploy).slot == 0


@pytest.mark.parametrize("order", ["replacement first", "spare first"])
def test_replacement_of_a_former_spare_is_a_spare_to_a_coordinator_without_history(
    store: MemoryStore, order: str
) -> None:
    """The coordinator and the process of slot 0 die together; the driver starts the process as spare 2 again."""
    _, old, second, spare = taken(store)
    token, number = old.token, second.last(Trigger).checkpoint
    after = Coordinator(store, spec(spare_slots=1)).begin()
    new = after.slot(2, attempt=11)
    second.coordinator = spare.coordinator = after
    for slot in (new, spare, second) if order == "replacement first" else (spare, new, second):
        slot.connect()
    after.settle()
    after.later(0)
    assert second.last(Deploy).token > token, "a slot came without its state"
    assert (spare.last(Deploy).slot, spare.last(Deploy).checkpoint) == (-1, number)
    assert (new.got(Deploy), new.got(Shutdown), spare.got(Shutdown)) == ([], [], [])
    run(after, spare, second)
    assert spares(after) == (1, ())
    assert after.checkpoint(spare, second) == number + 1
    lose(after, second)
    assert (new.last(Deploy).slot, new.last(Deploy).checkpoint) == (1, number + 1)


def test_spare_that_was_a_slot_before_a_rescale_claims_no_number(store: MemoryStore) -> None:
    """The spare repeats the number of the last deployment, which another process has now."""
    coordinator, (first, second, old, _) = with_spares(store, 2)
    lose(coordinator, first)
    run(coordinator, old, second)
    new = dies_and_returns(coordinator, 0, attempt=9)
    coordinator.checkpoint(old, second)
    coordinator.post(UserRescale(RescaleRequest("down", 1, 60_000)))
    moves(coordinator, old, second)
    coordinator.later(0)
    run(coordinator, new)
    old.token = second.token = new.token  # of the order to drop the generation before
    after = Coordinator(store, spec(spare_slots=2)).begin().settle()
    for slot in (old, second, new):
        slot.coordinator = after
        slot.connect()
    after.settle()
    assert (after.phase, kinds(store)[-1], spares(after)) == ("running", "LEAD", (2, ()))
