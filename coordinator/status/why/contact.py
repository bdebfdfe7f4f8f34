"""Silences and stalls of a slot: evidence for a slow or failed checkpoint.

Only notable times are kept, and only the last of them. Pure: the caller passes messages with the coordinator's time.
"""

from collections import deque

from barrier_runtime.coordinator.status.status import SlotDuring

_KEPT = 32
_STALL_MS = 150.0  # shorter delays of a heartbeat in the slot are not kept
_SPARE_MS = 500  # beyond the interval of heartbeats; shorter times are not reported


class Contact:
    """Contact to a slot process. `heartbeat_ms`: interval of heartbeats."""

    def __init__(self, heartbeat_ms: int, now_ms: int) -> None:
        self._notable_ms = heartbeat_ms + _SPARE_MS
        self._heard_ms = now_ms
        self._shortest_ms: int | None = None  # transfer time of a heartbeat; negative if clocks differ
        self._silences: deque[tuple[int, int]] = deque(maxlen=_KEPT)  # (end, duration)
        self._stalls: deque[tuple[int, float]] = deque(maxlen=_KEPT)
        self._delays: deque[tuple[int, float]] = deque(maxlen=_KEPT)

    def heard(self, now_ms: int) -> None:
        silent_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        if silent_ms >= self._notable_ms:
            self._silences.append((now_ms, silent_ms))

    def forgive(self, now_ms: int) -> None:
        """Forgets the present silence, because the coordinator itself stalled."""
        self._heard_ms = now_ms

    def heartbeat(self, sent_at_ms: int, lag_ms: float, now_ms: int) -> None:
        if lag_ms >= _STALL_MS:
            self._stalls.append((now_ms, lag_ms))
        way_ms = now_ms - sent_at_ms
        self._shortest_ms = way_ms if self._shortest_ms is None else min(self._shortest_ms, way_ms)
        if way_ms - self._shortest_ms >= _SPARE_MS:
            self._delays.append((now_ms, float(way_ms - self._shortest_ms)))

    def during(self, slot: int, since_ms: int, now_ms: int) -> SlotDuring | None:
        """Returns notable times that overlap `since_ms` to `now_ms`; None if there are none."""
        silences = [length for ended, length in self._silences if ended > since_ms]
        if now_ms - self._heard_ms >= self._notable_ms:
            silences.append(now_ms - self._heard_ms)
        stalls = [length for told, length in self._stalls if told > since_ms]
        delays = [length for told, length in self._delays if told > since_ms]
        if not (silences or stalls or delays):
            return None
        return SlotDuring(slot, max(silences, default=0), max(stalls, default=0.0), max(delays, default=0.0))
