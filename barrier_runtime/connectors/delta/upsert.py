"""Exactly-once upserts into a Delta Lake table: a MERGE for everything decided since the last commit.

Subtask 0 merges the last row of each key of all subtasks in a single commit, whose application transaction is the
highest checkpoint. After an unknown result or a restart, the sink looks for that transaction in the table; a zombie's
later commit conflicts.
"""

import datetime
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from barrier_runtime.connectors.delta import data_files
from barrier_runtime.connectors.delta.library import checked_url
from barrier_runtime.connectors.delta.schema import DeltaType, check_partition_columns, delta_fields, stored_schema
from barrier_runtime.connectors.delta.table import DeltaLog
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.lake.compaction import commit_every_ms, described
from barrier_runtime.connectors.sink_bases.staging import example_of
from barrier_runtime.connectors.sink_bases.write_ahead import BatchingSink, DecidedBatch
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.rows import preview
from barrier_runtime.data.schemas import column_names, key_columns, require_columns
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.store.object_store import ObjectNotFound
from barrier_runtime.state.store.open import within
from barrier_runtime.state.store.urls import last_part, shown
from barrier_runtime.state.texts import counted

_ORDER = "barrier_runtime_order"
_KEY_TYPES = ("byte", "short", "integer", "long", "boolean", "string", "date", "timestamp", "timestamp_ntz")


@kinds_checked
class DeltaUpsertSink(BatchingSink):
    """Merges rows into the Delta table at `url`, which is as for `DeltaSink`.

    A row replaces the row with the same `key`: columns of text, integers, booleans, dates or times, without nulls.
    `deletes`: a boolean column, which the table does not get; true removes the row with that key.

    A MERGE rewrites every file that contains a key, so the cost grows with the table. `commit_every`: a duration, or
    seconds; a MERGE has the checkpoints of that time, with all rows in memory; 0: a MERGE per checkpoint.
    `partition_by`: as for `DeltaSink`; should be part of the key, or every MERGE reads the whole table.
    `max_bytes_in_memory`: Arrow bytes of a subtask's open transaction before rows are staged early.

    >>> DeltaUpsertSink("s3://lake/customers", key=["id"], deletes="deleted")  # doctest: +SKIP
    """

    kind: ClassVar[str] = "delta_upsert"
    last_row_wins = True

    def __init__(
        self,
        url: str,
        *,
        key: str | Sequence[str],
        deletes: str | None = None,
        partition_by: Sequence[str] | str | None = None,
        commit_every: datetime.timedelta | float = 0,
        max_bytes_in_memory: int = 32 << 20,
    ) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        self.commit_every_ms = commit_every_ms(commit_every, "DeltaUpsertSink")
        self.url = checked_url(url, "the location of DeltaUpsertSink", "DeltaUpsertSink cannot write to")
        self.key = key_columns(key, "DeltaUpsertSink: key")
        if not self.key or deletes in self.key:
            raise InvalidJob(
                f"DeltaUpsertSink: key={key!r}, deletes={deletes!r}: give the columns of the key, "
                "key=['id'], and another column for deletes"
            )
        self.deletes = deletes
        self.partition_by = (
            None if partition_by is None else column_names(partition_by, "DeltaUpsertSink: partition_by")
        )

    def __repr__(self) -> str:
        return f"DeltaUpsertSink({shown(self.url)!r}, by {', '.join(self.key)}){described(self.commit_every_ms)}"

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url,
            "key": list(self.key),
            "deletes": self.deletes,
            "partition_by": None if self.partition_by is None else list(self.partition_by),
            "commit_every": self.commit_every_ms / 1000,
            "max_bytes_in_memory": self.max_bytes_in_memory,
        }

    def target(self) -> str:
        return f"Delta table {last_part(self.url)}"

    def places(self) -> Sequence[str]:
        return [f"delta:{within(self.url, '')}", example_of(self.url, "parquet", self.partition_by or ())]

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self._log = DeltaLog(self.url, context.make_store(self.url), self._where)
        self._stored: pa.Schema | None = None
        self._table = self._log.existing()
        self._partition_by = self.partition_by or ()
        if self._table is not None:
            self._table.check_replacing(self._where)
            if self.partition_by is None:
                self._partition_by = self._table.partition_by

    def close(self) -> None:
        if hasattr(self, "_log"):
            self._log.close()

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        require_columns(schema, (*self.key, *((self.deletes,) if self.deletes else ())), where)
        if self.deletes is not None and not pa.types.is_boolean(schema.field(self.deletes).type):
            raise InvalidJob(
                f"{where}: column {self.deletes!r} (deletes=) is {schema.field(self.deletes).type}: make it boolean"
            )
        fields = self._fields(schema, where)
        for name in fields:
            if "`" in name:
                raise InvalidJob(f"{where}: column {name!r} has a backtick in its name: rename it with select()")
        for name in self.key:
            kind = fields[name]
            if kind not in _KEY_TYPES and not str(kind).startswith("decimal"):
                raise InvalidJob(
                    f"{where}: key column {name!r} is {kind}, which cannot be compared safely: use text, whole "
                    "numbers, booleans, dates or times"
                )
        check_partition_columns(fields, self.partition_by or (), where)

    def check_schema(self, schema: pa.Schema) -> None:
        self.check_columns(schema, self._where)
        fields = self._fields(schema, self._where)
        check_partition_columns(fields, self._partition_by, self._where)
        if self._table is not None:
            self._table.check(fields, self._partition_by, self._where)
        self._stored = stored_schema(schema, self._where)

    def _fields(self, schema: pa.Schema, where: str) -> dict[str, DeltaType]:
        return delta_fields(pa.schema([field for field in schema if field.name != self.deletes]), where)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        assert self._stored is not None, "rows are staged that were not written"
        rows = data_files.stored_rows(batches, self._stored, self._where)
        for name in self.key:
            nulls = rows.column(name).is_null()
            if (row := pc.index(nulls, True).as_py()) >= 0:
                raise InvalidJob(
                    f"{self._where}: key column {name!r} of a row is null, which equals nothing: fill or filter such "
                    f"rows: {preview(rows.slice(row, 1).combine_chunks().to_batches()[0], 0)}"
                )
        for name in self._partition_by:
            data_files.check_written_by_library(rows.column(name), name, self._where)
        kept = rows if self.deletes is None else rows.filter(pc.invert(pc.fill_null(rows.column(self.deletes), False)))
        required = self._table.required if self._table else ()
        data_files.check_required(kept, required, self._partition_by, self._where)
        return list(rows.to_batches())

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        for application in dict.fromkeys(batch.application for batch in batches):  # several only after another start
            self._deliver(application, [batch for batch in batches if batch.application == application])

    def _deliver(self, application: str, batches: Sequence[DecidedBatch]) -> None:
        done = self._log.committed(application) if len(batches) > 1 else 0
        new = [batch for batch in batches if batch.checkpoint > done]
        if not new:
            return
        last = new[-1].checkpoint
        try:
            by_checkpoint = [(batch.checkpoint, self._rows_of(batch)) for batch in new]
        except ObjectNotFound as error:
            if self._log.has_checkpoint(application, last):
                return
            raise Corrupt(
                f"{self._where}: of the {counted(sum(batch.rows for batch in new), 'row')} that checkpoints up to "
                f"{last} decided some are gone, and the table {shown(self.url)} does not have them ({error}). Were "
                "they aborted, moved or deleted? Restore the object from a backup; the commit is tried again"
            ) from error
        fields = self._fields(by_checkpoint[-1][1].schema, self._where)
        self._log.merge(
            _Merge(application, last, fields, self._partition_by, tuple(by_checkpoint), self.key, self.deletes)
        )

    def _rows_of(self, batch: DecidedBatch) -> pa.Table:
        with ThreadPoolExecutor(max_workers=8) as reading:
            tables = list(reading.map(lambda staged: pa.Table.from_batches(self._read(staged)), batch.objects))
        return pa.concat_tables(tables, promote_options="default")


def _last_of_each(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    numbered = rows.select(list(key)).append_column(_ORDER, pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(list(key), use_threads=False).aggregate([(_ORDER, "max")]).column(f"{_ORDER}_max")
    return rows if len(last) == rows.num_rows else rows.take(last.take(pc.sort_indices(last)))


@dataclass(frozen=True)
class _Merge:
    application: str
    checkpoint: int
    fields: Mapping[str, DeltaType]
    partition_by: Sequence[str]
    rows: Sequence[tuple[int, pa.Table]]
    key: Sequence[str]
    deletes: str | None

    def execute(self, table: Any, after: int, properties: Any) -> None:
        new = [rows for checkpoint, rows in self.rows if checkpoint > after]
        same_key = " AND ".join(f"target.`{name}` = source.`{name}`" for name in self.key)
        values = {f"`{name}`": f"source.`{name}`" for name in self.fields}
        rows, gone = _last_of_each(pa.concat_tables(new, promote_options="default"), self.key), None
        if self.deletes is not None:
            place, deleted = rows.schema.get_field_index(self.deletes), pc.fill_null(rows.column(self.deletes), False)
            rows, gone = rows.set_column(place, self.deletes, deleted), f"source.`{self.deletes}`"
        merger = table.merge(
            rows,
            same_key,
            source_alias="source",
            target_alias="target",
            streamed_exec=False,  # delta-rs then skips files without these keys
            commit_properties=properties,
        )
        if gone is not None:
            merger = merger.when_matched_delete(predicate=gone)
        kept = None if gone is None else f"NOT {gone}"
        merger.when_matched_update(updates=values, predicate=kept).when_not_matched_insert(
            updates=values, predicate=kept
        ).execute()
