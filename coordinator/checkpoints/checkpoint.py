"""One checkpoint: a table of legal moves, and the agreement of subtasks. Pure.

An illegal move raises `ProtocolViolation` with the recent history.

    TRIGGERED ─all acks─► PERSISTING ─manifest written─► DECIDING ─record appended─► COMPLETE
        │                     │
        └──────┬──────────────┘   before DECIDING other ends are possible; from DECIDING on the log decides.
               ▼
    DECLINED (a subtask refused) · EXPIRED (timed out) · ABORTED (the generation ended, or the manifest could not be
    written) · SUBSUMED (a newer one completed first)

Every subtask receives values whose names begin with `SHARED` at a restore. If several subtasks have such a value with
different bytes, the checkpoint is never decided.
"""

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field

from barrier_runtime.coordinator.wire.messages import Ack, SubtaskId
from barrier_runtime.state.errors import ProtocolViolation
from barrier_runtime.state.snapshots.snapshot import SHARED, SWITCHES, OperatorSnapshot


class CheckpointPhase(enum.Enum):
    TRIGGERED = "triggered"
    PERSISTING = "persisting"
    DECIDING = "deciding"
    COMPLETE = "complete"
    DECLINED = "declined"
    EXPIRED = "expired"
    ABORTED = "aborted"
    SUBSUMED = "subsumed"


_UNDECIDED_ENDS = frozenset(
    {CheckpointPhase.DECLINED, CheckpointPhase.EXPIRED, CheckpointPhase.ABORTED, CheckpointPhase.SUBSUMED}
)

MOVES: dict[CheckpointPhase, frozenset[CheckpointPhase]] = {
    CheckpointPhase.TRIGGERED: _UNDECIDED_ENDS | {CheckpointPhase.PERSISTING},
    CheckpointPhase.PERSISTING: _UNDECIDED_ENDS | {CheckpointPhase.DECIDING},
    CheckpointPhase.DECIDING: frozenset({CheckpointPhase.COMPLETE}),
    CheckpointPhase.COMPLETE: frozenset(),
    CheckpointPhase.DECLINED: frozenset(),
    CheckpointPhase.EXPIRED: frozenset(),
    CheckpointPhase.ABORTED: frozenset(),
    CheckpointPhase.SUBSUMED: frozenset(),
}


class AckEffect(enum.Enum):
    """Effect of an ack. Only NEW and LAST change anything."""

    NEW = "new"
    LAST = "last"
    DUPLICATE = "duplicate"
    LATE = "late"  # the checkpoint does not collect acks any more
    UNKNOWN_SUBTASK = "unknown subtask"


@dataclass
class Checkpoint:
    id: int
    token: int
    triggered_ms: int
    expected: frozenset[SubtaskId]
    final: bool = False  # triggered after all input had ended
    aligned_timeout_ms: int | None = None  # as in `Trigger`
    overtakes_timers: bool = False  # as in `Trigger`
    phase: CheckpointPhase = CheckpointPhase.TRIGGERED
    acks: dict[SubtaskId, Ack] = field(default_factory=dict)
    acked_ms: dict[SubtaskId, int] = field(default_factory=dict)  # arrival of each ack
    history: list[tuple[int, CheckpointPhase]] = field(default_factory=list)  # (time, phase entered)

    def move(self, to: CheckpointPhase, now_ms: int) -> None:
        if to not in MOVES[self.phase]:
            past = ", ".join(f"{phase.value} at {when}" for when, phase in self.history)
            raise ProtocolViolation(
                f"checkpoint {self.id} of generation {self.token} cannot go from {self.phase.value} to {to.value} "
                f"(triggered at {self.triggered_ms}{', ' + past if past else ''}): file a bug"
            )
        self.phase = to
        self.history.append((now_ms, to))

    def ack(self, ack: Ack, now_ms: int) -> AckEffect:
        """Takes a subtask's snapshot."""
        if self.phase is not CheckpointPhase.TRIGGERED:
            return AckEffect.DUPLICATE if ack.subtask in self.acks else AckEffect.LATE
        if ack.subtask not in self.expected:
            return AckEffect.UNKNOWN_SUBTASK
        if ack.subtask in self.acks:
            return AckEffect.DUPLICATE
        self.acks[ack.subtask] = ack
        self.acked_ms[ack.subtask] = now_ms
        return AckEffect.LAST if self.all_acked else AckEffect.NEW

    @property
    def all_acked(self) -> bool:
        return len(self.acks) == len(self.expected)

    @property
    def missing(self) -> tuple[SubtaskId, ...]:
        return tuple(sorted(self.expected - self.acks.keys()))

    @property
    def all_ended(self) -> bool:
        """Returns whether every snapshot was taken after the end of input: this is the final checkpoint."""
        return self.all_acked and all(ack.ended for ack in self.acks.values())

    @property
    def open(self) -> bool:
        return self.phase in (CheckpointPhase.TRIGGERED, CheckpointPhase.PERSISTING, CheckpointPhase.DECIDING)

    def entered_ms(self, phase: CheckpointPhase) -> int | None:
        return next((when for when, entered in self.history if entered is phase), None)


def disagreement(snapshots: Iterable[OperatorSnapshot]) -> str:
    """Returns why a checkpoint of these snapshots is not decided; "" if it may be decided."""
    first: dict[tuple[str, str], tuple[int, object]] = {}
    for snapshot in snapshots:
        content: dict[str, object] = {**snapshot.values, **{name: ref.sha256 for name, ref in snapshot.objects.items()}}
        for name, value in content.items():
            if not name.startswith(SHARED):
                continue
            subtask, agreed = first.setdefault((snapshot.operator, name), (snapshot.subtask, value))
            if value != agreed:
                where = f"in its subtasks {subtask} and {snapshot.subtask}"
                if name == SWITCHES:
                    return (
                        f"broadcast rows of operator {snapshot.operator!r} became valid behind other barriers {where}, "
                        "because an earlier checkpoint was aborted while its barriers were under way: the job begins "
                        "again at the last checkpoint, and nobody has to do anything"
                    )
                return (
                    f"broadcast state of operator {snapshot.operator!r} is not the same {where}: what handlers of "
                    "broadcast inputs write must depend on their rows and on broadcast state alone, not on random "
                    "numbers, a clock, ctx.subtask or attributes; correct them"
                )
    return ""
