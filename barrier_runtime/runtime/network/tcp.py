"""TCP mesh between slots: a connection per route carries all channels (`streams`). The only folder with data sockets.

A connection begins with a mutual HMAC challenge on the job's secret; the claims name the route. The receiver refuses an
older token; a later generation's connection waits for this slot. A running generation fails if a connection breaks or
carries a wrong frame.

The receiver grants credit for each channel: a barrier is never stuck in a socket behind rows that nobody takes.
"""

import asyncio
import logging
import secrets
import ssl
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.wire.framing import FrameRejected
from barrier_runtime.coordinator.wire.handshake import (
    NONCE_BYTES,
    Acceptor,
    HandshakeFailed,
    Initiator,
    LineLimit,
    Policy,
    across_hosts,
    never,
)
from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.runtime.network.channels import Broken, ChannelId, InputChannel, Route
from barrier_runtime.runtime.network.connection import (
    Chunks,
    DataConnection,
    PacketsLost,
    listen_on_one_of,
    new_private_key,
    reach,
    within,
)
from barrier_runtime.runtime.network.frames import FrameError
from barrier_runtime.runtime.network.streams import (
    ALIVE,
    CreditReader,
    PartReader,
    ReceivingStream,
    SendingStream,
)
from barrier_runtime.state.descriptors import remedy_if_exhausted
from barrier_runtime.state.errors import UNREADABLE, Unavailable
from barrier_runtime.state.hosts import shown
from barrier_runtime.state.sockets import ANY_PORT, PortRange
from barrier_runtime.state.tls import PeerTls, TlsListener, reason

log = logging.getLogger("barrier_runtime.network")

HANDSHAKE_TIMEOUT_S = 10.0
DEFAULT_TIMEOUT_S: float = OPTIONS["slot_timeout"].default
_HEARD = 2  # calls of `beat` without a sign of life that are not reported
_DIALS = 16  # handshakes of a slot at the same time
MAX_UNPROVEN = 4_096  # unauthenticated connections; a slot opens one at a time to another
_MOST_WAITING = 16_384  # authenticated, of later generations; a slow slot of a large job has thousands
_CHECK_NETWORK = "a replacement will be tried; check the network between executors if this repeats"
_NOT_YET = b"\x02"  # the route belongs to a later generation
_ADMITTED = b"\x01"
_ROUTE = msgspec.msgpack.Decoder(Route)


class TcpDataPlane:
    def __init__(
        self,
        secret: bytes,
        job: str,
        run_id: str,
        host: str = "127.0.0.1",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ports: PortRange = ANY_PORT,
        encrypts: Policy = across_hosts,
        tls: PeerTls | None = None,
    ) -> None:
        """`timeout_s`: of an unanswered connection. `tls`: instead of encryption by `encrypts`."""
        self.timeout_s = timeout_s
        self.encrypts = encrypts if tls is None else never
        self._tls = tls
        self.secret = secret
        self.job = job
        self.run_id = run_id
        self._host, self._ports = host, ports
        self._server: asyncio.Server | TlsListener | None = None
        self._token = 0
        self._expected: dict[Route, dict[int, InputChannel]] = {}  # by edge
        self._missing: set[Route] = set()
        self._complete = asyncio.Event()
        self._broken: Broken = lambda route, reason: None
        self._dials = asyncio.Semaphore(_DIALS)
        self._waiting: dict[Route, _Incoming] = {}
        self._lost: dict[Route, str] = {}  # why waiting connections broke, for senders that did not notice
        self._lines = LineLimit()
        self._unproven: dict[_Incoming, None] = {}
        # Dicts, because aborts happen in the order of arrival.
        self._connecting: dict[_Outgoing, None] = {}
        self._open: dict[DataConnection, None] = {}
        self._unreached: dict[int, int] = {}  # slot -> calls of `beat` since the first attempt

    async def listen(self) -> tuple[str, int]:
        self._server = await listen_on_one_of(self._host, self._ports, lambda: _Incoming(self), self._tls, self.refused)
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None:
        self._token = token
        self._expected = {}
        for channel, target in channels.items():
            self._expected.setdefault(channel.route, {})[channel.edge] = target
        self._missing = set(self._expected)
        self._broken = broken
        self._dials = asyncio.Semaphore(_DIALS)
        self._complete = asyncio.Event()
        if not channels:
            self._complete.set()
        for route, incoming in list(self._waiting.items()):
            if route.token <= token:
                del self._waiting[route]
                self._admit(incoming, route)
        for route, why in list(self._lost.items()):
            if route.token <= token:
                del self._lost[route]
                if route in self._missing:
                    asyncio.get_running_loop().call_soon(broken, route, why)

    async def all_connected(self) -> None:
        await self._complete.wait()

    async def connect(
        self, peer: Peer, channels: Sequence[ChannelId], wake_writer: Callable[[], None]
    ) -> Sequence[SendingStream]:
        """Tries without end while packets are lost: the coordinator ends the generation."""
        try:
            while True:
                try:
                    outgoing = await self._attempt(peer, channels, wake_writer)
                    return [outgoing.streams[channel.edge] for channel in channels]
                except PacketsLost:
                    self._unreached.setdefault(peer.slot, 0)
        finally:
            self._unreached.pop(peer.slot, None)

    async def _attempt(self, peer: Peer, channels: Sequence[ChannelId], wake_writer: Callable[[], None]) -> "_Outgoing":
        outgoing = _Outgoing(self, channels, wake_writer)
        self._connecting[outgoing] = None
        try:
            async with self._dials:
                await reach(lambda: outgoing, peer.host, peer.port, self._tls)
                await within(HANDSHAKE_TIMEOUT_S, outgoing.proven)
            await outgoing.ready  # as long as the peer restores; the coordinator notices its loss
        except (OSError, asyncio.TimeoutError) as error:
            remedy = remedy_if_exhausted(error) or (
                reason(error) if isinstance(error, ssl.SSLError) else _CHECK_NETWORK
            )
            raise Unavailable(
                f"slot {channels[0].source_slot} cannot reach slot {peer.slot} at {shown(peer.host, peer.port)} "
                f"({error!r}): {remedy}"
            ) from error
        finally:
            self._connecting.pop(outgoing, None)
            if not outgoing.admitted:
                outgoing.abort()
        return outgoing

    def beat(self) -> dict[int, int]:
        self._unreached = {slot: calls + 1 for slot, calls in self._unreached.items()}
        quiet = dict(self._unreached)
        for connection in self._open:
            calls = connection.beat()
            quiet[connection.peer] = max(quiet.get(connection.peer, 0), calls)
        return {slot: calls for slot, calls in sorted(quiet.items()) if calls > _HEARD}

    def disconnect(self) -> None:
        self._expected = {}
        self._missing = set()
        self._broken = lambda route, reason: None
        for connection in (*self._connecting, *self._open):
            connection.abort()
        self._open.clear()

    def close(self) -> None:
        self.disconnect()
        for incoming in list(self._waiting.values()):
            incoming.abort()
        self._waiting.clear()
        if self._server is not None:
            self._server.close()

    # ------------------------------------------------------------ called by connections

    def acceptor(self, *, encrypted: bool) -> Acceptor:
        return Acceptor(
            nonce=secrets.token_bytes(NONCE_BYTES),
            purpose="data",
            secret_of=lambda hello: self.secret if (hello.job, hello.run_id) == (self.job, self.run_id) else None,
            private=new_private_key(),
            encrypted=encrypted,
        )

    def initiator(self, claims: bytes, *, encrypted: bool) -> Initiator:
        return Initiator(
            self.secret,
            job=self.job,
            run_id=self.run_id,
            purpose="data",
            claims=claims,
            nonce=secrets.token_bytes(NONCE_BYTES),
            private=new_private_key() if encrypted else b"",
        )

    @property
    def unproven(self) -> int:
        return len(self._unproven)

    def came(self, incoming: "_Incoming") -> None:
        """Registers an unauthenticated connection.

        A slot authenticates within milliseconds: the oldest connection is hardly a slot's.
        """
        while len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.abort()
        self._unproven[incoming] = None

    def proved(self, incoming: "_Incoming") -> None:
        self._unproven.pop(incoming, None)

    def refused(self, peer: object, reason: str) -> None:
        line = self._lines.line(peer, reason, asyncio.get_running_loop().time())
        if line is not None:
            log.warning("%s", line)

    def admit(self, incoming: "_Incoming", route: Route) -> None:
        if route.token > self._token:
            if len(self._waiting) >= _MOST_WAITING:
                incoming.abort()
                return
            replaced = self._waiting.pop(route, None)
            if replaced is not None:
                replaced.abort()
            self._waiting[route] = incoming
            self._lost.pop(route, None)
            incoming.wait()
            return
        self._admit(incoming, route)

    def _admit(self, incoming: "_Incoming", route: Route) -> None:
        if route not in self._missing:
            incoming.abort()  # an old token, an unknown route, or a second connection of a route
            return
        self._missing.discard(route)
        self._open[incoming] = None
        incoming.begin(self._expected[route])
        if not self._missing:
            self._complete.set()

    def opened(self, connection: "DataConnection") -> None:
        self._open[connection] = None

    def lost(self, connection: "DataConnection", route: Route | None, reason: str) -> None:
        if route is not None and self._waiting.get(route) is connection:
            del self._waiting[route]
            if len(self._lost) < _MOST_WAITING:
                self._lost[route] = reason
        if connection in self._open:
            del self._open[connection]
            if route is not None and route.token == self._token:
                self._broken(route, reason)


class _Incoming(DataConnection):
    _plane: TcpDataPlane
    _handshake: Acceptor

    def __init__(self, plane: TcpDataPlane) -> None:
        super().__init__(plane)
        self.streams: dict[int, ReceivingStream] = {}
        self._parts = PartReader(self.streams)
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshake = self._plane.acceptor(encrypted=self._encrypts())
        self._plane.came(self)
        self._timeout = asyncio.get_running_loop().call_later(
            HANDSHAKE_TIMEOUT_S, self._refuse, "the handshake did not finish in time"
        )

    def data_received(self, data: bytes) -> None:
        if self.streams:
            self._frames(data)
            return
        if self._route is not None:
            self._refuse("data came before the connection was admitted")
            return
        try:
            answer = self._handshake.feed(data)
            if answer:
                self.transport.write(answer)
            session = self._handshake.session
            if session is None:
                return
            if self._handshake.unread():
                raise HandshakeFailed("data came before the connection was admitted")
            self._route = _ROUTE.decode(session.hello.claims)
            self._agreed(session)
            self.peer = self._route.source_slot
        except HandshakeFailed as error:
            self._refuse(str(error))
            return
        except UNREADABLE as error:
            self._refuse(f"the claims are unreadable ({error}): run the same release of barrier-runtime in all slots")
            return
        self._proven_or_gone()
        self._plane.admit(self, self._route)

    def _refuse(self, reason: str) -> None:
        self._plane.refused(self.transport.get_extra_info("peername"), reason)
        self._fail(reason)

    def wait(self) -> None:
        self._write([_NOT_YET])

    def begin(self, targets: dict[int, InputChannel]) -> None:
        self._write([_ADMITTED])
        for edge, target in targets.items():
            stream = self.streams[edge] = ReceivingStream(edge, target)
            target.when_credit(partial(self._send_credit, stream))
            self._send_credit(stream)

    def _frames(self, data: bytes) -> None:
        self._quiet = 0
        try:
            self._parts.feed(self._read(data))
        except (FrameError, FrameRejected) as error:
            self._fail(str(error))

    def _send_credit(self, stream: ReceivingStream) -> None:
        if not self.transport.is_closing() and (credit := stream.credit()):
            self._idle = False
            self._write([credit])

    def _send_alive(self) -> None:
        streams = list(self.streams.values())
        for stream in streams:
            self._send_credit(stream)
        if self._idle:
            self._write([streams[0].last_credit()])

    def _proven_or_gone(self) -> None:
        self._plane.proved(self)
        if self._timeout is not None:
            self._timeout.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self._proven_or_gone()
        super().connection_lost(error)


class _Outgoing(DataConnection):
    _plane: TcpDataPlane
    _handshake: Initiator

    def __init__(self, plane: TcpDataPlane, channels: Sequence[ChannelId], wake_writer: Callable[[], None]) -> None:
        super().__init__(plane)
        self._route = channels[0].route
        self._claims = msgspec.msgpack.encode(self._route)
        self.peer = self._route.target_slot
        self.streams: dict[int, SendingStream] = {
            channel.edge: SendingStream(channel, self._send, wake_writer) for channel in channels
        }
        self._credits = CreditReader(self.streams)
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()
        self.ready: asyncio.Future[None] = loop.create_future()  # the peer has reached this generation

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._handshake = self._plane.initiator(self._claims, encrypted=self._encrypts())
        self.transport.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake.session is None:
                self.transport.write(self._handshake.feed(data))
                if self._handshake.session is None:
                    return
                self._agreed(self._handshake.session)
                data = self._handshake.unread()
            data = self._read(data)
            if self.ready.done():
                self._quiet = 0
                self._credits.feed(data)
                return
            if data and not self.proven.done():
                self.proven.set_result(None)
                data = data.removeprefix(_NOT_YET)
            if data:
                if not data.startswith(_ADMITTED):
                    raise HandshakeFailed("the downstream slot did not admit the connection: connection closed")
                self._plane.opened(self)
                self._credits.feed(data[len(_ADMITTED) :])
                self.ready.set_result(None)
        except (HandshakeFailed, FrameError, FrameRejected) as error:
            self._fail(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        for step in (self.proven, self.ready):
            if not step.done():
                step.set_exception(ConnectionError(self._reason or f"refused by the other slot ({reason(error)})"))
                step.exception()  # marks the exception as retrieved
        super().connection_lost(error)

    @property
    def admitted(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def _send_alive(self) -> None:
        self._write([ALIVE])

    def _send(self, part: Chunks) -> bool:
        if self.transport.is_closing():
            return False  # `connection_lost` follows and fails the generation
        self._idle = False
        self._write(part)
        return True
