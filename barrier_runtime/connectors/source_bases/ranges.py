"""Files read by ranges, which threads fetch ahead within a bound of bytes.

Reads wait for missing bytes, so readers on the loop call `there` first.
"""

import io
import threading
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
THREADS = 32
_DECODERS = 2
MOST_BYTES = 64 << 20


class PartFetcher:
    """Fetches and decodes parts of files ahead, and calls `wake` after each answer. Thread-safe.

    The loop reserves bytes, submits the request, and releases the bytes after use. A needed part may exceed the bound
    if no other request is running. After the refusal of a needed part all reservations fail until the next pass over
    the splits, so that later splits cannot take these bytes.
    """

    def __init__(self, wake: Callable[[], None], most_bytes: int | None = None) -> None:
        self._wake = wake
        self._most_bytes = MOST_BYTES if most_bytes is None else most_bytes
        self._lock = threading.RLock()  # reentrant: the garbage collector may close an abandoned file at any line
        self._pool: ThreadPoolExecutor | None = None
        self._decoders: ThreadPoolExecutor | None = None
        self._parts = 0  # unanswered
        self._refused = False  # a needed part, in this pass
        self._closed = False
        self.held_bytes = 0  # requested, or held by readers
        self.came = False  # in this pass an answer arrived, or bytes were released after a refusal

    def begin_pass(self) -> None:
        self.came = self._refused = False

    def reserve(self, size: int, *, needed: bool) -> bool:
        """Returns False if the bound forbids `size` bytes.

        `needed`: the reader waits for these bytes, and tries again in the next pass.
        """
        with self._lock:
            allowed = self.held_bytes + size <= self._most_bytes or (needed and not self._parts)
            if self._closed or self._refused or not allowed:
                self._refused |= needed
                return False
            self.held_bytes += size
            return True

    def take(self, size: int) -> None:
        """Reserves bytes regardless of the bound."""
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
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="fetch-ahead")
            future = self._pool.submit(work)
        future.add_done_callback(self._tell)
        return future

    def decode(self, work: Callable[[], _T]) -> "Future[_T]":
        """Runs `work`, which needs a processor. Wakes nobody."""
        with self._lock:
            if self._decoders is None:
                self._decoders = ThreadPoolExecutor(_DECODERS, thread_name_prefix="decode-ahead")
            return self._decoders.submit(work)

    def close(self) -> None:
        """Ends without waiting for running requests."""
        with self._lock:
            self._closed = True
            self._wake = _wakes_nobody  # a thread may finish after the slot has gone
            pools = self._pool, self._decoders
            self._pool = self._decoders = None
        for pool in pools:
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


BLOCK_BYTES = 1 << 20
FIRST_BYTES = 320 << 10  # of the first request; smaller files are fetched whole
AHEAD_BYTES = 8 << 20  # beyond the needed bytes


class NotThere(Exception):
    """Bytes that have not arrived; retry when the subtask is woken."""


@dataclass(slots=True, eq=False)
class _Part:
    start: int
    end: int
    data: "Future[bytes | memoryview]"

    def __lt__(self, other: "_Part") -> bool:
        return self.start < other.start


class RangesFile(io.RawIOBase):
    """File over `read(offset, length)`, which returns all these bytes or raises. For one thread at a time."""

    def __init__(
        self, read: Callable[[int, int], bytes | memoryview], size: int, fetcher: PartFetcher | None = None
    ) -> None:
        self._read = read
        self._size = size
        self._fetcher = fetcher
        self._parts: list[_Part] = []  # ordered, without overlaps
        self._at = 0

    def there(self, offset: int, length: int) -> bool:
        """Returns whether these bytes can be read without waiting; requests missing and further bytes.

        Raises errors of the requests.
        """
        if self._fetcher is None:
            return True
        end = min(offset + length, self._size)
        whole = min(_block_end(end), self._size)
        if not self.request([(offset, whole)], needed=False) and not self.request([(offset, end)], needed=True):
            return False
        behind = min(whole + AHEAD_BYTES, self._size)
        while whole < behind and self.request([(whole, min(whole + BLOCK_BYTES, self._size))], needed=False):
            whole += BLOCK_BYTES
        return self.have([(offset, end)])

    def request(self, ranges: Sequence[tuple[int, int]], *, needed: bool, most: int = BLOCK_BYTES) -> bool:
        """Requests the missing bytes of the ranges (start, end). Returns False if the fetcher refuses."""
        fetcher = self._fetcher
        if fetcher is None:
            return True
        gaps = [gap for start, end in ranges for gap in self._gaps(start, end)]
        size = sum(end - start for start, end in gaps)
        if size and not fetcher.reserve(size, needed=needed):
            return False
        for start, end in gaps:
            for at in range(start, end, most):
                to = min(at + most, end)
                insort(self._parts, _Part(at, to, fetcher.fetch(self._read, at, to - at)))
        return True

    def have(self, ranges: Sequence[tuple[int, int]]) -> bool:
        """Raises errors of the requests."""
        parts = [part for start, end in ranges for part in self._within(start, end)]
        for part in parts:
            if part.data.done():
                part.data.result()
        return all(part.data.done() for part in parts)

    def forget(self, start: int, end: int) -> None:
        gone = [part for part in self._parts if part.start >= start and part.end <= end]
        if gone:
            self._parts = [part for part in self._parts if part.start < start or part.end > end]
            self._release(gone)

    def keep(self, ranges: Iterable[tuple[int, int]]) -> None:
        wanted = list(ranges)
        kept = [part for part in self._parts if any(part.start < end and part.end > start for start, end in wanted)]
        gone, self._parts = [part for part in self._parts if part not in kept], kept
        self._release(gone)

    def has_read(self, offset: int) -> None:
        """Drops the bytes before `offset`; the next read may be long after."""
        if self._fetcher is None:
            return
        self.forget(0, offset)
        if not self._parts:
            return
        if not self._fetcher.has_room:
            came = [part for part in self._parts if part.data.done()]
            self._parts = [part for part in self._parts if part not in came]
            self._release(came)
            return
        part = self._parts[0]
        if part.data.done() and offset - part.start > part.end - offset:
            rest: Future[bytes | memoryview] = Future()
            rest.set_result(bytes(part.data.result()[offset - part.start :]))  # a view would keep the whole part
            self._fetcher.release(offset - part.start)
            part.start, part.data = offset, rest

    def size(self) -> int:
        return self._size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self.read_at(self._size if size < 0 else size, self._at)
        self._at += len(data)
        return data

    def read_buffer(self, size: int) -> memoryview | bytes:
        """Reads without a copy if possible; for Arrow."""
        part, end = self._at_or_after(self._at), min(self._at + size, self._size)
        if part is None or part.start > self._at or part.end < end:
            return self.read(size)
        data = memoryview(part.data.result())[self._at - part.start : end - part.start]
        self._at = end
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def read_at(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self._size)
        chunks = []
        while offset < end:
            part = self._at_or_after(offset)
            if part is None or part.start > offset:
                part = self._read_now(offset, end, self._size if part is None else part.start)
            data = part.data.result()
            chunks.append(data[offset - part.start : end - part.start])
            offset = min(part.end, end)
        return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)

    def close(self) -> None:
        if not self.closed:
            parts, self._parts = self._parts, []
            for part in parts:
                part.data.cancel()
            self._release(parts)
        super().close()

    def _read_now(self, start: int, end: int, limit: int) -> _Part:
        if self._size <= FIRST_BYTES and not self._parts:
            start, end = 0, self._size
        to = min(limit, max(end, start + (FIRST_BYTES if self._fetcher is not None else BLOCK_BYTES)))
        if self._fetcher is not None:
            self._fetcher.take(to - start)
        else:
            self._parts.clear()
        done: Future[bytes | memoryview] = Future()
        part = _Part(start, to, done)
        insort(self._parts, part)
        try:
            done.set_result(self._read(start, to - start))
        except BaseException as error:
            done.set_exception(error)
            raise
        return part

    def _gaps(self, start: int, end: int) -> list[tuple[int, int]]:
        found = []
        for part in self._within(start, end):
            if start < part.start:
                found.append((start, part.start))
            start = part.end
        if start < end:
            found.append((start, end))
        return found

    def _within(self, start: int, end: int) -> list[_Part]:
        return [part for part in self._parts if part.start < end and part.end > start]

    def _at_or_after(self, offset: int) -> _Part | None:
        at = bisect_right(self._parts, offset, key=lambda part: part.end)
        return self._parts[at] if at < len(self._parts) else None

    def _release(self, parts: Sequence[_Part]) -> None:
        if self._fetcher is not None:
            self._fetcher.release(sum(part.end - part.start for part in parts))


def _block_end(offset: int) -> int:
    return -(-offset // BLOCK_BYTES) * BLOCK_BYTES


class Aside(Generic[_T]):
    """One piece of work at a time. Without `fetcher` the caller does the work itself.

    Meanwhile only the piece may use the reader's file.
    """

    def __init__(self) -> None:
        self.fetcher: PartFetcher | None = None
        self._running: Future[_T] | None = None

    @property
    def busy(self) -> bool:
        return self._running is not None

    def result(self, work: Callable[[], _T]) -> _T:
        """Result of `work`. Raises `NotThere` until the piece ends, which wakes the subtask; then call again."""
        if self.fetcher is None:
            return work()
        if self._running is None:
            self._running = self.fetcher.submit(work)
        if not self._running.done():
            raise NotThere
        ended, self._running = self._running, None
        return ended.result()

    def after(self, close: Callable[[], None]) -> None:
        """Calls `close`, after the running piece if there is one."""
        if self._running is None:
            close()
        else:
            self._running.add_done_callback(lambda _: close())
