"""Slot's end of the control connection.

Messages sent without a connection are dropped: the slot sends the state that matters after every registration.
"""

import asyncio
import logging
import secrets
import ssl
import time
import zlib
from collections.abc import Callable
from typing import Protocol, cast

from barrier_runtime.coordinator.option_table import OPTIONS
from barrier_runtime.coordinator.wire.codec import decode_to_slot, encode
from barrier_runtime.coordinator.wire.framing import Framing
from barrier_runtime.coordinator.wire.handshake import KEY_BYTES, NONCE_BYTES, Initiator, Policy, across_hosts
from barrier_runtime.coordinator.wire.messages import ToCoordinator, ToSlot, TryElsewhere
from barrier_runtime.runtime.network.connection import within
from barrier_runtime.state.errors import InvalidJob, ProtocolViolation
from barrier_runtime.state.sockets import end_when_unanswered
from barrier_runtime.state.tls import PeerTls, reason

log = logging.getLogger("barrier_runtime.control")

_CONNECT_TIMEOUT_S = 2.0  # the kernel would repeat a lost request after 1, 3 and 7 s
_HANDSHAKE_TIMEOUT_S = 5.0
_SILENT_S = 3.0  # without an answer to a heartbeat; only if there is another daemon
_LASTING_S = 5.0  # silence that is logged; a restarted coordinator is back sooner
_RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # then the last value, for as long as the slot lives


class ControlLink(Protocol):
    def send(self, message: ToCoordinator) -> None: ...

    @property
    def last_contact(self) -> float:
        """Time of the coordinator's last message, on `time.monotonic()` by default."""
        ...


class TcpControlLink:
    """Calls `on_connected` after each handshake and `on_message` for each message, both on the loop."""

    def __init__(
        self,
        addresses: tuple[tuple[str, int], ...],
        secret: bytes,
        job: str,
        run_id: str,
        claims: bytes,
        on_connected: Callable[[], None],
        on_message: Callable[[ToSlot], None],
        now_s: Callable[[], float] = time.monotonic,
        timeout_s: float = OPTIONS["slot_timeout"].default,
    ) -> None:
        self.timeout_s = timeout_s
        self.encrypts: Policy = across_hosts
        self.tls: PeerTls | None = None
        if not addresses:
            raise InvalidJob(f"job {job}: no coordinator address was given to the slot: give at least one")
        self._addresses = addresses
        self._at = 0
        self._secret = secret
        self._job = job
        self._run_id = run_id
        self._claims = claims
        self._on_connected = on_connected
        self._on_message = on_message
        self._connection: _ControlConnection | None = None
        self._closed = False
        self._now_s = now_s
        self.last_contact = now_s()
        self.last_trouble = ""
        self._logged = ""

    def send(self, message: ToCoordinator) -> None:
        if self._connection is not None:
            self._connection.send(encode(message))

    async def run(self) -> None:
        failures = 0
        while not self._closed:
            connection = _ControlConnection(self)
            stay = False
            try:
                stay = await self._serve(connection)
            except (OSError, asyncio.TimeoutError) as error:
                told = f"{type(error).__name__}: {error}".removesuffix(": ")
                self._note(reason(error) if isinstance(error, ssl.SSLError) else told)
            finally:
                self._connection = None
                connection.abort()
            failures = 0 if connection.heard_s is not None else failures + 1
            if not stay:
                self._at = (self._at + 1) % len(self._addresses)
            if not self._closed:
                await asyncio.sleep(self._pause_s(failures))

    def _pause_s(self, failures: int) -> float:
        """Seconds until the next attempt, different for each slot; every address is tried before the pauses grow."""
        rounds, position = divmod(failures, len(self._addresses))
        spread = zlib.crc32(b"%d" % failures, zlib.crc32(self._claims)) / 2**32
        return _RETRY_S[0 if position else min(rounds, len(_RETRY_S) - 1)] * (1 + spread / 2)

    async def _serve(self, connection: "_ControlConnection") -> bool:
        """True if the coordinator served and may be back at once."""
        loop = asyncio.get_running_loop()
        context = None if self.tls is None else self.tls.connecting.context()
        connecting = loop.create_connection(lambda: connection, *self._addresses[self._at], ssl=context)
        await within(_CONNECT_TIMEOUT_S if context is None else _HANDSHAKE_TIMEOUT_S, connecting)
        await within(_HANDSHAKE_TIMEOUT_S, connection.proven)
        self._connection = connection
        self._on_connected()
        if len(self._addresses) == 1:
            await connection.lost
            return True
        began = loop.time()
        while not connection.lost.done():
            heard_s = began if connection.heard_s is None else connection.heard_s
            left_s = heard_s + _SILENT_S - loop.time()
            if left_s <= 0:
                self._note(f"it has not answered for {_SILENT_S:g} s")
                return False
            await asyncio.wait([connection.lost], timeout=left_s)
        return connection.heard_s is not None

    def _note(self, trouble: str) -> None:
        """Logs in the executor's log, where people look for a missing slot."""
        self.last_trouble = trouble
        if self._now_s() - self.last_contact >= _LASTING_S and trouble != self._logged:
            self._logged = trouble
            log.warning("the coordinator at %s:%d is out of reach: %s; trying on", *self._addresses[self._at], trouble)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def initiator(self, peer: object) -> Initiator:
        return Initiator(
            self._secret,
            job=self._job,
            run_id=self._run_id,
            purpose="control",
            claims=self._claims,
            nonce=secrets.token_bytes(NONCE_BYTES),
            private=secrets.token_bytes(KEY_BYTES) if self.tls is None and self.encrypts(peer) else b"",
        )

    def received(self, connection: "_ControlConnection", payloads: list[bytes]) -> None:
        for payload in payloads:
            message = decode_to_slot(payload)
            if isinstance(message, TryElsewhere):
                self._note(message.reason)
                continue
            connection.heard_s = asyncio.get_running_loop().time()
            self.last_contact = self._now_s()
            self._on_message(message)


class _ControlConnection(asyncio.Protocol):
    transport: asyncio.Transport
    _handshake: Initiator
    _framing: Framing

    def __init__(self, link: TcpControlLink) -> None:
        self._link = link
        self._trouble = ""
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()
        self.heard_s: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        end_when_unanswered(transport.get_extra_info("socket"), round(self._link.timeout_s * 1000))
        self._handshake = self._link.initiator(transport.get_extra_info("peername"))
        self.transport.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake.session is None:
                self.transport.write(self._handshake.feed(data))
                if self._handshake.session is None:
                    return
                self._framing = self._handshake.session.framing()
                if self.proven.done():  # `_serve` has given up this connection
                    return
                self.proven.set_result(None)
                data = self._handshake.unread()
            if data:
                self._link.received(self, self._framing.feed(data))
        except ProtocolViolation as error:
            self._trouble = self._link.last_trouble = str(error)
            self.transport.abort()

    def eof_received(self) -> None:
        self.transport.abort()  # `close` would wait until unsent bytes are sent

    def connection_lost(self, error: Exception | None) -> None:
        if not self.proven.done():
            self.proven.set_exception(ConnectionError(self._trouble or f"closed by the coordinator ({reason(error)})"))
            self.proven.exception()  # marks the exception as retrieved: the waiter may have given up
        if not self.lost.done():
            self.lost.set_result(None)

    def send(self, payload: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._framing.frame(payload))

    def close(self) -> None:
        self.transport.close()

    def abort(self) -> None:
        transport = getattr(self, "transport", None)
        if transport is not None:
            transport.abort()
