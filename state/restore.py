"""Carries out a `RestorePlan`: from snapshots to an open key-value store that holds this subtask's key groups.

Files come from a local copy when the slot still has exactly them, else from the object store, every byte hashed before
anything opens it. A snapshot that fits as it is gets linked into a fresh folder and opened; otherwise the entries in
range are copied into a fresh database.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from state.errors import InvalidJob
from state.kv_store import Entry, KvStore
from state.local_copies import LocalCopies
from state.memory_kv import RECORDS_FILE, MemoryKv, read_records
from state.object_store import ObjectStore
from state.restore_plan import RestorePart, RestorePlan
from state.rocksdb_kv import RocksDbKv, SlotMemory, link_database
from state.shard import range_end, range_start
from state.snapshot import KeyedSnapshot
from state.snapshot_files import download

BackendKind = Literal["rocksdb", "memory"]
_COPY_SLICE = 2_000


@dataclass(frozen=True)
class RestoreFrom:
    """Where files may be found and where they go. `directory` belongs to this incarnation of the subtask."""

    operator: str
    store: ObjectStore
    copies: LocalCopies
    directory: Path
    memory: SlotMemory


def restore(kind: BackendKind, plan: RestorePlan, source: RestoreFrom) -> KvStore:
    """Raises `Corrupt` when stored bytes are wrong, `Unavailable` when they cannot be had now."""
    if kind not in _OPENERS:
        raise InvalidJob(f"there is no state backend {kind!r}: use 'rocksdb' or 'memory'")
    database = source.directory / "db"
    fetched = source.directory / "fetched"
    try:
        adopted = plan.adopts(kind)
        if adopted is not None:
            files = _files_of(plan.parts[0], source, fetched)
            return _OPENERS[kind](adopted, files, database, source.memory)
        kv: KvStore = MemoryKv() if kind == "memory" else RocksDbKv(database, source.memory)
        for number, part in enumerate(plan.parts):
            _copy_part(part, kv, source, fetched, number)
        return kv
    finally:
        shutil.rmtree(fetched, ignore_errors=True)


def _files_of(part: RestorePart, source: RestoreFrom, fetched: Path) -> Path:
    copy = source.copies.find(source.operator, part.subtask, part.keyed.files)
    if copy is not None:
        return copy.directory
    target = fetched / str(part.subtask)
    download(source.store, part.keyed.files, target)
    return target


def _copy_part(part: RestorePart, kv: KvStore, source: RestoreFrom, fetched: Path, number: int) -> None:
    """Entries of the part's key groups into `kv`, foreign ones left out, state ids translated."""
    files = _files_of(part, source, fetched)
    open_it = _OPENERS.get(part.keyed.backend)
    if open_it is None:
        raise InvalidJob(
            f"the state of {source.operator} was written by a backend {part.keyed.backend!r} that this version does "
            "not know: restore it with the version that wrote it"
        )
    old = open_it(part.keyed, files, fetched / f"open-{number}", source.memory)
    try:
        entries: list[Entry] = []
        for key, value in old.scan(range_start(part.first), range_end(part.last)):
            state_id = part.state_ids.get(int.from_bytes(key[2:4], "big"))
            if state_id is None:
                continue
            entries.append((key[:2] + state_id.to_bytes(2, "big") + key[4:], value))
            if len(entries) >= _COPY_SLICE:
                kv.write(entries)
                entries = []
        if entries:
            kv.write(entries)
    finally:
        old.close()


def _open_rocksdb(keyed: KeyedSnapshot, files: Path, target: Path, memory: SlotMemory) -> KvStore:
    link_database(files, [ref.name for ref in keyed.files], target)
    return RocksDbKv(target, memory)


def _open_memory(keyed: KeyedSnapshot, files: Path, target: Path, memory: SlotMemory) -> KvStore:
    return read_records(files / RECORDS_FILE)


_OPENERS: dict[str, Callable[[KeyedSnapshot, Path, Path, SlotMemory], KvStore]] = {
    "rocksdb": _open_rocksdb,
    "memory": _open_memory,
}
