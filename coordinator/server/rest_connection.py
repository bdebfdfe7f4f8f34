"""One HTTP connection, bounded before anybody has shown a token (behaviours G5, H3): uvicorn bounds neither of these.

- At most `MAX_CONNECTIONS` at a time; one more is closed at once.
- A request must be there, head and body, `REQUEST_TIMEOUT_S` after the connection was made or the answer before it was
  given. How long the answer takes is not limited: that is our own work.
"""

import asyncio
from types import FrameType

from uvicorn import Server
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

MAX_CONNECTIONS = 128
REQUEST_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 64 * 1024


class RestingServer(Server):
    """uvicorn's looks ten times a second whether it is to end, and an idle coordinator does hardly anything else."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def main_loop(self) -> None:
        await self.on_tick(0)  # makes the headers of answers; without a date they stay as they are
        await self._leaving.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._leaving.set)


class BoundedConnection(H11Protocol):
    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._request_timeout_s = request_timeout_s
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._wait_for_request()

    def on_response_complete(self) -> None:
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _wait_for_request(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self._request_timeout_s, self._overdue)

    def _overdue(self) -> None:
        being_answered = self.cycle is not None and not self.cycle.more_body and not self.cycle.response_complete
        if not being_answered:
            self.transport.abort()
