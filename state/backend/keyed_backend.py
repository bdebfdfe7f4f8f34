"""All keyed state of one operator subtask, and its snapshots.

Life of the snapshot of checkpoint n
    freeze(n)           on the loop, at the barrier: dirty entries become the frozen ones, in microseconds
    drain()             on the loop, between batches: slices of the frozen entries go into the key-value store
    write_snapshot(n)   on a worker thread, once drain() said True: flush, hard links, then hash and upload
    clean_up()          on a worker thread, after it: the snapshot is reported meanwhile
    completed(n) or aborted(n)   on the loop
The key-value store thus holds exactly the state at barrier n when its files are linked. Until then nothing else may be
written to it: caches spill later, and `drain` does nothing while a worker is `linking`. Gets are always fine.
Segments of columnar tables (`columns/segment_set`) are not in that store: whoever links takes them from the tables,
writes them, and links their files beside its files.

When barrier m comes while n is still frozen, n is finished on the loop first: drained, flushed and linked; its
`write_snapshot` then only uploads. If n was aborted, what it left just joins m. `write_snapshot` of a checkpoint that
was aborted, subsumed or closed meanwhile raises `SnapshotDropped`, for the caller to decline.
"""

import logging
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from barrier_runtime.state.backend.merging import MergingDatabases
from barrier_runtime.state.backend.restore import BESIDE, DATABASE, SEGMENTS, RestoreSite, restore
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.frozen_rows import FrozenSegment
from barrier_runtime.state.columns.segment_set import SegmentLog
from barrier_runtime.state.errors import InvalidJob, ProtocolViolation, Unavailable
from barrier_runtime.state.keys.key_groups import check_max_parallelism
from barrier_runtime.state.kv.rocksdb import HeldMemory, SlotMemory
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.snapshots.continued_state import check_kind
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import Thresholds, is_immutable, plan_snapshot
from barrier_runtime.state.snapshots.restore_plan import RestorePlan, plan_restore
from barrier_runtime.state.snapshots.snapshot import (
    ONE_VALUE,
    FileRef,
    KeyedSnapshot,
    OperatorSnapshot,
    StateDescription,
)
from barrier_runtime.state.snapshots.transfer import local_files, upload
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.values.bytes_table import BytesTable
from barrier_runtime.state.values.entry_table import EntryTable, WatchedEntryTable
from barrier_runtime.state.values.table import StateTable, share_cache
from barrier_runtime.state.values.timer_table import LAYOUTS, TimerTable, decode_timer, encode_timer
from barrier_runtime.state.values.watched_table import WatchedTable

log = logging.getLogger("barrier_runtime.state")

_SYNCHRONOUS_SLICE = 4_096
_BYTES = StateDescription(type=ValueType("bytes"))
_TIMERS = StateDescription("timers")
_LAST_FIRST = 2  # layout of columns whose entries are `last_first`


class SnapshotDropped(Unavailable):
    """This snapshot is not wanted, or cannot be had, any more: decline the checkpoint. The job is fine."""


@dataclass(frozen=True)
class UploadTo:
    store: ObjectStore
    new_key: Callable[[], str]  # a data file key, never the same twice
    at_once: int = 4  # files
    thresholds: Thresholds | None = None


class KeyedBackend:
    """Made by `open_keyed_backend`. All methods but `write_snapshot` are for the loop's thread."""

    def __init__(
        self,
        shard: Shard,
        plan: RestorePlan,
        reusable: Sequence[FileRef],
        segments: SegmentLog,
        target: UploadTo,
        directory: Path,
        copies: LocalCopies,
        cache_bytes: int,
        watched: bool,
        memory: SlotMemory,
    ) -> None:
        self.watched = watched
        self.max_parallelism = shard.max_parallelism
        self.key_group_first = shard.key_group_first
        self.key_group_last = shard.key_group_last
        self._shard = shard
        shard.may_write = self._may_write
        states, described = plan.states, plan.described
        self._restored_states = frozenset(states)
        self._segments = segments  # written and linked with `_linking_lock` held
        self._states = dict(states)
        self._described = {name: what for name, what in described.items() if name in states}
        self._restored_beside = {name: what for name, what in described.items() if name not in states}
        self._target = target
        self._directory = directory
        self._copies = copies
        self._cache_bytes = cache_bytes
        self._lent_bytes = 0
        self._memory = memory
        self._held: HeldMemory | None = None
        self._tables: dict[str, StateTable | ColumnTable] = {}
        # Where snapshots are. `_linking_lock` is held while a checkpoint's files are being linked.
        self._linking_lock = threading.Lock()
        self._state_lock = threading.Lock()  # guards the five below; held for moments only
        self._frozen: int | None = None  # frozen, not linked
        self._linking: int | None = None  # being linked by a worker
        self._linked: dict[int, Path] = {}  # linked on the loop, not yet taken by a worker
        self._uploaded: dict[int, dict[str, FileRef]] = {}  # uploaded, not completed: SST name -> where
        self._settled: int = 0  # everything up to this checkpoint is completed, aborted or subsumed
        self._aborted: set[int] = set()
        self._closed = False
        self._merging: MergingDatabases | None = None  # has not begun
        self._confirmed = {ref.name: ref for ref in reusable}  # of the last completed checkpoint; first, the restored

    # ---- tables

    def lend_cache(self, share: float) -> int:
        """The caller holds so much of the cache in memory of its own (bytes); tables that are opened from now on, and
        those that are there when one is, have the rest."""
        self._lent_bytes = int(self._cache_bytes * share)
        return self._lent_bytes

    def table(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        key_width: int,
        immutable: bool = False,
        comparable: bool = False,
        what: StateDescription = ONE_VALUE,
    ) -> StateTable:
        """The state `name`: values of any kind, by key. `immutable` promises that no value is changed in place,
        `comparable` that equal values have equal encodings: then changes in place can be noticed (`watched_table`).
        `what` the state is goes into snapshots; state that was restored and is something else is refused.

        The first `key_width` fields of an entry's key decide where it lives (its key group); the rest is namespace.
        """
        state_id = self._value_state_id(name, key_width, what)
        kind = WatchedTable if self.watched and comparable and not immutable else StateTable
        table = kind(name, state_id, self._shard, encode, decode, key_width, immutable, self._cache_bytes)
        self._add(name, table)
        return table

    def entry_table(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        key_width: int,
        what: StateDescription,
        immutable: bool = False,
        comparable: bool = False,
    ) -> EntryTable:
        """The state `name`: any number of entries per key, in order (`values/entry_table`); otherwise as `table`."""
        state_id = self._value_state_id(name, key_width, what)
        kind = WatchedEntryTable if self.watched and comparable and not immutable else EntryTable
        table = kind(
            name, state_id, self._shard, encode, decode, key_width, immutable, self._cache_bytes, what.kind == "list"
        )
        self._add(name, table)
        return table

    def table_of_bytes(self, name: str, key_width: int) -> BytesTable:
        """The state `name`: bytes of any size, by key (`values/bytes_table`); otherwise as `table`."""
        state_id = self._value_state_id(name, key_width, _BYTES)
        table = BytesTable(name, state_id, self._shard, key_width, self._cache_bytes)
        self._add(name, table)
        return table

    def timer_table(self, name: str, key_width: int) -> TimerTable:
        """The timers `name`, in the order in which they fire (`values/timer_table`). Those that an older release has
        stored by key are moved now."""
        older: StateTable | None = None
        if name in self._restored_states:
            what = self._described.get(name, ONE_VALUE)
            if what == ONE_VALUE:
                older = self._by_key(name, key_width)
            else:
                self._check_same(name, _TIMERS)
                self._check_layout(f"timers {name!r}", what.layout, LAYOUTS)
        state_id = self._state_id(name, key_width)
        self._described[name] = _TIMERS
        stored = name in self._restored_states
        table = TimerTable(name, state_id, self._shard, key_width, self._cache_bytes, stored)
        self._add(name, table)
        if older is not None:
            table.convert(older)
        return table

    def column_table(
        self,
        name: str,
        columns: Mapping[str, tuple[str, Any]],
        key_width: int,
        evictable: bool = False,
        added: Collection[str] = (),
        before: Mapping[str, str] | None = None,
        last_first: bool = False,
    ) -> ColumnTable:
        """The state `name` as columns: name → (numpy dtype, initial value). `evictable`: only a bounded part of the
        entries is held in memory; without it all are. `added`: the last of the columns, which state of older releases
        may lack; they are 0 there. `before`: the columns of the restored state, name → numpy dtype in the order of its
        rows, if they are others or in another order; then what is stored is made anew (`columns/changed_columns`).
        `last_first`: entries that leave memory can be asked for by the last field of their keys, an int of 64 bits;
        entries in memory may take a share of the slot's memory then (`SlotMemory.hold`)."""
        if not columns:
            raise InvalidJob(f"columnar state {name!r} of {self._shard.operator} has no columns: give it one or more")
        before_layout = 1
        if name in self._described or name in self._restored_beside:
            self._check_same(name, StateDescription("columns"))
            before_layout = (self.restored(name) or ONE_VALUE).layout
            self._check_layout(f"columns {name!r}", before_layout, _LAST_FIRST)
        state_id = self._state_id(name, key_width)
        stored = name in self._restored_states and any(True for _ in self._shard.scan_state(state_id))
        segments = self._segments.of(name)
        table = ColumnTable(
            name,
            state_id,
            self._shard,
            columns,
            key_width,
            evictable,
            self._cache_bytes,
            segments,
            stored,
            added,
            before,
            last_first,
            last_first and before_layout < _LAST_FIRST,
            self._held_memory().share_bytes if last_first and evictable else None,
        )
        if last_first:
            self._described[name] = StateDescription("columns", layout=_LAST_FIRST)
        self._add(name, table)
        return table

    def held_bytes(self) -> int:
        """How much of the slot's memory what one operator holds may take besides its caches, now."""
        return self._held_memory().share_bytes()

    def restored(self, name: str) -> StateDescription | None:
        """What the snapshot says of the state `name`; None: it was not restored."""
        if name in self._restored_states:
            return self._described.get(name, ONE_VALUE)
        return self._restored_beside.get(name)

    @property
    def restored_descriptions(self) -> dict[str, StateDescription]:
        """All that the snapshot says of its states, by name."""
        described = {name: what for name, what in self._described.items() if name in self._restored_states}
        return {**described, **self._restored_beside}

    def described_beside(self, name: str, what: StateDescription) -> None:
        """The state `name` is not a table: its content is elsewhere in the snapshots, and described as `what` here.
        Raises `InvalidJob` if it was something else."""
        if name in self._tables:
            raise InvalidJob(f"{self._shard.operator} has two states named {name!r}: give each a name of its own")
        self._check_same(name, what)
        self._described[name] = what

    def describe(self, name: str, what: StateDescription) -> None:
        """More is known of the state `name`; snapshots say it from now on."""
        self._described[name] = what

    def merge(self, now_s: Callable[[], float], call_later: Callable[[float, Callable[[], None]], None]) -> None:
        """From the first barrier on, databases that a restore left side by side become one (`merging`)."""
        self._merging = MergingDatabases(self._shard, now_s, call_later, lambda: self._closed)

    def compact(self) -> None:
        """Blocking: give back the room of what was deleted. May run beside snapshots; not beside `close`."""
        if not self._closed:
            self._shard.kv.compact()

    # ---- snapshots

    def freeze(self, checkpoint: int) -> None:
        """The state at this moment is that of `checkpoint`."""
        with self._state_lock:
            if checkpoint <= self._settled or checkpoint in self._linked or checkpoint in (self._frozen, self._linking):
                raise ProtocolViolation(
                    f"checkpoint {checkpoint} of {self._place()} is frozen twice or too late (settled up to "
                    f"{self._settled}): please report this"
                )
        self._finish_earlier()
        for table in self._tables.values():
            table.freeze()
        self._frozen = checkpoint
        if self._merging is not None:
            self._merging.begin()
            self._merging = None

    def drain(self, max_entries: int = 256) -> bool:
        """Write one slice of what is frozen; True when nothing frozen is left. Does nothing (and says False) while
        `linking`: ask again in a millisecond or so."""
        if self._linking is not None:
            return not self._has_frozen()
        left = max_entries
        for table in self._tables.values():
            if left > 0 and table.frozen_entries:
                entries = table.take(left)
                left -= len(entries)
                self._shard.write(entries)
        return not self._has_frozen()

    @property
    def linking(self) -> bool:
        """A worker is linking files right now: the key-value store must not be written for these few milliseconds."""
        return self._linking is not None

    def write_snapshot(self, checkpoint: int) -> KeyedSnapshot:
        """Blocking, on a worker thread: link (unless done) and upload; `clean_up` follows. Raises `SnapshotDropped` as
        described above."""
        directory = self._link_on_worker(checkpoint)
        try:
            check = lambda: self._check_wanted(checkpoint)  # noqa: E731
            plan = plan_snapshot(local_files(directory), self._confirmed, self._target.thresholds)
            target = self._target
            uploaded = upload(target.store, plan, directory, target.new_key, check, target.at_once)
            with self._state_lock:
                self._check_wanted(checkpoint)
                self._uploaded[checkpoint] = {ref.name: ref for ref in uploaded.files if is_immutable(ref.name)}
                self._copies.add(self._shard.operator, self._shard.subtask, checkpoint, directory, uploaded.files)
        except OSError as error:
            self._copies.discard(directory)
            raise Unavailable(
                f"the snapshot of {self._place()} for checkpoint {checkpoint} could not be read from disk: {error}; "
                "decline it and look at the disk if it happens again"
            ) from error
        except BaseException:
            self._copies.discard(directory)
            raise
        return KeyedSnapshot(
            backend=self._shard.kv.kind,
            max_parallelism=self.max_parallelism,
            key_group_first=self.key_group_first,
            key_group_last=self.key_group_last,
            states=dict(self._states),
            files=uploaded.files,
            full_bytes=sum(ref.size for ref in uploaded.files),
            new_bytes=uploaded.new_bytes,
            described=dict(self._described),
        )

    def completed(self, checkpoint: int) -> None:
        """`checkpoint` is decided: its files may be reused from now on, and older ones are not needed any more."""
        with self._state_lock:
            if checkpoint <= self._settled:
                return
            self._settled = checkpoint
            confirmed = self._uploaded.get(checkpoint)
            if confirmed is not None:
                self._confirmed = confirmed
            self._uploaded = {number: files for number, files in self._uploaded.items() if number > checkpoint}
            self._aborted = {number for number in self._aborted if number > checkpoint}
            self._drop_frozen(lambda number: number <= checkpoint)
        self._copies.completed(self._shard.operator, self._shard.subtask, checkpoint)

    def aborted(self, checkpoint: int) -> None:
        """`checkpoint` will never be decided."""
        with self._state_lock:
            if checkpoint <= self._settled:
                return
            self._aborted.add(checkpoint)
            self._uploaded.pop(checkpoint, None)
            self._drop_frozen(lambda number: number == checkpoint)
        self._copies.aborted(self._shard.operator, self._shard.subtask, checkpoint)

    # ---- the rest

    def contents(self) -> Iterator[tuple[str, tuple[Any, ...], tuple[Any, ...], Any]]:
        """Every entry of every table as (state, key, what is beside the key, value), for those who look at little
        state: reads all of it. Beside the key: the entry's key in lists and maps, the time (ms) of a timer, a
        namespace. The value of columns is a dict. Nothing is changed."""
        for name, table in self._tables.items():
            if isinstance(table, ColumnTable):
                row_ids, width = table.load_all(), table.key_width
                for key, row_id in zip(table.keys_of(row_ids), row_ids, strict=True):
                    row = {column: values[row_id] for column, values in table.columns.items()}
                    yield name, key[:width], key[width:], row
            elif isinstance(table, TimerTable):
                for (at_ms, key), _ in table.scan():
                    yield name, key, (at_ms,), True
            else:
                width, of_entries = table.key_width, isinstance(table, EntryTable)
                for key, value in table.scan():
                    if not of_entries:
                        yield name, key[:width], key[width:], value
                    elif len(key) == width + 2:  # else it is how many entries there are
                        yield name, key[:width], key[width + 1 :], value

    def opened_table(self, name: str) -> StateTable | ColumnTable | None:
        """The table of that name that the operator has opened; None: it has none."""
        return self._tables.get(name)

    @property
    def opened_tables(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def description(self, name: str) -> StateDescription:
        """What the state `name` is, as snapshots will say it."""
        return self._described.get(name, ONE_VALUE)

    def memory_bytes(self) -> int:
        """Approximate, without what the slot's databases share."""
        tables = int(sum(table.memory_bytes() for table in self._tables.values()))
        return tables + self._segments.waiting_bytes + self._shard.kv.memory_bytes()

    def close(self) -> None:
        """Release the database and its folder. Local copies stay; nothing remote is touched."""
        with self._state_lock:
            if self._closed:
                return
            self._closed = True
            self._drop_frozen(lambda number: True)
        if self._held is not None:
            self._held.release()
        try:
            with self._linking_lock:
                self._shard.kv.close()
        finally:
            for name in (DATABASE, BESIDE, SEGMENTS):
                shutil.rmtree(self._directory / name, ignore_errors=True)

    # ---- inside

    def _value_state_id(self, name: str, key_width: int, what: StateDescription) -> int:
        if self._segments.has(name):
            raise InvalidJob(
                f"state {name!r} of {self._shard.operator} was written as columns: give the changed state a new name"
            )
        self._check_same(name, what)
        state_id = self._state_id(name, key_width)
        if what != ONE_VALUE:
            self._described[name] = what
        return state_id

    def _by_key(self, name: str, key_width: int) -> StateTable:
        """The timers of an older release, under the state id that they have; the name gets another one. Snapshots do
        not name the old id any more: it has no entries then."""
        state_id = self._states[name]
        table = StateTable(name, state_id, self._shard, encode_timer, decode_timer, key_width, True, self._cache_bytes)
        self._states[name] = max(self._states.values()) + 1
        self._add(f"{name} by key", table)
        return table

    def _check_layout(self, what: str, layout: int, newest: int) -> None:
        if layout > newest:
            raise InvalidJob(
                f"{what} of {self._shard.operator} were written by a newer release (layout {layout}, this one reads "
                f"up to {newest}): run that release, or a later one"
            )

    def _held_memory(self) -> HeldMemory:
        if self._held is None:
            self._held = self._memory.hold()
        return self._held

    def _check_same(self, name: str, now: StateDescription) -> None:
        before = self.restored(name)
        if before is not None:
            check_kind(now, before, f"state {name!r} of {self._shard.operator}")

    def _state_id(self, name: str, key_width: int) -> int:
        if not name:
            raise InvalidJob(f"a state of {self._shard.operator} has an empty name: name it")
        if key_width < 1:
            raise InvalidJob(f"state {name!r} of {self._shard.operator} has key width {key_width}: use 1 or more")
        if name in self._tables:
            raise InvalidJob(f"{self._shard.operator} has two states named {name!r}: give each a name of its own")
        if name not in self._states:
            self._states[name] = max(self._states.values(), default=-1) + 1
        return self._states[name]

    def _add(self, name: str, table: StateTable | ColumnTable) -> None:
        self._tables[name] = table
        share_cache(self._tables.values(), self._cache_bytes - self._lent_bytes)

    def _may_write(self) -> bool:
        """Whether entries may be written behind. In this order: a worker sets `_linking` before it clears `_frozen`."""
        return self._frozen is None and self._linking is None

    def _has_frozen(self) -> bool:
        return any(table.frozen_entries for table in self._tables.values())

    def _finish_earlier(self) -> None:
        """Bring a checkpoint that is still frozen to its links, here on the loop, before the next one begins."""
        if self._frozen is None:
            return
        with self._linking_lock:  # a worker may be linking an older one, or this one
            with self._state_lock:
                earlier = self._frozen
            if earlier is None:
                return
            while not self.drain(_SYNCHRONOUS_SLICE):
                pass
            directory = self._link(earlier, self._take_segments())
            with self._state_lock:
                self._linked[earlier] = directory
                self._frozen = None

    def _link_on_worker(self, checkpoint: int) -> Path:
        with self._linking_lock:
            with self._state_lock:
                self._check_wanted(checkpoint)
                if checkpoint in self._linked:
                    return self._linked.pop(checkpoint)
                if self._frozen != checkpoint:
                    raise SnapshotDropped(f"checkpoint {checkpoint} of {self._place()} was never frozen: decline it")
                if self._has_frozen():
                    raise ProtocolViolation(
                        f"checkpoint {checkpoint} of {self._place()} is written before it is drained: report this"
                    )
                segments = self._take_segments()  # before the loop may freeze the next ones
                self._linking = checkpoint
                self._frozen = None
            try:
                return self._link(checkpoint, segments)
            finally:
                self._linking = None

    def clean_up(self) -> None:
        """Blocking, on a worker thread, after each `write_snapshot`, whose snapshot does not wait for it: delete copies
        that nobody wants any more, and merge segments. Without it there are more files."""
        self._copies.delete_unwanted()
        try:
            self._segments.merge(lambda: not self._closed)
        except OSError as error:
            if not self._closed:
                log.warning(
                    "segments of %s are not merged (%s): tried again at the next checkpoint", self._place(), error
                )

    def _take_segments(self) -> list[FrozenSegment]:
        taken = []
        for table in list(self._tables.values()):
            if isinstance(table, ColumnTable):
                taken += table.take_segments()
        return taken

    def _link(self, checkpoint: int, segments: Sequence[FrozenSegment]) -> Path:
        directory = self._copies.new_directory(self._directory, checkpoint)
        try:
            self._segments.write(segments)
            self._shard.kv.flush()
            self._shard.kv.checkpoint(directory)
            self._segments.link(directory)
        except OSError as error:
            self._copies.discard(directory)
            raise Unavailable(
                f"the snapshot of {self._place()} for checkpoint {checkpoint} could not be written to disk: {error}; "
                "decline it and free some space"
            ) from error
        except BaseException:
            self._copies.discard(directory)
            raise
        return directory

    def _check_wanted(self, checkpoint: int) -> None:
        if self._closed or checkpoint <= self._settled or checkpoint in self._aborted:
            raise SnapshotDropped(
                f"the snapshot of {self._place()} for checkpoint {checkpoint} is not wanted any more: decline it"
            )

    def _drop_frozen(self, is_dropped: Callable[[int], bool]) -> None:
        """Called with the lock held. Frozen entries of a dropped checkpoint stay: they are state, they just have no
        snapshot. What is being linked is dropped by its worker."""
        if self._frozen is not None and is_dropped(self._frozen):
            self._frozen = None
        for number in [number for number in self._linked if is_dropped(number)]:
            self._copies.discard(self._linked.pop(number))

    def _place(self) -> str:
        return f"{self._shard.operator}, subtask {self._shard.subtask}"


def open_keyed_backend(
    *,
    kind: str,
    operator: str,
    subtask: int,
    parallelism: int,
    max_parallelism: int,
    restored: Sequence[OperatorSnapshot],
    store: ObjectStore,
    paths: Paths,
    token: int,
    slot_uuid: str,
    directory: Path,
    copies: LocalCopies,
    memory: SlotMemory,
    cache_bytes: int,
    new_uuid: Callable[[], str],
    transfers_at_once: int = 4,
    thresholds: Thresholds | None = None,
    watched: bool = False,
) -> KeyedBackend:
    """Open the keyed state of one operator subtask, restoring `restored` (its own snapshot, or all of the operator's).

    Blocking. `directory` is fresh and belongs to this incarnation of the subtask alone; `copies` outlives it.
    `watched`: refuse values that were changed in place and not stored.
    """
    check_max_parallelism(parallelism, max_parallelism)
    plan = plan_restore(operator, subtask, parallelism, max_parallelism, restored)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened = restore(kind, plan, RestoreSite(operator, store, copies, directory, memory, transfers_at_once))
        segments = SegmentLog(directory / SEGMENTS, max_parallelism)
    except OSError as error:
        raise Unavailable(
            f"the state of {operator}, subtask {subtask}, could not be put on this machine's disk: {error}; "
            "it is tried again, look at free space and permissions if that does not help"
        ) from error
    shard = Shard(opened.kv, operator, subtask, max_parallelism, plan.key_group_first, plan.key_group_last)
    target = UploadTo(store, lambda: paths.data_file(token, slot_uuid, new_uuid()), transfers_at_once, thresholds)
    return KeyedBackend(shard, plan, opened.reusable, segments, target, directory, copies, cache_bytes, watched, memory)
