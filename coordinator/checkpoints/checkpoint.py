"""Open checkpoints of a generation. Pure.

    TRIGGERED ─all acks─► PERSISTING ─manifest written─► DECIDING ─record appended─► COMPLETE
        │                     │
        └──────┬──────────────┘   before DECIDING other ends are possible; from DECIDING on the log decides.
               ▼
    DECLINED (a subtask refused) · EXPIRED (timed out) · ABORTED (the generation ended, or the manifest could not be
    written) · SUBSUMED (a newer one completed first)

An illegal move raises `ProtocolViolation`.
"""

import enum
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from barrier_runtime.coordinator.wire.messages import Ack, CheckpointOptions, SubtaskId
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
    NEW = "new"
    LAST = "last"
    DUPLICATE = "duplicate"
    LATE = "late"
    UNKNOWN_SUBTASK = "unknown subtask"


@dataclass
class Checkpoint:
    id: int
    token: int
    triggered_ms: int
    expected: frozenset[SubtaskId]
    final: bool = False  # triggered after all input had ended
    aligned_timeout_ms: int | None = None
    overtakes_timers: bool = False  # as in `Trigger`
    phase: CheckpointPhase = CheckpointPhase.TRIGGERED
    acks: dict[SubtaskId, Ack] = field(default_factory=dict)
    acked_ms: dict[SubtaskId, int] = field(default_factory=dict)
    history: list[tuple[int, CheckpointPhase]] = field(default_factory=list)

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
        return self.all_acked and all(ack.ended for ack in self.acks.values())

    @property
    def open(self) -> bool:
        return self.phase in (CheckpointPhase.TRIGGERED, CheckpointPhase.PERSISTING, CheckpointPhase.DECIDING)

    def entered_ms(self, phase: CheckpointPhase) -> int | None:
        return next((when for when, entered in self.history if entered is phase), None)


def disagreement(snapshots: Iterable[OperatorSnapshot]) -> str:
    """Returns why these snapshots are not decided; "" if valid.

    A restore gives every subtask the `SHARED` values, so subtasks must agree on their bytes.
    """
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


_ABORTED_KNOWN = 256
_RETRY_MS, _LONGEST_RETRY_MS = 100, 10_000  # before a requested checkpoint, after repeated failures


class Triggering(enum.Enum):
    PERIODIC = "periodic"
    ON_REQUEST = "on request"  # for a final checkpoint or a stop
    HELD = "held"  # a half-ended input is no restore point


@dataclass(frozen=True)
class Acked:
    effect: AckEffect
    checkpoint: Checkpoint | None


class PendingCheckpoints:
    def __init__(
        self, options: CheckpointOptions, expected: frozenset[SubtaskId], token: int, first_id: int, now_ms: int
    ) -> None:
        self._options = options
        self._expected = expected
        self._token = token
        self._next_id = first_id
        self._open: dict[int, Checkpoint] = {}
        self._last_triggered_ms = now_ms  # the first trigger comes after an interval
        self._last_ended_ms: int | None = None
        self._requested = False
        self._failures = 0
        self.triggering = Triggering.PERIODIC
        self.ignored: Counter[str] = Counter()
        self._aborted: deque[int] = deque(maxlen=_ABORTED_KNOWN)  # ended undecided: files in late acks are deleted

    @property
    def next_id(self) -> int:
        return self._next_id

    @property
    def open(self) -> tuple[Checkpoint, ...]:
        return tuple(self._open.values())

    def request(self) -> int:
        """Returns the id of the future checkpoint."""
        self._requested = True
        return self._next_id

    @property
    def requested(self) -> bool:
        return self._requested

    def trigger_at(self) -> int | None:
        """Returns None if the limit is reached, or nothing is requested."""
        if len(self._open) >= self._options.max_concurrent or self.triggering is Triggering.HELD:
            return None
        moments = [self._requested_at()] if self._requested else []
        if self.triggering is Triggering.PERIODIC:
            due = self._last_triggered_ms + self._options.interval_ms
            if self._last_ended_ms is not None:
                due = max(due, self._last_ended_ms + self._options.min_pause_ms)
            moments.append(due)
        return min(moments, default=None)

    def _requested_at(self) -> int:
        """The first retry of a failed checkpoint is due at once; pauses before later retries double."""
        if self._failures < 2 or self._last_ended_ms is None:
            return self._last_triggered_ms
        return self._last_ended_ms + min(_RETRY_MS << min(self._failures - 2, 30), _LONGEST_RETRY_MS)

    def due(self, now_ms: int) -> bool:
        at = self.trigger_at()
        return at is not None and at <= now_ms

    def trigger(self, now_ms: int) -> Checkpoint:
        checkpoint = Checkpoint(self._next_id, self._token, now_ms, self._expected)
        self._next_id += 1
        self._last_triggered_ms = now_ms
        self._requested = False
        self._open[checkpoint.id] = checkpoint
        return checkpoint

    def next_deadline(self, *, with_trigger: bool = True, held: bool = False) -> int | None:
        """`with_trigger`: periodic checkpoints are enabled. `held`: even requests wait."""
        deadlines = [checkpoint.triggered_ms + self._options.timeout_ms for checkpoint in self._expirable()]
        trigger = self.trigger_at()
        if trigger is not None and not held and (with_trigger or self._requested):
            deadlines.append(trigger)
        return min(deadlines, default=None)

    def get(self, checkpoint: int) -> Checkpoint | None:
        return self._open.get(checkpoint)

    def ack(self, ack: Ack, now_ms: int) -> Acked:
        checkpoint = self._open.get(ack.checkpoint)
        if checkpoint is None:
            self.ignored["ack of an unknown or ended checkpoint"] += 1
            return Acked(AckEffect.LATE, None)
        effect = checkpoint.ack(ack, now_ms)
        if effect not in (AckEffect.NEW, AckEffect.LAST):
            self.ignored[f"{effect.value} ack"] += 1
        return Acked(effect, checkpoint)

    def is_aborted(self, checkpoint: int) -> bool:
        return checkpoint in self._aborted

    def decline(self, checkpoint_id: int, subtask: SubtaskId, now_ms: int) -> Checkpoint | None:
        checkpoint = self._open.get(checkpoint_id)
        if checkpoint is None or checkpoint.phase is not CheckpointPhase.TRIGGERED or subtask not in self._expected:
            self.ignored["late or unknown decline"] += 1
            return None
        self._end(checkpoint, CheckpointPhase.DECLINED, now_ms)
        return checkpoint

    @property
    def deciding(self) -> bool:
        phases = (CheckpointPhase.PERSISTING, CheckpointPhase.DECIDING)
        return any(checkpoint.phase in phases for checkpoint in self._open.values())

    def ready(self) -> Checkpoint | None:
        """Returns the newest checkpoint with all acks, unless another is being decided."""
        if self.deciding:
            return None
        acked = [checkpoint for checkpoint in self._open.values() if checkpoint.all_acked]
        return max(acked, key=lambda checkpoint: checkpoint.id, default=None)

    def expire(self, now_ms: int) -> list[Checkpoint]:
        late = [
            checkpoint
            for checkpoint in self._expirable()
            if now_ms - checkpoint.triggered_ms >= self._options.timeout_ms
        ]
        for checkpoint in late:
            self._end(checkpoint, CheckpointPhase.EXPIRED, now_ms)
        return late

    def abort(self, checkpoint: Checkpoint, now_ms: int) -> None:
        self._end(checkpoint, CheckpointPhase.ABORTED, now_ms)

    def abort_all(self, now_ms: int) -> list[Checkpoint]:
        ended = list(self._expirable())
        for checkpoint in ended:
            self._end(checkpoint, CheckpointPhase.ABORTED, now_ms)
        return ended

    def complete(self, checkpoint: Checkpoint, now_ms: int) -> list[Checkpoint]:
        self._end(checkpoint, CheckpointPhase.COMPLETE, now_ms)
        older = [other for other in self._expirable() if other.id < checkpoint.id]
        for other in older:
            self._end(other, CheckpointPhase.SUBSUMED, now_ms)
        return older

    def _end(self, checkpoint: Checkpoint, phase: CheckpointPhase, now_ms: int) -> None:
        checkpoint.move(phase, now_ms)
        del self._open[checkpoint.id]
        if phase is CheckpointPhase.COMPLETE:
            self._failures = 0
        else:
            self._aborted.append(checkpoint.id)
            self._failures += phase is not CheckpointPhase.SUBSUMED
        self._last_ended_ms = now_ms

    def _expirable(self) -> list[Checkpoint]:
        return [checkpoint for checkpoint in self._open.values() if checkpoint.phase is not CheckpointPhase.DECIDING]
