"""Effects of `Aligner` and `BarrierTracker`, which a subtask applies."""

from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.data.elements import Barrier, CancelBarrier, EndOfInput

Announced: TypeAlias = Barrier | CancelBarrier | EndOfInput  # elements that alignment handles on arrival


@dataclass(frozen=True, slots=True)
class Block:
    channel: int


@dataclass(frozen=True, slots=True)
class Unblock:
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Forward `barrier`, then take the snapshot.

    `recorded`: channels whose rows before the barrier belong to the snapshot as in-flight data. On all other channels
    the subtask has processed these rows.
    """

    barrier: Barrier
    start_delay_ms: float
    alignment_ms: float
    recorded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlightComplete:
    """All in-flight data of checkpoint `id` have been recorded."""

    id: int


@dataclass(frozen=True, slots=True)
class StartTimer:
    """Call `on_timeout(id)` after `delay_ms`."""

    id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """No snapshot of checkpoint `id` is taken here, or its recorded rows are void.

    The subtask informs downstream, and the coordinator unless the coordinator gave the order.
    """

    id: int
    reason: str


AlignmentEffect: TypeAlias = Block | Unblock | TakeSnapshot | InFlightComplete | StartTimer | Aborted
