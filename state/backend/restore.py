"""Carries out a `RestorePlan`: from snapshots to an open key-value store that holds this subtask's key groups.

Files come from a local copy when the slot still has exactly them, else from the object store, every byte hashed before
anything opens it. A snapshot that fits as it is gets linked into a fresh folder and opened. At another parallelism the
one of which most is wanted, at least half, is opened, too, and foreign key groups are deleted from it by two range
tombstones, whatever their size; entries of other snapshots are copied into it. Where no snapshot is wanted so much, all
are copied into a fresh database.

What is linked, and never changes, is a file of the incarnation from then on, under the name that it had. So its first
checkpoint names the stored files again and uploads what is new alone (`Opened.reusable`), in each of these cases:

| the snapshot is …            | files of the database | segments        |
|------------------------------|-----------------------|-----------------|
| opened as it is              | linked: reusable      | linked: reusable |
| opened, and narrowed         | linked: reusable      | written anew under the same names: not |
| one whose entries are copied | not linked            | written anew    |

A narrowed one is reusable whole: what it has of foreign key groups is hidden by tombstones in a file that is new.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from barrier_runtime.state.columns.segment_set import SegmentsOf, copy_segments, link_segments
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.file_links import segment_number
from barrier_runtime.state.kv.memory import RECORDS_FILE, MemoryKv, read_records
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory, link_database
from barrier_runtime.state.kv.shard import range_end, range_start
from barrier_runtime.state.kv.store import Entry, KvStore
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import is_immutable
from barrier_runtime.state.snapshots.restore_plan import RestorePart, RestorePlan
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot
from barrier_runtime.state.snapshots.transfer import download
from barrier_runtime.state.store.object_store import ObjectStore

BackendKind = Literal["rocksdb", "memory"]  # those for users
DATABASE, SEGMENTS = "db", "segments"  # folders of an incarnation
_COPY_SLICE = 2_000


class KvBackend(Protocol):
    """One kind of key-value store: how it begins, with nothing or with the files of a snapshot."""

    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        """An empty store, in `directory` if it needs one."""
        ...

    def adopt(self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory) -> KvStore:
        """A store in `directory` (which must not exist yet) with what the snapshot's files in `files` hold; these may
        be linked and must stay as they are."""
        ...


@dataclass(frozen=True)
class RestoreSite:
    """Where files may be found and where they go. `directory` belongs to this incarnation of the subtask."""

    operator: str
    store: ObjectStore
    copies: LocalCopies
    directory: Path
    memory: SlotMemory
    downloads_at_once: int = 4


@dataclass(frozen=True)
class Opened:
    kv: KvStore
    reusable: tuple[FileRef, ...] = ()  # stored files that the incarnation has, under the same names


def restore(kind: str, plan: RestorePlan, source: RestoreSite) -> Opened:
    """Raises `Corrupt` when stored bytes are wrong, `Unavailable` when they cannot be had now."""
    if kind not in BACKENDS:
        raise InvalidJob(f"there is no state backend {kind!r}: use 'rocksdb' or 'memory'")
    database = source.directory / DATABASE
    fetched = source.directory / "fetched"
    try:
        adopted = plan.adopts(kind)
        if adopted is not None:
            files = _files_of(plan.parts[0], source, fetched)
            link_segments(files, [ref.name for ref in adopted.files], source.directory / SEGMENTS)
            return Opened(BACKENDS[kind].adopt(adopted, files, database, source.memory), _never_change(adopted))
        narrowed = plan.narrows(kind)
        reusable: tuple[FileRef, ...] = ()
        found = [(part, _files_of(part, source, fetched)) for part in plan.parts]
        if narrowed is None:
            kv = BACKENDS[kind].fresh(database, source.memory)
        else:
            files = next(files for part, files in found if part is narrowed)
            kv = BACKENDS[kind].adopt(narrowed.keyed, files, database, source.memory)
            _narrow(kv, narrowed)
            reusable = tuple(ref for ref in _never_change(narrowed.keyed) if segment_number(ref.name) is None)
        for number, (part, files) in enumerate(found):
            if part is not narrowed:
                _copy_part(part, files, kv, source, fetched / f"open-{number}")
        segments = [
            SegmentsOf(files, [ref.name for ref in part.keyed.files], part.first, part.last) for part, files in found
        ]
        copy_segments(segments, source.directory / SEGMENTS, plan.max_parallelism)
        return Opened(kv, reusable)
    finally:
        shutil.rmtree(fetched, ignore_errors=True)


def _never_change(keyed: KeyedSnapshot) -> tuple[FileRef, ...]:
    return tuple(ref for ref in keyed.files if is_immutable(ref.name))


def _narrow(kv: KvStore, part: RestorePart) -> None:
    """Of an opened snapshot, only the part's key groups stay. What is beyond would be met again when this subtask's
    snapshot is opened by one that owns it, after its owner has deleted it."""
    if part.first > part.keyed.key_group_first:
        kv.delete_range(range_start(part.keyed.key_group_first), range_start(part.first))
    if part.last < part.keyed.key_group_last:
        kv.delete_range(range_end(part.last), range_end(part.keyed.key_group_last))


def _files_of(part: RestorePart, source: RestoreSite, fetched: Path) -> Path:
    copy = source.copies.find(source.operator, part.subtask, part.keyed.files)
    if copy is not None:
        return copy.directory
    target = fetched / str(part.subtask)
    target.mkdir(parents=True, mode=0o700)
    missing = [ref for ref in part.keyed.files if not _linked(source.copies.place_of(ref), target / ref.name)]
    download(source.store, missing, target, source.downloads_at_once)
    return target


def _linked(place: Path | None, target: Path) -> bool:
    """Whether the bytes were here, and are in `target` now."""
    if place is None:
        return False
    try:
        os.link(place, target)
    except OSError:  # it went just now, or the folders are of different disks
        return False
    return True


def _copy_part(part: RestorePart, files: Path, kv: KvStore, source: RestoreSite, directory: Path) -> None:
    """Entries of the part's key groups into `kv`, foreign ones left out, state ids translated."""
    backend = BACKENDS.get(part.keyed.backend)
    if backend is None:
        raise InvalidJob(
            f"the state of {source.operator} was written by a backend {part.keyed.backend!r} that this version does "
            "not know: restore it with the version that wrote it"
        )
    old = backend.adopt(part.keyed, files, directory, source.memory)
    try:
        entries: list[Entry] = []
        ids = {before.to_bytes(2, "big"): now.to_bytes(2, "big") for before, now in part.state_ids.items()}
        for entry in old.scan(range_start(part.first), range_end(part.last)):
            key = entry[0]
            before = key[2:4]
            now = ids.get(before)
            if now is None:
                continue
            entries.append(entry if now == before else (key[:2] + now + key[4:], entry[1]))
            if len(entries) >= _COPY_SLICE:
                kv.write(entries)
                entries = []
        if entries:
            kv.write(entries)
    finally:
        old.close()


class _RocksDbBackend:
    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        return RocksDbKv(directory, memory)

    def adopt(self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory) -> KvStore:
        link_database(files, [ref.name for ref in keyed.files], directory)
        return RocksDbKv(directory, memory)


class _MemoryBackend:
    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        return MemoryKv()

    def adopt(self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory) -> KvStore:
        return read_records(files / RECORDS_FILE)


BACKENDS: dict[str, KvBackend] = {"rocksdb": _RocksDbBackend(), "memory": _MemoryBackend()}
