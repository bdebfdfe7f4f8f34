"""Source of CSV files."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import KW_ONLY, dataclass
from functools import partial

import pyarrow as pa

from barrier_runtime.connectors.files.csv_quoting import end_of_rows
from barrier_runtime.connectors.files.hive import values_of
from barrier_runtime.connectors.files.source.csv_guesses import guessed_type
from barrier_runtime.connectors.files.source.csv_rows import CsvForm, CsvReader, CsvRows, read_header, texts_of
from barrier_runtime.connectors.files.source.files import Files, OnChange
from barrier_runtime.connectors.files.source.lines import BLOCK_BYTES, read_lines
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import FileReader
from barrier_runtime.connectors.files.source.source import GuessingSource
from barrier_runtime.connectors.files.source.text import open_text, or_compressed
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.schemas import Rows, require_columns
from barrier_runtime.state.errors import InvalidJob


@kinds_checked
@dataclass(frozen=True)
class CsvSource(GuessingSource[Rows]):
    """CSV files with a header line, also `.gz`, `.zst` or `.bz2`; see `ParquetSource`.

    An empty field is null, an empty field in quotes the empty text; quoted values may contain line breaks. Without
    `schema`, types are guessed from the beginning of the first file: numbers or times if each value has the usual form,
    else text (`01234`, `+1`, `1.10`). A later value that the guessed type would not reproduce ends the job. `types`,
    such as `{"at": datetime}`, declares some columns.

    `delimiter` and `decimal_point` are single ASCII characters (in Germany ";" and ","). `encoding` must leave ASCII
    unchanged.

    `on_change="append"`: reads the whole lines that an uncompressed file gains.
    """

    _: KW_ONLY
    delimiter: str = ","
    encoding: str = "utf-8"
    decimal_point: str = "."

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        form = CsvForm(self.delimiter, self.encoding, self.decimal_point)
        types = self.declared(name)
        return CsvFiles(
            name, self.paths, schema, self.pace, form, watched=watched, on_change=self.on_change, types=types
        )


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
        form: CsvForm = CsvForm(),
        *,
        watched: bool = False,
        on_change: OnChange = "fail",
        types: pa.Schema | None = None,
    ) -> None:
        form.check(f"source {name!r}")
        self._form = form
        super().__init__(name, paths, schema, pace, watched=watched, on_change=on_change, types=types)

    def check(self) -> None:
        for file in self.checked_in_driver:
            where = f"{self.where}, file {file.url}"
            with closing(open_text(file, where, grows=self.grows)) as text:
                header, _ = read_header(text, self._form, where)
            self.leaves_column_out(where, self._rows(header, where, self.schema_in(file)).names, self.schema)

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        schema = self.schema_in(file)

        def make_rows(header: bytes, where: str) -> CsvRows:
            rows = self._rows(header, where, schema)
            if self.leaves_column_out(where, rows.names, self.schema):
                reader.leaves_out()
            return rows

        reader = CsvReader(self.where, file, schema, rows_per_second, make_rows, self._form, grows=self.grows)
        return reader

    def _rows(self, header: bytes, where: str, schema: pa.Schema) -> CsvRows:
        guessed = [name for name in schema.names if name not in self.types.names] if self._guesses else []
        return CsvRows(header, where, schema, self._form, guessed=guessed)

    def guess(self, file: FoundFile) -> pa.Schema:
        where = f"{self.where}, file {file.url}"
        whole = partial(end_of_rows, delimiter=self._form.delimiter)
        with closing(open_text(file, where, grows=self.grows)) as text:
            header, begin = read_header(text, self._form, where)
            data = read_lines(text, begin, BLOCK_BYTES, where, whole)
        if not data.strip():
            raise InvalidJob(f"{where}: it has no rows to guess types from: pass schema=")
        columns = texts_of(data, header, self._form, where)
        in_file = [name for name in self.types.names if not (self.in_folders and name in values_of(file.folders))]
        require_columns(pa.schema([(name, pa.string()) for name in columns]), tuple(in_file), f"{where}, types=")
        return pa.schema([(name, self._type_of(name, texts, where)) for name, texts in columns.items()])

    def _type_of(self, name: str, texts: pa.Array, where: str) -> pa.DataType:
        if name in self.types.names:
            return self.types.field(name).type
        kind = guessed_type(texts, self._form.decimal_point)
        if kind is None:
            raise InvalidJob(
                f"{where}: column {name!r} is empty at first, so its type is unknown: pass types={{{name!r}: …}} or "
                "schema="
            )
        return kind
