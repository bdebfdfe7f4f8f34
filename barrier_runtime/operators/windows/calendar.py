"""Windows of the calendar of a time zone.

If clocks go forward at midnight, the day begins at the first existing time. A skipped date is not a window.
"""

import datetime
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.operators.windows.assigners import Ints, KnownWindows, WindowAssigner, divides
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.keys.distinct_ints import distinct_ints

_DAY_MS = 86_400_000
_LONGEST_DAYS = {"day": 2, "week": 8, "month": 32}  # including zones that crossed the date line
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
_EPOCH_DAY = _EPOCH.toordinal()
_MS = datetime.timedelta(milliseconds=1)
_FIRST_YEAR, _LAST_YEAR = 2, 9_997  # leaves a year before and after
_MONDAY = 4
_KNOWN_YEARS = range(1970, 2041)  # zones repeat their rules from 2037


@kinds_checked
@dataclass(frozen=True)
class Calendar(KnownWindows):
    """Windows of a calendar: each "day", "week" (from Monday) or "month" in a time zone.

    >>> berlin = Calendar("day", zone="Europe/Berlin")
    >>> spring = np.array([datetime.datetime(2026, 3, 29, 12, tzinfo=datetime.timezone.utc).timestamp() * 1000])
    >>> _, starts = berlin.assign(spring.astype(np.int64))
    >>> ((berlin.ends(starts) - starts) // 3_600_000).tolist()
    [23]
    """

    every: Literal["day", "week", "month"]
    zone: str
    were_by_end = True

    def __post_init__(self) -> None:
        if self.every not in _LONGEST_DAYS:
            raise InvalidJob(f"Calendar({self.every!r}): pass 'day', 'week' or 'month'")
        if not isinstance(self.zone, str) or not self.zone:
            raise InvalidJob(f"Calendar(zone={self.zone!r}): pass the name of a time zone, as in zone='Europe/Berlin'")
        try:
            ZoneInfo(self.zone)
        except (KeyError, ValueError, OSError) as error:
            raise InvalidJob(
                f"Calendar(zone={self.zone!r}): no such time zone is known on this machine: pass a name of the IANA "
                "database, as in zone='Europe/Berlin', and where it is missing install the package tzdata"
            ) from error

    def __str__(self) -> str:
        return f"calendar {self.every} of {self.zone}"

    @cached_property
    def _begins(self) -> "_Begins":
        return _Begins(self.every, ZoneInfo(self.zone))

    @property
    def grid(self) -> tuple[int, int] | None:
        always = ZoneInfo(self.zone).utcoffset(None)  # None: the zone has had several offsets
        if always is None or self.every == "month":
            return None
        days, first = (7, _MONDAY) if self.every == "week" else (1, 0)
        return days * _DAY_MS, (first * _DAY_MS - always // _MS) % (days * _DAY_MS)

    def covers(self, inner: WindowAssigner) -> bool:
        """Periods of one zone nest, except for weeks in months.
        Other windows have to touch at each begin of a day since 1970, or of a week if the zone has a single offset.
        """
        if isinstance(inner, Calendar) and inner.zone == self.zone:
            return inner.every in ("day", self.every)
        if inner.grid is None:
            return False
        if self.grid is not None:
            return divides(inner.grid, self.grid)
        return all(divides(inner.grid, (_DAY_MS, begin)) for begin in _begins_of_days(self.zone))

    @property
    def longest_ms(self) -> int:
        return _LONGEST_DAYS[self.every] * _DAY_MS

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        return _year(_FIRST_YEAR) <= lowest_ms and highest_ms < _year(_LAST_YEAR + 1)

    def first_start(self, time_ms: int) -> int:
        return int(self._begins.around(np.array([time_ms]))[0][0])

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        return None, self._begins.around(times_ms)[0]

    def ends(self, starts_ms: Ints) -> Ints:
        return self._begins.around(starts_ms)[1]

    def last_ms(self, start_ms: int) -> int:
        return int(self.ends(np.array([start_ms]))[0]) - 1

    def first_open_start(self, watermark_ms: int) -> int:
        return int(self.first_open_starts(np.array([max(watermark_ms, WATERMARK_MIN)]))[0])

    def first_open_starts(self, watermarks_ms: Ints) -> Ints:
        """Outside of the supported years returns the watermark itself."""
        next_ms = np.minimum(watermarks_ms, WATERMARK_MAX - 1) + 1
        known = (next_ms >= _year(_FIRST_YEAR)) & (next_ms < _year(_LAST_YEAR + 1))
        if known.all():
            return self._begins.around(next_ms)[0]
        starts: Ints = np.where(next_ms < 0, np.int64(WATERMARK_MIN), next_ms)
        starts[known] = self._begins.around(next_ms[known])[0]
        return starts

    def over_by(self, watermarks_ms: Ints) -> Ints:
        return self.first_open_starts(watermarks_ms)


class _Known(NamedTuple):
    years: frozenset[int]
    starts: Ints
    lowest_ms: int
    highest_ms: int


class _Begins:
    """Begins of windows, in the years computed so far.
    `_known` is replaced as a whole, since subtasks in several threads may share a calendar."""

    def __init__(self, every: str, zone: ZoneInfo) -> None:
        self._every = every
        self._zone = zone
        self._known = _Known(frozenset(), np.zeros(0, np.int64), 0, 0)

    def around(self, times_ms: Ints) -> tuple[Ints, Ints]:
        known = self._known
        if len(times_ms) and (int(times_ms.min()) < known.lowest_ms or int(times_ms.max()) >= known.highest_ms):
            known = self._known = self._with(known, times_ms)
        behind = np.searchsorted(known.starts, times_ms, side="right")
        return known.starts[behind - 1], known.starts[behind]

    def _with(self, known: _Known, times_ms: Ints) -> _Known:
        found = distinct_ints(times_ms.astype("datetime64[ms]").astype("datetime64[Y]").astype(np.int64)) + 1970
        asked = {year + beside for year in found.tolist() for beside in (-1, 0, 1)} - known.years
        if not asked:
            return known
        years = known.years | asked
        starts = [self.instant(day) for year in sorted(asked) for day in self.days(year)]
        first = last = int(found[0])
        while first - 1 in years:
            first -= 1
        while last + 1 in years:
            last += 1
        all_starts = distinct_ints(np.concatenate([known.starts, np.array(starts, np.int64)]))
        return _Known(years, all_starts, _year(first + 1), _year(last))

    def days(self, year: int) -> Iterator[datetime.date]:
        if self._every == "month":
            yield from (datetime.date(year, month, 1) for month in range(1, 13))
            return
        first = datetime.date(year, 1, 1)
        step = 1
        if self._every == "week":
            first, step = first + datetime.timedelta(days=-first.weekday() % 7), 7
        for ordinal in range(first.toordinal(), datetime.date(year + 1, 1, 1).toordinal(), step):
            yield datetime.date.fromordinal(ordinal)

    def instant(self, day: datetime.date) -> int:
        midnight = datetime.datetime(day.year, day.month, day.day, tzinfo=self._zone)
        local_ms = (day.toordinal() - _EPOCH_DAY) * _DAY_MS
        before, behind = _offset_ms(midnight), _offset_ms(midnight.replace(fold=1))
        if before >= behind:
            return local_ms - before
        first, last = local_ms - behind, local_ms - before
        while first < last:
            middle = (first + last) // 2
            if (_EPOCH + middle * _MS).astimezone(self._zone).date() < day:
                first = middle + 1
            else:
                last = middle
        return first


@cache
def _begins_of_days(zone: str) -> frozenset[int]:
    """Times of the day (UTC, ms) at which days of the zone begin."""
    begins = _Begins("day", ZoneInfo(zone))
    return frozenset(begins.instant(day) % _DAY_MS for year in _KNOWN_YEARS for day in begins.days(year))


def _offset_ms(time: datetime.datetime) -> int:
    return (time.utcoffset() or datetime.timedelta()) // _MS


def _year(year: int) -> int:
    return (datetime.date(year, 1, 1).toordinal() - _EPOCH_DAY) * _DAY_MS
