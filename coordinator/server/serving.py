"""HTTP(S) server of REST and page: uvicorn, with limits and re-read certificates.

Limits hold before any token is checked (behaviours G5, H3):

- `MAX_CONNECTIONS` at a time; further connections are closed at once.
- A request, head and body, must arrive within `REQUEST_TIMEOUT_S` of the connection or the previous answer.
"""

import asyncio
import logging
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING

import msgspec
from uvicorn import Server
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from barrier_runtime.coordinator.client.rest_token import Token
from barrier_runtime.coordinator.client.rest_types import ErrorReply
from barrier_runtime.coordinator.server.jobs import JobDirectory
from barrier_runtime.coordinator.wire.handshake import LineLimit
from barrier_runtime.state.tls import Certificates, TlsListener

if TYPE_CHECKING:
    from barrier_runtime.coordinator.server.rest import ControlAddress, PageAddress

log = logging.getLogger("coordinator.rest")

MAX_CONNECTIONS = 128
REQUEST_TIMEOUT_S = 10.0
MAX_HEAD_BYTES = 64 * 1024
_TURNS_TO_CONNECT = 6  # of the loop, from accept() to `connection_made`


_BODY = msgspec.json.encode(ErrorReply("this port speaks HTTPS: use https:// in the address"))
_SPEAK_HTTPS = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


@dataclass(frozen=True)
class ServerOptions:
    """`savepoint_roots`: as in `rest.Api`."""

    request_timeout_s: float = REQUEST_TIMEOUT_S
    certificates: Certificates | None = None
    savepoint_roots: Sequence[str] = ()


class RestingServer(Server):
    """Server without uvicorn's ten polls a second, most of an idle coordinator's work."""

    def __init__(self, config: Config, options: "ServerOptions") -> None:
        super().__init__(config)
        self._leaving = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._options = options
        self._lines = LineLimit()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        certificates = self._options.certificates
        if certificates is None:
            await super().startup(sockets)
            return
        await super().startup(sockets=[])
        for listening in sockets or []:
            listener = TlsListener(
                listening,
                certificates,
                self._protocol,
                self._refused,
                timeout_s=self._options.request_timeout_s,
                most=MAX_CONNECTIONS,
                answer=_SPEAK_HTTPS,
            )
            self.servers.append(listener)  # type: ignore[arg-type]

    def _protocol(self) -> asyncio.BaseProtocol:
        make = self.config.http_protocol_class
        return make(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=self._loop,
        )

    def _refused(self, peer: object, reason: str) -> None:
        line = self._lines.line(peer, reason, self._loop.time())
        if line is not None:
            log.warning("%s", line)

    async def main_loop(self) -> None:
        await self.on_tick(0)  # makes the headers of answers, which stay the same without a date
        await self._leaving.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._loop.call_soon_threadsafe(self._leaving.set)

    def leave(self) -> None:
        """Ends `serve`, on the loop's thread, after answers under way."""
        self.should_exit = True
        self._leaving.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Also closes connections accepted last, and those whose request never came: the process may live on, and
        clients would wait.
        """
        for listening in sockets or []:
            self._loop.remove_reader(listening)  # a server closed before `connection_made` would drop the connection
        for _ in range(_TURNS_TO_CONNECT):
            await asyncio.sleep(0)
        try:
            await super().shutdown(sockets)
        finally:
            for connection in list(self.server_state.connections):
                connection.transport.abort()


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


def rest_server(
    directory: JobDirectory,
    control: "ControlAddress",
    token: Token,
    pid: int,
    page: "PageAddress | None",
    options: ServerOptions,
) -> RestingServer:
    from barrier_runtime.coordinator.server.rest import application

    config = Config(
        application(directory, control, token, pid, page, options.savepoint_roots),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        http=partial(BoundedConnection, request_timeout_s=options.request_timeout_s),  # type: ignore[arg-type]
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        timeout_keep_alive=5,
        server_header=False,
        date_header=False,
    )
    return RestingServer(config, options)
