"""Transfers snapshot files to and from the object store.

Every file is hashed for the upload, and again after a download. Runs on worker threads only; deletes nothing remote.
"""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from barrier_runtime.state.snapshots.plan import LocalFile, SnapshotPlan, is_immutable
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.snapshots.verified import download_verified, sha256_of
from barrier_runtime.state.store.object_store import LinksFiles, ObjectStore

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_IN_MEMORY_BYTES = 8 << 20


@dataclass(frozen=True)
class Uploaded:
    files: tuple[FileRef, ...]  # including reused files
    new_bytes: int


def local_files(directory: Path) -> list[LocalFile]:
    return [LocalFile(path.name, path.stat().st_size) for path in directory.iterdir() if path.is_file()]


def upload(
    store: ObjectStore,
    plan: SnapshotPlan,
    directory: Path,
    new_key: Callable[[], str],
    check: Callable[[], None],
    at_once: int = 4,
) -> Uploaded:
    """`check`, called before each object, raises if the snapshot is no longer wanted."""

    def send(file: LocalFile) -> FileRef:
        check()
        return _upload_alone(store, directory / file.name, new_key())

    fresh = in_parallel(send, plan.alone, at_once)
    if plan.packed:
        check()
        fresh += _upload_packed(store, plan.packed, directory, new_key())
    fresh += [_inlined(directory / file.name) for file in plan.inline]
    files = tuple(sorted((*plan.reused, *fresh), key=lambda ref: ref.name))
    return Uploaded(files, sum(ref.size for ref in fresh))


def download(store: ObjectStore, files: Sequence[FileRef], directory: Path, at_once: int = 4) -> None:
    """Checks every byte. `directory` has no such files yet."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    in_parallel(lambda ref: download_verified(store, ref, directory / ref.name), files, at_once)


def _upload_alone(store: ObjectStore, path: Path, key: str) -> FileRef:
    size = path.stat().st_size
    if size <= _IN_MEMORY_BYTES:
        data = path.read_bytes()
        digest = hashlib.sha256(data).hexdigest()
        store.put(key, data)
        return FileRef(path.name, len(data), digest, key)
    digest = sha256_of(path)
    if not (is_immutable(path.name) and isinstance(store, LinksFiles) and store.put_link(key, path)):
        store.put_file(key, path)
    return FileRef(path.name, size, digest, key)


def _upload_packed(store: ObjectStore, files: Sequence[LocalFile], directory: Path, key: str) -> list[FileRef]:
    refs, parts, offset = [], [], 0
    for file in files:
        data = (directory / file.name).read_bytes()
        refs.append(FileRef(file.name, len(data), hashlib.sha256(data).hexdigest(), key, offset))
        parts.append(data)
        offset += len(data)
    store.put(key, b"".join(parts))
    return refs


def _inlined(path: Path) -> FileRef:
    data = path.read_bytes()
    return FileRef(path.name, len(data), hashlib.sha256(data).hexdigest(), inline=data)


def in_parallel(work: Callable[[_In], _Out], items: Sequence[_In], at_once: int) -> list[_Out]:
    if min(at_once, len(items)) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(at_once, len(items)), thread_name_prefix="snapshot-files") as pool:
        return list(pool.map(work, items))
