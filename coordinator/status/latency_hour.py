"""Both latencies of each sink over the last hour: a point per minute, kept in the job's history. Pure."""

from collections import deque
from collections.abc import Iterable, Mapping

from barrier_runtime.coordinator.status.latency import RECENT_MS, ToldHistograms, last_minute
from barrier_runtime.coordinator.status.status import LatencyPoint

MINUTES = 60
_NAMES = 64  # sinks times two; of more, no line could be told from another


class LatencyHour:
    def __init__(self) -> None:
        self._points: dict[str, deque[LatencyPoint]] = {}
        self._looked_ms: int | None = None

    def remember(self, points: Mapping[str, tuple[LatencyPoint, ...]]) -> None:
        """Go on from what was stored."""
        self._points = {name: deque(of, MINUTES) for name, of in points.items()}

    def look(self, processes: Iterable[ToldHistograms], now_ms: int) -> None:
        """When a minute is over, a point for each name that had rows in it. Cheap in between."""
        if self._looked_ms is None or now_ms < self._looked_ms:
            self._looked_ms = now_ms
            return
        if now_ms - self._looked_ms < RECENT_MS:
            return
        self._looked_ms = now_ms
        for name, latency in last_minute(processes, now_ms).items():
            if latency.count and (name in self._points or len(self._points) < _NAMES):
                point = LatencyPoint(now_ms, latency.p50, latency.p99, latency.p999, latency.max, latency.count)
                self._points.setdefault(name, deque(maxlen=MINUTES)).append(point)

    def points(self, now_ms: int | None = None) -> dict[str, tuple[LatencyPoint, ...]]:
        """Oldest first; with `now_ms`, only those of the last hour."""
        since_ms = 0 if now_ms is None else now_ms - MINUTES * RECENT_MS
        kept = {name: tuple(each for each in points if each.at_ms > since_ms) for name, points in self._points.items()}
        return {name: points for name, points in kept.items() if points}
