"""Checkpoints that stay open while others complete and are dropped.

Slow uploads of a slot keep their checkpoints open while an older checkpoint completes. A slot whose sources have ended
hears of decisions in steps, while barriers arrive through channels: it takes a snapshot on top of a checkpoint that the
coordinator has already dropped.

Both are rare by chance: the uploads of a checkpoint end a few milliseconds after its barrier. Most jobs in which a slot
hears in steps share files (`Schedule.shares_files`). Otherwise the files of the dropped checkpoint are compacted before
the open checkpoint can use them, or slow commits stop new checkpoints while the slot does not hear of decisions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from barrier_runtime.coordinator.wire.messages import (
    AbortCheckpoint,
    CheckpointComplete,
    CommitGlobally,
    EndSources,
    Heard,
    LowestEventTime,
    ToSlot,
    Trigger,
    Visible,
)
from barrier_runtime.runtime.slot import Slot
from barrier_runtime.testing.simulation.loop import SimProcess, Simulation

STRIKES = ("uploads hang", "hears in steps")
_MAY_WAIT = (
    AbortCheckpoint,
    CheckpointComplete,
    CommitGlobally,
    EndSources,
    Heard,
    LowestEventTime,
    Trigger,
    Visible,
)  # after any other message the slot has another connection, or another generation
_LOOK_US = 3_000


@dataclass
class _Hearing:
    """Messages that a slot has received, and messages that wait."""

    slot: Slot
    until_us: int
    triggered: int = 0  # newest checkpoint whose trigger the slot has received
    messages: list[ToSlot] = field(default_factory=list)
    under_way: tuple[int, int] | None = None  # the two checkpoints between whose snapshots the slot heard of a decision
    acknowledges: bool = False  # the slot has the first trigger of the two, so that checkpoint may complete


class HearsInSteps:
    """A slot hears of a first decision between its snapshots of two checkpoints, and of a second after both.

    Then the first of the two checkpoints completes, and the second is still open. `hear`: delivers a message to a slot.
    `hold_up`: delays the uploads of another slot than that of the process."""

    def __init__(
        self,
        sim: Simulation,
        hear: Callable[[SimProcess, Slot, ToSlot], None],
        hold_up: Callable[[SimProcess], None],
        note: Callable[[str], None],
    ) -> None:
        self._sim = sim
        self._hear = hear
        self._hold_up = hold_up
        self._note = note
        self._hearing: dict[str, _Hearing] = {}  # by name of the slot's process

    def begin(self, process: SimProcess, slot: Slot, length_us: int) -> None:
        if process.name not in self._hearing:
            self._hearing[process.name] = _Hearing(slot, self._sim.now_us + length_us)
            self._sim.after(_LOOK_US, self._look_later, process)

    def takes(self, process: SimProcess, slot: Slot, message: ToSlot) -> bool:
        hearing = self._hearing.get(process.name)
        if hearing is None or hearing.slot is not slot:
            return False
        if not isinstance(message, _MAY_WAIT):
            self._end(process)
            return False
        if not hearing.messages:
            if isinstance(message, Trigger):  # checkpoints overlap, as the last takes long
                hearing.triggered = max(hearing.triggered, message.checkpoint)
                self._hold_up(process)
            if not isinstance(message, CheckpointComplete) or message.checkpoint >= hearing.triggered:
                return False  # only checkpoints with a received trigger complete while the rest waits
        hearing.messages.append(message)
        self._look(process, hearing)
        return True

    def _look_later(self, process: SimProcess) -> None:
        if process.name in self._hearing and process.alive:
            process.loop.call_soon(self._look_now, process)
            self._sim.after(_LOOK_US, self._look_later, process)

    def _look_now(self, process: SimProcess) -> None:
        hearing = self._hearing.get(process.name)
        if hearing is not None:
            self._look(process, hearing)

    def _look(self, process: SimProcess, hearing: _Hearing) -> None:
        if self._sim.now_us >= hearing.until_us:
            self._end(process)
        elif hearing.under_way is None:
            self._take_a_step(process, hearing)
        elif not hearing.acknowledges and self._has_snapshot(hearing, hearing.under_way[1]):
            hearing.acknowledges = True
            self._release(process, hearing, self._at(hearing, Trigger, hearing.under_way[1]))
        elif hearing.acknowledges and self._at(hearing, CheckpointComplete, hearing.under_way[0]) >= 0:
            self._note("a checkpoint built on a dropped one was open while an earlier one completed")
            hearing.under_way, hearing.acknowledges = None, False
            self._release(process, hearing, len(hearing.messages))

    def _take_a_step(self, process: SimProcess, hearing: _Hearing) -> None:
        decisions = [at for at, each in enumerate(hearing.messages) if isinstance(each, CheckpointComplete)]
        if len(decisions) < 2:
            return
        before, newest = decisions[-2:]
        triggered = [each.checkpoint for each in hearing.messages[newest:] if isinstance(each, Trigger)]
        if len(triggered) < 2 or self._has_snapshot(hearing, triggered[1]):
            return
        if self._has_snapshot(hearing, triggered[0]):
            hearing.under_way = triggered[0], triggered[1]
            self._release(process, hearing, before + 1)

    def _has_snapshot(self, hearing: _Hearing, checkpoint: int) -> bool:
        """Returns whether all subtasks that have not ended took their snapshot; ended subtasks answer the trigger."""
        execution, slot = hearing.slot._execution, hearing.slot
        if execution is None:
            return False
        live = {subtask.id for subtask in execution.subtasks} - slot._ended.keys()
        return bool(live) and live <= {subtask for of, subtask in slot._unresolved if of == checkpoint}

    def _at(self, hearing: _Hearing, kind: type[Trigger | CheckpointComplete], checkpoint: int) -> int:
        places = (at for at, each in enumerate(hearing.messages) if isinstance(each, kind))
        return next((at for at in places if hearing.messages[at].checkpoint == checkpoint), -1)  # type: ignore[union-attr]

    def _end(self, process: SimProcess) -> None:
        hearing = self._hearing.pop(process.name)
        self._release(process, hearing, len(hearing.messages))

    def _release(self, process: SimProcess, hearing: _Hearing, number: int) -> None:
        heard, hearing.messages = hearing.messages[:number], hearing.messages[number:]
        for message in heard:
            self._hear(process, hearing.slot, message)
