"""Transfers snapshot files and large values to and from the object store.

Every file is hashed for the upload, and again after a download. Runs on worker threads only; deletes nothing remote.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from barrier_runtime.state.errors import Corrupt, ProtocolViolation
from barrier_runtime.state.snapshots.plan import LocalFile, SnapshotPlan, is_immutable, is_value_name
from barrier_runtime.state.snapshots.snapshot import FileRef, OperatorSnapshot
from barrier_runtime.state.store.object_store import LinksFiles, ObjectNotFound, ObjectStore

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


# Reads snapshot bytes back: every byte is hashed before use.
#
# Other bytes raise `Corrupt` with the object and both hashes.

_CHUNK = 1 << 20
_WHOLE_IN_MEMORY = 8 << 20  # larger objects are downloaded to disk first


def read_verified(store: ObjectStore, ref: FileRef) -> bytes:
    if ref.inline is not None:
        data = ref.inline
    else:
        try:
            data = store.get(_key(ref), ref.offset, ref.size)
        except ObjectNotFound as error:
            raise Corrupt(f"{describe(store, ref)} is gone: {_REMEDY}") from error
    check(store, ref, len(data), hashlib.sha256(data).hexdigest())
    return data


def download_verified(store: ObjectStore, ref: FileRef, path: Path) -> None:
    """As `read_verified`, into the new file `path`, removed if wrong.

    Do not change the file, which may be the stored object itself.
    """
    if ref.inline is not None or ref.offset or ref.size <= _WHOLE_IN_MEMORY:
        data = read_verified(store, ref)
        with path.open("xb") as file:
            file.write(data)
        return
    try:
        if not isinstance(store, LinksFiles) or not store.link_file(_key(ref), path):
            store.get_file(_key(ref), path)
    except ObjectNotFound as error:
        raise Corrupt(f"{describe(store, ref)} is gone: {_REMEDY}") from error
    try:
        check(store, ref, path.stat().st_size, sha256_of(path))
    except Corrupt:
        path.unlink()
        raise


def verify_parts(store: ObjectStore, refs: Iterable[FileRef], path: Path) -> None:
    """Raises `Corrupt` unless `path`, the object of all `refs`, has the written bytes."""
    with path.open("rb") as file:
        for ref in refs:
            file.seek(ref.offset)
            check(store, ref, *_hashed(file, ref.size))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return _hashed(file)[1]


def _hashed(file: BinaryIO, most: int = sys.maxsize) -> tuple[int, str]:
    digest, left = hashlib.sha256(), most
    while left and (chunk := file.read(min(left, _CHUNK))):
        digest.update(chunk)
        left -= len(chunk)
    return most - left, digest.hexdigest()


def describe(store: ObjectStore, ref: FileRef) -> str:
    if ref.key is None:
        return f"snapshot file {ref.name} (inside the manifest)"
    return f"snapshot file {ref.name} in object {store.url}/{ref.key}"


def check(store: ObjectStore, ref: FileRef, size: int, sha256: str) -> None:
    if size != ref.size or sha256 != ref.sha256:
        raise Corrupt(
            f"{describe(store, ref)} is not what was written: expected {ref.size} bytes with sha256 {ref.sha256}, "
            f"found {size} bytes with sha256 {sha256}; {_REMEDY}"
        )


_REMEDY = "restore the object from a backup or an older version of the bucket, or start from another checkpoint"


def _key(ref: FileRef) -> str:
    if ref.key is None:
        raise Corrupt(f"snapshot file {ref.name} has neither an object nor inline bytes: {_REMEDY}")
    return ref.key


# Stores large values of a snapshot as objects, because manifests and messages must stay small.
#
# Runs on worker threads only; deletes nothing.


def store_values(
    values: Mapping[str, bytes],
    stored: Mapping[str, FileRef],
    store: ObjectStore,
    new_key: Callable[[], str],
    limit_bytes: int,
    check: Callable[[], None],
) -> tuple[dict[str, bytes], dict[str, FileRef]]:
    """`stored`: values that are objects already. `check`, called before each upload, raises if the
    snapshot is no longer wanted.
    """
    small: dict[str, bytes] = {}
    objects: dict[str, FileRef] = {}
    for name, ref in stored.items():
        _check_name(name)
        objects[name] = msgspec.structs.replace(ref, name=name)
    for name, value in values.items():
        if name in stored:
            raise ProtocolViolation(f"the value {name!r} is handed over both as bytes and as stored: file a bug")
        if len(value) <= limit_bytes:
            small[name] = value
            continue
        _check_name(name)
        check()
        key = new_key()
        store.put(key, value)
        objects[name] = FileRef(name, len(value), hashlib.sha256(value).hexdigest(), key)
    return small, objects


def _check_name(name: str) -> None:
    if not is_value_name(name):
        raise ProtocolViolation(f"{name[:200]!r} is not a name for a large value: use letters, digits and . _ -")


def with_values(store: ObjectStore, snapshots: Sequence[OperatorSnapshot], at_once: int) -> list[OperatorSnapshot]:
    """Moves all `objects` into `values`.

    Raises `Corrupt` for a missing or changed object, `Unavailable` if an object cannot be read now.
    """
    wanted = [(number, name, ref) for number, each in enumerate(snapshots) for name, ref in each.objects.items()]
    if not wanted:
        return list(snapshots)
    read: list[dict[str, bytes]] = [dict(each.values) for each in snapshots]
    found = in_parallel(lambda item: read_verified(store, item[2]), wanted, at_once)
    for (number, name, _), value in zip(wanted, found, strict=True):
        read[number][name] = value
    return [
        msgspec.structs.replace(each, values=values, objects={}) for each, values in zip(snapshots, read, strict=True)
    ]
