"""What a snapshot says of a source, and what the snapshots of all its subtasks say together.

Unfinished splits of a source that discovers carry their payload, so that they can be made again without being listed.
Finished ones are names in a `NameSet`: there may be very many in the life of a job, and each must be remembered for
ever, or it would be read twice. The set's runs are values of their own, which are stored once; what was added since the
last run is one value that each checkpoint writes anew. A split of a fixed list that was never asked for rows is in no
snapshot.

Whoever restores reads the sets of all subtasks, and looks names up in all; of each it stores a share from then on.
"""

import zlib
from collections.abc import Mapping

import msgspec

from barrier_runtime.connectors.name_set import FORMER_RECORD_BYTES, RECORD_BYTES, NameSet, merged, of_former
from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

SPLITS_VALUE = "splits"
FINISHED_VALUE = "finished"  # names of splits that are in no run
RUN_VALUE = f"{FINISHED_VALUE}-run-"  # and the run's number
NO_POSITION = msgspec.Raw(b"null")
PROGRESS_VERSION = 2  # 1: what is kept of finished splits has no mark


class SplitProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far one split was read."""

    rows: int  # returned so far, each once
    greatest_ms: int  # greatest event time seen
    finished: bool
    position: msgspec.Raw = NO_POSITION  # the reader's, JSON; null once finished
    payload: bytes = b""  # of splits that may not be listed at a restore
    at_end: bool = False  # of a source that grows: all that was there was read


class SourceProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The value of a source's snapshot: progress by split id, and what is left of splits that ended."""

    splits: dict[str, SplitProgress]
    done: list[str] = msgspec.field(default_factory=list)  # ids of splits that ended, as older releases wrote them
    done_rows: int = 0
    done_ms: int = WATERMARK_MIN  # greatest event time seen in them
    finished: int = 0  # records in this snapshot's values of finished splits
    version: int = 1  # as it was before it was written


_FORMAT = value_format("{}: the progress of its splits in its snapshot", PROGRESS_VERSION)
_PROGRESS = VersionedDecoder(_FORMAT, msgspec.json.Decoder(SourceProgress))


class RestoredSource:
    """The snapshots of a source, read together. `where` is for messages.

    What splits that ended leave behind (`done_rows`, `done_ms`) cannot be told apart by split; of each snapshot one
    subtask takes it on.
    """

    def __init__(self, snapshots: tuple[OperatorSnapshot, ...], subtask: int, parallelism: int, where: str) -> None:
        self.splits: dict[str, SplitProgress] = {}  # unfinished
        self.own: set[str] = set()  # those of this very subtask at the checkpoint
        self.done_rows = 0
        self.done_ms = WATERMARK_MIN
        self.any = bool(snapshots)
        self.complete = bool(snapshots) and {snapshot.subtask for snapshot in snapshots} == set(
            range(snapshots[0].parallelism)
        )
        records: list[bytes] = []
        listed = NameSet()  # finished splits of older releases' snapshots
        for snapshot in snapshots:
            place = f"{where}, state of subtask {snapshot.subtask}"
            progress = _PROGRESS.decode(snapshot.values[SPLITS_VALUE], place)
            records += _finished(snapshot.values, progress, place)
            for id in progress.done:
                listed.add(id)
            if snapshot.subtask % parallelism == subtask:
                self.done_rows += progress.done_rows
                self.done_ms = max(self.done_ms, progress.done_ms)
            own = snapshot.subtask == subtask and snapshot.parallelism == parallelism
            for id, split in progress.splits.items():
                if split.finished:
                    listed.add(id)
                    if zlib.crc32(id.encode()) % parallelism == subtask:
                        self.done_rows += split.rows
                        self.done_ms = max(self.done_ms, split.greatest_ms)
                    continue
                self.splits[id] = split
                if own:
                    self.own.add(id)
        everything = merged([listed.added(), *records])
        self.ended = len(everything)  # splits
        mine, others = everything.share(subtask, parallelism if self.complete else 1)
        self.finished = NameSet([mine], [others])


def _finished(values: Mapping[str, bytes], progress: SourceProgress, where: str) -> list[bytes]:
    """Records of finished splits, as many as `progress` says."""
    count, of_each = progress.finished, RECORD_BYTES if progress.version > 1 else FORMER_RECORD_BYTES
    found = [data for name, data in values.items() if name == FINISHED_VALUE or name.startswith(RUN_VALUE)]
    size = sum(map(len, found))
    if size != count * of_each:
        raise Corrupt(
            f"{where}: its snapshot has {size} bytes of finished splits, where {count} of them have "
            f"{count * of_each}: restore an intact copy of the checkpoint, or another one"
        )
    return found if progress.version > 1 else [of_former(data) for data in found]
