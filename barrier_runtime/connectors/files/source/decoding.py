"""The next part of a local file, decoded by a thread while the loop processes the part before.

Parts are decoded in order, as on the loop.
"""

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from barrier_runtime.connectors.source_bases.ranges import PartFetcher

_T = TypeVar("_T")


class DecodedAhead(Generic[_T]):
    """`decode` is called by one thread at a time, again after an error."""

    def __init__(self, decode: Callable[[], _T]) -> None:
        self._decode = decode
        self._part: Future[_T] | None = None
        self._release: Callable[[], None] = lambda: None

    @property
    def begun(self) -> bool:
        """Returns whether `begin` was called, and `take` not since: the state of `decode` then belongs to a thread."""
        return self._part is not None

    def begin(self, fetcher: PartFetcher, size: int) -> None:
        if fetcher.reserve(size, needed=False):
            self._release = lambda: fetcher.release(size)
            self._part = fetcher.decode(self._decode)

    def take(self) -> _T:
        """Waits for a thread that decodes. Raises errors of `decode`."""
        part, self._part = self._part, None
        if part is None:
            return self._decode()
        try:
            return part.result()
        finally:
            self._release()

    def close(self) -> None:
        part, self._part = self._part, None
        if part is not None:
            if not part.cancel():
                wait([part])
            self._release()
