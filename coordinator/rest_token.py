"""The secret of a daemon: its bearer token, and the root key from which every job's secret is derived."""

import hmac
from dataclasses import dataclass


@dataclass(frozen=True, repr=False)
class Token:
    """Only the name may ever be shown."""

    name: str
    value: bytes


def daemon_key(token: str) -> bytes:
    """The root key that belongs to this token: another value, so that neither is sent where the other is needed."""
    return hmac.digest(token.encode(), b"barrier-runtime daemon key", "sha256")
