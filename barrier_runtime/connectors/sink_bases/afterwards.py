"""Work that a commit postpones, and that is safe to lose with the process:

| work                                            | lost with the process                                       |
|-------------------------------------------------|-------------------------------------------------------------|
| delete staged objects of shown files            | the next generation deletes the objects when it starts      |
| delete objects that older generations staged    | the next generation deletes the objects                     |
| find the head of the commit log                 | the first commit finds the head                             |
| write the hint of the commit log                | the next start reads more records; a later commit writes it |
| write a summary of the commit log               | a later commit writes the summary                           |

After the end of the input nothing is postponed.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from barrier_runtime.state.errors import BarrierRuntimeError

log = logging.getLogger("barrier_runtime.sinks")
_MOST = 16  # pieces of waiting work; a commit runs any further piece itself


class Afterwards:
    """Runs work in order on one thread, from the first work until `close`. Thread-safe."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._working = threading.Lock()  # one piece at a time, including pieces that a commit runs itself
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
                done = None if self._thread is None or self._closed else self._thread.submit(work)
            if done is None:
                work()
            else:
                done.result()
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
        """Accepts no more work. Waiting work still runs; only the end of the process waits."""
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

    def _try(self, work: Callable[[], None]) -> None:
        try:
            with self._working:
                work()
        except (BarrierRuntimeError, OSError) as error:
            log.warning("%s: work behind a commit is left for the next start: %s", self._where, error)
