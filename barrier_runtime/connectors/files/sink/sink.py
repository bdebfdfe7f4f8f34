"""Exactly-once sinks of files in a local folder or an object store.

Pre-commit stages durable, hidden objects. Commit publishes each under the final name: atomic, idempotent, checked by
hash. Then the global committer adds the files of all subtasks to the commit log at once.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import pyarrow as pa

from barrier_runtime.connectors.files.csv_quoting import row_begins
from barrier_runtime.connectors.files.hive import by_folder, check_partitions
from barrier_runtime.connectors.files.sink.commit_blocks import is_there
from barrier_runtime.connectors.files.sink.commit_log import CommitLog, CommittedFile, read_commit_log
from barrier_runtime.connectors.files.sink.open_files import OpenFiles, Rolling, restored
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases import encoders
from barrier_runtime.connectors.sink_bases.afterwards import Afterwards
from barrier_runtime.connectors.sink_bases.encoders import EncodedRows, EncodingBuffer
from barrier_runtime.connectors.sink_bases.file_committable import (
    StagedFile,
    check_names,
    decode_committable,
    encode_committable,
    origin_of,
    origin_of_name,
)
from barrier_runtime.connectors.sink_bases.row_buffer import RowBuffer
from barrier_runtime.connectors.sink_bases.staging import (
    Staging,
    check_folder,
    example_of,
    names_of,
)
from barrier_runtime.data.argument_types import kinds_checked
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.data.schemas import Duration, column_names, milliseconds
from barrier_runtime.data.values.json_columns import is_binary, wire_type
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.store.object_store import ObjectStore, side_by_side
from barrier_runtime.state.store.open import open_existing_store
from barrier_runtime.state.store.urls import last_part, shown, without_credentials

_Files: TypeAlias = tuple[StagedFile, ...]

_ROLL_BYTES = 128 << 20
_ROLL_AGE_MS = 600_000
_KEEP = Rolling(1 << 62, 1 << 62, 1 << 62)
_SHOWN_AT_ONCE = 16
_MOST_FOLDERS = 10_000  # of a part of a transaction


@kinds_checked
class FileSink(TwoPhaseCommitSink):
    """Base of the file sinks.
    `url`: a local folder or the URL of a store (docs/running.md), for several jobs.

    `max_bytes_in_memory`: Arrow bytes of a subtask's open transaction, above which a part is staged early as a separate
    file.

    `partition_by`: columns (text, integers, booleans, dates) in the path instead of the file, as in Hive and Spark:
    `day=2026-01-01/part-….parquet`.

    `roll_bytes`, `roll_age`: a file becomes visible when the rows take that many bytes in memory (three to ten times as
    many as in a Parquet file) or the first row has that age; a missing argument is 128 MiB or 10 minutes. Without both,
    every checkpoint shows its rows. Rows of open files wait in the job's checkpoints, at most `max_bytes_in_memory` (or
    `roll_bytes`) per subtask: beyond that the largest files become visible earlier. The end of the input, or a drain of
    the job, shows all files.
    """

    global_committer = True
    commits_together = True
    keeps_rows = True
    former_settings = frozenset({"staging"})
    suffix: ClassVar[str]
    format: ClassVar[str]
    remedy: ClassVar[str]
    default_bytes_in_memory: ClassVar[int] = 32 << 20
    _open_files = OpenFiles("")

    def __init__(
        self,
        url: str,
        *,
        partition_by: str | Sequence[str] = (),
        roll_bytes: int | None = None,
        roll_age: Duration | None = None,
        max_bytes_in_memory: int | None = None,
    ) -> None:
        name = type(self).__name__
        self.url = without_credentials(str(url), f"the location of {name}")
        self.max_bytes_in_memory = max_bytes_in_memory or self.default_bytes_in_memory
        self._afterwards = Afterwards(repr(self))
        self.partition_by = column_names(partition_by, f"{name}: partition_by")
        if len(set(self.partition_by)) != len(self.partition_by):
            raise InvalidJob(f"{name}: partition_by={partition_by!r} names a column twice: leave one out")
        if roll_bytes is not None and not roll_bytes > 0:
            raise InvalidJob(f"{name}: roll_bytes={roll_bytes!r}: give bytes, above 0")
        self._roll_age_ms = None if roll_age is None else milliseconds(roll_age, f"roll_age of {name}")
        self._rolling: Rolling | None = None
        if roll_bytes is not None or roll_age is not None:
            size, age_ms = roll_bytes or _ROLL_BYTES, _ROLL_AGE_MS if roll_age is None else self._roll_age_ms
            assert age_ms is not None
            self._rolling = Rolling(size, age_ms, max(size, self.max_bytes_in_memory))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown(self.url)!r})"

    def settings(self) -> dict[str, Any]:
        """Makes a folder's path absolute."""
        url = self.url if "://" in self.url else str(Path(self.url).expanduser().absolute())
        return {"url": url, "max_bytes_in_memory": self.max_bytes_in_memory}

    def target(self) -> str:
        return f"folder {last_part(self.url)}"

    def places(self) -> Sequence[str]:
        return [example_of(self.url, self.suffix, self.partition_by)]

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._names = names_of(context, self.suffix)
        self._schema_checked = False
        self._last = False
        self._open_files = OpenFiles(self._names.incarnation)
        self._moved = False
        self._last_checkpoint = 0  # highest known to have closed a transaction
        self._store = self._checked_store(context)
        self._staging = Staging(self._store, self._names, self._where)
        self._commit_log = CommitLog(self._store, context.job, context.sink, self._later)

    def _checked_store(self, context: SinkContext) -> ObjectStore:
        try:
            store = context.make_store(self.url)
            if not context.known_target:
                store.put(self._names.probe(), b"")
                store.delete([self._names.probe()])
        except InvalidJob as error:
            raise InvalidJob(
                f"{self._where}: cannot write to {shown(self.url)}: {error}. Give {type(self).__name__} a folder or "
                "bucket that exists or can be made and is writable from every slot"
            ) from error
        return store

    def check_columns(self, schema: pa.Schema, where: str) -> None:
        check_partitions(schema, self.partition_by, where)
        for field in schema:
            if field.name not in self.partition_by and not self.holds(field.type):
                raise InvalidJob(
                    f"{where}: column {field.name!r} is {field.type}, which {self.format} cannot hold: {self.remedy}"
                )

    def holds(self, kind: pa.DataType) -> bool:
        """True if values of `kind` can be read back unchanged."""
        return True

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """Returns the bytes of a file with the rows in order. Runs off the loop."""
        raise NotImplementedError

    def committed_rows(self, job: str, sink: str, after: int, until: int) -> Iterator[str]:
        """Yields a text for each visible row of the checkpoints after `after`, up to `until`."""
        if self._rolling is not None or self.partition_by:
            raise InvalidJob(
                f"sink {sink!r}: files with roll_bytes, roll_age or partition_by do not tell the rows of a checkpoint "
                "apart, or lack columns: verify the flow with a sink without them"
            )
        store = open_existing_store(self.url)
        for record in read_commit_log(store, job, sink):
            for file in record.files:
                named = origin_of_name(file.name)
                if named is not None and after < named[1][1] <= until:
                    yield from self.texts(store.get(file.name))

    def texts(self, data: bytes) -> Iterator[str]:
        """Yields a text for each row of a file. Equal rows have equal texts."""
        yield from data.decode().split("\n")[:-1]

    def texts_of(self, batches: Sequence[pa.RecordBatch]) -> Iterator[str]:
        """Yields the texts that `texts` would return for these rows."""
        yield from self.texts(self.encode(batches))

    def begin_transaction(self) -> RowBuffer[_Files]:
        return RowBuffer()

    def write(self, transaction: RowBuffer[_Files], rows: pa.RecordBatch) -> None:
        if not self._schema_checked:
            self._check_schema(rows.schema)
        transaction.write(rows)

    def write_few(self, transaction: RowBuffer[_Files], rows: FewRows) -> None:
        if not self._schema_checked:
            self._check_schema(rows.schema)
        transaction.write_few(rows)

    def _check_schema(self, schema: pa.Schema) -> None:
        self.check_columns(schema, self._where)
        self._schema_checked = True

    def stage_early(self, transaction: RowBuffer[_Files]) -> Callable[[], None] | None:
        if transaction.bytes_in_current < self.max_bytes_in_memory:
            return None
        transaction.fill_up()

        def early() -> None:
            self._stage(transaction, self._last_checkpoint + 1)

        return early

    def pre_commit(self, transaction: RowBuffer[_Files], checkpoint: int) -> bytes | None:
        self._last_checkpoint = max(self._last_checkpoint, checkpoint)
        if self._rolling is None and not self._open_files.parts:
            transaction.fill_up()
            staged = self._stage(transaction, checkpoint)
        else:
            staged = self._roll(transaction, checkpoint)
        files = self._staging.closed(staged, checkpoint)
        return encode_committable(files) if files else None

    def _roll(self, transaction: RowBuffer[_Files], checkpoint: int) -> list[StagedFile]:
        """Stages rows that are done, of open files and this transaction; the rest stays open.

        Rows of a subtask become visible in order: rows staged early are younger than the open files, so the open files
        and all later rows are then staged, too. Rows from before a rescaling become visible first: newer rows, perhaps
        of another subtask, wait for the next checkpoint.
        """
        full = self._stage(transaction, checkpoint)
        rest = transaction.rest()
        rows, now_ms = self._by_folder(rest) if rest else {}, self._context.wall_ms()
        files, rolling = self._open_files, self._rolling
        rolled: list[tuple[str, pa.Table]] = []
        if full or self._moved:
            files, rolled = files.grown({}, now_ms, None)
            rolling = None if full else _KEEP
        files, done = files.grown(rows, now_ms, rolling, last=self._last)
        staged = [*self._staged(rolled, checkpoint), *full, *self._staged(done, checkpoint)]
        self._open_files, self._moved = files, False  # last: a failed attempt changes nothing
        return staged

    def _stage(self, transaction: RowBuffer[_Files], earliest: int) -> list[StagedFile]:
        def stage(batches: Sequence[pa.RecordBatch]) -> _Files:
            return tuple(self._staged(self._by_folder(batches).items(), earliest))

        return [file for part in transaction.stage(stage) for file in part]

    def _by_folder(self, batches: Sequence[pa.RecordBatch]) -> dict[str, pa.Table]:
        found = by_folder(pa.Table.from_batches(batches), self.partition_by, self._where)
        if len(found) > _MOST_FOLDERS:
            raise InvalidJob(
                f"{self._where}: partition_by {', '.join(self.partition_by)} makes {len(found)} folders of the rows of "
                f"one checkpoint, {_MOST_FOLDERS} are allowed: partition by columns of fewer values"
            )
        for folder in found:
            check_folder(folder, self._store, self._names, self._where)
        return found

    def _staged(self, rows: Iterable[tuple[str, pa.Table]], earliest: int) -> Iterator[StagedFile]:
        for folder, table in rows:
            yield self._staging.stage(self.encode(table.to_batches()), table.num_rows, earliest, folder)

    def kept(self, stored: Container[str]) -> Mapping[str, bytes]:
        return self._open_files.kept(stored)

    def kept_names(self) -> frozenset[str]:
        return self._open_files.names()

    def restore_kept(self, kept: Sequence[Mapping[str, bytes]], *, moved: bool) -> None:
        self._open_files = restored(self._names.incarnation, kept, self._where)
        self._moved = moved

    def end_of_input(self) -> None:
        self._last = True

    def commit(self, committable: bytes) -> None:
        self.commit_together([committable])

    def commit_together(self, committables: Sequence[bytes]) -> None:
        files = self._shown(committables)
        self._later(lambda: self._staging.drop_shown(files))

    def _shown(self, committables: Sequence[bytes]) -> list[StagedFile]:
        files = [file for each in committables for file in self._files_of(each)]
        at_once = side_by_side(self._store, _SHOWN_AT_ONCE)
        earlier = [file for file in files if not self._staging.is_fresh(file)]
        there = in_parallel(lambda file: is_there(self._store, file.final), earlier, at_once)
        removed = self._visible_before(file for file, stays in zip(earlier, there, strict=True) if not stays)
        in_parallel(self._show, [file for file in files if file.final not in removed], at_once)
        return files

    def _later(self, work: Callable[[], None]) -> None:
        self._afterwards.do(work, at_once=self._last or not self._staging.leaves_staged)

    def _show(self, file: StagedFile) -> None:
        try:
            self._staging.show(file, keep=True)
        except Corrupt:
            if not self._visible_before([file]):
                raise

    def _visible_before(self, files: Iterable[StagedFile]) -> set[str]:
        """Final names in the commit log: rotation or compaction removed such files, and `show` would repeat rows."""
        log = CommitLog(self._store, self._context.job, self._context.sink)
        return log.named({file.final: origin_of(file) for file in files})

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
        self._staging.drop(self._files_of(committable))

    def _files_of(self, committable: bytes) -> tuple[StagedFile, ...]:
        decoded = decode_committable(committable, self._where)
        return check_names(decoded, self._context.job, self._context.sink, self._where).files

    def close(self) -> None:
        self._afterwards.close()

    def recover(self, decided: Sequence[bytes]) -> None:
        if decided and self._context.subtask == 0:
            self._later(self._commit_log.look_ahead)
        files = self._shown(decided)  # the sweep deletes the staged objects of these files
        self._last_checkpoint = max([self._last_checkpoint, *(origin_of(file)[1] for file in files)])
        self._later(partial(self._staging.sweep, self._context.parallelism, files))


class ParquetSink(FileSink):
    """Parquet files: one per checkpoint and subtask, without `roll_bytes`, `roll_age`, `partition_by`."""

    kind = "parquet"
    suffix = "parquet"
    format = "Parquet"
    remedy = "select() other columns"
    default_bytes_in_memory = 128 << 20

    def holds(self, kind: pa.DataType) -> bool:
        return encoders.is_in_parquet(kind)

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.parquet(batches)

    def texts(self, data: bytes) -> Iterator[str]:
        import pyarrow.parquet as pq

        for row in pq.read_table(pa.BufferReader(data)).to_pylist():
            yield str(row)


class TextSink(FileSink):
    """Base of text formats, whose files are a head and the texts of rows."""

    def head(self, schema: pa.Schema) -> bytes:
        """Returns the beginning of a file."""
        return b""

    def encode_rows(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """Returns the texts of rows in order. Runs off the loop."""
        raise NotImplementedError

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return self.head(batches[0].schema) + self.encode_rows(batches)

    def begin_transaction(self) -> RowBuffer[_Files]:
        """Encodes rows as they arrive, unless folders, open files or an own `encode` prevent this."""
        waits = self._rolling is not None or self._open_files.parts or self.partition_by
        if waits or type(self).encode is not TextSink.encode:
            return RowBuffer()
        return EncodingBuffer(self.encode_rows)

    def encode_early(self, transaction: RowBuffer[_Files]) -> Callable[[], None] | None:
        return transaction.encode_early() if isinstance(transaction, EncodingBuffer) else None

    def _stage(self, transaction: RowBuffer[_Files], earliest: int) -> list[StagedFile]:
        if not isinstance(transaction, EncodingBuffer):
            return super()._stage(transaction, earliest)

        def stage(encoded: Sequence[EncodedRows]) -> _Files:
            schema = encoded[0].schema
            for each in encoded:
                if not each.schema.equals(schema):
                    raise pa.ArrowInvalid(f"rows with the columns {each.schema} follow rows with the columns {schema}")
            data = b"".join([self.head(schema), *(each.data for each in encoded)])
            return (self._staging.stage(data, sum(each.rows for each in encoded), earliest),)

        return [file for part in transaction.stage(stage) for file in part]


class JsonlSink(TextSink):
    """JSON lines: times are RFC 3339, durations ISO 8601, binary is base64, a map is an object.

    NaN and infinities are the texts `NaN`, `Infinity` and `-Infinity`.
    """

    kind = "jsonl"
    suffix = "jsonl"
    format = "JSON"
    remedy = "select() other columns, or use ParquetSink"

    def holds(self, kind: pa.DataType) -> bool:
        return wire_type(kind) is not None

    def encode_rows(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.jsonl(batches)


class CsvSink(TextSink):
    """CSV files with header lines: a null is an empty field, an empty text is `""`, zoned times are UTC."""

    kind = "csv"
    suffix = "csv"
    format = "CSV"
    remedy = "select() plain columns, or use ParquetSink or JsonlSink"

    def holds(self, kind: pa.DataType) -> bool:
        if pa.types.is_dictionary(kind):
            return self.holds(kind.value_type)
        return not (pa.types.is_nested(kind) or is_binary(kind) or pa.types.is_interval(kind))

    def head(self, schema: pa.Schema) -> bytes:
        return encoders.csv_head(schema)

    def encode_rows(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return encoders.csv_rows(batches)

    def texts(self, data: bytes) -> Iterator[str]:
        begins = row_begins(data, ",", blank_rows=True)
        ends = [*begins[1:], len(data)]
        yield from (data[begin:end].decode() for begin, end in zip(begins[1:], ends[1:], strict=True))
