"""Files with one JSON object per line as a source, plain or compressed."""

from contextlib import closing
from functools import partial

import pyarrow as pa
import pyarrow.json as pajson

from barrier_runtime.sources.base import SplitReader
from barrier_runtime.sources.file_listing import FoundFile
from barrier_runtime.sources.file_reader import fit
from barrier_runtime.sources.file_source import FileSource
from barrier_runtime.sources.line_blocks import BLOCK_BYTES, LinesReader, Parse, read_header, read_lines
from barrier_runtime.sources.text_files import open_text, or_compressed
from state.errors import InvalidJob


class JsonlSource(FileSource):
    kind = "JSONL"
    suffixes = or_compressed((".jsonl", ".ndjson", ".json"))

    def file_reader(self, file: FoundFile, rows_per_second: float | None) -> SplitReader:
        parser = partial(make_parser, schema=self.schema)
        return LinesReader(self.where, file, self.schema, rows_per_second, parser, header_lines=0)

    def guess(self, file: FoundFile) -> pa.Schema:
        where = f"{self.where}, file {file.url}"
        with closing(open_text(file, where)) as text:
            _, start = read_header(text, 0, where)
            data = read_lines(text, start, BLOCK_BYTES, where)
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
