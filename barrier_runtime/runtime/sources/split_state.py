"""State of a split of a subtask's source."""

import msgspec

from barrier_runtime.connectors.source import Backlogged, CheckpointListener, Fetching, Split, SplitReader
from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.runtime.sources.progress import NO_POSITION, SplitProgress


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
