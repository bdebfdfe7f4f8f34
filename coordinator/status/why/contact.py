"""When a slot was not heard of, or stood still, and for how long: evidence for a checkpoint that was slow or failed.

Only what is notable is kept, and only the last of it. Pure: told of messages, with the coordinator's time.
"""

from collections import deque

from barrier_runtime.coordinator.status.status import SlotDuring

_KEPT = 32
_STALL_MS = 150.0  # a heartbeat this late in its slot is worth keeping
_SPARE_MS = 500  # beyond the interval of heartbeats; less is not worth a word


class Contact:
    """Of one slot process. `heartbeat_ms`: how often it is to be heard."""

    def __init__(self, heartbeat_ms: int, now_ms: int) -> None:
        self._notable_ms = heartbeat_ms + _SPARE_MS
        self._heard_ms = now_ms
        self._shortest_ms: int | None = None  # way of a heartbeat; clocks may differ, so it may be negative
        self._silences: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # (when it ended, how long)
        self._stalls: deque[tuple[int, float]] = deque(maxlen=_KEPT)
        self._delays: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def heard(self, now_ms: int) -> None:
        silent_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        if silent_ms >= self._notable_ms:
            self._silences.append((now_ms, silent_ms))

    def forgive(self, now_ms: int) -> None:
        """The coordinator itself stood still: nothing is known of the slot since."""
        self._heard_ms = now_ms

    def heartbeat(self, sent_at_ms: int, lag_ms: float, now_ms: int) -> None:
        if lag_ms >= _STALL_MS:
            self._stalls.append((now_ms, lag_ms))
        way_ms = now_ms - sent_at_ms
        self._shortest_ms = way_ms if self._shortest_ms is None else min(self._shortest_ms, way_ms)
        if way_ms - self._shortest_ms >= _SPARE_MS:
            self._delays.append((now_ms, float(way_ms - self._shortest_ms)))

    def during(self, slot: int, since_ms: int, now_ms: int) -> SlotDuring | None:
        """What overlaps with the time from `since_ms` to `now_ms`; None if nothing is notable."""
        silences = [length for ended, length in self._silences if ended > since_ms]
        if now_ms - self._heard_ms >= self._notable_ms:
            silences.append(now_ms - self._heard_ms)
        stalls = [length for told, length in self._stalls if told > since_ms]
        delays = [length for told, length in self._delays if told > since_ms]
        if not (silences or stalls or delays):
            return None
        return SlotDuring(slot, max(silences, default=0), max(stalls, default=0.0), max(delays, default=0.0))
