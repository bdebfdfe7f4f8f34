"""In-memory key-value store with snapshot files like RocksDB's.

A flush writes the memtable as a new SST; sometimes a compaction merges all. An opened snapshot continues the manifest's
numbering, so a restore of an older state reuses names for other bytes.
"""

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from barrier_runtime.state.backend.restore import BACKENDS
from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.kv.rocksdb import SlotMemory
from barrier_runtime.state.kv.side_by_side import link_database
from barrier_runtime.state.kv.store import Entry, KvStore, MemoryKv
from barrier_runtime.state.snapshots.snapshot import KeyedSnapshot
from barrier_runtime.testing.simulation.loop import Simulation

_lengths = struct.Struct(">Ii")
_MAGIC = b"sst1"
_FIRST_MANIFEST, _FIRST_OPTIONS, _FIRST_SST = 5, 7, 8


class LsmKv:
    """Argument `compact` draws whether to compact, after a flush and for `compacts`."""

    kind = "lsm"

    def __init__(
        self,
        directory: Path,
        compact: Callable[[], bool],
        content: MemoryKv,
        live: list[int],
        next_number: int,
        manifest: int,
    ) -> None:
        self._directory = str(directory)
        self._compact = compact
        self._content = content
        self._memtable: dict[bytes, bytes | None] = {}
        self._live = live
        self._next_number = next_number
        self._manifest = f"MANIFEST-{manifest:06d}"
        self._options = f"OPTIONS-{manifest + _FIRST_OPTIONS - _FIRST_MANIFEST:06d}"
        _write(f"{self._directory}/{self._options}", b"lsm")
        _write(f"{self._directory}/CURRENT", self._manifest.encode())

    def get(self, key: bytes) -> bytes | None:
        return self._content.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self._content.get_many(keys)

    def write(self, entries: Sequence[Entry]) -> None:
        self._content.write(entries)
        self._memtable.update(entries)

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.write([(key, None) for key, _ in list(self._content.scan(start, end))])

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._content.scan(start, end)

    def flush(self) -> None:
        if self._memtable:
            self._write_sst(sorted(self._memtable.items()))
            self._memtable = {}
        if len(self._live) > 1 and self._compact():
            merged, self._live = self._live, []
            self._write_sst(list(self._content.scan(b"", b"\xff" * 64)))
            for number in merged:
                os.unlink(f"{self._directory}/{_sst(number)}")

    def checkpoint(self, directory: Path) -> None:
        self.flush()
        os.mkdir(directory, 0o700)
        target = str(directory)
        for name in ("CURRENT", self._options, *map(_sst, self._live)):
            os.link(f"{self._directory}/{name}", f"{target}/{name}")
        listed = ",".join(str(number) for number in self._live)
        _write(f"{target}/{self._manifest}", f"{self._next_number};{listed}".encode())

    def compact(self) -> None:
        """Does nothing: only flushes compact, by chance."""

    @property
    def compacts(self) -> bool:
        return self._compact()

    def memory_bytes(self) -> int:
        return 0

    @property
    def closes_soon(self) -> bool:
        return True

    def close(self) -> None:
        self._content.close()

    def _write_sst(self, entries: Sequence[Entry]) -> None:
        number, self._next_number = self._next_number, self._next_number + 1
        parts = [_MAGIC]
        for key, value in entries:
            parts += [_lengths.pack(len(key), -1 if value is None else len(value)), key, value or b""]
        _write(f"{self._directory}/{_sst(number)}", b"".join(parts))
        self._live.append(number)


class LsmBackend:
    """For the registry in `state.backend.restore`. Nonempty databases are opened side by side."""

    copied_bytes = 0

    def __init__(self, compact: Callable[[], bool]) -> None:
        self._compact = compact

    def fresh(self, directory: Path, memory: SlotMemory) -> KvStore:
        directory.mkdir(mode=0o700, parents=True)
        return LsmKv(directory, self._compact, MemoryKv(), [], _FIRST_SST, _FIRST_MANIFEST)

    def adopt(
        self, keyed: KeyedSnapshot, files: Path, directory: Path, memory: SlotMemory, database: int = 0
    ) -> KvStore:
        link_database(files, [ref.name for ref in keyed.files], directory, database)
        current = directory / "CURRENT"
        next_number, _, listed = (directory / current.read_text()).read_text().partition(";")
        current.unlink()
        live = [int(number) for number in listed.split(",") if number]
        content = MemoryKv()
        for number in live:
            content.write(_read_sst(directory / _sst(number)))
        opened = int(next_number)
        return LsmKv(directory, self._compact, content, live, opened + 1, opened)


def install(simulation: Simulation) -> None:
    """Registers backend "lsm", with this simulation's chance of compaction."""
    BACKENDS["lsm"] = LsmBackend(lambda: simulation.bits(2) == 0)


def _sst(number: int) -> str:
    return f"{number:06d}.sst"


def _write(path: str, data: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(file, data)
    os.close(file)


def _read_sst(path: Path) -> list[Entry]:
    data = path.read_bytes()
    if not data.startswith(_MAGIC):
        raise Corrupt(f"{path.name} is not an SST of this store: restore from another checkpoint")
    entries: list[Entry] = []
    at = len(_MAGIC)
    while at < len(data):
        key_size, value_size = _lengths.unpack_from(data, at)
        at += _lengths.size
        key = data[at : at + key_size]
        at += key_size
        if value_size < 0:
            entries.append((key, None))
        else:
            entries.append((key, data[at : at + value_size]))
            at += value_size
    return entries
