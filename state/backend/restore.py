"""Carries out a `RestorePlan`: opens a key-value store with this subtask's key groups.

Every byte is hashed before a file is opened. `snapshots/plan` says which databases are opened (side by side:
docs/design/side-by-side-databases.md) and which are copied by entry.

Keys of other subtasks are deleted, not hidden: otherwise their later owner would find, in this subtask's snapshot,
keys deleted meanwhile. The first checkpoint refers to reusable files instead of uploading them:

| the database is …    | files                                            | segments                   |
|----------------------|--------------------------------------------------|----------------------------|
| opened unchanged     | linked: reusable                                 | linked: reusable           |
| opened, and narrowed | linked: reusable, named after the current number | written anew: not reusable |
| copied               | not linked                                       | written anew: not reusable |
"""

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from barrier_runtime.state.columns.segment_set import SegmentsOf, copy_segments, link_segments
from barrier_runtime.state.errors import InvalidJob
from barrier_runtime.state.kv.key_ranges import RANGES_FILE, KeyRanges, read_ranges
from barrier_runtime.state.kv.rocksdb import RocksDbKv, SlotMemory
from barrier_runtime.state.kv.side_by_side import Database, SideBySide, link_database
from barrier_runtime.state.kv.store import RECORDS_FILE, Entry, KvStore, MemoryKv, read_records
from barrier_runtime.state.scratch import beside_name, database_of, segment_number
from barrier_runtime.state.snapshots.local_copies import LocalCopies
from barrier_runtime.state.snapshots.plan import (
    OpenedDatabases,
    RestorePart,
    RestorePlan,
    StoredDatabase,
    is_immutable,
    opened_databases,
    stored_databases,
)
from barrier_runtime.state.snapshots.snapshot import FileRef, KeyedSnapshot
from barrier_runtime.state.snapshots.transfer import download
from barrier_runtime.state.store.object_store import ObjectStore

DATABASE, BESIDE, SEGMENTS = "db", "beside", "segments"  # folders of an incarnation
_COPY_SLICE = 2_000


class KvBackend(Protocol):
    """Databases up to `copied_bytes` are copied."""

    @property
    def copied_bytes(self) -> int: ...

    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        """`directory`: if a folder is needed."""
        ...

    def adopt(
        self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory, database: int = 0
    ) -> KvStore:
        """Opens a store with the content of the snapshot's `files`, in `directory`, which must not exist yet.

        Links to files are allowed, changes are not. `database`: number of the side-by-side database.
        """
        ...


@dataclass(frozen=True)
class RestoreSite:
    operator: str
    store: ObjectStore
    copies: LocalCopies
    directory: Path
    memory: SlotMemory
    downloads_at_once: int = 4


@dataclass(frozen=True)
class Opened:
    kv: KvStore
    reusable: tuple[FileRef, ...] = ()  # stored files that the incarnation has


def restore(kind: str, plan: RestorePlan, source: RestoreSite) -> Opened:
    """Raises `Corrupt` if stored bytes are wrong, `Unavailable` if they cannot be read now."""
    if kind not in BACKENDS:
        raise InvalidJob(f"there is no state backend {kind!r}: use 'rocksdb' or 'memory'")
    backend = BACKENDS[kind]
    fetched = source.directory / "fetched"
    try:
        found = {part.subtask: _files_of(part, source, fetched) for part in plan.parts}
        databases = [
            database
            for part in plan.parts
            for database in stored_databases(part, ranges_in(found[part.subtask], part.keyed))
        ]
        chosen = opened_databases(plan, kind, databases, backend.copied_bytes)
        with ExitStack() as undone:
            stores: dict[int, KvStore] = {}
            for number, database in chosen.opened.items():
                files = found[database.part.subtask]
                stores[number] = backend.adopt(
                    database.part.keyed, files, _folder(source, number), source.memory, database.number
                )
                undone.callback(stores[number].close)
                for start, end in database.foreign:
                    stores[number].delete_range(start, end)
            if 0 not in stores:
                stores[0] = backend.fresh(_folder(source, 0), source.memory)
                undone.callback(stores[0].close)
            for at, database in enumerate(chosen.copied):
                _copy(database, found[database.part.subtask], stores[0], source, fetched / f"open-{at}")
            _take_segments(plan, kind, found, source)
            undone.pop_all()
        others = [Database(number, store, _folder(source, number)) for number, store in stores.items() if number]
        kv = SideBySide(stores[0], others, chosen.ranges) if others else stores[0]
        return Opened(kv, _reusable(chosen, plan.adopts(kind)))
    finally:
        shutil.rmtree(fetched, ignore_errors=True)


def ranges_in(files: Path, keyed: KeyedSnapshot) -> KeyRanges:
    if all(ref.name != RANGES_FILE for ref in keyed.files):
        return KeyRanges()
    return read_ranges((files / RANGES_FILE).read_bytes(), str(files / RANGES_FILE))


def _folder(source: RestoreSite, database: int) -> Path:
    return source.directory / DATABASE if database == 0 else source.directory / BESIDE / str(database)


def _take_segments(plan: RestorePlan, kind: str, found: Mapping[int, Path], source: RestoreSite) -> None:
    target = source.directory / SEGMENTS
    adopted = plan.adopts(kind)
    if adopted is not None:
        link_segments(found[plan.parts[0].subtask], [ref.name for ref in adopted.files], target)
        return
    segments = [
        SegmentsOf(found[part.subtask], [ref.name for ref in part.keyed.files], part.first, part.last)
        for part in plan.parts
    ]
    copy_segments(segments, target, plan.max_parallelism)


def _reusable(chosen: OpenedDatabases, adopted: KeyedSnapshot | None) -> tuple[FileRef, ...]:
    refs = [ref for ref in adopted.files if segment_number(ref.name) is not None] if adopted is not None else []
    for number, database in chosen.opened.items():
        names = set(database.names)
        for ref in database.part.keyed.files:
            if ref.name in names and is_immutable(ref.name):
                refs.append(replace(ref, name=beside_name(number, database_of(ref.name)[1])))
    return tuple(refs)


def _files_of(part: RestorePart, source: RestoreSite, fetched: Path) -> Path:
    copy = source.copies.find(source.operator, part.subtask, part.keyed.files)
    if copy is not None:
        return copy.directory
    target = fetched / str(part.subtask)
    target.mkdir(parents=True, mode=0o700)

    def here(ref: FileRef) -> bool:
        return _linked(source.copies.place_of(ref), target / ref.name)

    missing = [ref for ref in part.keyed.files if not here(ref)]
    for ref in missing:
        source.copies.wait_for(ref)
    missing = [ref for ref in missing if not here(ref)]  # files may have arrived just before the wait
    download(source.store, missing, target, source.downloads_at_once)
    return target


def _linked(place: Path | None, target: Path) -> bool:
    if place is None:
        return False
    try:
        os.link(place, target)
    except OSError:  # deleted meanwhile, or on another disk
        return False
    return True


def _copy(database: StoredDatabase, files: Path, kv: KvStore, source: RestoreSite, directory: Path) -> None:
    part = database.part
    backend = BACKENDS.get(part.keyed.backend)
    if backend is None:
        raise InvalidJob(
            f"the state of {source.operator} was written by a backend {part.keyed.backend!r} that this version does "
            "not know: restore it with the version that wrote it"
        )
    old = backend.adopt(part.keyed, files, directory, source.memory, database.number)
    try:
        entries: list[Entry] = []
        ids = {before.to_bytes(2, "big"): now.to_bytes(2, "big") for before, now in part.state_ids.items()}
        for entry in chain.from_iterable(old.scan(start, end) for start, end in database.wanted):
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
    # Copying this much takes as long as opening another database, 5 to 10 ms.
    copied_bytes = 128 << 10

    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        return RocksDbKv(directory, memory, once=True)

    def adopt(
        self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory, database: int = 0
    ) -> KvStore:
        link_database(files, [ref.name for ref in keyed.files], directory, database)
        return RocksDbKv(directory, memory, once=True)


class _MemoryBackend:
    """A single file, read whole, so side-by-side stores gain nothing."""

    copied_bytes = sys.maxsize

    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        return MemoryKv()

    def adopt(
        self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory, database: int = 0
    ) -> KvStore:
        return read_records(files / RECORDS_FILE)


BACKENDS: dict[str, KvBackend] = {"rocksdb": _RocksDbBackend(), "memory": _MemoryBackend()}


def opened_whole(
    keyed: KeyedSnapshot, files: Path, directory: Path, open_one: Callable[[int, Path], KvStore]
) -> KvStore:
    ranges = ranges_in(files, keyed)
    stores = {number: open_one(number, directory / str(number)) for number in {0, *ranges.numbers()}}
    others = [Database(number, store, directory / str(number)) for number, store in stores.items() if number]
    return SideBySide(stores[0], others, ranges) if others else stores[0]
