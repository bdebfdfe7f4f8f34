"""Pending set of a sink subtask in a snapshot: committables not known to be visible, with checkpoints.

Whichever process restores a decided checkpoint commits all entries. An entry keeps the index of the subtask that wrote
it. After rescaling, entry e and orphans of that writer belong to subtask `e.subtask % P`: deleting orphans requires the
decided transactions.
"""

import zlib
from collections.abc import Iterable

import msgspec

from barrier_runtime.state.snapshots.snapshot import PENDING, OperatorSnapshot
from barrier_runtime.state.versioned import Format, VersionedDecoder

PENDING_SET_VERSION = 2  # version 1 has no packed entries, and is still written without them
_PACKED_FROM = 4 << 10  # bytes; a few entries are read faster unpacked
_LEVEL = 1
PENDING_VALUE = PENDING


class PendingEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    checkpoint: int
    subtask: int
    committable: bytes


class PendingSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    checkpoint: int
    entries: tuple[PendingEntry, ...] = ()
    packed: bytes = b""  # instead of `entries`: MessagePack, compressed


_FORMAT = Format(
    "{}: the set of pending transactions",
    PENDING_SET_VERSION,
    damaged="nothing was committed or deleted; restore an intact copy of the checkpoint",
)
_ENTRIES = msgspec.msgpack.Decoder(tuple[PendingEntry, ...])
_PENDING_SET = VersionedDecoder(_FORMAT, msgspec.json.Decoder(PendingSet))


def encode_pending(checkpoint: int, entries: Iterable[PendingEntry]) -> bytes:
    listed = tuple(entries)
    if sum(len(each.committable) for each in listed) < _PACKED_FROM:
        return msgspec.json.encode(PendingSet(1, checkpoint, listed))
    packed = zlib.compress(msgspec.msgpack.encode(listed), _LEVEL)
    return msgspec.json.encode(PendingSet(PENDING_SET_VERSION, checkpoint, packed=packed))


def decode_pending(data: bytes, where: str) -> PendingSet:
    found = _PENDING_SET.decode(data, where)
    if not found.packed:
        return found
    try:
        entries = _ENTRIES.decode(zlib.decompress(found.packed))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise _FORMAT.unreadable(error, where) from error
    return PendingSet(found.version, found.checkpoint, entries)


def entries_of_subtask(sets: Iterable[PendingSet], subtask: int, parallelism: int) -> tuple[PendingEntry, ...]:
    mine = [entry for each in sets for entry in each.entries if entry.subtask % parallelism == subtask]
    return tuple(sorted(mine, key=lambda entry: (entry.checkpoint, entry.subtask)))


def pending_sets(snapshots: Iterable[OperatorSnapshot], where: str) -> list[PendingSet]:
    return [
        decode_pending(snapshot.values[PENDING_VALUE], f"{where}, state of subtask {snapshot.subtask}")
        for snapshot in snapshots
        if PENDING_VALUE in snapshot.values
    ]
