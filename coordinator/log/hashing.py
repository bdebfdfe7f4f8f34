"""sha256 of stored bytes, and the error for damaged bytes."""

import hashlib

from barrier_runtime.state.errors import Corrupt


def sha256_hex(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def stamp_of(data: bytes, stamp: str) -> str:
    """Returns the sha256 of a record's bytes, perhaps of another release, without `stamp`, the value of `check`."""
    return sha256_hex(data.replace(f'"check":"{stamp}"'.encode(), b'"check":""', 1))


def check_sha256(name: str, data: bytes, expected: str) -> None:
    found = sha256_hex(data)
    if found != expected:
        raise Corrupt(
            f"object {name} is damaged: expected sha256 {expected}, found {found}: restore the object from a backup "
            "of the store, or start from another checkpoint (restore=<id>, allow_replay) after checking the sinks"
        )
