"""Text files with one record per line, cut into blocks at line ends, each parsed at once.

A position is the byte offset of a block and the rows of it already returned, so a seek reads from there and not from
the beginning (of a compressed file everything before the block is uncompressed again, and thrown away). Blocks are cut
the same way from any offset, and a changed block size only changes how much is skipped.

A file that may grow is read up to the size it was listed with, and not beyond its last line end: what is behind that is
the beginning of a line that comes later.
"""

from collections.abc import Callable
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import FilePosition, FileReader
from barrier_runtime.connectors.files.source.text import Text, open_text
from barrier_runtime.state.errors import InvalidJob

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
        grows: bool = False,
    ) -> None:
        super().__init__(where, file, schema, rows_per_second)
        self.grows = grows
        self._make_parser = make_parser
        self._header_lines = header_lines
        self._text: Text | None = None
        self._parse: Parse | None = None
        self._block = 0  # offset of the block of the last chunk
        self._block_rows = 0
        self._next = 0  # offset of the next block
        self._skip = 0  # rows of the next block to leave out
        self._half_line = False  # is all that is left

    def prepare(self) -> None:
        if self._text is not None:
            return
        self._text = open_text(self.file, self.where, grows=self.grows)
        header, end = read_header(self._text, self._header_lines, self.where)
        self._parse = self._make_parser(header, self.where)
        if self._next < end:
            self._next = self._block = end

    def ready(self) -> bool:
        assert self._text is not None
        return self._text.reach(self._next)

    def next_chunk(self) -> pa.RecordBatch | None:
        assert self._text is not None
        assert self._parse is not None
        data = read_lines(self._text, self._next, BLOCK_BYTES, self.where) if not self.at_end() else b""
        if self.grows and not data.endswith(b"\n"):
            data = data[: data.rfind(b"\n") + 1]
            self._half_line = True
        if not data:
            return None
        try:
            chunk = self._parse(data)
        except pa.ArrowInvalid as error:
            raise InvalidJob(
                f"{self.where}, after row {self.row} (in {len(data)} bytes from byte {self._next}): a line does not "
                f"fit: {error}. {_remedy(str(error))}"
            ) from error
        self._block, self._block_rows = self._next, chunk.num_rows
        self._next += len(data)
        if self._skip:
            skipped = min(self._skip, chunk.num_rows)
            self._skip -= skipped
            chunk = chunk.slice(skipped)
        return chunk

    def at_end(self) -> bool:
        if self._half_line:
            return True
        return self._text is not None and self._text.end is not None and self._next >= self._text.end

    def place(self, pending: int) -> tuple[int, int]:
        if pending:
            return self._block, self._block_rows - pending
        return self._next, self._skip

    def go_to(self, position: FilePosition) -> None:
        self._next, self._skip = position.offset, position.skip

    def raw(self) -> Any:
        return None if self._text is None else self._text.raw

    def close(self) -> None:
        if self._text is not None:
            self._text.close()


def _remedy(said: str) -> str:
    """For what Arrow says of a line."""
    if "expected a zone offset" in said:
        return (
            "These times have no zone, and the column is declared with one: declare it without, "
            'as "timestamp[us]" in schema=, or correct the file'
        )
    if "timestamp[s]" in said:
        return (
            "The column's type was taken from the first rows, which have whole seconds: declare it as "
            '"timestamp[us]" in schema=, or correct the file'
        )
    return "Correct the file, or schema="


def read_header(text: Text, lines: int, where: str) -> tuple[bytes, int]:
    """The first `lines` lines and the offset after them (and after a byte-order mark)."""
    start = 3 if text.read_at(0, 3) == b"\xef\xbb\xbf" else 0
    if not lines:
        return b"", start
    data = read_lines(text, start, 65_536, where)
    header = b"".join(data.splitlines(keepends=True)[:lines])
    return header, start + len(header)


def read_lines(text: Text, offset: int, block: int, where: str) -> bytes:
    """About `block` bytes from `offset`, ending with a line end (or with the file); nothing when that is the end."""
    length = block
    while True:
        data = text.read_at(offset, length)
        if len(data) < length or (text.end is not None and offset + len(data) >= text.end):
            return data
        end = data.rfind(b"\n") + 1
        if end:
            return data[:end]
        if length > _LONGEST_LINE:
            raise InvalidJob(
                f"{where}: no line end in {length} bytes from byte {offset}: it must be text with one record per line"
            )
        length *= 2
