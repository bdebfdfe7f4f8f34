"""End of a data connection: bytes after the handshake, encrypted or not, signs of life, and loss.

An encrypted connection carries the same bytes in frames of `wire/framing`; credit counts sizes before encryption.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, cast

import pyarrow as pa

from barrier_runtime.coordinator.wire.framing import Framing
from barrier_runtime.coordinator.wire.handshake import KEY_BYTES, PeerSession
from barrier_runtime.coordinator.wire.peers import Policy
from barrier_runtime.runtime.network.data_plane import ChannelId
from barrier_runtime.state.sockets import end_when_unanswered

_TOGETHER = 64 * 1024  # bytes that are joined before encryption: copying them costs less than a frame each
PART_BYTES = 256 * 1024  # of a large buffer per encrypted frame: the receiver decrypts while more arrives

Chunks = Iterable[bytes | pa.Buffer]


class Plane(Protocol):
    """Part of the data plane that a connection calls; the class is `tcp.TcpDataPlane`."""

    timeout_s: float
    encrypts: Policy

    def lost(self, connection: "DataConnection", channel: ChannelId | None, reason: str) -> None: ...


class DataConnection(asyncio.Protocol):
    transport: asyncio.Transport
    _write: Callable[[Chunks], None]  # sends bytes; replaced when the handshake has agreed on keys

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._channel: ChannelId | None = None
        self._reason = ""
        self._finished = False  # EndOfInput went through: the end of the connection is no failure
        self.peer = -1  # slot at the other end, once known
        self._quiet = 0  # calls of `beat` since bytes came
        self._idle = True  # nothing was sent since the last call of `beat`
        self._read: Callable[[bytes], bytes] = _as_they_are

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's transport is not a subclass
        self._write = self.transport.writelines
        end_when_unanswered(transport.get_extra_info("socket"), round(self._plane.timeout_s * 1000))

    def _encrypts(self) -> bool:
        return self._plane.encrypts(self.transport.get_extra_info("peername"))

    def _agreed(self, session: PeerSession) -> None:
        """Encrypts from now on if the handshake agreed on keys. Raises `FrameRejected` when bytes were changed."""
        if session.encrypted:
            framing = session.framing(PART_BYTES)
            writelines = self.transport.writelines
            self._write = lambda chunks: writelines(encrypted(framing, chunks))
            self._read = lambda data: b"".join(framing.feed(data))

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


def new_private_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


def encrypted(framing: Framing, chunks: Chunks) -> list[bytes]:
    """Returns encrypted frames for the bytes of `chunks`: one for small chunks, parts without a copy for large."""
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
