"""Exactly-once files (Parquet, JSON lines, CSV) on any object store: a local folder or S3.

Pre-commit stages whole, durable, hidden objects; nothing about them can expire. Commit publishes each under its final
name (atomic, idempotent, checked by hash). One file per subtask and checkpoint, more when a transaction outgrows
memory. When all subtasks have published, the global committer names the files in the sink's commit log, in one atomic
step: who reads through that log (`committed_files`) sees whole checkpoints, who lists the folder sees whole files.
"""

import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import ClassVar

import pyarrow as pa

from barrier_runtime.sinks import encoders
from barrier_runtime.sinks.base import SinkContext, TwoPhaseCommitSink
from barrier_runtime.sinks.commit_log import CommitLog, CommittedFile
from barrier_runtime.sinks.file_committable import (
    FileNames,
    StagedFile,
    check_names,
    decode_committable,
    encode_committable,
    is_leftover,
    origin_of,
)
from state.errors import Corrupt, InvalidJob
from state.object_store import ObjectNotFound, ObjectStore
from state.urls import shown, without_credentials

_BATCH_OVERHEAD = 2_048  # bytes a RecordBatch costs beside its values, so that one-row batches count too
_MERGE_BATCHES = 64  # so many small ones become one; the first of them is weighed: asking each would cost too much


class _Part:
    """Rows of one file to be. `staged` is set once they are durable; then `batches` is dropped."""

    __slots__ = ("batches", "bytes", "merged", "rows", "staged", "staged_key")

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.merged = 0  # so many at the front are merged ones
        self.bytes = 0.0  # estimated
        self.rows = 0
        self.staged: str | None = None  # sha256
        self.staged_key = ""


class FileTransaction:
    """Parts in the order of their rows; the last one is still written to. `staging` guards everything but the last."""

    __slots__ = ("current", "full", "row_bytes", "staging")

    def __init__(self) -> None:
        self.full: list[_Part] = []
        self.current = _Part()
        self.row_bytes = 0.0  # of the batch weighed last
        self.staging = threading.Lock()


class FileSink(TwoPhaseCommitSink):
    """Base of the file sinks. `url`: a local folder, `file://…` or `s3://bucket/prefix`; several jobs may share it.

    `max_bytes_in_memory`: Arrow bytes of one open transaction of one subtask before a part of it is staged early, as a
    file of its own. The default is smaller for text, which is larger than its rows.
    """

    global_committer = True
    suffix: ClassVar[str]
    default_bytes_in_memory: ClassVar[int] = 32 << 20

    def __init__(self, url: str, *, max_bytes_in_memory: int | None = None) -> None:
        self.url = without_credentials(str(url), f"the location of {type(self).__name__}")
        self.max_bytes_in_memory = max_bytes_in_memory or self.default_bytes_in_memory

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)!r})"

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = f"job {context.job!r}, sink {context.sink!r}, subtask {context.subtask}"
        self._names = FileNames(
            context.job, context.sink, context.token, context.subtask, context.new_id()[:8], self.suffix
        )
        self._staged_files = 0
        self._schema_checked = False
        self._counting = threading.Lock()
        self._store = self._checked_store(context)
        self._commit_log = CommitLog(self._store, context.job, context.sink)

    def _checked_store(self, context: SinkContext) -> ObjectStore:
        try:
            store = context.make_store(self.url)
            store.put(self._names.probe(), b"")
            store.delete([self._names.probe()])
        except InvalidJob as error:
            raise InvalidJob(
                f"{self._where}: cannot write to {shown(self.url)}: {error}. Give {type(self).__name__} a folder or "
                "bucket that exists or can be made and is writable from every slot"
            ) from error
        return store

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `InvalidJob` for columns that the format cannot hold. Called with the first rows."""

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """The bytes of one file, rows in order. Runs off the loop."""
        raise NotImplementedError

    # ------------------------------------------------------------ staging

    def begin_transaction(self) -> FileTransaction:
        return FileTransaction()

    def write(self, transaction: FileTransaction, rows: pa.RecordBatch) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        part = transaction.current
        count = rows.num_rows
        if len(part.batches) == part.merged:
            transaction.row_bytes = rows.nbytes / max(1, count)
        part.batches.append(rows)
        if len(part.batches) - part.merged >= _MERGE_BATCHES:
            # A few microseconds here and there, instead of milliseconds in pre-commit during which the loop waits.
            part.batches[part.merged :] = [pa.concat_batches(part.batches[part.merged :])]
            part.merged += 1
        part.rows += count
        part.bytes += count * transaction.row_bytes + _BATCH_OVERHEAD

    def stage_early(self, transaction: FileTransaction) -> Callable[[], None] | None:
        if transaction.current.bytes < self.max_bytes_in_memory:
            return None
        self._fill_up(transaction)
        return lambda: self._stage(transaction)

    def pre_commit(self, transaction: FileTransaction, checkpoint: int) -> bytes | None:
        if transaction.current.rows:
            self._fill_up(transaction)
        self._stage(transaction)
        files = tuple(
            StagedFile(part.staged_key, self._names.final(checkpoint, number), part.staged, part.rows)
            for number, part in enumerate(transaction.full)
            if part.staged is not None
        )
        return encode_committable(files) if files else None

    def _fill_up(self, transaction: FileTransaction) -> None:
        transaction.full.append(transaction.current)
        transaction.current = _Part()

    def _stage(self, transaction: FileTransaction) -> None:
        """Make durable whatever is full and is not yet. May be called again after it raised."""
        with transaction.staging:
            for part in list(transaction.full):
                if part.staged is None:
                    data = self.encode(part.batches)
                    part.staged_key = self._names.staged(self._next_number())
                    self._store.put(part.staged_key, data)
                    part.staged = hashlib.sha256(data).hexdigest()
                    part.batches = []

    def _next_number(self) -> int:
        with self._counting:
            self._staged_files += 1
            return self._staged_files

    # ------------------------------------------------------------ deciding

    def commit(self, committable: bytes) -> None:
        for file in self._files_of(committable):
            try:
                self._store.publish(file.staged, file.final, file.sha256)
            except ObjectNotFound as error:
                raise Corrupt(
                    f"{self._where}: a decided file of {file.rows} rows is gone: {self._store.url} has neither the "
                    f"staged {file.staged} nor the final {file.final} (sha256 {file.sha256}). Was it aborted, moved or "
                    "deleted? Put one of them back; the commit is tried again"
                ) from error

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        files = [file for each in committables for file in self._files_of(each)]
        origins = {file.final: origin_of(file) for file in files}
        self._commit_log.append(
            checkpoint,
            self._context.token,
            [CommittedFile(file.final, file.sha256, file.rows) for file in files],
            lambda file: origins[file.name],
        )

    def abort(self, committable: bytes) -> None:
        self._store.delete([file.staged for file in self._files_of(committable)])

    def _files_of(self, committable: bytes) -> tuple[StagedFile, ...]:
        decoded = decode_committable(committable, self._where)
        return check_names(decoded, self._context.job, self._context.sink, self._where).files

    def recover(self, decided: Sequence[bytes]) -> None:
        for committable in decided:
            self.commit(committable)
        context = self._context
        self._store.delete(
            [
                info.key
                for info in self._store.list(self._names.staging)
                if is_leftover(info.key, context.token, context.subtask, context.parallelism)
            ]
        )


class ParquetSink(FileSink):
    """One Parquet file per checkpoint and subtask."""

    suffix = "parquet"
    default_bytes_in_memory = 128 << 20

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.parquet(batches)


class JsonlSink(FileSink):
    """JSON lines: times as ISO 8601, binary as base64, NaN as null."""

    suffix = "jsonl"

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.jsonl(batches)


class CsvSink(FileSink):
    """CSV with a header line in each file."""

    suffix = "csv"

    def check_schema(self, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_nested(field.type):
                raise InvalidJob(
                    f"{self._where}: column {field.name!r} is {field.type}, which CSV cannot hold: select() plain "
                    "columns, or use ParquetSink or JsonlSink"
                )

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.csv(batches)
