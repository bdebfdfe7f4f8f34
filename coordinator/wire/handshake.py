"""Mutual HMAC-SHA256 authentication of control and data connections; peers that encrypt. Sans-io.

    initiator                                   acceptor
      Hello {version, job, run_id, purpose, claims, nonce, X}  →
      ←  Challenge {nonce, HMAC(secret, "acceptor" + transcript), Y}
      Proof {HMAC(secret, "initiator" + transcript)}  →
      ← frames →          keys = HMAC(HMAC(secret, X25519(X, Y)), direction + transcript)

Every MAC covers both nonces, all fields and the free `claims`. Before the proof a peer gets memory only for a small
hello.

Each handshake message is `length u16 BE · MessagePack`. X and Y are public keys of the connection; between loopback
addresses they are missing, and frames carry a MAC. Design: docs/design/wire-encryption.md.
"""

import hashlib
import hmac
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec

from barrier_runtime.coordinator.wire.codec import MAX_MESSAGE_BYTES, MESSAGES
from barrier_runtime.coordinator.wire.framing import Framing
from barrier_runtime.coordinator.wire.messages import ACCEPTED_PROTOCOLS, DATA_VERSION, PROTOCOL_VERSION
from barrier_runtime.state.errors import UNREADABLE, ProtocolViolation
from barrier_runtime.state.hosts import is_loopback

Policy = Callable[[Any], bool]  # takes an address as `socket.getpeername` returns it, or None


def across_hosts(peer: Any) -> bool:
    return not peer or not is_loopback(str(peer[0]))


def never(peer: Any) -> bool:
    """The operator trusts the network (`insecure_network_ok`)."""
    return False


LINES = 10
PER_S = 60.0


@dataclass
class LineLimit:
    """Allows `LINES` lines per `PER_S` seconds."""

    _period_s: float = float("-inf")
    _lines: int = 0
    _left_out: int = 0  # since the last line

    def left_out_before(self, now_s: float) -> int | None:
        """Lines left out before this line; None: leave out this line too."""
        if now_s - self._period_s >= PER_S:
            self._period_s, self._lines = now_s, 0
        if self._lines == LINES:
            self._left_out += 1
            return None
        self._lines += 1
        left_out, self._left_out = self._left_out, 0
        return left_out

    def line(self, peer: object, reason: str, now_s: float) -> str | None:
        left_out = self.left_out_before(now_s)
        if left_out is None:
            return None
        more = f" (and {left_out} more such connections before)" if left_out else ""
        return f"connection from {peer} closed: {reason}{more}"


Purpose = Literal["control", "data"]

NONCE_BYTES = KEY_BYTES = 32
MAX_HANDSHAKE_BYTES = 4096
_MAGIC = "barrier-runtime"
_SMALL = struct.Struct(">H")
_OF_TLS = 0x1603  # first bytes of TLS, longer than any handshake message


def job_secret(daemon_key: bytes, job: str, run_id: str) -> bytes:
    """Derived so that a restarted coordinator needs a single key."""
    return hmac.digest(daemon_key, f"job-secret:{job}:{run_id}".encode(), "sha256")


class HandshakeFailed(ProtocolViolation):
    """Close the connection and ignore all bytes."""


_DATA = replace(
    MESSAGES, subject="the handshake of a peer", version=DATA_VERSION, oldest=DATA_VERSION, refusal=HandshakeFailed
)


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    magic: str
    version: int
    job: str
    run_id: str
    purpose: Purpose
    claims: bytes
    nonce: bytes
    key: bytes = b""  # public key; empty: frames are not encrypted


class _Challenge(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    nonce: bytes
    mac: bytes
    key: bytes = b""


class _Proof(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    mac: bytes


@dataclass(frozen=True, repr=False)
class PeerSession:
    """Never printed."""

    hello: Hello
    send_key: bytes
    receive_key: bytes

    @property
    def encrypted(self) -> bool:
        return bool(self.hello.key)

    def framing(self, max_payload: int = MAX_MESSAGE_BYTES) -> Framing:
        if self.encrypted:
            from barrier_runtime.coordinator.wire.sealing import SealedFraming

            return SealedFraming(self.send_key, self.receive_key, max_payload)
        return Framing(self.send_key, self.receive_key, max_payload)


_Small = TypeVar("_Small", Hello, _Challenge, _Proof)
_HELLO = msgspec.msgpack.Decoder(Hello)
_CHALLENGE = msgspec.msgpack.Decoder(_Challenge)
_PROOF = msgspec.msgpack.Decoder(_Proof)


class Initiator:
    """The connecting side. Send `hello()`; then pass received bytes to `feed` and send the result.

    `private`: `KEY_BYTES` random bytes; empty: no encryption.
    """

    def __init__(
        self,
        secret: bytes,
        *,
        job: str,
        run_id: str,
        purpose: Purpose,
        claims: bytes,
        nonce: bytes,
        private: bytes = b"",
    ) -> None:
        _check_nonce(nonce)
        self._secret = secret
        self._private = private
        version = DATA_VERSION if purpose == "data" else PROTOCOL_VERSION
        self._hello = Hello(_MAGIC, version, job, run_id, purpose, claims, nonce, _public(private))
        self._buffer = bytearray()
        self.session: PeerSession | None = None

    def hello(self) -> bytes:
        return _small_frame(self._hello)

    def feed(self, data: bytes) -> bytes:
        """Returns bytes to send. `session`: set when done; then `unread()` is for the framing."""
        self._buffer += data
        if self.session is not None:
            return b""
        challenge = _take(self._buffer, _CHALLENGE)
        if challenge is None:
            return b""
        _check_nonce(challenge.nonce)
        transcript = _transcript(self._hello, challenge.nonce, challenge.key)
        if not hmac.compare_digest(challenge.mac, _mac(self._secret, b"acceptor", transcript)):
            raise HandshakeFailed(f"the coordinator or peer of job {self._hello.job} does not know its secret: {_WHO}")
        root = _root(self._secret, self._private, challenge.key)
        self.session = PeerSession(
            self._hello,
            send_key=_mac(root, b"initiator frames", transcript),
            receive_key=_mac(root, b"acceptor frames", transcript),
        )
        self._private = b""  # nobody can compute this connection's keys again
        return _small_frame(_Proof(_mac(self._secret, b"initiator", transcript)))

    def unread(self) -> bytes:
        return _drain(self._buffer)


class Acceptor:
    """The listening side. `secret_of` returns the secret for a hello; None: refuse.

    `private`: `KEY_BYTES` random bytes for peers that encrypt. `encrypted`: refuse other peers.
    """

    def __init__(
        self,
        *,
        nonce: bytes,
        purpose: Purpose,
        secret_of: Callable[[Hello], bytes | None],
        private: bytes = b"",
        encrypted: bool = False,
    ) -> None:
        _check_nonce(nonce)
        self._nonce = nonce
        self._private = private
        self._encrypted = encrypted
        self._key = b""  # empty: not encrypted
        self._purpose = purpose
        self._secret_of = secret_of
        self._buffer = bytearray()
        self._secret = b""
        self._hello: Hello | None = None
        self.session: PeerSession | None = None

    def feed(self, data: bytes) -> bytes:
        self._buffer += data
        if self.session is not None:
            return b""
        if self._hello is None:
            hello = _take(self._buffer, _HELLO)
            if hello is None:
                return b""
            if self._buffer:  # a proof needs the acceptor's nonce: early bytes could only fill memory
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
        if hello.purpose != self._purpose:
            raise HandshakeFailed(f"a {hello.purpose} connection came to a {self._purpose} port: check the addresses")
        if self._purpose == "data":  # a coordinator refuses other versions after the proof
            _DATA.check(hello.version)
        _check_nonce(hello.nonce)
        spoken = self._purpose == "data" or hello.version in ACCEPTED_PROTOCOLS
        if not hello.key and self._encrypted and spoken:
            raise HandshakeFailed(f"a peer of job {hello.job!r} does not encrypt: {_PLAINTEXT}")
        if hello.key and not self._private:
            raise HandshakeFailed(f"a peer of job {hello.job!r} encrypts, and this end has no key: connection closed")
        secret = self._secret_of(hello)
        if secret is None:
            raise HandshakeFailed(f"job {hello.job!r} run {hello.run_id!r} is not known here: check job and address")
        self._hello, self._secret = hello, secret
        self._key = _public(self._private) if hello.key else b""
        mac = _mac(secret, b"acceptor", _transcript(hello, self._nonce, self._key))
        return _small_frame(_Challenge(self._nonce, mac, self._key))

    def _prove(self, hello: Hello, proof: _Proof) -> None:
        transcript = _transcript(hello, self._nonce, self._key)
        if not hmac.compare_digest(proof.mac, _mac(self._secret, b"initiator", transcript)):
            raise HandshakeFailed(f"a peer of job {hello.job!r} does not know its secret: {_WHO}")
        root = _root(self._secret, self._private if hello.key else b"", hello.key)
        self.session = PeerSession(
            hello,
            send_key=_mac(root, b"acceptor frames", transcript),
            receive_key=_mac(root, b"initiator frames", transcript),
        )
        self._private = b""


_PLAINTEXT = (
    "connections from other hosts must be encrypted; use the same release and the same insecure_network_ok= everywhere"
)
_WHO = "a wrong address, another cluster's process, or an attacker"


def _transcript(hello: Hello, acceptor_nonce: bytes, acceptor_key: bytes) -> bytes:
    said = (_fields(hello), acceptor_nonce, acceptor_key) if hello.key else (_fields(hello), acceptor_nonce)
    return hashlib.sha256(msgspec.msgpack.encode(said)).digest()


def _public(private: bytes) -> bytes:
    if not private:
        return b""
    from barrier_runtime.coordinator.wire.sealing import public_key

    return public_key(private)


def _root(secret: bytes, private: bytes, peer: bytes) -> bytes:
    if not private:
        return secret
    from barrier_runtime.coordinator.wire.sealing import shared_key

    try:
        return hmac.digest(secret, b"exchanged:" + shared_key(private, peer), "sha256")
    except ValueError as error:
        raise HandshakeFailed(f"a peer's key cannot be used ({error}): connection closed") from error


def _mac(secret: bytes, label: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, label + b":" + transcript, "sha256")


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise HandshakeFailed(f"nonce of {len(nonce)} bytes, {NONCE_BYTES} are required: connection closed")


def _fields(message: Hello | _Challenge | _Proof) -> tuple[object, ...]:
    """Earlier versions expect no empty key."""
    fields = msgspec.structs.astuple(message)
    return fields if fields[-1] else fields[:-1]


def _small_frame(message: Hello | _Challenge | _Proof) -> bytes:
    body = msgspec.msgpack.encode(_fields(message))
    if len(body) > MAX_HANDSHAKE_BYTES:
        raise HandshakeFailed(
            f"handshake message of {len(body)} bytes is over {MAX_HANDSHAKE_BYTES}: use smaller claims"
        )
    return _SMALL.pack(len(body)) + body


def _take(buffer: bytearray, decoder: msgspec.msgpack.Decoder[_Small]) -> _Small | None:
    if len(buffer) < _SMALL.size:
        return None
    (size,) = _SMALL.unpack_from(buffer)
    if size == _OF_TLS:
        raise HandshakeFailed("a peer speaks TLS, and this process has no certificate: give both tls_certificate")
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
