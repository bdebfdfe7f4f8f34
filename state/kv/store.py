"""Interface of the key-value store below keyed state.

`write` and `flush` are never called by two threads at a time; `flush` and `checkpoint` run on a worker thread while the
loop does not `write`. Reads may run at any time.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt, Unavailable

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
