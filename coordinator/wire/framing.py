"""Frames after the handshake, with proof of origin and order, between loopback addresses. Pure.

    frame = length u32 BE · sequence u64 BE · MAC 16 · payload

Encrypted frames are in `wire/sealing`.
"""

import hmac
import struct

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES
from barrier_runtime.state.errors import ProtocolViolation

PREFIX = struct.Struct(">IQ")  # length and sequence of a frame
_MAC_BYTES = 16
_SEQUENCE = struct.Struct(">Q")
FRAME_OVERHEAD = PREFIX.size + _MAC_BYTES


class FrameRejected(ProtocolViolation):
    """A frame with a wrong MAC, sequence or length. Close the connection and ignore the frame."""


class Framing:
    """Payloads <-> authenticated bytes, in order. One instance per connection."""

    def __init__(self, send_key: bytes, receive_key: bytes, max_payload: int = MAX_MESSAGE_BYTES) -> None:
        self._send_key = send_key
        self._receive_key = receive_key
        self._max_payload = max_payload
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()

    def frame(self, payload: bytes | memoryview) -> bytes:
        """Returns the next frame to send."""
        if len(payload) > self._max_payload:
            raise FrameRejected(
                f"frame of {len(payload)} bytes is over the cap of {self._max_payload}: send less at once"
            )
        frame = self._sealed(self._sent, payload)
        self._sent += 1
        return frame

    def feed(self, data: bytes) -> list[bytes]:
        """Returns all complete payloads. Raises `FrameRejected`; the connection is useless after that."""
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
        mac = hmac.digest(self._send_key, _SEQUENCE.pack(sequence) + payload, "sha256")[:_MAC_BYTES]
        return b"".join((PREFIX.pack(len(payload), sequence), mac, payload))

    def _opened(self, sequence: int, sealed: memoryview) -> bytes:
        """Returns the payload of the bytes after the prefix of a frame."""
        payload = bytes(sealed[_MAC_BYTES:])
        expected = hmac.digest(self._receive_key, _SEQUENCE.pack(sequence) + payload, "sha256")[:_MAC_BYTES]
        if not hmac.compare_digest(sealed[:_MAC_BYTES], expected):
            raise FrameRejected(f"frame {sequence} has a wrong MAC: connection closed")
        return payload
