"""Work of the coordinator for a message does not grow with the number of slots, counted in executed bytecode."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from barrier_runtime.coordinator.wire.messages import Trigger
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
    """Instructions per message of each kind, over one checkpoint."""
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


def test_work_per_message_does_not_grow_with_the_slots() -> None:
    few, many = per_message(16), per_message(128)
    assert {kind: many[kind] / few[kind] < 1.2 for kind in few} == dict.fromkeys(few, True), (few, many)
