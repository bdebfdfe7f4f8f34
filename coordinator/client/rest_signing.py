"""Signed calls of REST: the token is the key of a MAC and is never sent. Pure, except for the nonces seen.

    Authorization: BarrierRuntime-HMAC-SHA256 <time ms>:<nonce>:<MAC>

The MAC covers method, path with query, `SIGNED_HEADERS`, SHA-256 of the body, time and nonce. A server accepts each
nonce once, within `WINDOW_MS` of its own clock. The secret in an answer is masked with a MAC of the nonce, so that only
the caller reads the secret.
"""

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from barrier_runtime.coordinator.client.rest_types import STORAGE_HEADER

SCHEME = "BarrierRuntime-HMAC-SHA256"
SIGNED_HEADERS = ("X-Request-Id", STORAGE_HEADER)
WINDOW_MS = 300_000
NONCE_CHARACTERS = 32
_MOST_NONCES = 1_000_000  # of holders of the token within the window

Verdict = Literal["", "not understood", "another time", "repeated", "wrong"]


def signing_key(token: str | bytes) -> bytes:
    """Returns the key of a token's signatures: a different value, so that neither can stand for the other."""
    token = token.encode() if isinstance(token, str) else token
    return hmac.digest(token, b"barrier-runtime signing key", "sha256")


@dataclass(frozen=True)
class Call:
    """The signed part of a call, as sent. `target`: path with query. `covered`: values of `SIGNED_HEADERS`."""

    method: str
    target: bytes
    body: bytes
    covered: tuple[bytes, ...]


def covered(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    """Returns the values of `SIGNED_HEADERS`, empty for a missing header."""
    return tuple(headers.get(name, "").encode("ascii") for name in SIGNED_HEADERS)


def signature(key: bytes, call: Call, time_ms: int, nonce: str) -> str:
    """Returns the value of `Authorization`. `nonce`: random, new for each call."""
    return f"{SCHEME} {time_ms}:{nonce}:{_mac(key, call, time_ms, nonce)}"


def masked(key: bytes, nonce: str, secret: bytes) -> bytes:
    """Hides a secret of at most 32 bytes in the answer to the call with `nonce`, or reveals what this call hid."""
    mask = hmac.digest(key, b"answer:" + nonce.encode(), "sha256")
    return bytes(each ^ other for each, other in zip(secret, mask, strict=True))


def nonce_of(authorization: str) -> str:
    """Returns the nonce of a signed call; empty for a call that is not signed."""
    parts = _parts(authorization)
    return parts[1] if parts else ""


class Signatures:
    """Checks signatures for a token, and remembers the nonces of the window."""

    def __init__(self, token: bytes) -> None:
        self.key = signing_key(token)
        self._seen: OrderedDict[str, int] = OrderedDict()  # nonce -> time until which a repetition is refused

    def verdict(self, authorization: str, call: Call, now_ms: int) -> Verdict:
        """Returns why the call is refused; empty: accepted, once."""
        parts = _parts(authorization)
        if parts is None:
            return "not understood"
        time_ms, nonce, mac = parts
        if not hmac.compare_digest(mac, _mac(self.key, call, time_ms, nonce)):
            return "wrong"
        if abs(now_ms - time_ms) > WINDOW_MS:
            return "another time"
        return "" if self._is_new(nonce, now_ms) else "repeated"

    def _is_new(self, nonce: str, now_ms: int) -> bool:
        while self._seen and (next(iter(self._seen.values())) < now_ms or len(self._seen) >= _MOST_NONCES):
            self._seen.popitem(last=False)
        if nonce in self._seen:
            return False
        self._seen[nonce] = now_ms + 2 * WINDOW_MS
        return True


def _parts(authorization: str) -> tuple[int, str, str] | None:
    scheme, _, given = authorization.partition(" ")
    time_ms, *others = given.split(":")
    known = scheme == SCHEME and len(others) == 2 and time_ms.isdecimal() and time_ms.isascii() and len(time_ms) < 18
    if not known or len(others[0]) != NONCE_CHARACTERS or not given.isascii():
        return None
    return int(time_ms), others[0], others[1]


def _mac(key: bytes, call: Call, time_ms: int, nonce: str) -> str:
    body = hashlib.sha256(call.body).digest()
    said = (call.method.encode(), call.target, *call.covered, body, str(time_ms).encode(), nonce.encode())
    framed = b"".join(len(part).to_bytes(4, "big") + part for part in said)
    return hmac.new(key, framed, "sha256").hexdigest()
