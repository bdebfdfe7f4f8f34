"""The keyed state of one subtask as a snapshot has it, opened to be read, without the program that wrote it.

Files are fetched into a folder of the reader's own, every byte checked, and opened as a restore would. Who wants the
entries of one state in few key groups fetches of RocksDB's files the blocks that have these (`only`). Blocking.
"""

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from barrier_runtime.state.backend.restore import BACKENDS, opened_whole
from barrier_runtime.state.columns.segment import FIXED_BYTES, Header, Segment, decode_header, header_bytes
from barrier_runtime.state.columns.segment_set import rows_by_headers, segments_in
from barrier_runtime.state.errors import Corrupt, InvalidJob
from barrier_runtime.state.file_links import segment_number
from barrier_runtime.state.kv.linked_database import link_database
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.shard import MOST_LISTED, Shard, scan_state_lists
from barrier_runtime.state.kv.store import KvStore
from barrier_runtime.state.snapshots.partial_download import download_range
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot
from barrier_runtime.state.snapshots.transfer import download
from barrier_runtime.state.store.object_store import ObjectStore

_CACHE_BYTES = 32 << 20
_DOWNLOADS_AT_ONCE = 4
_BEHIND_KEY = b"\xff"  # no field of a key begins so


@dataclass(frozen=True)
class KeyGroups:
    """All that is read of a part: one state in the key groups `first` to `last`, both inclusive. `columns`: also what
    is in segments, which are fetched whole. `key`: of one group, only entries whose encoded key begins so."""

    state: str
    first: int
    last: int
    columns: bool
    key: bytes = b""


class StoredPart:
    """`directory`: fresh, and removed at the end. Use as a context manager. `only`: nothing else will be asked for."""

    def __init__(
        self, keyed: KeyedSnapshot, store: ObjectStore, directory: Path, only: KeyGroups | None = None
    ) -> None:
        self._keyed = keyed
        self._store = store
        self._directory = directory
        self._files = directory / "files"
        self._kv: KvStore | None = None
        self._key = b"" if only is None else only.key
        self._only = only if keyed.backend == RocksDbKv.kind else None

    def __enter__(self) -> "StoredPart":
        self._directory.mkdir(parents=True, mode=0o700)
        try:
            if self._only is not None:
                try:
                    self._kv = self._of_groups(self._only)
                except Corrupt:  # or what RocksDB needs to open a file is not where this release looks for it
                    self._fetch_whole()
            else:
                self._fetch_whole()
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._kv is not None:
            self._kv.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _fetch_whole(self) -> None:
        backend = BACKENDS.get(self._keyed.backend)
        if backend is None:
            raise InvalidJob(
                f"state of a backend {self._keyed.backend!r} cannot be read by this release: use the one that wrote it"
            )
        if self._kv is not None:
            self._kv.close()
        self._only, self._kv, self._files = None, None, self._directory / "whole"
        download(self._store, self._keyed.files, self._files, _DOWNLOADS_AT_ONCE)
        memory = SlotMemory(_CACHE_BYTES)
        self._kv = opened_whole(
            self._keyed,
            self._files,
            self._directory / "db",
            lambda number, folder: backend.adopt(self._keyed, self._files, folder, memory, number),
        )

    def _of_groups(self, only: KeyGroups) -> KvStore:
        files = [ref for ref in self._keyed.files if only.columns or segment_number(ref.name) is None]
        number = self._keyed.states[only.state]
        start, end = Shard.prefix(only.first, number) + only.key, Shard.prefix(only.last, number + 1)
        if only.key:
            end = start + _BEHIND_KEY
        download_range(self._store, files, self._files, start, end, _DOWNLOADS_AT_ONCE)
        memory = SlotMemory(_CACHE_BYTES)

        def with_holes(database: int, folder: Path) -> KvStore:
            link_database(self._files, [ref.name for ref in files], folder, database)
            return RocksDbKv(folder, memory, with_holes=True)

        return opened_whole(self._keyed, self._files, self._directory / "db-with-holes", with_holes)

    def entries(self, state: str, first: int = 0, last: int = 0xFFFF) -> Iterator[tuple[bytes, bytes]]:
        """(whole key, data) of the state's entries in key groups `first` to `last`, both inclusive, in their order."""
        return chain.from_iterable(self.entry_lists(state, first, last))

    def entry_lists(self, state: str, first: int = 0, last: int = 0xFFFF) -> Iterator[list[tuple[bytes, bytes]]]:
        """`entries`, many at a time."""
        keyed, given = self._keyed, b""
        first, last = max(first, keyed.key_group_first), min(last, keyed.key_group_last)
        try:
            for some in self._scanned(keyed.states[state], first, last):
                given = some[-1][0]
                yield some
        except Corrupt:
            if self._only is None:
                raise
            # Damage, or a hole: who looks for the next key passes over what was deleted behind it, wherever that ends.
            self._fetch_whole()
            for some in self._scanned(keyed.states[state], first, last):
                yield [entry for entry in some if entry[0] > given]

    def _scanned(self, number: int, first: int, last: int) -> Iterator[list[tuple[bytes, bytes]]]:
        if not self._key:
            return scan_state_lists(self._opened, number, first, last)
        start = Shard.prefix(first, number) + self._key
        entries = self._opened.scan(start, start + _BEHIND_KEY)
        return iter(lambda: list(islice(entries, MOST_LISTED)), [])

    @property
    def _opened(self) -> KvStore:
        assert self._kv is not None, "a part is read within its context"
        return self._kv

    def segments(
        self, state: str, first: int = 0, last: int = 0xFFFF, columns: Collection[str] | None = None
    ) -> Iterator[Segment]:
        """Of a columnar state, in key groups `first` to `last`, both inclusive: no key is in two of them. `columns`:
        others are not decoded."""
        if self._only is not None and not self._only.columns:
            return iter(())
        keyed, names = self._keyed, [ref.name for ref in self._keyed.files]
        first, last = max(first, keyed.key_group_first), min(last, keyed.key_group_last)
        return segments_in(self._files, names, state, keyed.max_parallelism, first, last, columns)


def rows_told(keyed: KeyedSnapshot, store: ObjectStore, state: str) -> int | None:
    """How many rows a columnar state has, where the heads of its files tell; None where its rows have to be read."""
    found: list[tuple[int, Header]] = []
    for ref in keyed.files:
        number = segment_number(ref.name)
        if number is not None:
            fixed = _part_of(ref, store, 0, FIXED_BYTES)
            header, _ = decode_header(
                fixed + _part_of(ref, store, FIXED_BYTES, header_bytes(fixed, ref.name)), ref.name
            )
            if header.state == state:
                found.append((number, header))
    return rows_by_headers([header for _, header in sorted(found, key=lambda each: each[0])]) if found else None


def _part_of(ref: FileRef, store: ObjectStore, start: int, size: int) -> bytes:
    """Checked by what is in it: its file has a hash of all bytes only."""
    if ref.inline is not None:
        return ref.inline[start : start + size]
    assert ref.key is not None
    return store.get(ref.key, ref.offset + start, min(size, ref.size - start))
