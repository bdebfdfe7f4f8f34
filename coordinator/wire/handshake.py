"""Mutual HMAC-SHA256 authentication of two peers, then frames with proof of origin and order. Sans-io.

    initiator                                   acceptor
      Hello {version, job, run_id, purpose, claims, nonce}  →
      ←  Challenge {nonce, HMAC(secret, "acceptor" + transcript)}
      Proof {HMAC(secret, "initiator" + transcript)}  →
      ← frames →          keys = HMAC(secret, direction + transcript)

Both ends know the job's secret, which is never sent. Every MAC covers both nonces, all fields and the free `claims`, so
nothing can be replayed, and no peer can claim another slot's identity. Before the proof a peer gets no memory beyond
one small hello. Control and data connections use the same handshake.

Each handshake message is `length u16 BE · MessagePack`; each frame is `length u32 BE · sequence u64 BE · MAC 16 ·
payload`.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import msgspec

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES, MESSAGES
from barrier_runtime.coordinator.wire.messages import PROTOCOL_VERSION
from barrier_runtime.state.errors import UNREADABLE, ProtocolViolation

Purpose = Literal["control", "data"]

NONCE_BYTES = 32
MAX_HANDSHAKE_BYTES = 4096
_MAGIC = "barrier-runtime"
_SMALL = struct.Struct(">H")
_HEADER = struct.Struct(">IQ16s")
_SEQUENCE = struct.Struct(">Q")
FRAME_OVERHEAD = _HEADER.size


def job_secret(daemon_key: bytes, job: str, run_id: str) -> bytes:
    """Returns the secret of a run, derived so that a restarted coordinator needs only one key."""
    return hmac.digest(daemon_key, f"job-secret:{job}:{run_id}".encode(), "sha256")


class HandshakeFailed(ProtocolViolation):
    """The peer failed to prove who it is. Close the connection and ignore all bytes."""


class FrameRejected(ProtocolViolation):
    """A frame with a wrong MAC, sequence or length. Close the connection and ignore the frame."""


_FORMAT = replace(MESSAGES, subject="the handshake of a peer", refusal=HandshakeFailed)


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    magic: str
    version: int
    job: str
    run_id: str
    purpose: Purpose
    claims: bytes
    nonce: bytes


class _Challenge(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    nonce: bytes
    mac: bytes


class _Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    mac: bytes


@dataclass(frozen=True, repr=False)
class PeerSession:
    """Result of a handshake: the peer's hello, and one key per direction. Never printed."""

    hello: Hello
    send_key: bytes
    receive_key: bytes

    def framing(self) -> "Framing":
        return Framing(self.send_key, self.receive_key)


_Small = TypeVar("_Small", Hello, _Challenge, _Proof)
_HELLO = msgspec.msgpack.Decoder(Hello)
_CHALLENGE = msgspec.msgpack.Decoder(_Challenge)
_PROOF = msgspec.msgpack.Decoder(_Proof)


class Initiator:
    """The connecting side. Send `hello()`; then pass received bytes to `feed` and send the result."""

    def __init__(self, secret: bytes, *, job: str, run_id: str, purpose: Purpose, claims: bytes, nonce: bytes) -> None:
        _check_nonce(nonce)
        self._secret = secret
        self._hello = Hello(_MAGIC, PROTOCOL_VERSION, job, run_id, purpose, claims, nonce)
        self._buffer = bytearray()
        self.session: PeerSession | None = None

    def hello(self) -> bytes:
        return _small_frame(self._hello)

    def feed(self, data: bytes) -> bytes:
        """Returns bytes to send (maybe none). `session`: set when done; then `unread()` is for the framing."""
        self._buffer += data
        if self.session is not None:
            return b""
        challenge = _take(self._buffer, _CHALLENGE)
        if challenge is None:
            return b""
        _check_nonce(challenge.nonce)
        transcript = _transcript(self._hello, challenge.nonce)
        if not hmac.compare_digest(challenge.mac, _mac(self._secret, b"acceptor", transcript)):
            raise HandshakeFailed(f"the coordinator or peer of job {self._hello.job} does not know its secret: {_WHO}")
        self.session = PeerSession(
            self._hello,
            send_key=_mac(self._secret, b"initiator frames", transcript),
            receive_key=_mac(self._secret, b"acceptor frames", transcript),
        )
        return _small_frame(_Proof(_mac(self._secret, b"initiator", transcript)))

    def unread(self) -> bytes:
        return _drain(self._buffer)


class Acceptor:
    """The listening side. `secret_of` returns the secret for a hello, or None to refuse the peer."""

    def __init__(self, *, nonce: bytes, purpose: Purpose, secret_of: Callable[[Hello], bytes | None]) -> None:
        _check_nonce(nonce)
        self._nonce = nonce
        self._purpose = purpose
        self._secret_of = secret_of
        self._buffer = bytearray()
        self._secret = b""
        self._hello: Hello | None = None
        self.session: PeerSession | None = None

    def feed(self, data: bytes) -> bytes:
        """Returns bytes to send (maybe none). `session` is set after the peer's proof."""
        self._buffer += data
        if self.session is not None:
            return b""
        if self._hello is None:
            hello = _take(self._buffer, _HELLO)
            if hello is None:
                return b""
            if self._buffer:  # a proof needs the acceptor's nonce, so early bytes could only fill memory
                raise HandshakeFailed("a peer spoke before it was its turn: connection closed")
            return self._challenge(hello)
        proof = _take(self._buffer, _PROOF)
        if proof is not None:
            self._prove(self._hello, proof)
        return b""

    def unread(self) -> bytes:
        return _drain(self._buffer)

    def _challenge(self, hello: Hello) -> bytes:
        if hello.magic != _MAGIC:
            raise HandshakeFailed(f"a peer speaks {hello.magic[:100]!r}, not {_MAGIC!r}: check the addresses")
        if self._purpose == "data":  # a coordinator refuses other versions by name, after the proof
            _FORMAT.check(hello.version)
        if hello.purpose != self._purpose:
            raise HandshakeFailed(f"a {hello.purpose} connection came to a {self._purpose} port: check the addresses")
        _check_nonce(hello.nonce)
        secret = self._secret_of(hello)
        if secret is None:
            raise HandshakeFailed(f"job {hello.job!r} run {hello.run_id!r} is not known here: check job and address")
        self._hello, self._secret = hello, secret
        return _small_frame(_Challenge(self._nonce, _mac(secret, b"acceptor", _transcript(hello, self._nonce))))

    def _prove(self, hello: Hello, proof: _Proof) -> None:
        transcript = _transcript(hello, self._nonce)
        if not hmac.compare_digest(proof.mac, _mac(self._secret, b"initiator", transcript)):
            raise HandshakeFailed(f"a peer of job {hello.job!r} does not know its secret: {_WHO}")
        self.session = PeerSession(
            hello,
            send_key=_mac(self._secret, b"acceptor frames", transcript),
            receive_key=_mac(self._secret, b"initiator frames", transcript),
        )


class Framing:
    """Payloads <-> authenticated bytes, in order. One instance per connection."""

    def __init__(self, send_key: bytes, receive_key: bytes, max_payload: int = MAX_MESSAGE_BYTES) -> None:
        self._send_key = send_key
        self._receive_key = receive_key
        self._max_payload = max_payload
        self._sent = 0
        self._received = 0
        self._buffer = bytearray()

    def frame(self, payload: bytes) -> bytes:
        """Returns the next frame to send."""
        if len(payload) > self._max_payload:
            raise FrameRejected(
                f"frame of {len(payload)} bytes is over the cap of {self._max_payload}: send less at once"
            )
        sequence = _SEQUENCE.pack(self._sent)
        mac = hmac.digest(self._send_key, sequence + payload, "sha256")[:16]
        header = _HEADER.pack(len(payload), self._sent, mac)
        self._sent += 1
        return header + payload

    def feed(self, data: bytes) -> list[bytes]:
        """Returns all complete payloads. Raises `FrameRejected`; the connection is useless after that."""
        buffer = self._buffer
        buffer += data
        payloads: list[bytes] = []
        start = 0
        while len(buffer) - start >= FRAME_OVERHEAD:
            size, sequence, mac = _HEADER.unpack_from(buffer, start)
            if size > self._max_payload:
                raise FrameRejected(f"frame announces {size} bytes, the cap is {self._max_payload}: connection closed")
            if sequence != self._received:
                raise FrameRejected(f"frame {sequence} came where {self._received} was due: connection closed")
            end = start + FRAME_OVERHEAD + size
            if len(buffer) < end:
                break
            payload = bytes(memoryview(buffer)[start + FRAME_OVERHEAD : end])
            expected = hmac.digest(self._receive_key, _SEQUENCE.pack(sequence) + payload, "sha256")[:16]
            if not hmac.compare_digest(mac, expected):
                raise FrameRejected(f"frame {sequence} has a wrong MAC: connection closed")
            payloads.append(payload)
            self._received += 1
            start = end
        if start:
            del buffer[:start]
        return payloads


_WHO = "a wrong address, another cluster's process, or an attacker"


def _transcript(hello: Hello, acceptor_nonce: bytes) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode((hello, acceptor_nonce))).digest()


def _mac(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, label + b":" + transcript, "sha256")


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise HandshakeFailed(f"nonce of {len(nonce)} bytes, {NONCE_BYTES} are required: connection closed")


def _small_frame(message: Hello | _Challenge | _Proof) -> bytes:
    body = msgspec.msgpack.encode(message)
    if len(body) > MAX_HANDSHAKE_BYTES:
        raise HandshakeFailed(
            f"handshake message of {len(body)} bytes is over {MAX_HANDSHAKE_BYTES}: use smaller claims"
        )
    return _SMALL.pack(len(body)) + body


def _take(buffer: bytearray, decoder: msgspec.msgpack.Decoder[_Small]) -> _Small | None:
    """Removes a whole handshake message from the front of `buffer`; None if incomplete."""
    if len(buffer) < _SMALL.size:
        return None
    (size,) = _SMALL.unpack_from(buffer)
    if size > MAX_HANDSHAKE_BYTES:
        raise HandshakeFailed(f"handshake message announces {size} bytes, the cap is {MAX_HANDSHAKE_BYTES}: closed")
    if len(buffer) < _SMALL.size + size:
        return None
    body = bytes(memoryview(buffer)[_SMALL.size : _SMALL.size + size])
    del buffer[: _SMALL.size + size]
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise HandshakeFailed(f"not a handshake of barrier-runtime ({error}): connection closed") from error


def _drain(buffer: bytearray) -> bytes:
    rest = bytes(buffer)
    buffer.clear()
    return rest
