"""What belongs to one generation: made anew with each, so that nothing of the one before is left in it."""

from collections import deque
from dataclasses import dataclass, field

from barrier_runtime.coordinator.checkpoints.failures import FailureCounter
from barrier_runtime.coordinator.checkpoints.pending import PendingCheckpoints
from barrier_runtime.coordinator.job.event_times import ReachedEventTimes
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.wire.messages import SubtaskId, Waiting

_APPENDED_KNOWN = 64


@dataclass
class Generation:
    """`restored`: what it started from; None: from nothing, or this process does not know."""

    failures: FailureCounter
    restored: DecidedManifest | None = None
    pending: PendingCheckpoints | None = None  # None: its slots do not run yet
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
