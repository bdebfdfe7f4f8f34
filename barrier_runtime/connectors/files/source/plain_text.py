"""Source of text files: a row per line, plain or compressed."""

from dataclasses import dataclass

import pyarrow as pa

from barrier_runtime.connectors.declared_kinds import kinds_checked
from barrier_runtime.connectors.files.source.files import Files
from barrier_runtime.connectors.files.source.lines import LinesReader, Parse
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import FileReader
from barrier_runtime.connectors.files.source.source import FileSource
from barrier_runtime.connectors.files.source.text import or_compressed
from barrier_runtime.data.values.text_columns import LineError, not_utf8_at
from barrier_runtime.state.errors import InvalidJob

LINE = pa.schema([("line", pa.string())])


@kinds_checked
@dataclass(frozen=True)
class TextSource(FileSource):
    """Text files (`.txt`, `.log`), also `.gz`, `.zst` or `.bz2`; see `ParquetSource`.

    Each line is a row of the column `line`, without the line end; empty lines are rows. `schema` may name the column:
    `{"message": str}`; with type `bytes` the column also holds text that is not UTF-8. `on_change` as in `CsvSource`.
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
