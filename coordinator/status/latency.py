"""Merged latency histograms of all slots. Pure.

A slot sends the whole histogram of the process; a time span is the difference of two. Results are cached by inputs,
because clients request the status more often than slots send.

Layout and encoding are HdrHistogram's (V2: compressed, base64): 1 µs to 1 h, three significant digits. Value `v` has
the index `(b << 10) + (v >> b)`, `b` being the bits of `v` above eleven; up to 2,047 the index is `v`.
"""

import base64
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate
from operator import sub
from typing import TypeAlias

from barrier_runtime.coordinator.status.status import LATENCY_BOUNDS_MS, LatencyPoint, LatencyStatus

Counts: TypeAlias = dict[int, int]  # by index, nonzero

LOWEST_US = 1
HIGHEST_US = 3_600_000_000
SIGNIFICANT_DIGITS = 3
INDICES = 23_552
HALF_BITS = 10
COMPRESSED, PLAIN = 0x1C849304 | 0x10, 0x1C849303 | 0x10
OUTER = struct.Struct(">ii")  # cookie, following bytes
HEAD = struct.Struct(">iiiiqqd")  # cookie, bytes of counts, offset, digits, lowest, highest, ratio
_MOST_BYTES = 1 << 20


def lowest_of(index: int) -> int:
    shift = max(0, (index >> HALF_BITS) - 1)
    return (index - (shift << HALF_BITS)) << shift


def highest_of(index: int) -> int:
    return lowest_of(index + 1) - 1


def decode(text: str) -> Counts:
    try:
        data = base64.b64decode(text, validate=True)
        cookie, length = OUTER.unpack_from(data)
        if cookie != COMPRESSED or length != len(data) - OUTER.size:
            raise ValueError("it is not a compressed histogram")
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(data[OUTER.size :], _MOST_BYTES)
        cookie, size, offset, digits, lowest, highest, _ = HEAD.unpack_from(plain)
    except (zlib.error, struct.error) as error:
        raise ValueError(str(error)) from error
    if (cookie, offset, digits, lowest, highest) != (PLAIN, 0, SIGNIFICANT_DIGITS, LOWEST_US, HIGHEST_US):
        raise ValueError("it is a histogram of another kind")
    if size != len(plain) - HEAD.size:
        raise ValueError("it is cut off")
    return _encoded_counts(plain[HEAD.size :])


def _encoded_counts(body: bytes) -> Counts:
    counts: Counts = {}
    index = value = shift = 0
    for byte in body:
        if byte < 0x80 and not shift and not byte & 1:  # a count below 64, as most are
            if byte:
                counts[index] = byte >> 1
            index += 1
            continue
        value |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > 56:
                break
            continue
        if value & 1:
            index += (value + 1) >> 1  # run of zeros
        else:
            counts[index] = value >> 1
            index += 1
        value = shift = 0
    if shift or index > INDICES:
        raise ValueError("its counts are damaged")
    return counts


def summed(histograms: Iterable[Counts]) -> list[int]:
    every = [each for each in histograms if each]
    counts = [0] * (1 + max((max(each) for each in every), default=-1))
    for each in every:
        for index, count in each.items():
            counts[index] += count
    return counts


RECENT_MS = 60_000
_STEP_MS = 10_000  # between kept histograms: "the last minute" may be this much longer
_MAX_ENCODED = 1 << 20

Encoded: TypeAlias = Mapping[str, str]  # "<sink>:processed" or "<sink>:visible" -> a histogram


class ReportedHistograms:
    """`began_empty`: known since before the first count; else the first report's counts are older than a minute."""

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
        self._forget(now_ms)  # also of an ended process: reports are large
        if now_ms - self._newest_ms > RECENT_MS:
            return self.newest
        return self._kept[0][1] if self._kept else {}

    def _forget(self, now_ms: int) -> None:
        while len(self._kept) > 1 and self._kept[1][0] <= now_ms - RECENT_MS:
            self._kept.popleft()


def merged(encoded: Iterable[Encoded]) -> dict[str, LatencyStatus]:
    """Status per name over all processes, without invalid histograms."""
    return _statuses(_by_name(encoded), {})


def last_minute(processes: Iterable[ReportedHistograms], now_ms: int) -> dict[str, LatencyStatus]:
    processes = list(processes)
    newest = _by_name(each.newest for each in processes)
    return _statuses(newest, _by_name(each.before(now_ms) for each in processes))


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
    counted = _counts(newest)
    if counted is None:
        return None
    earlier = _counts(before)
    if earlier is None:
        return _status(counted)
    between = [*map(sub, counted, earlier), *counted[len(earlier) :]]
    return _status(between if min(between, default=0) >= 0 else [max(0, count) for count in between])


@lru_cache(maxsize=32)  # entries of 200 kB, for the last minute
def _counts(texts: tuple[str, ...]) -> list[int] | None:
    decoded = [counts for counts in map(_decoded, texts) if counts is not None]
    if not decoded:
        return None
    return summed(decoded)


def _decoded(text: str) -> Counts | None:
    if len(text) > _MAX_ENCODED:
        return None
    try:
        return decode(text)
    except ValueError:
        return None


def _status(counts: list[int]) -> LatencyStatus:
    up_to = list(accumulate(counts))
    total = up_to[-1] if up_to else 0
    if not total:
        return LatencyStatus(p50=0.0, p99=0.0, max=0.0, count=0, buckets=(0,) * len(LATENCY_BOUNDS_MS))

    def at(rows: int) -> float:
        return float(highest_of(bisect_left(up_to, rows))) / 1000

    def percentile(percent: float) -> float:
        return at(max(1, int(percent * total / 100 + 0.5)))

    return LatencyStatus(percentile(50), percentile(99), at(total), total, percentile(99.9), _buckets(up_to))


def _buckets(up_to: Sequence[int]) -> tuple[int, ...]:
    return tuple(up_to[min(index, len(up_to) - 1)] for index in _bound_indices())


@cache
def _bound_indices() -> tuple[int, ...]:
    lowest = [lowest_of(index) for index in range(INDICES)]
    return tuple(bisect_right(lowest, bound * 1000) - 1 for bound in LATENCY_BOUNDS_MS)


MINUTES = 60
_NAMES = 64  # sinks times two


class LatencyHour:
    def __init__(self) -> None:
        self._points: dict[str, deque[LatencyPoint]] = {}
        self._looked_ms: int | None = None

    def remember(self, points: Mapping[str, tuple[LatencyPoint, ...]]) -> None:
        self._points = {name: deque(of, MINUTES) for name, of in points.items()}

    def look(self, processes: Iterable[ReportedHistograms], now_ms: int) -> None:
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

    def worst_p99(self, now_ms: int) -> float | None:
        """Greatest 99th percentile of a sink in the last full minute; None without rows since."""
        newest = (points[-1] for points in self._points.values() if points)
        return max((each.p99 for each in newest if 0 <= now_ms - each.at_ms <= 2 * RECENT_MS), default=None)

    def points(self, now_ms: int | None = None) -> dict[str, tuple[LatencyPoint, ...]]:
        """Points, oldest first; with `now_ms`, of the last hour."""
        since_ms = 0 if now_ms is None else now_ms - MINUTES * RECENT_MS
        kept = {name: tuple(each for each in points if each.at_ms > since_ms) for name, points in self._points.items()}
        return {name: points for name, points in kept.items() if points}
