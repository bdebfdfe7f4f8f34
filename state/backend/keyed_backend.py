"""All keyed state of an operator subtask: tables, descriptions, and the store below."""

import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from barrier_runtime.state.backend.backend_snapshots import BackendSnapshots, UploadTo
from barrier_runtime.state.backend.restore import BESIDE, DATABASE, SEGMENTS, RestoreSite, restore
from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.segment_set import SegmentLog
from barrier_runtime.state.errors import InvalidJob, Unavailable
from barrier_runtime.state.keys.key_groups import check_max_parallelism
from barrier_runtime.state.kv.rocksdb import HeldMemory, SlotMemory
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.snapshots.continued_state import check_kind
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import RestorePlan, Thresholds, plan_restore
from barrier_runtime.state.snapshots.snapshot import (
    ONE_VALUE,
    FileRef,
    OperatorSnapshot,
    StateDescription,
)
from barrier_runtime.state.snapshots.state_kinds import COLUMNS, TIMERS
from barrier_runtime.state.snapshots.value_types import ValueType
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.store.paths import Paths
from barrier_runtime.state.values.entry_table import EntryTable, WatchedEntryTable
from barrier_runtime.state.values.table import BytesTable, StateTable, share_cache
from barrier_runtime.state.values.timer_table import LAYOUTS, TimerTable, decode_timer, encode_timer
from barrier_runtime.state.values.undo import Undo, made
from barrier_runtime.state.values.watched_table import WatchedTable

T = TypeVar("T", bound=StateTable | ColumnTable)

_BYTES = StateDescription(type=ValueType("bytes"))
_TIMERS = StateDescription(TIMERS.name)
_LAST_FIRST = 2  # layout of `last_first` columns
_IN_SLICES = 3  # layout of `last_first` columns of slices, not windows


class KeyedBackend:
    """All methods run on the loop's thread, except for `compact` and some of `BackendSnapshots`."""

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
        self.max_parallelism = shard.max_parallelism
        self.key_group_first = shard.key_group_first
        self.key_group_last = shard.key_group_last
        self._shard = shard
        self._directory = directory
        self._segments = segments
        self._tables: dict[str, StateTable | ColumnTable] = {}
        self._states = dict(plan.states)
        self._described = {name: what for name, what in plan.described.items() if name in plan.states}
        self.snapshots = BackendSnapshots(
            shard, self._tables, self._states, self._described, reusable, segments, target, directory, copies
        )
        self.watched = watched
        self._restored_states = frozenset(plan.states)
        self._restored_beside = {name: what for name, what in plan.described.items() if name not in plan.states}
        self._cache_bytes = cache_bytes
        self._lent_bytes = 0
        self._memory = memory
        self._held: HeldMemory | None = None

    def lend_cache(self, share: float) -> int:
        """Returns the size in bytes of the caller's share.

        Tables get the remainder when the next table is opened.
        """
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
        undo: Undo | None = None,
    ) -> StateTable:
        """`immutable`: no value is changed in place. `comparable`: equal values have equal encodings (for
        `watched_table`). `undo`: of an operator that repeats failed calls. Refuses a restored state with another
        description than `what`. The first `key_width` fields of a key determine the key group; the others are the
        namespace.
        """
        kind = WatchedTable if self.watched and comparable and not immutable else StateTable
        of = (name, self._value_state_id(name, key_width, what), self._shard, encode, decode, key_width, immutable)
        return self._add(name, made(kind, (*of, self._cache_bytes), undo))

    def entry_table(
        self,
        name: str,
        encode: Callable[[Any], bytes],
        decode: Callable[[bytes], Any],
        key_width: int,
        what: StateDescription,
        immutable: bool = False,
        comparable: bool = False,
        undo: Undo | None = None,
    ) -> EntryTable:
        """Ordered entries per key; parameters as in `table`."""
        kind = WatchedEntryTable if self.watched and comparable and not immutable else EntryTable
        of = (name, self._value_state_id(name, key_width, what), self._shard, encode, decode, key_width, immutable)
        return self._add(name, made(kind, (*of, self._cache_bytes, what.row.numbered), undo))

    def table_of_bytes(self, name: str, key_width: int) -> BytesTable:
        state_id = self._value_state_id(name, key_width, _BYTES)
        return self._add(name, BytesTable(name, state_id, self._shard, key_width, self._cache_bytes))

    def timer_table(self, name: str, key_width: int) -> TimerTable:
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
        in_slices: bool = False,
    ) -> ColumnTable:
        """Opens the state `name` as columns: name -> (numpy dtype, initial value).

        - `evictable`: only a bounded part of the entries is in memory.
        - `added`: the last columns, which state of older releases may lack; they are 0 there.
        - `before`: the restored columns, name -> numpy dtype in the order of the stored rows, if columns or order
          differ; stored rows are then converted.
        - `last_first`: evicted entries can be found by the last field of their keys, an int of 64 bits; entries in
          memory may take a share of the slot's memory (`SlotMemory.hold`).
        - `in_slices`: recorded in snapshots, so that releases that would take the entries for windows refuse them.
        """
        if not columns:
            raise InvalidJob(f"columnar state {name!r} of {self._shard.operator} has no columns: give it one or more")
        before_layout = 1
        if name in self._described or name in self._restored_beside:
            self._check_same(name, StateDescription(COLUMNS.name))
            before_layout = (self.restored(name) or ONE_VALUE).layout
            self._check_layout(f"columns {name!r}", before_layout, _IN_SLICES)
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
            layout = _IN_SLICES if in_slices else _LAST_FIRST
            self._described[name] = StateDescription(COLUMNS.name, layout=layout)
        return self._add(name, table)

    def held_bytes(self) -> int:
        """Bytes of memory that the operator may hold besides the caches."""
        return self._held_memory().share_bytes()

    def restored(self, name: str) -> StateDescription | None:
        if name in self._restored_states:
            return self._described.get(name, ONE_VALUE)
        return self._restored_beside.get(name)

    @property
    def restored_descriptions(self) -> dict[str, StateDescription]:
        described = {name: what for name, what in self._described.items() if name in self._restored_states}
        return {**described, **self._restored_beside}

    def described_beside(self, name: str, what: StateDescription) -> None:
        """The state's content is elsewhere in the snapshots.

        Raises `InvalidJob` if the restored description differs.
        """
        if name in self._tables:
            raise InvalidJob(f"{self._shard.operator} has two states named {name!r}: give each a name of its own")
        self._check_same(name, what)
        self._described[name] = what

    def describe(self, name: str, what: StateDescription) -> None:
        self._described[name] = what

    def contents(self) -> Iterator[tuple[str, tuple[Any, ...], tuple[Any, ...], Any]]:
        """Yields state, key, middle part and value: the middle part is the entry key in lists and maps, a
        timer's time (ms), or a namespace. Columns yield dicts.
        """
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
                    elif len(key) == width + 2:  # otherwise the number of entries
                        yield name, key[:width], key[width + 1 :], value

    def opened_table(self, name: str) -> StateTable | ColumnTable | None:
        return self._tables.get(name)

    @property
    def opened_tables(self) -> tuple[str, ...]:
        return tuple(self._tables)

    def description(self, name: str) -> StateDescription:
        return self._described.get(name, ONE_VALUE)

    def memory_bytes(self) -> int:
        tables = int(sum(table.memory_bytes() for table in self._tables.values()))
        return tables + self._segments.waiting_bytes + self._shard.kv.memory_bytes()

    @property
    def compacts(self) -> bool:
        """Returns whether files are being merged, maybe most of the state, for the next snapshot."""
        return not self.snapshots.closed and self._shard.kv.compacts

    def compact(self) -> None:
        """Blocking. May run during snapshots, but not during `close`."""
        if not self.snapshots.closed:
            self._shard.kv.compact()

    def close(self) -> None:
        """Releases database, folder and held memory; local copies and remote objects remain."""
        if not self.snapshots.close():
            return
        if self._held is not None:
            self._held.release()
        try:
            self._shard.kv.close()
        finally:
            for name in (DATABASE, BESIDE, SEGMENTS):
                shutil.rmtree(self._directory / name, ignore_errors=True)

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
        """Opens the timers of an older release; the name gets a new state id."""
        state_id = self._states[name]
        table = StateTable(name, state_id, self._shard, encode_timer, decode_timer, key_width, True, self._cache_bytes)
        self._states[name] = max(self._states.values()) + 1
        return self._add(f"{name} by key", table)

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

    def _add(self, name: str, table: T) -> T:
        self._tables[name] = table
        share_cache(self._tables.values(), self._cache_bytes - self._lent_bytes)
        return table


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
    """Blocking. `restored`: the subtask's own snapshot, or all snapshots of the operator.

    `directory`: new, of this incarnation alone; `copies` outlives the incarnation. `watched`: refuses values changed in
    place and not stored.
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
