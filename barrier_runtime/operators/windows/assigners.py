"""Which window a row belongs to, and when that window is over. Pure arithmetic on milliseconds since the epoch."""

import datetime
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from barrier_runtime.data.elements import WATERMARK_MAX, WATERMARK_MIN
from barrier_runtime.data.schemas import milliseconds
from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True)
class Tumbling:
    """Windows of equal `size` that touch and never overlap: [start, start + size). Starts are `offset` + n * `size`.

    >>> Tumbling(datetime.timedelta(hours=1)).starts(np.array([0, 3_599_999, 3_600_000])).tolist()
    [0, 0, 3600000]
    """

    size: datetime.timedelta
    offset: datetime.timedelta = datetime.timedelta()

    def __post_init__(self) -> None:
        if milliseconds(self.size, "the size of a Tumbling window") == 0:
            raise InvalidJob("the size of a Tumbling window is 0: use at least one millisecond")
        if milliseconds(self.offset, "the offset of a Tumbling window") >= self.size_ms:
            raise InvalidJob(f"the offset {self.offset} of a Tumbling window must be less than its size {self.size}")

    @cached_property
    def size_ms(self) -> int:
        return self.size // datetime.timedelta(milliseconds=1)

    @cached_property
    def offset_ms(self) -> int:
        return self.offset // datetime.timedelta(milliseconds=1)

    def starts(self, times_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Start of the window of each time."""
        return times_ms - np.mod(times_ms - self.offset_ms, self.size_ms)

    def start(self, time_ms: int) -> int:
        """Start of the window of one time."""
        return time_ms - (time_ms - self.offset_ms) % self.size_ms

    def holds(self, lowest_ms: int, highest_ms: int) -> bool:
        """Whether windows of these times begin and end within 64 bits, and are over before the end of time."""
        return lowest_ms >= WATERMARK_MIN + self.size_ms and highest_ms <= WATERMARK_MAX - self.size_ms

    def last_ms(self, start_ms: int) -> int:
        """Last millisecond of the window: it is over once the watermark reaches it."""
        return start_ms + self.size_ms - 1

    def first_open_start(self, watermark_ms: int) -> int:
        """Smallest start that is not over at `watermark_ms`; rows of earlier windows are late."""
        return watermark_ms - self.size_ms + 2  # start + size - 1 > watermark, in whole milliseconds

    def first_open_starts(self, watermarks_ms: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return np.maximum(watermarks_ms, WATERMARK_MIN + self.size_ms) - self.size_ms + 2

    @property
    def definition(self) -> str:
        """Stored with the state of windows and compared with at a restore: the same window is always written alike."""
        return str(self)

    def __str__(self) -> str:
        return f"tumbling {self.size}" + (f" + {self.offset}" if self.offset else "")
