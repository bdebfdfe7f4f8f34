"""Port for slots: handshake, framing, and messages into the job's runner. asyncio TCP.

Until a peer has proven knowledge of the secret, the peer gets a few KiB of memory, a few seconds, and one of
`MAX_UNPROVEN` places. If all places are taken, the oldest peer is disconnected.
"""

import asyncio
import contextlib
import logging
import os
import socket
from typing import cast

import msgspec

from barrier_runtime.coordinator.option_table import DAEMON_OPTIONS
from barrier_runtime.coordinator.server.jobs import JobDirectory, NotHere
from barrier_runtime.coordinator.server.runner import JobRunner
from barrier_runtime.coordinator.wire.codec import decode_to_coordinator, encode_to_slot
from barrier_runtime.coordinator.wire.framing import Framing
from barrier_runtime.coordinator.wire.handshake import (
    KEY_BYTES,
    NONCE_BYTES,
    Acceptor,
    HandshakeFailed,
    Hello,
    LineLimit,
    PeerSession,
    Policy,
    across_hosts,
    never,
)
from barrier_runtime.coordinator.wire.messages import (
    ACCEPTED_PROTOCOLS,
    PROTOCOL_VERSION,
    Register,
    Shutdown,
    SlotClaims,
    ToSlot,
    TryElsewhere,
)
from barrier_runtime.coordinator.wire.versions import PROTOCOL
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob, ProtocolViolation
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.sockets import end_when_unanswered
from barrier_runtime.state.tls import PeerTls, TlsListener

log = logging.getLogger("coordinator.control")

HANDSHAKE_TIMEOUT_S: float = DAEMON_OPTIONS["handshake_timeout"].default
MAX_UNPROVEN = 1_280  # more than a job has slots, which must not evict each other
MAX_UNSENT_BYTES = 64 * 1024 * 1024
_READ_BYTES = 64 * 1024
_CLAIMS = msgspec.msgpack.Decoder(SlotClaims)


class ControlServer:
    def __init__(
        self,
        directory: JobDirectory,
        listening: socket.socket,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        encrypts: Policy = across_hosts,
        tls: PeerTls | None = None,
    ) -> None:
        """`tls`: of every connection, instead of encryption by `encrypts`."""
        self.directory = directory
        self.timeout_s = handshake_timeout_s
        self.encrypts = encrypts if tls is None else never
        self._listening = listening
        self._tls = tls
        self._lines = LineLimit()
        self._unproven: dict[_Connection, None] = {}  # oldest first
        self._server: asyncio.Server | TlsListener | None = None
        self._connections: dict[_Connection, None] = {}  # oldest first
        self._encoded: tuple[ToSlot, int, bytes | None] | None = None
        self.read = memoryview(bytearray(_READ_BYTES))

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listening.getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: _Connection(self), sock=self._listening, backlog=MAX_UNPROVEN
            )
            return
        self._server = TlsListener(
            self._listening,
            self._tls.accepting,
            lambda: _Connection(self),
            self.log_unproven,
            timeout_s=self.timeout_s,
            most=MAX_UNPROVEN,
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.abort()

    # ------------------------------------------------------------ called by connections

    def came(self, connection: "_Connection") -> None:
        while len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.abort()
        self._unproven[connection] = self._connections[connection] = None

    def proved(self, connection: "_Connection") -> None:
        self._unproven.pop(connection, None)

    def left(self, connection: "_Connection") -> None:
        self._unproven.pop(connection, None)
        self._connections.pop(connection, None)

    def log_unproven(self, peer: object, reason: str) -> None:
        line = self._lines.line(peer, reason, asyncio.get_running_loop().time())
        if line is not None:
            log.warning("%s", line)

    def secret_of(self, hello: Hello) -> bytes | None:
        try:
            return self.directory.secret(check_job_id(hello.job), check_job_id(hello.run_id))
        except InvalidJob:
            return None

    def encoded(self, message: ToSlot, version: int) -> bytes | None:
        """As `encode_to_slot`. The same message often goes to all slots, one after the other."""
        known = self._encoded
        if known is None or known[0] is not message or known[1] != version:
            known = self._encoded = (message, version, encode_to_slot(message, version))
        return known[2]


class _Connection(asyncio.BufferedProtocol):
    """Handshake, Register, then messages of a slot.

    All connections share a buffer: asyncio's own has 256 KiB, which the C library maps anew for each read.
    """

    transport: asyncio.Transport
    _acceptor: Acceptor
    _timeout: asyncio.TimerHandle

    def __init__(self, server: ControlServer) -> None:
        self._server = server
        self._framing: Framing | None = None
        self._runner: JobRunner | None = None
        self._link: TcpLink | None = None
        self._version = PROTOCOL_VERSION
        self._registering: asyncio.Task[None] | None = None
        self._early: list[bytes] = []  # payloads until the job is found; none if they cannot be read

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        _no_delay(transport)
        self._server.came(self)
        self._acceptor = Acceptor(
            nonce=os.urandom(NONCE_BYTES),
            purpose="control",
            secret_of=self._server.secret_of,
            private=os.urandom(KEY_BYTES),
            encrypted=self._server.encrypts(self._peer),
        )
        self._timeout = asyncio.get_running_loop().call_later(self._server.timeout_s, self._too_slow)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._server.read

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(bytes(self._server.read[:nbytes]))

    def data_received(self, data: bytes) -> None:
        try:
            if self._runner is not None:
                self._take(self._runner, self._proven.feed(data))
            elif self._registering is None:
                self._prove(data)
            elif self._early:
                self._early += self._proven.feed(data)
        except HandshakeFailed as error:
            self._server.log_unproven(self._peer, str(error))
            self._end()
        except BarrierRuntimeError as error:
            self._refuse(error)

    def eof_received(self) -> None:
        self.transport.abort()  # `close` would wait until unsent bytes are sent

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None:
            log.debug("connection from %s broke: %s", self._peer, error)
        self._end()
        self._server.left(self)

    def abort(self) -> None:
        self.transport.abort()

    @property
    def _peer(self) -> object:
        return self.transport.get_extra_info("peername")

    @property
    def _proven(self) -> Framing:
        assert self._framing is not None
        return self._framing

    def _too_slow(self) -> None:
        self._server.log_unproven(self._peer, "handshake took too long")
        self._end()

    def _prove(self, data: bytes) -> None:
        if self._framing is None:
            self.transport.write(self._acceptor.feed(data))
            if self._acceptor.session is None:
                return
            self._framing = self._acceptor.session.framing()
            data = self._acceptor.unread()
        session = self._acceptor.session
        assert session is not None
        if session.hello.version in ACCEPTED_PROTOCOLS:
            self._early = self._framing.feed(data)
            if not self._early:
                return
            self._version, register = session.hello.version, _register(session, self._early[0])
        else:
            register = _of_other_protocol(session, self._peer)
        self._timeout.cancel()
        self._server.proved(self)
        self.transport.pause_reading()
        self._registering = asyncio.get_running_loop().create_task(self._register(session.hello, register))

    async def _register(self, hello: Hello, register: Register) -> None:
        served = False
        try:
            link = TcpLink(self._server, self.transport, self._proven, self._version)
            runner = await self._server.directory.for_slot(hello.job, hello.run_id)
            if isinstance(runner, NotHere):
                if runner.fenced:
                    link.send(Shutdown("fenced", runner.reason))
                    raise InvalidJob(runner.reason)
                # ordinary if daemons stand by for each other
                log.debug("slot %d of job %s sent elsewhere: %s", register.slot, hello.job, runner.reason)
                link.send(TryElsewhere(runner.reason))
                return
            if self.transport.is_closing():
                return
            end_when_unanswered(self.transport.get_extra_info("socket"), runner.spec.slot_timeout_ms)
            self._runner, self._link = runner, link
            runner.slot_connected(link, register)
            if self._early:
                self._take(runner, self._early[1:])
                self.transport.resume_reading()
                served = True
        except BarrierRuntimeError as error:
            self._refuse(error)
        except OSError as error:
            log.debug("connection from %s broke: %s", self._peer, error)
        except Exception:  # a bug; nobody awaits this task
            log.exception("connection from %s closed by an internal error", self._peer)
        finally:
            if not served:
                self._end()

    def _take(self, runner: JobRunner, payloads: list[bytes]) -> None:
        assert self._link is not None
        for payload in payloads:
            runner.slot_message(self._link, decode_to_coordinator(payload, self._version))

    def _refuse(self, error: BarrierRuntimeError) -> None:
        log.warning("connection from %s closed: %s", self._peer, error)
        self._end()

    def _end(self) -> None:
        """May be called repeatedly."""
        self._timeout.cancel()
        self._server.proved(self)
        if self._runner is not None and self._link is not None:
            self._runner.slot_disconnected(self._link)
        self.transport.close()


class TcpLink:
    def __init__(self, server: ControlServer, transport: asyncio.Transport, framing: Framing, version: int) -> None:
        self._server = server
        self._version = version
        self._transport = transport
        self._framing = framing

    def send(self, message: ToSlot) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("a slot does not read what it is sent: connection closed")
            self._transport.abort()
            return
        data = self._server.encoded(message, self._version)
        if data is not None:
            self._transport.write(self._framing.frame(data))

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closing
            self._transport.close()


def _register(session: PeerSession, payload: bytes) -> Register:
    """The first message must repeat the claims of the handshake (G7)."""
    message = decode_to_coordinator(payload, session.hello.version)
    if not isinstance(message, Register):
        raise ProtocolViolation(f"the first message was {type(message).__name__}, not Register: connection closed")
    claims = _claims(session)
    if (claims.slot, claims.uuid) != (message.slot, message.uuid):
        raise ProtocolViolation(
            f"slot {message.slot} ({message.uuid}) registered on a connection that was proven for slot {claims.slot} "
            f"({claims.uuid}): connection closed"
        )
    return message


def _claims(session: PeerSession) -> SlotClaims:
    try:
        return _CLAIMS.decode(session.hello.claims)
    except UNREADABLE as error:
        raise ProtocolViolation(f"the handshake's claims are unreadable ({error}): connection closed") from error


def _of_other_protocol(session: PeerSession, peer: object) -> Register:
    """A Register that will be refused."""
    claims, host = _claims(session), str(peer[0] if isinstance(peer, tuple) else "unknown")
    versions = {PROTOCOL: str(session.hello.version)}
    return Register(claims.slot, claims.uuid, 0, host, 0, "", 0, 0, "idle", versions=versions)


def _no_delay(transport: asyncio.BaseTransport) -> None:
    raw = transport.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
