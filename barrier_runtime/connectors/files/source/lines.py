"""Reader of text files with a record per line, and `TextSource`.

Blocks end at line ends, after about 256 KiB, or 1 MiB on a thread. A position is the byte offset of a block and the
number of rows already returned, which blocks cut otherwise may hold in part. A growing file is read up to the listed
size, and only whole records. A record above 1 MiB is read and parsed on a thread.

A thread decodes the next block of a local file; meanwhile the attributes of decoding (`_reached` to `_longest`) belong
to the thread.
"""

from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.files.source.files import Files
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import DecodedAhead, FilePosition, FileReader
from barrier_runtime.connectors.files.source.source import FileSource
from barrier_runtime.connectors.files.source.text import Text, is_compressed, open_text, or_compressed
from barrier_runtime.connectors.source_bases.ranges import RangesFile
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.rows import Row
from barrier_runtime.data.values.text_columns import LineError, not_utf8_at
from barrier_runtime.state.errors import InvalidJob

BLOCK_BYTES = 256 << 10
_AHEAD = 4  # times as many bytes on a thread: fewer calls of Arrow, and of the steps that follow
_LONGEST_LINE = 64 << 20
_LONGEST_ON_LOOP = 1 << 20
_COUNTED_BYTES = 16 << 20

Parse = Callable[[bytes], pa.RecordBatch]
EndOfRecords = Callable[[bytes], int]  # end of the last whole record in some bytes, or 0


def end_of_lines(data: bytes) -> int:
    return data.rfind(b"\n") + 1


class LongRecord(Exception):
    """A record is longer than the loop may read."""


@dataclass(frozen=True, slots=True)
class _Block:
    begin: int
    end: int
    rows: pa.RecordBatch


class LinesReader(FileReader):
    """`make_parser(header, where)` returns a function from whole lines to a batch; it raises `LineError`."""

    def __init__(
        self,
        where: str,
        file: FoundFile,
        schema: pa.Schema,
        rows_per_second: float | None,
        make_parser: Callable[[bytes, str], Parse],
        *,
        grows: bool = False,
    ) -> None:
        super().__init__(where, file, schema, rows_per_second)
        self.grows = grows
        self.end_of_records: EndOfRecords = end_of_lines
        self._make_parser = make_parser
        self._text: Text | None = None
        self._parse: Parse | None = None
        self._block = 0  # offset of the block of the last chunk
        self._block_rows = 0
        self._next = 0
        self._skip = 0
        self._ahead = DecodedAhead(self._decode)
        self._reached = 0
        self._data = b""
        self._block_bytes = BLOCK_BYTES
        self._half_line = False
        self._longest = _LONGEST_ON_LOOP

    def read_header(self, text: Text) -> tuple[bytes, int]:
        return b"", begin_of_text(text)

    def open(self) -> None:
        if self._text is not None:
            return
        self._text = open_text(self.file, self.where, grows=self.grows, fetcher=self.fetcher)
        header, end = self.read_header(self._text)
        self._parse = self._make_parser(header, self.where)
        if self._next < end:
            self._next = self._block = self._reached = end

    def request_first(self) -> None:
        assert self._text is not None
        self._text.waits = self.fetcher is None
        if not is_compressed(self.file) and isinstance(self._text.raw, RangesFile):
            self._text.raw.there(self._next, BLOCK_BYTES)

    def ready(self) -> bool:
        assert self._text is not None
        return self._ahead.begun or self._text.reach(self._next)

    def next_chunk(self) -> pa.RecordBatch | None:
        assert self._text is not None
        block = self._taken()
        if block is None:
            return None
        chunk = block.rows
        self._block, self._block_rows, self._next = block.begin, chunk.num_rows, block.end
        self._text.has_read(self._next)
        if self._skip:
            skipped, self._skip = self.skipped(chunk, self._skip)
            chunk = chunk.slice(skipped)
        self._block_bytes = _AHEAD * BLOCK_BYTES
        self.decode_next(self._ahead, 2 * self._block_bytes)
        return chunk

    def _taken(self) -> _Block | None:
        if not self.aside.busy:
            if not self._ahead.begun:
                self._block_bytes = BLOCK_BYTES
            with suppress(LongRecord):
                return self._ahead.take()
        block: _Block | None = self.made_aside(self._decode_long)
        return block

    def _decode(self) -> _Block | None:
        data = self._data = self.next_block()
        if not data:
            return None
        rows = self.parsed(data)
        begin, self._reached = self._reached, self._reached + len(data)
        return _Block(begin, self._reached, rows)

    def _decode_long(self) -> _Block | None:
        """As `_decode`, on a thread, which may wait for bytes of a store."""
        assert self._text is not None
        waits, self._text.waits, self._longest = self._text.waits, True, _LONGEST_LINE
        try:
            return self._decode()
        finally:
            self._text.waits, self._longest = waits, _LONGEST_ON_LOOP

    def next_block(self) -> bytes:
        assert self._text is not None
        if self._is_all_decoded():
            return b""
        data = read_lines(self._text, self._reached, self._block_bytes, self.where, self.end_of_records, self._longest)
        if self.grows and self._text.end is not None and self._reached + len(data) >= self._text.end:
            whole = self.end_of_records(data)
            self._half_line = whole < len(data)
            data = data[:whole]
        return data

    def parsed(self, data: bytes) -> pa.RecordBatch:
        assert self._parse is not None
        try:
            return self._parse(data)
        except LineError as error:
            raise self.refused(data, error.at, error.problem) from error

    def refused(self, data: bytes, at: int, problem: str) -> InvalidJob:
        line = 1 + self._lines_before(self._reached) + data.count(b"\n", 0, at)
        return InvalidJob(f"{self.where}, line {line}: {problem}")

    def line_in_block(self, at: int) -> str:
        if self._reached > _COUNTED_BYTES:
            return f"byte {self._reached + at}"
        lines = self._lines_before(self._reached) + self._data.count(b"\n", 0, at)
        return f"line {1 + lines}"

    def _lines_before(self, offset: int) -> int:
        lines = at = 0
        with closing(open_text(self.file, self.where, grows=self.grows)) as text:
            while at < offset and (data := text.read_at(at, min(BLOCK_BYTES, offset - at))):
                lines += data.count(b"\n")
                at += len(data)
        return lines

    def skipped(self, chunk: pa.RecordBatch, skip: int) -> tuple[int, int]:
        found = min(skip, chunk.num_rows)
        return found, skip - found

    def at_end(self) -> bool:
        return not self._ahead.begun and self._is_all_decoded()

    def _is_all_decoded(self) -> bool:
        if self._half_line:
            return True
        return self._text is not None and self._text.end is not None and self._reached >= self._text.end

    def place(self, pending: int) -> tuple[int, int]:
        if pending:
            return self._block, self._block_rows - pending
        return self._next, self._skip

    def go_to(self, position: FilePosition) -> None:
        self._ahead.close()
        self._next = self._reached = position.offset
        self._skip = position.skip

    def raw(self) -> Any:
        return None if self._text is None else self._text.raw

    def close_file(self) -> None:
        self._ahead.close()
        if self._text is not None:
            self._text.close()


def begin_of_text(text: Text) -> int:
    return 3 if text.read_at(0, 3) == b"\xef\xbb\xbf" else 0


def read_lines(
    text: Text,
    offset: int,
    block: int,
    where: str,
    end_of_records: EndOfRecords = end_of_lines,
    longest: int = _LONGEST_LINE,
) -> bytes:
    """About `block` bytes, up to the end of a record or file; empty at the end.

    Raises `LongRecord` for a record above `longest` bytes, `InvalidJob` above 64 MiB.
    """
    length = block
    while True:
        data = text.read_at(offset, length)
        if len(data) < length or (text.end is not None and offset + len(data) >= text.end):
            return data
        end = end_of_records(data)
        if end:
            return data[:end]
        if length > _LONGEST_LINE:
            quotes = ", and a value that begins with a quote must end with a quote" if end_of_lines(data) else ""
            raise InvalidJob(
                f"{where}: no record ends in {length} bytes from byte {offset}: it must be text with one record per "
                f"line{quotes}"
            )
        if length >= longest:
            raise LongRecord
        length *= 2


LINE = pa.schema([("line", pa.string())])


@kinds_checked
@dataclass(frozen=True)
class TextSource(FileSource[Row]):
    """Text files (`.txt`, `.log`), also `.gz`, `.zst` or `.bz2`; see `ParquetSource`.

    Each line, without the line end, is a row of the column `line`; empty lines are rows. `schema` may name the column,
    `{"message": str}`; as `bytes` the column also holds text that is not UTF-8. `on_change` as in `CsvSource`.
    """

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        if schema is not None and (len(schema) != 1 or schema.types[0] not in (pa.string(), pa.binary())):
            raise InvalidJob(
                f"source {name!r}: a text file has one column, of text or bytes: leave schema= out, or give the column "
                'a name, as {"message": str}'
            )
        return TextFiles(name, self.paths, schema or LINE, self.pace, watched=watched, on_change=self.on_change)


class TextFiles(Files):
    kind = "text"
    in_folders = False
    may_grow = True
    suffixes = or_compressed((".txt", ".log"))

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        schema = self.schema

        def parser(header: bytes, where: str) -> Parse:
            return lambda data: _rows(data, schema)

        return LinesReader(self.where, file, schema, rows_per_second, parser, grows=self.grows)

    def guess(self, file: FoundFile) -> pa.Schema:
        return LINE

    def check(self) -> None:
        """Every text is valid."""


def _rows(data: bytes, schema: pa.Schema) -> pa.RecordBatch:
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    column = pa.array([line.removesuffix(b"\r") for line in lines], pa.binary())
    try:
        return pa.RecordBatch.from_arrays([column.cast(schema.types[0])], schema=schema)
    except pa.ArrowInvalid:
        at = not_utf8_at(data) or 0
        remedy = f'convert the file, or take bytes by schema={{"{schema.names[0]}": bytes}}'
        raise LineError(at, f"0x{data[at]:02x} is not UTF-8: {remedy}") from None
