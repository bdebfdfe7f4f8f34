"""Object storage as the protocol needs it: the interface, with its contract in prose. Blocking; call it off the loop.

Contract, for every implementation
- Keys are relative, `/`-separated, of safe segments (no empty, `.` or `..` segment, no backslash, at most 1,024 bytes).
- Read-after-write: a `put` that returned is seen by every later `get` from anywhere.
- `put_if_absent` is a linearizable create: of any number of callers at most one is ever told CREATED for a key, and a
  stale call can never replace what is there. It tells three outcomes apart and never retries by itself; UNKNOWN means
  the bytes may be there now, later or never.
- No correctness may rest on `list` (it may be stale or partial); no HEAD before PUT.
- `Unavailable` is raised for trouble that a retry may cure, `InvalidJob` for what a person must fix (no such bucket, no
  permission), `ObjectNotFound` for an absent key.

Copying an object from one store to another: by the store itself where both are of one kind, else through a file.
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
    """No object under this key."""


class ObjectChanged(BarrierRuntimeError):
    """The object under this key is not the version that was asked for."""


class RangeBehindEnd(BarrierRuntimeError):
    """The requested range starts at or behind the end of the object: no bytes."""


class PutOutcome(enum.Enum):
    CREATED = "created"
    EXISTS = "exists"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class ObjectInfo:
    key: str
    size: int  # bytes
    modified_ms: int  # wall clock of the store
    etag: str = ""  # version of the content, as the store names it; empty: the store names none


class ObjectStore(Protocol):
    @property
    def url(self) -> str:
        """Root of all keys, e.g. `file:///data/ckpt` or `s3://bucket/prefix`. Carries no secret."""
        ...

    def put(self, key: str, data: bytes) -> None: ...

    def put_file(self, key: str, path: Path) -> None:
        """Upload a local file whole."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> PutOutcome: ...

    def get(self, key: str, offset: int = 0, size: int | None = None) -> bytes: ...

    def get_file(self, key: str, path: Path) -> None:
        """Download a whole object to a local file that must not exist yet."""
        ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]: ...

    def delete(self, keys: Iterable[str]) -> None:
        """Absent keys are no error."""
        ...

    def publish(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        """Make the staged object (content hash `sha256`) visible as `final`, atomically; then drop `staged`.

        `fresh`: nobody has tried to publish `final` before, so a store may skip the look whether `final` is there.

        Idempotent: when `final` is already there with the same content it is success, whether or not `staged` is
        still there. `final` with other content raises `Corrupt`; both absent raises `ObjectNotFound`.
        """
        ...


@runtime_checkable
class ReadsVersions(Protocol):
    """A store that refuses to read an object which was replaced since it was listed."""

    def get_version(self, key: str, etag: str, offset: int, size: int) -> bytes:
        """As `get`, of the version with that `ObjectInfo.etag`. Raises `ObjectChanged` for another version;
        of an object that is gone either that or `ObjectNotFound`."""
        ...


@runtime_checkable
class CopiesStaged(Protocol):
    """A store that publishes by a copy, so that the staged object may be deleted later."""

    def show(self, staged: str, final: str, sha256: str, *, fresh: bool = False) -> None:
        """As `publish`; `staged` stays."""
        ...


@runtime_checkable
class HasFolders(Protocol):
    """A store that can name the folders below a prefix without listing what is in them."""

    def folders(self, prefix: str) -> Iterator[str]:
        """Names, each once, of the folders directly below `prefix`, which ends with a slash."""
        ...


@runtime_checkable
class LinksFiles(Protocol):
    """A store whose objects are files of this machine: what never changes may be one file under two names. False: it
    cannot, as on another disk."""

    def link_file(self, key: str, path: Path) -> bool:
        """As `get_file`."""
        ...

    def put_link(self, key: str, path: Path) -> bool:
        """As `put_file`."""
        ...


def folders_in(store: ObjectStore, prefix: str) -> list[str]:
    """Sorted names of the folders directly below `prefix`, which ends with a slash."""
    if isinstance(store, HasFolders):
        return sorted(store.folders(prefix))
    below = (info.key[len(prefix) :] for info in store.list(prefix))
    return sorted({key.split("/", 1)[0] for key in below if "/" in key})


def side_by_side(store: ObjectStore, most: int) -> int:
    """How many requests to `store` may be under way at a time: `most`, or fewer where the store says so."""
    return min(most, getattr(store, "requests_at_once", most))


def sha256_of(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


def check_published(store: ObjectStore, staged: str, final: str, expected: str, found: str | None) -> None:
    """`found`: the sha256 of what is at `final`, where `staged` should be by now; None: nothing is."""
    if found is None:
        raise ObjectNotFound(f"neither {store.url}/{staged} nor {store.url}/{final} is there")
    if found != expected:
        raise Corrupt(
            f"{store.url}/{final} has other content than was staged: expected sha256 {expected}, found {found}; "
            "if another writer uses this name, give this sink a location of its own"
        )


def get_or_none(store: ObjectStore, key: str) -> bytes | None:
    """The whole object; None when there is none under this key."""
    try:
        return store.get(key)
    except ObjectNotFound:
        return None


@runtime_checkable
class CopiesItself(Protocol):
    """A store that can fetch from another one without this process reading the bytes."""

    def copy_from(self, source: ObjectStore, key: str, to: str, beside_work: bool = False) -> bool:
        """False: not from that one. `beside_work`: others need this machine more."""
        ...


def _unchecked(path: Path) -> None:
    """Nobody knows what it is."""


def copy_object(
    source: ObjectStore,
    key: str,
    target: ObjectStore,
    to: str,
    check: Callable[[Path], None] = _unchecked,
    *,
    beside_work: bool = False,
) -> None:
    """`source`'s object `key` becomes `target`'s object `to`. Raises `ObjectNotFound` if there is none. `check`: raises
    when the bytes that this process has read are not what they should be; they are not written then."""
    if isinstance(target, CopiesItself) and target.copy_from(source, key, to, beside_work):
        return
    with tempfile.TemporaryDirectory(prefix="barrier-copy-") as folder:
        path = Path(folder) / "object"
        source.get_file(key, path)
        check(path)
        target.put_file(to, path)
