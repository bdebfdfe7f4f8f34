"""Reading a committable: typed JSON with a version, and nothing that is anything else."""

from collections.abc import Collection
from typing import TypeVar

import msgspec

from barrier_runtime.state.errors import UNREADABLE, Corrupt, InvalidJob

T = TypeVar("T")


class _Version(msgspec.Struct, frozen=True):
    version: int


_VERSION = msgspec.json.Decoder(_Version)


def decode_versioned(
    data: bytes,
    decoder: msgspec.json.Decoder[T],
    version: int,
    where: str,
    undone: str = "committed",
    older: Collection[int] = (),
) -> T:
    """`data` as what `decoder` reads, of this version or of one of those `older` that it reads as well. Raises
    `InvalidJob` for another version, `Corrupt` for what is not readable. `undone`: what the message says was not done
    with its rows."""
    try:
        found = _VERSION.decode(data).version
        if found != version and found not in older:
            raise InvalidJob(
                f"{where}: a committable of version {found}, this release reads {version}: "
                "restore with the release that wrote the checkpoint"
            )
        return decoder.decode(data)
    except UNREADABLE as error:
        raise Corrupt(
            f"{where}: a committable is not readable ({error}): nothing was {undone} or deleted; "
            "restore an intact copy of the checkpoint"
        ) from error
