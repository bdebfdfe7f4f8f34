"""One split of a subtask's source: its reader, and what a snapshot says of it."""

import msgspec

from barrier_runtime.connectors.source import CheckpointListener, Fetching, Split, SplitReader
from barrier_runtime.data.elements import WATERMARK_MIN
from barrier_runtime.runtime.sources.progress import NO_POSITION, SplitProgress


class OpenSplit:
    __slots__ = (
        "asked",
        "asked_ns",
        "ended_in",
        "fetched",
        "finished",
        "greatest_ms",
        "id",
        "listener",
        "payload",
        "polled",
        "position_meanwhile",
        "prepared",
        "reader",
        "rows",
        "silent_ns",
        "size",
    )

    def __init__(self, split: Split, reader: SplitReader, progress: SplitProgress | None) -> None:
        self.id = split.id
        self.payload = split.payload
        self.size = split.size
        self.reader: SplitReader | None = reader
        self.fetched = reader if isinstance(reader, Fetching) else None
        self.listener = reader if isinstance(reader, CheckpointListener) else None
        self.asked = progress is not None  # for rows: its position may differ from that of the beginning
        self.rows = progress.rows if progress else 0
        self.greatest_ms = progress.greatest_ms if progress else WATERMARK_MIN
        self.finished = False
        self.polled = 0  # turn of the last poll
        self.silent_ns: int | None = None  # since when it was asked and had nothing
        self.asked_ns = 0  # when it was asked last
        self.prepared = True  # False: its reader belongs to `Ahead`, which prepares it
        self.position_meanwhile: msgspec.Raw | None = None
        self.ended_in: int | None = None  # first checkpoint with the end of a split whose reader listens

    def had_rows(self, rows: int, turn: int, now_ns: int) -> None:
        self.polled = turn
        self.silent_ns = None
        self.asked_ns = now_ns
        self.rows += rows

    def had_nothing(self, now_ns: int, timeout_ns: int) -> None:
        """The last poll returned nothing. A split that was not polled for the idle timeout may have rows by now."""
        if self.silent_ns is None or now_ns - self.asked_ns > timeout_ns:
            self.silent_ns = now_ns
        self.asked_ns = now_ns

    def silent_for_ns(self) -> int:
        """As far as is known by asking."""
        return 0 if self.silent_ns is None else self.asked_ns - self.silent_ns

    @property
    def waits_for_bytes(self) -> bool:
        """The last poll returned nothing because its bytes have not come yet."""
        return self.fetched is not None and self.fetched.fetching

    @property
    def order(self) -> tuple[int, int]:
        return (self.greatest_ms, self.polled)

    def progress(self, keep_payload: bool) -> SplitProgress:
        """Of an unfinished one."""
        if self.position_meanwhile is not None:
            position = self.position_meanwhile
        else:
            position = msgspec.Raw(self.reader.position()) if self.reader is not None else NO_POSITION
        return SplitProgress(self.rows, self.greatest_ms, False, position, self.payload if keep_payload else b"")
