"""Where the manifest of a decided checkpoint is, and until when the checkpoint may be restored. Pure.

A manifest that is small enough is inside its COMPLETE record: the decision and its manifest are one put, so neither is
there without the other (I2). A larger manifest is an object, stored before the record that names its hash. Records stay
for ever, so a manifest inside one proves nothing about the snapshot files that it names. The log itself says which
decisions are kept: each FENCE and COMPLETE lists their positions (`kept`). What the newest of these records does not
list is dropped, for every reader, whether or not a manifest can still be read.

| state of checkpoint n | what says so                             | restored by | its files                           |
|-----------------------|------------------------------------------|-------------|-------------------------------------|
| under way             | nothing in the log                       | nobody      | swept once the checkpoint has ended |
| decided, kept         | the newest FENCE or COMPLETE is n's, or  | any start   | stay                                |
|                       | lists n's position                       |             |                                     |
| dropped               | that record does not list it             | nobody      | go when no slot can build on them   |
| discarded             | FINISH with `discarded`                  | nobody      | go at once                          |

| move             | made by                         | a crash right before       | a crash right after                |
|------------------|---------------------------------|----------------------------|------------------------------------|
| under way → kept | the put of COMPLETE n           | n never was                | the successor restores n from it   |
| kept → dropped   | the put of a later COMPLETE or  | n is kept, all its files   | the successor does not restore n,  |
|                  | FENCE, and nothing else         | are there                  | and sweeps its files as orphans    |
| files deleted    | the leader, after the answer to | dropped, with files: the   | dropped, some files gone: the same |
|                  | that put, with a permit that is | sweep finds them           |                                    |
|                  | checked again                   |                            |                                    |

A list only ever loses positions and gains the record's own, so a checkpoint that was dropped never comes back, also
not when a later run keeps more. A record whose put has an unknown outcome drops nothing yet (I9): deletions wait for
the answer. A coordinator that was replaced drops nothing: its record is not in the log.

A reader of state as tables that pinned a checkpoint (`pins`) while it was kept may go on reading it; no job starts from
it any more.

Records of earlier releases list nothing: there a checkpoint is kept as long as its manifest is in the store. An earlier
release refuses a log with newer records (`Format`), so no such record follows one that lists.
"""

import zlib
from collections.abc import Callable, Container, Sequence

from barrier_runtime.coordinator.log.manifest import Manifest, verified_manifest
from barrier_runtime.coordinator.log.records import NO_RECORD, Complete, Fence, Finish, Record
from barrier_runtime.state.errors import Corrupt

INLINE_BYTES = 16 << 10  # of a compressed manifest inside its record, which stays for ever
_UNPACKED_BYTES = 256 << 10  # of the same manifest: less than a message carries, so no slot has to read it itself


def packed(data: bytes) -> bytes:
    """The bytes of a manifest as its record holds them; empty if the manifest is too large for that."""
    if len(data) > _UNPACKED_BYTES:
        return b""
    compressed = zlib.compress(data)
    return compressed if len(compressed) <= INLINE_BYTES else b""


def inline_data(record: Complete) -> bytes | None:
    """The bytes of the manifest that is inside the record; None if the manifest is an object. Raises `Corrupt`."""
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
    """The bytes of the manifest that `record` decided, unverified; None if `read`, by key, finds none. Says nothing
    about whether the checkpoint is kept: see `is_kept`."""
    inside = inline_data(record)
    return read(record.manifest) if inside is None else inside


def load_manifest(record: Complete, read: Callable[[str], bytes | None]) -> Manifest | None:
    """The manifest that `record` decided, verified; None if it is an object that is gone."""
    data = manifest_data(record, read)
    return None if data is None else verified_manifest(record.manifest, data, record.sha256)


def decided_data(record: Complete, read: Callable[[str], bytes | None]) -> tuple[str, bytes | None]:
    """The key and the bytes of the manifest for a reader that verifies them itself: damage is no error here."""
    try:
        return record.manifest, manifest_data(record, read)
    except Corrupt:
        return record.manifest, record.inline


def kept_after(position: int, record: Record) -> tuple[int, ...] | None:
    """Positions of the decisions that are kept behind `record`, the last FENCE or COMPLETE of a log; None: an earlier
    release wrote it, and the store says which manifests are there."""
    if not record.lists_kept:
        return None
    if isinstance(record, Complete):
        return (*record.kept, position)
    return record.kept if isinstance(record, Fence) else None


def is_kept(position: int, kept: Container[int] | None) -> bool:
    """Whether the decision at `position` may be restored. `kept`: of the log's newest record that lists."""
    return kept is None or position in kept


def kept_by_fence(known: Sequence[int], restored: int, retained: int) -> tuple[int, ...]:
    """What a new generation keeps of `known`, what was kept before: the last of them, and `restored` behind them. The
    newest decision is always kept: until there is a newer one, it is what a later start goes on from."""
    others = [position for position in known if position != restored]
    room = retained if restored == NO_RECORD else retained - 1
    kept = others[len(others) - min(len(others), room) :]
    if others and max(others) > restored and max(others) not in kept:
        kept = [max(others), *kept]
    return tuple(kept) if restored == NO_RECORD else (*kept, restored)


def kept_by_complete(known: Sequence[int], retained: int) -> tuple[int, ...]:
    """What the next decision keeps of `known` besides itself."""
    return tuple(known)[len(known) - min(len(known), retained - 1) :]


def is_discarded(head: Record) -> bool:
    return isinstance(head, Finish) and head.discarded
