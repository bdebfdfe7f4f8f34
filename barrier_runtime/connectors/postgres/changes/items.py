"""Rows of the snapshot and of the log as they wait in a reader's buffer."""

from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.position import ChangePosition
from barrier_runtime.connectors.postgres.changes.rows import ChangeRow

_ROW_BYTES = 200  # of a row besides its values


@dataclass(frozen=True, slots=True)
class LoggedRow:
    """`at`: the position behind it."""

    row: ChangeRow
    at: ChangePosition


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Rows of `chunk` from row `first` on; `last`: they end the snapshot."""

    table: int
    chunk: int
    first: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Reached:
    """Nothing more comes up to there."""

    at: ChangePosition


Item: TypeAlias = LoggedRow | SnapshotRows | Reached


def size_of(item: Item) -> int:
    if isinstance(item, LoggedRow):
        return item.row.size + _ROW_BYTES
    return item.rows.nbytes if isinstance(item, SnapshotRows) else 0
