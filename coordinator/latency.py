"""Latency histograms of all slots, merged for display. A slot sends the whole histogram of its process, encoded."""

from collections.abc import Iterable, Mapping

from hdrh.histogram import HdrHistogram

from coordinator.status import LatencyStatus

_HIGHEST_US = 3_600_000_000
_MAX_ENCODED = 1 << 20


def merged(encoded: Iterable[Mapping[str, str]]) -> dict[str, LatencyStatus]:
    """One status per name over all processes. What is no histogram is left out: this is for display only."""
    merged_by_name: dict[str, HdrHistogram] = {}
    for histograms in encoded:
        for name, text in histograms.items():
            decoded = _decoded(text)
            if decoded is not None:
                merged_by_name.setdefault(name, HdrHistogram(1, _HIGHEST_US, 3)).add(decoded)
    return {name: _status(histogram) for name, histogram in sorted(merged_by_name.items())}


def _decoded(text: str) -> HdrHistogram | None:
    if len(text) > _MAX_ENCODED:
        return None
    try:
        return HdrHistogram.decode(text.encode())
    except Exception:  # the library raises whatever zlib, base64, struct and ctypes raise for damaged input
        return None


def _status(histogram: HdrHistogram) -> LatencyStatus:
    return LatencyStatus(
        p50=histogram.get_value_at_percentile(50) / 1000,
        p99=histogram.get_value_at_percentile(99) / 1000,
        max=histogram.get_max_value() / 1000,
        count=histogram.get_total_count(),
    )
