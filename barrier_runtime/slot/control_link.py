"""The slot's end of its control connection: connect, prove, register, and do it again whenever it is lost.

The slot goes on working while the coordinator is away. Messages sent meanwhile are dropped on purpose: what matters
(unresolved acks, phase, what is committed) is said again by the slot after every registration.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Protocol, cast

from coordinator.codec import decode_to_slot, encode
from coordinator.handshake import NONCE_BYTES, Framing, Initiator
from coordinator.messages import ToCoordinator, ToSlot
from state.errors import ProtocolViolation

log = logging.getLogger("barrier_runtime.control")

_CONNECT_TIMEOUT_S = 5.0
_LASTING_S = 5.0  # of silence; a coordinator that is started again is back sooner
_RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.5)  # then the last one, for as long as the slot lives


class ControlLink(Protocol):
    """The local runtime has one without sockets."""

    def send(self, message: ToCoordinator) -> None: ...

    @property
    def last_contact(self) -> float:
        """When the last message from the coordinator came; by default on `time.monotonic()`."""
        ...


class TcpControlLink:
    """`on_connected` is called after each handshake, `on_message` for each message; both on the loop."""

    def __init__(
        self,
        address: tuple[str, int],
        secret: bytes,
        job: str,
        run_id: str,
        claims: bytes,
        on_connected: Callable[[], None],
        on_message: Callable[[ToSlot], None],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._address = address
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
        """Keep connected until `close`."""
        attempt = 0
        while not self._closed:
            connection = _ControlConnection(self)
            try:
                loop = asyncio.get_running_loop()
                await asyncio.wait_for(
                    loop.create_connection(lambda connection=connection: connection, *self._address),  # type: ignore[misc]
                    _CONNECT_TIMEOUT_S,
                )
                await asyncio.wait_for(connection.proven, _CONNECT_TIMEOUT_S)
                attempt = 0
                self._connection = connection
                self.last_contact = self._now_s()
                self._on_connected()
                await connection.lost
            except (OSError, asyncio.TimeoutError) as error:
                self._note(f"{type(error).__name__}: {error}")
            finally:
                self._connection = None
                connection.abort()
            if not self._closed:
                await asyncio.sleep(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
                attempt += 1

    def _note(self, trouble: str) -> None:
        """Into the executor's log once it lasts: who looks for a slot that never came finds the reason there."""
        self.last_trouble = trouble
        if self._now_s() - self.last_contact >= _LASTING_S and trouble != self._logged:
            self._logged = trouble
            log.warning("the coordinator at %s:%d is out of reach: %s; trying on", *self._address, trouble)

    def close(self) -> None:
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    def initiator(self) -> Initiator:
        return Initiator(
            self._secret,
            job=self._job,
            run_id=self._run_id,
            purpose="control",
            claims=self._claims,
            nonce=secrets.token_bytes(NONCE_BYTES),
        )

    def received(self, payloads: list[bytes]) -> None:
        self.last_contact = self._now_s()
        for payload in payloads:
            self._on_message(decode_to_slot(payload))


class _ControlConnection(asyncio.Protocol):
    transport: asyncio.Transport
    _framing: Framing

    def __init__(self, link: TcpControlLink) -> None:
        self._link = link
        self._trouble = ""
        self._handshake = link.initiator()
        loop = asyncio.get_running_loop()
        self.proven: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is one in all but name
        self.transport.write(self._handshake.hello())

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake.session is None:
                self.transport.write(self._handshake.feed(data))
                if self._handshake.session is None:
                    return
                self._framing = self._handshake.session.framing()
                self.proven.set_result(None)
                data = self._handshake.leftover()
            if data:
                self._link.received(self._framing.feed(data))
        except ProtocolViolation as error:
            self._trouble = self._link.last_trouble = str(error)
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.proven.done():
            self.proven.set_exception(ConnectionError(self._trouble or f"closed by the coordinator ({error})"))
            self.proven.exception()  # retrieved: the waiter may have given up already
        if not self.lost.done():
            self.lost.set_result(None)

    def send(self, payload: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(self._framing.frame(payload))

    def close(self) -> None:
        """After what was written has gone out."""
        self.transport.close()

    def abort(self) -> None:
        transport = getattr(self, "transport", None)
        if transport is not None:
            transport.abort()
