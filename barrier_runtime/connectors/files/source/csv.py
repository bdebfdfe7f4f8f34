"""CSV files with a header line as a source, plain or compressed. Values may be quoted, but not contain line breaks (a
block ends at a line)."""

import codecs
import csv
import re
from collections.abc import Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv

from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.connectors.files.source.files import Files, OnChange
from barrier_runtime.connectors.files.source.lines import BLOCK_BYTES, LinesReader, Parse, read_header, read_lines
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import FileReader
from barrier_runtime.connectors.files.source.source import FileSource
from barrier_runtime.connectors.files.source.text import open_text, or_compressed
from barrier_runtime.data.schemas import lines_parser, refuse_unreadable
from barrier_runtime.state.errors import InvalidJob

_CHECKED_IN_DRIVER = 200
_ASCII = "".join(map(chr, range(128)))
_LEADING_ZERO = re.compile(rb"(?<![0-9.,])0[0-9]")


@kinds_checked
@dataclass(frozen=True)
class CsvSource(FileSource):
    """CSV files with a header line, also `.gz`, `.zst` or `.bz2`; see `ParquetSource`. Without `schema` types are
    guessed from the first file's beginning; numbers with leading zeros (`01234`) are guessed to be text. A value may
    not contain a line break.

    `delimiter` and `decimal_point` are one ASCII character each (of Germany's: ";" and ","). `encoding` is one in which
    ASCII is as it is, such as "latin-1" or "cp1252".

    `on_change="append"`: a file that was read and is longer now is read on, whole lines only; it must not be
    compressed. Each file costs some 250 bytes in every checkpoint then.
    """

    _: KW_ONLY
    delimiter: str = ","
    encoding: str = "utf-8"
    decimal_point: str = "."

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        form = CsvForm(self.delimiter, self.encoding, self.decimal_point)
        return CsvFiles(name, self.paths, schema, self.pace, form, watched=watched, on_change=self.on_change)


@dataclass(frozen=True)
class CsvForm:
    """How values are written."""

    delimiter: str = ","
    encoding: str = "utf-8"
    decimal_point: str = "."

    def check(self, where: str) -> None:
        for what, given in (("delimiter", self.delimiter), ("decimal_point", self.decimal_point)):
            if len(given.encode()) != 1:
                raise InvalidJob(f"{where}: {what}={given!r}: use one ASCII character")
        if self.delimiter == self.decimal_point:
            raise InvalidJob(
                f'{where}: delimiter and decimal_point are both {self.delimiter!r}: give delimiter=";", or what '
                "the file has"
            )
        try:
            as_ascii = _ASCII.encode(self.encoding) == _ASCII.encode()
        except LookupError:
            as_ascii = False
        if not as_ascii:
            raise InvalidJob(
                f"{where}: encoding={self.encoding!r}: use one in which ASCII is as it is, such as utf-8 or latin-1, "
                "or convert the file"
            )

    def as_utf8(self, data: bytes, where: str) -> bytes:
        """What Arrow reads. Of UTF-8 the bytes themselves."""
        if self.is_utf8:
            return data
        try:
            return data.decode(self.encoding).encode()
        except UnicodeDecodeError as error:
            raise InvalidJob(f"{where}: it is not {self.encoding} ({error}): correct encoding=") from error

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name in ("utf-8", "ascii")


PLAIN = CsvForm()


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
        form: CsvForm = PLAIN,
        *,
        watched: bool = False,
        on_change: OnChange = "fail",
    ) -> None:
        form.check(f"source {name!r}")
        self._form = form
        super().__init__(name, paths, schema, pace, watched=watched, on_change=on_change)

    def check(self) -> None:
        for file in self.files[:_CHECKED_IN_DRIVER]:
            where = f"{self.where}, file {file.url}"
            with closing(open_text(file, where, grows=self.grows)) as text:
                header, _ = read_header(text, 1, where)
            make_parser(header, where, schema=self.schema_in(file), form=self._form)

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        schema = self.schema_in(file)
        return LinesReader(
            self.where,
            file,
            schema,
            rows_per_second,
            partial(make_parser, schema=schema, form=self._form),
            header_lines=1,
            grows=self.grows,
        )

    def guess(self, file: FoundFile) -> pa.Schema:
        where = f"{self.where}, file {file.url}"
        with closing(open_text(file, where, grows=self.grows)) as text:
            header, end = read_header(text, 1, where)
            data = read_lines(text, end, BLOCK_BYTES, where)
        names = column_names(header, self._form, where)
        data = self._form.as_utf8(data, where)
        if not data.strip():
            raise InvalidJob(f"{where}: it has no rows to guess types from: pass schema=")
        try:
            table = _parse(data, names, self._form, pacsv.ConvertOptions(strings_can_be_null=True))
            codes = _codes(data, table.schema, self._form)
        except pa.ArrowInvalid as error:
            raise InvalidJob(f"{where}: it is not valid CSV: {error}. Correct the file, or pass schema=") from error
        for field in table.schema:
            if pa.types.is_binary(field.type):
                raise _not_utf8(data, end, field.name, where)
            if pa.types.is_null(field.type):
                raise InvalidJob(
                    f"{where}: column {field.name!r} is empty at first, so its type is unknown: pass schema="
                )
        return pa.schema([field.with_type(pa.string()) if field.name in codes else field for field in table.schema])


def make_parser(header: bytes, where: str, *, schema: pa.Schema, form: CsvForm = PLAIN) -> Parse:
    """Whole lines to batches of `schema`; raises `InvalidJob` when the header lacks a column."""
    names = column_names(header, form, where)
    for column in schema.names:
        if column not in names:
            raise InvalidJob(
                f"{where}: it has no column {column!r} (its header has {', '.join(names)}): "
                "correct schema=, or read this file as a source of its own"
            )
    refuse_unreadable(schema, "CSV", _read_nothing, where)
    options = _options(schema)
    return lines_parser(lambda data: _parse(form.as_utf8(data, where), names, form, options), schema, where)


def _read_nothing(schema: pa.Schema) -> pa.Table:
    """With a column more: blank lines are skipped."""
    names = [*schema.names, "\n"]
    return _parse(b"," * len(schema) + b"\n", names, PLAIN, _options(schema))


def _options(schema: pa.Schema) -> pacsv.ConvertOptions:
    return pacsv.ConvertOptions(
        column_types=schema, include_columns=schema.names, strings_can_be_null=True, quoted_strings_can_be_null=False
    )


def column_names(header: bytes, form: CsvForm, where: str) -> list[str]:
    try:
        rows = list(csv.reader([header.decode(form.encoding)], delimiter=form.delimiter))
    except UnicodeDecodeError as error:
        raise InvalidJob(
            f'{where}: its header is not {form.encoding.upper()} ({error}): pass encoding= (such as "latin-1"), or '
            "convert the file"
        ) from error
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
            f"{where}, line {line}, byte {at}: 0x{data[error.start]:02x} in column {column!r} is not UTF-8: pass "
            'encoding= (such as "latin-1"), convert the file (iconv -f LATIN1 -t UTF-8), or declare the column as '
            "binary in schema="
        )
    return InvalidJob(f"{where}: column {column!r} is not UTF-8: convert the file, or pass schema=")


def _codes(data: bytes, schema: pa.Schema, form: CsvForm) -> set[str]:
    """Columns that were guessed to be numbers and have some with leading zeros, as postal codes do."""
    names = [field.name for field in schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)]
    if not names or not _LEADING_ZERO.search(data):
        return set()
    as_text = pacsv.ConvertOptions(column_types=dict.fromkeys(names, pa.string()), include_columns=names)
    table = _parse(data, schema.names, form, as_text)
    return {name for name in names if pc.any(pc.match_substring_regex(table[name], r"^\s*[+-]?0[0-9]")).as_py()}


def _parse(data: bytes, names: list[str], form: CsvForm, options: pacsv.ConvertOptions) -> pa.Table:
    options.decimal_point = form.decimal_point
    return pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pacsv.ParseOptions(delimiter=form.delimiter),
        convert_options=options,
    )
