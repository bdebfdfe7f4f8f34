"""Barrier alignment of one subtask, as a pure state machine: (channel, event, now) → effects.

Exactly once means: after barrier n on a channel, none of its later elements may touch state until every live
channel delivered n. `Aligner` does that by blocking; `BarrierTracker` (at_least_once) only counts. Neither holds data:
a blocked channel is simply not read.

    state            event                                   move
    idle             barrier n > done                        aligning n, block channel (or snapshot if it is all)
    aligning n       barrier n, others missing               block channel
    aligning n       barrier n, the last one                 snapshot n, unblock all → idle, done = n
    aligning n       barrier m > n                           abort n, unblock all → aligning m
    aligning n       cancel m >= n, or abort n by order      abort, unblock all → idle, done = m
    aligning n       a channel ends, no live one missing     snapshot n, unblock all → idle, done = n
    any              abort m by order, m not seen yet        m is given up: its barriers begin nothing
    any              barrier or cancel <= done, old token    ignored and counted

Source: Flink's SingleCheckpointBarrierHandler and CheckpointBarrierTracker (behaviour, not code); FLIP-147 for ends.
"""

from dataclasses import dataclass
from typing import TypeAlias

from barrier_runtime.elements import Barrier, CancelBarrier


@dataclass(frozen=True, slots=True)
class Block:
    """Do not read this channel."""

    channel: int


@dataclass(frozen=True, slots=True)
class Unblock:
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Every live channel delivered `barrier`: forward it, then snapshot."""

    barrier: Barrier
    start_delay_ms: float
    alignment_ms: float


@dataclass(frozen=True, slots=True)
class Aborted:
    """Checkpoint `id` will not be taken here: tell downstream, and the coordinator unless it told us."""

    id: int
    reason: str


AlignmentEffect: TypeAlias = Block | Unblock | TakeSnapshot | Aborted


class Aligner:
    """Exactly-once alignment over `channels` input channels of generation `token`."""

    def __init__(self, channels: int, token: int) -> None:
        self._token = token
        self._live = set(range(channels))
        self._pending: Barrier | None = None
        self._arrived: set[int] = set()
        self._first_at_ms = 0.0
        self._given_up: set[int] = set()  # by order, above `done`
        self.done = 0  # highest id that was taken or aborted here
        self.ignored = 0

    @property
    def blocked(self) -> frozenset[int]:
        return frozenset(self._arrived)

    @property
    def aligning(self) -> int | None:
        return self._pending.id if self._pending else None

    def on_barrier(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        if barrier.token != self._token or barrier.id <= self.done or channel not in self._live:
            self.ignored += 1
            return []
        effects: list[AlignmentEffect] = []
        if self._pending is not None and barrier.id < self._pending.id:
            self.ignored += 1
            return []
        if self._pending is not None and barrier.id > self._pending.id:
            effects += self._abort(self._pending.id, f"barrier {barrier.id} overtook it")
        if barrier.id in self._given_up:
            self.ignored += 1
            return effects
        if self._pending is None:
            self._pending = barrier
            self._first_at_ms = now_ms
        if channel in self._arrived:
            self.ignored += 1
            return effects
        self._arrived.add(channel)
        completed = self._complete_if_all_arrived(now_ms)
        return effects + (completed or [Block(channel)])

    def on_cancel(self, channel: int, cancel: CancelBarrier) -> list[AlignmentEffect]:
        if cancel.token != self._token or cancel.id <= self.done:
            self.ignored += 1
            return []
        if self._pending is not None and cancel.id < self._pending.id:
            self.ignored += 1
            return []
        effects: list[AlignmentEffect] = []
        if self._pending is not None:
            effects += self._abort(self._pending.id, f"cancelled upstream by {cancel.id}")
        if cancel.id > self.done:
            self._finish(cancel.id)
            effects.append(Aborted(cancel.id, "cancelled upstream"))
        return effects

    def on_end(self, channel: int, now_ms: float) -> list[AlignmentEffect]:
        """The channel delivered its last element; it counts as having delivered every barrier from now on."""
        self._live.discard(channel)
        return self._complete_if_all_arrived(now_ms)

    def on_order_to_abort(self, checkpoint: int) -> list[AlignmentEffect]:
        """The coordinator gave up `checkpoint`."""
        if self._pending is not None and self._pending.id == checkpoint:
            return self._abort(checkpoint, "ordered by the coordinator")
        if checkpoint > self.done:
            self._given_up.add(checkpoint)
        return []

    def _complete_if_all_arrived(self, now_ms: float) -> list[AlignmentEffect]:
        if self._pending is None or not self._live <= self._arrived:
            return []
        barrier = self._pending
        unblock = self._release()
        self._finish(barrier.id)
        snapshot = TakeSnapshot(
            barrier,
            start_delay_ms=max(0.0, self._first_at_ms - barrier.triggered_at_ms),
            alignment_ms=max(0.0, now_ms - self._first_at_ms),
        )
        return [snapshot, *unblock]

    def _abort(self, checkpoint: int, reason: str) -> list[AlignmentEffect]:
        unblock = self._release()
        self._finish(checkpoint)
        return [Aborted(checkpoint, reason), *unblock]

    def _finish(self, checkpoint: int) -> None:
        self.done = checkpoint
        self._given_up = {each for each in self._given_up if each > checkpoint}

    def _release(self) -> list[AlignmentEffect]:
        channels = tuple(sorted(self._arrived))
        self._arrived = set()
        self._pending = None
        return [Unblock(channels)] if channels else []


class BarrierTracker:
    """At-least-once: the snapshot is taken when the last barrier arrived; nothing is ever blocked."""

    _MOST_PENDING = 50  # a bound on memory; older ones are given up first

    def __init__(self, channels: int, token: int) -> None:
        self._token = token
        self._live = set(range(channels))
        self._arrived: dict[int, set[int]] = {}  # checkpoint -> channels, ascending
        self._barriers: dict[int, tuple[Barrier, float]] = {}
        self._given_up: set[int] = set()  # by order, above `done`
        self.done = 0
        self.ignored = 0

    blocked: frozenset[int] = frozenset()

    @property
    def aligning(self) -> int | None:
        return max(self._arrived, default=None)

    def on_barrier(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        stale = barrier.id <= self.done or barrier.id in self._given_up
        if barrier.token != self._token or stale or channel not in self._live:
            self.ignored += 1
            return []
        self._barriers.setdefault(barrier.id, (barrier, now_ms))
        self._arrived.setdefault(barrier.id, set()).add(channel)
        effects = self._complete_what_arrived(now_ms)
        while len(self._arrived) > self._MOST_PENDING:
            effects += self._give_up(min(self._arrived), "too many checkpoints are waiting for barriers")
        return effects

    def on_cancel(self, channel: int, cancel: CancelBarrier) -> list[AlignmentEffect]:
        if cancel.token != self._token or cancel.id <= self.done:
            self.ignored += 1
            return []
        effects: list[AlignmentEffect] = []
        for checkpoint in sorted(c for c in self._arrived if c < cancel.id):
            effects += self._give_up(checkpoint, f"cancelled upstream by {cancel.id}")
        return effects + self._give_up(cancel.id, "cancelled upstream")

    def on_end(self, channel: int, now_ms: float) -> list[AlignmentEffect]:
        self._live.discard(channel)
        return self._complete_what_arrived(now_ms)

    def on_order_to_abort(self, checkpoint: int) -> list[AlignmentEffect]:
        if checkpoint in self._arrived:
            return self._give_up(checkpoint, "ordered by the coordinator")
        if checkpoint > self.done:
            self._given_up.add(checkpoint)
        return []

    def _complete_what_arrived(self, now_ms: float) -> list[AlignmentEffect]:
        effects: list[AlignmentEffect] = []
        for checkpoint in sorted(self._arrived):
            if checkpoint <= self.done or not self._live <= self._arrived[checkpoint]:
                continue
            barrier, first_at_ms = self._barriers[checkpoint]
            for older in sorted(c for c in self._arrived if c < checkpoint):
                effects += self._give_up(older, f"checkpoint {checkpoint} was complete first")
            self._forget(checkpoint)
            effects.append(
                TakeSnapshot(
                    barrier,
                    start_delay_ms=max(0.0, first_at_ms - barrier.triggered_at_ms),
                    alignment_ms=max(0.0, now_ms - first_at_ms),
                )
            )
        return effects

    def _give_up(self, checkpoint: int, reason: str) -> list[AlignmentEffect]:
        self._forget(checkpoint)
        return [Aborted(checkpoint, reason)]

    def _forget(self, checkpoint: int) -> None:
        self._arrived.pop(checkpoint, None)
        self._barriers.pop(checkpoint, None)
        self.done = max(self.done, checkpoint)
        self._given_up = {each for each in self._given_up if each > self.done}
