"""Exactly-once rows in an Iceberg table: a snapshot for everything decided since the last commit.

Before the decision every subtask writes data files, in no snapshot yet, and stages their description in the job's
storage. Subtask 0 then appends all files in a single commit. A process that dies between writing and staging leaves
orphans. A removal of orphans must spare files younger than the longest outage of the job.
"""

import contextlib
import datetime
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from numbers import Real
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from barrier_runtime.connectors.iceberg.columns import as_stored, check_fits, stored_schema
from barrier_runtime.connectors.iceberg.library import need_pyiceberg
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.lake.columns import required
from barrier_runtime.connectors.sink_bases.lake.compaction import (
    Compactor,
    commit_every_ms,
    compact_bytes,
    compacted,
    described,
)
from barrier_runtime.connectors.sink_bases.write_ahead import BatchingSink, DecidedBatch
from barrier_runtime.connectors.sink_bases.write_ahead_committable import StagedRows
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound
from barrier_runtime.state.store.urls import without_credentials
from barrier_runtime.state.texts import counted

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from barrier_runtime.connectors.iceberg.data_files import WrittenFiles

_SECRET = ("token", "credential", "secret", "password", "access-key")


@kinds_checked
class IcebergSink(BatchingSink):
    """Writes rows to `table`, "namespace.table".

    The sink creates a missing table with the columns of the first rows; an existing table must have these columns with
    the same types. A time with nanoseconds ends the job.

    `catalog`: a name; `properties`: settings of the catalog for pyiceberg (`type`, `uri`, `warehouse`), which override
    those in the environment (`PYICEBERG_CATALOG__<NAME>__…`), where secrets belong.

    `commit_every`: a duration, or seconds: one snapshot for all checkpoints of that time; each commit rewrites the
    table's metadata. 0: a snapshot per checkpoint.

    `keep_snapshots`: number of this sink's newest snapshots that stay; older snapshots expire with the next commit,
    except those that branches and tags need. Readers that are further behind cannot continue. None: no snapshot
    expires.

    `compact`: target size of files, such as "128 MB", or bytes. The sink joins smaller files of its own in the
    background. None: no compaction.

    `max_bytes_in_memory`: Arrow bytes of a subtask's open transaction before the sink writes a data file early.
    """

    kind = "iceberg"

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] | None = None,
        commit_every: datetime.timedelta | float = 30,
        keep_snapshots: int | None = None,
        compact: str | int | None = None,
        max_bytes_in_memory: int = 32 << 20,
    ) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        if "." not in table.strip("."):
            raise InvalidJob(f"IcebergSink: table {table!r} has no namespace: write 'namespace.table'")
        self.commit_every_ms = commit_every_ms(commit_every, "IcebergSink")
        if keep_snapshots is not None and not (isinstance(keep_snapshots, Real) and keep_snapshots >= 2):
            raise InvalidJob(f"IcebergSink: keep_snapshots={keep_snapshots!r}: give a number from 2, or None: all stay")
        self.keep_snapshots = None if keep_snapshots is None else int(keep_snapshots)
        self.compact = compact_bytes(compact, "IcebergSink")
        self.table = table
        self.catalog = catalog
        self.properties = dict(properties or {})
        for name, value in self.properties.items():
            if any(part in name.lower() for part in _SECRET):
                raise InvalidJob(
                    f"IcebergSink: property {name!r} is a secret, and a sink's settings are stored with the job's "
                    "state: set it in the environment (PYICEBERG_CATALOG__<NAME>__…) of every slot"
                )
            if "://" in value:
                without_credentials(value, f"property {name!r} of IcebergSink")

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r}){described(self.commit_every_ms)}{compacted(self.compact)}"

    def settings(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "catalog": self.catalog,
            "properties": self.properties,
            "keep_snapshots": self.keep_snapshots,
            "commit_every": self.commit_every_ms / 1000,
            "compact": self.compact,
            "max_bytes_in_memory": self.max_bytes_in_memory,
        }

    def target(self) -> str:
        return f"Iceberg table {self.table}"

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        stored_schema(schema, where)

    def places(self) -> Sequence[str]:
        return [f"iceberg:{self.catalog}/{self.table}"]

    def open(self, context: SinkContext) -> None:
        super().open(context)
        need_pyiceberg(self._where, "IcebergSink")
        from barrier_runtime.connectors.iceberg.table import IcebergTable

        self._table = IcebergTable(
            self.table,
            self.catalog,
            self.properties,
            self._where,
            owner=f"{context.job}/{context.sink}/",
            keep_snapshots=self.keep_snapshots,
        )
        self._compactor = None if self.compact is None else self._made_compactor(self.compact, context)
        self._there = self._table.columns()
        self._table.check_writable()
        self._required = required(self._there or ())

    def _made_compactor(self, target: int, context: SinkContext) -> "Compactor[Any, Any]":
        from barrier_runtime.connectors.iceberg.compaction import IcebergCompaction, check_compacted

        table = self._table.now()
        if table is not None:
            check_compacted(table, self.table, self._where)
        owner = f"{context.job}/{context.sink}/"
        work = IcebergCompaction(self.table, self._table.opened, owner, target, self._where, self._table.compacted)
        return Compactor(work, self._where)

    def check_schema(self, schema: pa.Schema) -> None:
        stored = stored_schema(schema, self._where)
        if self._there is not None:
            check_fits(stored, self._there, self._where, self.table)

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        from barrier_runtime.connectors.iceberg.data_files import as_rows

        return [as_rows(self._written(batches))]

    def _written(self, batches: Sequence[pa.RecordBatch]) -> "WrittenFiles":
        stored = stored_schema(batches[0].schema, self._where)
        rows = [as_stored(batch, stored, self._required, self._where) for batch in batches]
        return self._table.write(rows, stored)

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        for application in dict.fromkeys(batch.application for batch in batches):  # several only after another start
            of_it = [batch for batch in batches if batch.application == application]
            known, compactions = self._table.as_appended(), self._table.compactions
            try:
                self._deliver(application, of_it, known)
            except Unavailable:
                if known is None and self._table.compactions == compactions:
                    raise
                self._deliver(application, of_it, None)

    def _deliver(self, application: str, batches: Sequence[DecidedBatch], known: "Table | None") -> None:
        """Appends the batches that the table lacks. `known`: the table, if no new look is needed."""
        from barrier_runtime.connectors.iceberg.table import has

        with ThreadPoolExecutor(max_workers=8) as reading:
            looking = None if known else reading.submit(self._table.now)
            read = {
                batch.checkpoint: [reading.submit(self._files_of, each) for each in batch.objects] for batch in batches
            }
        table = (
            known or (looking and looking.result()) or self._table.existing()
        )  # rows of an old release create the table
        new = [batch for batch in batches if not has(table, application, batch.checkpoint)]
        if not new:
            return
        try:
            written = [files for batch in new for each in read[batch.checkpoint] for files in each.result()]
        except ObjectNotFound as error:
            last = new[-1]
            if has(self._table.existing(), application, last.checkpoint):
                return
            raise Corrupt(
                f"{self._where}: the description of {counted(sum(batch.rows for batch in new), 'decided data file')} "
                f"of checkpoints up to {last.checkpoint} is gone, and the table {self.table} does not have them "
                f"({error}). Were they aborted, moved or deleted? Restore the object from a backup; the commit is "
                "tried again"
            ) from error
        together = self.commit_every_ms > 0
        files = self._table.append(table, application, new[-1].checkpoint, written, small_together=together)
        if self._compactor is not None:
            self._compactor.added(files)

    def _files_of(self, staged: StagedRows) -> "list[WrittenFiles]":
        """Staged descriptions; rows staged by an earlier release are written now."""
        from barrier_runtime.connectors.iceberg.data_files import from_rows

        rows = self._read(staged)
        found = from_rows(rows)
        return [self._table.write(rows, rows[0].schema)] if found is None else found

    def close(self) -> None:
        if hasattr(self, "_table"):
            if self._compactor is not None:
                self._compactor.close()
            self._table.close()

    def abort(self, committable: bytes) -> None:
        from barrier_runtime.connectors.iceberg.data_files import from_rows

        written: list[WrittenFiles] = []
        for staged in self._decoded(committable).objects:
            with contextlib.suppress(ObjectNotFound):
                written += from_rows(self._read(staged)) or ()
        super().abort(committable)
        self._table.drop(written)
