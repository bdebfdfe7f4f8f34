"""How many bytes may be in flight on one channel: sent and not yet taken by the subtask that reads. Pure.

The window follows throughput (FLIP-183, buffer debloating): while its reader cannot keep up, it holds what the reader
takes in `DRAIN_S`, so that a barrier is never far behind; a reader that keeps up gets the largest window, which costs
nothing, since its queue is empty. It begins in between, so that a slow reader does not find more than it takes in a
minute. While the window is small, large batches are taken in pieces: the loop waits for no longer than one of them.
"""

MAX_WINDOW_BYTES = 4 * 1024 * 1024
MIN_WINDOW_BYTES = 32 * 1024
DRAIN_S = 0.5
_FIRST_BYTES = 256 * 1024
_PIECES = 16  # a window that is not the largest holds at least so many
_WHOLE = 1 << 62  # bytes: batches are not cut


class Window:
    """`most`: its upper bound, bytes."""

    __slots__ = ("_least", "_most", "_taken", "bytes", "piece")

    def __init__(self, most: int = MAX_WINDOW_BYTES) -> None:
        self._most = most
        self._least = min(MIN_WINDOW_BYTES, most)
        self._taken = 0
        self._set(min(_FIRST_BYTES, most))

    def adapt(self, taken: int, waiting: bool, elapsed_s: float) -> None:
        """`taken`: bytes since the beginning; `waiting`: something is queued. `elapsed_s`: since the last time. One
        measure changes the window by no more than a factor of two."""
        per_s = (taken - self._taken) / max(elapsed_s, 1e-3)
        self._taken = taken
        wanted = int(per_s * DRAIN_S) if waiting else self._most
        wanted = max(self.bytes // 2, min(self.bytes * 2, wanted))
        self._set(max(self._least, min(self._most, wanted)))

    def forget(self, taken: int) -> None:
        """What was taken since the last time says nothing."""
        self._taken = taken

    def _set(self, bytes: int) -> None:
        self.bytes = bytes
        self.piece = bytes // _PIECES if bytes < self._most else _WHOLE  # bytes of a batch that are taken at once
