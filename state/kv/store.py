"""The key-value store below keyed state: the interface. Bytes in, bytes out; it knows nothing of keys or states.

`write` and `flush` are called by one thread at a time; `flush` and `checkpoint` run on a worker thread while the loop
does no `write`. Gets may run at any time.

What an error of RocksDB is for who uses a database: damaged, or to be tried again; with the remedy.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Unavailable

Entry = tuple[bytes, bytes | None]  # key, value; a value of None deletes


class KvStore(Protocol):
    @property
    def kind(self) -> str:
        """What a snapshot calls it: "rocksdb" or "memory"."""
        ...

    def get(self, key: bytes) -> bytes | None: ...

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """`get` of each, which takes less than that many calls."""
        ...

    def write(self, entries: Sequence[Entry]) -> None:
        """Apply all entries, in order."""
        ...

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all entries with start <= key < end. As a `write`, and as quick however many they are."""
        ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Entries with start <= key < end, in key order. What is written meanwhile may or may not be seen."""
        ...

    def flush(self) -> None:
        """Bring what is in memory into files, so that `checkpoint` has little to do."""
        ...

    def checkpoint(self, directory: Path) -> None:
        """Put this moment's content into `directory`, which must not exist yet, sharing files where it can."""
        ...

    def compact(self) -> None:
        """Give back the room of what was deleted. May take long; other methods may be called meanwhile."""
        ...

    @property
    def compacts(self) -> bool:
        """Files are being merged into others just now."""
        ...

    def memory_bytes(self) -> int:
        """What this store holds in memory besides what its slot shares."""
        ...

    @property
    def closes_soon(self) -> bool:
        """`close` waits for nothing that is held back."""
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
    if "While lock file" in text or "lock hold by" in text:  # not just "lock": folders may be called so
        return Unavailable(f"{what}: {text}; another process still holds it, it is tried in a fresh folder")
    return Unavailable(f"{what}: {text}; it is tried again")
