"""At-least-once checkpoints: the snapshot follows the last barrier, without blocking channels."""

from barrier_runtime.data.elements import Barrier, CancelBarrier
from barrier_runtime.runtime.aligner import Aborted, AlignmentEffect, Announced, TakeSnapshot


class BarrierTracker:
    _MOST_PENDING = 50  # bounds memory; older checkpoints are aborted first

    def __init__(self, channels: int, token: int) -> None:
        self._token = token
        self._live = set(range(channels))
        self._arrived: dict[int, set[int]] = {}
        self._barriers: dict[int, tuple[Barrier, float]] = {}
        self._aborted: set[int] = set()
        self.done = 0
        self.ignored = 0

    blocked: frozenset[int] = frozenset()

    @property
    def aligning(self) -> int | None:
        return max(self._arrived, default=None)

    def on_trigger(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        return []

    def on_arrival(self, channel: int, element: Announced, now_ms: float) -> list[AlignmentEffect]:
        return []

    def on_timeout(self, checkpoint: int, now_ms: float) -> list[AlignmentEffect]:
        return []

    def overtake(self, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        """Does nothing: a restore would process the rows in flight twice."""
        return []

    def on_barrier(self, channel: int, barrier: Barrier, now_ms: float) -> list[AlignmentEffect]:
        stale = barrier.id <= self.done or barrier.id in self._aborted
        if barrier.token != self._token or stale or channel not in self._live:
            self.ignored += 1
            return []
        self._barriers.setdefault(barrier.id, (barrier, now_ms))
        self._arrived.setdefault(barrier.id, set()).add(channel)
        effects = self._complete_what_arrived(now_ms)
        while len(self._arrived) > self._MOST_PENDING:
            effects += self._abort(min(self._arrived), "too many checkpoints are waiting for barriers")
        return effects

    def on_cancel(self, channel: int, cancel: CancelBarrier) -> list[AlignmentEffect]:
        if cancel.token != self._token or cancel.id <= self.done:
            self.ignored += 1
            return []
        effects: list[AlignmentEffect] = []
        for checkpoint in sorted(c for c in self._arrived if c < cancel.id):
            effects += self._abort(checkpoint, f"cancelled upstream by {cancel.id}")
        return effects + self._abort(cancel.id, "cancelled upstream")

    def on_end(self, channel: int, now_ms: float) -> list[AlignmentEffect]:
        self._live.discard(channel)
        return self._complete_what_arrived(now_ms)

    def on_order_to_abort(self, checkpoint: int) -> list[AlignmentEffect]:
        if checkpoint in self._arrived:
            return self._abort(checkpoint, "ordered by the coordinator")
        if checkpoint > self.done:
            self._aborted.add(checkpoint)
        return []

    def _complete_what_arrived(self, now_ms: float) -> list[AlignmentEffect]:
        effects: list[AlignmentEffect] = []
        for checkpoint in sorted(self._arrived):
            if checkpoint <= self.done or not self._live <= self._arrived[checkpoint]:
                continue
            barrier, first_at_ms = self._barriers[checkpoint]
            for older in sorted(c for c in self._arrived if c < checkpoint):
                effects += self._abort(older, f"checkpoint {checkpoint} was complete first")
            self._forget(checkpoint)
            effects.append(
                TakeSnapshot(
                    barrier,
                    start_delay_ms=max(0.0, first_at_ms - barrier.triggered_at_ms),
                    alignment_ms=max(0.0, now_ms - first_at_ms),
                )
            )
        return effects

    def _abort(self, checkpoint: int, reason: str) -> list[AlignmentEffect]:
        self._forget(checkpoint)
        return [Aborted(checkpoint, reason)]

    def _forget(self, checkpoint: int) -> None:
        self._arrived.pop(checkpoint, None)
        self._barriers.pop(checkpoint, None)
        self.done = max(self.done, checkpoint)
        self._aborted = {each for each in self._aborted if each > self.done}
