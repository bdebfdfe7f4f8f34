"""Port for slots: handshake, framing, and messages into the job's runner. asyncio TCP.

Until a peer has proven knowledge of the secret, the peer gets a few KiB of memory, a few seconds, and one of
`MAX_UNPROVEN` places. If all places are taken, the oldest peer is disconnected.
"""

import asyncio
import contextlib
import logging
import os
import socket

import msgspec

from barrier_runtime.coordinator.option_table import DAEMON_OPTIONS
from barrier_runtime.coordinator.server.jobs import JobDirectory, NotHere
from barrier_runtime.coordinator.wire.codec import decode_to_coordinator, encode_to_slot
from barrier_runtime.coordinator.wire.framing import Framing
from barrier_runtime.coordinator.wire.handshake import (
    KEY_BYTES,
    NONCE_BYTES,
    Acceptor,
    HandshakeFailed,
    Hello,
    PeerSession,
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
from barrier_runtime.coordinator.wire.peers import LineLimit, Policy, across_hosts, never
from barrier_runtime.coordinator.wire.versions import PROTOCOL
from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, InvalidJob, ProtocolViolation
from barrier_runtime.state.ids import check_job_id
from barrier_runtime.state.sockets import end_when_unanswered
from barrier_runtime.state.tls import PeerTls, TlsListener

log = logging.getLogger("coordinator.control")

HANDSHAKE_TIMEOUT_S: float = DAEMON_OPTIONS["handshake_timeout"].default
MAX_UNPROVEN = 1_280  # more than a job has slots: slots that connect together must not evict each other
MAX_UNSENT_BYTES = 64 * 1024 * 1024
_READ_BYTES = 256 * 1024
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
        self._directory = directory
        self._listening = listening
        self._timeout_s = handshake_timeout_s
        self._encrypts = encrypts if tls is None else never
        self._tls = tls
        self._lines = LineLimit()
        self._unproven: dict[asyncio.StreamWriter, None] = {}  # oldest first
        self._server: asyncio.Server | TlsListener | None = None
        self._writers: dict[asyncio.StreamWriter, None] = {}  # oldest first

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listening.getsockname()[:2]
        return str(host), int(port)

    async def start(self) -> None:
        if self._tls is None:
            self._server = await asyncio.start_server(
                self._serve, sock=self._listening, limit=_READ_BYTES, backlog=MAX_UNPROVEN
            )
            return
        loop = asyncio.get_running_loop()

        def protocol() -> asyncio.StreamReaderProtocol:
            return asyncio.StreamReaderProtocol(asyncio.StreamReader(_READ_BYTES, loop), self._serve, loop)

        self._server = TlsListener(
            self._listening,
            self._tls.accepting,
            protocol,
            self._log_unproven,
            timeout_s=self._timeout_s,
            most=MAX_UNPROVEN,
        )

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers[writer] = None
        peer = writer.get_extra_info("peername")
        try:
            _no_delay(writer)
            self._make_room()
            await self._speak(reader, writer)
        except HandshakeFailed as error:
            self._log_unproven(peer, str(error))
        except BarrierRuntimeError as error:
            log.warning("connection from %s closed: %s", peer, error)
        except (ConnectionError, OSError) as error:
            log.debug("connection from %s broke: %s", peer, error)
        finally:
            del self._writers[writer]
            writer.close()

    def _log_unproven(self, peer: object, reason: str) -> None:
        line = self._lines.line(peer, reason, asyncio.get_running_loop().time())
        if line is not None:
            log.warning("%s", line)

    def _make_room(self) -> None:
        while len(self._unproven) >= MAX_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]
            oldest.transport.abort()

    async def _speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._unproven[writer] = None
        try:
            session, framing, first = await asyncio.wait_for(self._prove(reader, writer), self._timeout_s)
        except asyncio.TimeoutError as error:  # here, because ETIMEDOUT of a slot is a TimeoutError, too
            raise HandshakeFailed("handshake took too long") from error
        finally:
            self._unproven.pop(writer, None)
        register = _register(session, first[0]) if first else _of_other_protocol(session, writer)
        hello = session.hello
        link = TcpLink(writer, framing, hello.version if first else PROTOCOL_VERSION)
        runner = await self._directory.for_slot(hello.job, hello.run_id)
        if isinstance(runner, NotHere):
            if not runner.fenced:  # ordinary if daemons stand by for each other
                log.debug("slot %d of job %s sent elsewhere: %s", register.slot, hello.job, runner.reason)
                link.send(TryElsewhere(runner.reason))
                return
            link.send(Shutdown("fenced", runner.reason))
            raise InvalidJob(runner.reason)
        end_when_unanswered(writer.get_extra_info("socket"), runner.spec.slot_timeout_ms)
        runner.slot_connected(link, register)
        try:
            if not first:
                return  # later messages cannot be read
            payloads = first[1:]
            while True:
                for payload in payloads:
                    runner.slot_message(link, decode_to_coordinator(payload, hello.version))
                data = await reader.read(_READ_BYTES)
                if not data:
                    return
                payloads = framing.feed(data)
        finally:
            runner.slot_disconnected(link)

    async def _prove(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[PeerSession, Framing, list[bytes]]:
        """Returns no payloads for another version of the protocol."""
        acceptor = Acceptor(
            nonce=os.urandom(NONCE_BYTES),
            purpose="control",
            secret_of=self._secret_of,
            private=os.urandom(KEY_BYTES),
            encrypted=self._encrypts(writer.get_extra_info("peername")),
        )
        while acceptor.session is None:
            writer.write(acceptor.feed(await _some(reader)))
        framing = acceptor.session.framing()
        if acceptor.session.hello.version not in ACCEPTED_PROTOCOLS:
            return acceptor.session, framing, []
        payloads = framing.feed(acceptor.unread())
        while not payloads:
            payloads = framing.feed(await _some(reader))
        return acceptor.session, framing, payloads

    def _secret_of(self, hello: Hello) -> bytes | None:
        try:
            return self._directory.secret(check_job_id(hello.job), check_job_id(hello.run_id))
        except InvalidJob:
            return None


class TcpLink:
    def __init__(self, writer: asyncio.StreamWriter, framing: Framing, version: int) -> None:
        self._version = version
        self._writer = writer
        self._framing = framing

    def send(self, message: ToSlot) -> None:
        if self._writer.is_closing():
            return
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.warning("a slot does not read what it is sent: connection closed")
            self._writer.transport.abort()
            return
        data = encode_to_slot(message, self._version)
        if data is not None:
            self._writer.write(self._framing.frame(data))

    def close(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop may be closing
            self._writer.close()


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


def _of_other_protocol(session: PeerSession, writer: asyncio.StreamWriter) -> Register:
    """Returns a Register, to be refused, of a slot that proved the secret in another version."""
    claims, host = _claims(session), str((writer.get_extra_info("peername") or ("unknown",))[0])
    versions = {PROTOCOL: str(session.hello.version)}
    return Register(claims.slot, claims.uuid, 0, host, 0, "", 0, 0, "idle", versions=versions)


async def _some(reader: asyncio.StreamReader) -> bytes:
    data = await reader.read(_READ_BYTES)
    if not data:
        raise ConnectionResetError("closed during the handshake")
    return data


def _no_delay(writer: asyncio.StreamWriter) -> None:
    raw = writer.get_extra_info("socket")
    if raw is not None:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
