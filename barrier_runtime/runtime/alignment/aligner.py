"""Barrier alignment of one subtask, as a pure state machine: (channel, event, now) → effects.

Exactly once means: what a snapshot at barrier n holds is all that came before barrier n, and nothing that came after.
Aligned, a subtask gets there by *blocking*: after barrier n a channel is left unread until all live channels delivered
it. Unaligned, it gets there by *recording*: it takes its snapshot at once, and what comes before barrier n on the other
channels, queued or still to arrive, belongs to the snapshot as in-flight data. `Aligner` does both and holds no data.

A barrier says how long it may be aligned (`aligned_timeout_ms`): None for ever, 0 not at all. It *arrives* when it
enters the queue of its channel and is *delivered* when it is taken out of it; what may never be recorded (channels
`aligned_only`) counts when it is delivered.

    state            event                                   move
    idle             barrier n > done                        aligning n, block channel (or snapshot if it is all)
    aligning n       barrier n, others missing               block channel
    aligning n       barrier n, the last one                 snapshot n, unblock all → idle, done = n
    aligning n       barrier m > n                           abort n, unblock all → aligning m
    aligning n       cancel m >= n, or abort n by order      abort, unblock all → idle, done = m
    aligning n       a channel ends, no live one missing     snapshot n, unblock all → idle, done = n
    any              abort m by order, m not seen yet, or    m is aborted: its barriers begin nothing
                     its cancel arrives
    any              barrier or cancel <= done, old token    ignored and counted

Barriers with an `aligned_timeout_ms`, for which no other checkpoint is under way beside them:

    idle             trigger or first arrival of n           start the timer of n
    idle             n arrives                               aligning n, blocking nothing yet
    idle             the end arrived on all live channels,   aligning n: no barrier will come any more
                     n was triggered and may not be aligned
    aligning n       time is over, or a 0 arrives, and all   snapshot n, unblock all, done = n → recording n, or idle
                     `aligned_only` channels delivered n     when n or the end arrived on every channel
    aligning n       m > n, or cancel m >= n, arrives        abort n, unblock all
    recording n      n, or the end, arrives on the last      recording is done → idle
                     channel that lacked it
    recording n      m > n, or cancel m >= n on a channel    abort n → idle, and go on with m
                     that lacks n; or abort n by order
    after recording  the overtaken barrier n is delivered    nothing: the snapshot is taken

Barriers without one, where what has to come first takes the subtask long (`overtake`):

    idle, aligning n n, or the end, arrived on every         snapshot n, unblock all → idle, done = n
                     channel, and all `aligned_only`
                     channels delivered n

Source: Flink's SingleCheckpointBarrierHandler and CheckpointBarrierTracker (behaviour, not code); FLIP-76, FLIP-147.
"""

from collections.abc import Collection
from dataclasses import replace

from barrier_runtime.data.elements import Barrier, CancelBarrier, EndOfInput
from barrier_runtime.runtime.alignment.effects import (
    Aborted,
    AlignmentEffect,
    Announced,
    Block,
    InFlightComplete,
    StartTimer,
    TakeSnapshot,
    Unblock,
)


class Aligner:
    """Exactly-once alignment over `channels` input channels of generation `token`."""

    def __init__(self, channels: int, token: int, aligned_only: Collection[int] = ()) -> None:
        self._token = token
        self._aligned_only = frozenset(aligned_only)
        self._live = set(range(channels))
        self._ends: set[int] = set()  # channels on which the end arrived
        self._pending: Barrier | None = None
        self._arrived: set[int] = set()  # the pending barrier was delivered
        self._announced: set[int] = set()  # … or is in the queue
        self._urgent = False  # the pending barrier may be aligned no longer
        self._first_at_ms = 0.0
        self._recording = 0  # checkpoint, 0: none
        self._missing: set[int] = set()  # channels being recorded
        self._overtook = 0  # the last checkpoint whose barriers were overtaken
        self._triggered: Barrier | None = None
        self._timed = 0  # the last checkpoint whose timer was started
        self._timed_out = 0
        self._aborted: set[int] = set()  # by order, above `done`
        self.done = 0  # highest id that was taken or aborted here
        self.ignored = 0

    @property
    def blocked(self) -> frozenset[int]:
        return frozenset(self._arrived)

    @property
    def aligning(self) -> int | None:
        return self._pending.id if self._pending else None

    @property
    def recording(self) -> int | None:
        return self._recording or None

    # ------------------------------------------------------------ what is known before it is delivered

    def on_trigger(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        """The coordinator wants this checkpoint; its barriers are on their way."""
        if barrier.token != self._token or not self._is_new(barrier.id) or barrier.aligned_timeout_ms is None:
            return []
        if self._triggered is None or barrier.id > self._triggered.id:
            self._triggered = barrier
        return self._start_timer(barrier) + self._progress(now_ms)

    def on_arrival(self, channel: int, element: Announced, now_ms: float) -> list[AlignmentEffect]:
        """`element` entered the queue of `channel`."""
        if isinstance(element, EndOfInput):
            self._ends.add(channel)
            return self._heard_from(channel) + self._progress(now_ms)
        if element.token != self._token or channel not in self._live:
            return []
        if isinstance(element, CancelBarrier):
            return self._cancel_arrived(channel, element)
        return self._barrier_arrived(channel, element, now_ms)

    def on_timeout(self, checkpoint: int, now_ms: float) -> list[AlignmentEffect]:
        """The time for aligning `checkpoint` is over."""
        self._timed_out = max(self._timed_out, checkpoint)
        if self._pending is not None and self._pending.id == checkpoint:
            self._urgent = self._pending.aligned_timeout_ms is not None
        return self._progress(now_ms)

    def _barrier_arrived(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        if self._recording and barrier.id == self._recording:
            return self._heard_from(channel)
        effects: list[AlignmentEffect] = []
        if self._recording and barrier.id > self._recording:
            effects += self._abort_recording(f"barrier {barrier.id} came before its in-flight data were complete")
        if barrier.aligned_timeout_ms is None or channel in self._aligned_only or not self._is_new(barrier.id):
            return effects
        if self._pending is not None and barrier.id < self._pending.id:
            return effects
        if self._pending is not None and barrier.id > self._pending.id:
            effects += self._abort(self._pending.id, f"barrier {barrier.id} overtook it")
        effects += self._begin(barrier, now_ms)
        self._announced.add(channel)
        return effects + self._progress(now_ms)

    def _cancel_arrived(self, channel: int, cancel: CancelBarrier) -> list[AlignmentEffect]:
        if self._recording and cancel.id >= self._recording and channel in self._missing:
            return self._abort_recording(f"cancelled upstream by {cancel.id}")
        pending = self._pending
        if pending is not None and pending.aligned_timeout_ms is not None and cancel.id >= pending.id:
            return self.on_cancel(channel, cancel)
        if cancel.id > self.done:
            self._aborted.add(cancel.id)
        return []

    # ------------------------------------------------------------ what is delivered

    def on_barrier(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        if barrier.token == self._token and barrier.id == self._overtook:
            return []
        if barrier.token != self._token or barrier.id <= self.done or channel not in self._live:
            self.ignored += 1
            return []
        effects: list[AlignmentEffect] = []
        if self._pending is not None and barrier.id < self._pending.id:
            self.ignored += 1
            return []
        if self._pending is not None and barrier.id > self._pending.id:
            effects += self._abort(self._pending.id, f"barrier {barrier.id} overtook it")
        if barrier.id in self._aborted:
            self.ignored += 1
            return effects
        effects += self._begin(barrier, now_ms)
        if channel in self._arrived:
            self.ignored += 1
            return effects
        self._arrived.add(channel)
        completed = self._progress(now_ms)
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
        self._ends.add(channel)
        return self._heard_from(channel) + self._progress(now_ms)

    def on_order_to_abort(self, checkpoint: int) -> list[AlignmentEffect]:
        """The coordinator aborted `checkpoint`."""
        if self._recording == checkpoint:
            return self._abort_recording("ordered by the coordinator")
        if self._pending is not None and self._pending.id == checkpoint:
            return self._abort(checkpoint, "ordered by the coordinator")
        if checkpoint > self.done:
            self._aborted.add(checkpoint)
        return []

    def overtake(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        """`barrier`, which is an aligned one, or the end, has arrived on every channel, and is to wait no longer for
        the rows before it."""
        pending = self._pending or barrier
        missing = self._live - self._arrived
        if barrier.token != self._token or not self._is_new(barrier.id) or pending.id != barrier.id or self._recording:
            return []
        if missing & self._aligned_only:
            return []
        self._begin(barrier, now_ms)
        effects = self._taken(barrier, tuple(sorted(missing)), now_ms)
        self._overtook = barrier.id
        return [*effects, InFlightComplete(barrier.id)]

    # ------------------------------------------------------------ inside

    def _is_new(self, checkpoint: int) -> bool:
        return checkpoint > self.done and checkpoint not in self._aborted

    def _is_late(self, barrier: Barrier) -> bool:
        timeout_ms = barrier.aligned_timeout_ms
        return timeout_ms is not None and (timeout_ms == 0 or self._timed_out >= barrier.id)

    def _begin(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        """Barrier of the pending checkpoint, or of the one that is pending from now on."""
        self._urgent = self._urgent or self._is_late(barrier)
        if self._pending is not None:
            return []
        self._pending = barrier
        self._first_at_ms = now_ms
        return self._start_timer(barrier)

    def _start_timer(self, barrier: Barrier) -> list[AlignmentEffect]:
        if not barrier.aligned_timeout_ms or barrier.id <= self._timed:
            return []
        self._timed = barrier.id
        return [StartTimer(barrier.id, barrier.aligned_timeout_ms)]

    def _progress(self, now_ms: float) -> list[AlignmentEffect]:
        """Snapshot if that is due now."""
        if self._pending is None:
            self._begin_without_barriers(now_ms)
        if self._pending is None:
            return []
        if self._live <= self._arrived:
            return self._taken(self._pending, (), now_ms)
        if self._urgent and self._live & self._aligned_only <= self._arrived:
            recorded = tuple(sorted(self._live - self._arrived))
            missing = set(recorded) - self._announced - self._ends
            barrier = replace(self._pending, aligned_timeout_ms=0)
            effects = self._taken(barrier, recorded, now_ms)
            self._overtook = barrier.id
            if missing:
                self._recording, self._missing = barrier.id, missing
                return effects
            return [*effects, InFlightComplete(barrier.id)]
        return []

    def _begin_without_barriers(self, now_ms: float) -> None:
        """All inputs have arrived to their ends without the barrier that is wanted: upstream had ended before."""
        triggered = self._triggered
        if triggered is None or not self._is_new(triggered.id) or not self._is_late(triggered):
            return
        if self._live and self._live <= self._ends:
            self._pending, self._first_at_ms, self._urgent = triggered, now_ms, True

    def _heard_from(self, channel: int) -> list[AlignmentEffect]:
        """What is recorded on `channel` is complete."""
        if channel not in self._missing:
            return []
        self._missing.discard(channel)
        if self._missing:
            return []
        checkpoint, self._recording = self._recording, 0
        return [InFlightComplete(checkpoint)]

    def _taken(self, barrier: Barrier, recorded: tuple[int, ...], now_ms: float) -> list[AlignmentEffect]:
        unblock = self._release()
        self._finish(barrier.id)
        snapshot = TakeSnapshot(
            barrier,
            start_delay_ms=max(0.0, self._first_at_ms - barrier.triggered_at_ms),
            alignment_ms=max(0.0, now_ms - self._first_at_ms),
            recorded=recorded,
        )
        return [snapshot, *unblock]

    def _abort(self, checkpoint: int, reason: str) -> list[AlignmentEffect]:
        unblock = self._release()
        self._finish(checkpoint)
        return [Aborted(checkpoint, reason), *unblock]

    def _abort_recording(self, reason: str) -> list[AlignmentEffect]:
        checkpoint, self._recording = self._recording, 0
        self._missing = set()
        return [Aborted(checkpoint, reason)]

    def _finish(self, checkpoint: int) -> None:
        self.done = checkpoint
        self._aborted = {each for each in self._aborted if each > checkpoint}

    def _release(self) -> list[AlignmentEffect]:
        channels = tuple(sorted(self._arrived))
        self._arrived = set()
        self._announced = set()
        self._urgent = False
        self._pending = None
        return [Unblock(channels)] if channels else []
