"""What belongs to one generation: made anew with each, so that nothing of the one before is left in it."""

from collections import deque
from dataclasses import dataclass, field

from barrier_runtime.coordinator.checkpoints.failures import FailureCounter
from barrier_runtime.coordinator.checkpoints.pending import PendingCheckpoints
from barrier_runtime.coordinator.job.event_times import ReachedEventTimes
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.wire.messages import SubtaskFailed, SubtaskId, Waiting

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
