"""Threads that fetch parts of files for one subtask of a source, ahead of their use and bounded by bytes.

The loop reserves bytes for a part, submits its request, and is woken when the part has come. Bytes are reserved until
the reader has used them and releases them. A part that somebody waits for may exceed the bound if no other part is on
its way, so that a part larger than the bound is read as well. The first refusal of such a part ends reservations until
the next pass over the splits, which begins with the split that is furthest behind: those after it cannot take what it
needs.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")
THREADS = 32
MOST_BYTES = 64 << 20


class PartFetcher:
    """Thread-safe. `wake` is called by a thread when a request is answered."""

    def __init__(self, wake: Callable[[], None], most_bytes: int | None = None) -> None:
        self._wake = wake
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._lock = threading.RLock()  # the collector may close a file that was left open, in any line
        self._pool: ThreadPoolExecutor | None = None
        self._parts = 0  # on their way
        self._refused = False  # a part that somebody waits for, in this pass
        self._closed = False
        self.held_bytes = 0  # on their way, or kept by readers
        self.came = False  # since the last pass began, an answer has come, or bytes that somebody lacks were released

    def begin_pass(self) -> None:
        """The readers are asked from here on, the one that is furthest behind first."""
        self.came = self._refused = False

    def reserve(self, size: int, *, needed: bool) -> bool:
        """`needed`: the reader waits for these bytes, and asks again in the next pass if they are refused."""
        with self._lock:
            allowed = self.held_bytes + size <= self._most_bytes or (needed and not self._parts)
            if self._closed or self._refused or not allowed:
                self._refused |= needed
                return False
            self.held_bytes += size
            return True

    def take(self, size: int) -> None:
        """As `reserve`, of bytes that are read anyhow."""
        with self._lock:
            self.held_bytes += size

    def release(self, size: int) -> None:
        with self._lock:
            self.held_bytes -= size
            self.came |= self._refused

    @property
    def has_room(self) -> bool:
        return self.held_bytes < self._most_bytes

    def fetch(self, read: Callable[[int, int], bytes], start: int, size: int) -> "Future[bytes]":
        """Submits the request of a part whose bytes are reserved."""
        with self._lock:
            self._parts += 1

        def part() -> bytes:
            try:
                return read(start, size)
            finally:
                with self._lock:
                    self._parts -= 1

        future = self.submit(part)
        future.add_done_callback(self._count_cancelled)
        return future

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Does `work` in a thread, and wakes the subtask then."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch-ahead")
            future = self._pool.submit(work)
        future.add_done_callback(self._tell)
        return future

    def close(self) -> None:
        """Requests that are under way end by themselves; nobody is woken."""
        with self._lock:
            self._closed = True
            self._wake = _wakes_nobody  # the slot may be gone when a thread is done
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _count_cancelled(self, future: "Future[Any]") -> None:
        if future.cancelled():
            with self._lock:
                self._parts -= 1

    def _tell(self, _: "Future[Any]") -> None:
        self.came = True
        self._wake()


def _wakes_nobody() -> None:
    pass
