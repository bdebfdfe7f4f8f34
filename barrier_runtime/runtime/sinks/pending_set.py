"""A sink subtask's part of a snapshot: every committable that is not known to be visible, and of which checkpoint.

This is what makes a decided checkpoint finishable by anyone: whoever restores it commits all that is listed. Versioned
msgspec data, never pickle; an unknown version is refused, never guessed.

An entry keeps the index of the subtask that *wrote* it. After rescaling, entry e belongs to subtask `e.subtask % P`,
and so do the orphans with that index in their names: the one who sweeps them is the one who knows what is decided.
"""

from collections.abc import Iterable

import msgspec

from barrier_runtime.state.snapshots.snapshot import PENDING
from barrier_runtime.state.versioned import Format, VersionedDecoder

PENDING_SET_VERSION = 1
PENDING_VALUE = PENDING  # name of the value in OperatorSnapshot.values


class PendingEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    checkpoint: int  # the barrier that closed this transaction
    subtask: int  # who wrote it
    committable: bytes


class PendingSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    checkpoint: int  # the barrier this set was taken at
    entries: tuple[PendingEntry, ...] = ()


_FORMAT = Format(
    "{}: the set of pending transactions",
    PENDING_SET_VERSION,
    damaged="nothing was committed or deleted; restore an intact copy of the checkpoint",
)
_PENDING_SET = VersionedDecoder(_FORMAT, msgspec.json.Decoder(PendingSet))


def encode_pending(checkpoint: int, entries: Iterable[PendingEntry]) -> bytes:
    return msgspec.json.encode(PendingSet(PENDING_SET_VERSION, checkpoint, tuple(entries)))


def decode_pending(data: bytes, where: str) -> PendingSet:
    """Decode what `encode_pending` made. `where` names the job, sink and subtask for the message."""
    return _PENDING_SET.decode(data, where)


def entries_of_subtask(sets: Iterable[PendingSet], subtask: int, parallelism: int) -> tuple[PendingEntry, ...]:
    """Those that subtask `subtask` of `parallelism` has to finish, oldest checkpoint first."""
    mine = [entry for each in sets for entry in each.entries if entry.subtask % parallelism == subtask]
    return tuple(sorted(mine, key=lambda entry: (entry.checkpoint, entry.subtask)))
