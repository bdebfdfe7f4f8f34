"""Writes the keyed state of one subtask as a snapshot; counterpart of `stored_part`.

Needs no operator and no job. For snapshots of entries from elsewhere: a DataFrame, or a part of another snapshot.
Blocking.
"""

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from barrier_runtime.state.backend.restore import BACKENDS
from barrier_runtime.state.columns.segment import Segment
from barrier_runtime.state.columns.segment_set import SegmentsWritten
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.kv.store import Entry
from barrier_runtime.state.snapshots.plan import Thresholds, plan_snapshot
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot, StateDescription
from barrier_runtime.state.snapshots.transfer import local_files, upload
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectStore

_WRITE_BYTES = 64 << 20


class WrittenPart:
    """A snapshot that is being written. Use as a context manager.

    `directory`: new, and removed at the end. `backend`: "rocksdb", or "memory" for small state. `states`: name -> id,
    which is part of each entry's key.
    """

    def __init__(
        self,
        directory: Path,
        backend: str,
        max_parallelism: int,
        key_groups: tuple[int, int],
        states: Mapping[str, int],
        described: Mapping[str, StateDescription],
    ) -> None:
        self._directory = directory
        self._backend = backend
        self._max_parallelism = max_parallelism
        self._groups = key_groups
        self._states = dict(states)
        self._described = dict(described)
        self._segments = SegmentsWritten(directory / "files")

    def __enter__(self) -> "WrittenPart":
        self._directory.mkdir(parents=True, mode=0o700)
        self._kv = BACKENDS[self._backend].fresh(self._directory / "db", SlotMemory(_WRITE_BYTES))
        return self

    def __exit__(self, *_: object) -> None:
        self._kv.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def write(self, entries: Sequence[Entry]) -> None:
        """Writes entries (whole key, data) as stored; the keys are in this part's key groups."""
        self._kv.write(entries)

    def add(self, segment: Segment) -> None:
        """Adds all entries of a columnar state: a base."""
        self._segments.add(segment)

    def inline(self) -> KeyedSnapshot:
        """The written state as a snapshot that contains the files. For small state."""
        return self._uploaded(None, lambda: "", Thresholds(sys.maxsize, sys.maxsize))

    def uploaded(self, store: ObjectStore, new_key: Callable[[], str]) -> KeyedSnapshot:
        """The written state as a snapshot with the files in `store`."""
        return self._uploaded(store, new_key, None)

    def _uploaded(
        self, store: ObjectStore | None, new_key: Callable[[], str], thresholds: Thresholds | None
    ) -> KeyedSnapshot:
        self._kv.flush()
        files = self._directory / "files"
        linked = self._directory / "linked"
        self._kv.checkpoint(linked)
        for path in files.iterdir() if files.is_dir() else ():
            path.rename(linked / path.name)
        plan = plan_snapshot(local_files(linked), {}, thresholds)
        done = upload(store or MemoryStore(), plan, linked, new_key, lambda: None)
        first, last = self._groups
        size = sum(ref.size for ref in done.files)
        return KeyedSnapshot(
            backend=self._backend,
            max_parallelism=self._max_parallelism,
            key_group_first=first,
            key_group_last=last,
            states=self._states,
            files=done.files,
            full_bytes=size,
            new_bytes=size,
            described=self._described,
        )
