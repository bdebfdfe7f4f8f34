"""Limits of the bytes in flight on a channel, and of the bytes processed at once. Pure.

Bytes in flight are sent and not yet taken by the reading subtask. The limit, the *window*, follows throughput
(FLIP-183, buffer debloating). While the reader cannot keep up, the window holds the bytes taken in `DRAIN_S`, so that a
barrier is never far behind. A reader that keeps up gets the largest window, which costs nothing while the queue is
empty. The first window lies in between, so that a slow reader does not start with more bytes than a minute's work.

A *chunk* is the part of a batch that is processed at once: about `CHUNK_NS` of work, so that a slow operator does not
hold up barriers, sockets and timers for the duration of a large batch. Time for which the slot's thread waited for a
processor is not work: smaller chunks would not shorten that time, and each chunk has a cost.
"""

from collections.abc import Callable

MAX_WINDOW_BYTES = 4 * 1024 * 1024
MIN_WINDOW_BYTES = 32 * 1024
DRAIN_S = 0.5
CHUNK_NS = 20_000_000
_LONG_NS = CHUNK_NS // 10
MIN_CHUNK_BYTES = 1024
_FIRST_BYTES = 256 * 1024
# Caches are cold after a restore and much work is due, but the first rows must leave soon.
_FIRST_CHUNK_BYTES = 16 * 1024
_GROWTH = 4


class Window:
    """Bytes that may be in flight on a channel; `most` is the upper bound."""

    __slots__ = ("_least", "_most", "_taken", "bytes")

    def __init__(self, most: int = MAX_WINDOW_BYTES) -> None:
        self._most = most
        self._least = min(MIN_WINDOW_BYTES, most)
        self._taken = 0
        self.bytes = min(_FIRST_BYTES, most)

    def adapt(self, taken: int, waiting: bool, elapsed_s: float) -> None:
        """Adapts the window, by a factor of two at most.

        `taken`: bytes since the beginning; `waiting`: the queue is not empty; `elapsed_s`: since the last call.
        """
        per_s = (taken - self._taken) / max(elapsed_s, 1e-3)
        self._taken = taken
        wanted = int(per_s * DRAIN_S) if waiting else self._most
        wanted = max(self.bytes // 2, min(self.bytes * 2, wanted))
        self.bytes = max(self._least, min(self._most, wanted))

    def forget(self, taken: int) -> None:
        self._taken = taken


class Chunk:
    """Bytes of a batch that are processed at once, by measurement: shrinks at once, grows by steps."""

    __slots__ = ("_is_long", "_last", "_starved_ns", "bytes")

    def __init__(self) -> None:
        self.bytes = _FIRST_CHUNK_BYTES
        self._is_long = False  # the last batch took long: only then is reading the starved time worth its cost
        self._starved_ns = 0
        self._last = 0

    def begin(self, starved_ns: Callable[[], int]) -> None:
        """Starts a measurement. `starved_ns` returns how long the thread has waited for a processor."""
        if self._is_long:
            self._starved_ns = starved_ns()

    def taken(self, size: int) -> None:
        """Notes the element being processed: a batch of `size` bytes, or 0 for any other element."""
        self._last = size

    def taken_along(self, size: int) -> None:
        self._last += size

    @property
    def left(self) -> int:
        """Bytes that may be processed together with the current batch."""
        return self.bytes - self._last

    def worked(self, took_ns: int, starved_ns: Callable[[], int]) -> None:
        """Ends the measurement: the element took `took_ns`."""
        if self._is_long:
            took_ns -= starved_ns() - self._starved_ns
        self._is_long = took_ns >= _LONG_NS
        if self._last and (took_ns > CHUNK_NS or self._last * _GROWTH > self.bytes):
            wanted = self._last * CHUNK_NS // max(took_ns, 1)
            self.bytes = max(MIN_CHUNK_BYTES, min(wanted, self.bytes * _GROWTH))
