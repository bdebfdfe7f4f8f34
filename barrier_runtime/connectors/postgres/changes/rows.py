"""Rows of changes: a row per change, or upserts; of one table, or of several in one stream. Pure.

Form "changes" (Debezium's): `op` is r (existed when the job began), c, u, d or t (truncate); `before` and `after` are
structs of the table's columns. `before` is null unless the log has the old row: complete with REPLICA IDENTITY FULL,
otherwise only the key, for deletes and for updates of the key. `unchanged` names the columns whose values are missing
in the log, because they are stored out of line and did not change; these are null in `after`.

Form "upsert": the table's columns, `deleted` and `changed_at`. A delete has the key, and other columns if the log has
them. An update of the key is two rows: a delete of the old key, then the new row.

With several tables a row has the column `table`, `changed_at`, and a struct per table, all null but the struct of its
table.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa

from barrier_runtime.connectors.postgres.changes.pgoutput import UNCHANGED, Change, Values
from barrier_runtime.connectors.postgres.changes.values import ChangedColumn, as_column, as_stored
from barrier_runtime.state.errors import InvalidJob

Form: TypeAlias = Literal["changes", "upsert"]
CHANGED_AT, DELETED, TABLE = "changed_at", "deleted", "table"
_TIME = pa.timestamp("us", "UTC")


@dataclass(frozen=True)
class ChangedTable:
    """Table "schema.table", with columns and replica identity (d, f or i) as of the writing of the flow."""

    name: str
    columns: tuple[ChangedColumn, ...]
    identity: str = "d"

    @property
    def row_type(self) -> pa.StructType:
        return pa.struct([(column.name, column.type) for column in self.columns])

    @property
    def has_key(self) -> bool:
        """Returns False: all columns together identify a row."""
        return not all(column.key for column in self.columns)

    @property
    def key_places(self) -> tuple[int, ...]:
        return tuple(at for at, column in enumerate(self.columns) if column.key)


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """Row for the stream. `before` and `after` are in column order; `size` is approximate bytes."""

    table: int
    op: str
    committed_us: int
    commit_lsn: int
    xid: int | None
    before: Values | None
    after: Values | None
    size: int


def rows_of_change(
    change: Change, before: Values | None, after: Values | None, table: ChangedTable, form: Form
) -> list[tuple[str, Values | None, Values | None]]:
    """Returns (op, before, after) per row.

    In form "upsert" `d` has the row in `before`, other ops in `after`.
    """
    keys = table.key_places
    if after is not None and before is not None and UNCHANGED in after:
        known = range(len(before)) if change.whole else keys
        after = tuple(before[at] if new == UNCHANGED and at in known else new for at, new in enumerate(after))
    if form == "changes" or change.op != "u":
        return [(change.op, before, after)]
    if before is None or after is None or all(before[at] == after[at] for at in keys):
        return [("u", None, after)]
    return [("d", before, None), ("u", None, after)]


class ChangeRowLayout:
    """Makes batches. `fields[i]` is the schema of the stream of table i, `schema` that of the source."""

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

    def of_changes(self, rows: Sequence[ChangeRow]) -> pa.RecordBatch:
        """Returns `rows` in order. Raises `InvalidJob` for changes that the form cannot express."""
        if len(self.tables) == 1:
            return self._of_table(0, rows)
        by_table: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            by_table.setdefault(row.table, []).append(at)
        parts = {table: self._of_table(table, [rows[at] for at in places]) for table, places in by_table.items()}
        return self._together(parts, by_table, len(rows))

    def of_snapshot(self, table: int, rows: pa.RecordBatch, taken_us: int, lsn: int) -> pa.RecordBatch:
        """Returns rows of the snapshot. Raises `InvalidJob` if the type of a column has changed since."""
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
        return part if len(self.tables) == 1 else self._together({table: part}, {table: range(count)}, count)

    def _of_table(self, at: int, rows: Sequence[ChangeRow]) -> pa.RecordBatch:
        table, fields = self.tables[at], self.fields[at]
        times = pa.array([row.committed_us for row in rows], pa.int64()).cast(_TIME)
        if self.form == "upsert":
            return pa.RecordBatch.from_arrays([*self._upserts(table, rows), times], schema=fields)
        arrays = [
            pa.array([row.op for row in rows], pa.string()),
            times,
            pa.array([row.commit_lsn for row in rows], pa.int64()),
            pa.array([row.xid for row in rows], pa.int64()),
            self._structs(table, [row.before for row in rows]),
            self._structs(table, [row.after for row in rows]),
            pa.array([_unchanged(table, row.after) for row in rows], pa.list_(pa.string())),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=fields)

    def _upserts(self, table: ChangedTable, rows: Sequence[ChangeRow]) -> list[pa.Array]:
        values: list[Values] = []
        for row in rows:
            now = row.before if row.op == "d" else row.after
            if now is None or (table.has_key and any(now[at] is None for at in table.key_places)):
                raise InvalidJob(
                    f"{self._where}: table {table.name} was truncated, or a row was deleted whose key the log does not "
                    "have, which no upsert can say: use form='changes', or start without state (restore='none')"
                )
            if UNCHANGED in now and not self._unchanged_as_null:
                raise InvalidJob(
                    f"{self._where}: an update of table {table.name} left {', '.join(_unchanged(table, now))} as it "
                    "was, and the log does not have such a large value: ALTER TABLE "
                    f"{table.name} REPLICA IDENTITY FULL and start without state (restore='none'), or "
                    "unchanged='null' to get a null there"
                )
            values.append(now)
        where = f"{self._where}, table {table.name}"
        columns = [as_column([row[i] for row in values], column, where) for i, column in enumerate(table.columns)]
        return [*columns, pa.array([row.op == "d" for row in rows], pa.bool_())]

    def _structs(self, table: ChangedTable, rows: Sequence[Values | None]) -> pa.StructArray:
        where = f"{self._where}, table {table.name}"
        columns = [
            as_column([None if row is None else row[i] for row in rows], column, where)
            for i, column in enumerate(table.columns)
        ]
        missing = pa.array([row is None for row in rows], pa.bool_())
        return pa.StructArray.from_arrays(columns, fields=list(table.row_type), mask=missing)

    def _together(
        self, parts: dict[int, pa.RecordBatch], places: "dict[int, list[int]] | dict[int, range]", count: int
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
            index[list(places[at])] = np.arange(parts[at].num_rows)
            names[list(places[at])] = table.name
            times[list(places[at])] = parts[at].column(CHANGED_AT).cast(pa.int64()).to_numpy()
            rows = pa.StructArray.from_arrays(parts[at].columns, fields=list(of))
            structs.append(rows.take(pa.array(index, mask=index < 0)))
        arrays = [pa.array(names, pa.string()), pa.array(times).cast(_TIME), *structs]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def table_rows(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """Rows of one table, with the columns of that table, from rows of several tables."""
    mine = batch.column(batch.schema.names.index(table))
    return pa.RecordBatch.from_struct_array(mine.filter(mine.is_valid()))


def _unchanged(table: ChangedTable, row: Values | None) -> list[str]:
    return [] if row is None else [c.name for c, value in zip(table.columns, row, strict=True) if value == UNCHANGED]


def _repeated(number: int, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(number, pa.int64()), count)
