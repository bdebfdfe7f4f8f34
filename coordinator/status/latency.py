"""Latency histograms of all slots, merged for display: since each process began, and over the last minute.

A slot sends the whole histogram of its process, encoded. So what came within a time is the difference of two of them:
`ToldHistograms` keeps some of a minute per process. The status is asked for more often than slots send, on the
coordinator's loop: so results are kept by what they were made of, and percentiles are read off running totals.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from operator import sub
from typing import TypeAlias

from barrier_runtime.coordinator.status import histogram
from barrier_runtime.coordinator.status.status import LATENCY_BOUNDS_MS, LatencyStatus

RECENT_MS = 60_000
_STEP_MS = 10_000  # between two histograms that are kept: "the last minute" is up to so much longer
_MAX_ENCODED = 1 << 20

Encoded: TypeAlias = Mapping[str, str]  # "<sink>:processed" or "<sink>:visible" -> a histogram


class ToldHistograms:
    """What one process told, and when: the newest, and of the last minute one per step. `began_empty`: the process is
    known since before it counted anything; else what it had counted when it was first heard is not of the last minute.
    """

    def __init__(self, began_empty: bool) -> None:
        self.newest: Encoded = {}
        self._newest_ms = 0
        self._kept: deque[tuple[int, Encoded]] = deque()
        self._began_empty = began_empty

    def tell(self, histograms: Encoded, now_ms: int) -> None:
        self.newest, self._newest_ms = histograms, now_ms
        if not self._kept and self._began_empty:
            self._kept.append((now_ms - 1, {}))
        if not self._kept or now_ms - self._kept[-1][0] >= _STEP_MS:
            self._kept.append((now_ms, histograms))
        self._forget(now_ms)

    def before(self, now_ms: int) -> Encoded:
        """All that was counted more than a minute ago."""
        if now_ms - self._newest_ms > RECENT_MS:
            return self.newest
        self._forget(now_ms)
        return self._kept[0][1] if self._kept else {}

    def _forget(self, now_ms: int) -> None:
        while len(self._kept) > 1 and self._kept[1][0] <= now_ms - RECENT_MS:
            self._kept.popleft()


def merged(encoded: Iterable[Encoded]) -> dict[str, LatencyStatus]:
    """One status per name over all processes. What is not a histogram is left out: this is for display only."""
    return _statuses(_by_name(encoded), {})


def last_minute(processes: Iterable[ToldHistograms], now_ms: int) -> dict[str, LatencyStatus]:
    """The same, of what was counted within the last minute."""
    processes = list(processes)
    newest = _by_name(told.newest for told in processes)
    return _statuses(newest, _by_name(told.before(now_ms) for told in processes))


def _by_name(encoded: Iterable[Encoded]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for histograms in encoded:
        for name, text in histograms.items():
            by_name.setdefault(name, []).append(text)
    return by_name


def _statuses(newest: Mapping[str, list[str]], before: Mapping[str, list[str]]) -> dict[str, LatencyStatus]:
    statuses = ((name, _status_of(tuple(texts), tuple(before.get(name, ())))) for name, texts in sorted(newest.items()))
    return {name: status for name, status in statuses if status is not None}


@lru_cache(maxsize=128)
def _status_of(newest: tuple[str, ...], before: tuple[str, ...]) -> LatencyStatus | None:
    """Of what is in `newest` and not in `before`."""
    counted = _counts(newest)
    if counted is None:
        return None
    earlier = _counts(before)
    if earlier is None:
        return _status(counted)
    between = [*map(sub, counted, earlier), *counted[len(earlier) :]]
    return _status(between if min(between, default=0) >= 0 else [max(0, count) for count in between])


@lru_cache(maxsize=32)  # of 200 kB; for the status of the last minute, whose `before` changes rarely
def _counts(texts: tuple[str, ...]) -> list[int] | None:
    """Rows by the index of their latency, up to the highest that has any."""
    decoded = [counts for counts in map(_decoded, texts) if counts is not None]
    if not decoded:
        return None
    return histogram.summed(decoded)


def _decoded(text: str) -> histogram.Counts | None:
    if len(text) > _MAX_ENCODED:
        return None
    try:
        return histogram.decode(text)
    except ValueError:
        return None


def _status(counts: list[int]) -> LatencyStatus:
    up_to = list(accumulate(counts))
    total = up_to[-1] if up_to else 0
    if not total:
        return LatencyStatus(p50=0.0, p99=0.0, max=0.0, count=0, buckets=(0,) * len(LATENCY_BOUNDS_MS))

    def at(rows: int) -> float:
        return float(histogram.highest_of(bisect_left(up_to, rows))) / 1000

    def percentile(percent: float) -> float:
        return at(max(1, int(percent * total / 100 + 0.5)))

    return LatencyStatus(percentile(50), percentile(99), at(total), total, percentile(99.9), _buckets(up_to))


def _buckets(up_to: Sequence[int]) -> tuple[int, ...]:
    """Rows up to each of `LATENCY_BOUNDS_MS`."""
    return tuple(up_to[min(index, len(up_to) - 1)] for index in _bound_indices())


@cache
def _bound_indices() -> tuple[int, ...]:
    """Where in the histogram's counts the bounds are."""
    lowest = [histogram.lowest_of(index) for index in range(histogram.INDICES)]
    return tuple(bisect_right(lowest, bound * 1000) - 1 for bound in LATENCY_BOUNDS_MS)
