"""Reads (`StoredPart`) and writes (`WrittenPart`) a subtask's keyed state without the job's program.

With `only`, a reader fetches the blocks with a state's key groups alone, and whole files if RocksDB finds a hole
(docs/design/side-by-side-databases.md). Blocking.
"""

import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from barrier_runtime.state.backend.restore import BACKENDS, opened_whole
from barrier_runtime.state.columns.segment import FIXED_BYTES, Header, Segment, decode_header, header_bytes
from barrier_runtime.state.columns.segment_set import SegmentsWritten, rows_by_headers, segments_in
from barrier_runtime.state.errors import Corrupt, InvalidJob, Unavailable
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.rocksdb_files import (
    FOOTER_BYTES,
    FilePart,
    UnknownLayout,
    blocks_of,
    index_of,
    whole_index,
)
from barrier_runtime.state.kv.shard import MOST_LISTED, Shard, scan_state_lists
from barrier_runtime.state.kv.side_by_side import link_database
from barrier_runtime.state.kv.store import Entry, KvStore
from barrier_runtime.state.scratch import segment_number
from barrier_runtime.state.snapshots.plan import Thresholds, plan_snapshot
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot, StateDescription
from barrier_runtime.state.snapshots.transfer import (
    describe,
    download,
    download_verified,
    in_parallel,
    local_files,
    upload,
)
from barrier_runtime.state.store.memory import MemoryStore
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore

_WHOLE_BYTES = 128 << 10
_TAIL_BYTES = 8 << 10
_TAIL_SHARE = 256  # divides a file's size: the index


def download_range(
    store: ObjectStore, files: Sequence[FileRef], directory: Path, start: bytes, end: bytes, at_once: int = 4
) -> None:
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)

    def fetch(ref: FileRef) -> None:
        path = directory / ref.name
        if not ref.name.endswith(".sst") or ref.key is None or ref.size < _WHOLE_BYTES:
            download_verified(store, ref, path)
            return
        try:
            _download_blocks(_Remote(store, ref), path, start, end)
        except UnknownLayout:
            path.unlink(missing_ok=True)
            download_verified(store, ref, path)

    in_parallel(fetch, files, at_once)


@dataclass(frozen=True)
class _Remote:
    store: ObjectStore
    ref: FileRef

    def read(self, place: FilePart) -> bytes:
        ref, size = self.ref, place.end - place.offset
        if ref.key is None or place.offset < 0 or size < 0 or place.end > ref.size:
            raise UnknownLayout(f"{place} of a file of {ref.size} bytes")
        try:
            data = self.store.get(ref.key, ref.offset + place.offset, size)
        except ObjectNotFound as error:
            raise Corrupt(f"{describe(self.store, ref)} is gone: read another checkpoint") from error
        if len(data) != size:
            raise Unavailable(f"{describe(self.store, ref)}: {len(data)} bytes came of {size}; try again")
        return data


def _download_blocks(remote: _Remote, path: Path, start: bytes, end: bytes) -> None:
    size = remote.ref.size
    tail = _Tail(remote, size, b"")
    footer = tail.part(FilePart(size - max(_TAIL_BYTES, size // _TAIL_SHARE), size))[-FOOTER_BYTES:]
    top = index_of(footer)
    whole = whole_index(tail.part(top), top)
    blocks = blocks_of(tail.part(whole), whole, top, start, end)
    with path.open("xb") as file:
        file.truncate(size)
        file.seek(blocks.offset)
        file.write(remote.read(blocks))
        file.seek(tail.begins)
        file.write(tail.data)


@dataclass
class _Tail:
    remote: _Remote
    begins: int
    data: bytes

    def part(self, place: FilePart) -> bytes:
        offset = max(0, place.offset)
        if offset < self.begins:
            self.data = self.remote.read(FilePart(offset, self.begins)) + self.data
            self.begins = offset
        return self.data[offset - self.begins : place.end - self.begins]


_CACHE_BYTES = 32 << 20
_DOWNLOADS_AT_ONCE = 4
_BEHIND_KEY = b"\xff"  # no key field begins with FF


@dataclass(frozen=True)
class KeyGroups:
    """`first` and `last` are inclusive.

    `columns`: also segments, which are fetched whole. `key`: only entries with this beginning of the encoded key;
    `first` is `last`.
    """

    state: str
    first: int
    last: int
    columns: bool
    key: bytes = b""


class StoredPart:
    """Context manager.

    `directory`: new, and removed at the end. `only`: nothing else is read.
    """

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
                except Corrupt:  # or RocksDB needs an unfetched part
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
        """Yields (whole key, data), in order."""
        return chain.from_iterable(self.entry_lists(state, first, last))

    def entry_lists(self, state: str, first: int = 0, last: int = 0xFFFF) -> Iterator[list[tuple[bytes, bytes]]]:
        keyed, given = self._keyed, b""
        first, last = max(first, keyed.key_group_first), min(last, keyed.key_group_last)
        try:
            for some in self._scanned(keyed.states[state], first, last):
                given = some[-1][0]
                yield some
        except Corrupt:
            if self._only is None:
                raise
            # Damage, or a hole: searches pass over deleted entries, possibly beyond the fetched blocks.
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
        if self._only is not None and not self._only.columns:
            return iter(())
        keyed, names = self._keyed, [ref.name for ref in self._keyed.files]
        first, last = max(first, keyed.key_group_first), min(last, keyed.key_group_last)
        return segments_in(self._files, names, state, keyed.max_parallelism, first, last, columns)


def rows_told(keyed: KeyedSnapshot, store: ObjectStore, state: str) -> int | None:
    """Number of rows, from headers of files; None if the rows must be read."""
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
    """Unchecked: the hash is of the whole file."""
    if ref.inline is not None:
        return ref.inline[start : start + size]
    assert ref.key is not None
    return store.get(ref.key, ref.offset + start, min(size, ref.size - start))


_WRITE_BYTES = 64 << 20


class WrittenPart:
    """Context manager.

    `directory`: new, and removed at the end. `states`: name -> id, which is part of each entry's key.
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
        """Writes entries (whole key, data) of this part's key groups."""
        self._kv.write(entries)

    def add(self, segment: Segment) -> None:
        self._segments.add(segment)

    def inline(self) -> KeyedSnapshot:
        """For small state."""
        return self._uploaded(None, lambda: "", Thresholds(sys.maxsize, sys.maxsize))

    def uploaded(self, store: ObjectStore, new_key: Callable[[], str]) -> KeyedSnapshot:
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
