"""Items of a reader's buffer: rows of the snapshot and of the log."""

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.position import ChangePosition
from barrier_runtime.connectors.postgres.changes.rows import ChangeRow

_ROW_BYTES = 200  # of a row besides the values


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """Row of the log. `at` is the position after the row."""

    row: ChangeRow
    at: ChangePosition


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Rows of `chunk` from row `first` on."""

    table: int
    chunk: int
    first: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Reached:
    """Marks that no more rows come up to `at`."""

    at: ChangePosition


Item: TypeAlias = LoggedRow | SnapshotRows | Reached


def size_of(item: Item) -> int:
    if isinstance(item, LoggedRow):
        return item.row.size + _ROW_BYTES
    return item.rows.nbytes if isinstance(item, SnapshotRows) else 0
