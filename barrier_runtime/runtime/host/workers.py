"""Threads of a slot for blocking work.

Commits to dead targets have separate threads, and block neither snapshots nor the next restore.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from barrier_runtime.state.threads import Threads

Done = Callable[[Any, BaseException | None], None]

_SNAPSHOT_THREADS = 16
_OPENING_THREADS = 64  # a generation whose `open` hangs occupies a thread for ever
_UNHURRIED_THREADS = 1_024  # per executor with running work; of dropped generations only hanging ones


class Submit(Protocol):
    def __call__(self, work: Callable[[], Any], done: Done) -> None:
        """Runs `work` off the loop, then calls `done(result, error)` on the loop."""
        ...


class WorkerPool(Protocol):
    def submit(self, work: Callable[[], Any], done: Done) -> None: ...

    async def run(self, work: Callable[[], Any]) -> Any: ...

    def executor(self, on_error: Callable[[Exception], None], unhurried: bool = False) -> "WorkerExecutor": ...


class Workers:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._snapshots = Threads(_SNAPSHOT_THREADS, "barrier-worker")
        self._opening = Threads(_OPENING_THREADS, "barrier-opening")
        self._unhurried = Threads(_UNHURRIED_THREADS, "barrier-commit")
        self._closed = False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """After `close` no work begins, not even queued work."""
        self._on(self._opening, work, done)

    async def run(self, work: Callable[[], Any]) -> Any:
        return await asyncio.wrap_future(self._opening.submit(work), loop=self._loop)

    def executor(self, on_error: Callable[[Exception], None], unhurried: bool = False) -> "WorkerExecutor":
        """`on_error` receives exceptions of `done`. `unhurried`: for work that may take for ever."""
        return WorkerExecutor(partial(self._on, self._unhurried if unhurried else self._snapshots), on_error)

    def close(self) -> None:
        """Does not wait: running work is decided or harmless."""
        self._closed = True
        for threads in self._all:
            threads.close()

    def drain(self, timeout_s: float) -> bool:
        """Waits for running work; False after `timeout_s`. Not for the loop's thread."""
        self.close()
        end = time.monotonic() + timeout_s
        return all(threads.join(max(0.0, end - time.monotonic())) for threads in self._all)

    @property
    def _all(self) -> tuple[Threads, ...]:
        return self._snapshots, self._opening, self._unhurried

    def _on(self, threads: Threads, work: Callable[[], Any], done: Done) -> None:
        if not self._closed:
            threads.submit(work).add_done_callback(partial(self._hand_back, done))

    def _hand_back(self, done: Done, future: "Future[Any]") -> None:
        if future.cancelled() or self._loop.is_closed():
            return
        error = future.exception()
        result = None if error is not None else future.result()
        try:
            self._loop.call_soon_threadsafe(done, result, error)
        except RuntimeError:
            if not self._loop.is_closed():  # the loop closed in between, so no caller is left
                raise


class WorkerExecutor:
    def __init__(self, submit: Submit, on_error: Callable[[Exception], None]) -> None:
        self._submit = submit
        self._on_error = on_error
        self._waiting: deque[tuple[Callable[[], Any], Done]] = deque()
        self._running = False
        self._done: Done | None = None
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
        """Work that never ends keeps only this executor in memory."""
        self._retired = True
        self._waiting.clear()
        self._done = None
        self._on_error = _ignored

    def _start_next(self) -> None:
        if self._running or not self._waiting:
            return
        self._running = True
        work, self._done = self._waiting.popleft()
        self._submit(work, self._finished)

    def _finished(self, result: Any, error: BaseException | None) -> None:
        done, self._done = self._done, None
        self._running = False
        try:
            if done is not None:
                done(result, error)
        except Exception as broken:
            self._on_error(broken)
        self._start_next()


def _ignored(error: Exception) -> None:
    """Ignores an error of an executor that was retired during the last `done`."""
