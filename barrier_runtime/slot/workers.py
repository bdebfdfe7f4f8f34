"""The few threads of a slot, for what blocks: uploads, downloads, fsync, external commits. Everything else is the loop.

A *lane* is a first-in first-out line over the shared pool: at most one of its pieces runs at a time, and no lane waits
for another (one slow sink never delays a checkpoint or another sink).
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

Done = Callable[[Any, BaseException | None], None]


class WorkerPool(Protocol):
    """What a slot needs of its workers; the simulation has some without threads."""

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work` off the loop, then call `done(result, error)` on it."""
        ...

    async def run(self, work: Callable[[], Any]) -> Any: ...

    def lane(self, on_error: Callable[[Exception], None]) -> "SerialLane": ...


class Workers:
    """A growing pool: `threads` bounds it. Results are handed back on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 16) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="barrier-worker")
        self._closed = False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """After `close` nothing begins any more, as nothing does that waited then: the slot is leaving."""
        if self._closed:
            return
        self._pool.submit(work).add_done_callback(lambda future: self._hand_back(future, done))

    async def run(self, work: Callable[[], Any]) -> Any:
        return await self._loop.run_in_executor(self._pool, work)

    def lane(self, on_error: Callable[[Exception], None]) -> "SerialLane":
        """`on_error` is called for what a `done` raised; there is nobody else who could be told."""
        return SerialLane(self, on_error)

    def close(self) -> None:
        """Does not wait: what runs is decided work or harmless, and the process may be about to leave."""
        self._closed = True
        self._pool.shutdown(wait=False, cancel_futures=True)

    def drain(self) -> None:
        """Like `close`, but waits for what runs. Blocks: not for the loop's thread."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _hand_back(self, future: "Future[Any]", done: Done) -> None:
        if future.cancelled() or self._loop.is_closed():
            return
        error = future.exception()
        result = None if error is not None else future.result()
        try:
            self._loop.call_soon_threadsafe(done, result, error)
        except RuntimeError:
            if not self._loop.is_closed():  # the loop closed in between: nobody is left to tell
                raise


class SerialLane:
    """See the module. `retire` drops what has not begun and silences what runs."""

    def __init__(self, workers: WorkerPool, on_error: Callable[[Exception], None]) -> None:
        self._workers = workers
        self._on_error = on_error
        self._waiting: deque[tuple[Callable[[], Any], Done]] = deque()
        self._running = False
        self._retired = False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        if self._retired:
            return
        self._waiting.append((work, done))
        self._start_next()

    @property
    def busy(self) -> bool:
        return self._running or bool(self._waiting)

    def retire(self) -> None:
        self._retired = True
        self._waiting.clear()

    def _start_next(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        work, done = self._waiting.popleft()

        def finished(result: Any, error: BaseException | None) -> None:
            self._running = False
            try:
                if not self._retired:
                    done(result, error)
            except Exception as broken:
                self._on_error(broken)
            self._start_next()

        self._workers.submit(work, finished)
