"""Places of key ranges in an SST file, live files of a MANIFEST, small files in memory.

    SST file: data blocks · filter · index · other blocks that an open file needs · footer (53 bytes)

The index has place and upper key bound of each data block: in a single block, or in adjacent parts before a block with
the same of each part. After `UnknownLayout` read the whole file (docs/design/side-by-side-databases.md).
"""

import atexit
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from barrier_runtime.state.errors import Unavailable
from barrier_runtime.state.scratch import LOCK, flocked, remove_left

FOOTER_BYTES = 53
_MAGIC = 0x88E241B785F4CFF7  # of block-based tables
_VERSIONS = range(4, 6)  # of the table format
_TRAILER_BYTES = 5  # end of a block: compression and checksum
_PLAIN, _LZ4 = 0, 4
_MOST_INDEX_BYTES = 256 << 20


class UnknownLayout(ValueError):
    """The file has an unknown layout."""


@dataclass(frozen=True)
class FilePart:
    """`end` is exclusive."""

    offset: int
    end: int


def index_of(footer: bytes) -> FilePart:
    """`footer`: the last FOOTER_BYTES of the file."""
    if len(footer) != FOOTER_BYTES or int.from_bytes(footer[-8:], "little") != _MAGIC:
        raise UnknownLayout("no footer of a block-based table")
    if int.from_bytes(footer[-12:-8], "little") not in _VERSIONS:
        raise UnknownLayout("another format of tables")
    at = 1  # after the kind of checksum
    for _ in range(2):  # index of other blocks, not needed
        _, at = varint(footer, at)
    offset, at = varint(footer, at)
    size, _ = varint(footer, at)
    return FilePart(offset, offset + size + _TRAILER_BYTES)


def whole_index(top: bytes, place: FilePart) -> FilePart:
    """Place of the index: `top`, the bytes at `place` (from `index_of`), and the parts directly before."""
    named = _entries(_content(top))
    first, last = named[0][1], named[-1][1]
    if first.offset == 0:
        return place
    if last.end != place.offset:
        raise UnknownLayout("an index whose parts do not end where it begins")
    return FilePart(first.offset, place.end)


def blocks_of(index: bytes, whole: FilePart, top: FilePart, start: bytes, end: bytes) -> FilePart:
    """Place of the data blocks with all keys from `start` on and below `end`, and the next key.

    The next key shows that the range is complete. `index`: the bytes at `whole`.
    """
    found: list[FilePart] = []
    past = 0  # blocks whose last key is at or above `end`
    for highest, place in _named(index, whole, top, start):
        if highest >= start:
            found.append(place)
            past += highest >= end
        if past == 2:
            break
    return FilePart(found[0].offset, found[-1].end) if found else FilePart(0, 0)


def _named(index: bytes, whole: FilePart, top: FilePart, start: bytes) -> Iterator[tuple[bytes, FilePart]]:
    for highest, place in _entries(_content(index[top.offset - whole.offset :])):
        if whole == top:
            yield highest, place
        elif highest >= start:
            yield from _entries(_content(index[place.offset - whole.offset : place.end - whole.offset]))


def _content(block: bytes) -> bytes:
    data, kind = block[:-_TRAILER_BYTES], block[-_TRAILER_BYTES]
    if kind == _PLAIN:
        return data
    if kind != _LZ4:
        raise UnknownLayout(f"an index that is compressed in a way of number {kind}")
    size, at = varint(data, 0)
    if size > _MOST_INDEX_BYTES:
        raise UnknownLayout(f"an index of {size} bytes")
    try:
        return pa.decompress(data[at:], decompressed_size=size, codec="lz4_raw", asbytes=True)  # type: ignore[no-any-return]
    except OSError as error:
        raise UnknownLayout(f"an index that cannot be unpacked: {error}") from error


def _entries(content: bytes) -> list[tuple[bytes, FilePart]]:
    restarts = int.from_bytes(content[-4:], "little") & 0x7FFFFFFF
    entries_end = len(content) - 4 - 4 * restarts
    found: list[tuple[bytes, FilePart]] = []
    at, key, before = 0, b"", FilePart(0, 0)
    while at < entries_end:
        shared, at = varint(content, at)
        own, at = varint(content, at)
        key = key[:shared] + content[at : at + own]
        at += own
        if shared == 0:
            offset, at = varint(content, at)
            size, at = varint(content, at)
        else:
            offset = before.end
            longer, at = varint(content, at)
            size = before.end - before.offset - _TRAILER_BYTES + (longer >> 1 ^ -(longer & 1))
        before = FilePart(offset, offset + size + _TRAILER_BYTES)
        if found and before.offset != found[-1][1].end:
            raise UnknownLayout("blocks that do not follow each other")
        found.append((key, before))
    if at != entries_end or not found:
        raise UnknownLayout("an index that is cut")
    return found


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decodes seven bits per byte, lowest first; returns the number and the end."""
    number = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        number |= (data[at] & 0x7F) << shift
        at += 1
        if data[at - 1] < 0x80:
            return number, at
    raise UnknownLayout("a number without an end")


_BLOCK_BYTES = 32 << 10
_HEAD_BYTES = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED, _ADDED = 6, 103
_NUMBERS = {2, 3, 4, 9, 10, 200, 203, 300}  # followed by a number
_TEXTS = {1, 201}  # followed by a text
_NOTHING = {202}
_POINTER = 5  # followed by a level and a key
_MAY_BE_IGNORED = 1 << 13  # tags with this bit: followed by a text
_LAST_OF_FILE = 1  # tag that ends the description of an added file


class LiveFiles:
    """`read` may be repeated while the MANIFEST grows."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self._at = 0  # end of the last entry
        self._entry = b""  # parts of the next entry

    def read(self, content: bytes) -> bool:
        """Returns False if the last entry is incomplete."""
        while len(content) > self._at:
            left = _BLOCK_BYTES - self._at % _BLOCK_BYTES
            if left < _HEAD_BYTES:
                self._at += left
            start = self._at + _HEAD_BYTES
            end = start + int.from_bytes(content[self._at + 4 : self._at + 6], "little")
            if start > len(content) or end > len(content):
                return False
            kind = content[self._at + 6]
            if kind not in (_WHOLE, _FIRST, _MIDDLE, _LAST) or (kind in (_WHOLE, _FIRST)) == bool(self._entry):
                raise UnknownLayout(f"a part of kind {kind}")
            self._entry += content[start:end]
            self._at = end
            if kind in (_WHOLE, _LAST):
                self._apply(self._entry)
                self._entry = b""
        return len(content) == self._at and not self._entry

    def _apply(self, entry: bytes) -> None:
        at = 0
        while at < len(entry):
            tag, at = varint(entry, at)
            if tag == _DELETED:
                _, at = varint(entry, at)
                number, at = varint(entry, at)
                self.numbers.discard(number)
            elif tag == _ADDED:
                number, at = _added(entry, at)
                self.numbers.add(number)
            elif tag == _POINTER:
                _, at = varint(entry, at)
                at = _behind_text(entry, at)
            elif tag in _NUMBERS:
                _, at = varint(entry, at)
            elif tag in _TEXTS or tag & _MAY_BE_IGNORED:
                at = _behind_text(entry, at)
            elif tag not in _NOTHING:
                raise UnknownLayout(f"a field of tag {tag}")
        if at != len(entry):
            raise UnknownLayout("a field that is longer than its entry")


def _added(entry: bytes, at: int) -> tuple[int, int]:
    _, at = varint(entry, at)  # level
    number, at = varint(entry, at)
    _, at = varint(entry, at)  # size
    for _ in range(2):  # first and last key
        at = _behind_text(entry, at)
    for _ in range(2):  # first and last sequence number
        _, at = varint(entry, at)
    while True:
        tag, at = varint(entry, at)
        if tag == _LAST_OF_FILE:
            return number, at
        at = _behind_text(entry, at)


def _behind_text(entry: bytes, at: int) -> int:
    size, at = varint(entry, at)
    return at + size


# Places the small, often synced files of a database in /dev/shm, if this machine has enough memory.
#
# Only checkpoints must survive a power cut, but RocksDB syncs MANIFEST, CURRENT and others seven times at an open, and
# MANIFEST at each flush, while rocksdict holds the interpreter's lock. The database's own folder keeps the SST files,
# RocksDB's event log, and a lock.
#
# Files in memory are removed at the close, or when the slot or the process ends; those of a killed process, when
# another process of this user opens a database and finds the lock free.

MEMORY = Path("/dev/shm")
_PREFIX = "barrier-runtime-db-"
_ROOM_BYTES = 32 << 20  # minimum free memory
_MOVED = ("CURRENT", "MANIFEST-")


class SmallFiles:
    """The database in `directory` belongs to this process until `close`.

    `place`: the folder; in memory if `wanted` and possible.
    """

    def __init__(self, directory: Path, wanted: bool) -> None:
        self._directory = directory
        self._held: int | None = None
        self.place = directory
        folder = _new_folder() if wanted else None
        if folder is not None:
            small = [path for path in directory.iterdir() if path.name.startswith(_MOVED)]
            try:
                self._held = _locked(directory)
                for path in small:
                    shutil.copyfile(path, folder / path.name)
            except BaseException as error:
                self._release()
                _remove(folder)
                if not isinstance(error, OSError):
                    raise
                return  # no memory left: all files are still on disk
            for path in small:
                path.unlink()
            self.place = folder

    @property
    def apart(self) -> bool:
        return self.place != self._directory

    def close(self) -> None:
        if self.apart:
            _remove(self.place)
            self.place = self._directory
        self._release()

    def _release(self) -> None:
        if self._held is not None:
            os.close(self._held)
            self._held = None


class _OfProcess:
    def __init__(self) -> None:
        self.pid = os.getpid()
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=MEMORY))
        self.held = flocked(self.folder / LOCK)
        self.open = 0

    def remove(self) -> None:
        if self.pid == os.getpid():
            shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self.held)


_guard = threading.Lock()
_process: _OfProcess | None = None


def _new_folder() -> Path | None:
    global _process
    try:
        room = os.statvfs(MEMORY)
        if room.f_bavail * room.f_frsize < _ROOM_BYTES:
            return None
        with _guard:
            if _process is None or _process.pid != os.getpid():  # a forked process has no folder yet
                remove_left(MEMORY, _PREFIX)
                _process = _OfProcess()
            folder = Path(tempfile.mkdtemp(dir=_process.folder))
            _process.open += 1
            return folder
    except OSError:
        return None


def _remove(folder: Path) -> None:
    global _process
    shutil.rmtree(folder, ignore_errors=True)
    with _guard:
        if _process is not None and folder.parent == _process.folder:
            _process.open -= 1
            if _process.open == 0:
                _process.remove()
                _process = None


@atexit.register
def remove_all() -> None:
    global _process
    with _guard:
        ours, _process = _process, None
    if ours is not None:
        ours.remove()


def _locked(directory: Path) -> int:
    try:
        return flocked(directory / LOCK)
    except BlockingIOError:
        raise Unavailable(
            f"cannot open the state database in {directory}: another process still holds it, it is tried in a fresh "
            "folder"
        ) from None
