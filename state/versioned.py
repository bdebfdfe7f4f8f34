"""One decoder of everything that is stored under a version number: the version first, then all of it, or an error.

A `Format` says what a thing is called in messages, which versions this release reads, and what to do about others and
about damage. `VersionedDecoder` reads JSON and MessagePack that has a field `version`; what has its version elsewhere
(a byte, a magic text, a table) asks `Format.check`.

Typed data, never pickle (behaviours B4, B6). What cannot be read is refused with the place and the remedy; it is never
skipped, because a source or operator without its value would start over and write rows twice.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from barrier_runtime.state.errors import UNREADABLE, BarrierRuntimeError, Corrupt, InvalidJob

T = TypeVar("T")


@dataclass(frozen=True)
class Format:
    """One kind of stored thing. This release writes `version` and reads all from `oldest` to it."""

    subject: str  # of messages; "{}" stands for the place: "manifest {}", "{}: a committable"
    version: int
    damaged: str  # the remedy for what no release has written
    newer: str = "a newer release wrote it: use that release, or a newer one"
    oldest: int = 1
    refusal: type[BarrierRuntimeError] = InvalidJob  # of another version

    def check(self, found: int, where: str = "") -> None:
        """Raise `refusal` for a version that this release does not read."""
        if self.oldest <= found <= self.version:
            return
        reads = str(self.version) if self.oldest == self.version else f"{self.oldest} to {self.version}"
        raise self.refusal(
            f"{self.subject.format(where)} has version {found}, this release reads {reads}: "
            f"{self.newer if found > self.version else self.damaged}"
        )

    def unreadable(self, what: object, where: str = "") -> Corrupt:
        """The error for bytes that are not such a thing. `what`: what is wrong with them."""
        return Corrupt(f"{self.subject.format(where)} is not readable ({what}): {self.damaged}")


def check_magic(data: bytes, magic: bytes, format: Format, where: str) -> None:
    """Raise unless `data` begins as `magic` does (a text, "-", digits, end of line), with a version that is read."""
    name = magic[: magic.rindex(b"-") + 1]
    digits, end, _ = data[: len(magic) + 8].removeprefix(name).partition(b"\n")
    if not (data.startswith(name) and end and digits.isdigit()):
        raise format.unreadable("it begins with something else", where)
    format.check(int(digits), where)


class _Versioned(msgspec.Struct, frozen=True):
    version: int = 1  # where it is left out because it is the default


_JSON_VERSION = msgspec.json.Decoder(_Versioned)
_MSGPACK_VERSION = msgspec.msgpack.Decoder(_Versioned)


class VersionedDecoder(Generic[T]):
    """What `decoder` reads, of the versions of `format`. Made when its module is imported, as any decoder."""

    def __init__(self, format: Format, decoder: msgspec.json.Decoder[T] | msgspec.msgpack.Decoder[T]) -> None:
        self.format = format
        self._version = _JSON_VERSION if isinstance(decoder, msgspec.json.Decoder) else _MSGPACK_VERSION
        self._decoder = decoder

    def decode(self, data: bytes, where: str) -> T:
        """`where`: the place, for messages. Raises the format's refusal, or `Corrupt` for what is not readable."""
        try:
            self.format.check(self._version.decode(data).version, where)
            return self._decoder.decode(data)
        except UNREADABLE as error:
            raise self.format.unreadable(error, where) from error
