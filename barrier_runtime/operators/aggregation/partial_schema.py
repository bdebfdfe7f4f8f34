"""Partial rows: rows that each stand for several rows of their key (`aggregation/partials`).
Column names after those of the rows tell them from other rows."""

import pyarrow as pa

PARTIAL = "partial aggregate: "


def is_partial(schema: pa.Schema) -> bool:
    names = schema.names
    return bool(names) and names[-1].startswith(PARTIAL)


def partial_names(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name.startswith(PARTIAL)]


def whole_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if not field.name.startswith(PARTIAL)])
