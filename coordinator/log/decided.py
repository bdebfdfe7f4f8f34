"""Decided checkpoints: their manifests, and how long they may be restored. Pure.

A small manifest is inside the COMPLETE record (I2). A larger manifest is an object, stored before the record with the
manifest's hash. FENCE and COMPLETE list the positions of kept decisions (`kept`).

| state of checkpoint n | shown by                                 | restored by | files of n                          |
|-----------------------|------------------------------------------|-------------|-------------------------------------|
| pending               | nothing in the log                       | nobody      | swept once the checkpoint has ended |
| decided, kept         | the newest FENCE or COMPLETE is n's, or  | any start   | stay                                |
|                       | lists n's position                       |             |                                     |
| dropped               | that record does not list n's position   | nobody      | deleted once no slot can use them   |
| discarded             | FINISH with `discarded`                  | nobody      | deleted at once                     |

A put with an unknown outcome drops nothing yet (I9). Crash points: docs/design/leadership.md.

Records of earlier releases list nothing: their checkpoints are kept while the manifests are stored.
"""

import zlib
from collections.abc import Callable, Container, Sequence

from barrier_runtime.coordinator.log.manifest import Manifest, verified_manifest
from barrier_runtime.coordinator.log.records import NO_RECORD, Complete, Fence, Finish, Record
from barrier_runtime.state.errors import Corrupt

INLINE_BYTES = 16 << 10  # compressed: the log keeps thousands of records
_UNPACKED_BYTES = 256 << 10  # decompressed: less than a message carries


def packed(data: bytes) -> bytes:
    """Returns b"" for a manifest too large for a record."""
    if len(data) > _UNPACKED_BYTES:
        return b""
    compressed = zlib.compress(data)
    return compressed if len(compressed) <= INLINE_BYTES else b""


def inline_data(record: Complete) -> bytes | None:
    """Returns None if the manifest is an object. Raises `Corrupt`."""
    if not record.inline:
        return None
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(record.inline, _UNPACKED_BYTES)
    except zlib.error as error:
        raise _damaged(record, str(error)) from error
    if not unpacking.eof or unpacking.unused_data:
        raise _damaged(record, f"it is no whole manifest of at most {_UNPACKED_BYTES} bytes")
    return data


def _damaged(record: Complete, why: str) -> Corrupt:
    return Corrupt(
        f"the manifest inside the log record of checkpoint {record.checkpoint} is damaged ({why}): restore the record "
        "from a backup of the store"
    )


def manifest_data(record: Complete, read: Callable[[str], bytes | None]) -> bytes | None:
    """Unverified bytes; None if `read` finds none: the checkpoint may have been dropped."""
    inside = inline_data(record)
    return read(record.manifest) if inside is None else inside


def load_manifest(record: Complete, read: Callable[[str], bytes | None]) -> Manifest | None:
    data = manifest_data(record, read)
    return None if data is None else verified_manifest(record.manifest, data, record.sha256)


def decided_data(record: Complete, read: Callable[[str], bytes | None]) -> tuple[str, bytes | None]:
    try:
        return record.manifest, manifest_data(record, read)
    except Corrupt:
        return record.manifest, record.inline


def kept_after(position: int, record: Record) -> tuple[int, ...] | None:
    """Positions kept after `record`, the last FENCE or COMPLETE; None: unknown, by an earlier release."""
    if not record.lists_kept:
        return None
    if isinstance(record, Complete):
        return (*record.kept, position)
    return record.kept if isinstance(record, Fence) else None


def is_kept(position: int, kept: Container[int] | None) -> bool:
    return kept is None or position in kept


def kept_by_fence(known: Sequence[int], restored: int, retained: int) -> tuple[int, ...]:
    """The last positions of `known`, always the newest (a later start may need that), then `restored`."""
    others = [position for position in known if position != restored]
    room = retained if restored == NO_RECORD else retained - 1
    kept = others[len(others) - min(len(others), room) :]
    if others and max(others) > restored and max(others) not in kept:
        kept = [max(others), *kept]
    return tuple(kept) if restored == NO_RECORD else (*kept, restored)


def kept_by_complete(known: Sequence[int], retained: int) -> tuple[int, ...]:
    return tuple(known)[len(known) - min(len(known), retained - 1) :]


def is_discarded(head: Record) -> bool:
    return isinstance(head, Finish) and head.discarded
