"""Threads that fetch parts of files ahead for a subtask of a source, bounded by bytes.

The loop reserves bytes for a part, submits the request, and is woken when the part has arrived. Bytes stay reserved
until the reader releases them after use. A needed part may exceed the bound if no other request is running, so that
parts larger than the bound are read as well. After the first refusal of a needed part, all reservations fail until the
next pass over the splits, which begins with the split that is furthest behind: later splits cannot take the bytes that
the refused part needs.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")
THREADS = 32
MOST_BYTES = 64 << 20


class PartFetcher:
    """Fetches parts in threads. Thread-safe. A thread calls `wake` after each answer."""

    def __init__(self, wake: Callable[[], None], most_bytes: int | None = None) -> None:
        self._wake = wake
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._lock = threading.RLock()  # reentrant: the garbage collector may close an abandoned file at any line
        self._pool: ThreadPoolExecutor | None = None
        self._parts = 0  # requested, not answered
        self._refused = False  # a needed part was refused in this pass
        self._closed = False
        self.held_bytes = 0  # requested, or held by readers
        self.came = False  # since the begin of the pass: an answer arrived, or bytes were released after a refusal

    def begin_pass(self) -> None:
        """Begins a pass over the readers, which starts with the reader that is furthest behind."""
        self.came = self._refused = False

    def reserve(self, size: int, *, needed: bool) -> bool:
        """Reserves `size` bytes. Returns False if the bound does not allow them.

        `needed`: the reader waits for these bytes and retries a refused reservation in the next pass.
        """
        with self._lock:
            allowed = self.held_bytes + size <= self._most_bytes or (needed and not self._parts)
            if self._closed or self._refused or not allowed:
                self._refused |= needed
                return False
            self.held_bytes += size
            return True

    def take(self, size: int) -> None:
        """Reserves bytes that are read regardless of the bound."""
        with self._lock:
            self.held_bytes += size

    def release(self, size: int) -> None:
        with self._lock:
            self.held_bytes -= size
            self.came |= self._refused

    @property
    def has_room(self) -> bool:
        return self.held_bytes < self._most_bytes

    def fetch(self, read: Callable[[int, int], _T], start: int, size: int) -> "Future[_T]":
        """Submits the request of a part whose bytes are reserved."""
        with self._lock:
            self._parts += 1

        def part() -> _T:
            try:
                return read(start, size)
            finally:
                with self._lock:
                    self._parts -= 1

        future = self.submit(part)
        future.add_done_callback(self._count_cancelled)
        return future

    def submit(self, work: Callable[[], _T]) -> "Future[_T]":
        """Runs `work` in a thread and then wakes the subtask."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch-ahead")
            future = self._pool.submit(work)
        future.add_done_callback(self._tell)
        return future

    def close(self) -> None:
        """Ends without waiting for running requests, and wakes no subtask any more."""
        with self._lock:
            self._closed = True
            self._wake = _wakes_nobody  # a thread may finish after the slot has gone
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
