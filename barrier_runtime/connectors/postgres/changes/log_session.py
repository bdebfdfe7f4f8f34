"""Converts a replication session's messages into buffer items: rows with positions."""

import bisect
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.pgoutput import (
    HEADER,
    ROW_KINDS,
    Numbers,
    Relation,
    RowMessages,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    decoded,
    truncation,
)
from barrier_runtime.connectors.postgres.changes.position import ChangePosition
from barrier_runtime.connectors.postgres.changes.rows import ChangeRowLayout, Stamps
from barrier_runtime.connectors.postgres.changes.shape import CatalogTable, places_of
from barrier_runtime.state.errors import InvalidJob


@dataclass(frozen=True, slots=True)
class TransactionRows:
    """Rows of a transaction or a part of it, after `first` earlier rows of the transaction.

    `lsn`: end of the previous transaction. `end_lsn`: end of this transaction if no rows follow, else None.
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
    """Rows of the log: a part of the rows of `transactions`, after `passed` earlier rows.

    `ends`: number of rows up to the end of each transaction. Both parts of a split share `transactions` and `ends`.
    """

    rows: pa.RecordBatch
    transactions: Sequence[TransactionRows]
    ends: Sequence[int]
    passed: int = 0

    @property
    def at(self) -> ChangePosition:
        last = self.passed + self.rows.num_rows
        place = bisect.bisect_left(self.ends, last)
        transaction = self.transactions[place]
        return transaction.after(last - self.ends[place] + transaction.count)

    def split(self, count: int) -> tuple["LoggedRows", "LoggedRows"]:
        """Splits after `count` rows, at least one and not all."""
        ahead, rest = self.rows.slice(0, count), self.rows.slice(count)
        return replace(self, rows=ahead), replace(self, rows=rest, passed=self.passed + count)


@dataclass(frozen=True, slots=True)
class SnapshotRows:
    """Rows of `chunk` from row `first` on."""

    table: int
    chunk: int
    first: int
    rows: pa.RecordBatch


@dataclass(frozen=True, slots=True)
class Reached:
    """Mark that no more rows come up to `at`."""

    at: ChangePosition


Item: TypeAlias = LoggedRows | SnapshotRows | Reached


def size_of(item: Item) -> int:
    return 0 if isinstance(item, Reached) else item.rows.nbytes


PART_ROWS: Final = 16_384  # messages decoded together
PART_BYTES: Final = 4 << 20  # bytes of these messages, besides the last


class LogFeed(Protocol):
    """Buffer that a session fills, up to `end`; `at` is the position after the last item.

    `ids`: the server's table ids to names. `tables`: names to numbers.
    """

    at: ChangePosition
    end: int | None
    ids: dict[int, str]
    layout: ChangeRowLayout
    tables: dict[str, int]
    where: str

    def put(self, item: Item, at: ChangePosition) -> None: ...

    def is_end(self, lsn: int) -> bool: ...

    def look_at(self, relation: Relation) -> CatalogTable:
        """Returns the current catalog. Raises `InvalidJob` if the publication omits changes."""
        ...


@dataclass(frozen=True, slots=True)
class _Known:
    """Table number, number of columns in the log's rows, and place there of each table column."""

    table: int
    width: int
    places: tuple[int | None, ...]


@dataclass(slots=True)
class _Transaction:
    """Undecoded messages of a transaction, from `first` on. `lsn`: end of the previous transaction."""

    begin: TransactionBegin
    lsn: int
    first: int = 0
    rows: int = 0  # decoded earlier
    end_lsn: int | None = None


class LogSession:
    """Session that starts at `at`, perhaps within a transaction."""

    def __init__(self, feed: LogFeed, at: ChangePosition) -> None:
        self.told = -1  # LSN last confirmed to the server, set by the feed
        self.received = 0  # highest LSN read
        self._feed = feed
        self._given = at
        self._lsn = at.lsn  # end of the last message; its rows may not be decoded yet
        self._relations: dict[int, _Known | None] = {}
        self._messages: list[bytes | memoryview] = []
        self._bytes = 0
        self._transactions: list[_Transaction] = []  # whose rows are in `_messages`
        self._now: _Transaction | None = None
        self._repeated = False  # the current transaction was read before

    def message(self, data: memoryview) -> bool:
        """Returns True if the server requests an answer now."""
        if data[0] == 119:  # w
            if data[HEADER] in ROW_KINDS:
                if not self._repeated:
                    self._collect(data)
            else:
                self._logged(data[HEADER:])
            return False
        assert data[0] == 107, f"a message of kind {data[0]}"  # k, keepalive
        end, _, reply = struct.unpack_from(">QqB", data, 1)
        if self._now is None:
            self._reach(end)
        return bool(reply)

    def _collect(self, data: bytes | memoryview) -> None:
        self._messages.append(data)
        self._bytes += len(data)
        if len(self._messages) >= PART_ROWS or self._bytes >= PART_BYTES:
            self.flush()

    def _logged(self, data: memoryview) -> None:
        feed = self._feed
        message = decoded(data)
        if isinstance(message, TransactionBegin):
            if feed.end is not None and message.commit_lsn >= feed.end:
                self._reach(feed.end)
                return
            if len(self._transactions) >= PART_ROWS:
                self.flush()
            self._repeated = message.commit_lsn < self._given.lsn
            self._now = _Transaction(message, self._lsn, len(self._messages))
            self._transactions.append(self._now)
        elif isinstance(message, TransactionCommit):
            if self._now is not None:
                self._now.end_lsn = message.end_lsn
            self._now = None
            self._reach(message.end_lsn)
        elif isinstance(message, Relation):
            self.flush()
            self._relations[message.id] = self._known(message)
        elif isinstance(message, Truncate) and not self._repeated:
            for id in message.relations:
                if self._relations.get(id) is not None:
                    self._collect(truncation(id))

    def _known(self, relation: Relation) -> "_Known | None":
        feed, name = self._feed, f"{relation.schema}.{relation.table}"
        number = feed.tables.get(name)
        if feed.ids.get(relation.id, name) != name:
            raise InvalidJob(
                f"{feed.where}: table {feed.ids[relation.id]} was renamed to {name}: give it its name back, or start "
                "the program with the new one and without state (restore='none')"
            )
        if number is None:
            return None
        now = feed.look_at(relation)
        if relation.id not in feed.ids:
            raise InvalidJob(
                f"{feed.where}: table {name} was dropped and made again: start the job without state (restore='none'), "
                "which takes the table as it is now"
            )
        layout = feed.layout
        places = places_of(layout.tables[number], relation, now, layout.form, feed.where)
        return _Known(number, len(relation.columns), places)

    def _reach(self, lsn: int) -> None:
        feed = self._feed
        self.received = max(self.received, lsn)
        self._lsn = max(self._lsn, lsn)
        if not self._messages:
            self._transactions = [] if self._now is None else [self._now]
            self._put_reached()
        if feed.end is not None and lsn >= feed.end:
            self.flush()
        feed.is_end(lsn)

    def _put_reached(self) -> None:
        at = self._feed.at
        if self._now is None and self._lsn > max(at.lsn, at.commit_lsn):
            reached = ChangePosition(self._lsn)
            self._feed.put(Reached(reached), reached)

    def flush(self) -> None:
        if not self._messages:
            return
        messages, transactions = self._messages, self._transactions
        self._messages, self._bytes = [], 0
        self._transactions = [] if self._now is None else [self._now]
        bounds = np.array([each.first for each in transactions] + [len(messages)])
        lengths = np.diff(bounds)
        decoded = self._decoded(messages, _stamps(transactions, lengths))
        if decoded is not None:
            rows, counts = decoded
            ends = np.concatenate([[0], np.cumsum(counts)])[bounds]
            self._put(rows, [int(count) for count in np.diff(ends)], transactions)
        if self._now is not None:
            self._now.first = 0
        self._put_reached()

    def _decoded(self, messages: list[bytes | memoryview], stamps: Stamps) -> tuple[pa.RecordBatch, Numbers] | None:
        together = RowMessages(messages)
        changes = {}
        for id in np.unique(together.relations):
            known = self._relations[int(id)]
            if known is not None:
                chosen = np.flatnonzero(together.relations == id)
                changes[known.table] = chosen, together.changes(chosen, known.width, known.places)
        return self._feed.layout.of_changes(changes, stamps) if changes else None

    def _put(self, rows: pa.RecordBatch, counts: list[int], transactions: list[_Transaction]) -> None:
        given, read, parts = self._given, 0, list[TransactionRows]()
        for transaction, count in zip(transactions, counts, strict=True):
            begin, first = transaction.begin, transaction.rows
            transaction.rows += count
            if begin.commit_lsn == given.commit_lsn:
                again = min(count, max(0, given.skip - first))
                read += again
                first, count = first + again, count - again
            if count:
                parts.append(TransactionRows(transaction.lsn, begin.commit_lsn, first, count, transaction.end_lsn))
        if parts:
            item = LoggedRows(rows.slice(read), parts, list(itertools.accumulate(each.count for each in parts)))
            self._feed.put(item, item.at)


def _stamps(transactions: list[_Transaction], lengths: Numbers) -> Stamps:
    begins = [each.begin for each in transactions]
    committed, lsn, xid = (
        np.repeat(np.array(values, np.int64), lengths)
        for values in (
            [begin.committed_us for begin in begins],
            [begin.commit_lsn for begin in begins],
            [begin.xid for begin in begins],
        )
    )
    return Stamps(committed, lsn, xid)
