"""Progress of a source in a snapshot, and the combined progress of all subtasks.

Names of finished splits are kept for ever: a forgotten split would be read twice.
"""

import zlib
from collections.abc import Mapping

import msgspec

from barrier_runtime.connectors.name_set import FORMER_RECORD_BYTES, RECORD_BYTES, NameSet, merged, of_former
from barrier_runtime.connectors.source import Backlogged, CheckpointListener, Fetching, Split, SplitReader
from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import OperatorSnapshot, value_format
from barrier_runtime.state.versioned import VersionedDecoder

SPLITS_VALUE = "splits"
FINISHED_VALUE = "finished"  # names of splits that are in no run
RUN_VALUE = f"{FINISHED_VALUE}-run-"  # followed by the run's number
NO_POSITION = msgspec.Raw(b"null")
PROGRESS_VERSION = 2  # version 1: names of finished splits have no mark


class SplitProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    rows: int  # each counted once
    greatest_ms: int
    finished: bool
    position: msgspec.Raw = NO_POSITION  # the reader's position, JSON; null after the end
    payload: bytes = b""  # of splits that may be unlisted at a restore
    at_end: bool = False  # of a growing source: everything available was read
    skipped: int = 0  # rows passed over by `mode="at_most_once"`, beside `rows`


class SourceProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    splits: dict[str, SplitProgress]
    done: list[str] = msgspec.field(default_factory=list)  # ids of finished splits, of older releases
    done_rows: int = 0
    done_ms: int = WATERMARK_MIN
    finished: int = 0  # records in this snapshot's values of finished splits
    version: int = 1  # 1 if a release before versions wrote the value


_FORMAT = value_format("{}: the progress of its splits in its snapshot", PROGRESS_VERSION)
_PROGRESS = VersionedDecoder(_FORMAT, msgspec.json.Decoder(SourceProgress))


class RestoredSource:
    """Combined snapshots of a source.

    `done_rows` and `done_ms` are not known per split: one subtask takes over those of a snapshot.
    """

    def __init__(self, snapshots: tuple[OperatorSnapshot, ...], subtask: int, parallelism: int, where: str) -> None:
        self.splits: dict[str, SplitProgress] = {}
        self.own: set[str] = set()
        self.done_rows = 0
        self.done_ms = WATERMARK_MIN
        self.any = bool(snapshots)
        self.complete = bool(snapshots) and {snapshot.subtask for snapshot in snapshots} == set(
            range(snapshots[0].parallelism)
        )
        records: list[bytes] = []
        listed = NameSet()
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
        self.ended = len(everything)
        mine, others = everything.share(subtask, parallelism if self.complete else 1)
        self.finished = NameSet([mine], [others])


def _finished(values: Mapping[str, bytes], progress: SourceProgress, where: str) -> list[bytes]:
    count, of_each = progress.finished, RECORD_BYTES if progress.version > 1 else FORMER_RECORD_BYTES
    found = [data for name, data in values.items() if name == FINISHED_VALUE or name.startswith(RUN_VALUE)]
    size = sum(map(len, found))
    if size != count * of_each:
        raise Corrupt(
            f"{where}: its snapshot has {size} bytes of finished splits, where {count} of them have "
            f"{count * of_each}: restore an intact copy of the checkpoint, or another one"
        )
    return found if progress.version > 1 else [of_former(data) for data in found]


class Silence:
    __slots__ = ("asked_ns", "silent_ns")

    def __init__(self) -> None:
        self.silent_ns: int | None = None  # first poll without rows since the last rows
        self.asked_ns = 0

    def broken(self, now_ns: int) -> None:
        self.silent_ns = None
        self.asked_ns = now_ns

    def had_nothing(self, now_ns: int, timeout_ns: int) -> None:
        """Notes a poll without rows. Silence starts again if no poll came for the timeout."""
        if self.silent_ns is None or now_ns - self.asked_ns > timeout_ns:
            self.silent_ns = now_ns
        self.asked_ns = now_ns

    def silent_for_ns(self) -> int:
        return 0 if self.silent_ns is None else self.asked_ns - self.silent_ns


class SplitGap(Silence):
    """Time since the subtask's last split, for which event time is held back. 0 before a split."""

    __slots__ = ("_had_splits", "_timeout_ns")

    def __init__(self, timeout_ns: int, had_splits: bool) -> None:
        super().__init__()
        self._timeout_ns = timeout_ns
        self._had_splits = had_splits

    def look(self, has_splits: bool, now_ns: int) -> None:
        self._had_splits = self._had_splits or has_splits
        if has_splits:
            self.broken(now_ns)
        else:
            self.had_nothing(now_ns, self._timeout_ns)

    @property
    def holds(self) -> bool:
        return self._had_splits and 0 < self._timeout_ns >= self.silent_for_ns()

    def due_ns(self) -> int:
        return self.asked_ns + self._timeout_ns // 2


class OpenSplit(Silence):
    __slots__ = (
        "asked",
        "backlogged",
        "ended_in",
        "fetched",
        "finished",
        "greatest_ms",
        "held",
        "id",
        "listener",
        "payload",
        "polled",
        "position_meanwhile",
        "prepared",
        "reader",
        "rows",
        "size",
        "skipped",
    )

    def __init__(self, split: Split, reader: SplitReader, progress: SplitProgress | None) -> None:
        super().__init__()
        self.id = split.id
        self.payload = split.payload
        self.size = split.size
        self.reader: SplitReader | None = reader
        self.fetched = reader if isinstance(reader, Fetching) else None
        self.backlogged = reader if isinstance(reader, Backlogged) else None
        self.listener = reader if isinstance(reader, CheckpointListener) else None
        self.asked = progress is not None  # the position may differ from the beginning
        self.rows = progress.rows if progress else 0
        self.greatest_ms = progress.greatest_ms if progress else WATERMARK_MIN
        self.finished = False
        self.held = False
        self.skipped = progress.skipped if progress else 0
        self.polled = 0
        self.prepared = True  # False: the reader belongs to `Ahead`
        self.position_meanwhile: msgspec.Raw | None = None
        self.ended_in: int | None = None  # of a listener: the first checkpoint with the split's end

    def had_rows(self, rows: int, turn: int, now_ns: int) -> None:
        self.polled = turn
        self.broken(now_ns)
        self.rows += rows

    @property
    def waits_for_bytes(self) -> bool:
        return self.fetched is not None and self.fetched.fetching

    @property
    def order(self) -> tuple[int, int]:
        return (self.greatest_ms, self.polled)

    def progress(self, keep_payload: bool) -> SplitProgress:
        if self.position_meanwhile is not None:
            position = self.position_meanwhile
        else:
            position = msgspec.Raw(self.reader.position()) if self.reader is not None else NO_POSITION
        payload = self.payload if keep_payload else b""
        return SplitProgress(self.rows, self.greatest_ms, False, position, payload, skipped=self.skipped)
