"""Only an appended record permits the notification of slots about a completed checkpoint, and deletes."""

import ast
import inspect
from pathlib import Path

import pytest
from coordinator_world import started

from barrier_runtime.coordinator.checkpoints.retention import SweepPlan
from barrier_runtime.coordinator.job import effects
from barrier_runtime.coordinator.job.facts import NotLeading
from barrier_runtime.coordinator.job.outbox import Outbox
from barrier_runtime.coordinator.log import decision_log
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.wire import messages
from barrier_runtime.coordinator.wire.messages import CheckpointComplete
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.store.memory import MemoryStore
from tests.parsed import ROOT, nodes


def running(store):
    coordinator, *slots = started(store)
    return coordinator, slots, coordinator.protocol._job


def test_a_permit_says_what_is_complete_also_after_a_restore(store):
    coordinator, slots, job = running(store)
    assert job.leadership.permit == Permit(1, 1, completed=0)
    number = coordinator.checkpoint(*slots)
    assert job.leadership.permit == Permit(1, 2, completed=number)
    slots[0].fail()
    coordinator.settle()
    assert job.leadership.permit == Permit(3, 3, completed=number)


def test_every_slot_hears_the_checkpoint_a_permit_proves_and_none_before_the_first():
    coordinator, slots, job = running(MemoryStore())
    job.outbox.complete(job.leadership.permit)
    assert job.outbox.take() == []
    number = coordinator.checkpoint(*slots)
    job.outbox.complete(job.leadership.permit)
    assert [effect.message for effect in job.outbox.take()] == [CheckpointComplete(1, number)] * len(slots)


def test_who_leads_no_more_has_no_permit_and_deletes_nothing():
    coordinator, slots, job = running(MemoryStore())
    coordinator.checkpoint(*slots)
    coordinator.stop("now")
    assert job.leadership is NotLeading.ANY_MORE
    with pytest.raises(ProtocolViolation, match="without leading"):
        job.delete(SweepPlan(files=("data/1",)))
    assert job.outbox.take() == []


@pytest.mark.slow
def test_permits_and_what_demands_one_have_one_door_each():
    doors = {
        "Permit": decision_log.DecisionLog,
        "CheckpointComplete": Outbox,
        "Delete": Outbox,
        "DeleteAll": Outbox,
    }
    homes = dict(zip(doors, (decision_log, messages, effects, effects), strict=True))
    found = {name: [] for name in doors}
    for file in sorted((ROOT / "coordinator").rglob("*.py")):
        for name in made_in(file, homes):
            found[name].append(file.name)
    assert found == {name: [Path(inspect.getfile(by)).name] for name, by in doors.items()}


def made_in(file, homes):
    """Returns the classes of `homes` that the file calls, under any imported name."""
    tree = nodes(str(file.relative_to(ROOT)))
    known = {
        alias.asname or alias.name: alias.name
        for node in tree
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.name in homes and node.module == homes[alias.name].__name__
    }
    known |= {name: name for name, home in homes.items() if file == Path(home.__file__).resolve()}
    called = {getattr(node.func, "id", None) for node in tree if isinstance(node, ast.Call)}
    return {known[name] for name in known.keys() & called}
