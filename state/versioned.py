"""Reading the small named values of a snapshot: the version first, then all of it, and nothing that is anything else.

Typed data, never pickle (behaviours B4, B6). What cannot be read stops the restore with the place and the remedy; it is
never skipped, because a source or operator without its value would start over and write rows twice.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from barrier_runtime.state.errors import UNREADABLE, Corrupt, InvalidJob

T = TypeVar("T")


class _Versioned(msgspec.Struct, frozen=True):
    version: int = 1


_JSON_VERSION = msgspec.json.Decoder(_Versioned)
_MSGPACK_VERSION = msgspec.msgpack.Decoder(_Versioned)


def decode_json(
    data: bytes, decoder: msgspec.json.Decoder[T], where: str, version: int = 1, *, oldest: int | None = None
) -> T:
    """`oldest`: version that can be read, too, with all between."""
    return _decoded(data, _JSON_VERSION.decode, decoder.decode, where, version, oldest)


def decode_msgpack(data: bytes, decoder: msgspec.msgpack.Decoder[T], where: str, version: int = 1) -> T:
    return _decoded(data, _MSGPACK_VERSION.decode, decoder.decode, where, version)


def _decoded(
    data: bytes,
    version_of: Callable[[bytes], _Versioned],
    decode: Callable[[bytes], T],
    where: str,
    version: int,
    oldest: int | None = None,
) -> T:
    try:
        found = version_of(data)
        if not (version if oldest is None else oldest) <= found.version <= version:
            raise InvalidJob(
                f"{where}: its snapshot has format {found.version}, this release reads {version}: "
                "restore with the release that wrote it, or a newer one"
            )
        return decode(data)
    except UNREADABLE as error:
        raise Corrupt(
            f"{where}: its snapshot is not readable ({error}): restore an intact copy of the checkpoint, or another one"
        ) from error
