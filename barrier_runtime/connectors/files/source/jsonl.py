"""Source of files with a JSON object per line."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from barrier_runtime.connectors.files.hive import values_of
from barrier_runtime.connectors.files.source.files import Files, log, with_types
from barrier_runtime.connectors.files.source.lines import (
    BLOCK_BYTES,
    LinesReader,
    Parse,
    begin_of_text,
    read_lines,
)
from barrier_runtime.connectors.files.source.listing import FoundFile
from barrier_runtime.connectors.files.source.reader import FileReader
from barrier_runtime.connectors.files.source.source import GuessingSource
from barrier_runtime.connectors.files.source.text import open_text, or_compressed
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.json_lines import KeysInside, guessed_schema, json_parser
from barrier_runtime.data.schemas import Rows, meant
from barrier_runtime.data.values.text_columns import LineError
from barrier_runtime.state.errors import InvalidJob


@kinds_checked
@dataclass(frozen=True)
class JsonlSource(GuessingSource[Rows]):
    """Files with a JSON object per line, also `.gz`, `.zst` or `.bz2`; see `ParquetSource`.

    Fields that `schema` lacks are ignored, absent fields are null. Without `schema`, types are guessed from the
    beginning of the first file, except those in `types`, `{"at": datetime}`, which may name columns that appear later.
    `on_change` as in `CsvSource`.
    """

    def files(self, name: str, schema: pa.Schema | None, *, watched: bool) -> Files:
        types = self.declared(name)
        return JsonlFiles(name, self.paths, schema, self.pace, watched=watched, on_change=self.on_change, types=types)


class JsonlFiles(Files):
    kind = "JSONL"
    may_grow = True
    suffixes = or_compressed((".jsonl", ".ndjson", ".json"))

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._inside = KeysInside()

    def check(self) -> None:
        json_parser(self.where, self.schema_in(self.files[0]) if self.files else self.schema)

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> FileReader:
        schema = self.schema_in(file)
        inside = None if self._guesses else self._inside

        def left_out(field: str, at: int) -> None:
            self.log_left_out(f"{reader.where}, {reader.line_in_block(at)}", field)
            reader.leaves_out()

        def parser(header: bytes, where: str) -> Parse:
            parse = json_parser(where, schema, left_out, self.types.names, inside)

            def rows(data: bytes) -> pa.RecordBatch:
                refuse_array(data)
                return parse(data)

            return rows

        reader = LinesReader(self.where, file, schema, rows_per_second, parser, grows=self.grows)
        return reader

    def guess(self, file: FoundFile) -> pa.Schema:
        where = f"{self.where}, file {file.url}"
        with closing(open_text(file, where, grows=self.grows)) as text:
            data = read_lines(text, begin_of_text(text), BLOCK_BYTES, where)
        if not data.strip():
            raise InvalidJob(f"{where}: it has no rows to guess types from: pass schema=")
        json_parser(self.where, self.types)
        try:
            refuse_array(data)
            schema = guessed_schema(data, self.types)
        except LineError as error:
            line = 1 + data.count(b"\n", 0, error.at)
            raise InvalidJob(f"{where}, line {line}: {error.problem}") from error
        for field in schema:
            if pa.types.is_null(field.type):
                raise InvalidJob(
                    f"{where}: column {field.name!r} is null at first, so its type is unknown: pass types="
                    f"{{{field.name!r}: …}} or schema="
                )
        later = [field for field in self.types if field.name not in schema.names]
        self._say_missing([field.name for field in later], schema.names, where, file)
        return pa.schema([*with_types(schema, self.types), *later])

    def _say_missing(self, later: Sequence[str], found: Sequence[str], where: str, file: FoundFile) -> None:
        missing = next((name for name in later if name not in values_of(file.folders)), None)
        if missing is not None:
            log.warning(
                "%s: column %r of types= is not in the first rows%s: it is null until it appears",
                where,
                missing,
                meant(missing, found),
            )


def refuse_array(data: bytes) -> None:
    if data[:64].lstrip()[:1] == b"[":
        raise LineError(
            0,
            "it is a JSON array, and each line has to be an object: convert the file (jq -c '.[]' in.json > "
            "out.jsonl), or read it in a function with from_iterator()",
        )
