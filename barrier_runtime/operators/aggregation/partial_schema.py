"""Partial rows: rows that each stand for several rows of their key, told from other rows by names of columns.
Columns of partial aggregates follow the columns of the rows (`aggregation/partials`)."""

import pyarrow as pa

PARTIAL = "partial aggregate: "  # of names


def is_partial(schema: pa.Schema) -> bool:
    names = schema.names
    return bool(names) and names[-1].startswith(PARTIAL)


def partial_names(schema: pa.Schema) -> list[str]:
    return [name for name in schema.names if name.startswith(PARTIAL)]


def whole_schema(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field for field in schema if not field.name.startswith(PARTIAL)])
