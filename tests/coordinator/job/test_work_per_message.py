"""Work of the coordinator for a message does not grow with the number of slots, counted in executed bytecode."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from barrier_runtime.coordinator.job.slots import SlotTable
from barrier_runtime.coordinator.wire.messages import Register, Trigger
from barrier_runtime.state.store.memory import MemoryStore
from tests.coordinator.coordinator_world import Coordinator, FakeSlot, spec


def running(parallelism: int) -> tuple[Coordinator, list[FakeSlot]]:
    coordinator = Coordinator(MemoryStore(), spec(parallelism=parallelism)).begin().settle()
    slots = [coordinator.slot(index).connect() for index in range(parallelism)]
    coordinator.settle()
    for slot in slots:
        slot.restored()
    coordinator.settle()
    assert coordinator.protocol.phase == "running"
    return coordinator, slots


def executed(work: Callable[[], object]) -> int:
    """Number of bytecode instructions that `work` executes."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def per_message(parallelism: int) -> dict[str, float]:
    """Instructions per message of each kind, over a checkpoint."""
    coordinator, slots = running(parallelism)
    coordinator.later(1_000)
    checkpoint = slots[0].last(Trigger).checkpoint

    def each(say: Callable[[FakeSlot], object], among: list[FakeSlot]) -> float:
        return executed(lambda: [say(slot) for slot in among]) / len(among)

    found = {
        "heartbeat": each(lambda slot: slot.beat(), slots),
        "ack": each(lambda slot: slot.ack(checkpoint), slots[1:]),  # the last ack begins the decision
    }
    slots[0].ack(checkpoint)
    coordinator.settle()
    found["commit"] = each(lambda slot: slot.commit(checkpoint), slots)
    return found


@pytest.mark.slow
def test_work_per_message_does_not_grow_with_the_slots() -> None:
    few, many = per_message(16), per_message(128)
    assert {kind: many[kind] / few[kind] < 1.2 for kind in few} == dict.fromkeys(few, True), (few, many)


def test_slots_that_left_are_forgotten() -> None:
    """A job that goes to fewer slots and back keeps nothing of the slots that left."""
    table = SlotTable(spec(), 1_000)
    for turn in range(3):
        for index in (0, 1):
            table.register(10 * turn + index, registration(index, f"{turn}-{index}", turn), 1_000)
        (leaving,) = table.resize(1)
        table.disconnect(leaving)
        assert table.cut_off == ()
        table.resize(2)
        assert len(table._cut_off) == 0
        assert table.missing == (1,)


def registration(index: int, uuid: str, attempt: int) -> Register:
    return Register(
        slot=index,
        uuid=uuid,
        pid=1,
        host="worker",
        task_attempt=attempt,
        data_host="127.0.0.1",
        data_port=1,
        token=0,
        phase="idle",
    )


def test_a_replaced_process_leaves_its_newest_latency_behind_and_nothing_else() -> None:
    table = SlotTable(spec(), 1_000)
    table.register(1, registration(0, "first", 1), 1_000)
    first = table.by_link(1)
    assert first is not None
    for second in range(90):
        first.latency.tell({"out:visible": f"{second}"}, 1_000 * second)
    table.register(2, registration(0, "second", 2), 91_000)
    (left,) = table.departed
    assert left is first.latency
    assert left.before(400_000) == {"out:visible": "89"}
    assert list(left._kept) == [(80_000, {"out:visible": "80"})], "the reports of a minute are large"
