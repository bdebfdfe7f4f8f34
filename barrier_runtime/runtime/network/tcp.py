"""TCP mesh between slots: one connection per channel, both ends. The only file with data sockets.

A connection begins with a mutual HMAC challenge on the job's secret; the claims name generation and channel. The
receiver refuses an old token or an unexpected channel; a connection of a later generation waits until this slot has
reached that generation. Frames follow (see `frames`). A running generation fails if a connection breaks or carries a
wrong frame. An idle connection carries a sign of life in each interval of `beat`: a frame, or a repeated credit.

The receiver reads all data at once and grants credit: the number of bytes that the sender may have sent since the
beginning, which rises as the subtask takes elements. So at most the window of the channel and one step's output are in
flight, and a barrier is never stuck in a socket behind rows that nobody takes.
"""

import asyncio
import secrets
import struct
from collections.abc import Callable
from typing import cast

import msgspec

from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.wire.handshake import NONCE_BYTES, Acceptor, HandshakeFailed, Initiator
from barrier_runtime.coordinator.wire.messages import Peer
from barrier_runtime.data.elements import Element, EndOfInput
from barrier_runtime.runtime.host.within import within
from barrier_runtime.runtime.network.channels import InputChannel, OutputChannel
from barrier_runtime.runtime.network.data_plane import Broken, ChannelId
from barrier_runtime.runtime.network.frames import FrameError, FrameReader, FrameWriter
from barrier_runtime.runtime.network.listening import listen_on_one_of
from barrier_runtime.runtime.network.reaching import PacketsLost, reach
from barrier_runtime.state.descriptors import remedy_if_exhausted
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, Unavailable
from barrier_runtime.state.ports import ANY_PORT, PortRange
from barrier_runtime.state.sockets import end_when_unanswered

HANDSHAKE_TIMEOUT_S = 10.0
DEFAULT_TIMEOUT_S: float = OPTIONS["slot_timeout"].default
_HEARD = 2  # calls of `beat` without a sign of life that are not reported
_CREDIT = struct.Struct(">Q")  # bytes that may have been sent since the beginning
MAX_UNPROVEN = 4_096  # unauthenticated incoming connections; every slot opens one at a time
_MOST_WAITING = 16_384  # authenticated connections of later generations; a slow slot of a large job has thousands
_CHECK_NETWORK = "a replacement will be tried; check the network between executors if this repeats"
_NOT_YET = b"\x02"  # the acceptor knows the channel, which belongs to a later generation
_ADMITTED = b"\x01"  # the acceptor is ready for frames


_CHANNEL_ID = msgspec.msgpack.Decoder(ChannelId)


class TcpDataPlane:
    def __init__(
        self,
        secret: bytes,
        job: str,
        run_id: str,
        host: str = "127.0.0.1",
        timeout_s: float = DEFAULT_TIMEOUT_S,
        ports: PortRange = ANY_PORT,
    ) -> None:
        """`timeout_s`: an unanswered connection ends after this time. `ports`: of `host`, to listen on one of them."""
        self.timeout_s = timeout_s
        self.secret = secret
        self.job = job
        self.run_id = run_id
        self._host, self._ports = host, ports
        self._server: asyncio.Server | None = None
        self._token = 0
        self._expected: dict[ChannelId, InputChannel] = {}
        self._missing: set[ChannelId] = set()
        self._complete = asyncio.Event()
        self._broken: Broken = lambda channel, reason: None
        self._waiting: dict[ChannelId, _Incoming] = {}
        self._lost: dict[ChannelId, str] = {}  # reasons why waiting connections broke, for senders that did not notice
        self._unproven: dict[_Incoming, None] = {}  # unauthenticated, in the order of arrival
        # In the order of arrival, because aborts happen in that order.
        self._connecting: dict[_Outgoing, None] = {}  # not admitted yet
        self._open: dict[_Connection, None] = {}
        self._unreached: dict[int, int] = {}  # slot that a connection is attempted to -> calls of `beat` since

    async def listen(self) -> tuple[str, int]:
        self._server = await listen_on_one_of(self._host, self._ports, lambda: _Incoming(self))
        host, port = self._server.sockets[0].getsockname()[:2]
        return host, port

    def expect(self, token: int, channels: dict[ChannelId, InputChannel], broken: Broken) -> None:
        self._token = token
        self._expected = dict(channels)
        self._missing = set(channels)
        self._broken = broken
        self._complete = asyncio.Event()
        if not channels:
            self._complete.set()
        for channel, incoming in list(self._waiting.items()):
            if channel.token <= token:
                del self._waiting[channel]
                self._admit(incoming, channel)
        for channel, reason in list(self._lost.items()):
            if channel.token <= token:
                del self._lost[channel]
                if channel in self._missing:
                    asyncio.get_running_loop().call_soon(broken, channel, reason)

    async def all_connected(self) -> None:
        await self._complete.wait()

    async def connect(self, peer: Peer, channel: ChannelId, wake_writer: Callable[[], None]) -> OutputChannel:
        """Connects to a peer, and tries without end while packets are lost: the coordinator ends the generation."""
        try:
            while True:
                try:
                    return await self._attempt(peer, channel, wake_writer)
                except PacketsLost:
                    self._unreached.setdefault(peer.slot, 0)
        finally:
            self._unreached.pop(peer.slot, None)

    async def _attempt(self, peer: Peer, channel: ChannelId, wake_writer: Callable[[], None]) -> "_Outgoing":
        outgoing = _Outgoing(self, channel, wake_writer)
        self._connecting[outgoing] = None
        try:
            await reach(lambda: outgoing, peer.host, peer.port)
            await within(HANDSHAKE_TIMEOUT_S, outgoing.proven)
            await outgoing.ready  # as long as the peer restores; the coordinator notices a silent or lost peer
        except (OSError, asyncio.TimeoutError) as error:
            remedy = remedy_if_exhausted(error) or _CHECK_NETWORK
            raise Unavailable(
                f"slot {channel.source_slot} cannot reach slot {peer.slot} at {peer.host}:{peer.port} ({error!r}): "
                f"{remedy}"
            ) from error
        finally:
            self._connecting.pop(outgoing, None)
            if not outgoing.admitted:  # also if the deployment was cancelled meanwhile
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
        self._broken = lambda channel, reason: None
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

    @property
    def unproven(self) -> int:
        return len(self._unproven)

    def came(self, incoming: "_Incoming") -> None:
        """Registers an unauthenticated connection; at `MAX_UNPROVEN` connections aborts the oldest first.

        A slot needs milliseconds to authenticate, so the oldest connection is hardly a slot's.
        """
        while len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.abort()
        self._unproven[incoming] = None

    def proved(self, incoming: "_Incoming") -> None:
        self._unproven.pop(incoming, None)

    def admit(self, incoming: "_Incoming", channel: ChannelId) -> None:
        """Admits an authenticated connection, or makes a connection of a later generation wait."""
        if channel.token > self._token:
            if len(self._waiting) >= _MOST_WAITING:
                incoming.abort()
                return
            replaced = self._waiting.pop(channel, None)
            if replaced is not None:
                replaced.abort()
            self._waiting[channel] = incoming
            self._lost.pop(channel, None)
            incoming.wait()
            return
        self._admit(incoming, channel)

    def _admit(self, incoming: "_Incoming", channel: ChannelId) -> None:
        if channel not in self._missing:
            incoming.abort()  # an old token, an unknown channel, or a second connection of a channel
            return
        self._missing.discard(channel)
        self._open[incoming] = None
        incoming.begin(self._expected[channel])
        if not self._missing:
            self._complete.set()

    def opened(self, connection: "_Connection") -> None:
        self._open[connection] = None

    def lost(self, connection: "_Connection", channel: ChannelId | None, reason: str) -> None:
        if channel is not None and self._waiting.get(channel) is connection:
            del self._waiting[channel]
            if len(self._lost) < _MOST_WAITING:
                self._lost[channel] = reason
        if connection in self._open:
            del self._open[connection]
            if channel is not None and channel.token == self._token:
                self._broken(channel, reason)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, plane: TcpDataPlane) -> None:
        self._plane = plane
        self._channel: ChannelId | None = None
        self._reason = ""
        self._finished = False  # EndOfInput went through: the end of the connection is no failure
        self.peer = -1  # slot at the other end, once known
        self._quiet = 0  # calls of `beat` since bytes came
        self._idle = True  # nothing was sent since the last call of `beat`

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        end_when_unanswered(transport.get_extra_info("socket"), round(self._plane.timeout_s * 1000))

    def beat(self) -> int:
        """Sends a sign of life if nothing else was sent. Returns the number of calls since bytes came."""
        if self._finished or self.transport.is_closing():
            return 0
        if self._idle and not self.transport.get_write_buffer_size():
            self._send_alive()
        self._idle = True
        self._quiet += 1
        return self._quiet

    def _send_alive(self) -> None:
        raise NotImplementedError

    def connection_lost(self, error: Exception | None) -> None:
        if self._finished:
            return
        self._plane.lost(self, self._channel, self._reason or (str(error) if error else "closed by the other slot"))

    def abort(self) -> None:
        transport = getattr(self, "transport", None)
        if transport is not None:
            transport.abort()

    def _fail(self, reason: str) -> None:
        self._reason = reason
        self.abort()


class _Incoming(_Connection):
    """Downstream end: handshake, then frames into an input channel within the credit."""

    def __init__(self, plane: TcpDataPlane) -> None:
        super().__init__(plane)
        self._handshake = Acceptor(
            nonce=secrets.token_bytes(NONCE_BYTES),
            purpose="data",
            secret_of=lambda hello: plane.secret if (hello.job, hello.run_id) == (plane.job, plane.run_id) else None,
        )
        self._reader = FrameReader()
        self._target: InputChannel | None = None
        self._received = 0  # bytes of frames
        self._credit = 0
        self._timeout: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._plane.came(self)
        self._timeout = asyncio.get_running_loop().call_later(
            HANDSHAKE_TIMEOUT_S, self._fail, "the handshake did not finish in time"
        )

    def data_received(self, data: bytes) -> None:
        if self._target is not None:
            self._frames(data)
            return
        if self._channel is not None:
            self._fail("data came before the channel was admitted")
            return
        try:
            answer = self._handshake.feed(data)
            if answer:
                self.transport.write(answer)
            session = self._handshake.session
            if session is None:
                return
            if self._handshake.unread():
                raise HandshakeFailed("data came before the channel was admitted")
            self._channel = _CHANNEL_ID.decode(session.hello.claims)
            self.peer = self._channel.source_slot
        except (HandshakeFailed, *UNREADABLE) as error:
            self._fail(str(error))
            return
        self._proven_or_gone()
        self._plane.admit(self, self._channel)

    def wait(self) -> None:
        """Confirms to the other end that the claims arrived, ahead of their generation."""
        self.transport.write(_NOT_YET)

    def begin(self, target: InputChannel) -> None:
        self._target = target
        target.when_credit(self._send_credit)
        self.transport.write(_ADMITTED)
        self._send_credit()

    def _frames(self, data: bytes) -> None:
        target = self._target
        assert target is not None
        self._quiet = 0
        self._received += len(data)
        try:
            for element, size in self._reader.feed(data):
                target.push(element, size)
                if isinstance(element, EndOfInput):
                    self._finished = True
        except FrameError as error:
            self._fail(str(error))

    def _send_credit(self) -> None:
        target = self._target
        assert target is not None
        credit = self._received + target.credit
        if credit > self._credit and not self._finished and not self.transport.is_closing():
            self._credit, self._idle = credit, False
            self.transport.write(_CREDIT.pack(credit))

    def _send_alive(self) -> None:
        """Repeats the credit, which includes signs of life of the other end."""
        self._send_credit()
        if self._idle:
            self.transport.write(_CREDIT.pack(self._credit))

    def _proven_or_gone(self) -> None:
        self._plane.proved(self)
        if self._timeout is not None:
            self._timeout.cancel()

    def connection_lost(self, error: Exception | None) -> None:
        self._proven_or_gone()
        super().connection_lost(error)


class _Outgoing(_Connection):
    """Upstream end: an `OutputChannel`."""

    def __init__(self, plane: TcpDataPlane, channel: ChannelId, wake_writer: Callable[[], None]) -> None:
        super().__init__(plane)
        self._channel = channel
        self.peer = channel.target_slot
        self._handshake = Initiator(
            plane.secret,
            job=plane.job,
            run_id=plane.run_id,
            purpose="data",
            claims=msgspec.msgpack.encode(channel),
            nonce=secrets.token_bytes(NONCE_BYTES),
        )
        self._writer = FrameWriter()
        self._wake_writer = wake_writer
        self._sent = 0  # bytes of frames
        self._credit = 0
        self._credit_bytes = b""  # incomplete bytes of a credit
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()  # the peer knows the channel
        self.ready: asyncio.Future[None] = loop.create_future()  # the peer has reached this generation

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        if self.ready.done():
            self._take_credit(data)
            return
        try:
            if self._handshake.session is None:
                self.transport.write(self._handshake.feed(data))
                if self._handshake.session is None:
                    return
                data = self._handshake.unread()
            if data and not self.proven.done():
                self.proven.set_result(None)
                data = data.removeprefix(_NOT_YET)
            if data:
                if not data.startswith(_ADMITTED):
                    raise HandshakeFailed("the downstream slot did not admit the channel: connection closed")
                self._plane.opened(self)
                self._take_credit(data[len(_ADMITTED) :])
                self.ready.set_result(None)
        except HandshakeFailed as error:
            self._fail(str(error))

    def connection_lost(self, error: Exception | None) -> None:
        for step in (self.proven, self.ready):
            if not step.done():
                step.set_exception(ConnectionError(self._reason or f"refused by the other slot ({error})"))
                step.exception()  # marks the exception as retrieved, because the waiter may have given up
        super().connection_lost(error)

    @property
    def admitted(self) -> bool:
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    @property
    def writable(self) -> bool:
        return self._sent < self._credit

    def _send_alive(self) -> None:
        alive = self._writer.alive()
        self._sent += len(alive)
        self.transport.write(alive)

    def _take_credit(self, data: bytes) -> None:
        self._quiet = 0
        self._credit_bytes += data
        whole = len(self._credit_bytes) // _CREDIT.size * _CREDIT.size
        if not whole:
            return
        waiting = not self.writable
        self._credit = max(self._credit, *(credit for (credit,) in _CREDIT.iter_unpack(self._credit_bytes[:whole])))
        self._credit_bytes = self._credit_bytes[whole:]
        if waiting and self.writable:
            self._wake_writer()

    def send(self, element: Element) -> None:
        if self.transport.is_closing():
            return  # `connection_lost` follows and fails the generation
        try:
            chunks = self._writer.encode(element)
        except FrameError as error:
            raise BarrierRuntimeError(f"channel {self._channel}: {error}") from error
        self._sent += sum(map(len, chunks))
        self._idle = False
        self.transport.writelines(chunks)
        if isinstance(element, EndOfInput):
            self._finished = True
