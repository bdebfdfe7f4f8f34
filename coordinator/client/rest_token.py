"""Token of a daemon: the bearer token, keys derived from the token, and signed calls.

    Authorization: BarrierRuntime-HMAC-SHA256 <time ms>:<nonce>:<MAC>

The token is the key of the MAC and is never sent. The MAC covers method, path with query, `SIGNED_HEADERS`, SHA-256 of
the body, time and nonce. A server accepts each nonce once, within `WINDOW_MS` of its own clock. The secret in an answer
is masked with a MAC of the nonce.
"""

import errno
import hashlib
import hmac
import os
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from barrier_runtime.state.errors import InvalidJob

MIN_TOKEN_CHARACTERS = 32
STORAGE_HEADER = "X-Storage"  # percent-encoded URL of the store that the submitting program uses


@dataclass(frozen=True, repr=False)
class Token:
    """Only the name may ever be shown."""

    name: str
    value: bytes


def is_token(given: str, token: Token) -> bool:
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.value)


def daemon_key(token: str) -> bytes:
    """Root key of job secrets; another value than the token."""
    return hmac.digest(token.encode(), b"barrier-runtime daemon key", "sha256")


def read_token_file(path: Path) -> str:
    """Reads a token. No error message repeats a possible token.

    Raises `InvalidJob` unless only the owner can read the file (G2).
    """
    if _looks_like_a_token(str(path)):
        raise InvalidJob("the token itself was given where its file is wanted: write it to a file of mode 0600")
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode  # of the opened file, not of a later file with that name
            value = file.read(65_536).decode("ascii").strip()
    except OSError as error:
        remedy = f"; make one: (umask 077; openssl rand -hex 32 > {path})" if error.errno == errno.ENOENT else ""
        raise InvalidJob(f"cannot read the token file {path}: {error.strerror}{remedy}") from error
    except UnicodeDecodeError:
        value = ""
    if mode & 0o077:
        raise InvalidJob(f"token file {path} can be read by others (mode {mode & 0o777:o}): chmod 600 {path}")
    if len(value) < MIN_TOKEN_CHARACTERS or not value.isprintable() or " " in value:
        raise InvalidJob(
            f"token file {path} holds fewer than {MIN_TOKEN_CHARACTERS} characters, or others than plain ones: "
            "use 32 random bytes in hex"
        )
    return value


def _looks_like_a_token(name: str) -> bool:
    return len(name) >= MIN_TOKEN_CHARACTERS and name.isalnum() and not os.path.exists(name)


SCHEME = "BarrierRuntime-HMAC-SHA256"
SIGNED_HEADERS = ("X-Request-Id", STORAGE_HEADER)
WINDOW_MS = 300_000
NONCE_CHARACTERS = 32
_MOST_NONCES = 1_000_000  # of holders of the token within the window

Verdict = Literal["", "not understood", "another time", "repeated", "wrong"]


def signing_key(token: str | bytes) -> bytes:
    """Key of signatures, another value than `daemon_key`."""
    token = token.encode() if isinstance(token, str) else token
    return hmac.digest(token, b"barrier-runtime signing key", "sha256")


@dataclass(frozen=True)
class Call:
    """`target`: path with query. `covered`: values of `SIGNED_HEADERS`."""

    method: str
    target: bytes
    body: bytes
    covered: tuple[bytes, ...]


def covered(headers: Mapping[str, str]) -> tuple[bytes, ...]:
    return tuple(headers.get(name, "").encode("ascii") for name in SIGNED_HEADERS)


def signature(key: bytes, call: Call, time_ms: int, nonce: str) -> str:
    return f"{SCHEME} {time_ms}:{nonce}:{_mac(key, call, time_ms, nonce)}"


def masked(key: bytes, nonce: str, secret: bytes) -> bytes:
    """Hides or reveals a secret of 32 bytes."""
    mask = hmac.digest(key, b"answer:" + nonce.encode(), "sha256")
    return bytes(each ^ other for each, other in zip(secret, mask, strict=True))


def nonce_of(authorization: str) -> str:
    """Returns "" for an unsigned call."""
    parts = _parts(authorization)
    return parts[1] if parts else ""


class Signatures:
    def __init__(self, token: bytes) -> None:
        self.key = signing_key(token)
        self._seen: OrderedDict[str, int] = OrderedDict()  # nonce -> time until which a repetition is refused

    def verdict(self, authorization: str, call: Call, now_ms: int) -> Verdict:
        """Returns why the call is refused; "": accepted, once."""
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
