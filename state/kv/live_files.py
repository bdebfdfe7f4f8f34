"""Reads the live files from a MANIFEST of RocksDB. Pure.

The MANIFEST is an append-only log of entries that add and remove files, in blocks of 32 KiB:

    checksum, 4 bytes · length, 2 · kind, 1: whole, first, middle, last · a part of an entry

An entry consists of fields, each after its tag. An unknown field raises `UnknownLayout`.
"""

from barrier_runtime.state.kv.sst_blocks import UnknownLayout, varint

_BLOCK_BYTES = 32 << 10
_HEAD_BYTES = 7
_WHOLE, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_DELETED, _ADDED = 6, 103
_NUMBERS = {2, 3, 4, 9, 10, 200, 203, 300}  # followed by one number: of logs, files, column families
_TEXTS = {1, 201}  # followed by one text
_NOTHING = {202}
_POINTER = 5  # followed by a level and a key
_MAY_BE_IGNORED = 1 << 13  # tags with this bit: followed by one text
_LAST_OF_FILE = 1  # tag that ends the description of an added file


class LiveFiles:
    """Live files of a MANIFEST, which may be read repeatedly while it grows."""

    def __init__(self) -> None:
        self.numbers: set[int] = set()
        self._at = 0  # end of the last entry read
        self._entry = b""  # parts of the next entry

    def read(self, content: bytes) -> bool:
        """Reads all complete entries. Returns False if the last entry is incomplete."""
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
    """Number of the added file, and the end of the description."""
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
