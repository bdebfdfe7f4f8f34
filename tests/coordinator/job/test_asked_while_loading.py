"""Rescales and replaces requested from a successor before it has read the log.

The newest FENCE in the log has another parallelism or another program than the submitted description."""

import dataclasses
import uuid

import msgspec
import pytest
from coordinator_world import CHAINS, Coordinator, FakeSlot, kinds, log_of, spec, started

from barrier_runtime.coordinator.job.effects import Append, ReadLog
from barrier_runtime.coordinator.job.events import ProgramLoaded, UserRescale
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.status.history import encode_history
from barrier_runtime.coordinator.wire.messages import ChainSpec, JobSpec, Shutdown, Trigger
from barrier_runtime.state.store.memory import MemoryStore

PATIENCE_MS = 5_000
SUBMITTED = spec(fingerprint="f0")
R1 = (CHAINS[0], ChainSpec(chain=1, operators=("count", "r1", "out"), stateful=("count",), sinks=("out",)))
R2 = (CHAINS[0], ChainSpec(chain=1, operators=("count", "r2", "out"), stateful=("count",), sinks=("out",)))


def rescale(parallelism: int, id: str = "wish") -> RescaleRequest:
    return RescaleRequest(id, parallelism, PATIENCE_MS)


def replace(id: str, chains: tuple[ChainSpec, ...], fingerprint: str) -> RescaleRequest:
    return RescaleRequest(id, 1, PATIENCE_MS, spec(chains=chains, fingerprint=fingerprint))


def moved(coordinator: Coordinator, request: RescaleRequest, old: list[FakeSlot]) -> list[FakeSlot]:
    """Moves the job as `request` requires; returns the slots."""
    coordinator.post(UserRescale(request))
    wanted = coordinator.status.standbys
    new = [] if wanted is None else standbys(coordinator, *range(wanted.first, wanted.last + 1), program=wanted.program)
    slots = new if request.replaces else [*old, *new][: request.parallelism]
    hand_over(coordinator, old, slots)
    return slots


def standbys(coordinator: Coordinator, *indices: int, program: str) -> list[FakeSlot]:
    slots = [coordinator.slot(index, f"{program}-{index}-{uuid.uuid4().hex}") for index in indices]
    for slot in slots:
        slot.program = program
        slot.connect()
    return slots


def hand_over(coordinator: Coordinator, old: list[FakeSlot], new: list[FakeSlot]) -> None:
    """Takes all checkpoints up to the last of the old slots, commits, and starts the next generation."""
    coordinator.later(0)
    while not old[0].last(Trigger).pause:
        coordinator.acknowledge(*old)
        coordinator.later(0)
    number = old[0].last(Trigger).checkpoint
    for slot in old:
        slot.ack(number)
    coordinator.settle()
    for slot in old:
        slot.commit(number)
    coordinator.run_with(*new)


def after(store: MemoryStore, *requests: RescaleRequest) -> tuple[Coordinator, list[FakeSlot]]:
    """Returns a job that has moved with each of these requests, and the slots."""
    coordinator, a, b = started(store, SUBMITTED)
    slots = [a, b]
    for request in requests:
        slots = moved(coordinator, request, slots)
    return coordinator, slots


def restarted(store: MemoryStore, before: Coordinator, leader: str = "leader-b") -> Coordinator:
    """Returns a restarted coordinator with the submitted description, which has not read the log."""
    successor = Coordinator(store, SUBMITTED, leader=leader, now_ms=before.now_ms).begin()
    assert successor.phase == "loading"
    return successor


def asked(coordinator: Coordinator, request: RescaleRequest) -> None:
    assert coordinator.protocol.refuses_rescale(request) == ""
    coordinator.post(UserRescale(request))


def resumed(coordinator: Coordinator, slots: list[FakeSlot]) -> None:
    """Reads the log, and takes over the surviving slots."""
    for slot in slots:
        slot.coordinator = coordinator
        slot.connect()
    coordinator.settle()
    assert (coordinator.phase, kinds(coordinator.store)[-1]) == ("running", "LEAD")


def states(coordinator: Coordinator) -> list[str]:
    return [each.state for each in coordinator.status.rescales]


def newest(store: MemoryStore) -> JobSpec:
    return next(each.spec for each in reversed(log_of(store)) if isinstance(each, Fence))


def test_the_number_that_was_submitted_is_another_than_the_job_has() -> None:
    store = MemoryStore()
    before, slots = after(store, rescale(3, "first"))
    coordinator = restarted(store, before)
    asked(coordinator, rescale(2))
    assert states(coordinator) == ["starting"], "the log is not read: nobody knows whether that is done"
    resumed(coordinator, slots)
    status = coordinator.status.rescales[-1]
    assert (status.before, status.parallelism, status.state) == (3, 2, "starting")
    assert coordinator.status.standbys is None, "it needs none"
    hand_over(coordinator, slots, slots[:2])
    assert slots[2].last(Shutdown).outcome == "left"
    assert (newest(store).parallelism, states(coordinator)) == (2, ["done"])


@pytest.mark.parametrize("survived", [True, False])
def test_the_number_that_is_asked_for_is_that_of_the_log(survived: bool) -> None:
    store = MemoryStore()
    before, slots = after(store, rescale(3, "first"))
    coordinator = restarted(store, before)
    asked(coordinator, rescale(3))
    assert states(coordinator) == ["starting"], "not before this process leads"
    if survived:
        resumed(coordinator, slots)
    else:
        coordinator.settle()
        coordinator.later(3_000)
        coordinator.settle()
        assert (coordinator.phase, kinds(store)[-1]) == ("waiting", "FENCE")
    status = coordinator.status.rescales[-1]
    assert (status.before, status.parallelism, status.state) == (3, 3, "done")


def test_the_program_that_the_job_has_is_rescaled_and_not_the_one_that_was_submitted() -> None:
    store = MemoryStore()
    before, slots = after(store, replace("r1", R1, "f1"))
    coordinator = restarted(store, before)
    asked(coordinator, rescale(4))
    assert isinstance(coordinator.step(), ReadLog)
    (third,) = standbys(coordinator, 2, program="r1")
    resumed(coordinator, slots)
    assert not third.got(Shutdown), "it is a new slot of the program that runs"
    wanted = coordinator.status.standbys
    assert (wanted.first, wanted.last, wanted.program) == (2, 3, "r1")
    (other,) = standbys(coordinator, 3, program="")
    assert other.last(Shutdown).outcome == "left", "of the program that was replaced"
    hand_over(coordinator, slots, [*slots, third, *standbys(coordinator, 3, program="r1")])
    assert (newest(store).program, newest(store).parallelism, newest(store).chains) == ("r1", 4, R1)


@pytest.mark.parametrize("loads", [False, True])
def test_a_program_takes_over_all_slots_that_the_job_has(loads: bool) -> None:
    store = MemoryStore()
    before, slots = after(store, replace("r1", R1, "f1"), rescale(3, "first"))
    coordinator = restarted(store, before)
    request = replace("r2", R2, "f2")
    if loads:
        asked(coordinator, dataclasses.replace(request, replacement=None, flow="/srv/app.py:flow"))
        assert states(coordinator) == ["loading"]
        coordinator.post(ProgramLoaded("r2", request.replacement))  # the predecessor had requested the program
    else:
        asked(coordinator, request)
    resumed(coordinator, slots)
    wanted, status = coordinator.status.standbys, coordinator.status.rescales[-1]
    assert (wanted.first, wanted.last, wanted.program) == (0, 2, "r2")
    assert (status.before, status.parallelism) == (3, 3)
    hand_over(coordinator, slots, standbys(coordinator, 0, 1, 2, program="r2"))
    described = newest(store)
    assert (described.program, described.parallelism, described.chains) == ("r2", 3, R2)
    assert described.outdated == ("f0", "f1"), "neither comes back by accident"


def test_a_program_that_runs_already_is_not_waited_for_whatever_was_submitted() -> None:
    store = MemoryStore()
    before, slots = after(store, replace("r1", R1, "f1"))
    coordinator = restarted(store, before)
    asked(coordinator, dataclasses.replace(replace("r1", R1, "f1"), replacement=None, flow="/srv/app.py:flow"))
    resumed(coordinator, slots)
    assert states(coordinator) == ["done"]
    assert (coordinator.status.program_wanted, coordinator.status.standbys) == (None, None)
    coordinator.checkpoint(*slots)


def test_slots_of_the_program_that_runs_stay_when_another_cannot_be_loaded() -> None:
    store = MemoryStore()
    before, slots = after(store, replace("r1", R1, "f1"))
    coordinator = restarted(store, before)
    for slot in slots:
        slot.coordinator = coordinator
        slot.connect()
    asked(coordinator, RescaleRequest("r2", 1, PATIENCE_MS, flow="/srv/app.py:flow"))
    coordinator.post(ProgramLoaded("r2", None, "SyntaxError"))
    assert coordinator.status.rescales[-1].error == "SyntaxError"
    assert not any(slot.got(Shutdown) for slot in slots), "the log is not read: they are the job's"
    coordinator.settle()
    assert (coordinator.phase, kinds(store)[-1]) == ("running", "LEAD")
    coordinator.checkpoint(*slots)


def test_what_was_asked_for_is_judged_by_the_log_that_was_read_last() -> None:
    """The predecessor lives, and moves the job between the successor's read of the log and the successor's record."""
    store = MemoryStore()
    before, slots = after(store, rescale(3, "first"))
    coordinator = restarted(store, before)
    asked(coordinator, rescale(3))
    assert isinstance(coordinator.step(), ReadLog)
    coordinator.later(3_000)  # nobody comes
    assert isinstance(coordinator.run_until(Append), Append)
    moved(before, rescale(2, "second"), slots)
    coordinator.step()
    coordinator.settle()
    coordinator.later(3_000)
    coordinator.settle()
    assert (coordinator.phase, coordinator.status.parallelism) == ("waiting", 2)
    status = coordinator.status.rescales[-1]
    assert (status.before, status.parallelism, status.state) == (2, 3, "starting")
    assert coordinator.status.standbys is not None


@pytest.mark.parametrize("same_run", [True, False])
def test_a_wish_that_is_over_is_not_carried_out_again(same_run: bool) -> None:
    """A waiting client finds a coordinator that has not read the history, and repeats the request."""
    store = MemoryStore()
    before, a, b = started(store, SUBMITTED)
    before.post(UserRescale(rescale(3)))
    for _ in range(PATIENCE_MS // 1_000):
        before.later(1_000)
        for slot in (a, b):
            slot.beat()
    assert states(before) == ["failed"], "no slot came"
    history = before.protocol.history()
    if not same_run:
        history = msgspec.structs.replace(history, run_id="an earlier one")
    store.put(before.paths.history, encode_history(history))
    coordinator = restarted(store, before)
    asked(coordinator, rescale(3))
    resumed(coordinator, [a, b])
    if same_run:
        assert coordinator.status.rescales == before.status.rescales
        assert coordinator.status.standbys is None
        asked(coordinator, rescale(3))  # the history is known now
        assert coordinator.status.rescales == before.status.rescales
    else:
        assert (states(coordinator), coordinator.status.standbys is None) == (["starting"], False)


@pytest.mark.parametrize("moved_by", [rescale(3, "first"), replace("r1", R1, "f1")], ids=["rescaled", "replaced"])
def test_what_slots_said_of_their_commits_before_the_log_was_read_counts(moved_by: RescaleRequest) -> None:
    """Also of those that were no slots of the job as far as this process knew: else their sinks would wait, as people
    are told, until the next checkpoint."""
    store = MemoryStore()
    before, slots = after(store, moved_by)
    number = before.checkpoint(*slots)
    for slot in slots:
        slot.commit(number)
    before.settle()
    coordinator = restarted(store, before)
    resumed(coordinator, slots)
    through = coordinator.status.commits.through
    assert through == {f"out/{slot.index}": number for slot in slots}


def test_another_run_of_the_program_goes_on_as_it_was_submitted() -> None:
    store = MemoryStore()
    before, _ = after(store, rescale(3, "first"))
    before.stop("now")
    before.settle()
    coordinator = Coordinator(store, spec(run_id="run-2"), leader="leader-b", now_ms=before.now_ms).begin()
    asked(coordinator, rescale(3))
    coordinator.settle()
    assert (coordinator.phase, coordinator.status.parallelism) == ("waiting", 2)
    status = coordinator.status.rescales[-1]
    assert (status.before, status.parallelism, status.state) == (2, 3, "starting")
