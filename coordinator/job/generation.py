"""What belongs to one generation: made anew with each, so that nothing of the one before is left in it.

How far event time is in the slots of one generation, of jobs whose splits wait for slower ones (`max_drift`). Pure.

Each slot tells how far its sources are and gets as an answer the lowest of all slots, so nothing is broadcast and a
lost message costs the time until the next one. A slot that has not told yet may have the split that is furthest behind,
so until all have told nobody goes ahead. What is known is of one generation: the next one begins at its checkpoint.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from barrier_runtime.coordinator.checkpoints.failures import FailureCounter
from barrier_runtime.coordinator.checkpoints.pending import PendingCheckpoints
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.wire.messages import HeldBack, SubtaskFailed, SubtaskId, Waiting

UNKNOWN_MS = -(2**63)  # a split has had no row, or a slot has not told yet
NOBODY_MS = 2**63 - 1  # no split holds the others back: all have ended or are idle


@dataclass
class ReachedEventTimes:
    _of_slot: dict[int, Mapping[str, HeldBack]] = field(default_factory=dict)

    def told(self, slot: int, sources: Mapping[str, HeldBack]) -> None:
        self._of_slot[slot] = sources

    def lowest_ms(self, slots: int) -> int:
        """The lowest watermark that a split allows, in ms, once all of `slots` have told."""
        if len(self._of_slot) < slots:
            return UNKNOWN_MS
        return min(self._watermarks(), default=NOBODY_MS)

    def _watermarks(self) -> Iterator[int]:
        for sources in self._of_slot.values():
            for source in sources.values():
                if source.split:  # else it has none that is not idle
                    yield UNKNOWN_MS if source.watermark_ms is None else source.watermark_ms


_APPENDED_KNOWN = 64


@dataclass
class Generation:
    """`restored`: what it started from; None: from nothing, or this process does not know."""

    failures: FailureCounter
    restored: DecidedManifest | None = None
    pending: PendingCheckpoints | None = None  # None: its slots do not run yet
    highest_announced: int = 0  # the highest checkpoint id that a slot may have heard of, from us or before we led
    swept_ms: int | None = None  # the last sweep began; None: before the first decision nothing tells what is old
    reported_failure: SubtaskFailed | None = None  # heard before we led; a slot reports it once per connection
    written: DecidedManifest | None = None  # its decision is under way
    appended: deque[tuple[frozenset[str], int]] = field(default_factory=lambda: deque(maxlen=_APPENDED_KNOWN))
    # what a decision of this process had stored anew, and the highest checkpoint that had been triggered then; newest
    # last
    event_times: ReachedEventTimes = field(default_factory=ReachedEventTimes)
    ended: set[SubtaskId] = field(default_factory=set)
    drained: bool = False  # its sources were told to end early
    final: int | None = None  # a completed checkpoint taken after all input ended
    waiting: dict[str, Waiting] = field(default_factory=dict)  # what cannot be opened, by operator and slot
    asked: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    # sink -> what its global committer was asked, on which link
    wanted_manifest: str | None = None  # key of the one that is read for the global committers

    @property
    def checkpoints(self) -> PendingCheckpoints:
        """The open checkpoints, once the slots of the generation run."""
        assert self.pending is not None, "a running job without its checkpoints"
        return self.pending

    def run(self, pending: PendingCheckpoints) -> PendingCheckpoints:
        """The slots run."""
        self.pending, self.highest_announced = pending, pending.next_id - 1
        return pending
