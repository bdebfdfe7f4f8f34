"""Items of a reader's buffer: rows of the snapshot and of the log."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.position import ChangePosition


@dataclass(frozen=True, slots=True)
class TransactionRows:
    """Rows of a transaction, or of a part of a transaction.

    `lsn`: end of the previous transaction. `first`: rows of the transaction before these. `end_lsn`: end of the
    transaction if these are the last rows, else None.
    """

    lsn: int
    commit_lsn: int
    first: int
    count: int
    end_lsn: int | None

    def after(self, rows: int) -> ChangePosition:
        if rows == self.count and self.end_lsn is not None:
            return ChangePosition(self.end_lsn)
        return ChangePosition(self.lsn, self.commit_lsn, self.first + rows)


@dataclass(frozen=True, slots=True)
class LoggedRows:
    """Rows of the log, and the transactions that the rows belong to, in order. `at`: position after the item."""

    rows: pa.RecordBatch
    transactions: tuple[TransactionRows, ...]
    at: ChangePosition

    def split(self, count: int) -> tuple["LoggedRows", "LoggedRows"]:
        """Returns the first `count` rows, at least one and not all, and the others."""
        ahead, left, rest = list[TransactionRows](), list[TransactionRows](), count
        for each in self.transactions:
            taken = min(rest, each.count)
            rest -= taken
            if taken:
                ends = each.end_lsn if taken == each.count else None
                ahead.append(replace(each, count=taken, end_lsn=ends))
            if taken < each.count:
                left.append(replace(each, first=each.first + taken, count=each.count - taken))
        at = ahead[-1].after(ahead[-1].count)
        return LoggedRows(self.rows.slice(0, count), tuple(ahead), at), LoggedRows(
            self.rows.slice(count), tuple(left), self.at
        )


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


Item: TypeAlias = LoggedRows | SnapshotRows | Reached


def size_of(item: Item) -> int:
    return 0 if isinstance(item, Reached) else item.rows.nbytes
