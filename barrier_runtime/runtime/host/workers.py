"""The threads of a slot, for what blocks: uploads, downloads, fsync, external commits. Everything else is the loop.

A *sequential executor* runs what it is given one after the other, on shared threads. None waits for another one: a
slow sink never delays a checkpoint or another sink. What may hang has threads of its own: commits of any number of
dead targets keep neither snapshots nor the next restore from running.
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
_OPENING_THREADS = 64  # a generation whose `open` hangs keeps one for ever
_UNHURRIED_THREADS = 1_024  # one per executor whose work has begun; of dropped generations only those that hang


class Submit(Protocol):
    def __call__(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work` off the loop, then call `done(result, error)` on it."""
        ...


class WorkerPool(Protocol):
    """What a slot needs of its workers; the simulation has some without threads."""

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """Run `work` off the loop, then call `done(result, error)` on it."""
        ...

    async def run(self, work: Callable[[], Any]) -> Any: ...

    def executor(self, on_error: Callable[[Exception], None], unhurried: bool = False) -> "WorkerExecutor": ...


class Workers:
    """Results are handed back on the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._snapshots = Threads(_SNAPSHOT_THREADS, "barrier-worker")
        self._opening = Threads(_OPENING_THREADS, "barrier-opening")
        self._unhurried = Threads(_UNHURRIED_THREADS, "barrier-commit")
        self._closed = False

    def submit(self, work: Callable[[], Any], done: Done) -> None:
        """After `close` nothing begins any more, as nothing does that waited then: the slot is leaving."""
        self._on(self._opening, work, done)

    async def run(self, work: Callable[[], Any]) -> Any:
        """As `submit`, which is for what opens and closes operators: it waits for no snapshot and no commit."""
        return await asyncio.wrap_future(self._opening.submit(work), loop=self._loop)

    def executor(self, on_error: Callable[[Exception], None], unhurried: bool = False) -> "WorkerExecutor":
        """`on_error` is called for what a `done` raised; there is nobody else who could be told. `unhurried`: its work
        may take for ever, as commits do, and takes no thread from snapshots."""
        return WorkerExecutor(partial(self._on, self._unhurried if unhurried else self._snapshots), on_error)

    def close(self) -> None:
        """Does not wait: what runs is decided work or harmless, and the process may be about to leave."""
        self._closed = True
        for threads in self._all:
            threads.close()

    def drain(self, timeout_s: float) -> bool:
        """Like `close`, but waits for what runs. False when it takes longer. Blocks: not for the loop's thread."""
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
            if not self._loop.is_closed():  # the loop closed in between: nobody is left to tell
                raise


class WorkerExecutor:
    """See the module. `retire` drops what has not begun and silences what runs."""

    def __init__(self, submit: Submit, on_error: Callable[[Exception], None]) -> None:
        self._submit = submit
        self._on_error = on_error
        self._waiting: deque[tuple[Callable[[], Any], Done]] = deque()
        self._running = False
        self._done: Done | None = None  # of what runs; None: nobody listens any more
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
        """What runs may never end: it keeps this executor in memory, but nobody who used it."""
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
    """Of an executor that was retired while its last work was being reported."""
