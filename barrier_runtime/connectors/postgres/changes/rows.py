"""Rows of changes of tables (docs/changes.md): a row per change, or upserts. Pure.

An update of the key is two upserts: a delete of the old key, then the new row. With several tables a row has the column
`table`, `changed_at`, and a struct per table, all null but its table's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.postgres.changes.pgoutput import (
    Flags,
    Numbers,
    RowChanges,
    TextColumn,
    TextRows,
)
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, as_column, as_stored
from barrier_runtime.state.errors import InvalidJob

Form: TypeAlias = Literal["changes", "upsert"]
CHANGED_AT, DELETED, TABLE = "changed_at", "deleted", "table"
_TIME = pa.timestamp("us", "UTC")
_DELETE, _UPDATE = b"du"


@dataclass(frozen=True)
class ChangedTable:
    """Table "schema.table", with columns and replica identity (d, f or i) when the flow was written."""

    name: str
    columns: tuple[ChangedColumn, ...]
    identity: str = "d"

    @property
    def row_type(self) -> pa.StructType:
        return pa.struct([(column.name, column.type) for column in self.columns])

    @property
    def has_key(self) -> bool:
        """Returns whether fewer columns than all identify a row."""
        return not all(column.key for column in self.columns)

    @property
    def key_places(self) -> tuple[int, ...]:
        return tuple(at for at, column in enumerate(self.columns) if column.key)


@dataclass(frozen=True, slots=True)
class Stamps:
    committed_us: Numbers
    commit_lsn: Numbers
    xid: Numbers

    def take(self, places: Numbers) -> "Stamps":
        return Stamps(self.committed_us[places], self.commit_lsn[places], self.xid[places])


@dataclass(frozen=True, slots=True)
class UpsertRows:
    message: Numbers
    deleted: Flags
    rows: TextRows


def filled_in(changes: RowChanges, table: ChangedTable) -> TextRows:
    """New rows; values missing in the log come from the old row, if known."""
    columns = []
    for column, before, after in zip(table.columns, changes.before.columns, changes.after.columns, strict=True):
        fill = after.unchanged & ~changes.before.missing & (changes.whole | column.key)
        if fill.any():
            texts = pc.if_else(pa.array(fill), before.texts, after.texts)
            after = TextColumn(texts, np.where(fill, before.unchanged, after.unchanged))
        columns.append(after)
    return TextRows(tuple(columns), changes.after.missing)


def upserts_of(changes: RowChanges, table: ChangedTable) -> UpsertRows:
    before, after, ops = changes.before, filled_in(changes, table), changes.ops
    moved = (ops == _UPDATE) & ~before.missing & ~after.missing
    if moved.any():
        moved &= ~_equal(before, after, table.key_places)
    counts = 1 + moved
    message = np.repeat(np.arange(len(ops)), counts)
    deleted = (ops == _DELETE)[message]
    deleted[(np.cumsum(counts) - counts)[moved]] = True
    missing = np.where(deleted, before.missing[message], after.missing[message])
    columns = []
    for old, new in zip(before.columns, after.columns, strict=True):
        if len(message) > len(ops):
            old, new = _taken(old, message), _taken(new, message)
        if deleted.any():
            texts = pc.if_else(pa.array(deleted), old.texts, new.texts)
            new = TextColumn(texts, np.where(deleted, old.unchanged, new.unchanged))
        columns.append(new)
    return UpsertRows(message, deleted, TextRows(tuple(columns), missing))


def _taken(column: TextColumn, places: Numbers) -> TextColumn:
    return TextColumn(column.texts.take(pa.array(places)), column.unchanged[places])


def _equal(before: TextRows, after: TextRows, keys: Sequence[int]) -> Flags:
    equal = np.ones(len(before.missing), np.bool_)
    for at in keys:
        old, new = before.columns[at].texts, after.columns[at].texts
        both_null = pc.and_(old.is_null(), new.is_null())
        equal &= pc.or_(pc.fill_null(pc.equal(old, new), False), both_null).to_numpy(zero_copy_only=False)
    return equal


class ChangeRowLayout:
    """Makes batches: `fields[i]` is the schema of the stream of table i, `schema` the source's."""

    def __init__(self, tables: Sequence[ChangedTable], form: Form, *, unchanged_as_null: bool, where: str) -> None:
        self.tables = tuple(tables)
        self.form: Form = form
        self._unchanged_as_null = unchanged_as_null
        self._where = where
        for table in self.tables if form == "upsert" else ():
            for name in (DELETED, CHANGED_AT):
                if any(column.name == name for column in table.columns):
                    raise InvalidJob(
                        f"{where}: table {table.name} has a column {name!r}, which rows of form='upsert' need for "
                        "themselves: use form='changes', and select() what you need of before and after"
                    )
        self.fields = tuple(pa.schema(self._fields(table)) for table in self.tables)
        if len(self.tables) == 1:
            self.schema = self.fields[0]
        else:
            structs = [(table.name, pa.struct(list(of))) for table, of in zip(self.tables, self.fields, strict=True)]
            self.schema = pa.schema([(TABLE, pa.string()), (CHANGED_AT, _TIME), *structs])

    def _fields(self, table: ChangedTable) -> list[tuple[str, pa.DataType]]:
        if self.form == "upsert":
            columns = [(column.name, column.type) for column in table.columns]
            return [*columns, (DELETED, pa.bool_()), (CHANGED_AT, _TIME)]
        return [
            ("op", pa.string()),
            (CHANGED_AT, _TIME),
            ("lsn", pa.int64()),
            ("xid", pa.int64()),
            ("before", table.row_type),
            ("after", table.row_type),
            ("unchanged", pa.list_(pa.string())),
        ]

    def of_changes(
        self, changes: Mapping[int, tuple[Numbers, RowChanges]], stamps: Stamps
    ) -> tuple[pa.RecordBatch, Numbers]:
        """Returns rows in the order of their messages, and the number of rows of each message.

        `changes`: by table, the numbers of the messages and their content. `stamps`: of all messages. Raises
        `InvalidJob` for changes that the form cannot express.
        """
        counts = np.zeros(len(stamps.xid), np.int64)
        parts, messages = {}, {}
        for table, (numbers, of_table) in changes.items():
            parts[table], rows = self._of_table(table, of_table, stamps.take(numbers))
            messages[table] = numbers[rows]
            np.add.at(counts, messages[table], 1)
        if len(self.tables) == 1:
            return parts[0], counts
        order = np.argsort(np.concatenate(list(messages.values())), kind="stable")
        places, first = {}, 0
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        for table, numbers in messages.items():
            places[table] = ranks[first : first + len(numbers)]
            first += len(numbers)
        return self._together(parts, places, len(order)), counts

    def of_snapshot(self, table: int, rows: pa.RecordBatch, taken_us: int, lsn: int) -> pa.RecordBatch:
        where = f"{self._where}, table {self.tables[table].name}"
        columns = [
            as_stored(rows.column(column.name), column, where)
            if column.name in rows.schema.names
            else pa.nulls(rows.num_rows, column.type)
            for column in self.tables[table].columns
        ]
        count = rows.num_rows
        times = _repeated(taken_us, count).cast(_TIME)
        if self.form == "upsert":
            arrays = [*columns, pa.repeat(pa.scalar(False), count), times]
        else:
            kind = self.tables[table].row_type
            arrays = [
                pa.repeat(pa.scalar("r"), count),
                times,
                _repeated(lsn, count),
                pa.nulls(count, pa.int64()),
                pa.nulls(count, kind),
                pa.StructArray.from_arrays(columns, fields=list(kind)),
                pa.array([[]] * count, pa.list_(pa.string())),
            ]
        part = pa.RecordBatch.from_arrays(arrays, schema=self.fields[table])
        return part if len(self.tables) == 1 else self._together({table: part}, {table: np.arange(count)}, count)

    def _of_table(self, at: int, changes: RowChanges, stamps: Stamps) -> tuple[pa.RecordBatch, Numbers]:
        table, fields = self.tables[at], self.fields[at]
        if self.form == "upsert":
            upserts = upserts_of(changes, table)
            times = pa.array(stamps.committed_us[upserts.message]).cast(_TIME)
            arrays = [*self._upserts(table, upserts), times]
            return pa.RecordBatch.from_arrays(arrays, schema=fields), upserts.message
        after = filled_in(changes, table)
        arrays = [
            pa.array(changes.ops.view("S1")).cast(pa.string()),
            pa.array(stamps.committed_us).cast(_TIME),
            pa.array(stamps.commit_lsn),
            pa.array(stamps.xid),
            self._structs(table, changes.before),
            self._structs(table, after),
            _unchanged(table, after),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=fields), np.arange(len(changes.ops))

    def _upserts(self, table: ChangedTable, upserts: UpsertRows) -> list[pa.Array]:
        rows = upserts.rows
        lost = rows.missing.copy()
        for at in table.key_places if table.has_key else ():
            lost |= rows.columns[at].texts.is_null().to_numpy(zero_copy_only=False) & ~rows.columns[at].unchanged
        if lost.any():
            raise InvalidJob(
                f"{self._where}: table {table.name} was truncated, or a row was deleted whose key the log does not "
                "have, which no upsert can say: use form='changes', or start without state (restore='none')"
            )
        unchanged = np.logical_or.reduce([column.unchanged for column in rows.columns])
        if not self._unchanged_as_null and unchanged.any():
            first = int(np.argmax(unchanged))
            names = [c.name for c, values in zip(table.columns, rows.columns, strict=True) if values.unchanged[first]]
            raise InvalidJob(
                f"{self._where}: an update of table {table.name} left {', '.join(names)} as it "
                "was, and the log does not have such a large value: ALTER TABLE "
                f"{table.name} REPLICA IDENTITY FULL and start without state (restore='none'), or "
                "unchanged='null' to get a null there"
            )
        return [*self._columns(table, rows), pa.array(upserts.deleted)]

    def _columns(self, table: ChangedTable, rows: TextRows) -> list[pa.Array]:
        where = f"{self._where}, table {table.name}"
        return [
            as_column(values.texts, column, where) for column, values in zip(table.columns, rows.columns, strict=True)
        ]

    def _structs(self, table: ChangedTable, rows: TextRows) -> pa.StructArray:
        if rows.missing.all():
            return pa.nulls(len(rows.missing), table.row_type)
        columns = self._columns(table, rows)
        return pa.StructArray.from_arrays(columns, fields=list(table.row_type), mask=pa.array(rows.missing))

    def _together(
        self, parts: Mapping[int, pa.RecordBatch], places: Mapping[int, Numbers], count: int
    ) -> pa.RecordBatch:
        names = np.empty(count, dtype=object)
        times = np.empty(count, dtype=np.int64)
        structs = []
        for at, (table, of) in enumerate(zip(self.tables, self.fields, strict=True)):
            kind = pa.struct(list(of))
            if at not in parts:
                structs.append(pa.nulls(count, kind))
                continue
            index = np.full(count, -1)
            index[places[at]] = np.arange(parts[at].num_rows)
            names[places[at]] = table.name
            times[places[at]] = parts[at].column(CHANGED_AT).cast(pa.int64()).to_numpy()
            rows = pa.StructArray.from_arrays(parts[at].columns, fields=list(of))
            structs.append(rows.take(pa.array(index, mask=index < 0)))
        arrays = [pa.array(names, pa.string()), pa.array(times).cast(_TIME), *structs]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def table_rows(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    mine = batch.column(batch.schema.names.index(table))
    return pa.RecordBatch.from_struct_array(mine.filter(mine.is_valid()))


def _unchanged(table: ChangedTable, rows: TextRows) -> pa.Array:
    flags = np.array([column.unchanged for column in rows.columns]).reshape(len(rows.columns), len(rows.missing)).T
    offsets = np.concatenate([[0], np.cumsum(flags.sum(axis=1))]).astype(np.int32)
    names = pa.array([column.name for column in table.columns], pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets), names.take(pa.array(np.nonzero(flags)[1])))


def _repeated(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), count)
