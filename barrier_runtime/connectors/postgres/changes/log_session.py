"""Conversion of the messages of one replication session into rows with positions."""

import struct
from typing import Protocol

from barrier_runtime.connectors.postgres.changes.items import Item, LoggedRow, Reached
from barrier_runtime.connectors.postgres.changes.pgoutput import (
    Change,
    Relation,
    TransactionBegin,
    TransactionCommit,
    Truncate,
    Values,
    decoded,
)
from barrier_runtime.connectors.postgres.changes.position import ChangePosition
from barrier_runtime.connectors.postgres.changes.rows import ChangeRow, ChangeRowLayout, rows_of_change
from barrier_runtime.connectors.postgres.changes.shape import CatalogTable, places_of
from barrier_runtime.state.errors import InvalidJob


class LogFeed(Protocol):
    """Buffer that a session fills.

    `at` is the position after the last item. `ids` maps the server's table ids to names, `tables` names to numbers.
    `end` is the position where reading ends, or None.
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


class LogSession:
    """Session that starts at `at`, perhaps in the middle of the first transaction."""

    def __init__(self, feed: LogFeed, at: ChangePosition) -> None:
        self.told = -1
        self.received = 0
        self._feed = feed
        self._given = at
        self._relations: dict[int, tuple[int, tuple[int | None, ...]] | None] = {}
        self._begin: TransactionBegin | None = None
        self._count = 0  # rows of the transaction

    def message(self, data: memoryview) -> bool:
        """Handles a message. Returns True if the server requests an answer now."""
        if data[0] == 107:  # k, keepalive: no rows up to `end`
            end, _, reply = struct.unpack_from(">QqB", data, 1)
            if self._begin is None:
                self._reach(end)
            return bool(reply)
        assert data[0] == 119, f"a message of kind {data[0]}"
        self._logged(data[25:])
        return False

    def _logged(self, data: memoryview) -> None:
        feed = self._feed
        message = decoded(data)
        if isinstance(message, TransactionBegin):
            if feed.end is not None and message.commit_lsn >= feed.end:
                self._reach(feed.end)
                return
            self._begin, self._count = message, 0
        elif isinstance(message, TransactionCommit):
            self._begin = None
            self._reach(message.end_lsn)
        elif isinstance(message, Relation):
            self._relations[message.id] = self._known(message)
        elif isinstance(message, Change):
            relation = self._relations[message.relation]
            if relation is not None:
                self._changed(message, *relation, len(data))
        elif isinstance(message, Truncate):
            for id in message.relations:
                relation = self._relations.get(id)
                if relation is not None:
                    self._give(relation[0], "t", None, None, 0)

    def _known(self, relation: Relation) -> tuple[int, tuple[int | None, ...]] | None:
        """Number of the table, and the place of each of its columns in the log. None: another table."""
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
        return number, places_of(layout.tables[number], relation, now, layout.form, feed.where)

    def _changed(self, change: Change, table: int, places: tuple[int | None, ...], size: int) -> None:
        layout = self._feed.layout
        before, after = _placed(change.before, places), _placed(change.after, places)
        for row in rows_of_change(change, before, after, layout.tables[table], layout.form):
            self._give(table, *row, size)

    def _give(self, table: int, op: str, before: Values | None, after: Values | None, size: int) -> None:
        begin, feed = self._begin, self._feed
        assert begin is not None, "a change outside of a transaction"
        self._count += 1
        if begin.commit_lsn == self._given.commit_lsn and self._count <= self._given.skip:
            return
        if begin.commit_lsn < self._given.lsn:
            return  # the server repeats transactions that were read before
        at = ChangePosition(feed.at.lsn, begin.commit_lsn, self._count)
        row = ChangeRow(table, op, begin.committed_us, begin.commit_lsn, begin.xid, before, after, size)
        feed.put(LoggedRow(row, at), at)

    def _reach(self, lsn: int) -> None:
        feed = self._feed
        self.received = max(self.received, lsn)
        if lsn > feed.at.lsn:
            at = ChangePosition(lsn)
            feed.put(Reached(at), at)
        feed.is_end(lsn)


def _placed(values: Values | None, places: tuple[int | None, ...]) -> Values | None:
    return None if values is None else tuple(None if at is None else values[at] for at in places)
