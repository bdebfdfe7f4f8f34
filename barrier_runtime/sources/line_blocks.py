"""Text files with one record per line, cut into blocks at line ends, each parsed at once.

A position is the byte offset of a block and the rows of it already returned, so a seek reads from there and not from
the beginning. Blocks are cut the same way from any offset, and a changed block size only changes how much is skipped.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from barrier_runtime.sources.file_listing import FoundFile, open_file
from barrier_runtime.sources.file_reader import FilePosition, FileReader
from state.errors import InvalidJob, Unavailable

BLOCK_BYTES = 256 << 10  # some milliseconds of the loop's time to parse
_LONGEST_LINE = 64 << 20

Parse = Callable[[bytes], pa.RecordBatch]


class LinesReader(FileReader):
    """`make_parser(header line or None)` gives the function from whole lines to a batch."""

    def __init__(
        self,
        where: str,
        file: FoundFile,
        schema: pa.Schema,
        rows_per_second: float | None,
        make_parser: Callable[[bytes, str], Parse],
        *,
        header_lines: int,
    ) -> None:
        super().__init__(where, file, schema, rows_per_second)
        self._make_parser = make_parser
        self._header_lines = header_lines
        self._opened: Any = None
        self._parse: Parse | None = None
        self._block = 0  # offset of the block of the last chunk
        self._block_rows = 0
        self._next = 0  # offset of the next block
        self._skip = 0  # rows of the next block to leave out

    def prepare(self) -> None:
        if self._opened is not None:
            return
        self._opened = open_file(self.file, self.where)
        header, end = read_header(self._opened, self.file.size, self._header_lines, self.where)
        self._parse = self._make_parser(header, self.where)
        if self._next < end:
            self._next = self._block = end

    def next_chunk(self) -> pa.RecordBatch | None:
        assert self._parse is not None
        if self._next >= self.file.size:
            return None
        data = read_lines(self._opened, self._next, self.file.size, BLOCK_BYTES, self.where)
        try:
            chunk = self._parse(data)
        except pa.ArrowInvalid as error:
            raise InvalidJob(
                f"{self.where}, after row {self.row} (in {len(data)} bytes from byte {self._next}): a line does not "
                f"fit: {error}. Correct the file, or schema="
            ) from error
        self._block, self._block_rows = self._next, chunk.num_rows
        self._next += len(data)
        if self._skip:
            skipped = min(self._skip, chunk.num_rows)
            self._skip -= skipped
            chunk = chunk.slice(skipped)
        return chunk

    def at_end(self) -> bool:
        return self._opened is not None and self._next >= self.file.size

    def place(self, pending: int) -> tuple[int, int]:
        if pending:
            return self._block, self._block_rows - pending
        return self._next, self._skip

    def go_to(self, position: FilePosition) -> None:
        self._next, self._skip = position.offset, position.skip

    def close(self) -> None:
        if self._opened is not None:
            self._opened.close()


def read_header(opened: Any, size: int, lines: int, where: str) -> tuple[bytes, int]:
    """The first `lines` lines and the offset after them (and after a byte-order mark)."""
    start = 3 if read_at(opened, 0, 3, where) == b"\xef\xbb\xbf" else 0
    if not lines or start >= size:
        return b"", start
    data = read_lines(opened, start, size, 65_536, where)
    header = b"".join(data.splitlines(keepends=True)[:lines])
    return header, start + len(header)


def read_lines(opened: Any, offset: int, size: int, block: int, where: str) -> bytes:
    """About `block` bytes from `offset`, ending with a line end (or with the file)."""
    length = block
    while True:
        data = read_at(opened, offset, length, where)
        if offset + len(data) >= size:
            return data
        end = data.rfind(b"\n") + 1
        if end:
            return data[:end]
        if length > _LONGEST_LINE:
            raise InvalidJob(
                f"{where}: no line end in {length} bytes from byte {offset}: it must be text with one record per line"
            )
        length *= 2


def read_at(opened: Any, offset: int, length: int, where: str) -> bytes:
    try:
        return bytes(opened.read_at(length, offset))
    except OSError as error:
        raise Unavailable(f"{where}: it cannot be read now, at byte {offset}: {error}") from error
