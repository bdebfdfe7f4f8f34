"""X25519 keys and frames encrypted with AES-256-GCM. Pure.

    frame = length u32 BE · sequence u64 BE · ciphertext · tag 16

The nonce is the sequence, which the receiver checks; each direction has another key. After `_FRAMES_OF_A_KEY` frames
both ends replace the key by a hash of the key.
"""

import hmac
import struct

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from barrier_runtime.coordinator.wire.framing import PREFIX, FrameRejected, Framing

_NONCE = struct.Struct(">4xQ")
_FRAMES_OF_A_KEY = 1 << 16  # far below the limits of AES-GCM


def public_key(private: bytes) -> bytes:
    key: bytes = X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
    return key


def shared_key(private: bytes, public: bytes) -> bytes:
    key: bytes = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return key


class SealedFraming(Framing):
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
