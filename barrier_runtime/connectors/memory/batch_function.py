"""`for_each_batch`: slots stage rows, and the program that started the job calls the user's function.

Sink (`BatchFunctionSink`) and program (`BatchCaller`) exchange objects (`BatchQueue`):

    <job>/write-ahead/<sink>/staged/…                      the rows, Parquet; written before the decision
    <job>/write-ahead/<sink>/asked/<lineage>/<checkpoint>  a request: these objects are one decided batch
    <job>/write-ahead/<sink>/delivered/<lineage>/0/…       a note: the function has succeeded up to this checkpoint

| who              | when                      | writes    | then deletes                                              |
|------------------|---------------------------|-----------|-----------------------------------------------------------|
| every subtask    | barrier                   | rows      |                                                           |
| subtask 0        | the checkpoint is decided | a request |                                                           |
| the program      | the function has returned | a note    | older notes of the same lineage                           |
| subtask 0        | the note exists           |           | the rows, then the request                                |
| a new generation | the sink opens            |           | requests of other lineages or with a note; undecided rows |

A program that died before the note repeats the call with the same batch.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.read_ahead import read_ahead
from barrier_runtime.connectors.sink import SinkContext
from barrier_runtime.connectors.sink_bases.write_ahead import DECIDED_BATCHES, BatchingSink, DecidedBatch
from barrier_runtime.connectors.sink_bases.write_ahead_committable import StagedRows
from barrier_runtime.data.values.stored_times import rounded_down
from barrier_runtime.operators.user_code import function_name
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore, get_or_none
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.texts import counted

_MOST_DECIDED = 16  # waiting batches at which the stream waits
_FIRST_LOOK_S = 0.02
_LONGEST_LOOK_S = 1.0
_REPORT_AFTER_S = 10.0


_READ_AT_ONCE = 8
_NOTED_SUBTASK = 0  # the global committer's subtask


log = logging.getLogger("barrier_runtime.job")


@dataclass(frozen=True)
class BatchCheckpoint:
    """Identity of a batch, equal whenever the rows are repeated.

    Numbers only rise within an `application`, with gaps.
    """

    job: str
    sink: str
    lineage: str
    number: int
    rows: int

    @property
    def application(self) -> str:
        """Identity of the writer, such as Delta's `txnAppId`."""
        return f"{self.job}/{self.sink}/{self.lineage}"

    @property
    def token(self) -> str:
        """Idempotency key of the batch, for targets that take a text."""
        return f"{self.application}/{self.number}"


class BatchQueue:
    """Batches of a sink of a job. Blocks; raises errors of the store."""

    def __init__(self, store: ObjectStore, job: str, sink: str) -> None:
        self.store = store
        self._sink = sink
        self._paths = Paths(job)
        self._where = f"job {job!r}, for_each_batch {sink!r}"

    # ------------------------------------------------------------ of the sink

    def ask(self, batch: DecidedBatch) -> None:
        """Raises `Corrupt` if staged rows are missing."""
        gone = [each.key for each in batch.objects if self._is_gone(each)]
        if gone:
            raise Corrupt(
                f"{self._where}: rows of the decided checkpoint {batch.checkpoint} are gone "
                f"({self.store.url}/{gone[0]}), and the function was not called with them. Were they aborted, moved or "
                "deleted? Restore the objects from a backup; it is tried again"
            )
        self.store.put(self._key(batch), msgspec.json.encode(batch))

    def withdraw(self, batch: DecidedBatch) -> None:
        self.store.delete([each.key for each in batch.objects])
        self.store.delete([self._key(batch)])

    def clean_up(self, lineage: str) -> None:
        prefix = self._paths.asked_prefix(self._sink)
        ours = self._paths.asked_prefix(self._sink, lineage)
        self.store.delete([info.key for info in self.store.list(prefix) if not info.key.startswith(ours)])
        for batch in self.asked():
            if self.is_done(batch):
                self.withdraw(batch)

    # ------------------------------------------------------------ of the program

    def asked(self) -> list[DecidedBatch]:
        """Requested batches, oldest checkpoint first within a lineage."""
        keys = sorted(info.key for info in self.store.list(self._paths.asked_prefix(self._sink)))
        found = ((key, get_or_none(self.store, key)) for key in keys)
        return [DECIDED_BATCHES.decode(data, f"{self._where}: {key}") for key, data in found if data is not None]

    def is_asked(self, batch: DecidedBatch) -> bool:
        return get_or_none(self.store, self._key(batch)) is not None

    def note(self, batch: DecidedBatch) -> None:
        note = self._note(batch)
        self.store.put(note, b"")
        self.store.delete([info.key for info in self.store.list(self._notes(batch)) if info.key < note])

    def is_done(self, batch: DecidedBatch) -> bool:
        if get_or_none(self.store, self._note(batch)) is not None:
            return True
        noted = (self._paths.delivery_of(info.key) for info in self.store.list(self._notes(batch)))
        return any(each is not None and each[0] >= batch.checkpoint for each in noted)

    # ------------------------------------------------------------ rows

    def read(self, batch: DecidedBatch) -> pa.Table:
        """Raises `ObjectNotFound`, and `Corrupt` for an object with another hash."""
        import pyarrow.parquet as pq

        def table(staged: StagedRows) -> pa.Table:
            return pq.read_table(pa.BufferReader(self._checked(staged)))

        tables = read_ahead(table, batch.objects, lambda staged: staged.rows, _READ_AT_ONCE)
        return pa.concat_tables(list(tables), promote_options="default")

    def local_files(self, batch: DecidedBatch) -> list[str] | None:
        """Paths of the checked Parquet files; None if the storage is not a folder."""
        if not self.store.url.startswith("file://"):
            return None
        for each in batch.objects:
            self._checked(each)
        root = unquote(urlsplit(self.store.url).path)
        return [f"{root}/{each.key}" for each in batch.objects]

    def _is_gone(self, staged: StagedRows) -> bool:
        try:
            self.store.get(staged.key, 0, 1)
            return False
        except ObjectNotFound:
            return True

    def _checked(self, staged: StagedRows) -> bytes:
        data = self.store.get(staged.key)
        found = hashlib.sha256(data).hexdigest()
        if found != staged.sha256:
            raise Corrupt(
                f"{self._where}: decided rows are damaged: {self.store.url}/{staged.key} should have sha256 "
                f"{staged.sha256}, it has {found}: restore the object from a backup or an older version of the bucket"
            )
        return data

    # ------------------------------------------------------------ names

    def _key(self, batch: DecidedBatch) -> str:
        return self._paths.asked_batch(self._sink, batch.lineage, batch.checkpoint, batch.token)

    def _note(self, batch: DecidedBatch) -> str:
        return self._paths.delivery_note(self._sink, batch.lineage, _NOTED_SUBTASK, batch.checkpoint, batch.token)

    def _notes(self, batch: DecidedBatch) -> str:
        return self._paths.delivery_notes_prefix(self._sink, batch.lineage, _NOTED_SUBTASK)


def parquet(batches: Sequence[pa.RecordBatch]) -> bytes:
    """Encodes a Parquet file for Spark: nanoseconds are cut off."""
    import pyarrow.parquet as pq

    buffer: Any = pa.BufferOutputStream()
    table = pa.Table.from_batches(batches).combine_chunks()
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":  # Parquet's writer rounds to 1970
            table = table.set_column(at, field.name, [rounded_down(each, "us") for each in table.column(at).chunks])
    pq.write_table(table, buffer, coerce_timestamps="us", allow_truncated_timestamps=True)
    return buffer.getvalue().to_pybytes()  # type: ignore[no-any-return]


BatchFunction: TypeAlias = Callable[[Any, BatchCheckpoint], Any]


MakeFrame: TypeAlias = Callable[[BatchQueue, DecidedBatch], Any]


@dataclass(frozen=True)
class BatchCall:
    """Function of a `for_each_batch` in a plan; never sent to the slots."""

    function: BatchFunction
    attempts: int


class BatchFunctionFailed(InvalidJob):
    """Raised when the function of `for_each_batch` has failed in all attempts."""


def arrow_table(queue: BatchQueue, batch: DecidedBatch) -> Any:
    return queue.read(batch)


@dataclass
class BatchCaller:
    """Calls the function for decided batches.

    `attempts`: failures of a batch that end the job. `failures`: of the next batch so far.
    """

    _queue: BatchQueue
    _function: BatchFunction
    _attempts: int
    _make_frame: MakeFrame
    failures: int = 0

    def turn(self) -> bool:
        """Calls the function for waiting batches in order, until a call fails. False without batches.

        Raises `BatchFunctionFailed` after the last attempt.
        """
        worked = False
        for batch in self._queue.asked():
            if self._queue.is_done(batch):
                continue
            worked = True
            if not self._called(batch):
                break
        return worked

    def _called(self, batch: DecidedBatch) -> bool:
        checkpoint = BatchCheckpoint(batch.job, batch.sink, batch.lineage, batch.checkpoint, batch.rows)
        try:
            self._function(self._make_frame(self._queue, batch), checkpoint)
        except Exception as error:
            if isinstance(error, ObjectNotFound) and not self._queue.is_asked(batch):
                return True
            self._failed(checkpoint, error)
            return False
        self.failures = 0
        self._queue.note(batch)
        return True

    def _failed(self, checkpoint: BatchCheckpoint, error: Exception) -> None:
        self.failures += 1
        said = (
            f"for_each_batch {checkpoint.sink!r} of job {checkpoint.job!r}: {function_name(self._function)} raised "
            f"{type(error).__name__} for checkpoint {checkpoint.number} ({counted(checkpoint.rows, 'row')}): {error}"
        )
        if self.failures >= self._attempts:
            raise BatchFunctionFailed(
                f"{said}\n  That was attempt {self.failures} of {self._attempts}. Nothing is lost: fix the function "
                "or its target and start the job again; it is called with the same rows and the same checkpoint"
            ) from error
        log.warning("%s; attempt %d of %d, it is called again", said, self.failures, self._attempts)


class BatchFunctionSink(BatchingSink):
    """Sink of `stream.for_each_batch`. `function`: name for messages."""

    def __init__(self, function: str = "", *, max_bytes_in_memory: int = 32 << 20) -> None:
        super().__init__(max_bytes_in_memory=max_bytes_in_memory)
        self.function = function

    def __repr__(self) -> str:
        return f"for_each_batch({self.function})"

    def open(self, context: SinkContext) -> None:
        super().open(context)
        self.most_decided = _MOST_DECIDED
        self._closing = threading.Event()
        self._queue = BatchQueue(context.job_store, context.job, context.sink)
        if context.subtask == 0:
            self._queue.clean_up(context.lineage)

    def check_schema(self, schema: pa.Schema) -> None:
        try:
            parquet(schema.empty_table().to_batches() or [pa.RecordBatch.from_pylist([], schema=schema)])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise InvalidJob(
                f"{self._where}: Parquet cannot hold these columns ({error}): cast them or leave them out with select()"
            ) from error

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        return parquet(batches)

    def deliver_batch(self, batch: DecidedBatch) -> None:
        if not self._queue.is_done(batch):
            self._queue.ask(batch)
            self.wait_until_done(batch)
        self._queue.withdraw(batch)

    def wait_until_done(self, batch: DecidedBatch) -> None:
        """Waits for the program's note. Raises `Unavailable` after some seconds."""
        look_s, until_s = _FIRST_LOOK_S, time.monotonic() + _REPORT_AFTER_S
        while not self._queue.is_done(batch):
            if self._closing.wait(look_s) or time.monotonic() > until_s:
                raise Unavailable(
                    f"{self._where}: {self.function or 'the function'} of for_each_batch has not returned for "
                    f"checkpoint {batch.checkpoint} ({counted(batch.rows, 'row')}) yet: see the log of the program "
                    "that started the job"
                )
            look_s = min(look_s * 1.5, _LONGEST_LOOK_S)

    def close(self) -> None:
        if hasattr(self, "_closing"):
            self._closing.set()
