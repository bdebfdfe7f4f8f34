"""Fetching of a RocksDB file only what a reader of few keys needs: a local file of the same size, with holes.

What is fetched in pieces cannot be checked against the file's hash; RocksDB checks each block that it reads, and a hole
is damage to it. So such files are for who only looks, and who meets damage fetches the files whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from barrier_runtime.state.errors import Corrupt, Unavailable
from barrier_runtime.state.kv.sst_blocks import FOOTER_BYTES, FilePart, UnknownLayout, blocks_of, index_of, whole_index
from barrier_runtime.state.snapshots.snapshot import FileRef
from barrier_runtime.state.snapshots.transfer import in_parallel
from barrier_runtime.state.snapshots.verified import describe, download_verified
from barrier_runtime.state.store.object_store import ObjectNotFound, ObjectStore

_WHOLE_BYTES = 128 << 10  # smaller files are fetched in one request
_TAIL_BYTES = 8 << 10
_TAIL_SHARE = 256  # of a file: its index, roughly


def download_range(
    store: ObjectStore, files: Sequence[FileRef], directory: Path, start: bytes, end: bytes, at_once: int = 4
) -> None:
    """Fetch `files` into the folder `directory`, of SST files only what holds keys from `start` on and below `end`."""
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)

    def fetch(ref: FileRef) -> None:
        path = directory / ref.name
        if not ref.name.endswith(".sst") or ref.key is None or ref.size < _WHOLE_BYTES:
            download_verified(store, ref, path)
            return
        try:
            _download_blocks(_Remote(store, ref), path, start, end)
        except UnknownLayout:
            path.unlink(missing_ok=True)
            download_verified(store, ref, path)

    in_parallel(fetch, files, at_once)


@dataclass(frozen=True)
class _Remote:
    store: ObjectStore
    ref: FileRef

    def read(self, place: FilePart) -> bytes:
        ref, size = self.ref, place.end - place.offset
        if ref.key is None or place.offset < 0 or size < 0 or place.end > ref.size:
            raise UnknownLayout(f"{place} of a file of {ref.size} bytes")
        try:
            data = self.store.get(ref.key, ref.offset + place.offset, size)
        except ObjectNotFound as error:
            raise Corrupt(f"{describe(self.store, ref)} is gone: read another checkpoint") from error
        if len(data) != size:
            raise Unavailable(f"{describe(self.store, ref)}: {len(data)} bytes came of {size}; try again")
        return data


def _download_blocks(remote: _Remote, path: Path, start: bytes, end: bytes) -> None:
    size = remote.ref.size
    tail = _Tail(remote, size, b"")
    footer = tail.part(FilePart(size - max(_TAIL_BYTES, size // _TAIL_SHARE), size))[-FOOTER_BYTES:]
    top = index_of(footer)
    whole = whole_index(tail.part(top), top)
    blocks = blocks_of(tail.part(whole), whole, top, start, end)
    with path.open("xb") as file:
        file.truncate(size)
        file.seek(blocks.offset)
        file.write(remote.read(blocks))
        file.seek(tail.begins)
        file.write(tail.data)


@dataclass
class _Tail:
    """The end of a file, as much of it as was asked for: its bytes from `begins` on."""

    remote: _Remote
    begins: int
    data: bytes

    def part(self, place: FilePart) -> bytes:
        offset = max(0, place.offset)
        if offset < self.begins:
            self.data = self.remote.read(FilePart(offset, self.begins)) + self.data
            self.begins = offset
        return self.data[offset - self.begins : place.end - self.begins]
