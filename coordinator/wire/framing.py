"""Frames after the handshake, with proof of origin and order: plain, or encrypted with AES-256-GCM. Pure.

    frame = length u32 BE · sequence u64 BE · MAC 16 · payload          `Framing`, between loopback addresses
    frame = length u32 BE · sequence u64 BE · ciphertext · tag 16       `SealedFraming`

The nonce of a sealed frame is the sequence, which the receiver checks; each direction of a connection has another key.
After `_FRAMES_OF_A_KEY` frames both ends replace the key by a hash of the key. Only this file imports `cryptography`.
"""

import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES
from barrier_runtime.state.errors import ProtocolViolation

PREFIX = struct.Struct(">IQ")  # length and sequence of a frame
_MAC_BYTES = 16
_SEQUENCE = struct.Struct(">Q")
_NONCE = struct.Struct(">4xQ")
_FRAMES_OF_A_KEY = 1 << 16  # far below the limits of AES-GCM for frames of a MiB
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


def public_key(private: bytes) -> bytes:
    key: bytes = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return key


def shared_key(private: bytes, public: bytes) -> bytes:
    """Returns the secret that both ends compute. Raises `ValueError` for bytes that are no key of a peer."""
    key: bytes = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return key


class SealedFraming(Framing):
    """Payloads <-> encrypted frames, in order. One instance per connection."""

    def __init__(self, send_key: bytes, receive_key: bytes, max_payload: int) -> None:
        super().__init__(send_key, receive_key, max_payload)
        self._sealer, self._opener = AESGCM(send_key), AESGCM(receive_key)

    def _sealed(self, sequence: int, payload: bytes | memoryview) -> bytes:
        if sequence and not sequence % _FRAMES_OF_A_KEY:
            self._send_key = _next(self._send_key)
            self._sealer = AESGCM(self._send_key)
        sealed: bytes = self._sealer.encrypt(_NONCE.pack(sequence), payload, None)
        return PREFIX.pack(len(payload), sequence) + sealed

    def _opened(self, sequence: int, sealed: memoryview) -> bytes:
        if sequence and not sequence % _FRAMES_OF_A_KEY:
            self._receive_key = _next(self._receive_key)
            self._opener = AESGCM(self._receive_key)
        try:
            payload: bytes = self._opener.decrypt(_NONCE.pack(sequence), sealed, None)
        except InvalidTag:
            raise FrameRejected(f"encrypted frame {sequence} was changed on its way: connection closed") from None
        return payload


def _next(key: bytes) -> bytes:
    return hmac.digest(key, b"next key", "sha256")
