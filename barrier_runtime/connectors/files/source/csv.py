"""CSV files with a header line as a source, plain or compressed. Values may be quoted, but not contain line breaks (a
block ends at a line)."""

import csv
from collections.abc import Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from functools import partial

import pyarrow as pa
import pyarrow.csv as pacsv

from barrier_runtime.connectors.files.source.files import Files, OnChange
from barrier_runtime.connectors.files.source.lines import BLOCK_BYTES, LinesReader, Parse, read_header, read_lines
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.source import FileSource
from barrier_runtime.connectors.files.source.text import open_text, or_compressed
from barrier_runtime.connectors.source import SplitReader
from barrier_runtime.data.schemas import lines_parser
from barrier_runtime.state.errors import InvalidJob

_CHECKED_IN_DRIVER = 200


@dataclass(frozen=True)
class CsvSource(FileSource):
    """CSV files with a header line, also `.gz`, `.zst` or `.bz2`; see `ParquetSource`. Without `schema` types are
    guessed from the first file's beginning. `delimiter` is one ASCII character. A value may not contain a line break.

    `on_change="append"`: a file that was read and is longer now is read on, whole lines only; it must not be
    compressed. Each file costs some 250 bytes in every checkpoint then.
    """

    _: KW_ONLY
    delimiter: str = ","

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        return CsvFiles(name, self.paths, schema, self.pace, self.delimiter, watched=watched, on_change=self.on_change)


class CsvFiles(Files):
    kind = "CSV"
    may_grow = True
    suffixes = or_compressed((".csv",))

    def __init__(
        self,
        name: str,
        paths: str | Sequence[str],
        schema: pa.Schema | None,
        pace: float | None,
        delimiter: str,
        *,
        watched: bool = False,
        on_change: OnChange = "fail",
    ) -> None:
        if len(delimiter.encode()) != 1:
            raise InvalidJob(f"source {name!r}: delimiter={delimiter!r}: use one ASCII character")
        self._delimiter = delimiter
        super().__init__(name, paths, schema, pace, watched=watched, on_change=on_change)

    def check(self) -> None:
        for file in self.files[:_CHECKED_IN_DRIVER]:
            where = f"{self.where}, file {file.url}"
            with closing(open_text(file, where, grows=self.grows)) as text:
                header, _ = read_header(text, 1, where)
            make_parser(header, where, schema=self.schema, delimiter=self._delimiter)

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> SplitReader:
        return LinesReader(
            self.where,
            file,
            self.schema,
            rows_per_second,
            partial(make_parser, schema=self.schema, delimiter=self._delimiter),
            header_lines=1,
            grows=self.grows,
        )

    def guess(self, file: FoundFile) -> pa.Schema:
        where = f"{self.where}, file {file.url}"
        with closing(open_text(file, where, grows=self.grows)) as text:
            header, end = read_header(text, 1, where)
            data = read_lines(text, end, BLOCK_BYTES, where)
        names = column_names(header, self._delimiter, where)
        if not data.strip():
            raise InvalidJob(f"{where}: it has no rows to guess types from: pass schema=")
        try:
            table = _parse(data, names, self._delimiter, pacsv.ConvertOptions(strings_can_be_null=True))
        except pa.ArrowInvalid as error:
            raise InvalidJob(f"{where}: it is not valid CSV: {error}. Correct the file, or pass schema=") from error
        for field in table.schema:
            if pa.types.is_binary(field.type):
                raise _not_utf8(data, end, field.name, where)
            if pa.types.is_null(field.type):
                raise InvalidJob(
                    f"{where}: column {field.name!r} is empty at first, so its type is unknown: pass schema="
                )
        return table.schema


def make_parser(header: bytes, where: str, *, schema: pa.Schema, delimiter: str) -> Parse:
    """Whole lines to batches of `schema`; raises `InvalidJob` when the header lacks a column."""
    names = column_names(header, delimiter, where)
    for column in schema.names:
        if column not in names:
            raise InvalidJob(
                f"{where}: it has no column {column!r} (its header has {', '.join(names)}): "
                "correct schema=, or read this file as a source of its own"
            )
    options = pacsv.ConvertOptions(
        column_types=schema, include_columns=schema.names, strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    return lines_parser(lambda data: _parse(data, names, delimiter, options), schema, where)


def column_names(header: bytes, delimiter: str, where: str) -> list[str]:
    try:
        rows = list(csv.reader([header.decode()], delimiter=delimiter))
    except UnicodeDecodeError as error:
        raise InvalidJob(f"{where}: its header is not UTF-8 ({error}): convert the file") from error
    names = rows[0] if rows else []
    if not names:
        raise InvalidJob(f"{where}: it has no header line: add one with the columns' names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidJob(f"{where}: column {twice[0]!r} is in its header twice: rename one")
    return names


def _not_utf8(data: bytes, begin: int, column: str, where: str) -> InvalidJob:
    """`data` begins at byte `begin` of the file."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        at, line = begin + error.start, 2 + data.count(b"\n", 0, error.start)
        return InvalidJob(
            f"{where}, line {line}, byte {at}: 0x{data[error.start]:02x} in column {column!r} is not UTF-8: convert "
            "the file (iconv -f LATIN1 -t UTF-8), or declare the column as binary in schema="
        )
    return InvalidJob(f"{where}: column {column!r} is not UTF-8: convert the file, or pass schema=")


def _parse(data: bytes, names: list[str], delimiter: str, options: pacsv.ConvertOptions) -> pa.Table:
    return pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pacsv.ParseOptions(delimiter=delimiter),
        convert_options=options,
    )
