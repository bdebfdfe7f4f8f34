"""A Redis server for the upsert sink: the sink's two scripts as atomic steps in Python.

The production sink runs down to the client library."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import msgspec
import redis
from servers import Doorway
from workload import Row

from barrier_runtime.connectors.redis import sink as production
from barrier_runtime.connectors.redis.sink import RedisUpsertSink
from barrier_runtime.connectors.sink import SinkContext

_WRITE_BYTES = 3_000  # small, so that the sink writes rows before their barrier, too
_ROWS_AT_ONCE = 3
_PREFIX = "account "
_CUT = 0.05  # chance that the connection ends before the last script of several
_AGAIN = 0.3  # chance that the client library retries a command without an answer

Answer = list[bytes | None]


@dataclass
class RedisServer:
    """The server. Each written lot calls `on_upserts(token, rows)`, each refusal `note`."""

    doorway: Doorway
    on_upserts: Callable[[int, list[Row]], None]
    note: Callable[[str], None]
    again: Callable[[float], bool]
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)

    def sink(self, deterministic: bool) -> RedisUpsertSink:
        return SimRedisSink(self, deterministic)

    def small_lots(self) -> AbstractContextManager[object]:
        return patch.object(production, "_ROWS_AT_ONCE", _ROWS_AT_ONCE)

    def eval(self, script: str, keys: Sequence[str], arguments: Sequence[Any]) -> Answer:
        if script not in _SCRIPTS:
            raise AssertionError(f"the simulated Redis does not know this script: teach it\n{script}")
        return _SCRIPTS[script](self, keys, [_text(each) for each in arguments])

    def take(self, keys: Sequence[str], arguments: list[str]) -> Answer:
        log, token, subtask = arguments
        fence = self.hashes.setdefault(keys[0], {})
        if (fence.get("log"), fence.get("token")) != (log, token):
            newest = fence.get(f"newest of {log}")
            if newest is not None and int(newest) >= int(token):
                self.note("an older generation did not get the fence of Redis")
                return [log.encode(), newest.encode(), None]
            fence.update({"log": log, "token": token, f"newest of {log}": token})
            self.hashes.pop(keys[1], None)
        return [log.encode(), token.encode(), self.last_lot(keys[1], subtask).encode()]

    def write(self, keys: Sequence[str], arguments: list[str]) -> Answer:
        log, token, subtask, lot = arguments[:4]
        fence = self.hashes.get(keys[0], {})
        if not self.is_held(fence, log, token):
            self.note("an older generation's rows refused by Redis")
            held = fence.get("log"), fence.get("token")
            return [*(None if each is None else each.encode() for each in held), None]
        last = self.last_lot(keys[1], subtask)
        if self.came_late(last, lot):
            self.note("a lot that came late refused by Redis")
            return [log.encode(), token.encode(), last.encode()]
        self.hashes.setdefault(keys[1], {})[subtask] = lot
        self.on_upserts(int(token), _rows(arguments[4:]))
        return [log.encode(), token.encode(), lot.encode()]

    def is_held(self, fence: dict[str, str], log: str, token: str) -> bool:
        return (fence.get("log"), fence.get("token")) == (log, token)

    def came_late(self, last: str, lot: str) -> bool:
        return int(last) >= int(lot)

    def last_lot(self, lots: str, subtask: str) -> str:
        return self.hashes.get(lots, {}).get(subtask, "0")


_SCRIPTS = {production._TAKE: RedisServer.take, production._WRITE: RedisServer.write}


class SimRedisSink(RedisUpsertSink):
    write_bytes = _WRITE_BYTES

    def __init__(self, server: RedisServer, deterministic: bool) -> None:
        super().__init__("redis://sim:6379/0", key="account", value="json", prefix=_PREFIX, deterministic=deterministic)
        self._server = server

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._buffers._going_out = self._server.doorway.turns()  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, object]) -> "SimRedisSink":
        return SimRedisSink(self._server, self.deterministic)

    def _client(self) -> Any:
        return _Client(self._server)


class _Client:
    """Replacement of `redis.Redis`."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server

    def pipeline(self, transaction: bool) -> "_Pipeline":
        assert not transaction, "scripts of a transaction would keep others from the server"
        return _Pipeline(self.server)

    def close(self) -> None:
        """Does nothing: no connection is open."""


class _Pipeline:
    """Scripts that are sent together; of a failed attempt, the first scripts may have run."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._calls: list[tuple[str, Sequence[Any], Sequence[Any]]] = []

    def eval(self, script: str, count: int, *given: Any) -> None:
        self._calls.append((script, given[:count], given[count:]))

    def execute(self) -> list[Answer]:
        server, calls = self._server, self._calls
        try:
            answers = self._asked("redis eval", calls[:-1] if len(calls) > 1 and server.again(_CUT) else calls)
            if len(answers) < len(calls):
                raise redis.TimeoutError("the connection ended")
        except redis.TimeoutError:
            if not server.again(_AGAIN):
                raise
            answers = self._asked("redis eval again", calls)
        return answers

    def _asked(self, what: str, calls: Sequence[tuple[str, Sequence[Any], Sequence[Any]]]) -> list[Answer]:
        ask = lambda: [self._server.eval(*each) for each in calls]  # noqa: E731
        return self._server.doorway.ask(what, ask, redis.TimeoutError)  # type: ignore[no-any-return]


def _text(argument: Any) -> str:
    return argument.decode() if isinstance(argument, bytes) else str(argument)


def _rows(flat: list[str]) -> list[Row]:
    """Returns the rows in a flat list of key, "set", 1 and JSON object per row."""
    rows = []
    for key, kind, count, value in zip(flat[::4], flat[1::4], flat[2::4], flat[3::4], strict=True):
        assert (kind, count) == ("set", "1"), "the simulated sink writes JSON objects"
        rows.append(Row(account=int(key.removeprefix(_PREFIX)), **msgspec.json.decode(value)))
    return rows
