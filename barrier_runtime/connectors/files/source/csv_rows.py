"""Parses blocks of CSV files into batches: nulls, exact values, and row boundaries.

| text in the file          | column of text | column of another type                                    |
|---------------------------|----------------|-----------------------------------------------------------|
| nothing                   | null           | null                                                      |
| `""`                      | the empty text | refused                                                   |
| `NA`, `null`, `N/A` …     | that text      | null in a declared column, refused in a guessed column    |
| `NaN`, `inf`, `Infinity`  | that text      | a number of a float; refused otherwise                    |
"""

import codecs
import csv
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.types as types

from barrier_runtime.connectors.files.csv_quoting import (
    after_quotes,
    count_of_lines,
    end_of_first_row,
    end_of_rows,
    quoted,
    row_begins,
)
from barrier_runtime.connectors.files.source.csv_guesses import is_checked, refuse_unwritable
from barrier_runtime.connectors.files.source.lines import LinesReader, begin_of_text, read_lines
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import FilePosition
from barrier_runtime.connectors.files.source.text import Text
from barrier_runtime.data.schemas import no_rows, one_array
from barrier_runtime.data.values.text_columns import (
    LineError,
    TextMisfit,
    column_of_texts,
    is_read_from_text,
    is_text,
    may_be_inexact,
    may_have_no_zone,
    not_utf8_at,
)
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.texts import counted

NULLS = ("NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "#N/A N/A", "null", "NULL", "Null", "None", "\\N")
_ASCII = "".join(map(chr, range(128)))
_HEADER_BYTES = 65_536
_SEARCHED = 16  # columns whose least values cost less than the search for two bytes
_MISQUOTED = (
    "a value begins with a quote here, and text follows its closing quote: write a quote within a quoted value as two "
    "quotes (Spark: option escape='\"'), or correct the file"
)
_COLUMN = re.compile(r"CSV column #(\d+)")
_ROW = re.compile(r"Row #(\d+): Expected \d+ columns, got (\d+)")


@dataclass(frozen=True)
class CsvForm:
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
            # letters of iso2022 may contain a quote's byte
            as_ascii &= not codecs.lookup(self.encoding).name.startswith("iso2022")
        except (LookupError, UnicodeError):
            as_ascii = False
        if not as_ascii:
            raise InvalidJob(
                f"{where}: encoding={self.encoding!r}: use one in which ASCII is as it is, such as utf-8 or latin-1, "
                "or convert the file"
            )

    @property
    def is_utf8(self) -> bool:
        return codecs.lookup(self.encoding).name in ("utf-8", "ascii")

    def as_utf8(self, data: bytes) -> bytes:
        return data if self.is_utf8 else data.decode(self.encoding).encode()


def column_names(header: bytes, form: CsvForm, where: str) -> list[str]:
    try:
        rows = list(csv.reader([header.decode(form.encoding)], delimiter=form.delimiter))
    except UnicodeDecodeError as error:
        raise InvalidJob(
            f'{where}: its header is not {form.encoding.upper()} ({error}): pass encoding= (such as "latin-1"), or '
            "convert the file"
        ) from error
    if after_quotes(header, form.delimiter) is not None:
        raise InvalidJob(f"{where}: in its header {_MISQUOTED}")
    names = rows[0] if rows else []
    if not names:
        raise InvalidJob(f"{where}: it has no header line: add one with the columns' names")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InvalidJob(f"{where}: column {twice[0]!r} is in its header twice: rename one")
    return names


def read_header(text: Text, form: CsvForm, where: str) -> tuple[bytes, int]:
    start = begin_of_text(text)
    if start and not form.is_utf8:
        raise InvalidJob(
            f"{where}: it begins with a byte-order mark of UTF-8, and encoding={form.encoding!r}: leave encoding= out"
        )
    data = read_lines(text, start, _HEADER_BYTES, where, lambda data: end_of_rows(data, form.delimiter))
    header = data[: end_of_first_row(data, form.delimiter)]
    if b"\0" in header:
        raise InvalidJob(
            f"{where}: its header has NUL bytes, as text in UTF-16 has: convert the file (iconv -f UTF-16LE -t UTF-8)"
        )
    return header, start + len(header)


def texts_of(data: bytes, header: bytes, form: CsvForm, where: str) -> dict[str, pa.Array]:
    names = column_names(header, form, where)
    rows = CsvRows(header, where, pa.schema([(name, pa.string()) for name in names]), form)
    try:
        batch = rows(data)
    except LineError as error:
        line = 1 + header.count(b"\n") + data.count(b"\n", 0, error.at)
        raise InvalidJob(f"{where}, line {line}: {error.problem}") from error
    return dict(zip(names, batch.columns, strict=True))


class CsvRows:
    """Parses whole rows of a file into batches. `guessed`: columns whose values must reproduce the text.
    Raises `InvalidJob` if the header lacks a column, `LineError` for an invalid row.
    """

    def __init__(
        self, header: bytes, where: str, schema: pa.Schema, form: CsvForm, *, guessed: Collection[str] = ()
    ) -> None:
        self.names = column_names(header, form, where)
        for column in schema.names:
            if column not in self.names:
                raise InvalidJob(
                    f"{where}: it has no column {column!r} (its header has {', '.join(self.names)}): "
                    "correct schema=, or read this file as a source of its own"
                )
        self._where = where
        self._schema = schema
        self._form = form
        self._guessed = frozenset(guessed)
        self._empty = no_rows(schema)
        self._texts: set[str] = set()
        self._integers = sum(map(types.is_signed_integer, schema.types))
        for field in schema:
            guess = field.name in self._guessed
            # Arrow takes the same texts of true and false for all columns
            mixed = bool(self._guessed) and not guess and types.is_boolean(field.type)
            if mixed or (guess and is_checked(field.type)) or not _reads(field.type):
                if not is_read_from_text(field.type):
                    raise InvalidJob(
                        f"{where}: column {field.name!r} is declared as {field.type}, which is not read from CSV: "
                        "declare another type, or read text and parse that in map()"
                    )
                self._texts.add(field.name)
        self._options = self._options_of(self._texts)

    def __call__(self, raw: bytes) -> pa.RecordBatch:
        data = self._as_utf8(raw)
        try:
            return self._parsed(data)
        except LineError as error:
            if data is raw:
                raise
            raise LineError(len(data[: error.at].decode().encode(self._form.encoding)), error.problem) from error

    def _parsed(self, data: bytes) -> pa.RecordBatch:
        if data[:1] in (b"\r", b"\n") and len(self.names) > 1 and not data.strip(b"\r\n"):
            return self._empty
        if b'"' in data and (misquoted := after_quotes(data, self._form.delimiter)) is not None:
            raise LineError(misquoted, _MISQUOTED)
        table = self._read(data)
        columns = [one_array(table[name]) for name in self._schema.names]
        hexadecimal = self._may_have_hexadecimal(data)
        for place, field in enumerate(self._schema):
            if field.name in self._texts:
                columns[place] = self._converted(data, field, columns[place])
            elif len(columns[place]) and _may_be_wrong(columns[place], data, hexadecimal):
                columns[place] = self._converted(data, field, self._texts_alone(data, field.name))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _may_have_hexadecimal(self, data: bytes) -> bool:
        """True if a number may be hexadecimal, such as 0xFF."""
        if self._integers <= _SEARCHED:
            return b"x" in data or b"X" in data
        return b"0x" in data or b"0X" in data

    def _read(self, data: bytes) -> pa.Table:
        while True:
            try:
                return _parse(data, self.names, self._form, self._options)
            except pa.ArrowInvalid as error:
                found = _COLUMN.search(str(error))
                name = self.names[int(found[1])] if found else None
                if name is None or name in self._texts or self._is_plain(name):
                    raise self._refused(data, error, name) from error
                self._texts.add(name)
                self._options = self._options_of(self._texts)

    def _is_plain(self, name: str) -> bool:
        kind = self._schema.field(name).type
        return is_text(kind) or bool(
            types.is_binary(kind) or types.is_large_binary(kind) or not is_read_from_text(kind)
        )

    def _texts_alone(self, data: bytes, name: str) -> pa.Array:
        options = self._options_of({name})
        options.include_columns = [name]
        return _parse(data, self.names, self._form, options)[name].combine_chunks()

    def _converted(self, data: bytes, field: pa.Field, texts: pa.Array) -> pa.Array:
        try:
            guess = field.name in self._guessed
            if guess:
                refuse_unwritable(texts, field.type, self._form.decimal_point)
            if self._form.decimal_point != "." and (types.is_floating(field.type) or types.is_decimal(field.type)):
                texts = self._with_points(texts)
            return column_of_texts(texts, field.type, () if guess else NULLS, trims=not guess)
        except TextMisfit as misfit:
            at = self._begins(data)[misfit.row]
            raise LineError(at, f"column {field.name!r} is {field.type}, and {misfit.why}") from misfit

    def _with_points(self, texts: pa.Array) -> pa.Array:
        """Raises `TextMisfit` for a number with a point: 1.000 may be a thousand."""
        row = pc.index(pc.match_substring(texts, "."), True).as_py()
        if row >= 0:
            text = texts[row].as_py()
            raise TextMisfit(
                row,
                text,
                f"{text!r} has a point, and the decimal point is {self._form.decimal_point!r}: correct decimal_point=, "
                "remove points between thousands from the file, or declare text and convert that in map()",
            )
        return pc.replace_substring(texts, self._form.decimal_point, ".")

    def _options_of(self, as_text: set[str]) -> pacsv.ConvertOptions:
        fields = [field.with_type(pa.string()) if field.name in as_text else field for field in self._schema]
        return _convert_options(pa.schema(fields), guessed=bool(self._guessed))

    def _as_utf8(self, raw: bytes) -> bytes:
        try:
            return self._form.as_utf8(raw)
        except UnicodeDecodeError as error:
            raise LineError(
                error.start, f"0x{raw[error.start]:02x} is not {self._form.encoding}: correct encoding=, or the file"
            ) from error

    def _begins(self, data: bytes) -> list[int]:
        return row_begins(data, self._form.delimiter, blank_rows=len(self.names) == 1)

    def _refused(self, data: bytes, error: pa.ArrowInvalid, name: str | None) -> LineError:
        said = str(error)
        row = _ROW.search(said)
        if row is not None:
            begins = self._begins(data)
            at = begins[min(int(row[1]), len(begins)) - 1]
            return LineError(
                at,
                f"a line does not fit: it has {counted(int(row[2]), 'value')}, and the header has {len(self.names)} "
                f"({', '.join(self.names)}): correct the file, or delimiter=",
            )
        if name is not None and "invalid UTF8" in said:
            return self._not_utf8(data, name)
        return LineError(0, f"a line from here on does not fit: {error}. Correct the file, or schema=")

    def _not_utf8(self, data: bytes, name: str) -> LineError:
        options = self._options_of(set())
        options.column_types, options.include_columns = {name: pa.binary()}, [name]
        values = one_array(_parse(data, self.names, self._form, options)[name]).to_pylist()
        row, bad = next((row, at) for row, value in enumerate(values) if (at := not_utf8_at(value or b"")) is not None)
        return LineError(
            self._begins(data)[row],
            f"0x{values[row][bad]:02x} in column {name!r} is not UTF-8: pass encoding= (such as "
            '"latin-1"), convert the file (iconv -f LATIN1 -t UTF-8), or declare the column as binary in schema=',
        )


class CsvReader(LinesReader):
    """Reader whose blocks end at the last line end, as long as each line is a row.
    From the first other block on, at the last line end outside quotes.
    """

    def __init__(
        self,
        where: str,
        file: FoundFile,
        schema: pa.Schema,
        rows_per_second: float | None,
        make_rows: Callable[[bytes, str], CsvRows],
        form: CsvForm,
        *,
        grows: bool,
    ) -> None:
        super().__init__(where, file, schema, rows_per_second, make_rows, grows=grows)
        self._form = form
        self._by_quotes = False
        self._skips_blank = False  # as positions of earlier releases
        self._parsed: tuple[bytes, pa.RecordBatch] | None = None

    def read_header(self, text: Text) -> tuple[bytes, int]:
        return read_header(text, self._form, self.where)

    def next_block(self) -> bytes:
        data = super().next_block()
        if not data or b'"' not in data:
            return data
        if not self._by_quotes and not self._is_whole(data):
            self._by_quotes, self._half_line = True, False
            self.end_of_records = self._end_of_rows
            data = super().next_block()
        if self._text is not None and self._text.end is not None and self._reached + len(data) >= self._text.end:
            open_at = quoted(data, self._form.delimiter).open_at
            if open_at is not None:
                raise self.refused(
                    data,
                    open_at,
                    "a value begins with a quote here, and no quote ends it: correct or complete the file",
                )
        return data

    def _is_whole(self, data: bytes) -> bool:
        """True if each line is a row and the last row is complete."""
        assert self._parse is not None
        try:
            rows = self._parse(data)
        except LineError:
            return False
        self._parsed = data, rows
        last_line = data[data.rfind(b"\n", 0, -1) + 1 :]
        is_whole = quoted(last_line, self._form.delimiter).open_at is None
        return is_whole and bool(rows.num_rows == count_of_lines(data))

    def parsed(self, data: bytes) -> pa.RecordBatch:
        kept, self._parsed = self._parsed, None
        if kept is not None and kept[0] is data:
            return kept[1]
        return super().parsed(data)

    def _end_of_rows(self, data: bytes) -> int:
        return end_of_rows(data, self._form.delimiter)

    def go_to(self, position: FilePosition) -> None:
        super().go_to(position)
        self._skips_blank = not position.blank_rows

    def skipped(self, chunk: pa.RecordBatch, skip: int) -> tuple[int, int]:
        if not self._skips_blank or chunk.num_columns > 1:
            return super().skipped(chunk, skip)
        rows = np.flatnonzero(chunk.column(0).is_valid().to_numpy(zero_copy_only=False))
        return (chunk.num_rows, skip - len(rows)) if skip > len(rows) else (int(rows[skip - 1]) + 1, 0)


def _may_be_wrong(column: pa.Array, data: bytes, hexadecimal: bool) -> bool:
    if types.is_floating(column.type):
        return may_be_inexact(column)
    if types.is_timestamp(column.type):
        return column.type.tz is not None and may_have_no_zone(data)
    return hexadecimal and types.is_signed_integer(column.type) and _may_be_wrapped(column)


def _may_be_wrapped(column: pa.Array) -> bool:
    """True if a negative number may have been hexadecimal, such as 0xFF with 8 bits."""
    least = pc.min(column).as_py()
    return least is not None and least < 0


@lru_cache(maxsize=1_000)  # a parse per type, not per column and file
def _reads(kind: pa.DataType) -> bool:
    try:
        _parse(b"\n", ["value"], CsvForm(), _convert_options(pa.schema([("value", kind)]), guessed=False))
    except pa.ArrowNotImplementedError:
        return False
    return True


def _convert_options(schema: pa.Schema, *, guessed: bool) -> pacsv.ConvertOptions:
    return pacsv.ConvertOptions(
        column_types=schema,
        include_columns=schema.names,
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        true_values=["true"] if guessed else ["true", "True", "TRUE", "1"],
        false_values=["false"] if guessed else ["false", "False", "FALSE", "0"],
    )


def _parse(data: bytes, names: list[str], form: CsvForm, options: pacsv.ConvertOptions) -> pa.Table:
    """Parses empty lines as rows only if there is a single column."""
    options.decimal_point = form.decimal_point
    return pacsv.read_csv(
        pa.BufferReader(data),
        read_options=pacsv.ReadOptions(use_threads=False, column_names=names, block_size=len(data) + 1),
        parse_options=pacsv.ParseOptions(delimiter=form.delimiter, ignore_empty_lines=len(names) > 1),
        convert_options=options,
    )
