"""The keyed state of one subtask as a snapshot has it, opened to be read, without the program that wrote it.

Files are fetched into a folder of the reader's own, every byte checked, and opened as a restore would. Blocking.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from barrier_runtime.state.backend.restore import BACKENDS
from barrier_runtime.state.columns.segment import Segment
from barrier_runtime.state.columns.segment_set import segments_in
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.kv.shard import scan_state
from barrier_runtime.state.kv.store import KvStore
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from barrier_runtime.state.snapshots.transfer import download
from barrier_runtime.state.store.object_store import ObjectStore

_CACHE_BYTES = 32 << 20
_DOWNLOADS_AT_ONCE = 4


class StoredPart:
    """`directory`: fresh, and removed at the end. Use as a context manager."""

    def __init__(self, keyed: KeyedSnapshot, store: ObjectStore, directory: Path) -> None:
        self._keyed = keyed
        self._store = store
        self._directory = directory
        self._files = directory / "files"
        self._kv: KvStore | None = None

    def __enter__(self) -> "StoredPart":
        backend = BACKENDS.get(self._keyed.backend)
        if backend is None:
            raise InvalidJob(
                f"state of a backend {self._keyed.backend!r} cannot be read by this release: use the one that wrote it"
            )
        self._directory.mkdir(parents=True, mode=0o700)
        try:
            download(self._store, self._keyed.files, self._files, _DOWNLOADS_AT_ONCE)
            self._kv = backend.adopt(self._keyed, self._files, self._directory / "db", SlotMemory(_CACHE_BYTES))
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kv is not None:
            self._kv.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def entries(self, state: str, first: int = 0, last: int = 0xFFFF) -> Iterator[tuple[bytes, bytes]]:
        """(whole key, data) of the state's entries in key groups `first` to `last`, both inclusive, in their order."""
        assert self._kv is not None, "a part is read within its context"
        keyed = self._keyed
        first, last = max(first, keyed.key_group_first), min(last, keyed.key_group_last)
        return scan_state(self._kv, keyed.states[state], first, last)

    def segments(self, state: str, first: int = 0, last: int = 0xFFFF) -> Iterator[Segment]:
        """Of a columnar state, in key groups `first` to `last`, both inclusive: no key is in two of them."""
        keyed, names = self._keyed, [ref.name for ref in self._keyed.files]
        first, last = max(first, keyed.key_group_first), min(last, keyed.key_group_last)
        return segments_in(self._files, names, state, keyed.max_parallelism, first, last)
