"""When a slot tells how far its sources are, so that none runs ahead of the others (`max_drift`). Pure.

It tells every 50 ms while something changes, since the answer says how far its splits may go on. While nothing does it
asks ever more seldom, up to once a second: what it waits for is the progress of other slots.
"""

from collections.abc import Mapping

from barrier_runtime.coordinator.wire.messages import HeldBack
from barrier_runtime.runtime.sources.driver import SourceDriver

LOOK_S = 0.05  # between two looks at whether there is something to tell
_SELDOM_S = 1.0
_LONGEST_SPLIT = 200  # characters of its id that are told
_IDLE_TOLD = 4  # splits


def held_back(driver: SourceDriver) -> HeldBack:
    """What holds a source with event time back in this slot, and what is idle."""
    split, watermark_ms = driver.least_far()
    idle, idle_count = driver.idle_splits(_IDLE_TOLD)
    told = tuple(each[:_LONGEST_SPLIT] for each in idle)
    return HeldBack(split[:_LONGEST_SPLIT], watermark_ms, driver.idle, told, idle_count)


class EventTimeTelling:
    """`due` when the slot looks, `answered` when the coordinator has said how far the job is."""

    def __init__(self) -> None:
        self._told: Mapping[str, HeldBack] | None = None
        self._answer_ms: int | None = None
        self._wait_s = LOOK_S
        self._next_s = 0.0

    def due(self, sources: Mapping[str, HeldBack], now_s: float) -> bool:
        """Whether `sources` are to be told now."""
        if sources != self._told:
            self._wait_s = LOOK_S
        elif now_s < self._next_s:
            return False
        else:
            self._wait_s = min(2 * self._wait_s, _SELDOM_S)
        self._told, self._next_s = sources, now_s + self._wait_s
        return True

    def answered(self, lowest_ms: int) -> None:
        if lowest_ms != self._answer_ms:  # the others move: ask again soon
            self._answer_ms, self._wait_s, self._next_s = lowest_ms, LOOK_S, 0.0

    def forget(self) -> None:
        """There may be another coordinator, which has been told nothing."""
        self._told = None
