"""Fence of a sink: a rising number that a generation claims by creating a table.

ClickHouse has no transactions, but creates a table of a name only once. Fence n of a sink is an empty table whose name
ends in n; the defaults of the columns hold log and fencing token of the generation. Versions of rows begin with the n
of their generation, and of the rows of a key the highest version counts. Late requests and writes of an older
generation therefore never cover newer rows.

| fences of this sink                       | a generation with (log, token)                            |
|-------------------------------------------|-----------------------------------------------------------|
| none, or the newest is of an older token  | creates the next; if another was quicker, looks again     |
| the newest has this log and token         | uses this fence, as other subtasks do                     |
| of this log, with a newer token           | is fenced                                                 |
| of this log and token, and a newer fence  | waits: another job has these names, or the job has its    |
|   of another log                          | log back                                                  |

A generation that has claimed a fence drops older fences of the same log; the newest fence of each other log stays.
"""

from dataclasses import dataclass

from barrier_runtime.connectors.clickhouse.session import ClickHouseSession, TableExists
from barrier_runtime.coordinator.log.hashing import sha256_hex
from barrier_runtime.state.errors import Fenced, Unavailable

_TRIES = 100


@dataclass(frozen=True)
class WriterFence:
    number: int
    log: str
    token: int


class Fences:
    """Fences of a sink of a job. `where` is for messages."""

    def __init__(self, session: ClickHouseSession, job: str, sink: str, where: str) -> None:
        self._session = session
        self._prefix = f"barrier_runtime_fence_{sha256_hex(f'{job}/{sink}'.encode())[:16]}_"
        self._where = where

    def claim(self, log: str, token: int) -> int:
        """Claims a fence and returns its number. Raises `Fenced` and `Unavailable`."""
        for _ in range(_TRIES):
            fences = self._all()
            newest = max(fences, key=lambda fence: fence.number, default=None)
            ours = [fence for fence in fences if fence.log == log]
            if any(fence.token > token for fence in ours):
                raise Fenced(f"{self._where}: a newer generation writes to ClickHouse now; generation {token} stops")
            if newest is not None and (newest.log, newest.token) == (log, token):
                return newest.number
            if any(fence.token == token for fence in ours):
                raise Unavailable(
                    f"{self._where}: the fence in ClickHouse is held by this job with other checkpoints: it is taken "
                    "again at the next start; does another job have these names?"
                )
            number = newest.number + 1 if newest is not None else 1
            try:
                self._session.query(
                    f"CREATE TABLE {self._prefix}{number} "
                    "(log String DEFAULT %(log)s, token String DEFAULT %(token)s) ENGINE = TinyLog",
                    {"log": log, "token": str(token)},
                )
            except TableExists:
                continue
            for fence in ours:
                self._session.query(f"DROP TABLE IF EXISTS {self._prefix}{fence.number}")
            return number
        raise Unavailable(f"{self._where}: others claimed {_TRIES} fences in ClickHouse meanwhile: it is tried again")

    def _all(self) -> list[WriterFence]:
        rows = self._session.query(
            "SELECT table, name, default_expression FROM system.columns "
            "WHERE database = currentDatabase() AND startsWith(table, %(prefix)s)",
            {"prefix": self._prefix},
        )
        found: dict[str, dict[str, str]] = {}
        for table, name, default in rows:
            found.setdefault(table, {})[name] = default.strip("'")
        return [
            WriterFence(int(table.removeprefix(self._prefix)), held["log"], int(held["token"]))
            for table, held in found.items()
        ]
