"""Only an appended record permits to tell slots of a completed checkpoint, and to delete."""

import ast
import inspect
from pathlib import Path

import pytest
from coordinator_world import started

from barrier_runtime import coordinator
from barrier_runtime.coordinator.job import effects
from barrier_runtime.coordinator.job.outbox import Outbox
from barrier_runtime.coordinator.log import decision_log
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.wire import messages
from barrier_runtime.coordinator.wire.messages import CheckpointComplete
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.store.memory import MemoryStore


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


def test_every_slot_hears_what_the_permit_proves_and_nothing_before_the_first_checkpoint():
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
    assert job.leadership is None
    with pytest.raises(ProtocolViolation, match="without leading"):
        job.delete(("data/1",))
    assert job.outbox.take() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "by"),
    [
        ((decision_log, "Permit"), decision_log.DecisionLog),
        ((messages, "CheckpointComplete"), Outbox),
        ((effects, "Delete"), Outbox),
        ((effects, "DeleteAll"), Outbox),
    ],
)
def test_permits_and_what_demands_one_have_one_door_each(made, by):
    folder = Path(coordinator.__file__).parent
    doors = [file.name for file in folder.rglob("*.py") if makes(file, *made)]
    assert doors == [Path(inspect.getfile(by)).name]


def makes(file, module, name):
    """Whether `file` calls the class `name` of `module`, under whatever name it imports it."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == module.__name__
        for alias in node.names
        if alias.name == name
    }
    if file == Path(module.__file__):
        known.add(name)
    return any(isinstance(node, ast.Call) and getattr(node.func, "id", None) in known for node in ast.walk(tree))
