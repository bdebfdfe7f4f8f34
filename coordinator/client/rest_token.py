"""Secret of a daemon: the bearer token, and the root key from which every job's secret is derived."""

import errno
import hmac
import os
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.errors import InvalidJob

MIN_TOKEN_CHARACTERS = 32


@dataclass(frozen=True, repr=False)
class Token:
    """Bearer token; only the name may ever be shown."""

    name: str
    value: bytes


def is_token(given: str, token: Token) -> bool:
    return hmac.compare_digest(given.strip().encode("utf-8", "replace"), token.value)


def daemon_key(token: str) -> bytes:
    """Returns the root key for this token: a different value, so that neither can stand for the other."""
    return hmac.digest(token.encode(), b"barrier-runtime daemon key", "sha256")


def read_token_file(path: Path) -> str:
    """Returns the token in `path`, for the daemon and its clients. No message repeats a possible token.

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
