"""End of a data connection: connecting, bytes, signs of life, and loss."""

import asyncio
import errno
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Protocol, TypeVar, cast

import pyarrow as pa

from barrier_runtime.coordinator.wire.framing import Framing
from barrier_runtime.coordinator.wire.handshake import KEY_BYTES, PeerSession, Policy
from barrier_runtime.runtime.network.channels import Route
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.sockets import PortRange, end_when_unanswered, listening_on, unheard
from barrier_runtime.state.tls import PeerTls, TlsListener

T = TypeVar("T")


async def within(seconds: float, awaitable: Awaitable[T]) -> T:
    """Raises `asyncio.TimeoutError` after `seconds`, and never loses a cancellation.

    `asyncio.wait_for` of Python 3.10 and 3.11 forgets a cancellation at the moment of the result (CPython issue 86296).
    """
    waited = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({waited}, timeout=seconds)
    except asyncio.CancelledError:  # no `finally`: a coroutine that is closed must not await
        await _end(waited)
        raise
    if not waited.done():
        await _end(waited)
        raise asyncio.TimeoutError
    return waited.result()


async def _end(waited: "asyncio.Future[T]") -> None:
    if not waited.done():
        waited.cancel()
        await asyncio.wait({waited})
    if not waited.cancelled():
        waited.exception()  # marks the exception as retrieved


_CONNECT_TIMEOUT_S = 2.0  # the kernel would repeat a lost request after 1, 3 and 7 s
_TLS_TIMEOUT_S = 10.0
_NO_ROUTE = (errno.EHOSTUNREACH, errno.ENETUNREACH)
_HANDSHAKES = 1_024
_NO_ROUTE_S = 0.5  # pause: an attempt without a route fails at once


class PacketsLost(Exception):
    """The host answered neither with a connection nor with a refusal."""


async def reach(protocol: Callable[[], asyncio.Protocol], host: str, port: int, tls: PeerTls | None = None) -> None:
    """Raises `PacketsLost`, or `OSError` for a refusal."""
    loop = asyncio.get_running_loop()
    context = None if tls is None else tls.connecting.context()
    timeout_s = _CONNECT_TIMEOUT_S if tls is None else _TLS_TIMEOUT_S
    try:
        await within(timeout_s, loop.create_connection(protocol, host, port, ssl=context))
    except asyncio.TimeoutError as error:
        raise PacketsLost from error
    except OSError as error:
        if error.errno not in _NO_ROUTE:
            raise
        await asyncio.sleep(_NO_ROUTE_S)
        raise PacketsLost from error


async def listen_on_one_of(
    host: str,
    ports: PortRange,
    protocol: Callable[[], asyncio.BaseProtocol],
    tls: PeerTls | None,
    refused: Callable[[object, str], None],
) -> asyncio.Server | TlsListener:
    """`refused(peer, reason)`: called for peers that TLS refuses."""
    loop = asyncio.get_running_loop()
    for wanted in ports:
        try:
            if tls is None:
                return await loop.create_server(protocol, host, wanted, backlog=_HANDSHAKES)
            listening = listening_on(host, wanted, reuse=wanted != 0)
            return TlsListener(listening, tls.accepting, protocol, refused, timeout_s=_TLS_TIMEOUT_S, most=_HANDSHAKES)
        except socket.gaierror as error:
            passing = error.errno == socket.EAI_AGAIN  # the name service does not answer
            raise (Unavailable if passing else InvalidJob)(
                f"the slot cannot listen on {host!r} ({unheard(error)}): give one of these, a network or an address"
            ) from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    raise Unavailable(f"all ports {ports} of {host} are in use: give slot_ports a port for each slot of a host")


_TOGETHER = 64 * 1024  # bytes joined before encryption: copying costs less than a frame each
PART_BYTES = 256 * 1024  # of a large buffer: the receiver decrypts while more arrives

Chunks = Iterable[bytes | pa.Buffer]


class Plane(Protocol):
    timeout_s: float
    encrypts: Policy

    def lost(self, connection: "DataConnection", route: Route | None, reason: str) -> None: ...


class Endable(Protocol):
    @property
    def ended(self) -> bool: ...


class DataConnection(asyncio.Protocol):
    transport: asyncio.Transport
    streams: Mapping[int, Endable]  # by edge; empty until admitted
    _write: Callable[[Chunks], None]

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._route: Route | None = None
        self._reason = ""
        self.peer = -1
        self._quiet = 0  # calls of `beat` since bytes came
        self._idle = True  # nothing was sent since the last call of `beat`
        self._read: Callable[[bytes], bytes] = _as_they_are

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._write = self.transport.writelines
        end_when_unanswered(transport.get_extra_info("socket"), round(self._plane.timeout_s * 1000))

    @property
    def _finished(self) -> bool:
        """Returns whether all inputs have ended: the end of the connection is no failure."""
        return bool(self.streams) and all(stream.ended for stream in self.streams.values())

    def _encrypts(self) -> bool:
        return self._plane.encrypts(self.transport.get_extra_info("peername"))

    def _agreed(self, session: PeerSession) -> None:
        if session.encrypted:
            framing = session.framing(PART_BYTES)
            writelines = self.transport.writelines
            self._write = lambda chunks: writelines(encrypted(framing, chunks))
            self._read = lambda data: b"".join(framing.feed(data))

    def beat(self) -> int:
        """Sends a sign of life if idle. Returns the number of calls since bytes came."""
        if self._finished or self.transport.is_closing():
            return 0
        if self._idle and not self.transport.get_write_buffer_size():
            self._send_alive()
        self._idle = True
        self._quiet += 1
        return self._quiet

    def _send_alive(self) -> None:
        raise NotImplementedError

    def eof_received(self) -> None:
        self.transport.abort()  # `close` would wait until unsent bytes are sent

    def connection_lost(self, error: Exception | None) -> None:
        if self._finished:
            return
        self._plane.lost(self, self._route, self._reason or (str(error) if error else "closed by the other slot"))

    def abort(self) -> None:
        transport = getattr(self, "transport", None)
        if transport is not None:
            transport.abort()

    def _fail(self, reason: str) -> None:
        self._reason = reason
        self.abort()


def new_private_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def encrypted(framing: Framing, chunks: Chunks) -> list[bytes]:
    known = list(chunks)
    if sum(map(len, known)) <= _TOGETHER:
        return [framing.frame(b"".join(known))]
    return [framing.frame(part) for chunk in known for part in _parts(chunk)]


def _parts(chunk: bytes | pa.Buffer) -> Iterator[memoryview]:
    view = memoryview(chunk).cast("B")  # `cryptography` refuses the signed bytes of Arrow's buffers
    for begin in range(0, len(view), PART_BYTES):
        yield view[begin : begin + PART_BYTES]


def _as_they_are(data: bytes) -> bytes:
    return data
