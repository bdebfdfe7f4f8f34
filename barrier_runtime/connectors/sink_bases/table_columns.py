"""The columns that rows have against those of a table in a SQL database: which are missing on either side. Pure."""

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from barrier_runtime.state.errors import InvalidJob


class SqlColumn(Protocol):
    """A column of a table."""

    @property
    def name(self) -> str: ...

    @property
    def not_null(self) -> bool: ...

    @property
    def filled(self) -> bool:
        """By a default or an identity, when no value is given."""
        ...

    @property
    def generated(self) -> bool:
        """It refuses values."""
        ...


def check_names(schema: pa.Schema, columns: Sequence[SqlColumn], table: str, where: str) -> None:
    """Raises `InvalidJob` for the first column that the table lacks or that the rows have twice, and for a column of
    the table that needs a value and gets none."""
    there = [column.name for column in columns]
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidJob(f"{where}: column {name!r} is in the rows twice: rename one of them with select()")
        if name not in there:
            raise InvalidJob(
                f"{where}: the rows have a column {name!r}, table {table} has not; it has {', '.join(there)}: "
                f"ALTER TABLE {table} ADD COLUMN, or select() other columns"
            )
    for column in columns:
        if column.not_null and not column.filled and not column.generated and column.name not in schema.names:
            raise InvalidJob(
                f"{where}: column {column.name!r} of table {table} is NOT NULL without a default, and the rows have "
                "no such column: select() it, or give the column a default"
            )
