"""Barrier alignment of a subtask as a pure state machine: (channel, event, now) → effects.

A barrier *arrives* in the queue of its channel, and is *delivered* when the subtask takes it out. On channels that are
never recorded (`aligned_only`) only delivery counts. `aligned_timeout_ms` limits the alignment: None: for ever, 0: not
at all. Design: docs/design/unaligned-checkpoints.md.

    state            event                                   move
    idle             barrier n > done                        aligning n, block channel (or snapshot n if complete)
    aligning n       barrier n, others missing               block channel
    aligning n       barrier n or an end, none missing       snapshot n, unblock all → idle, done = n
    aligning n       barrier m > n                           abort n, unblock all → aligning m
    aligning n       cancel m >= n, or order to abort n      abort, unblock all → idle, done = m
    any              order to abort m, or cancel m arrives   barriers m start no alignment
    any              barrier or cancel <= done, old token    ignored and counted

Barriers with an `aligned_timeout_ms`, which the coordinator triggers singly (`max_concurrent` is 1):

    idle             trigger or first arrival of n           start the timer of n
    idle             n arrives                               aligning n, no channel blocked yet
    idle             the end arrived on all live channels,   aligning n: no barrier n will arrive
                     n is triggered and must not wait
    aligning n       the timer fires or a barrier with 0     snapshot n, unblock all, done = n → recording n, or
                     arrives, and all `aligned_only`         idle if n or the end arrived on every channel
                     channels have delivered n
    aligning n       m > n, or cancel m >= n, arrives        abort n, unblock all
    recording n      n or the end arrives on the last        in-flight data complete → idle
                     missing channel
    recording n      m > n arrives, or cancel m >= n on a    abort n → idle, then handle m
                     missing channel, or order to abort n
    recording n      an aligned m > n is delivered that      aligning m while n is still recorded
                     arrived after n
    after recording  the overtaken barrier n is delivered    none: the snapshot is taken

Source: Flink's SingleCheckpointBarrierHandler and CheckpointBarrierTracker (behaviour, not code); FLIP-76, FLIP-147.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TypeAlias

from barrier_runtime.data.elements import Barrier, CancelBarrier, EndOfInput

Announced: TypeAlias = Barrier | CancelBarrier | EndOfInput


@dataclass(frozen=True, slots=True)
class Block:
    channel: int


@dataclass(frozen=True, slots=True)
class Unblock:
    channels: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Forward `barrier` first. `recorded`: channels whose rows before the barrier are in-flight data."""

    barrier: Barrier
    start_delay_ms: float
    alignment_ms: float
    recorded: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class InFlightComplete:
    id: int


@dataclass(frozen=True, slots=True)
class StartTimer:
    id: int
    delay_ms: int


@dataclass(frozen=True, slots=True)
class Aborted:
    """No snapshot of checkpoint `id` is taken here, or its recorded rows are void."""

    id: int
    reason: str


AlignmentEffect: TypeAlias = Block | Unblock | TakeSnapshot | InFlightComplete | StartTimer | Aborted


@dataclass(frozen=True, slots=True)
class NoCheckpoint:
    """State without a checkpoint under way."""


@dataclass(frozen=True, slots=True)
class Recording:
    """After the snapshot: rows before the barrier still arrive on the channels `missing`."""

    checkpoint: int
    missing: frozenset[int]


@dataclass(frozen=True, slots=True)
class Aligning:
    """Before the snapshot: a barrier of the checkpoint has arrived, or none will arrive."""

    barrier: Barrier
    first_at_ms: float
    urgent: bool  # the alignment must wait no longer
    announced: frozenset[int] = frozenset()
    delivered: frozenset[int] = frozenset()
    recording: Recording | None = None  # an older checkpoint whose barriers arrived before these


class Aligner:
    def __init__(self, channels: int, token: int, aligned_only: Collection[int] = ()) -> None:
        self._token = token
        self._aligned_only = frozenset(aligned_only)
        self._live = set(range(channels))
        self._ends: set[int] = set()
        self._state: NoCheckpoint | Aligning | Recording = NoCheckpoint()
        self._overtook = 0  # last checkpoint whose barriers are delivered after the snapshot
        self._triggered: Barrier | None = None
        self._timed = 0  # highest checkpoint whose timer was started
        self._timed_out = 0  # highest checkpoint whose timer fired
        self._aborted: set[int] = set()  # by order or cancelled upstream, above `done`
        self.done = 0  # highest id that was taken or aborted here
        self.ignored = 0

    @property
    def blocked(self) -> frozenset[int]:
        return self._state.delivered if isinstance(self._state, Aligning) else frozenset()

    @property
    def aligning(self) -> int | None:
        return self._state.barrier.id if isinstance(self._state, Aligning) else None

    @property
    def recording(self) -> int | None:
        return self._recorded.checkpoint if self._recorded else None

    @property
    def _recorded(self) -> Recording | None:
        if isinstance(self._state, Aligning):
            return self._state.recording
        return self._state if isinstance(self._state, Recording) else None

    # events before delivery

    def on_trigger(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        if barrier.token != self._token or not self._is_new(barrier.id) or barrier.aligned_timeout_ms is None:
            return []
        if self._triggered is None or barrier.id > self._triggered.id:
            self._triggered = barrier
        return self._start_timer(barrier) + self._progress(now_ms)

    def on_arrival(self, channel: int, element: Announced, now_ms: float) -> list[AlignmentEffect]:
        if isinstance(element, EndOfInput):
            self._ends.add(channel)
            return self._heard_from(channel) + self._progress(now_ms)
        if element.token != self._token or channel not in self._live:
            return []
        if isinstance(element, CancelBarrier):
            return self._cancel_arrived(channel, element)
        return self._barrier_arrived(channel, element, now_ms)

    def on_timeout(self, checkpoint: int, now_ms: float) -> list[AlignmentEffect]:
        self._timed_out = max(self._timed_out, checkpoint)
        state = self._state
        if isinstance(state, Aligning) and state.barrier.id == checkpoint:
            self._state = replace(state, urgent=state.barrier.aligned_timeout_ms is not None)
        return self._progress(now_ms)

    def _barrier_arrived(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        if barrier.id == self.recording:
            return self._heard_from(channel)
        effects: list[AlignmentEffect] = []
        if self._recorded and barrier.id > self._recorded.checkpoint:
            effects += self._abort_recording(f"barrier {barrier.id} came before its in-flight data were complete")
        if barrier.aligned_timeout_ms is None or channel in self._aligned_only or not self._is_new(barrier.id):
            return effects
        if barrier.id < (self.aligning or 0):
            return effects
        effects += self._overtaken_by(barrier)
        state, started = self._begin(barrier, now_ms)
        self._state = replace(state, announced=state.announced | {channel})
        return effects + started + self._progress(now_ms)

    def _cancel_arrived(self, channel: int, cancel: CancelBarrier) -> list[AlignmentEffect]:
        state, recorded = self._state, self._recorded
        if recorded and cancel.id >= recorded.checkpoint and channel in recorded.missing:
            return self._abort_recording(f"cancelled upstream by {cancel.id}")
        if (
            isinstance(state, Aligning)
            and state.barrier.aligned_timeout_ms is not None
            and cancel.id >= state.barrier.id
        ):
            return self.on_cancel(channel, cancel)
        if cancel.id > self.done:
            self._aborted.add(cancel.id)
        return []

    # events of delivery

    def on_barrier(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        if barrier.token == self._token and barrier.id == self._overtook:
            return []
        if barrier.token != self._token or barrier.id <= self.done or channel not in self._live:
            self.ignored += 1
            return []
        if barrier.id < (self.aligning or 0):
            self.ignored += 1
            return []
        effects = self._overtaken_by(barrier)
        if barrier.id in self._aborted:
            self.ignored += 1
            return effects
        state, started = self._begin(barrier, now_ms)
        effects += started
        if channel in state.delivered:
            self.ignored += 1
            return effects
        self._state = replace(state, delivered=state.delivered | {channel})
        completed = self._progress(now_ms)
        return effects + (completed or [Block(channel)])

    def on_cancel(self, channel: int, cancel: CancelBarrier) -> list[AlignmentEffect]:
        if cancel.token != self._token or cancel.id <= self.done or cancel.id < (self.aligning or 0):
            self.ignored += 1
            return []
        effects: list[AlignmentEffect] = []
        if isinstance(self._state, Aligning):
            effects += self._abort(self._state, f"cancelled upstream by {cancel.id}")
        if cancel.id > self.done:
            self._finish(cancel.id)
            effects.append(Aborted(cancel.id, "cancelled upstream"))
        return effects

    def on_end(self, channel: int, now_ms: float) -> list[AlignmentEffect]:
        self._live.discard(channel)
        self._ends.add(channel)
        return self._heard_from(channel) + self._progress(now_ms)

    def on_order_to_abort(self, checkpoint: int) -> list[AlignmentEffect]:
        state, reason = self._state, "ordered by the coordinator"
        if self.recording == checkpoint:
            return self._abort_recording(reason)
        if isinstance(state, Aligning) and state.barrier.id == checkpoint:
            return self._abort(state, reason)
        if checkpoint > self.done:
            self._aborted.add(checkpoint)
        return []

    def overtake(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        """Takes the snapshot at once: the barriers overtake the rows before them.

        Call when the barrier or the end has arrived on every channel. Does nothing while an `aligned_only` channel has
        not delivered the barrier.
        """
        missing = self._live - self.blocked
        if barrier.token != self._token or not self._is_new(barrier.id) or self._recorded:
            return []
        if self.aligning not in (None, barrier.id):
            return []
        if missing & self._aligned_only:
            return []
        state, _ = self._begin(barrier, now_ms)
        effects = self._taken(state, barrier, tuple(sorted(missing)), now_ms)
        self._overtook = barrier.id
        return [*effects, InFlightComplete(barrier.id)]

    def _is_new(self, checkpoint: int) -> bool:
        return checkpoint > self.done and checkpoint not in self._aborted

    def _is_late(self, barrier: Barrier) -> bool:
        timeout_ms = barrier.aligned_timeout_ms
        return timeout_ms is not None and (timeout_ms == 0 or self._timed_out >= barrier.id)

    def _overtaken_by(self, barrier: Barrier) -> list[AlignmentEffect]:
        state = self._state
        if isinstance(state, Aligning) and barrier.id > state.barrier.id:
            return self._abort(state, f"barrier {barrier.id} overtook it")
        return []

    def _begin(self, barrier: Barrier, now_ms: float) -> tuple[Aligning, list[AlignmentEffect]]:
        if isinstance(self._state, Aligning):
            self._state = replace(self._state, urgent=self._state.urgent or self._is_late(barrier))
            return self._state, []
        self._state = Aligning(barrier, now_ms, self._is_late(barrier), recording=self._recorded)
        return self._state, self._start_timer(barrier)

    def _start_timer(self, barrier: Barrier) -> list[AlignmentEffect]:
        if not barrier.aligned_timeout_ms or barrier.id <= self._timed:
            return []
        self._timed = barrier.id
        return [StartTimer(barrier.id, barrier.aligned_timeout_ms)]

    def _progress(self, now_ms: float) -> list[AlignmentEffect]:
        if not isinstance(self._state, Aligning):
            self._begin_without_barriers(now_ms)
        state = self._state
        if not isinstance(state, Aligning):
            return []
        if self._live <= state.delivered:
            return self._taken(state, state.barrier, (), now_ms)
        if state.urgent and self._live & self._aligned_only <= state.delivered:
            recorded = tuple(sorted(self._live - state.delivered))
            missing = frozenset(recorded) - state.announced - self._ends
            effects = self._taken(state, replace(state.barrier, aligned_timeout_ms=0), recorded, now_ms)
            self._overtook = state.barrier.id
            if missing:
                self._state = Recording(state.barrier.id, missing)
                return effects
            return [*effects, InFlightComplete(state.barrier.id)]
        return []

    def _begin_without_barriers(self, now_ms: float) -> None:
        triggered = self._triggered
        if triggered is None or not self._is_new(triggered.id) or not self._is_late(triggered):
            return
        if self._live and self._live <= self._ends:
            self._state = Aligning(triggered, now_ms, urgent=True, recording=self._recorded)

    def _heard_from(self, channel: int) -> list[AlignmentEffect]:
        recorded = self._recorded
        if recorded is None or channel not in recorded.missing:
            return []
        missing = recorded.missing - {channel}
        self._record(Recording(recorded.checkpoint, missing) if missing else None)
        return [] if missing else [InFlightComplete(recorded.checkpoint)]

    def _record(self, recording: Recording | None) -> None:
        if isinstance(self._state, Aligning):
            self._state = replace(self._state, recording=recording)
        else:
            self._state = recording or NoCheckpoint()

    def _taken(
        self, state: Aligning, barrier: Barrier, recorded: tuple[int, ...], now_ms: float
    ) -> list[AlignmentEffect]:
        unblock = self._ended(state)
        snapshot = TakeSnapshot(
            barrier,
            start_delay_ms=max(0.0, state.first_at_ms - barrier.triggered_at_ms),
            alignment_ms=max(0.0, now_ms - state.first_at_ms),
            recorded=recorded,
        )
        return [snapshot, *unblock]

    def _abort(self, state: Aligning, reason: str) -> list[AlignmentEffect]:
        return [Aborted(state.barrier.id, reason), *self._ended(state)]

    def _abort_recording(self, reason: str) -> list[AlignmentEffect]:
        checkpoint = self.recording or 0
        self._record(None)
        return [Aborted(checkpoint, reason)]

    def _ended(self, state: Aligning) -> list[AlignmentEffect]:
        self._state = state.recording or NoCheckpoint()
        self._finish(state.barrier.id)
        return [Unblock(tuple(sorted(state.delivered)))] if state.delivered else []

    def _finish(self, checkpoint: int) -> None:
        self.done = checkpoint
        self._aborted = {each for each in self._aborted if each > checkpoint}
