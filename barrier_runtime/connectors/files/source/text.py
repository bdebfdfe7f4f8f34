"""Text of an input file by byte offset: random in plain files, forward in compressed files.

Offsets count uncompressed bytes. A compressed file is read in steps, which do not block the loop. While `waits` is
False, reads of a remote text raise `NotThere` until the bytes have arrived.
"""

from typing import Any, Protocol

import pyarrow as pa

from barrier_runtime.connectors.files.source.listing import FoundFile, open_file
from barrier_runtime.connectors.source_bases.ranges import NotThere, PartFetcher, RangesFile
from barrier_runtime.state.errors import InvalidJob, Unavailable

_CODECS = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}
_DAMAGED = ("inflate failed", "decompress failed", "Truncated compressed stream")
_STEP_BYTES = 1 << 20
_CHUNK_BYTES = 256 << 10
_PACKED_BYTES = 2 << 20  # enough for a chunk in general; else a read waits


class Text(Protocol):
    @property
    def end(self) -> int | None:
        """Offset after the last byte; None while not known."""
        ...

    def reach(self, offset: int) -> bool:
        """Proceeds towards `offset`. Returns True when the text can be read there."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Returns `length` bytes, fewer only at the end."""
        ...

    @property
    def raw(self) -> Any: ...

    waits: bool  # reads wait for bytes of a store

    def has_read(self, offset: int) -> None:
        """Announces that nothing before `offset` is read again soon."""
        ...

    def close(self) -> None: ...


def or_compressed(suffixes: tuple[str, ...]) -> tuple[str, ...]:
    return suffixes + tuple(suffix + ending for suffix in suffixes for ending in _CODECS)


def is_compressed(file: FoundFile) -> bool:
    return _ending(file) in _CODECS


def _ending(file: FoundFile) -> str:
    return "." + file.id.rpartition(".")[2]


def open_text(file: FoundFile, where: str, *, grows: bool = False, fetcher: PartFetcher | None = None) -> Text:
    """Opens a text; of a file that `grows`, only the listed size. Raises `InvalidJob` or `Unavailable`."""
    if not is_compressed(file):
        return PlainText(file, where, grows=grows, fetcher=fetcher)
    if grows:
        raise InvalidJob(
            f"{where}: on_change='append' needs text that is not compressed, since a compressed file cannot be read on "
            "from the middle: write plain files, or leave on_change= out"
        )
    return CompressedText(file, _CODECS[_ending(file)], where, fetcher)


class PlainText:
    def __init__(self, file: FoundFile, where: str, *, grows: bool = False, fetcher: PartFetcher | None = None) -> None:
        self.end: int | None = file.size
        self.waits = True
        self._size = file.size
        self._where = where
        self.raw: Any = open_file(file, where, grows=grows, fetcher=fetcher)
        self._ranges = self.raw if isinstance(self.raw, RangesFile) else None

    def reach(self, offset: int) -> bool:
        return True

    def has_read(self, offset: int) -> None:
        if self._ranges is not None:
            self._ranges.has_read(offset)

    def read_at(self, offset: int, length: int) -> bytes:
        length = min(length, self._size - offset)
        if length <= 0:
            return b""
        if self._ranges is not None and not self.waits and not self._ranges.there(offset, length):
            raise NotThere
        try:
            data = bytes(self.raw.read_at(length, offset))
        except OSError as error:
            raise Unavailable(f"{self._where}: it cannot be read now, at byte {offset}: {error}") from error
        if len(data) < length:
            raise InvalidJob(
                f"{self._where}: it had {self._size} bytes and ends at byte {offset + len(data)} now: files must not "
                "change while they are read; write to a new file and rename it into place"
            )
        return data

    def close(self) -> None:
        self.raw.close()


class CompressedText:
    """Keeps the last bytes; a smaller offset starts from the beginning."""

    def __init__(self, file: FoundFile, codec: str, where: str, fetcher: PartFetcher | None = None) -> None:
        self.end: int | None = None
        self.waits = True
        self._fetcher = fetcher
        self._file = file
        self._codec = codec
        self._where = where
        self.raw: Any = None
        self._stream: Any = None
        self._start = 0
        self._data = b""
        self._begin()

    def reach(self, offset: int) -> bool:
        if offset < self._start:
            self._begin()
        for _ in range(_STEP_BYTES // _CHUNK_BYTES):
            if self._start + len(self._data) >= offset or not self._go_on():
                return True
            if self._start + len(self._data) <= offset:
                self._start += len(self._data)
                self._data = b""
        return False

    def has_read(self, offset: int) -> None:
        if isinstance(self.raw, RangesFile):
            self.raw.has_read(self.raw.tell())

    def read_at(self, offset: int, length: int) -> bytes:
        while not self.reach(offset):
            pass
        self._data = self._data[max(0, offset - self._start) :]
        self._start = offset
        parts, have = [self._data], len(self._data)
        try:
            while have < length and (chunk := self._chunk(offset + have)):
                parts.append(chunk)
                have += len(chunk)
        finally:
            self._data = b"".join(parts)
        return self._data[:length]

    def close(self) -> None:
        if self.raw is not None:
            self._stream.close()
            self.raw.close()
            self.raw = None

    def _begin(self) -> None:
        self.close()
        self.raw = open_file(self._file, self._where, fetcher=self._fetcher)
        opened = pa.PythonFile(self.raw, mode="r") if isinstance(self.raw, RangesFile) else self.raw
        self._stream = pa.CompressedInputStream(opened, self._codec)
        self._start, self._data = 0, b""

    def _go_on(self) -> bool:
        chunk = self._chunk(self._start + len(self._data))
        self._data += chunk
        return bool(chunk)

    def _chunk(self, at: int) -> bytes:
        if self.end is not None and at >= self.end:
            return b""
        if isinstance(self.raw, RangesFile) and not self.waits:
            if not self.raw.there(self.raw.tell(), _PACKED_BYTES):
                raise NotThere
            self.raw.forget(0, self.raw.tell())
        try:
            chunk = bytes(self._stream.read(_CHUNK_BYTES))
        except OSError as error:
            if any(sign in str(error) for sign in _DAMAGED):
                raise InvalidJob(
                    f"{self._where}: it is not valid {self._codec} after {at} uncompressed bytes ({error}): "
                    "replace or remove the file"
                ) from error
            raise Unavailable(
                f"{self._where}: it cannot be read now, after {at} uncompressed bytes: {error}"
            ) from error
        if not chunk:
            self.end = at
        return chunk
