"""One connection to a database: made when it is needed, made again after any error, closed without waiting.

A unit of work that fails closes the connection, so that no half-open transaction, temporary table or setting outlives
the failure; every unit of work can therefore be repeated.
"""

import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from barrier_runtime.connectors.sink_bases.sql.dialect import Dialect
from barrier_runtime.state.errors import BarrierRuntimeError

T = TypeVar("T")


class SqlSession:
    """Used by one thread at a time; others wait."""

    def __init__(self, dialect: Dialect, where: str) -> None:
        self._dialect = dialect
        self._where = where
        self._using = threading.Lock()
        self._connection: Any = None
        self._closed = False

    def run(self, what: str, work: Callable[[Any], T]) -> T:
        """`work(connection)` in one transaction that is committed when `work` returns. `work` may be called twice, on a
        new connection, when the old one turns out to be lost. `what` names the work in errors. Raises only our kinds of
        errors."""
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
        """Never waits: a call that is under way closes the connection when it ends."""
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
