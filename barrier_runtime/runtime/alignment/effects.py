"""What alignment tells a subtask to do: the effects of `alignment.Aligner` and `alignment/tracker.BarrierTracker`."""

from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.data.elements import Barrier, CancelBarrier, EndOfInput

Announced: TypeAlias = Barrier | CancelBarrier | EndOfInput  # elements that alignment hears of when they arrive


@dataclass(frozen=True, slots=True)
class Block:
    """Do not read this channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class Unblock:
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Forward `barrier`, then snapshot. `recorded`: channels whose data before the barrier belong to the snapshot as
    in-flight data; on all others they were taken."""

    barrier: Barrier
    start_delay_ms: float
    alignment_ms: float
    recorded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlightComplete:
    """The in-flight data of checkpoint `id` are all there."""

    id: int


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call `on_timeout(id)` after `delay_ms`."""

    id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """Checkpoint `id` will not be taken here, or what was recorded for it is void: tell downstream, and the coordinator
    unless it told us."""

    id: int
    reason: str


AlignmentEffect: TypeAlias = Block | Unblock | TakeSnapshot | InFlightComplete | StartTimer | Aborted
