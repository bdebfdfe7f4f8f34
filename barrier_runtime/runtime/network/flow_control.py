"""How many bytes may be in flight on one channel: sent and not yet taken by the subtask that reads. Pure.

The window follows throughput (FLIP-183, buffer debloating): while its reader cannot keep up, it holds what the reader
takes in `DRAIN_S`, so that a barrier is never far behind; a reader that keeps up gets the largest window, which costs
nothing, since its queue is empty. It begins in between, so that a slow reader does not find more than it takes in a
minute.

A *chunk* is the part of a batch that is processed at once: about `CHUNK_NS` of work, so that a slow operator does not
hold up barriers, sockets and timers of its slot for as long as a large batch takes it. What the slot's thread waited
for a processor is not work: smaller pieces would make that no shorter, and cost more each.
"""

from collections.abc import Callable

MAX_WINDOW_BYTES = 4 * 1024 * 1024
MIN_WINDOW_BYTES = 32 * 1024
DRAIN_S = 0.5
CHUNK_NS = 20_000_000
_LONG_NS = CHUNK_NS // 10
MIN_CHUNK_BYTES = 1024
_FIRST_BYTES = 256 * 1024
_FIRST_CHUNK_BYTES = 16 * 1024  # behind a restore caches are cold and much is due: the first rows are to be out soon
_GROWTH = 4


class Window:
    """`most`: its upper bound, bytes."""

    __slots__ = ("_least", "_most", "_taken", "bytes")

    def __init__(self, most: int = MAX_WINDOW_BYTES) -> None:
        self._most = most
        self._least = min(MIN_WINDOW_BYTES, most)
        self._taken = 0
        self.bytes = min(_FIRST_BYTES, most)

    def adapt(self, taken: int, waiting: bool, elapsed_s: float) -> None:
        """`taken`: bytes since the beginning; `waiting`: something is queued. `elapsed_s`: since the last time. One
        measure changes the window by no more than a factor of two."""
        per_s = (taken - self._taken) / max(elapsed_s, 1e-3)
        self._taken = taken
        wanted = int(per_s * DRAIN_S) if waiting else self._most
        wanted = max(self.bytes // 2, min(self.bytes * 2, wanted))
        self.bytes = max(self._least, min(self._most, wanted))

    def forget(self, taken: int) -> None:
        """What was taken since the last time says nothing."""
        self._taken = taken


class Chunk:
    """Bytes of a batch that are processed at once, by measuring: it shrinks at once and grows step by step."""

    __slots__ = ("_is_long", "_last", "_starved_ns", "bytes")

    def __init__(self) -> None:
        self.bytes = _FIRST_CHUNK_BYTES
        self._is_long = False  # the last batch was: only then it is worth asking for how long the thread was starved
        self._starved_ns = 0
        self._last = 0

    def begin(self, starved_ns: Callable[[], int]) -> None:
        """The next element is to be taken. `starved_ns`: how long the thread has waited for a processor."""
        if self._is_long:
            self._starved_ns = starved_ns()

    def taken(self, size: int) -> None:
        """A batch of `size` bytes, 0: something else, is being processed."""
        self._last = size

    def taken_along(self, size: int) -> None:
        """… together with `size` bytes more."""
        self._last += size

    @property
    def left(self) -> int:
        """Bytes that may come along with what is being processed."""
        return self.bytes - self._last

    def worked(self, took_ns: int, starved_ns: Callable[[], int]) -> None:
        """… and took so long."""
        if self._is_long:
            took_ns -= starved_ns() - self._starved_ns
        self._is_long = took_ns >= _LONG_NS
        if self._last and (took_ns > CHUNK_NS or self._last * _GROWTH > self.bytes):
            wanted = self._last * CHUNK_NS // max(took_ns, 1)
            self.bytes = max(MIN_CHUNK_BYTES, min(wanted, self.bytes * _GROWTH))
