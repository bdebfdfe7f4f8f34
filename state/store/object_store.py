"""Interface and contract of object storage. Calls block: call them off the event loop.

Contract, for every implementation (docs/design/object-stores.md):
- Keys are relative, `/`-separated, of safe segments (no empty, `.` or `..` segment, no backslash, at most 1,024 bytes).
- Read-after-write: after a `put` has returned, every later `get` from anywhere sees the object.
- `put_if_absent` is a linearizable create: at most one of all callers for a key ever gets CREATED, and a stale call
  never replaces an object. The call never retries; after UNKNOWN the bytes may exist now, later or never.
- Correctness never depends on `list`, whose answer may be stale or partial. No HEAD before PUT.
- `Unavailable` means that a retry may succeed, `InvalidJob` that a person must act (no such bucket, no permission),
  `ObjectNotFound` that the key is absent.
"""

import enum
import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from barrier_runtime.state.errors import BarrierRuntimeError, Corrupt


class ObjectNotFound(BarrierRuntimeError):
    """No object has this key."""


class ObjectChanged(BarrierRuntimeError):
    """The object is not the requested version."""


class RangeBehindEnd(BarrierRuntimeError):
    """The requested range starts at or after the end of the object."""


class PutOutcome(enum.Enum):
    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ObjectInfo:
    key: str
    size: int  # bytes
    modified_ms: int  # wall clock of the store
    etag: str = ""  # version of the content; empty: the store names no versions


class ObjectStore(Protocol):
    @property
    def url(self) -> str:
        """Root of all keys, e.g. `file:///data/ckpt` or `s3://bucket/prefix`. Contains no secret."""
        ...

    def put(self, key: str, data: bytes) -> None: ...

    def put_file(self, key: str, path: Path) -> None: ...

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome: ...

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes: ...

    def get_file(self, key: str, path: Path) -> None:
        """`path`: a new file."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]: ...

    def delete(self, keys: Iterable[str]) -> None:
        """Absent keys are ignored."""
        ...

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        """Makes `staged` (content hash `sha256`) visible as `final`, atomically; deletes `staged`.

        `fresh`: nobody has tried to publish `final` before, so no check is needed.

        Idempotent: succeeds if `final` already has the same content, with or without `staged`. Raises `Corrupt` if
        `final` has other content, `ObjectNotFound` if both are absent.
        """
        ...


@runtime_checkable
class ReadsVersions(Protocol):
    """Refuses to read an object replaced after the listing."""

    def get_version(self, key: str, etag: str, offset: int, size: int) -> bytes | memoryview:
        """As `get`, without a copy of the client's bytes. `etag`: of `ObjectInfo`.

        Raises `ObjectChanged` for another version; for a deleted object `ObjectChanged` or `ObjectNotFound`.
        """
        ...


@runtime_checkable
class CopiesStaged(Protocol):
    """Publishes by a copy: the staged object may be deleted later."""

    def show(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        """As `publish`, but keeps `staged`."""
        ...


@runtime_checkable
class HasFolders(Protocol):
    """Names folders below a prefix without listing their objects."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Yields the name of each folder directly below `prefix`, which ends with a slash."""
        ...


@runtime_checkable
class LinksFiles(Protocol):
    """A store of files of this machine, which may be linked.

    As `get_file` and `put_file`, by a hard link; False if linking is impossible, as between two disks.
    """

    def link_file(self, key: str, path: Path) -> bool: ...

    def put_link(self, key: str, path: Path) -> bool: ...


def folders_in(store: ObjectStore, prefix: str) -> list[str]:
    if isinstance(store, HasFolders):
        return sorted(store.folders(prefix))
    below = (info.key[len(prefix) :] for info in store.list(prefix))
    return sorted({key.split("/", 1)[0] for key in below if "/" in key})


def side_by_side(store: ObjectStore, most: int) -> int:
    """Number of concurrent requests: `most`, or the store's own limit if lower."""
    return min(most, getattr(store, "requests_at_once", most))


def sha256_of(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def check_published(store: ObjectStore, staged: str, final: str, expected: str, found: str | None) -> None:
    """Raises unless the content of `final` has the hash `expected`."""
    if found is None:
        raise ObjectNotFound(f"neither {store.url}/{staged} nor {store.url}/{final} is there")
    if found != expected:
        raise Corrupt(
            f"{store.url}/{final} has other content than was staged: expected sha256 {expected}, found {found}; "
            "if another writer uses this name, give this sink a location of its own"
        )


def get_or_none(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


@runtime_checkable
class CopiesItself(Protocol):
    """A store that copies without this process reading the bytes."""

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """Returns False if impossible. `beside_work`: copies slowly, because other work goes first."""
        ...


def _unchecked(path: Path) -> None:
    """Accepts every file."""


def copy_object(
    source: ObjectStore,
    key: str,
    target: ObjectStore,
    to: str,
    check: Callable[[Path], None] = _unchecked,
    *,
    beside_work: bool = False,
) -> None:
    """Copies by the store itself if possible.

    Raises `ObjectNotFound` if the object is absent. `check` raises if the downloaded file is wrong, before anything is
    written. A copy by the store itself is not checked.
    """
    if isinstance(target, CopiesItself) and target.copy_from(source, key, to, beside_work):
        return
    with tempfile.TemporaryDirectory(prefix="barrier-copy-") as folder:
        path = Path(folder) / "object"
        source.get_file(key, path)
        check(path)
        target.put_file(to, path)
