"""Slot of a job as the coordinator knows the slot, and the results of a registration."""

import enum
from dataclasses import dataclass, field
from typing import TypeAlias

from barrier_runtime.coordinator.job.events import Link
from barrier_runtime.coordinator.status.latency import ToldHistograms
from barrier_runtime.coordinator.status.shares import ToldFigures
from barrier_runtime.coordinator.status.why.contact import Contact
from barrier_runtime.coordinator.wire.messages import HeldBack, Register


class SlotState(enum.Enum):
    REGISTERED = "registered"  # connected, without a deployment of this generation
    RESTORING = "restoring"
    READY = "ready"  # restored, waits for the others
    RUNNING = "running"
    OUT_OF_REACH = "out of reach"  # the connection broke; the process may come back


@dataclass
class RegisteredSlot:
    index: int
    register: Register
    link: Link | None
    last_seen_ms: int
    contact: Contact
    state: SlotState = SlotState.REGISTERED
    deployed_token: int = 0  # the last generation that this process heard of
    lost_ms: int | None = None
    gone_ms: int | None = None  # as `lost_ms`, also when a stall of this coordinator restarts waiting times
    metrics: dict[str, float] = field(default_factory=dict)
    latency: ToldHistograms = field(default_factory=lambda: ToldHistograms(began_empty=False))
    opening: dict[str, float] = field(default_factory=dict)  # as in the last `Heartbeat` of this generation
    figures: ToldFigures = field(default_factory=ToldFigures)
    sources: dict[str, HeldBack] = field(default_factory=dict)  # as in the last `Heartbeat`
    blocked: str = ""  # as in the last `Heartbeat` with that field
    blocked_told_ms: int = 0
    blocked_reading: bool = False
    asked_to_prefetch: tuple[str, int] = "", 0  # move and checkpoint of the last Prefetch on this connection
    prefetched: int = 0  # as in the last `Heartbeat` since the first Prefetch
    unheard: dict[int, int] = field(default_factory=dict)  # as in the last `Heartbeat` of this generation
    differs: str = ""  # how release or build differ from the coordinator's
    beat_ms: int = 0  # the last heartbeat
    in_time_since_ms: int = 0  # since then heartbeats come without a gap

    @property
    def uuid(self) -> str:
        return self.register.uuid

    @property
    def connected(self) -> bool:
        return self.link is not None

    def is_to_prefetch(self, move: str, checkpoint: int) -> bool:
        """Whether to send a Prefetch. Files fetched for another move do not count."""
        before, self.asked_to_prefetch = self.asked_to_prefetch, (move, checkpoint)
        if before[0] != move:
            self.prefetched = 0
        return before != (move, checkpoint)


@dataclass(frozen=True)
class Joined:
    """A new process."""

    slot: RegisteredSlot
    replaced: RegisteredSlot | None

    @property
    def death(self) -> str:
        """Cause of the previous process's death, if the new process knows it; else ""."""
        if self.replaced is None or self.replaced.register.host != self.slot.register.host:
            return ""
        pid = self.replaced.register.pid
        of = self.slot.register.died.get(pid)
        return f"process {pid} of slot {self.slot.index} died of {of}" if of else ""


@dataclass(frozen=True)
class Reconnected:
    """The same process on a new connection."""

    slot: RegisteredSlot
    old_link: Link | None


@dataclass(frozen=True)
class Refused:
    """The slot must leave. `reason`: for the log. `unneeded`: the job has fewer slots now."""

    reason: str
    unneeded: bool = False


Arrival: TypeAlias = Joined | Reconnected
Registration: TypeAlias = Arrival | Refused
