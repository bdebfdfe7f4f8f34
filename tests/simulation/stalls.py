"""Slots that stall at the worst moment of a move: pre-committed, notified of the decision, not yet committed.

Random stalls rarely hit this moment: a healthy target commits a few milliseconds after the decision.
"""

import random
from typing import Any

from schedule import Schedule

from barrier_runtime.coordinator.wire.messages import CheckpointComplete, Trigger
from barrier_runtime.testing.simulation.loop import SimProcess, Simulation

_LENGTHS_S = (0.5, 3.0, 60.0)


class StallsAtMoves:
    """Stalls some slots in half of the jobs that rescale or replace."""

    def __init__(self, schedule: Schedule, sim: Simulation) -> None:
        rng = random.Random(f"stalls at moves {schedule.seed}")
        moves = bool(schedule.rescales or schedule.replaces)
        self._rate = rng.choice((0.2, 0.5)) if moves and rng.random() < 0.5 else 0.0
        self._sim = sim
        self._last: dict[str, int] = {}  # slot's process -> the checkpoint at which its sources stop

    def heard(self, process: SimProcess, message: Any) -> bool:
        """Reports that the slot `process` has received `message`; returns whether the slot stalls."""
        if isinstance(message, Trigger) and message.pause:
            self._last[process.name] = message.checkpoint
        if not isinstance(message, CheckpointComplete) or message.checkpoint < self._last.get(process.name, 1 << 62):
            return False
        del self._last[process.name]
        if not self._sim.chance(self._rate):
            return False
        process.stall(self._sim.rng.choice(_LENGTHS_S))
        return True
