"""What a snapshot says of a source, and what the snapshots of all its subtasks say together.

Unfinished splits of a source that discovers carry their payload, so that they can be made again without being listed.
Finished ones of such a source are kept as ids only: there may be very many in the life of a job, and each must be
remembered for ever, or it would be read twice.
"""

import msgspec

from barrier_runtime.elements import WATERMARK_MIN
from barrier_runtime.snapshot_values import decode_json
from state.snapshot import OperatorSnapshot

SPLITS_VALUE = "splits"
NO_POSITION = msgspec.Raw(b"null")


class SplitProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far one split was read."""

    rows: int  # returned so far, each once
    greatest_ms: int  # greatest event time seen
    finished: bool
    position: msgspec.Raw = NO_POSITION  # the reader's, JSON; null once finished
    payload: bytes = b""  # of splits that may not be listed at a restore


class SourceProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The value of a source's snapshot: progress by split id, and what is left of discovered splits that ended."""

    splits: dict[str, SplitProgress]
    done: list[str] = msgspec.field(default_factory=list)
    done_rows: int = 0
    done_ms: int = WATERMARK_MIN  # greatest event time seen in them
    version: int = 1


class RestoredSource:
    """The snapshots of a source, read together. `where` is for messages.

    What splits that ended leave behind (`done_rows`, `done_ms`) cannot be told apart by split; of each snapshot one
    subtask takes it on.
    """

    def __init__(self, snapshots: tuple[OperatorSnapshot, ...], subtask: int, parallelism: int, where: str) -> None:
        self.splits: dict[str, SplitProgress] = {}
        self.own: set[str] = set()  # splits of this very subtask at the checkpoint
        self.done: set[str] = set()
        self.done_rows = 0
        self.done_ms = WATERMARK_MIN
        self.any = bool(snapshots)
        self.complete = bool(snapshots) and {snapshot.subtask for snapshot in snapshots} == set(
            range(snapshots[0].parallelism)
        )
        for snapshot in snapshots:
            progress = decode_json(
                snapshot.values[SPLITS_VALUE], SourceProgress, f"{where}, state of subtask {snapshot.subtask}"
            )
            self.splits.update(progress.splits)
            self.done.update(progress.done)
            if snapshot.subtask == subtask and snapshot.parallelism == parallelism:
                self.own.update(progress.splits)
            if snapshot.subtask % parallelism == subtask:
                self.done_rows += progress.done_rows
                self.done_ms = max(self.done_ms, progress.done_ms)
