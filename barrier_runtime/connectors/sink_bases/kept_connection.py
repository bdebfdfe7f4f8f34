"""One connection to a database: made when it is needed, dropped when anything fails, closed without waiting."""

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class KeptConnection(ABC):
    """Used by one thread at a time, under `_using`; others wait."""

    def __init__(self) -> None:
        self._using = threading.Lock()
        self._connection: Any = None
        self._closed = False

    @abstractmethod
    def _end(self, connection: Any) -> None:
        """Give a connection up; what that raises counts for nothing."""

    def close(self) -> None:
        """Never waits: a call that is under way closes the connection when it ends."""
        self._closed = True
        if self._using.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._using.release()

    def _kept(self, work: Callable[[], T]) -> T:
        """`work`, after which the connection stays, unless it failed or was closed meanwhile."""
        try:
            return work()
        except BaseException:
            self._drop()
            raise
        finally:
            if self._closed:
                self._drop()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(Exception):
                self._end(connection)
