"""Exactly-once rows in a Delta table: a single commit for everything decided since the last commit.

Pre-commit stages hidden Parquet files. The commit gives each file the final name in the table's folder; with
`commit_every` the global committer does so, and joins small files. The global committer adds all files to the table's
log in one commit (see `table`).

A vacuum deletes files that are not in the log and older than the retention. If an outage between these steps is that
long, the commit names the lost files.
"""

import datetime
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.delta import data_files
from barrier_runtime.connectors.delta.committable import (
    DELTA_COMMITTABLE_VERSION,
    DeltaCommittable,
    DeltaFile,
    decode_delta_committable,
    encode_delta_committable,
)
from barrier_runtime.connectors.delta.compaction import DeltaCompaction, DeltaPlan, JoinedFiles
from barrier_runtime.connectors.delta.library import checked_url
from barrier_runtime.connectors.delta.log_records import TableFile
from barrier_runtime.connectors.delta.schema import check_partition_columns, delta_fields, stored_schema
from barrier_runtime.connectors.delta.table import DeltaLog
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.afterwards import Afterwards
from barrier_runtime.connectors.sink_bases.folder_names import folder_name
from barrier_runtime.connectors.sink_bases.lake.compaction import (
    Compactor,
    commit_every_ms,
    compact_bytes,
    compacted,
    described,
)
from barrier_runtime.connectors.sink_bases.row_buffer import RowBuffer
from barrier_runtime.connectors.sink_bases.staging import Staging, check_folder, example_of, names_of
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.schemas import column_names
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, PutOutcome
from barrier_runtime.state.store.open import within
from barrier_runtime.state.store.urls import last_part, shown

_SHOWN_AT_ONCE = 8

Transaction: TypeAlias = RowBuffer[tuple[DeltaFile, ...]]


@kinds_checked
class DeltaSink(TwoPhaseCommitSink):
    """Writes rows to the Delta table at `url`: a local folder, `file://…` or `s3://bucket/prefix`.

    The sink creates a missing table with the columns of the first rows; an existing table must have these columns with
    the same types. A time with nanoseconds ends the job.

    `partition_by`: columns of text, integers, booleans or dates; default: those of the table, or none. Empty text there
    reads as null, because the format has no empty text.

    `commit_every`: a duration, or seconds: one commit for all checkpoints of that time. 0: a commit per checkpoint.

    `compact`: target size of files, such as "128 MB", or bytes. The sink joins smaller files of its own in the
    background. None: no compaction.

    `max_bytes_in_memory`: Arrow bytes of a subtask's open transaction before rows are staged early.

    >>> DeltaSink("s3://lake/events", commit_every=30, compact="128 MB")
    DeltaSink('s3://lake/events'), a commit every 30 s, compacted to 128 MB
    """

    global_committer = True
    kind = "delta"

    def __init__(
        self,
        url: str,
        *,
        partition_by: Sequence[str] | str | None = None,
        commit_every: datetime.timedelta | float = 0,
        compact: str | int | None = None,
        max_bytes_in_memory: int = 128 << 20,
    ) -> None:
        self.commit_every_ms = commit_every_ms(commit_every, "DeltaSink")
        self.commits_only_globally = self.commit_every_ms > 0
        self.compact = compact_bytes(compact, "DeltaSink")
        self.url = checked_url(url, "the location of DeltaSink", "DeltaSink cannot write to")
        self.partition_by = None if partition_by is None else column_names(partition_by, "DeltaSink: partition_by")
        self.max_bytes_in_memory = max_bytes_in_memory

    def __repr__(self) -> str:
        return f"DeltaSink({shown(self.url)!r}){described(self.commit_every_ms)}{compacted(self.compact)}"

    def settings(self) -> dict[str, Any]:
        columns = None if self.partition_by is None else list(self.partition_by)
        return {
            "url": self.url,
            "partition_by": columns,
            "commit_every": self.commit_every_ms / 1000,
            "compact": self.compact,
            "max_bytes_in_memory": self.max_bytes_in_memory,
        }

    def target(self) -> str:
        return f"Delta table {last_part(self.url)}"

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        check_partition_columns(delta_fields(schema, where), self.partition_by or (), where)

    def places(self) -> Sequence[str]:
        return [f"delta:{within(self.url, '')}", example_of(self.url, "parquet", self.partition_by or ())]

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._names = names_of(context, "parquet")
        store = self._store = self._checked_store(context)
        self._staging = Staging(store, self._names, self._where)
        self._log = DeltaLog(self.url, store, self._where)
        self._afterwards = Afterwards(self._where)
        self._last = False
        self._joined = JoinedFiles(store, self._staging, self._names)
        self._table = self._log.existing()
        self._compactor: Compactor[DeltaPlan, Sequence[TableFile]] | None = None
        if self.compact is not None:
            if self._table is not None:
                self._table.check_compacted(self._where)
            work = DeltaCompaction(self._log, store, self._names, self.compact, self._where)
            self._compactor = Compactor(work, self._where)
        default = self._table.partition_by if self._table else ()
        self._partition_by = default if self.partition_by is None else self.partition_by
        self._stored: pa.Schema | None = None  # of the data files; None: before the first row

    def _checked_store(self, context: SinkContext) -> ObjectStore:
        try:
            store = context.make_store(self.url)
            store.put(self._names.probe(), b"")
            again = store.put_if_absent(self._names.probe(), b"")
            store.delete([self._names.probe()])
            if again is PutOutcome.CREATED:
                raise InvalidJob(
                    "it overwrote an object that was to be created only if absent (it ignores If-None-Match), so two "
                    "writers of the table could both commit: use AWS S3, a recent MinIO, Ceph or R2, or a local folder"
                )
        except InvalidJob as error:
            raise InvalidJob(
                f"{self._where}: cannot write to {shown(self.url)}: {error}. Give DeltaSink a folder or bucket that "
                "exists or can be made and is writable from every slot"
            ) from error
        return store

    def begin_transaction(self) -> Transaction:
        return RowBuffer()

    def write(self, transaction: Transaction, rows: pa.RecordBatch) -> None:
        if self._stored is None:
            self._stored = self._checked_schema(rows.schema)
        transaction.write(rows)

    def write_few(self, transaction: Transaction, rows: FewRows) -> None:
        if self._stored is None:
            self._stored = self._checked_schema(rows.schema)
        transaction.write_few(rows)

    def _checked_schema(self, schema: pa.Schema) -> pa.Schema:
        self._fields = delta_fields(schema, self._where)
        check_partition_columns(self._fields, self._partition_by, self._where)
        if self._table is not None:
            self._table.check(self._fields, self._partition_by, self._where)
        return stored_schema(schema, self._where)

    def stage_early(self, transaction: Transaction) -> Callable[[], None] | None:
        if transaction.bytes_in_current < self.max_bytes_in_memory:
            return None
        transaction.fill_up()

        def early() -> None:
            transaction.stage(self._stage)

        return early

    def pre_commit(self, transaction: Transaction, checkpoint: int) -> bytes | None:
        transaction.fill_up()
        files = [file for part in transaction.stage(self._stage) for file in part]
        if not files:
            return None
        named = self._staging.closed([each.file for each in files], checkpoint)
        return encode_delta_committable(
            DeltaCommittable(
                DELTA_COMMITTABLE_VERSION,
                self._context.job,
                self._context.sink,
                self._context.lineage,
                checkpoint,
                self._fields,
                self._partition_by,
                tuple(
                    DeltaFile(file, each.partition, each.statistics, each.written_ms)
                    for file, each in zip(named, files, strict=True)
                ),
            )
        )

    def _stage(self, batches: Sequence[pa.RecordBatch]) -> tuple[DeltaFile, ...]:
        assert self._stored is not None, "rows are staged that were not written"
        required = self._table.required if self._table is not None else ()
        return tuple(
            self._stage_file(values, rows)
            for values, rows in data_files.partitions(batches, self._stored, self._partition_by, required, self._where)
        )

    def _stage_file(self, values: dict[str, str | None], rows: pa.Table) -> DeltaFile:
        folder = "".join(f"{folder_name(name, text)}/" for name, text in values.items())
        check_folder(folder, self._store, self._names, self._where)
        file = self._staging.stage(encoders.parquet(rows.to_batches()), rows.num_rows, earliest=0, folder=folder)
        return DeltaFile(file, values, data_files.statistics(rows), time.time_ns() // 1_000_000)

    def commit(self, committable: bytes) -> None:
        decoded = self._decoded(committable)
        if self.commits_only_globally:
            return
        try:
            in_parallel(lambda each: self._staging.show(each.file, keep=True), decoded.files, _SHOWN_AT_ONCE)
        except Corrupt:
            if not self._log.has(decoded):  # compacted, and a vacuum deleted the file
                raise
        self._later(lambda: self._staging.drop_shown([each.file for each in decoded.files]))

    def _later(self, work: Callable[[], None]) -> None:
        self._afterwards.do(work, at_once=self._last or not self._staging.leaves_staged)

    def end_of_input(self) -> None:
        self._last = True

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        decoded = [self._decoded(each) for each in committables]
        files = [each.file for committable in decoded for each in committable.files]
        if self.commits_only_globally:
            self._log.commit(decoded, self._joined.shown)
            added = self._joined.forget()
            self._staging.drop(files)
        else:
            self._log.commit(decoded)
            added = len(files)
        if self._compactor is not None:
            self._compactor.added(added)

    def close(self) -> None:
        if hasattr(self, "_log"):
            if self._compactor is not None:
                self._compactor.close()
            self._log.close()
            self._afterwards.close()

    def abort(self, committable: bytes) -> None:
        self._staging.drop([each.file for each in self._decoded(committable).files])

    def recover(self, decided: Sequence[bytes]) -> None:
        files = []
        for committable in decided:
            self.commit(committable)
            files += [each.file for each in self._decoded(committable).files]
        self._later(lambda: self._staging.sweep(self._context.parallelism, files, shown=not self.commits_only_globally))

    def _decoded(self, committable: bytes) -> DeltaCommittable:
        return decode_delta_committable(committable, self._context.job, self._context.sink, self._where)
