"""Reads snapshot bytes back: every byte is hashed before use.

Other bytes raise `Corrupt` with the object and both hashes.
"""

import hashlib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from barrier_runtime.state.errors import Corrupt
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.store.object_store import LinksFiles, ObjectNotFound, ObjectStore

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
