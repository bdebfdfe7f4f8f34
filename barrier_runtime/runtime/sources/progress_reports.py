"""Timing of reports of source progress to the coordinator, for `max_drift`. Pure.

Design: docs/design/in-flight-data.md.
"""

from collections.abc import Mapping

from barrier_runtime.coordinator.wire.messages import HeldBack
from barrier_runtime.runtime.sources.driver import SourceDriver

LOOK_S = 0.05
_SELDOM_S = 1.0
_LONGEST_SPLIT = 200
_IDLE_TOLD = 4


def held_back(driver: SourceDriver) -> HeldBack:
    split, watermark_ms = driver.least_far()
    idle, idle_count = driver.idle_splits(_IDLE_TOLD)
    told = tuple(each[:_LONGEST_SPLIT] for each in idle)
    return HeldBack(split[:_LONGEST_SPLIT], watermark_ms, driver.idle, told, idle_count)


class EventTimeTelling:
    """`due` before a report, `answered` after the coordinator's answer."""

    def __init__(self) -> None:
        self._told: Mapping[str, HeldBack] | None = None
        self._answer_ms: int | None = None
        self._wait_s = LOOK_S
        self._next_s = 0.0

    def due(self, sources: Mapping[str, HeldBack], now_s: float) -> bool:
        if sources != self._told:
            self._wait_s = LOOK_S
        elif now_s < self._next_s:
            return False
        else:
            self._wait_s = min(2 * self._wait_s, _SELDOM_S)
        self._told, self._next_s = sources, now_s + self._wait_s
        return True

    def answered(self, lowest_ms: int) -> None:
        if lowest_ms != self._answer_ms:  # other slots advance, so the next report is due soon
            self._answer_ms, self._wait_s, self._next_s = lowest_ms, LOOK_S, 0.0

    def forget(self) -> None:
        self._told = None
