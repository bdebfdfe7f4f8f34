"""Reading a committable: typed JSON with a version, and nothing that is anything else."""

from collections.abc import Collection
from typing import TypeVar

import msgspec

from state.errors import UNREADABLE, Corrupt, InvalidJob

T = TypeVar("T")


class _Version(msgspec.Struct, frozen=True):
    version: int


def decode_versioned(
    data: bytes, kind: type[T], version: int, where: str, undone: str = "committed", older: Collection[int] = ()
) -> T:
    """`data` as a `kind` of this version, or of one of those `older` that `kind` can hold as well. Raises `InvalidJob`
    for another version, `Corrupt` for what is not readable. `undone`: what the message says was not done with its
    rows."""
    try:
        found = msgspec.json.decode(data, type=_Version).version
        if found != version and found not in older:
            raise InvalidJob(
                f"{where}: a committable of version {found}, this release reads {version}: "
                "restore with the release that wrote the checkpoint"
            )
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise Corrupt(
            f"{where}: a committable is not readable ({error}): nothing was {undone} or deleted; "
            "restore an intact copy of the checkpoint"
        ) from error
