"""Facts of a generation, made anew with each generation. Pure."""

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from barrier_runtime.coordinator.checkpoints.checkpoint import PendingCheckpoints
from barrier_runtime.coordinator.checkpoints.failures import FailureCounter
from barrier_runtime.coordinator.log.manifest import DecidedManifest
from barrier_runtime.coordinator.wire.messages import HeldBack, SubtaskFailed, SubtaskId, Waiting

UNKNOWN_MS = -(2**63)  # a split has had no row, or a slot has not reported
NOBODY_MS = 2**63 - 1  # all splits have ended or are idle


@dataclass
class ReachedEventTimes:
    _of_slot: dict[int, Mapping[str, HeldBack]] = field(default_factory=dict)

    def reported(self, slot: int, sources: Mapping[str, HeldBack]) -> None:
        self._of_slot[slot] = sources

    def lowest_ms(self, slots: int) -> int:
        """Lowest watermark in ms, for splits that wait for slower splits (`max_drift`).

        `UNKNOWN_MS` until all `slots` have reported: the last may have the slowest split.
        """
        if len(self._of_slot) < slots:
            return UNKNOWN_MS
        return min(self._watermarks(), default=NOBODY_MS)

    def _watermarks(self) -> Iterator[int]:
        for sources in self._of_slot.values():
            for source in sources.values():
                if source.split:  # else all splits are idle
                    yield UNKNOWN_MS if source.watermark_ms is None else source.watermark_ms


_APPENDED_KNOWN = 64


@dataclass
class Generation:
    """`restored`: None: no manifest, or unknown here."""

    failures: FailureCounter
    restored: DecidedManifest | None = None
    pending: PendingCheckpoints | None = None  # None: the slots do not run yet
    # Highest checkpoint id that slots may know, also from earlier leaders.
    highest_announced: int = 0
    # Last sweep; None before the first decision, when the age of files is unknown.
    swept_ms: int | None = None
    # Kept until this process leads: slots report a failure once per connection.
    reported_failure: SubtaskFailed | None = None
    written: DecidedManifest | None = None  # with the decision in flight
    # New objects of this process's decisions, and the highest checkpoint triggered until then; newest last.
    appended: deque[tuple[frozenset[str], int]] = field(default_factory=lambda: deque(maxlen=_APPENDED_KNOWN))
    event_times: ReachedEventTimes = field(default_factory=ReachedEventTimes)
    ended: set[SubtaskId] = field(default_factory=set)
    drained: bool = False
    ended_before: int = -1  # number of `ended` at the last trigger that has not failed
    final: int | None = None  # completed after all input ended
    waiting: dict[str, Waiting] = field(default_factory=dict)  # operators that cannot open, by operator and slot
    # Sink -> last request to the global committer (checkpoint, link).
    asked: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    wanted_manifest: str | None = None  # being read for the global committers

    @property
    def checkpoints(self) -> PendingCheckpoints:
        assert self.pending is not None, "a running job without its checkpoints"
        return self.pending

    def run(self, pending: PendingCheckpoints) -> PendingCheckpoints:
        self.pending, self.highest_announced = pending, pending.next_id - 1
        return pending
