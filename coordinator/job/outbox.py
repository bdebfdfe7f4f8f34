"""Effects of a job in the order of execution."""

from barrier_runtime.coordinator.checkpoints.retention import SweepPlan
from barrier_runtime.coordinator.job.effects import CloseLink, Delete, DeleteAll, Effect, SendTo
from barrier_runtime.coordinator.job.slot import RegisteredSlot
from barrier_runtime.coordinator.job.slots import SlotTable
from barrier_runtime.coordinator.log.decision_log import Permit
from barrier_runtime.coordinator.wire.messages import CheckpointComplete, ToSlot


class Outbox:
    def __init__(self, slots: SlotTable) -> None:
        self._slots = slots
        self._effects: list[Effect] = []

    def put(self, effect: Effect) -> None:
        self._effects.append(effect)

    def take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def send(self, slot: RegisteredSlot, message: ToSlot) -> None:
        if slot.link is not None:
            self.put(SendTo(slot.link, message))

    def broadcast(self, message: ToSlot) -> None:
        for slot in self._slots.connected:
            self.send(slot, message)

    def close(self, slot: RegisteredSlot) -> None:
        link = self._slots.disconnect(slot)
        if link is not None:
            self.put(CloseLink(link))

    # effects that need a permit

    def complete(self, permit: Permit) -> None:
        """Slots that connect later learn the checkpoint from `Registered`."""
        if permit.completed:
            self.broadcast(CheckpointComplete(permit.token, permit.completed))

    def delete(self, permit: Permit, plan: SweepPlan) -> None:
        self.put(Delete(permit, plan.keys, plan.newest))

    def delete_all(self, permit: Permit) -> None:
        self.put(DeleteAll(permit))
