"""Decodes everything that is stored with a version: the version first, then the rest; hashes of stored bytes.

Unreadable data is refused with place and remedy, never skipped: a source or operator without the stored value would
start over and write rows twice.
"""

import hashlib
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, Corrupt, InvalidJob

T = TypeVar("T")


class NewerVersion(Corrupt):
    """A newer release wrote what this release refuses as unreadable; nothing is damaged."""


@dataclass(frozen=True)
class Format:
    """This release writes `version` and reads `oldest` to `version`."""

    subject: str  # for messages; "{}" stands for the place
    version: int
    damaged: str  # remedy for bytes that no release has written
    newer: str = "a newer release wrote it: use that release, or a newer one"
    oldest: int = 1
    refusal: type[BarrierRuntimeError] = InvalidJob  # error for another version

    def check(self, found: int, where: str = "") -> None:
        if self.oldest <= found <= self.version:
            return
        reads = str(self.version) if self.oldest == self.version else f"{self.oldest} to {self.version}"
        refusal = NewerVersion if self.refusal is Corrupt and found > self.version else self.refusal
        raise refusal(
            f"{self.subject.format(where)} has version {found}, this release reads {reads}: "
            f"{self.newer if found > self.version else self.damaged}"
        )

    def unreadable(self, what: object, where: str = "") -> Corrupt:
        """`what`: the fault."""
        return Corrupt(f"{self.subject.format(where)} is not readable ({what}): {self.damaged}")


def check_magic(data: bytes, magic: bytes, format: Format, where: str) -> None:
    """`magic`: text, "-", digits, end of line."""
    name = magic[: magic.rindex(b"-") + 1]
    digits, end, _ = data[: len(magic) + 8].removeprefix(name).partition(b"\n")
    if not (data.startswith(name) and end and digits.isdigit()):
        raise format.unreadable("it begins with something else", where)
    format.check(int(digits), where)


class _Versioned(msgspec.Struct, frozen=True):
    version: int = 1  # for data without the field


_JSON_VERSION = msgspec.json.Decoder(_Versioned)
_MSGPACK_VERSION = msgspec.msgpack.Decoder(_Versioned)


class VersionedDecoder(Generic[T]):
    def __init__(self, format: Format, decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]) -> None:
        self.format = format
        self._version = _JSON_VERSION if isinstance(decoder, msgspec.json.Decoder) else _MSGPACK_VERSION
        self._decoder = decoder

    def decode(self, data: bytes, where: str) -> T:
        try:
            self.format.check(self._version.decode(data).version, where)
            return self._decoder.decode(data)
        except UNREADABLE as error:
            raise self.format.unreadable(error, where) from error


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
