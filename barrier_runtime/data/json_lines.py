"""JSON objects, one per line, as columns of declared types.

| column         | JSON                                                                                          |
|----------------|-----------------------------------------------------------------------------------------------|
| integers       | a number without fraction and exponent                                                        |
| floats         | a number, or `NaN`, `Infinity`, `-Infinity` also as text                                           |
| decimals       | a number, or text                                                                             |
| text           | text                                                                                          |
| dates, times   | text: `2024-02-29`, `23:59:59.5`, `2024-02-29T23:59:59.5Z` (without zone: in UTC)              |
| durations      | text: `PT1.5S`, `P1DT2H`                                                                      |
| binary         | text in base64                                                                                |
| lists, structs | arrays, objects                                                                               |
| maps           | objects; arrays of pairs if keys are nested                                                   |

Arrow reads a block at once. The lines of a block are read one by one if a column is a map, or if Arrow refuses the
block: that keeps the values, or names the line.
"""

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.json as pajson
import pyarrow.types as types

from barrier_runtime.data.schemas import no_rows, one_array
from barrier_runtime.data.values.json_columns import begins_of_lines, columns_of_lines, from_wire, has, wire_type
from barrier_runtime.data.values.json_guess import guessed_exactly
from barrier_runtime.data.values.text_columns import LineError, not_utf8_at
from barrier_runtime.state.errors import InvalidJob

_CHANGED = re.compile(r"Column\(/?(.*?)\) changed from (\w+) to (\w+) in row (\d+)")  # as Arrow says it
_NO_NUMBER = re.compile(rb'([:\[,]\s*)"(NaN|-?Infinity)"(?=\s*[,}\]])')


def json_parser(where: str, schema: pa.Schema) -> Callable[[bytes], pa.RecordBatch]:
    """From whole lines to rows. Fields that `schema` lacks are left out, absent ones are null. The function raises
    `LineError` for a line that is not a JSON object of such columns."""
    for field in schema:
        if wire_type(field.type) is None:
            raise InvalidJob(
                f"{where}: column {field.name!r} is declared as {field.type}, which is not read from JSON: declare "
                "another type, or read text and parse that in map()"
            )
    return _Parser(schema)


def _refuse_other_bytes(data: bytes) -> None:
    bad = None if data.isascii() else not_utf8_at(data)
    if bad is not None:
        raise LineError(bad, f"0x{data[bad]:02x} is not UTF-8: convert the file (iconv -f LATIN1 -t UTF-8)")


class _Parser:
    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._empty = no_rows(schema)
        self._by_lines = any(has(field.type, types.is_map) for field in schema)
        self._has_times = any(has(field.type, types.is_timestamp) for field in schema)
        self._has_floats = any(has(field.type, types.is_floating) for field in schema)
        self._options = None if self._by_lines else self._options_of(times_as_text=False)

    def _options_of(self, *, times_as_text: bool) -> pajson.ParseOptions:
        fields = [field.with_type(wire_type(field.type, times_as_text=times_as_text)) for field in self._schema]
        return pajson.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")

    def __call__(self, data: bytes) -> pa.RecordBatch:
        _refuse_other_bytes(data)
        if data[:1].isspace() and not data.strip():
            return self._empty
        if self._options is None:
            return columns_of_lines(data, self._schema)
        try:
            return self._rows(data, self._options)
        except ValueError:
            if not self._has_times:
                return columns_of_lines(data, self._schema)
        options = self._options_of(times_as_text=True)
        try:
            rows = self._rows(data, options)
        except ValueError:
            return columns_of_lines(data, self._schema)
        self._options, self._has_times = options, False  # zeros below the unit: other blocks have them too
        return rows

    def _rows(self, data: bytes, options: pajson.ParseOptions) -> pa.RecordBatch:
        """Raises `ValueError` (as Arrow does) if a value is not one that Arrow reads and keeps."""
        try:
            table = json_table(data, options)
        except pa.ArrowInvalid:
            changed, count = _NO_NUMBER.subn(rb"\1\2", data) if self._has_floats else (data, 0)
            if not count:
                raise
            table = json_table(changed, options)
        columns = [from_wire(one_array(table[field.name]), field.type) for field in self._schema]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def json_table(data: bytes, options: pajson.ParseOptions | None = None) -> pa.Table:
    """Without `options` types are guessed."""
    return pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=options or pajson.ParseOptions(),
    )


def guessed_schema(data: bytes) -> pa.Schema:
    """The types that some lines suggest. Raises `LineError`."""
    _refuse_other_bytes(data)
    try:
        schema = json_table(data).schema
    except pa.ArrowInvalid as error:
        changed = _CHANGED.search(str(error))
        if changed is not None:
            column, before, after, row = changed.groups()
            raise LineError(
                begins_of_lines(data)[int(row)],
                f"column {column!r} is a {before} at first and a {after} here: make it one type in the file, or pass "
                "schema=",
            ) from error
        columns_of_lines(data, pa.schema([]))  # names the line
        raise LineError(0, f"it is not one JSON object per line: {error}. Correct the file") from error
    return guessed_exactly(data, schema)
