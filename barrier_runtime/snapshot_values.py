"""Reading the small named values of a snapshot: the version first, then all of it, and nothing that is anything else.

Typed data, never pickle (behaviours B4, B6). What cannot be read stops the restore with the place and the remedy; it is
never skipped, because a source or operator without its value would start over and write rows twice.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from state.errors import UNREADABLE, Corrupt, InvalidJob

T = TypeVar("T")


class _Versioned(msgspec.Struct, frozen=True):
    version: int = 1


def decode_json(data: bytes, kind: type[T], where: str, version: int = 1) -> T:
    return _decoded(lambda wanted: msgspec.json.decode(data, type=wanted), kind, where, version)


def decode_msgpack(data: bytes, kind: type[T], where: str, version: int = 1) -> T:
    return _decoded(lambda wanted: msgspec.msgpack.decode(data, type=wanted), kind, where, version)


def _decoded(decode: Callable[[type], object], kind: type[T], where: str, version: int) -> T:
    try:
        found = decode(_Versioned)
        assert isinstance(found, _Versioned)
        if found.version != version:
            raise InvalidJob(
                f"{where}: its snapshot has format {found.version}, this release reads {version}: "
                "restore with the release that wrote it, or a newer one"
            )
        value = decode(kind)
    except UNREADABLE as error:
        raise Corrupt(
            f"{where}: its snapshot is not readable ({error}): restore an intact copy of the checkpoint, or another one"
        ) from error
    assert isinstance(value, kind)
    return value
