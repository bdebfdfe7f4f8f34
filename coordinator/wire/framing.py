"""Frames after the handshake, with proof of origin and order, between loopback addresses. Pure.

frame = length u32 BE · sequence u64 BE · MAC 16 · payload
"""

import hmac
import struct

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES
from barrier_runtime.state.errors import ProtocolViolation

PREFIX = struct.Struct(">IQ")
_MAC_BYTES = 16
_SEQUENCE = struct.Struct(">Q")
FRAME_OVERHEAD = PREFIX.size + _MAC_BYTES


class FrameRejected(ProtocolViolation):
    """Close the connection and ignore the frame."""


def _mac(keyed: hmac.HMAC, sequence: int, payload: bytes | memoryview) -> bytes:
    """A copy of `keyed` saves hashing the key, most of the work for small frames."""
    mac = keyed.copy()
    mac.update(_SEQUENCE.pack(sequence))
    mac.update(payload)
    return mac.digest()[:_MAC_BYTES]


class Framing:
    """One instance per connection."""

    def __init__(self, send_key: bytes, receive_key: bytes, max_payload: int = MAX_MESSAGE_BYTES) -> None:
        self._sender = hmac.new(send_key, digestmod="sha256")
        self._receiver = hmac.new(receive_key, digestmod="sha256")
        self._send_key = send_key
        self._receive_key = receive_key
        self._max_payload = max_payload
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()

    def frame(self, payload: bytes | memoryview) -> bytes:
        if len(payload) > self._max_payload:
            raise FrameRejected(
                f"frame of {len(payload)} bytes is over the cap of {self._max_payload}: send less at once"
            )
        frame = self._sealed(self._sent, payload)
        self._sent += 1
        return frame

    def feed(self, data: bytes) -> list[bytes]:
        """Returns all complete payloads. Close the connection after `FrameRejected`."""
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        start = 0
        while len(buffer) - start >= FRAME_OVERHEAD:
            size, sequence = PREFIX.unpack_from(buffer, start)
            if size > self._max_payload:
                raise FrameRejected(f"frame announces {size} bytes, the cap is {self._max_payload}: connection closed")
            if sequence != self._received:
                raise FrameRejected(f"frame {sequence} came where {self._received} was due: connection closed")
            end = start + FRAME_OVERHEAD + size
            if len(buffer) < end:
                break
            payloads.append(self._opened(sequence, memoryview(buffer)[start + PREFIX.size : end]))
            self._received += 1
            start = end
        if start:
            del buffer[:start]
        return payloads

    def _sealed(self, sequence: int, payload: bytes | memoryview) -> bytes:
        return b"".join((PREFIX.pack(len(payload), sequence), _mac(self._sender, sequence, payload), payload))

    def _opened(self, sequence: int, sealed: memoryview) -> bytes:
        payload = bytes(sealed[_MAC_BYTES:])
        expected = _mac(self._receiver, sequence, payload)
        if not hmac.compare_digest(sealed[:_MAC_BYTES], expected):
            raise FrameRejected(f"frame {sequence} has a wrong MAC: connection closed")
        return payload
