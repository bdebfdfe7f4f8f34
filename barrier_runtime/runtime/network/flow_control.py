"""Limits of the bytes in flight on a channel, and processed at once. Pure.

The *window* of a channel follows throughput (FLIP-183, buffer debloating): while the reader cannot keep up, the window
holds the bytes taken in `DRAIN_S`. A *chunk*, processed at once, is about `CHUNK_NS` of work. Design:
docs/design/scheduling-of-a-slot.md.
"""

from collections.abc import Callable

MAX_WINDOW_BYTES = 4 * 1024 * 1024
MIN_WINDOW_BYTES = 32 * 1024
DRAIN_S = 0.5
CHUNK_NS = 20_000_000
_LONG_NS = CHUNK_NS // 10
MIN_CHUNK_BYTES = 1024
_FIRST_BYTES = 256 * 1024
_FIRST_ROWS = 128
_ROW_BYTES = MIN_CHUNK_BYTES  # bytes that a source's row counts for: the smallest batch has one row
# Caches are cold after a restore, but the first rows must leave soon.
_FIRST_CHUNK_BYTES = 16 * 1024
_GROWTH = 4
_LEAST_IN_A_ROW = 16  # long chunks of the smallest size; then a larger chunk shows whether size matters


class Window:
    __slots__ = ("_least", "_most", "_taken", "bytes")

    def __init__(self, most: int = MAX_WINDOW_BYTES) -> None:
        self._most = most
        self._least = min(MIN_WINDOW_BYTES, most)
        self._taken = 0
        self.bytes = min(_FIRST_BYTES, most)

    def adapt(self, taken: int, waiting: bool, elapsed_s: float) -> None:
        """`taken`: bytes since the beginning; `waiting`: rows are queued; `elapsed_s`: since the last call."""
        per_s = (taken - self._taken) / max(elapsed_s, 1e-3)
        self._taken = taken
        wanted = int(per_s * DRAIN_S) if waiting else self._most
        wanted = max(self.bytes // 2, min(self.bytes * 2, wanted))
        self.bytes = max(self._least, min(self._most, wanted))

    def forget(self, taken: int) -> None:
        self._taken = taken


class Chunk:
    """Size adjusted by measurement: shrinks at once, grows by steps."""

    __slots__ = ("_is_long", "_last", "_least", "_long", "_starved_ns", "bytes")

    def __init__(self, first: int = _FIRST_CHUNK_BYTES) -> None:
        self.bytes = first
        self._is_long = False  # the last batch was long; only then is reading the starved time worth its cost
        self._starved_ns = 0
        self._last = 0
        self._long: tuple[int, int] | None = None  # size and duration of an earlier batch, if all since took too long
        self._least = 0

    def begin(self, starved_ns: Callable[[], int]) -> None:
        if self._is_long:
            self._starved_ns = starved_ns()

    def taken(self, size: int) -> None:
        self._last = size

    def taken_along(self, size: int) -> None:
        self._last += size

    @property
    def left(self) -> int:
        return self.bytes - self._last

    def worked(self, took_ns: int, starved_ns: Callable[[], int]) -> None:
        if self._is_long:
            took_ns -= starved_ns() - self._starved_ns
        self._is_long = took_ns >= _LONG_NS
        if self._last and (took_ns > CHUNK_NS or self._last * _GROWTH > self.bytes):
            wanted = self._last * CHUNK_NS // max(took_ns, 1)
            if took_ns > CHUNK_NS:
                wanted = self._without_fixed_cost(took_ns, wanted)
            else:
                self._long = None
            # Grows from the batch: small batches do not show what a batch of the limit's size takes.
            self.bytes = max(MIN_CHUNK_BYTES, min(wanted, max(self.bytes, self._last * _GROWTH)))

    def _without_fixed_cost(self, took_ns: int, wanted: int) -> int:
        """Bytes that take `CHUNK_NS` beyond the fixed cost; `wanted` until two sizes are measured."""
        size, duration_ns = self._long or (self._last, took_ns)
        more = self._last - size
        if abs(more) * _GROWTH >= max(self._last, size):  # else the difference would be chance
            self._long = self._last, took_ns
            cost_ns = (took_ns - duration_ns) // more  # per byte
            return CHUNK_NS // cost_ns if cost_ns > 0 else self.bytes * _GROWTH
        self._long = size, duration_ns
        self._least += wanted < MIN_CHUNK_BYTES
        if self._least < _LEAST_IN_A_ROW:
            return wanted
        self._least = 0
        return self.bytes * 2


class SourceChunk(Chunk):
    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_FIRST_ROWS * _ROW_BYTES)

    def rows(self, starved_ns: Callable[[], int]) -> int:
        self.begin(starved_ns)
        return self.bytes // _ROW_BYTES

    def worked_rows(self, rows: int, took_ns: int, starved_ns: Callable[[], int]) -> None:
        self.taken(rows * _ROW_BYTES)
        self.worked(took_ns, starved_ns)
