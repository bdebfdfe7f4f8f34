"""Work that a commit postpones. The next start or a later commit repeats work lost with the process."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from barrier_runtime.state.errors import BarrierRuntimeError

log = logging.getLogger("barrier_runtime.sinks")
_MOST = 16  # pieces of waiting work


class Afterwards:
    """Runs work in order on one thread. Thread-safe."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._working = threading.Lock()  # also held for work on a caller's thread
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._closed = False

    def __reduce__(self) -> Any:
        return Afterwards, (self._where,)  # sinks are copied and pickled before `open`

    def do(self, work: Callable[[], None], *, at_once: bool = False) -> None:
        """Runs `work` later, or on the caller's thread if too much work waits or the sink is closed.

        `at_once` runs `work` now, after all waiting work, and raises its errors; errors of postponed work are logged.
        """
        if at_once:
            with self._lock:
                thread = self._thread
                done = None if thread is None or self._closed else thread.submit(self._alone, work)
            if done is not None:
                done.result()
                return
            if thread is not None:  # closed, but not yet done with waiting work
                thread.shutdown(wait=True)
            self._alone(work)
            return
        with self._lock:
            later = self._waiting < _MOST and not self._closed
            if later:
                self._waiting += 1
                self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="after-commit")
                self._thread.submit(self._done, work)
        if not later:
            self._try(work)

    def close(self) -> None:
        """Waiting work still runs; further work runs on the caller's thread."""
        with self._lock:
            self._closed = True
            if self._thread is not None:
                self._thread.shutdown(wait=False)

    def _done(self, work: Callable[[], None]) -> None:
        try:
            self._try(work)
        finally:
            with self._lock:
                self._waiting -= 1

    def _alone(self, work: Callable[[], None]) -> None:
        with self._working:
            work()

    def _try(self, work: Callable[[], None]) -> None:
        try:
            self._alone(work)
        except (BarrierRuntimeError, OSError) as error:
            log.warning("%s: work behind a commit is left for the next start: %s", self._where, error)
