"""Rate, watermark lag and backlog of a job over the last hour, in memory. Pure.

A point per 10 s: 7 kB per job. A clock that goes back removes later points, so points are in order and never older than
an hour.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from barrier_runtime.coordinator.metric_table import BACKLOG_ROWS, ROWS_IN
from barrier_runtime.coordinator.status.shares import ReportedFigures, total_rate
from barrier_runtime.coordinator.wire.messages import ChainSpec, HeldBack

HOUR_MS = 3_600_000
STEP_MS = 10_000
POINTS = HOUR_MS // STEP_MS


class TrendPoint(msgspec.Struct, frozen=True, array_like=True):
    """Figures of all sources at a time; None: unknown."""

    at_ms: int
    rows_per_s: float | None = None
    lag_ms: float | None = None  # the greatest of a source
    backlog: float | None = None


class Trend:
    def __init__(self) -> None:
        self._at_ms: array[int] = array("q")
        self._figures: tuple[array[float], ...] = (array("f"), array("f"), array("f"))

    def __len__(self) -> int:
        return len(self._at_ms)

    @property
    def newest(self) -> TrendPoint | None:
        return self._point(len(self) - 1) if self._at_ms else None

    def look(self, facts: Callable[[], TrendPoint], now_ms: int) -> None:
        if self._at_ms and 0 <= now_ms - self._at_ms[-1] < STEP_MS:
            return
        while self._at_ms and self._at_ms[-1] > now_ms:
            self._drop(-1)
        point = facts()
        self._at_ms.append(now_ms)
        for known, figure in zip(self._figures, (point.rows_per_s, point.lag_ms, point.backlog), strict=True):
            known.append(math.nan if figure is None else figure)
        while self._at_ms[0] <= now_ms - HOUR_MS or len(self) > POINTS:
            self._drop(0)

    def points(self, now_ms: int) -> tuple[TrendPoint, ...]:
        return tuple(
            self._point(index) for index, at_ms in enumerate(self._at_ms) if now_ms - HOUR_MS < at_ms <= now_ms
        )

    def _point(self, index: int) -> TrendPoint:
        known = (figures[index] for figures in self._figures)
        return TrendPoint(self._at_ms[index], *(None if math.isnan(figure) else figure for figure in known))

    def _drop(self, index: int) -> None:
        self._at_ms.pop(index)
        for figures in self._figures:
            figures.pop(index)


def trend_point(
    chains: Iterable[ChainSpec],
    reports: Mapping[int, ReportedFigures],
    event_times: Iterable[Mapping[str, HeldBack]],
    now_ms: int,
) -> TrendPoint:
    """`reports`, `event_times`: of connected slots.
    The rate is unknown while the rate of a slot with a source, or without a report, is unknown.
    """
    rates: list[float | None] = []
    backlogs: list[float] = []
    for chain in chains:
        if chain.is_source:
            rows, backlog = ROWS_IN.key(chain.operators[0]), BACKLOG_ROWS.key(chain.operators[0])
            rates.append(total_rate(rows, reports.values()))
            backlogs += [each.newest[backlog] for each in reports.values() if backlog in each.newest]
    known = [rate for rate in rates if rate is not None]
    return TrendPoint(
        now_ms,
        sum(known) if known and len(known) == len(rates) else None,
        _worst_lag_ms(event_times, now_ms),
        sum(backlogs) if backlogs else None,
    )


def _worst_lag_ms(event_times: Iterable[Mapping[str, HeldBack]], now_ms: int) -> float | None:
    """Lag of the slowest source; a source without a watermark in some slot has no known lag."""
    lowest: dict[str, int | None] = {}
    for of_slot in event_times:
        for source, each in of_slot.items():
            if each.split:
                before = lowest.get(source, each.watermark_ms)
                unknown = before is None or each.watermark_ms is None
                lowest[source] = None if unknown else min(before, each.watermark_ms)  # type: ignore[type-var]
    return max((float(now_ms - known) for known in lowest.values() if known is not None), default=None)


def downsampled(points: Sequence[TrendPoint], most: int) -> tuple[TrendPoint, ...]:
    """Points for equal parts of the hour: mean rate, greatest lag and backlog."""
    width_ms = -(-HOUR_MS // most)
    if width_ms <= STEP_MS:
        return tuple(points)
    parts = (list(part) for _, part in groupby(points, key=lambda point: point.at_ms // width_ms))
    return tuple(
        TrendPoint(
            part[-1].at_ms,
            _mean([each.rows_per_s for each in part]),
            _greatest(each.lag_ms for each in part),
            _greatest(each.backlog for each in part),
        )
        for part in parts
    )


def _mean(figures: Sequence[float | None]) -> float | None:
    known = [each for each in figures if each is not None]
    return sum(known) / len(known) if known else None


def _greatest(figures: Iterable[float | None]) -> float | None:
    return max((each for each in figures if each is not None), default=None)
