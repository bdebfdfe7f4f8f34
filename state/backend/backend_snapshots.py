"""Snapshots of a keyed backend: frozen, drained, linked, uploaded, completed.

    freeze(n)           on the loop, at the barrier: dirty entries become the frozen entries
    drain()             on the loop, between batches: writes slices of the frozen entries to the key-value store
    write(n)            on a worker thread, once drain() returned True: flush, hard links, then hash and upload
    clean_up()          on a worker thread, after write(n), while the snapshot is reported
    completed(n) or aborted(n)   on the loop

All other methods run on the loop. Until the files of n are linked, only frozen entries are written to the key-value
store, which then holds exactly the state at barrier n. If barrier m arrives while n is still frozen, the loop first
drains, flushes and links n, whose `write` then only uploads. The remaining frozen entries of an aborted n join m.

From the first barrier on, the loop, the only writer, merges side-by-side databases
(docs/design/side-by-side-databases.md). Near a rescale the caller postpones slices.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.columns.column_table import ColumnTable
from barrier_runtime.state.columns.frozen_rows import FrozenSegment
from barrier_runtime.state.columns.segment_set import SegmentLog
from barrier_runtime.state.errors import ProtocolViolation, Unavailable
from barrier_runtime.state.kv.shard import Shard
from barrier_runtime.state.kv.side_by_side import SideBySide
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import Thresholds, is_immutable, plan_snapshot
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, StateDescription
from barrier_runtime.state.snapshots.transfer import local_files, upload
from barrier_runtime.state.store.object_store import ObjectStore
from barrier_runtime.state.values.table import StateTable

_AT_ONCE = 128  # entries
_MOST_AT_ONCE = 8  # batches per slice, if time allows
_SLICE_S = 0.001
_PAUSE_S = 0.003
_RESTS = 9  # pause, as a multiple of a slice's duration
_WAIT_S = 0.1  # wait for a snapshot


class MergingDatabases:
    def __init__(
        self,
        shard: Shard,
        now_s: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], None],
        is_closed: Callable[[], bool],
    ) -> None:
        self._shard = shard
        self._now_s = now_s
        self._call_later = call_later
        self._is_closed = is_closed

    def begin(self) -> None:
        if isinstance(self._shard.kv, SideBySide):
            self._call_later(_PAUSE_S, self._slice)

    def _slice(self) -> None:
        store = self._shard.kv
        if self._is_closed() or not isinstance(store, SideBySide):
            return
        if store.alone:
            self._shard.kv = store.first
            return
        self._call_later(self._moved(store), self._slice)

    def _moved(self, store: SideBySide) -> float:
        if not self._shard.may_write():
            return _PAUSE_S
        began_s = self._now_s()
        for _ in range(_MOST_AT_ONCE):
            if not store.move(_AT_ONCE):
                return _WAIT_S
            if self._now_s() - began_s >= _SLICE_S:
                break
        return max(_PAUSE_S, _RESTS * (self._now_s() - began_s))


log = logging.getLogger("barrier_runtime.state")

_SYNCHRONOUS_SLICE = 4_096


class SnapshotDropped(Unavailable):
    """Decline the checkpoint: the snapshot was aborted, subsumed or closed."""


@dataclass(frozen=True)
class UploadTo:
    store: ObjectStore
    new_key: Callable[[], str]  # never returns a key twice
    at_once: int = 4  # files
    thresholds: Thresholds | None = None


class BackendSnapshots:
    def __init__(
        self,
        shard: Shard,
        tables: Mapping[str, StateTable | ColumnTable],
        states: Mapping[str, int],
        described: Mapping[str, StateDescription],
        reusable: Sequence[FileRef],
        segments: SegmentLog,
        target: UploadTo,
        directory: Path,
        copies: LocalCopies,
    ) -> None:
        """The backend adds to `tables`, `states` (name -> state id) and `described`."""
        self._shard = shard
        shard.may_write = self._may_write
        self._tables = tables
        self._states = states
        self._described = described
        self._segments = segments  # written and linked with `_linking_lock` held
        self._target = target
        self._directory = directory
        self._copies = copies
        self._linking_lock = threading.Lock()
        self._state_lock = threading.Lock()  # guards the next five attributes
        self._frozen: int | None = None  # frozen, not linked
        self._linking: int | None = None  # being linked by a worker
        self._linked: dict[int, Path] = {}  # linked on the loop, not yet taken by a worker
        self._uploaded: dict[int, dict[str, FileRef]] = {}  # not completed: immutable file -> object
        self._settled: int = 0  # highest completed checkpoint; all earlier are resolved, too
        self._aborted: set[int] = set()
        self.closed = False
        self._merging: MergingDatabases | None = None  # None once begun
        self._confirmed = {ref.name: ref for ref in reusable}  # of the last completed, first of the restored

    # ---- from freeze to completed

    def merge(self, now_s: Callable[[], float], call_later: Callable[[float, Callable[[], None]], None]) -> None:
        self._merging = MergingDatabases(self._shard, now_s, call_later, lambda: self.closed)

    def freeze(self, checkpoint: int) -> None:
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
        """Returns True if no frozen entries are left. While `linking`, call again after about a millisecond."""
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
        return self._linking is not None

    def write(self, checkpoint: int) -> KeyedSnapshot:
        """Blocking. Raises `SnapshotDropped`."""
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
            max_parallelism=self._shard.max_parallelism,
            key_group_first=self._shard.key_group_first,
            key_group_last=self._shard.key_group_last,
            states=dict(self._states),
            files=uploaded.files,
            full_bytes=sum(ref.size for ref in uploaded.files),
            new_bytes=uploaded.new_bytes,
            described=dict(self._described),
        )

    def completed(self, checkpoint: int) -> None:
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
        with self._state_lock:
            if checkpoint <= self._settled:
                return
            self._aborted.add(checkpoint)
            self._uploaded.pop(checkpoint, None)
            self._drop_frozen(lambda number: number == checkpoint)
        self._copies.aborted(self._shard.operator, self._shard.subtask, checkpoint)

    def close(self) -> bool:
        """Waits until no file is being linked; False if closed before."""
        with self._state_lock:
            if self.closed:
                return False
            self.closed = True
            self._drop_frozen(lambda number: True)
        with self._linking_lock:
            return True

    def _may_write(self) -> bool:
        """Order matters: a worker sets `_linking` before clearing `_frozen`."""
        return self._frozen is None and self._linking is None

    def _has_frozen(self) -> bool:
        return any(table.frozen_entries for table in self._tables.values())

    def _finish_earlier(self) -> None:
        if self._frozen is None:
            return
        with self._linking_lock:  # a worker may be linking files
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
                segments = self._take_segments()  # before the loop freezes the next
                self._linking = checkpoint
                self._frozen = None
            try:
                return self._link(checkpoint, segments)
            finally:
                self._linking = None

    def clean_up(self) -> None:
        self._copies.delete_unwanted()
        try:
            self._segments.merge(lambda: not self.closed)
        except OSError as error:
            if not self.closed:
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
        if self.closed or checkpoint <= self._settled or checkpoint in self._aborted:
            raise SnapshotDropped(
                f"the snapshot of {self._place()} for checkpoint {checkpoint} is not wanted any more: decline it"
            )

    def _drop_frozen(self, is_dropped: Callable[[int], bool]) -> None:
        """Needs the lock. Frozen entries of a dropped checkpoint remain as state.

        A worker that is linking the checkpoint drops the checkpoint.
        """
        if self._frozen is not None and is_dropped(self._frozen):
            self._frozen = None
        for number in [number for number in self._linked if is_dropped(number)]:
            self._copies.discard(self._linked.pop(number))

    def _place(self) -> str:
        return f"{self._shard.operator}, subtask {self._shard.subtask}"
