"""Exactly-once for any target that takes an idempotency token: rows wait in the job's own store until they are decided.

Pre-commit stages the rows as immutable objects beside the checkpoints (Arrow, compressed, hashed); nothing about them
can expire. Once the checkpoint is decided, `commit` reads them back, checks every hash and calls `deliver` with a token
that is the same however often it is repeated. Deliveries of one origin subtask come one at a time, oldest first.

Transactions of one origin subtask that were decided while others were delivered are delivered together: their objects
are read ahead, and one note and one request to delete do for all of them.

Subclasses write `deliver`, and may write

- `deliver_together`, when the target takes several transactions at once for less than one after the other;
- `delivered(token)`, when the target itself remembers what it got: asked before anything is sent;
- `prepare(batches)`, to refuse or convert rows while they can still be refused: what fails after the decision is tried
  for ever.

Who may need the staged objects of a decided transaction, and what becomes of them

| the process dies                  | its successor, when the restored manifest lists the transaction          |
|-----------------------------------|--------------------------------------------------------------------------|
| before the decision               | (not listed:) sweeps the objects, which have an older token              |
| decided, before `deliver`         | delivers                                                                 |
| in `deliver`, or just after       | asks `delivered`; or delivers again, the same token is no news           |
| after the note, before deleting   | the same; then deletes                                                   |
| after deleting some or all        | learns from target or note that it was delivered; reads nothing          |

The *note* is for targets that do not remember: an object that says "everything of this origin subtask up to checkpoint
n was delivered in this lineage". It is written before anything is deleted, so a missing object without a note is
damage. A note says nothing but its name, so a zombie's late one takes nothing back. The first object of a transaction
goes first: while it is there, all are.

A listing may lack a note for a while, so notes are named after their transactions, whoever delivers them, and are
asked for by name. One is deleted when one of a later transaction is there, and the newest checkpoint lists that one,
too, if it lists the older one. A retained older checkpoint may not, and lists objects that are gone: going back to it
needs `allow_replay`, and that its transactions were delivered must be seen in a listing.
"""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, TypeAlias

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
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.store.object_store import ObjectNotFound, get_or_none, side_by_side
from barrier_runtime.state.store.paths import Paths

_COMPRESSION = "zstd"
_READS_AT_ONCE = 8
_MOST_IN_MEMORY = 1 << 20  # Arrow bytes of staged rows that one subtask keeps: what is small is what is awaited

StagedTransaction: TypeAlias = RowBuffer[StagedRows]


class WriteAheadSink(TwoPhaseCommitSink):
    """`max_bytes_in_memory`: Arrow bytes of one open transaction of one subtask before a part of it is staged early, as
    an object of its own. Delivering reads one object at a time."""

    required_methods: ClassVar[tuple[str, ...]] = ("deliver",)
    commits_together = True
    delivers_from_memory: ClassVar[bool] = False
    """A few staged rows are kept, and delivered without being read back. A zombie then does not see that its successor
    has deleted them: only for targets that refuse it, however late it comes."""

    def __init__(self, *, max_bytes_in_memory: int = 32 << 20) -> None:
        self.max_bytes_in_memory = max_bytes_in_memory

    # ------------------------------------------------------------ for subclasses

    def check_schema(self, schema: pa.Schema) -> None:
        """Raise `InvalidJob` for columns that the target cannot take. Called with the first rows, on the loop."""

    def prepare(self, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """What is staged instead of these rows. Off the loop, before the decision."""
        return batches

    def encode(self, batches: Sequence[pa.RecordBatch]) -> bytes:
        """One staged object. `deliver` reads Arrow streams: another format is for sinks that read it themselves."""
        return _encoded(batches)

    def delivered(self, token: DeliveryToken, rows: int) -> bool | None:
        """Does the target have these `rows` rows? None: it does not remember."""
        return None

    def check_again(self) -> None:
        """What `delivered` has remembered by itself may be outdated: it is to ask the target next time."""

    def deliver(self, token: DeliveryToken, batches: Iterator[pa.RecordBatch]) -> None:
        """Write decided rows, as one whole and in order. Must have no effect when `token` was delivered before."""
        raise NotImplementedError

    def deliver_together(self, deliveries: Iterator[tuple[DeliveryToken, Iterator[pa.RecordBatch]]]) -> None:
        """`deliver` for several transactions of one origin, oldest first. The rows of one can be read until the next is
        asked for. If it raises, they are delivered alone next time, whatever was written."""
        for token, batches in deliveries:
            self.deliver(token, batches)

    def must_deliver_nothing(self) -> bool:
        """Shall `deliver` be called for a transaction without rows, too? Asked when one is closed."""
        return False

    # ------------------------------------------------------------ staging

    def open(self, context: SinkContext) -> None:
        self._context = context
        self._where = context.where
        self._paths = Paths(context.job)
        self._numbers = itertools.count(1)
        self._numbering = threading.Lock()
        self._schema_checked = False
        self._in_memory: dict[str, Sequence[pa.RecordBatch]] = {}  # key -> its rows; the threads change it by one call
        self._notes: dict[tuple[str, int], str] = {}  # newest note of each (lineage, origin subtask)
        self._restored: list[str] = []  # the notes of what the restored checkpoint decided, written or not

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
        """Of one origin, oldest first."""
        remembered = [self.delivered(entry.delivery, entry.rows) for entry in entries]
        missing = [entry for entry, known in zip(entries, remembered, strict=True) if not known]
        try:
            if missing:
                self.deliver_together(self._deliveries(missing))
        except ObjectNotFound:  # of which one, and has a successor delivered it? Asked one by one
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
        """Only asked after all decided transactions of ours were delivered: then nothing decided is left to be hit."""
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
        """All rows in order. The first object of each transaction is read before its token is handed out: while that
        one is there, all are."""
        objects = self._read_all([each for entry in entries for each in entry.objects])
        for entry in entries:
            rest = itertools.islice(objects, len(entry.objects))
            first = list(itertools.islice(rest, 1))
            yield entry.delivery, itertools.chain.from_iterable(itertools.chain(first, rest))
            for _ in rest:  # what the target had already, and did not want to see
                pass

    def _read_all(self, objects: Sequence[StagedRows]) -> Iterator[Sequence[pa.RecordBatch]]:
        """Of each its rows, in order; small ones are read side by side, ahead of their turn."""
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
        """Raise unless the missing objects were deleted because they had been delivered: by a successor, perhaps."""
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
        """Is there a note of this transaction or a later one? Each is asked for by name, oldest first: when a zombie
        deletes one meanwhile, a later one is there. What a listing shows is true as well, but it may lack the newest:
        it is for older checkpoints, and for notes that earlier builds named after the generation that delivered."""
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
        """The staged rows of these; of each its first object first."""
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
