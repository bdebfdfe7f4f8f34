"""Place of a decided checkpoint's manifest, and how long the checkpoint may be restored. Pure.

A small manifest is inside the COMPLETE record: one put stores decision and manifest (I2). A larger manifest is an
object, stored before the record that names the manifest's hash. Each FENCE and COMPLETE lists the positions of kept
decisions (`kept`). A decision that the newest of these records does not list is dropped for every reader, even if the
manifest can still be read: the files that the manifest names may be gone.

| state of checkpoint n | shown by                                 | restored by | files of n                          |
|-----------------------|------------------------------------------|-------------|-------------------------------------|
| pending               | nothing in the log                       | nobody      | swept once the checkpoint has ended |
| decided, kept         | the newest FENCE or COMPLETE is n's, or  | any start   | stay                                |
|                       | lists n's position                       |             |                                     |
| dropped               | that record does not list n's position   | nobody      | deleted once no slot can use them   |
| discarded             | FINISH with `discarded`                  | nobody      | deleted at once                     |

| move             | made by                         | a crash right before       | a crash right after                |
|------------------|---------------------------------|----------------------------|------------------------------------|
| pending → kept   | the put of COMPLETE n           | n never existed            | the successor restores n           |
| kept → dropped   | the put of a later COMPLETE or  | n is kept, with all files  | the successor does not restore n,  |
|                  | FENCE, and nothing else         |                            | and sweeps the files as orphans    |
| files deleted    | the leader, after the answer to | dropped, with files: the   | dropped, some files gone: the same |
|                  | that put, with a permit that is | sweep finds them           |                                    |
|                  | checked again                   |                            |                                    |

A list only loses positions and gains the record's own, so a dropped checkpoint never comes back. A put with an unknown
outcome drops nothing yet (I9). A reader that pinned a kept checkpoint (`pins`) may read on when the checkpoint is
dropped; no job starts from that checkpoint any more.

Records of earlier releases list nothing: those checkpoints are kept as long as the manifests are in the store. An
earlier release refuses a log with newer records (`Format`), so no record without a list follows a record with a list.
"""

import zlib
from collections.abc import Callable, Container, Sequence

from barrier_runtime.coordinator.log.manifest import Manifest, verified_manifest
from barrier_runtime.coordinator.log.records import NO_RECORD, Complete, Fence, Finish, Record
from barrier_runtime.state.errors import Corrupt

INLINE_BYTES = 16 << 10  # of a compressed manifest inside a record, because records are never deleted
_UNPACKED_BYTES = 256 << 10  # of that manifest decompressed: less than a message carries, so slots need not read it


def packed(data: bytes) -> bytes:
    """Returns a manifest's bytes as a record holds them; empty if the manifest is too large for a record."""
    if len(data) > _UNPACKED_BYTES:
        return b""
    compressed = zlib.compress(data)
    return compressed if len(compressed) <= INLINE_BYTES else b""


def inline_data(record: Complete) -> bytes | None:
    """Returns the manifest's bytes inside the record; None if the manifest is an object. Raises `Corrupt`."""
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
    """Returns unverified bytes of the manifest that `record` decided; None if `read` finds none.

    The checkpoint may have been dropped all the same: see `is_kept`.
    """
    inside = inline_data(record)
    return read(record.manifest) if inside is None else inside


def load_manifest(record: Complete, read: Callable[[str], bytes | None]) -> Manifest | None:
    """Returns the verified manifest that `record` decided; None if the manifest is an object that is gone."""
    data = manifest_data(record, read)
    return None if data is None else verified_manifest(record.manifest, data, record.sha256)


def decided_data(record: Complete, read: Callable[[str], bytes | None]) -> tuple[str, bytes | None]:
    """Returns the manifest's key and bytes, unverified; damaged bytes raise no error."""
    try:
        return record.manifest, manifest_data(record, read)
    except Corrupt:
        return record.manifest, record.inline


def kept_after(position: int, record: Record) -> tuple[int, ...] | None:
    """Returns the positions of the decisions kept after `record`, the last FENCE or COMPLETE of a log.

    None: an earlier release wrote the record, and the store shows which manifests exist.
    """
    if not record.lists_kept:
        return None
    if isinstance(record, Complete):
        return (*record.kept, position)
    return record.kept if isinstance(record, Fence) else None


def is_kept(position: int, kept: Container[int] | None) -> bool:
    """Whether the decision at `position` may be restored. `kept`: the log's newest list."""
    return kept is None or position in kept


def kept_by_fence(known: Sequence[int], restored: int, retained: int) -> tuple[int, ...]:
    """Returns the positions that a new generation keeps of `known`: the last of them, then `restored`.

    The newest decision is always kept: a later start continues from it until there is a newer decision.
    """
    others = [position for position in known if position != restored]
    room = retained if restored == NO_RECORD else retained - 1
    kept = others[len(others) - min(len(others), room) :]
    if others and max(others) > restored and max(others) not in kept:
        kept = [max(others), *kept]
    return tuple(kept) if restored == NO_RECORD else (*kept, restored)


def kept_by_complete(known: Sequence[int], retained: int) -> tuple[int, ...]:
    """Returns the positions of `known` that the next decision keeps besides the new position."""
    return tuple(known)[len(known) - min(len(known), retained - 1) :]


def is_discarded(head: Record) -> bool:
    return isinstance(head, Finish) and head.discarded
