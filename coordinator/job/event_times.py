"""How far event time is in the slots of one generation, of jobs whose splits wait for slower ones (`max_drift`). Pure.

Each slot tells how far its sources are and gets as an answer the lowest of all slots, so nothing is broadcast and a
lost message costs the time until the next one. A slot that has not told yet may have the split that is furthest behind,
so until all have told nobody goes ahead. What is known is of one generation: the next one begins at its checkpoint.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from barrier_runtime.coordinator.wire.messages import HeldBack

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
