"""Exactly-once for targets with idempotency tokens: rows wait in the job's store until decided.

Pre-commit stages rows as immutable objects beside the checkpoints. Deliveries of an origin subtask run in sequence,
oldest first.

| the process dies                | its successor, if the restored manifest lists the transaction            |
|---------------------------------|--------------------------------------------------------------------------|
| before the decision             | (not listed:) deletes the objects, which have an older token             |
| decided, before `deliver`       | delivers                                                                 |
| in `deliver`, or just after     | calls `delivered`; or delivers again with the same token, without effect |
| after the note, before deleting | the same; then deletes                                                   |
| after deleting some or all      | learns of the delivery from target or note; reads nothing                |

The *note* serves targets that do not remember deliveries: docs/design/targets-and-committables.md. While the first
object of a transaction exists, all objects exist.
"""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, TypeAlias

import msgspec
import pyarrow as pa

from barrier_runtime.connectors.read_ahead import read_ahead
from barrier_runtime.connectors.sink import SinkContext, TwoPhaseCommitSink
from barrier_runtime.connectors.sink_bases.row_buffer import RowBuffer
from barrier_runtime.connectors.sink_bases.write_ahead_committable import (
    DeliveryToken,
    StagedRows,
    WriteAheadCommittable,
    decode_committable,
    encode_committable,
)
from barrier_runtime.data.few_rows import FewRows
from barrier_runtime.state.errors import Corrupt, ProtocolViolation
from barrier_runtime.state.store.object_store import ObjectNotFound, get_or_none, side_by_side
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.versioned import Format, VersionedDecoder

_COMPRESSION = "zstd"
_READS_AT_ONCE = 8
_MOST_IN_MEMORY = 1 << 20  # Arrow bytes of staged rows per subtask

StagedTransaction: TypeAlias = RowBuffer[StagedRows]


class WriteAheadSink(TwoPhaseCommitSink):
    """Base of sinks that deliver decided rows with an idempotency token; subclasses define `deliver`.

    Subclasses may define `deliver_together` if the target takes several transactions for less, `delivered` if the
    target remembers deliveries, and `prepare` to refuse or convert rows before the decision.

    `max_bytes_in_memory`: Arrow bytes of a subtask's open transaction; above, full parts are staged early.
    """

    required_methods: ClassVar[tuple[str, ...]] = ("deliver",)
    commits_together = True
    delivers_from_memory: ClassVar[bool] = False
    """True: a few staged rows also stay in memory, and are delivered without a read.

    A zombie then does not notice that its successor has deleted the objects. Only for targets that refuse a zombie's
    delivery, however late.
    """

    def __init__(self, *, max_bytes_in_memory: int = 32 << 20) -> None:
        self.max_bytes_in_memory = max_bytes_in_memory

    # ------------------------------------------------------------ for subclasses

    def check_schema(self, schema: pa.Schema) -> None:
        """Raises `InvalidJob` for columns that the target cannot take; on the loop, at the first rows."""

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """Rows to stage instead of `batches`. Runs off the loop, before the decision."""
        return batches

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """Returns a staged object: an Arrow stream, unless the sink reads objects itself."""
        return _encoded(batches)

    def delivered(self, token: DeliveryToken, rows: int) -> bool | None:
        """Returns whether the target has the `rows` rows of this delivery. None: the target does not remember."""
        return None

    def check_again(self) -> None:
        """Drops answers that `delivered` has cached."""

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        """Writes decided rows completely and in order; no effect if `token` was delivered before."""
        raise NotImplementedError

    def deliver_together(self, deliveries: Iterator[tuple[DeliveryToken, Iterator[pa.RecordBatch]]]) -> None:
        """Delivers several transactions of an origin, oldest first.

        Read the rows of a transaction before taking the next. After an error the transactions are delivered one by one.
        """
        for token, batches in deliveries:
            self.deliver(token, batches)

    def must_deliver_nothing(self) -> bool:
        """Returns, when a transaction closes, whether `deliver` also runs without rows."""
        return False

    # ------------------------------------------------------------ staging

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._paths = Paths(context.job)
        self._numbers = itertools.count(1)
        self._numbering = threading.Lock()
        self._schema_checked = False
        self._in_memory: dict[str, Sequence[pa.RecordBatch]] = {}  # threads change it by single calls
        self._notes: dict[tuple[str, int], str] = {}  # by (lineage, origin subtask): the newest
        self._restored: list[str] = []  # notes of transactions that the restored checkpoint decided; may be missing

    def begin_transaction(self) -> StagedTransaction:
        return RowBuffer()

    def write(self, transaction: StagedTransaction, rows: pa.RecordBatch) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        transaction.write(rows)

    def write_few(self, transaction: StagedTransaction, rows: FewRows) -> None:
        if not self._schema_checked:
            self.check_schema(rows.schema)
            self._schema_checked = True
        transaction.write_few(rows)

    def stage_early(self, transaction: StagedTransaction) -> Callable[[], None] | None:
        if transaction.bytes_in_current < self.max_bytes_in_memory:
            return None
        transaction.fill_up()

        def stage() -> None:
            transaction.stage(self._stage)

        return stage

    def pre_commit(self, transaction: StagedTransaction, checkpoint: int) -> bytes | None:
        transaction.fill_up()
        objects = tuple(transaction.stage(self._stage))
        if not objects and not self.must_deliver_nothing():
            return None
        context = self._context
        delivery = DeliveryToken(context.job, context.sink, context.lineage, context.subtask, checkpoint, context.token)
        return encode_committable(delivery, objects)

    def _stage(self, batches: Sequence[pa.RecordBatch]) -> StagedRows:
        prepared = self.prepare(batches)
        data = self.encode(prepared)
        context = self._context
        with self._numbering:
            number = next(self._numbers)
        key = self._paths.staged_rows(context.sink, context.token, context.subtask, number, context.new_id())
        context.job_store.put(key, data)
        if self.delivers_from_memory and _bytes(prepared, *self._in_memory.copy().values()) <= _MOST_IN_MEMORY:
            self._in_memory[key] = prepared
        return StagedRows(key, hashlib.sha256(data).hexdigest(), sum(batch.num_rows for batch in batches))

    # ------------------------------------------------------------ deciding

    def commit(self, committable: bytes) -> None:
        self._commit_entry(self._decoded(committable))

    def commit_together(self, committables: Sequence[bytes]) -> None:
        entries = [self._decoded(each) for each in committables]
        for _, same in itertools.groupby(entries, lambda entry: (entry.lineage, entry.subtask)):
            self._commit_entries(list(same))

    def _commit_entries(self, entries: Sequence[WriteAheadCommittable]) -> None:
        remembered = [self.delivered(entry.delivery, entry.rows) for entry in entries]
        missing = [entry for entry, known in zip(entries, remembered, strict=True) if not known]
        try:
            if missing:
                self.deliver_together(self._deliveries(missing))
        except ObjectNotFound:  # one by one shows which transaction lost objects
            for entry in entries:
                self._commit_entry(entry)
            return
        to_note = [entry for entry, known in zip(entries, remembered, strict=True) if known is None]
        if to_note:
            self._note(to_note[-1])
        self._drop(entries)

    def _commit_entry(self, entry: WriteAheadCommittable) -> None:
        remembered = self.delivered(entry.delivery, entry.rows)
        if not remembered:
            deliveries = self._deliveries([entry])
            try:
                token, batches = next(deliveries)
            except ObjectNotFound as error:
                self._already_delivered(entry, remembered, error)
                return
            self.deliver(token, batches)
        if remembered is None:
            self._note(entry)
        self._drop([entry])

    def abort(self, committable: bytes) -> None:
        self._drop([self._decoded(committable)])

    def recover(self, decided: Sequence[bytes]) -> None:
        self._restored = [self._note_of(self._decoded(each)) for each in decided]
        self.commit_together(decided)
        context = self._context
        store = context.job_store
        orphans = [
            info.key for info in store.list(self._paths.staged_rows_prefix(context.sink)) if self._is_orphan(info.key)
        ]
        store.delete(orphans)

    def _is_orphan(self, key: str) -> bool:
        origin = self._paths.staged_rows_origin(key)
        if origin is None:
            return False
        token, subtask = origin
        return token < self._context.token and subtask % self._context.parallelism == self._context.subtask

    def _decoded(self, committable: bytes) -> WriteAheadCommittable:
        return decode_committable(committable, self._context.job, self._context.sink, self._where)

    # ------------------------------------------------------------ reading back

    def _deliveries(
        self, entries: Sequence[WriteAheadCommittable]
    ) -> Iterator[tuple[DeliveryToken, Iterator[pa.RecordBatch]]]:
        """Reads the first object of a transaction before the token is yielded."""
        objects = self._read_all([each for entry in entries for each in entry.objects])
        for entry in entries:
            rest = itertools.islice(objects, len(entry.objects))
            first = list(itertools.islice(rest, 1))
            yield entry.delivery, itertools.chain.from_iterable(itertools.chain(first, rest))
            for _ in rest:  # rows that the target already had
                pass

    def _read_all(self, objects: Sequence[StagedRows]) -> Iterator[Sequence[pa.RecordBatch]]:
        at_once = side_by_side(self._context.job_store, _READS_AT_ONCE)
        return read_ahead(self._read, objects, lambda staged: staged.rows, at_once)

    def _read(self, staged: StagedRows) -> Sequence[pa.RecordBatch]:
        kept = self._in_memory.pop(staged.key, None)
        if kept is not None:
            return kept
        store = self._context.job_store
        data = store.get(staged.key)
        found = hashlib.sha256(data).hexdigest()
        if found != staged.sha256:
            raise Corrupt(
                f"{self._where}: decided rows are damaged: {store.url}/{staged.key} should have sha256 "
                f"{staged.sha256}, it has {found}: restore the object from a backup or an older version of the bucket; "
                "the commit is tried again"
            )
        with pa.ipc.open_stream(data) as reader:
            return list(reader)

    def _already_delivered(self, entry: WriteAheadCommittable, remembered: bool | None, error: ObjectNotFound) -> None:
        if remembered is None:
            if self._is_noted(entry):
                self._drop([entry])
                return
        else:
            self.check_again()
            if self.delivered(entry.delivery, entry.rows):
                return
        raise Corrupt(
            f"{self._where}: {entry.rows} decided rows of checkpoint {entry.checkpoint}, written by subtask "
            f"{entry.subtask} of generation {entry.token}, are gone, and were not delivered ({error}). Were they "
            "aborted, moved or deleted? Restore the object from a backup; the commit is tried again"
        ) from error

    def _is_noted(self, entry: WriteAheadCommittable) -> bool:
        """True if a note of this transaction or of a later transaction exists.

        A listing may lack the newest note, so notes are read by name, oldest first: if a zombie deletes a note, a later
        note exists. The listing serves older checkpoints and earlier releases.
        """
        store, note = self._context.job_store, self._note_of(entry)
        prefix = self._paths.delivery_notes_prefix(self._context.sink, entry.lineage, entry.subtask)
        known = sorted({note, *self._restored, *self._notes.values()})
        asked = [each for each in known if each.startswith(prefix) and each >= note]
        if any(get_or_none(store, each) is not None for each in asked):
            return True
        listed = (self._paths.delivery_of(info.key) for info in store.list(prefix))
        return any(said is not None and said[0] >= entry.checkpoint for said in listed)

    # ------------------------------------------------------------ cleaning up

    def _note_of(self, entry: WriteAheadCommittable) -> str:
        return self._paths.delivery_note(
            self._context.sink, entry.lineage, entry.subtask, entry.checkpoint, entry.token
        )

    def _note(self, entry: WriteAheadCommittable) -> None:
        context = self._context
        origin = entry.lineage, entry.subtask
        note = self._note_of(entry)
        context.job_store.put(note, b"")
        before = self._notes.get(origin)
        if before is None:
            prefix = self._paths.delivery_notes_prefix(context.sink, *origin)
            older = [info.key for info in context.job_store.list(prefix) if info.key < note]
        else:
            older = [before] if before < note else []
        context.job_store.delete(older)
        self._notes[origin] = max(note, before or note)

    def _drop(self, entries: Sequence[WriteAheadCommittable]) -> None:
        store = self._context.job_store
        for each in itertools.chain.from_iterable(entry.objects for entry in entries):
            self._in_memory.pop(each.key, None)
        store.delete([each.key for entry in entries for each in entry.objects[:1]])
        rest = [each.key for entry in entries for each in entry.objects[1:]]
        if rest:
            store.delete(rest)


def _bytes(*staged: Sequence[pa.RecordBatch]) -> int:
    return sum(batch.nbytes for batches in staged for batch in batches)


def _encoded(batches: Sequence[pa.RecordBatch]) -> bytes:
    table = pa.Table.from_batches(batches).combine_chunks()
    buffer = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=_COMPRESSION)
    with pa.ipc.new_stream(buffer, table.schema, options=options) as writer:
        writer.write_table(table)
    return buffer.getvalue().to_pybytes()  # type: ignore[no-any-return]


DECIDED_BATCH_VERSION = 1


class DecidedBatch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows of all subtasks of a decided checkpoint, in subtask order."""

    version: int
    job: str
    sink: str
    lineage: str
    checkpoint: int
    token: int  # lowest of the writing generations
    objects: tuple[StagedRows, ...]

    @property
    def rows(self) -> int:
        return sum(each.rows for each in self.objects)

    @property
    def application(self) -> str:
        """Name of the writer; checkpoints only rise within an application."""
        return f"{self.job}/{self.sink}/{self.lineage}"


_FORMAT = Format("{}", DECIDED_BATCH_VERSION, damaged="delete it: the job asks again when it restarts")
DECIDED_BATCHES = VersionedDecoder(_FORMAT, msgspec.json.Decoder(DecidedBatch))


def batches_of(entries: Iterable[WriteAheadCommittable]) -> list[DecidedBatch]:
    found: dict[tuple[int, str], list[WriteAheadCommittable]] = {}
    for entry in entries:
        found.setdefault((entry.checkpoint, entry.lineage), []).append(entry)
    return [_batch_of(sorted(found[key], key=lambda entry: entry.subtask)) for key in sorted(found)]


def _batch_of(entries: Sequence[WriteAheadCommittable]) -> DecidedBatch:
    first = entries[0]
    objects = tuple(each for entry in entries for each in entry.objects)
    return DecidedBatch(
        DECIDED_BATCH_VERSION,
        first.job,
        first.sink,
        first.lineage,
        first.checkpoint,
        min(e.token for e in entries),
        objects,
    )


class BatchingSink(WriteAheadSink):
    """Base of sinks with a global committer; subclasses define `deliver_batch` or `deliver_batches`."""

    global_committer = True
    commits_only_globally = True
    commits_together = False  # a subtask's part has nothing to commit
    required_methods: ClassVar[tuple[str, ...]] = ()

    def deliver_batches(self, batches: Sequence[DecidedBatch]) -> None:
        """Shows the rows of all batches, oldest first, unless already shown. Raises for a retry."""
        for batch in batches:
            self.deliver_batch(batch)

    def deliver_batch(self, batch: DecidedBatch) -> None:
        """Shows the rows of the batch at once, unless already shown. Raises for a retry."""
        raise NotImplementedError

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        raise ProtocolViolation(f"{self._where}: rows of one subtask are delivered without the others': report this")

    def commit(self, committable: bytes) -> None:
        self._decoded(committable)

    def commit_globally(self, checkpoint: int, committables: Sequence[bytes]) -> None:
        batches = batches_of(self._decoded(each) for each in committables)
        if batches:
            self.deliver_batches(batches)
            self._context.job_store.delete([each.key for batch in batches for each in batch.objects])

    def recover(self, decided: Sequence[bytes]) -> None:
        needed = {each.key for committable in decided for each in self._decoded(committable).objects}
        store = self._context.job_store
        listed = [info.key for info in store.list(self._paths.staged_rows_prefix(self._context.sink))]
        store.delete([key for key in listed if key not in needed and self._is_orphan(key)])
