"""Partial rows: rows that each stand for several rows of their key, told from other rows by names of columns.

A partial row has the columns of the rows, and columns of partial aggregates behind them (`aggregation/partials`).
"""

import pyarrow as pa

PARTIAL = "partial aggregate: "  # beginning of the names


def is_partial(schema: pa.Schema) -> bool:
    """Returns whether rows of `schema` are partial rows."""
    names = schema.names
    return bool(names) and names[-1].startswith(PARTIAL)


def partial_names(schema: pa.Schema) -> list[str]:
    """Returns the names of the columns of partial aggregates."""
    return [name for name in schema.names if name.startswith(PARTIAL)]


def whole_schema(schema: pa.Schema) -> pa.Schema:
    """Returns `schema` without the columns of partial aggregates."""
    return pa.schema([field for field in schema if not field.name.startswith(PARTIAL)])
