"""Jobs with `at_least`: fewer slots while others stay away, and the return to full width (`job/rescaling`)."""

import msgspec
import pytest
from coordinator_world import Coordinator, FakeSlot, kinds, log_of, spec, started

from barrier_runtime.coordinator.job.effects import Append
from barrier_runtime.coordinator.job.events import UserRescale
from barrier_runtime.coordinator.job.rescaling import RescaleRequest, narrowed, shown, widening
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.status.figure_table import FIGURES
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.status.status import JobStatus, StandbysWanted
from barrier_runtime.coordinator.status.why.job import answer
from barrier_runtime.coordinator.wire.messages import Deploy, Prefetch, Shutdown, Start, Trigger
from barrier_runtime.state.store.memory import MemoryStore

AWAY_MS = 20_000  # `degrade_after`


def narrowing(**changes: object):
    return spec(at_least=1, degrade_after_ms=AWAY_MS, **changes)


def pass_time(coordinator: Coordinator, ms: int, *slots: FakeSlot) -> None:
    """Lets time pass, with a heartbeat of `slots` every second."""
    for _ in range(ms // 1_000):
        for slot in slots:
            slot.beat()
        coordinator.later(1_000)
        coordinator.settle()


def fences(store: MemoryStore) -> list[tuple[int, int, int]]:
    """Returns (parallelism, full parallelism, restored checkpoint) of each FENCE."""
    found = [each for each in log_of(store) if isinstance(each, Fence)]
    return [(each.spec.parallelism, each.spec.full_parallelism, each.restored_checkpoint) for each in found]


def narrowed_job(store: MemoryStore, **changes: object):
    """Returns a coordinator whose job has lost slot 1, and the only slot, which runs; and the restored checkpoint."""
    coordinator, first, second = started(store, narrowing(**changes))
    number = coordinator.checkpoint(first, second)
    second.cut()
    pass_time(coordinator, AWAY_MS + 2_000, first)
    assert coordinator.status.parallelism == 1
    first.restored()
    assert coordinator.phase == "running"
    return coordinator, first, number


def widen(coordinator: Coordinator, first: FakeSlot) -> FakeSlot:
    """Lets the second slot come, and moves the job to both."""
    second = coordinator.slot(1, attempt=9).connect()
    coordinator.later(0)
    while not first.last(Trigger).pause:
        coordinator.acknowledge(first)
        coordinator.later(1_000)
    last = coordinator.acknowledge(first)
    first.commit(last)
    coordinator.settle()
    coordinator.later(0)
    for slot in (first, second):
        slot.restored()
    return second


def test_a_job_goes_on_with_the_slots_that_are_there():
    store = MemoryStore()
    coordinator, first, number = narrowed_job(store)
    assert fences(store)[-1] == (1, 2, number)
    deploy = first.last(Deploy)
    assert (deploy.checkpoint, len(deploy.peers)) == (number, 1)
    assert len(deploy.operators) == 2 * 2, "the snapshots of both slots"
    reason = coordinator.status.recoveries[-1].reason
    assert "goes on with 1 of 2 slots: slot 1 of host worker missing for" in reason
    status = coordinator.status
    assert (status.condition, status.full_parallelism) == ("RUNNING", 2)
    assert status.condition_reason == "with 1 of 2 slots without slot 1 of host worker, until there are cores for all"
    assert narrow_metric(status) == 1
    assert "runs with 1 of 2 slots, because slot 1 of host worker stayed away." in str(answer(status, None))
    coordinator.checkpoint(first)


def narrow_metric(status: JobStatus) -> float | None:
    figure = next(each for each in FIGURES if each.exposed == "barrier_job_trouble")
    return dict(figure.values(status)).get(("fewer_slots",))


def test_slots_wait_as_long_as_fewer_than_at_least_are_there():
    store = MemoryStore()
    coordinator, first, second = started(store, spec(at_least=2, degrade_after_ms=AWAY_MS))
    second.cut()
    pass_time(coordinator, 10 * AWAY_MS, first)
    assert (coordinator.phase, coordinator.status.parallelism) == ("waiting", 2)
    assert coordinator.status.condition == "WAITING_SLOTS"


def test_a_first_start_waits_for_all_slots():
    coordinator = Coordinator(MemoryStore(), narrowing(resource_wait_timeout_ms=10 * AWAY_MS)).begin().settle()
    first = coordinator.slot(0).connect()
    pass_time(coordinator, 3 * AWAY_MS, first)
    assert (coordinator.phase, coordinator.status.parallelism) == ("waiting", 2)


def test_commits_that_a_lost_slot_owed_are_made_by_the_fewer_slots():
    """Slot 0 committed half of the checkpoint; the part of slot 1 is still to be committed."""
    store = MemoryStore()
    coordinator, first, second = started(store, narrowing())
    number = coordinator.checkpoint(first, second)
    first.commit(number)
    second.cut()
    pass_time(coordinator, AWAY_MS + 2_000, first)
    assert not first.last(Deploy).settled
    first.cut()
    coordinator.settle()
    claims = msgspec.structs.replace(first.register(), parallelism=2)
    assert claims.committed == {"out/0": number}
    first.register = lambda: claims  # the process was not deployed as the only slot yet
    first.connect()
    coordinator.settle()
    coordinator.later(0)
    assert not first.last(Deploy).settled, "a claim of one of two slots is none about all rows"


@pytest.mark.slow
def test_the_job_returns_to_full_width_when_there_is_a_core():
    store = MemoryStore()
    coordinator, first, _ = narrowed_job(store)
    wanted = coordinator.status.standbys
    assert isinstance(wanted, StandbysWanted)
    assert (wanted.first, wanted.last) == (1, 1), "the driver starts the slot, and Spark has no core for it yet"
    pass_time(coordinator, 5 * 60_000, first)
    assert coordinator.status.standbys == wanted, "no time limit"
    second = widen(coordinator, first)
    assert fences(store)[-1][:2] == (2, 0)
    assert (coordinator.phase, coordinator.status.condition_reason) == ("running", "")
    assert narrow_metric(coordinator.status) is None
    assert "fewer" not in str(answer(coordinator.status, None))
    assert second.got(Start)
    assert first.last(Deploy).settled, "a rescale like any other"


def test_a_failed_return_is_requested_again_later():
    coordinator, first, _ = narrowed_job(MemoryStore())
    second = coordinator.slot(1, attempt=9)
    second.prefetches = False
    coordinator.checkpoint(first)
    second.connect()
    pass_time(coordinator, 65_000, first, second)
    assert [each.state for each in coordinator.status.rescales] == ["failed"], "it has not fetched its state"
    assert coordinator.status.standbys is None
    pass_time(coordinator, AWAY_MS, first)
    assert [each.state for each in coordinator.status.rescales] == ["failed", "starting"]


@pytest.mark.slow
def test_a_slot_that_goes_after_each_return_moves_the_job_ever_less_often():
    store = MemoryStore()
    coordinator, first, _ = narrowed_job(store)
    begun_ms, waits_ms = coordinator.now_ms, []
    for _ in range(4):
        while coordinator.status.standbys is None:
            pass_time(coordinator, 1_000, first)
            acknowledge_open(coordinator, first)
        waits_ms.append(coordinator.now_ms - begun_ms)
        second = widen(coordinator, first)
        begun_ms = coordinator.now_ms
        second.cut()
        while coordinator.status.parallelism == 2:  # restarts are delayed, too
            pass_time(coordinator, 1_000, first)
        first.restored()
        assert (coordinator.phase, coordinator.status.parallelism) == ("running", 1)
    assert waits_ms[0] == 0
    assert waits_ms[2] >= 2 * AWAY_MS
    assert waits_ms[3] >= 4 * AWAY_MS


def acknowledge_open(coordinator: Coordinator, *slots: FakeSlot) -> None:
    if coordinator.status.checkpoints.in_progress:
        coordinator.acknowledge(*slots)
        for slot in slots:
            slot.commit(slot.last(Trigger).checkpoint)


def test_a_successor_knows_that_the_job_returned_in_vain():
    store = MemoryStore()
    coordinator, first, _ = narrowed_job(store)
    second = widen(coordinator, first)
    second.cut()
    store.put(coordinator.paths.history, encode_history(coordinator.protocol.history()))
    pass_time(coordinator, AWAY_MS + 2_000, first)
    first.restored()
    first.cut()
    successor = Coordinator(store, narrowing(), "leader-b", now_ms=coordinator.now_ms).begin().settle()
    again = successor.slot(0, uuid=first.uuid)
    again.token, again.phase, again.highest = first.token, "running", first.highest
    again.connect()
    successor.settle()
    assert (successor.phase, successor.status.parallelism) == ("running", 1)
    assert successor.status.standbys is not None, "the last return ended long ago"
    assert len(successor.protocol._job.rescales.ends_of_returns_ms) == 1


def test_a_new_slot_that_goes_while_it_fetches_state_holds_no_checkpoint():
    coordinator, first, _ = narrowed_job(MemoryStore())
    second = coordinator.slot(1, attempt=9).connect()
    coordinator.later(0)
    second.prefetches = False
    while not coordinator.protocol._job.rescales.open.ahead.is_last:
        coordinator.acknowledge(first)
        second.prefetched = first.prefetched
        pass_time(coordinator, 1_000, first, second)
    coordinator.acknowledge(first)
    pass_time(coordinator, 2_000, first, second)
    assert not coordinator.status.checkpoints.in_progress, "no other checkpoint follows that of the last round"
    second.cut()
    pass_time(coordinator, 2_000, first)
    assert coordinator.status.checkpoints.in_progress
    coordinator.acknowledge(first)
    assert coordinator.status.standbys is not None, "the return goes on with another process"


def test_a_slot_that_dies_during_each_restore_stays_away():
    """Each restart waits a quarter of `degrade_after` for the slot, which then comes and dies."""
    store = MemoryStore()
    coordinator, first, second = started(store, narrowing())
    coordinator.checkpoint(first, second)
    second.cut()
    pass_time(coordinator, 2_000, first)
    for attempt in range(1, 5):
        assert coordinator.status.parallelism == 2
        pass_time(coordinator, AWAY_MS // 4, first)
        second = coordinator.slot(1, attempt=attempt).connect()
        pass_time(coordinator, 1_000, first, second)
        second.cut()
        pass_time(coordinator, 2_000, first)
    pass_time(coordinator, AWAY_MS // 2, first)
    assert coordinator.status.parallelism == 1


def test_a_coordinator_that_stalled_waits_for_slots_anew():
    store = MemoryStore()
    coordinator, first, second = started(store, narrowing())
    coordinator.checkpoint(first, second)
    second.cut()
    pass_time(coordinator, 2_000, first)
    coordinator.now_ms += 10 * AWAY_MS  # the process is stopped
    coordinator.later(0)
    assert coordinator.status.parallelism == 2, "slots may have tried to connect meanwhile"
    pass_time(coordinator, AWAY_MS // 2, first)
    assert coordinator.status.parallelism == 2
    pass_time(coordinator, AWAY_MS, first)
    assert coordinator.status.parallelism == 1


def test_a_coordinator_that_dies_with_the_fence_leaves_fewer_slots():
    """The record is in the log, and nobody has heard of the record."""
    store = MemoryStore()
    coordinator, first, second = started(store, narrowing())
    number = coordinator.checkpoint(first, second)
    second.cut()
    while not any(isinstance(each, Append) for each in coordinator.todo) or len(fences(store)) < 2:
        first.beat()
        coordinator.later(1_000)
        if len(fences(store)) < 2:
            coordinator.settle()
    coordinator.run_until(Append)
    coordinator.step_without_answer()
    assert fences(store)[-1] == (1, 2, number)
    successor = Coordinator(store, narrowing(), "leader-b", now_ms=coordinator.now_ms).begin().settle()
    again = successor.slot(0, uuid=first.uuid)
    again.token, again.phase, again.highest = first.token, "idle", first.highest
    again.connect()
    successor.settle()
    successor.later(0)
    assert len(again.last(Deploy).peers) == 1
    again.restored()
    assert (successor.phase, successor.status.parallelism, successor.status.full_parallelism) == ("running", 1, 2)


def test_a_request_of_a_user_takes_the_place_of_the_return():
    store = MemoryStore()
    coordinator, _, _ = narrowed_job(store)
    request = RescaleRequest("mine", 3)
    assert coordinator.protocol.refuses_rescale(request) == ""
    coordinator.post(UserRescale(request))
    assert [(each.parallelism, each.state) for each in coordinator.status.rescales] == [(2, "failed"), (3, "starting")]
    assert (coordinator.status.standbys.first, coordinator.status.standbys.last) == (1, 2)
    assert "being rescaled" in coordinator.protocol.refuses_rescale(RescaleRequest("another", 4))


def test_a_successor_knows_the_full_width_from_the_log():
    store = MemoryStore()
    coordinator, first, _ = narrowed_job(store)
    coordinator.checkpoint(first)
    first.cut()
    successor = Coordinator(store, narrowing(), "leader-b", now_ms=coordinator.now_ms).begin().settle()
    again = successor.slot(0, uuid=first.uuid)
    again.token, again.phase, again.highest = first.token, "running", first.highest
    again.connect()
    successor.settle()
    assert (successor.phase, successor.status.parallelism, successor.status.full_parallelism) == ("running", 1, 2)
    assert successor.status.standbys is not None, "full width is requested anew"


def test_a_slot_beyond_the_present_number_leaves_and_frees_a_core():
    """Slot 0 is missing: slot 1 leaves, and Spark can give the core to slot 0."""
    store = MemoryStore()
    coordinator, first, second = started(store, narrowing())
    coordinator.checkpoint(first, second)
    first.cut()
    pass_time(coordinator, AWAY_MS + 2_000, second)
    assert second.last(Shutdown).outcome == "left"
    assert (coordinator.phase, coordinator.status.missing_slots) == ("waiting", (0,))
    anew = coordinator.slot(0, attempt=7).connect()
    coordinator.later(0)
    anew.restored()
    assert coordinator.phase == "running"
    assert kinds(store)[-1] == "FENCE"


def test_the_process_that_another_spark_job_replaced_ends_its_task_with_success():
    coordinator, _, _ = narrowed_job(MemoryStore())
    one = coordinator.slot(1, attempt=9).connect()
    coordinator.slot(1, attempt=10).connect()
    assert one.last(Shutdown).outcome == "left", "else two Spark jobs would replace each other's process for ever"


def test_the_decision_counts_what_is_present():
    job = narrowing(parallelism=4)
    assert narrowed(job, 0) is None
    assert narrowed(job, 4) is None
    fewer = narrowed(job, 3)
    assert (fewer.parallelism, fewer.full_parallelism) == (3, 4)
    assert narrowed(fewer, 1).full_parallelism == 4
    assert narrowed(spec(parallelism=4), 3) is None, "without at_least the job waits"
    assert shown(fewer) == "3 of 4 slots, until there are cores for all"
    assert widening(job, 1, (), 0) is None
    assert widening(fewer, 1, (), 0).parallelism == 4
    assert widening(fewer, 1, (10_000,), 10_000 + AWAY_MS - 1) is None
    assert widening(fewer, 1, (10_000,), 10_000 + AWAY_MS).parallelism == 4
    assert widening(fewer, 1, (9_000, 10_000), 10_000 + 2 * AWAY_MS - 1) is None
    assert widening(fewer, 1, (10_000,) * 20, 10_000 + 16 * AWAY_MS).parallelism == 4, "the longest wait"


def test_a_return_after_one_that_failed_has_more_time_to_fetch_state():
    coordinator, first, _ = narrowed_job(MemoryStore())
    coordinator.checkpoint(first)
    for attempt, states in ((9, ["failed"]), (10, ["failed", "starting"])):
        second = coordinator.slot(1, attempt=attempt)
        second.prefetches = False
        second.connect()
        pass_time(coordinator, 65_000, first, second)
        assert [each.state for each in coordinator.status.rescales] == states
        pass_time(coordinator, AWAY_MS, first, second)
    second.prefetches = True
    second.fetched(second.last(Prefetch).checkpoint)
    for _ in range(4):
        coordinator.acknowledge(first)
        coordinator.later(1_000)
    assert first.last(Trigger).pause
    assert widening(coordinator.protocol.spec, 1, (), 0, 9).start_timeout_ms == 16 * 60_000
    assert widening(coordinator.protocol.spec, 1, (), 0, 9).timeout_ms == 60_000, "sources stop for no longer"


def test_a_rescale_requested_while_the_log_gets_fewer_slots_fails_at_once():
    """The driver would start slots for the number that the job had."""
    store = MemoryStore()
    coordinator, first, second = started(store, narrowing())
    coordinator.checkpoint(first, second)
    second.cut()
    while not any(isinstance(each, Append) for each in coordinator.todo) or len(fences(store)) < 2:
        first.beat()
        coordinator.later(1_000)
        if len(fences(store)) < 2:
            coordinator.settle()
    coordinator.run_until(Append)
    assert coordinator.protocol.refuses_rescale(RescaleRequest("mine", 3)) == ""
    coordinator.post(UserRescale(RescaleRequest("mine", 3)))
    coordinator.settle()
    (mine,) = coordinator.status.rescales
    assert (mine.state, "goes on with 1 of 2 slots" in mine.error) == ("failed", True)
    coordinator.later(0)
    first.restored()
    assert (coordinator.phase, coordinator.status.parallelism) == ("running", 1)
    assert coordinator.protocol.refuses_rescale(RescaleRequest("again", 3)) == ""
