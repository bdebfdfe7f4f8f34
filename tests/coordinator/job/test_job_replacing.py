"""Replaces of a running job's program, as interleavings of the request, new slots, the last checkpoint, and deaths."""

import dataclasses
import uuid

import msgspec
import pytest
from coordinator_world import CHAINS, Coordinator, FakeSlot, kinds, log_of, options, spec, started

from barrier_runtime.coordinator.job.effects import Append
from barrier_runtime.coordinator.job.events import ProgramLoaded, UserRescale
from barrier_runtime.coordinator.job.rescaling import RescaleRequest
from barrier_runtime.coordinator.log.records import Fence
from barrier_runtime.coordinator.status.status import RescaleStatus
from barrier_runtime.coordinator.wire.messages import (
    CancelGeneration,
    ChainSpec,
    Deploy,
    Heartbeat,
    JobSpec,
    Registered,
    Shutdown,
    Start,
    Trigger,
    Waiting,
)
from barrier_runtime.state.store.memory import MemoryStore

PATIENCE_MS = 5_000
NEW_CHAINS = (
    CHAINS[0],
    ChainSpec(chain=1, operators=("count", "also", "out"), stateful=("count", "also"), sinks=("out",)),
)
LOSSY = (CHAINS[0], ChainSpec(chain=1, operators=("other", "out"), stateful=("other",), sinks=("out",)))


def wish(chains: tuple[ChainSpec, ...] = NEW_CHAINS, **changes: object) -> RescaleRequest:
    new = spec(chains=chains, fingerprint="new", **changes)
    return RescaleRequest(uuid.uuid4().hex, 2, PATIENCE_MS, new)


def ask(coordinator: Coordinator, request: RescaleRequest | None = None) -> RescaleRequest:
    request = request or wish()
    assert coordinator.protocol.refuses_rescale(request) == ""
    coordinator.post(UserRescale(request))
    return request


def told(coordinator: Coordinator) -> RescaleStatus:
    return coordinator.status.rescales[-1]


def new_slots(coordinator: Coordinator, request: RescaleRequest, *indices: int, broken: str = "") -> list[FakeSlot]:
    slots = [coordinator.slot(index, attempt=10 + index) for index in indices or (0, 1)]
    for slot in slots:
        slot.program, slot.broken = request.id, broken
        slot.connect()
    return slots


def beat(*slots: FakeSlot) -> None:
    for slot in slots:
        slot.beat()


def paused_at(coordinator: Coordinator, *slots: FakeSlot, commit: bool = True) -> int:
    coordinator.later(0)
    if not slots[0].last(Trigger).pause:  # the newest checkpoint was not fresh
        coordinator.acknowledge(*slots)
    trigger = slots[0].last(Trigger)
    assert trigger.pause, "sources stop with it"
    for slot in slots:
        slot.ack(trigger.checkpoint)
    coordinator.settle()
    if commit:
        for slot in slots:
            slot.commit(trigger.checkpoint)
    return trigger.checkpoint


def fences(store: MemoryStore) -> list[tuple[str, int]]:
    """Returns (program, restored checkpoint) of each FENCE."""
    return [(each.spec.program, each.restored_checkpoint) for each in log_of(store) if isinstance(each, Fence)]


def moved(store: MemoryStore) -> tuple[Coordinator, RescaleRequest, list[FakeSlot], list[FakeSlot], int]:
    """Replaces the program up to the point where the new slots restore."""
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    request = ask(coordinator)
    new = new_slots(coordinator, request)
    number = paused_at(coordinator, a, b)
    coordinator.settle()
    coordinator.later(0)
    return coordinator, request, [a, b], new, number


def test_the_new_program_takes_over_at_a_checkpoint_that_is_committed() -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    triggers = len(a.got(Trigger))
    request = ask(coordinator)
    wanted = coordinator.status.standbys
    assert wanted is not None
    assert (wanted.first, wanted.last, wanted.program) == (0, 1, request.id), "as many slots again"
    (c,) = new_slots(coordinator, request, 0)
    assert c.got(Registered), "it is heard like any slot"
    assert (len(a.got(Trigger)), told(coordinator).state) == (triggers, "starting"), "the job has not noticed"
    (d,) = new_slots(coordinator, request, 1)
    number = paused_at(coordinator, a, b, commit=False)
    a.commit(number)
    coordinator.settle()
    assert fences(store) == [("", 0)], "not all that was read is visible yet"
    b.commit(number)
    coordinator.settle()
    assert fences(store) == [("", 0), (request.id, number)]
    coordinator.later(0)
    assert not a.got(Shutdown), "the old slots stand by until the new ones run"
    for slot in (c, d):
        assert (slot.last(Deploy).checkpoint, slot.last(Deploy).settled) == (number, True)
        slot.restored()
    assert c.got(Start)
    assert d.got(Start)
    assert [slot.last(Shutdown).outcome for slot in (a, b)] == ["left", "left"], "their tasks end with success"
    status = coordinator.status
    replaced = told(coordinator)
    assert (replaced.state, replaced.kind, replaced.checkpoint) == ("done", "replace", number)
    assert coordinator.protocol.summary(coordinator.now_ms).restarts == 0, "no recovery"
    assert replaced.pause_ms is not None
    assert (status.program, status.standbys, len(status.slots)) == (request.id, None, 2)
    assert any("also" in chain.operators for chain in coordinator.protocol.spec.chains)
    coordinator.checkpoint(c, d)
    assert coordinator.status.checkpoints.failed == 0
    a.connect()
    assert a.last(Shutdown).outcome == "left", "it did not hear: its task ends well"


@pytest.mark.parametrize("known", [True, False])
def test_state_that_the_new_program_has_not_ends_the_replace_before_anything_happens(known: bool) -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    if known:
        checkpoint_with_state(coordinator, a, b)
    before = len(a.inbox)
    request = ask(coordinator, wish(LOSSY))
    if not known:
        new_slots(coordinator, request, 0)
        checkpoint_with_state(coordinator, a, b)
    assert told(coordinator).state == "failed"
    assert "missing: count" in told(coordinator).error
    assert not any(isinstance(each, CancelGeneration) or getattr(each, "pause", False) for each in a.inbox[before:])
    assert fences(store) == [("", 0)]
    permitted = ask(coordinator, dataclasses.replace(wish(LOSSY), allow_non_restored=True))
    assert told(coordinator).state == "starting"
    assert coordinator.status.standbys.program == permitted.id


def checkpoint_with_state(coordinator: Coordinator, *slots: FakeSlot) -> int:
    coordinator.trigger()
    number = slots[0].last(Trigger).checkpoint
    for slot in slots:
        slot.upload("f")
        slot.ack(number, files="f")
    coordinator.settle()
    for slot in slots:
        slot.commit(number)
    coordinator.settle()
    return number


def test_the_last_checkpoint_is_looked_at_too() -> None:
    """The job has no earlier checkpoint: the state is known only after the sources have stopped."""
    store = MemoryStore()
    coordinator, a, b = started(store)
    request = ask(coordinator, wish(LOSSY))
    new = new_slots(coordinator, request)
    coordinator.later(0)
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.upload("f")
        slot.ack(number, files="f")
    coordinator.settle()
    for slot in (a, b):
        slot.commit(number)
    coordinator.settle()
    assert "missing: count" in told(coordinator).error
    assert fences(store) == [("", 0), ("", number)], "the old slots read on from there"
    coordinator.run_with(a, b)
    assert [slot.last(Shutdown).outcome for slot in new] == ["left", "left"]


def test_a_slot_that_cannot_import_the_program_ends_the_replace_at_once() -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    before = len(a.inbox)
    request = ask(coordinator)
    (c,) = new_slots(coordinator, request, 0, broken="ModuleNotFoundError: No module named 'rules'")
    assert told(coordinator).state == "failed"
    assert "No module named 'rules'" in told(coordinator).error
    assert c.last(Shutdown).outcome == "left"
    assert len(a.inbox) == before, "the job has not noticed"
    coordinator.checkpoint(a, b)


def test_no_cores_in_time_leave_the_job_as_it_was() -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    request = ask(coordinator)
    (c,) = new_slots(coordinator, request, 1)
    for _ in range(60):
        coordinator.later(100)
        beat(a, b, c)
    assert told(coordinator).state == "failed"
    assert "slots 0 of the new program did not come within 5 s" in told(coordinator).error
    assert c.last(Shutdown).outcome == "left"
    assert not any(each.pause for each in a.got(Trigger)), "no source was stopped"
    assert (coordinator.phase, fences(store)) == ("running", [("", 0)])


def test_an_old_slot_that_is_lost_while_the_new_program_restores_takes_nothing_back() -> None:
    store = MemoryStore()
    coordinator, request, (a, _), (c, d), number = moved(store)
    a.cut()
    coordinator.settle()
    for slot in (c, d):
        slot.restored()
    assert (coordinator.phase, told(coordinator).state) == ("running", "done")
    assert fences(store)[-1] == (request.id, number)


@pytest.mark.parametrize("how", ["it refuses", "it is unwell", "it is lost", "it waits for a server", "it hangs"])
def test_a_program_that_does_not_come_to_run_is_taken_back(how: str) -> None:
    store = MemoryStore()
    coordinator, _, (a, b), (c, d), number = moved(store)
    if how in ("it waits for a server", "it hangs"):
        hang(coordinator, c, d, asks_server=how == "it waits for a server")
    elif how == "it is lost":
        c.cut()
    else:
        c.fail("no such table: rules", retryable=how == "it is unwell")
    coordinator.settle()
    coordinator.later(0)
    assert fences(store)[-1] == ("", number), "nothing is read twice"
    assert told(coordinator).state == "failed"
    assert "the new program did not start, and the one before goes on" in told(coordinator).error
    assert d.last(Shutdown).outcome == "left"
    taken_back = len(fences(store))
    beat(a, b)
    coordinator.later(PATIENCE_MS)
    coordinator.settle()
    assert len(fences(store)) == taken_back, "the old program may restore for as long as it takes"
    coordinator.run_with(a, b)
    assert (coordinator.phase, coordinator.status.program) == ("running", "")
    assert coordinator.protocol.spec.chains == CHAINS
    coordinator.checkpoint(a, b)
    request = ask(coordinator)  # and again
    c, d = new_slots(coordinator, request)
    paused_at(coordinator, a, b)
    coordinator.settle()
    coordinator.run_with(c, d)
    assert coordinator.status.program == request.id
    assert [slot.last(Shutdown).outcome for slot in (a, b)] == ["left", "left"]


def hang(coordinator: Coordinator, c: FakeSlot, d: FakeSlot, *, asks_server: bool) -> None:
    """Lets the replace time out: slot 1 has restored, slot 0 hangs in an open."""
    d.restored()
    if asks_server:
        c.say(Waiting(c.token, "also", 1, "db:5432 does not answer"))
    else:
        c.say(Heartbeat(token=c.token, sent_at_ms=coordinator.now_ms, metrics={}, opening={"also": 4.0}))
    coordinator.later(PATIENCE_MS - 1)
    coordinator.settle()
    assert (coordinator.phase, told(coordinator).state) == ("restoring", "moving"), "its time is not over"
    coordinator.later(1)
    coordinator.settle()
    error = told(coordinator).error
    named = "also/0: db:5432 does not answer" if asks_server else "slots 0 (slot 0 has been opening also for 4.0 s)"
    assert f"did not run within 5 s, it waited for {named}" in error
    assert "give a longer timeout" in error


def test_a_program_that_has_run_is_not_taken_back() -> None:
    store = MemoryStore()
    coordinator, request, _, (c, d), _ = moved(store)
    coordinator.run_with(c, d)
    c.fail("boom")
    coordinator.settle()
    assert fences(store)[-1][0] == request.id


@pytest.mark.parametrize("appended", [False, True])
@pytest.mark.parametrize("order", ["old first", "new first"])
def test_the_log_alone_says_which_program_the_job_has_when_the_coordinator_dies(appended: bool, order: str) -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    coordinator.checkpoint(a, b)
    request = ask(coordinator)
    c, d = new_slots(coordinator, request)
    number = paused_at(coordinator, a, b)
    assert isinstance(coordinator.run_until(Append), Append)
    if appended:
        coordinator.step_without_answer()
    successor = Coordinator(store, leader="leader-b", now_ms=coordinator.now_ms).begin()
    for slot in (a, b, c, d):
        slot.coordinator, slot.phase = successor, "paused" if slot in (a, b) else "idle"
    for slot in (a, b, c, d) if order == "old first" else (c, d, a, b):
        slot.connect()
        assert not slot.got(Shutdown), "the log is not read yet: it may be a slot of the job"
    own, others = ((c, d), (a, b)) if appended else ((a, b), (c, d))
    successor.settle()
    successor.later(0)
    for slot in own:
        slot.restored()
    assert (successor.phase, successor.status.program) == ("running", request.id if appended else "")
    assert fences(store)[-1] == (request.id if appended else "", number), "nothing is read twice, whoever has it"
    assert [slot.last(Shutdown).outcome for slot in others] == ["left", "left"]
    assert not any(slot.got(Shutdown) for slot in own)
    successor.checkpoint(*own)


def test_a_successor_that_is_asked_again_says_that_it_is_done() -> None:
    store = MemoryStore()
    coordinator, request, _, (c, d), _ = moved(store)
    coordinator.run_with(c, d)
    successor = Coordinator(store, leader="leader-b", now_ms=coordinator.now_ms).begin()
    for slot in (d, c):
        slot.coordinator = successor
        slot.connect()
    successor.settle()
    assert (successor.phase, kinds(store)[-1]) == ("running", "LEAD")
    ask(successor, request)
    assert told(successor).state == "done"
    successor.checkpoint(c, d)


def test_a_job_goes_through_several_programs_and_other_parallelisms() -> None:
    store = MemoryStore()
    coordinator, first, _, (c, d), _ = moved(store)
    coordinator.run_with(c, d)
    coordinator.post(UserRescale(RescaleRequest(uuid.uuid4().hex, 3, PATIENCE_MS)))
    wanted = coordinator.status.standbys
    assert (wanted.first, wanted.last, wanted.program) == (2, 2, first.id)
    stale = coordinator.slot(2, attempt=40).connect()
    assert stale.last(Shutdown).outcome == "left", "of the program that was replaced"
    (e,) = new_slots(coordinator, first, 2)
    paused_at(coordinator, c, d)
    coordinator.settle()
    coordinator.run_with(c, d, e)
    second = ask(coordinator, wish())
    assert coordinator.status.standbys.last == 2
    new = [coordinator.slot(index, attempt=20 + index) for index in range(3)]
    for slot in new:
        slot.program = second.id
        slot.connect()
    paused_at(coordinator, c, d, e)
    coordinator.settle()
    coordinator.run_with(*new)
    assert [program for program, _ in fences(store)] == ["", first.id, first.id, second.id]
    assert coordinator.protocol.spec.outdated == (), "the second is the first's equal"


@pytest.mark.parametrize("what", ["a slot dies", "the job stops"])
def test_trouble_before_the_move_ends_the_replace_and_not_the_job(what: str) -> None:
    store = MemoryStore()
    coordinator, a, b = started(store)
    request = ask(coordinator)
    (c,) = new_slots(coordinator, request, 0)
    if what == "a slot dies":
        a.fail()
        coordinator.settle()
        coordinator.run_with(a, b)
    else:
        coordinator.stop("checkpoint")
    assert told(coordinator).state == "failed"
    assert c.last(Shutdown).outcome == "left"
    assert {program for program, _ in fences(store)} == {""}


def test_a_program_that_a_command_names_is_described_by_the_driver() -> None:
    coordinator, a, b = started(MemoryStore())
    request = RescaleRequest("x", 2, PATIENCE_MS, flow="/srv/app.py:flow")
    ask(coordinator, request)
    wanted = coordinator.status.program_wanted
    assert (wanted.id, wanted.flow, coordinator.status.standbys) == ("x", "/srv/app.py:flow", None)
    coordinator.post(ProgramLoaded("y", spec()))
    assert told(coordinator).state == "loading", "an answer to something else"
    coordinator.post(ProgramLoaded("x", None, "app.py cannot be loaded: SyntaxError"))
    assert (told(coordinator).state, "SyntaxError" in told(coordinator).error) == ("failed", True)
    ask(coordinator, dataclasses.replace(request, id="z"))
    coordinator.post(ProgramLoaded("z", spec(chains=NEW_CHAINS)))
    coordinator.post(ProgramLoaded("z", spec(chains=LOSSY)))
    assert (told(coordinator).state, coordinator.status.standbys.program) == ("starting", "z")
    assert coordinator.status.program_wanted is None
    coordinator.checkpoint(a, b)
    other = RescaleRequest("w", 2, PATIENCE_MS, flow="/srv/app.py:flow")
    assert "wait until that is done" in coordinator.protocol.refuses_rescale(other)


def test_a_program_that_nobody_loads_is_given_up() -> None:
    coordinator, a, b = started(MemoryStore())
    ask(coordinator, RescaleRequest("x", 2, PATIENCE_MS, flow="/srv/app.py:flow"))
    for _ in range(60):
        coordinator.later(100)
        beat(a, b)
    assert "did not load /srv/app.py:flow within 5 s" in told(coordinator).error
    assert coordinator.status.program_wanted is None


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"job": "other"}, "give the flow the job's name"),
        ({"max_parallelism": 64}, "fixed for its life"),
        ({"checkpoints": options(mode="at_least_once")}, "the flow's mode is at_least_once"),
    ],
)
def test_what_can_never_be_had_is_refused(changes: dict[str, object], said: str) -> None:
    coordinator, _a, _b = started(MemoryStore())
    assert said in coordinator.protocol.refuses_rescale(wish(**changes))


def test_the_checkpoint_that_moves_is_aligned() -> None:
    """Rows in flight have the old program's columns."""
    coordinator, a, b = started(MemoryStore(), spec(checkpoints=options(unaligned=True, aligned_timeout_ms=0)))
    request = ask(coordinator)
    new_slots(coordinator, request)
    coordinator.later(0)
    trigger = a.last(Trigger)
    assert (trigger.pause, trigger.aligned_timeout_ms) == (True, None)
    assert b.last(Trigger).pause


def test_descriptions_of_earlier_releases_are_of_the_program_that_a_run_began_with() -> None:
    stored = msgspec.json.decode(msgspec.json.encode(spec()), type=dict)
    for name in ("program", "fingerprint", "outdated", "allow_outdated"):
        del stored[name]
    assert msgspec.convert(stored, JobSpec) == spec()


def ended_job(store: MemoryStore, job: JobSpec) -> Coordinator:
    """Starts another run of the program, which ends at once."""
    again = Coordinator(store, job, now_ms=5_000_000).begin().settle()
    if again.ended is None:
        again.stop("now")
        again.settle()
    return again


def test_a_program_that_was_replaced_does_not_come_back_by_accident() -> None:
    """The machine is lost, and the restart knows the job's first program only."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(fingerprint="old"))
    request = ask(coordinator)
    c, d = new_slots(coordinator, request)
    paused_at(coordinator, a, b)
    coordinator.settle()
    coordinator.run_with(c, d)
    refused = ended_job(store, spec(run_id="run-2", fingerprint="old"))
    assert refused.ended.outcome == "failed"
    assert "allow_outdated" in refused.ended.reason
    assert fences(store)[-1][0] == request.id, "nobody was fenced"
    assert ended_job(store, spec(run_id="run-3", fingerprint="new", chains=NEW_CHAINS)).ended.outcome == "cancelled"
    again = ended_job(store, spec(run_id="run-4", fingerprint="old"))
    assert again.ended.outcome == "failed", "still, after a run of the newer one"
    back = ended_job(store, spec(run_id="run-5", fingerprint="old", allow_outdated=True))
    assert back.ended.outcome == "cancelled"
    assert ended_job(store, spec(run_id="run-6", fingerprint="old")).ended.outcome == "cancelled", "that was wanted"
    assert ended_job(store, spec(run_id="run-7")).ended.outcome == "cancelled", "of an unknown program nothing is known"


def test_restarted_coordinator_still_knows_the_programs_replaced_in_an_earlier_run() -> None:
    """The driver submits the description again, which names no replaced program."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(fingerprint="old"))
    request = ask(coordinator)
    c, d = new_slots(coordinator, request)
    paused_at(coordinator, a, b)
    coordinator.settle()
    coordinator.run_with(c, d)
    newer = spec(run_id="run-2", fingerprint="new", chains=NEW_CHAINS)
    second = Coordinator(store, newer, "leader-b", now_ms=5_000_000).begin()
    e, f = second.slot(0, "e"), second.slot(1, "f")
    second.run_with(e, f)
    restarted = Coordinator(store, newer, "leader-c", now_ms=6_000_000).begin().settle()
    e.coordinator = restarted
    e.connect()
    restarted.later(3_000)
    restarted.settle()
    assert restarted.phase == "waiting", "slot 1 died, too"
    again = ended_job(store, spec(run_id="run-3", fingerprint="old"))
    assert again.ended.outcome == "failed"
    assert "allow_outdated" in again.ended.reason


FILES = (CHAINS[0], msgspec.structs.replace(CHAINS[1], global_sinks=("out",), kinds={"out": "sink: files"}))
TABLE = (CHAINS[0], msgspec.structs.replace(CHAINS[1], kinds={"out": "sink: delta"}))


def test_successor_knows_that_nothing_of_the_replaced_sink_is_left_to_commit() -> None:
    """Both die before the first checkpoint of the new program, which cannot commit for the old sink."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(chains=FILES))
    request = ask(coordinator, wish(TABLE))
    new_slots(coordinator, request)
    number = paused_at(coordinator, a, b)
    a.commit_globally(number)
    coordinator.settle()
    assert fences(store)[-1] == (request.id, number)
    successor = Coordinator(store, spec(chains=FILES), "leader-b", now_ms=5_000_000).begin().settle()
    again = new_slots(successor, request)
    successor.run_with(*again)
    assert again[0].last(Deploy).settled
    other = Coordinator(store, spec(run_id="run-2", chains=TABLE), "leader-c", now_ms=6_000_000).begin()
    other.run_with(other.slot(0, "e"), other.slot(1, "f"))


def test_successor_knows_that_the_run_before_ended_with_all_rows_visible() -> None:
    """The stopped job goes on with another sink of that name, and both die before the first checkpoint."""
    store = MemoryStore()
    coordinator, a, b = started(store, spec(chains=FILES))
    coordinator.stop("checkpoint")
    number = a.last(Trigger).checkpoint
    for slot in (a, b):
        slot.ack(number)
    coordinator.settle()
    for slot in (a, b):
        slot.commit(number)
    a.commit_globally(number)
    coordinator.settle()
    assert coordinator.ended is not None
    for leader, run_id in (("leader-b", "run-2"), ("leader-c", "run-2"), ("leader-d", "run-3")):
        second = Coordinator(store, spec(run_id=run_id, chains=TABLE), leader, now_ms=5_000_000).begin()
        slots = [second.slot(index, f"{leader}-{index}") for index in (0, 1)]
        second.run_with(*slots)
        assert slots[0].last(Deploy).settled
