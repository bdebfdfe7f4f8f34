"""Which windows a row belongs to, and when a window is over. Pure arithmetic on milliseconds since the epoch.

A new kind of window is a subclass of `KnownWindows` (windows that begin and end at known times) or `FixedWindows` (all
of one length), in a module of its own, and a public name in `barrier_runtime/__init__`. What users can do with a kind
of window the kind says itself; steps never ask which kind it is.
"""

import datetime
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.schemas import milliseconds
from barrier_runtime.operators.windows.triggers import FullWindow, WindowTrigger
from barrier_runtime.state.errors import InvalidJob

Ints = npt.NDArray[np.int64]
_FAR = -(2**62)


class WindowAssigner(ABC):
    """Windows of a kind, and what can be done with them."""

    bounded = True  # a window has a start and an end, and rows a time
    merges = False  # rows make the windows, and two of them may become one: nothing below `KnownWindows` is known
    shares_slices = False  # each window is a number of slices, which other windows have, too (see `sliding`)
    is_over_when = "the watermark has passed its end"
    not_whole = ""  # why no step can hold the rows of a window, for people; "": one can

    @abstractmethod
    def __str__(self) -> str:
        """The definition, for people and for snapshots: the same windows are always written alike."""

    @property
    def definition(self) -> str:
        """Stored with the state of windows and compared with at a restore."""
        return str(self)

    @property
    def grid(self) -> tuple[int, int] | None:
        """(size, offset) in milliseconds of windows of one length that touch and never overlap; None of others."""
        return None

    @property
    def not_joined(self) -> str:
        """Why rows of two streams have no window in common, for people; "": they may have."""
        return ""

    @property
    def own_trigger(self) -> WindowTrigger | None:
        """When a window of this kind emits results, where users cannot choose that."""
        return None

    def refuses(self, trigger: WindowTrigger) -> str:
        """Why windows of this kind cannot have this trigger, for people; "": they can."""
        return ""

    @abstractmethod
    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        """Whether windows of these times begin and end within 64 bits, and are over before the end of time."""

    def covers(self, size_ms: int, offset_ms: int) -> bool:
        """Whether each tumbling window of this size and offset lies in whatever windows its times are in."""
        return False


class KnownWindows(WindowAssigner):
    """Windows that begin and end at known times: a window is told by its start."""

    @property
    def per_row(self) -> int:
        """Windows that a row belongs to, at most."""
        return 1

    @property
    @abstractmethod
    def longest_ms(self) -> int:
        """No window is longer."""

    @abstractmethod
    def first_start(self, time_ms: int) -> int:
        """Start of the first window that a time belongs to."""

    @abstractmethod
    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        """(row of each assignment, start of its window): a row has one assignment per window that it belongs to. None
        in place of the rows: each row belongs to exactly one window, in their order."""

    @abstractmethod
    def ends(self, starts_ms: Ints) -> Ints:
        """End of each window, which is the first time behind it."""

    @abstractmethod
    def last_ms(self, start_ms: int) -> int:
        """Last millisecond of the window: it is over once the watermark reaches it."""

    @abstractmethod
    def first_open_start(self, watermark_ms: int) -> int:
        """Smallest start that is not over at `watermark_ms`; rows of earlier windows are late."""

    @abstractmethod
    def first_open_starts(self, watermarks_ms: Ints) -> Ints:
        """`first_open_start` at each watermark."""

    @abstractmethod
    def over_by(self, watermarks_ms: Ints) -> Ints:
        """A number that is greater at one watermark than at another if windows are over by the first one alone."""


class FixedWindows(KnownWindows):
    """Windows of one length."""

    @property
    @abstractmethod
    def size_ms(self) -> int:
        """Of each window: it is [start, start + size_ms)."""

    @property
    def longest_ms(self) -> int:
        return self.size_ms

    @property
    def step_ms(self) -> int:
        """From the end of a window to that of the next one."""
        return self.size_ms

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        return lowest_ms >= WATERMARK_MIN + self.size_ms and highest_ms <= WATERMARK_MAX - self.size_ms

    def covers(self, size_ms: int, offset_ms: int) -> bool:
        return self.step_ms % size_ms == 0 and (self.first_start(0) - offset_ms) % size_ms == 0

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


def lateness_definition(window: WindowAssigner, lateness_ms: int) -> str:
    """`definition` of windows that are kept for late rows. With a longer lateness rows would come for windows that were
    removed already, and begin them anew."""
    lateness = f", allowed lateness {datetime.timedelta(milliseconds=lateness_ms)}" if lateness_ms else ""
    return window.definition + lateness


def _size_ms(size: datetime.timedelta, what: str) -> int:
    size_ms = milliseconds(size, what)
    if size_ms == 0:
        raise InvalidJob(f"{what} is 0: use at least one millisecond")
    return size_ms


def _offset(offset: datetime.timedelta, step: datetime.timedelta, kind: str, of: str) -> datetime.timedelta:
    """Returns the offset from 0 up to `step` that gives the same windows as `offset`, which may be negative."""
    what = f"the offset of a {kind} window"
    milliseconds(abs(offset) if isinstance(offset, datetime.timedelta) else offset, what)
    if abs(offset) >= step:
        raise InvalidJob(
            f"{what} is {offset / datetime.timedelta(seconds=1):g} s: use less than its {of} {step}, forward or back"
        )
    return offset % step


@dataclass(frozen=True)
class Tumbling(FixedWindows):
    """Windows of equal `size` that touch and never overlap: [start, start + size). Starts are `offset` + n * `size`.
    `offset` may be negative: days of UTC+8 are `Tumbling(timedelta(days=1), offset=timedelta(hours=-8))`.

    >>> Tumbling(datetime.timedelta(hours=1)).starts(np.array([0, 3_599_999, 3_600_000])).tolist()
    [0, 0, 3600000]
    """

    size: datetime.timedelta
    offset: datetime.timedelta = datetime.timedelta()

    def __post_init__(self) -> None:
        _size_ms(self.size, "the size of a Tumbling window")
        object.__setattr__(self, "offset", _offset(self.offset, self.size, "Tumbling", "size"))

    @cached_property
    def size_ms(self) -> int:
        """`size` in milliseconds."""
        return self.size // datetime.timedelta(milliseconds=1)

    @cached_property
    def offset_ms(self) -> int:
        """`offset` in milliseconds."""
        return self.offset // datetime.timedelta(milliseconds=1)

    @property
    def grid(self) -> tuple[int, int]:
        return self.size_ms, self.offset_ms

    def starts(self, times_ms: Ints) -> Ints:
        """Start of the window of each time."""
        return times_ms - np.mod(times_ms - self.offset_ms, self.size_ms)

    def first_start(self, time_ms: int) -> int:
        return time_ms - (time_ms - self.offset_ms) % self.size_ms

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        return None, self.starts(times_ms)

    def __str__(self) -> str:
        return f"tumbling {self.size}" + (f" + {self.offset}" if self.offset else "")


@dataclass(frozen=True)
class Sliding(FixedWindows):
    """Windows of equal `size` that begin every `slide`, at `offset` + n * `slide`. They overlap when `slide` is less
    than `size`: a row is in each of the size / slide windows around it. `size` is a multiple of `slide`; `offset` may
    be negative.

    >>> rows, starts = Sliding(datetime.timedelta(hours=2), datetime.timedelta(hours=1)).assign(np.array([3_600_000]))
    >>> rows.tolist(), starts.tolist()
    ([0, 0], [0, 3600000])
    """

    size: datetime.timedelta
    slide: datetime.timedelta
    offset: datetime.timedelta = datetime.timedelta()
    shares_slices = True

    def __post_init__(self) -> None:
        size_ms = _size_ms(self.size, "the size of a Sliding window")
        slide_ms = _size_ms(self.slide, "the slide of a Sliding window")
        if size_ms % slide_ms:
            raise InvalidJob(f"the size {self.size} of a Sliding window must be a multiple of its slide {self.slide}")
        object.__setattr__(self, "offset", _offset(self.offset, self.slide, "Sliding", "slide"))

    @cached_property
    def size_ms(self) -> int:
        """`size` in milliseconds."""
        return self.size // datetime.timedelta(milliseconds=1)

    @cached_property
    def slide_ms(self) -> int:
        """`slide` in milliseconds."""
        return self.slide // datetime.timedelta(milliseconds=1)

    @cached_property
    def offset_ms(self) -> int:
        """`offset` in milliseconds."""
        return self.offset // datetime.timedelta(milliseconds=1)

    @property
    def step_ms(self) -> int:
        return self.slide_ms

    @cached_property
    def _back_ms(self) -> Ints:
        """From the last window that a time belongs to back to each of them, first window first."""
        return np.arange(self.size_ms - self.slide_ms, -1, -self.slide_ms, dtype=np.int64)

    @property
    def per_row(self) -> int:
        return self.size_ms // self.slide_ms

    def first_start(self, time_ms: int) -> int:
        return time_ms - (time_ms - self.offset_ms) % self.slide_ms - (self.size_ms - self.slide_ms)

    def slices(self, times_ms: Ints) -> Ints:
        """Start of the slice of each time: of the last window that it belongs to."""
        return times_ms - np.mod(times_ms - self.offset_ms, self.slide_ms)

    def first_from(self, time_ms: int) -> int:
        """The first start of a window that is not before that."""
        return time_ms + (self.offset_ms - time_ms) % self.slide_ms

    def assign(self, times_ms: Ints) -> tuple[Ints | None, Ints]:
        last = self.slices(times_ms)
        if self.per_row == 1:
            return None, last
        return np.arange(len(times_ms), dtype=np.int64).repeat(self.per_row), (last[:, None] - self._back_ms).ravel()

    def __str__(self) -> str:
        return f"sliding {self.size} every {self.slide}" + (f" + {self.offset}" if self.offset else "")


@dataclass(frozen=True)
class Global(FixedWindows):
    """One window for all rows of a key, which is over when the input ends. It needs no event time.

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


@dataclass(frozen=True)
class Count(Global):
    """Each `rows` rows of a key, in the order in which they come: a window is over with its last row, and the next row
    begins another. With `slide` one is over every `slide` rows, and has the last `rows` ones: a row is in rows / slide
    windows, and the first windows of a key have fewer rows. It needs no event time. What is not full when the input
    ends is dropped, as in Flink. `rows` is a multiple of `slide`.

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
        """Windows that follow each other are a *phase*, told by 0, -1, -2, …: each row is in one window of each phase,
        and phase -n is over n * `slide` rows before phase 0."""
        phases = self.per_row
        if phases == 1:
            return super().assign(times_ms)
        count = len(times_ms)
        return np.arange(count, dtype=np.int64).repeat(phases), np.tile(-np.arange(phases, dtype=np.int64), count)

    def __str__(self) -> str:
        return f"count {self.rows}" + ("" if self.slide is None else f" every {self.slide}")


@dataclass(frozen=True)
class Session(WindowAssigner):
    """Rows of a key of which each follows the one before within `gap`, by event time: a session goes from its first
    row to `gap` after its last one. As in Flink two of them are one when they touch: a row exactly `gap` after the last
    one belongs to the session. Rows may come in any order; one that lies between two sessions joins them.

    >>> Session(datetime.timedelta(minutes=30)).definition
    'session 0:30:00'
    """

    gap: datetime.timedelta
    merges = True
    not_whole = "sessions: take aggregate(), as with collect_list(), or another window"

    def __post_init__(self) -> None:
        _size_ms(self.gap, "the gap of a Session window")

    @cached_property
    def gap_ms(self) -> int:
        """`gap` in milliseconds."""
        return self.gap // datetime.timedelta(milliseconds=1)

    @property
    def not_joined(self) -> str:
        return "a session is made of the rows of one stream, so two streams have no sessions in common"

    def __str__(self) -> str:
        return f"session {self.gap}"

    def refuses(self, trigger: WindowTrigger) -> str:
        return trigger.not_of_sessions

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        return lowest_ms >= WATERMARK_MIN + self.gap_ms and highest_ms <= WATERMARK_MAX - self.gap_ms
