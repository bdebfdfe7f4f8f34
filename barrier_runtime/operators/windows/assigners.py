"""Assigners: which windows a row belongs to, and when a window is over. Times: ms since the epoch.
Design: docs/design/windows.md.
"""

import datetime
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.schemas import Duration, as_duration, milliseconds
from barrier_runtime.operators.windows.triggers import FullWindow, WindowTrigger
from barrier_runtime.state.errors import InvalidJob

Ints = npt.NDArray[np.int64]
_FAR = -(2**62)


class WindowAssigner(ABC):
    bounded = True  # windows have a start and an end; rows have a time
    merges = False  # rows make the windows, which may merge
    shares_slices = False  # windows consist of shared slices (see `sliding`)
    is_over_when = "the watermark has passed its end"
    not_whole = ""  # for users: why steps cannot hold the rows of a window; "": they can
    has_parts = False
    were_by_end = False  # older builds counted results of and in such windows by their end

    @abstractmethod
    def __str__(self) -> str:
        """Definition for users and snapshots: equal windows have equal texts."""

    @property
    def definition(self) -> str:
        """Definition in snapshots, compared at a restore."""
        return str(self)

    @property
    def grid(self) -> tuple[int, int] | None:
        """(size, offset) in milliseconds of windows of one length that touch and never overlap; else None."""
        return None

    @property
    def not_joined(self) -> str:
        """Reason why rows of two streams share no window; "": they may."""
        return ""

    @property
    def own_trigger(self) -> WindowTrigger | None:
        """Trigger of the kind, if users cannot choose one."""
        return None

    def refuses(self, trigger: WindowTrigger) -> str:
        """Returns the reason against this trigger; "": none."""
        return ""

    @abstractmethod
    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        """Returns whether windows of these times lie within 64 bits."""

    def covers(self, inner: "WindowAssigner") -> bool:
        """Returns whether each `inner` window surely lies within all windows that hold its start."""
        return False

    def parts_of(self, times_ms: Ints) -> Ints:
        """Returns a number for each time, equal for times in the same windows."""
        raise NotImplementedError(f"{self} has no parts")


class KnownWindows(WindowAssigner):
    """Windows with known start and end, identified by their start."""

    @property
    def per_row(self) -> int:
        """Greatest number of windows of a row."""
        return 1

    @property
    @abstractmethod
    def longest_ms(self) -> int:
        """Upper bound of the length of a window."""

    @abstractmethod
    def first_start(self, time_ms: int) -> int:
        """Returns the start of a time's first window."""

    @abstractmethod
    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        """Returns (row, window start) of each assignment.
        None in place of the rows: each row belongs to exactly one window, in order."""

    @abstractmethod
    def ends(self, starts_ms: Ints) -> Ints:
        """Returns the exclusive end of each window."""

    @abstractmethod
    def last_ms(self, start_ms: int) -> int:
        """Returns the last millisecond: a window is over once the watermark reaches it."""

    @abstractmethod
    def first_open_start(self, watermark_ms: int) -> int:
        """Returns the smallest start of windows not over at `watermark_ms`; rows of earlier windows are late."""

    @abstractmethod
    def first_open_starts(self, watermarks_ms: Ints) -> Ints:
        """Returns `first_open_start` at each watermark."""

    @abstractmethod
    def over_by(self, watermarks_ms: Ints) -> Ints:
        """Returns a number per watermark that grows as more windows are over."""


class FixedWindows(KnownWindows):
    @property
    @abstractmethod
    def size_ms(self) -> int:
        """Length of each window."""

    @property
    def longest_ms(self) -> int:
        return self.size_ms

    @property
    def step_ms(self) -> int:
        """Distance of successive window ends."""
        return self.size_ms

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        return lowest_ms >= WATERMARK_MIN + self.size_ms and highest_ms <= WATERMARK_MAX - self.size_ms

    def covers(self, inner: WindowAssigner) -> bool:
        return inner.grid is not None and divides(inner.grid, (self.step_ms, self.first_start(0)))

    def ends(self, starts_ms: Ints) -> Ints:
        return starts_ms + self.size_ms

    def last_ms(self, start_ms: int) -> int:
        return start_ms + self.size_ms - 1

    def first_open_start(self, watermark_ms: int) -> int:
        return watermark_ms - self.size_ms + 2  # start + size - 1 > watermark, in whole milliseconds

    def first_open_starts(self, watermarks_ms: Ints) -> Ints:
        return np.maximum(watermarks_ms, WATERMARK_MIN + self.size_ms) - self.size_ms + 2

    def over_by(self, watermarks_ms: Ints) -> Ints:
        first_open = np.maximum(self.first_open_starts(watermarks_ms), _FAR)
        over: Ints = -((self.first_start(0) - first_open) // self.step_ms)
        return over


def divides(inner: tuple[int, int], outer: tuple[int, int]) -> bool:
    """Returns whether windows of the grid `inner` touch at each multiple of `outer`. Grids: (size, offset).

    >>> divides((60, 0), (3600, 1800)), divides((60, 30), (3600, 0)), divides((1500, 0), (3600, 0))
    (True, False, False)
    """
    return outer[0] % inner[0] == 0 and (outer[1] - inner[1]) % inner[0] == 0


def lateness_definition(window: WindowAssigner, lateness_ms: int) -> str:
    """Includes the lateness: a longer lateness would begin removed windows anew."""
    lateness = f", allowed lateness {datetime.timedelta(milliseconds=lateness_ms)}" if lateness_ms else ""
    return window.definition + lateness


def _size(given: Duration, what: str) -> datetime.timedelta:
    size = as_duration(given, what)
    if milliseconds(size, what) == 0:
        raise InvalidJob(f"{what} is 0: use at least one millisecond")
    return size


def _offset(given: Duration, step: datetime.timedelta, kind: str, of: str) -> datetime.timedelta:
    what = f"the offset of a {kind} window"
    offset = as_duration(given, what)
    milliseconds(abs(offset), what)
    if abs(offset) >= step:
        raise InvalidJob(
            f"{what} is {offset / datetime.timedelta(seconds=1):g} s: use less than its {of} {step}, forward or back"
        )
    return offset % step


@kinds_checked
@dataclass(frozen=True)
class Tumbling(FixedWindows):
    """Windows of equal `size` (a `timedelta`, or seconds) that touch and never overlap.

    Windows start at `offset` + n * `size`; days of UTC+8 are `Tumbling(timedelta(days=1), offset=timedelta(hours=-8))`.

    >>> Tumbling(datetime.timedelta(hours=1)).starts(np.array([0, 3_599_999, 3_600_000])).tolist()
    [0, 0, 3600000]
    """

    size: Duration
    offset: Duration = datetime.timedelta()
    has_parts = True

    def __post_init__(self) -> None:
        size = _size(self.size, "the size of a Tumbling window")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "offset", _offset(self.offset, size, "Tumbling", "size"))

    @cached_property
    def size_ms(self) -> int:
        return milliseconds(self.size, "size")

    @cached_property
    def offset_ms(self) -> int:
        """`offset` in milliseconds."""
        return milliseconds(self.offset, "offset")

    @property
    def grid(self) -> tuple[int, int]:
        return self.size_ms, self.offset_ms

    def starts(self, times_ms: Ints) -> Ints:
        """Returns the start of each time's window."""
        return times_ms - np.mod(times_ms - self.offset_ms, self.size_ms)

    def parts_of(self, times_ms: Ints) -> Ints:
        return self.starts(times_ms)

    def first_start(self, time_ms: int) -> int:
        return time_ms - (time_ms - self.offset_ms) % self.size_ms

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        return None, self.starts(times_ms)

    def __str__(self) -> str:
        return f"tumbling {self.size}" + (f" + {self.offset}" if self.offset else "")


@kinds_checked
@dataclass(frozen=True)
class Sliding(FixedWindows):
    """Windows of equal `size` that begin every `slide`, at `offset` + n * `slide`.

    A row is in size / slide windows. `size` is a multiple of `slide`; `offset` may be negative.

    >>> rows, starts = Sliding(datetime.timedelta(hours=2), datetime.timedelta(hours=1)).assign(np.array([3_600_000]))
    >>> rows.tolist(), starts.tolist()
    ([0, 0], [0, 3600000])
    """

    size: Duration
    slide: Duration
    offset: Duration = datetime.timedelta()
    shares_slices = True
    has_parts = True

    def __post_init__(self) -> None:
        size = _size(self.size, "the size of a Sliding window")
        slide = _size(self.slide, "the slide of a Sliding window")
        if size % slide:
            raise InvalidJob(f"the size {size} of a Sliding window must be a multiple of its slide {slide}")
        object.__setattr__(self, "size", size)
        object.__setattr__(self, "slide", slide)
        object.__setattr__(self, "offset", _offset(self.offset, slide, "Sliding", "slide"))

    @cached_property
    def size_ms(self) -> int:
        return milliseconds(self.size, "size")

    @cached_property
    def slide_ms(self) -> int:
        """`slide` in milliseconds."""
        return milliseconds(self.slide, "slide")

    @cached_property
    def offset_ms(self) -> int:
        """`offset` in milliseconds."""
        return milliseconds(self.offset, "offset")

    @property
    def step_ms(self) -> int:
        return self.slide_ms

    @cached_property
    def _back_ms(self) -> Ints:
        return np.arange(self.size_ms - self.slide_ms, -1, -self.slide_ms, dtype=np.int64)

    @property
    def per_row(self) -> int:
        return self.size_ms // self.slide_ms

    def first_start(self, time_ms: int) -> int:
        return time_ms - (time_ms - self.offset_ms) % self.slide_ms - (self.size_ms - self.slide_ms)

    def slices(self, times_ms: Ints) -> Ints:
        """Returns the start of each time's slice and last window."""
        return times_ms - np.mod(times_ms - self.offset_ms, self.slide_ms)

    def parts_of(self, times_ms: Ints) -> Ints:
        return self.slices(times_ms)

    def first_from(self, time_ms: int) -> int:
        """Returns the first window start at or after `time_ms`."""
        return time_ms + (self.offset_ms - time_ms) % self.slide_ms

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        last = self.slices(times_ms)
        if self.per_row == 1:
            return None, last
        return np.arange(len(times_ms), dtype=np.int64).repeat(self.per_row), (last[:, None] - self._back_ms).ravel()

    def __str__(self) -> str:
        return f"sliding {self.size} every {self.slide}" + (f" + {self.offset}" if self.offset else "")


@kinds_checked
@dataclass(frozen=True)
class Global(FixedWindows):
    """Window of all rows of a key, over at the end of the input. Needs no event time.

    >>> Global().definition
    'global'
    """

    bounded = False
    is_over_when = "the input ends"

    @property
    def not_joined(self) -> str:
        return f"{self!r} has no times that rows of two streams could share"

    @property
    def size_ms(self) -> int:
        return WATERMARK_MAX

    def first_start(self, time_ms: int) -> int:
        return 0

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        return None, np.zeros(len(times_ms), np.int64)

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        return True

    def __str__(self) -> str:
        return "global"


@kinds_checked
@dataclass(frozen=True)
class Count(Global):
    """Windows of `rows` rows of a key, in order of arrival. Needs no event time.

    With `slide` (a divisor of `rows`) a window ends every `slide` rows and has the last `rows` rows (fewer in the first
    windows of a key). The end of the input drops incomplete windows, as in Flink.

    >>> Count(100).definition, Count(100, slide=10).definition
    ('count 100', 'count 100 every 10')
    """

    rows: int
    slide: int | None = None
    is_over_when = "it has its rows"
    not_whole = "Count windows: take aggregate(), or another window"

    def __post_init__(self) -> None:
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise InvalidJob(f"Count({self.rows!r}): pass a whole number of rows, at least 1")
        slide = self.slide
        if slide is None:
            return
        if isinstance(slide, bool) or not isinstance(slide, int) or slide < 1:
            raise InvalidJob(f"Count({self.rows}, slide={slide!r}): pass a whole number of rows as slide=, at least 1")
        if self.rows % slide:
            raise InvalidJob(f"Count({self.rows}, slide={slide}): {self.rows} must be a multiple of the slide")

    @property
    def own_trigger(self) -> WindowTrigger:
        return FullWindow(self.rows, self.rows if self.slide is None else self.slide)

    def refuses(self, trigger: WindowTrigger) -> str:
        return "a Count window is told when it is full: leave early= out"

    @property
    def per_row(self) -> int:
        return 1 if self.slide is None else self.rows // self.slide

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        """Assigns each row to a window of each *shift* 0, -1, -2, …: windows of a shift follow each other.
        Windows of shift -n are over n * `slide` rows before those of shift 0."""
        phases = self.per_row
        if phases == 1:
            return super().assign(times_ms)
        count = len(times_ms)
        return np.arange(count, dtype=np.int64).repeat(phases), np.tile(-np.arange(phases, dtype=np.int64), count)

    def __str__(self) -> str:
        return f"count {self.rows}" + ("" if self.slide is None else f" every {self.slide}")


@kinds_checked
@dataclass(frozen=True)
class Session(WindowAssigner):
    """Rows of a key that follow each other within `gap`, by event time.

    A session lasts from the first row to `gap` after the last row. As in Flink, touching sessions merge: a row exactly
    `gap` after the last row belongs to the session. Rows may arrive in any order.

    >>> Session(datetime.timedelta(minutes=30)).definition
    'session 0:30:00'
    """

    gap: Duration
    merges = True
    not_whole = "sessions: take aggregate(), as with collect_list(), or another window"

    def __post_init__(self) -> None:
        object.__setattr__(self, "gap", _size(self.gap, "the gap of a Session window"))

    @cached_property
    def gap_ms(self) -> int:
        """`gap` in milliseconds."""
        return milliseconds(self.gap, "gap")

    @property
    def not_joined(self) -> str:
        return "a session is made of the rows of one stream, so two streams have no sessions in common"

    def __str__(self) -> str:
        return f"session {self.gap}"

    def refuses(self, trigger: WindowTrigger) -> str:
        return trigger.not_of_sessions

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        return lowest_ms >= WATERMARK_MIN + self.gap_ms and highest_ms <= WATERMARK_MAX - self.gap_ms
