"""Latency histograms of all slots, merged for display. A slot sends the whole histogram of its process, encoded.

The status is asked for more often than slots send, on the coordinator's loop: so results are kept by what they were
made of, and percentiles are read off running totals (the library's own search takes 15 ms each).
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate

from hdrh.histogram import HdrHistogram

from coordinator.status import LatencyStatus

_HIGHEST_US = 3_600_000_000
_MAX_ENCODED = 1 << 20


def merged(encoded: Iterable[Mapping[str, str]]) -> dict[str, LatencyStatus]:
    """One status per name over all processes. What is no histogram is left out: this is for display only."""
    by_name: dict[str, list[str]] = {}
    for histograms in encoded:
        for name, text in histograms.items():
            by_name.setdefault(name, []).append(text)
    statuses = ((name, _status_of(tuple(texts))) for name, texts in sorted(by_name.items()))
    return {name: status for name, status in statuses if status is not None}


@lru_cache(maxsize=64)
def _status_of(texts: tuple[str, ...]) -> LatencyStatus | None:
    decoded = [histogram for histogram in map(_decoded, texts) if histogram is not None]
    if not decoded:
        return None
    whole = HdrHistogram(1, _HIGHEST_US, 3)
    for histogram in decoded:
        whole.add(histogram)
    return _status(whole)


def _decoded(text: str) -> HdrHistogram | None:
    if len(text) > _MAX_ENCODED:
        return None
    try:
        return HdrHistogram.decode(text.encode())
    except Exception:  # the library raises whatever zlib, base64, struct and ctypes raise for damaged input
        return None


def _status(histogram: HdrHistogram) -> LatencyStatus:
    counted = int(histogram.get_total_count())
    if not counted:
        return LatencyStatus(p50=0.0, p99=0.0, max=0.0, count=0)
    up_to = list(accumulate(histogram.counts[:]))

    def at(percentile: float) -> float:
        index = bisect_left(up_to, histogram.get_target_count_at_percentile(percentile))
        return float(histogram.get_highest_equivalent_value(histogram.get_value_from_index(index))) / 1000

    return LatencyStatus(p50=at(50), p99=at(99), max=histogram.get_max_value() / 1000, count=counted)
