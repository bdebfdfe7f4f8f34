"""Work that a commit leaves for later: the commit is reported first, and the work waits for nobody.

Work that is left must be safe to lose with the process:

| work                                   | lost with the process                                       |
|----------------------------------------|-------------------------------------------------------------|
| delete staged objects of shown files   | the sweep of the next generation deletes them at its start  |
| sweep what older generations staged    | the next generation sweeps it                               |
| find the head of the commit log        | the first commit finds it                                   |
| write the hint of the commit log       | the next start reads more records; a later commit writes it |
| write a summary of the commit log      | a later commit writes it                                    |

The sink of a finished input leaves nothing: its last commit does the work before it is reported.
"""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from barrier_runtime.state.errors import BarrierRuntimeError

log = logging.getLogger("barrier_runtime.sinks")
_MOST = 16  # pieces of work that wait; the next one is done at once, by the commit


class Afterwards:
    """Does work in order on one thread, which is there from the first work until `close`. Any thread may call."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._working = threading.Lock()  # one piece at a time, also of a commit that does its own
        self._thread: ThreadPoolExecutor | None = None
        self._waiting = 0
        self._closed = False

    def __reduce__(self) -> Any:
        return Afterwards, (self._where,)  # sinks are copied and pickled before they are opened

    def do(self, work: Callable[[], None], *, at_once: bool = False) -> None:
        """Later; without a thread when too much waits or the sink is closed.

        `at_once`: now, after the work that waits, raising its errors."""
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
        """What waits is still done; nobody waits for it, but the end of the process does."""
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
