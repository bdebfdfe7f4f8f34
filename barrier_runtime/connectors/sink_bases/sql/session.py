"""Connection to a database: opened on demand, replaced after any error, closed without waiting.

A failed unit of work closes the connection, so no half-open transaction, temporary table or setting outlives the
failure. Every unit of work can therefore be repeated.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from barrier_runtime.connectors.sink_bases.sql.dialect import Dialect
from barrier_runtime.state.errors import BarrierRuntimeError

T = TypeVar("T")


class SqlSession:
    """Session for a single thread at a time; other threads wait."""

    def __init__(self, dialect: Dialect, where: str) -> None:
        self._dialect = dialect
        self._where = where
        self._using = threading.Lock()
        self._connection: Any = None
        self._closed = False

    def run(self, what: str, work: Callable[[Any], T]) -> T:
        """Runs `work(connection)` in one transaction and commits when `work` returns.

        If an older connection proves lost, `work` runs again on a new connection. `what` names the work in errors.
        Errors of the client library become errors of this project.
        """
        dialect, errors = self._dialect, self._dialect.errors()
        with self._using:
            was_there = self._connection is not None
            try:
                return self._attempt(work)
            except errors as error:
                if not (was_there and dialect.is_lost(error)):
                    raise self._translated(error, what) from error
            try:
                return self._attempt(work)
            except errors as error:
                raise self._translated(error, what) from error

    def close(self) -> None:
        """Closes without waiting: a running call closes the connection when the call ends."""
        self._closed = True
        if self._using.acquire(blocking=False):
            try:
                self._drop()
            finally:
                self._using.release()

    def _attempt(self, work: Callable[[Any], T]) -> T:
        try:
            if self._connection is None:
                self._connection = self._dialect.connect(self._where)
            with self._dialect.bounded(self._connection):
                result = work(self._connection)
                self._connection.commit()
                return result
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
                self._dialect.end(connection)

    def _translated(self, error: Exception, what: str) -> BarrierRuntimeError:
        dialect = self._dialect
        return dialect.translated(error, f"{self._where}: {what} failed at {dialect.name} {dialect.place}")
