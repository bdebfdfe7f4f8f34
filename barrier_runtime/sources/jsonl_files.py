"""Files with one JSON object per line as a source."""

from collections.abc import Sequence
from functools import partial

import pyarrow as pa
import pyarrow.json as pajson

from barrier_runtime.sources.base import Split, SplitReader
from barrier_runtime.sources.file_listing import FoundFile, find_files, open_file
from barrier_runtime.sources.file_reader import fit
from barrier_runtime.sources.line_blocks import BLOCK_BYTES, LinesReader, Parse, read_header, read_lines
from state.errors import InvalidJob


class JsonlSource:
    exactly_once = True

    def __init__(self, name: str, paths: str | Sequence[str], schema: pa.Schema | None, pace: float | None) -> None:
        self._where = f"source {name!r}"
        if pace is not None and not pace > 0:
            raise InvalidJob(f"{self._where}: pace={pace!r}: give rows per second, above 0")
        self._paths = paths
        self._pace = pace
        self._files = find_files(paths, (".jsonl", ".ndjson", ".json"), self._where)
        self.schema = schema if schema is not None else self._guess(self._files[0])

    def __repr__(self) -> str:
        return f"{len(self._files)} JSONL files of {self._paths}" + (f", {self._pace:g} rows/s" if self._pace else "")

    def splits(self, parallelism: int) -> Sequence[Split]:
        return [file.split() for file in self._files]

    def reader(self, split: Split) -> SplitReader:
        return LinesReader(
            self._where,
            FoundFile.of(split),
            self.schema,
            self._pace / len(self._files) if self._pace else None,
            partial(make_parser, schema=self.schema),
            header_lines=0,
        )

    def _guess(self, file: FoundFile) -> pa.Schema:
        where = f"{self._where}, file {file.url}"
        with open_file(file, where) as opened:
            _, start = read_header(opened, file.size, 0, where)
            data = read_lines(opened, start, file.size, BLOCK_BYTES, where) if start < file.size else b""
        if not data.strip():
            raise InvalidJob(f"{where}: it has no rows to guess types from: pass schema=")
        try:
            schema = _parse(data, pajson.ParseOptions()).schema
        except pa.ArrowInvalid as error:
            raise InvalidJob(f"{where}: it is not one JSON object per line: {error}. Correct the file") from error
        for field in schema:
            if pa.types.is_null(field.type):
                raise InvalidJob(
                    f"{where}: column {field.name!r} is null at first, so its type is unknown: pass schema="
                )
        return schema


def make_parser(header: bytes, where: str, *, schema: pa.Schema) -> Parse:
    options = pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    no_rows = pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)

    def parse(data: bytes) -> pa.RecordBatch:
        if not data.strip():
            return no_rows
        table = _parse(data, options).combine_chunks()
        return fit(table.to_batches()[0], schema, where) if table.num_rows else no_rows

    return parse


def _parse(data: bytes, options: pajson.ParseOptions) -> pa.Table:
    return pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=options,
    )
