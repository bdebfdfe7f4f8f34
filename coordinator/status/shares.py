"""Busy, backpressured and idle shares of operator chains in the last 10 s, from heartbeats. Pure.

Slots report sums, which begin at 0 in each generation, so no difference spans the beginning of a generation.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

import msgspec

from barrier_runtime.coordinator.metric_table import (
    BACKLOG_ROWS,
    BLOCKED_S,
    HELD_S,
    ROWS_IN,
    ROWS_OUT,
    STARVED_S,
    WORK_S,
    Counter,
)
from barrier_runtime.coordinator.status.status import ChainStatus, SourceStatus
from barrier_runtime.coordinator.wire.messages import ChainSpec, HeldBack

WINDOW_MS = 10_000
_STEP_MS = 900  # between two kept reports
_SHORTEST_MS = 500  # a shorter span says nothing
_IDLE_NAMED = 8


class ReportedFigures:
    def __init__(self) -> None:
        self._token = 0
        self._kept: deque[tuple[int, Mapping[str, float]]] = deque()
        self._newest: tuple[int, Mapping[str, float]] | None = None

    def tell(self, token: int, sent_at_ms: int, figures: Mapping[str, float]) -> None:
        """If `sent_at_ms`, by the slot's clock, goes back, everything starts anew."""
        if token != self._token or (self._newest is not None and sent_at_ms < self._newest[0]):
            self._token = token
            self._kept.clear()
        self._newest = sent_at_ms, figures
        if not self._kept or sent_at_ms - self._kept[-1][0] >= _STEP_MS:
            self._kept.append((sent_at_ms, figures))
        while len(self._kept) > 1 and self._kept[1][0] <= sent_at_ms - WINDOW_MS:
            self._kept.popleft()

    @property
    def newest(self) -> Mapping[str, float]:
        return {} if self._newest is None else self._newest[1]

    @property
    def seconds(self) -> float:
        """Time between the oldest kept report and the newest; 0 if too short."""
        if self._newest is None or not self._kept:
            return 0.0
        length_ms = self._newest[0] - self._kept[0][0]
        return length_ms / 1000 if length_ms >= _SHORTEST_MS else 0.0

    def per_second(self, key: str) -> float | None:
        """None: unknown."""
        change = self.change_per_second(key)
        return None if change is None else max(0.0, change)

    def change_per_second(self, key: str) -> float | None:
        """Below 0 for a fall; None: unknown."""
        seconds = self.seconds
        if not seconds or key not in self.newest:
            return None
        return (self.newest[key] - self._kept[0][1].get(key, 0.0)) / seconds


@dataclass(frozen=True)
class _OfChain:
    slots: tuple[int, ...]
    rates: tuple[float, ...]

    @property
    def mean(self) -> float | None:
        return sum(self.rates) / len(self.rates) if self.rates else None

    @property
    def largest(self) -> tuple[float | None, int]:
        if not self.rates:
            return None, -1
        at = max(range(len(self.rates)), key=self.rates.__getitem__)
        return self.rates[at], self.slots[at]


def chain_statuses(chains: Iterable[ChainSpec], reports: Mapping[int, ReportedFigures]) -> tuple[ChainStatus, ...]:
    return tuple(_chain_status(chain, reports) for chain in chains)


def _chain_status(chain: ChainSpec, reports: Mapping[int, ReportedFigures]) -> ChainStatus:
    name = chain.operators[0]
    busy, blocked, held = (_of(metric, name, reports) for metric in (WORK_S, BLOCKED_S, HELD_S))
    rows_in = _of(ROWS_IN, name, reports)
    idle = [
        max(0.0, 1 - work - wait - hold) for work, wait, hold in zip(busy.rates, blocked.rates, held.rates, strict=True)
    ]
    starved = [rate for slot in busy.slots if (rate := reports[slot].per_second(STARVED_S.name)) is not None]
    backlog, caught_up_in_s = _backlog(name, reports)
    busiest, busiest_slot = busy.largest
    most_rows, total_rows = rows_in.largest[0], total_rate(ROWS_IN.key(name), reports.values())
    rows_out_per_s = total_rate(ROWS_OUT.key(name), reports.values())
    return ChainStatus(
        chain=chain.chain,
        operators=chain.operators,
        inputs=chain.inputs,
        sinks=chain.sinks,
        is_source=chain.is_source,
        busy=_share(busy.mean),
        backpressured=_share(blocked.mean),
        held=_share(held.mean),
        idle=_share(sum(idle) / len(idle)) if idle else None,
        busiest=_share(busiest),
        busiest_slot=busiest_slot,
        rows_in_per_s=None if total_rows is None else round(total_rows, 1),
        rows_out_per_s=None if rows_out_per_s is None else round(rows_out_per_s, 1),
        rows_in=_sum(ROWS_IN, name, reports),
        rows_out=_sum(ROWS_OUT, name, reports),
        busiest_rows=round(most_rows / total_rows, 3) if most_rows and total_rows else None,
        starved=_share(sum(starved) / len(starved)) if starved else None,
        backlog=backlog,
        caught_up_in_s=caught_up_in_s,
    )


class SubtaskWork(msgspec.Struct, frozen=True):
    """A subtask's work in the last 10 s; None: unknown. Shares are of the slot's time, 0 to 1."""

    slot: int
    rows_in_per_s: float | None
    rows_out_per_s: float | None
    busy: float | None
    backpressured: float | None
    rows_in: int  # since the generation began


def subtask_work(chain: ChainSpec, reports: Mapping[int, ReportedFigures]) -> tuple[SubtaskWork, ...]:
    name = chain.operators[0]

    def of(figures: ReportedFigures, metric: Counter) -> float | None:
        rate = figures.per_second(metric.key(name))
        return None if rate is None else round(rate, 3)

    return tuple(
        SubtaskWork(
            slot,
            of(figures, ROWS_IN),
            of(figures, ROWS_OUT),
            _share(of(figures, WORK_S)),
            _share(of(figures, BLOCKED_S)),
            int(figures.newest.get(ROWS_IN.key(name), 0.0)),
        )
        for slot, figures in sorted(reports.items())
    )


def _backlog(operator: str, reports: Mapping[int, ReportedFigures]) -> tuple[int | None, float | None]:
    """Unread rows of a source, and seconds until caught up."""
    key = BACKLOG_ROWS.key(operator)
    known = [figures for figures in reports.values() if key in figures.newest]
    if not known:
        return None, None
    backlog = int(sum(figures.newest[key] for figures in known))
    changes = [figures.change_per_second(key) for figures in known]
    change = sum(each for each in changes if each is not None)
    if backlog == 0 or None in changes or change >= 0:
        return backlog, 0.0 if backlog == 0 else None
    return backlog, round(backlog / -change, 1)


def total_rate(key: str, reports: Iterable[ReportedFigures]) -> float | None:
    """Rise per second in all slots; None while a rate is unknown, also of a slot without reports."""
    rates = [each.per_second(key) for each in reports if key in each.newest or not each.newest]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _of(metric: Counter, operator: str, reports: Mapping[int, ReportedFigures]) -> _OfChain:
    rates = [(slot, figures.per_second(metric.key(operator))) for slot, figures in reports.items()]
    known = [(slot, rate) for slot, rate in rates if rate is not None]
    return _OfChain(tuple(slot for slot, _ in known), tuple(rate for _, rate in known))


def _sum(metric: Counter, operator: str, reports: Mapping[int, ReportedFigures]) -> int:
    return int(sum(figures.newest.get(metric.key(operator), 0.0) for figures in reports.values()))


def _share(share: float | None) -> float | None:
    return None if share is None else round(min(1.0, max(0.0, share)), 3)


def source_statuses(
    chains: Iterable[ChainSpec], reports: Mapping[int, Mapping[str, HeldBack]], now_ms: int
) -> tuple[SourceStatus, ...]:
    names = [chain.operators[0] for chain in chains if chain.is_source]
    known = {name: [(slot, each[name]) for slot, each in reports.items() if name in each] for name in names}
    return tuple(_source_status(name, of, now_ms) for name, of in known.items() if of)


def _source_status(name: str, reports: Sequence[tuple[int, HeldBack]], now_ms: int) -> SourceStatus:
    active = [(slot, each) for slot, each in reports if each.split]
    idle = SourceStatus(
        source=name,
        idle_slots=tuple(slot for slot, each in reports if each.idle),
        idle_splits=tuple(nsmallest(_IDLE_NAMED, (split for _, each in reports for split in each.idle_splits))),
        idle_count=sum(each.idle_count for _, each in reports),
    )
    if not active:
        return idle
    slot, least = min(active, key=lambda report: (report[1].watermark_ms is not None, report[1].watermark_ms or 0))
    return msgspec.structs.replace(
        idle,
        watermark_ms=least.watermark_ms,
        lag_ms=None if least.watermark_ms is None else now_ms - least.watermark_ms,
        split=least.split,
        split_slot=slot,
    )
