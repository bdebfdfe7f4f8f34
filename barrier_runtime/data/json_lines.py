"""JSON objects, one per line, as columns of declared types."""

from collections.abc import Callable

import pyarrow as pa
import pyarrow.json as pajson

from barrier_runtime.data.schemas import lines_parser, refuse_unreadable


def json_parser(where: str, schema: pa.Schema) -> Callable[[bytes], pa.RecordBatch]:
    """From whole lines to rows. Fields that `schema` lacks are left out, absent ones are null. What it returns raises
    `pa.ArrowInvalid` for what is not JSON objects of such columns."""
    refuse_unreadable(schema, "JSON", _read_nothing, where)
    options = _options(schema)
    return lines_parser(lambda data: json_table(data, options), schema, where)


def _options(schema: pa.Schema) -> pajson.ParseOptions:
    return pajson.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")


def _read_nothing(schema: pa.Schema) -> pa.Table:
    return json_table(b"{}\n", _options(schema))


def json_table(data: bytes, options: pajson.ParseOptions | None = None) -> pa.Table:
    """Without `options` types are guessed."""
    return pajson.read_json(
        pa.BufferReader(data),
        read_options=pajson.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=options or pajson.ParseOptions(),
    )
