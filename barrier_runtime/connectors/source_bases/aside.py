"""Work too large for a turn of the loop, on a thread of the subtask's `PartFetcher`."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from barrier_runtime.connectors.source_bases.ranges import NotThere, PartFetcher

_T = TypeVar("_T")


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
