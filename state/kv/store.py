"""Interface of the key-value store below keyed state, and the store in memory.

`write` and `flush` are never called by two threads at a time; `flush` and `checkpoint` run on a worker thread while the
loop does not `write`. Reads may run at any time.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Unavailable
from barrier_runtime.state.versioned import Format, check_magic

Entry = tuple[bytes, bytes | None]  # key, value; None deletes


class KvStore(Protocol):
    @property
    def kind(self) -> str: ...

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]: ...

    def write(self, entries: Sequence[Entry]) -> None:
        """Applies all entries, in order."""
        ...

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Deletes all entries with start <= key < end. Counts as a `write`."""
        ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yields entries with start <= key < end, in key order. Concurrent writes may be missed."""
        ...

    def flush(self) -> None: ...

    def checkpoint(self, directory: Path) -> None:
        """Writes the current content to the new folder `directory`, sharing files if possible."""
        ...

    def compact(self) -> None:
        """Reclaims space. May take long; other methods may run meanwhile."""
        ...

    @property
    def compacts(self) -> bool: ...

    def memory_bytes(self) -> int:
        """Size without the part shared by the slot's databases."""
        ...

    @property
    def closes_soon(self) -> bool:
        """Returns whether `close` waits for no held compaction."""
        ...

    def close(self) -> None: ...


def is_full_disk(error: Exception) -> bool:
    return "No space left on device" in str(error)


def trouble(what: str, error: Exception) -> BarrierRuntimeError:
    text = str(error)
    if "orruption" in text:
        return Corrupt(f"{what}: {text}; restore from another checkpoint, or check this machine's disk")
    if is_full_disk(error):
        return Unavailable(f"{what}: {text}; free some disk space, it is tried again")
    if "While lock file" in text or "lock hold by" in text:  # a folder's name may contain "lock"
        return Unavailable(f"{what}: {text}; another process still holds it, it is tried in a fresh folder")
    return Unavailable(f"{what}: {text}; it is tried again")


# Key-value store in memory, for tests, local runs and tiny state.
#
# File: magic, then per entry key length, value length (4 bytes each, big endian), key, value; in key order; then a
# count.

RECORDS_FILE = "records.kv"
RECORDS_VERSION = 1
_MAGIC = b"barrier-kv-%d\n" % RECORDS_VERSION
_FORMAT = Format("file of state records {}", RECORDS_VERSION, damaged="restore from another checkpoint")
_lengths = struct.Struct(">II")
_count = struct.Struct(">Q")


class MemoryKv:
    kind = "memory"

    def __init__(self) -> None:
        self._entries: dict[bytes, bytes] = {}
        self._sorted: list[bytes] | None = None  # keys in order; None: unsorted
        self._bytes = 0

    def get(self, key: bytes) -> bytes | None:
        return self._entries.get(key)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return list(map(self._entries.get, keys))

    def write(self, entries: Sequence[Entry]) -> None:
        stored = self._entries
        for key, value in entries:
            old = stored.get(key)
            if old is not None:
                self._bytes -= len(key) + len(old)
            if value is not None:
                stored[key] = value
                self._bytes += len(key) + len(value)
            elif old is not None:
                del stored[key]
            if old is None and value is not None:
                self._sorted = None  # deleted keys may remain: scans skip them

    def delete_range(self, start: bytes, end: bytes) -> None:
        self.write([(key, None) for key, _ in list(self.scan(start, end))])

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        if self._sorted is None:
            self._sorted = sorted(self._entries)
        keys = self._sorted  # replaced by writes, never changed
        for position in range(bisect_left(keys, start), bisect_left(keys, end)):
            value = self._entries.get(keys[position])
            if value is not None:
                yield keys[position], value

    def flush(self) -> None:
        """Does nothing: no write is ever pending."""

    def checkpoint(self, directory: Path) -> None:
        entries = sorted(self._entries.items())
        directory.mkdir(mode=0o700)
        with (directory / RECORDS_FILE).open("xb") as file:
            file.write(_MAGIC)
            for key, value in entries:
                file.write(_lengths.pack(len(key), len(value)) + key + value)
            file.write(_count.pack(len(entries)))

    def compact(self) -> None:
        """Does nothing: deleted entries take no space."""

    @property
    def compacts(self) -> bool:
        return False

    def memory_bytes(self) -> int:
        return self._bytes + 200 * len(self._entries)

    @property
    def closes_soon(self) -> bool:
        return True

    def close(self) -> None:
        self._entries = {}
        self._sorted = None
        self._bytes = 0


def read_records(path: Path) -> MemoryKv:
    data = path.read_bytes()
    end = len(data) - _count.size
    check_magic(data, _MAGIC, _FORMAT, str(path))
    if end < len(_MAGIC):
        raise _FORMAT.unreadable("it is too short", str(path))
    at, entries = len(_MAGIC), {}
    while at < end:
        if at + _lengths.size > end:
            raise _FORMAT.unreadable("it ends within an entry", str(path))
        key_length, value_length = _lengths.unpack_from(data, at)
        at += _lengths.size
        entries[data[at : at + key_length]] = data[at + key_length : at + key_length + value_length]
        at += key_length + value_length
    if at != end or _count.unpack_from(data, end)[0] != len(entries):
        raise _FORMAT.unreadable("it has other entries than it says", str(path))
    store = MemoryKv()
    store.write(list(entries.items()))
    return store
